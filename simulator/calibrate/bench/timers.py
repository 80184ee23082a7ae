"""Timing one kernel: warm-ups, a cold cache before every run, and the spread of the runs.

The loop is the same for every device; a watch marks a moment, waits, and empties the cache. On a GPU marks are CUDA events.
Where the host needs longer to launch a kernel than the GPU to run it, the GPU is kept busy first, so that the launch is not
timed. On a CPU a mark is the time. The cache is emptied by reading more than it holds: writing would leave it full of lines that
the kernel has to write back first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from ...units import MS_PER_S

LEAST_RUNS, MOST_RUNS = 5, 100
TRIES = 3
"""Trial runs that show how long one takes, after a first one that also loads and compiles."""
AHEAD, MOST_BUSY_S = 3.0, 2.0**-8
"""How long the GPU is kept busy: a multiple of the host's time for a launch, and about 4 ms at most."""
CPU_CACHE_BYTES = 2**25
"""More than most CPUs cache for a core."""
TIMES_CACHE = 4
FLOAT_BYTES = 4
USUAL_CACHE_BYTES = 2**26
"""Size assumed for the cache of a GPU that does not state it."""
CLOCK_HZ = 2 * 2**30
"""About the clock of a GPU, for keeping it busy."""


@dataclass(frozen=True, slots=True)
class Job:
    """A kernel ready to run: `call` launches it, or `repeat` kernels of its kind."""

    call: Callable[[], object]
    before: Callable[[], object] = lambda: None
    """Launched before the time starts."""
    after: Callable[[], object] = lambda: None
    repeat: int = 1
    ahead: bool = True
    """Whether the host may launch ahead of the GPU; not if the launch itself is timed."""
    alone_s: float | None = None
    """Time without the others of a kernel that runs beside others."""


class CpuWatch:
    """The clock of the host, which never runs ahead of the device."""

    def __init__(self, torch: Any, cache_bytes: int = CPU_CACHE_BYTES, device: str = "cpu") -> None:
        self.buffer = torch.ones(cache_bytes // FLOAT_BYTES, device=device)

    def mark(self) -> Any:
        """This moment, on the device."""
        return perf_counter()

    def between_s(self, start: Any, end: Any) -> float:
        """Seconds from mark to mark, after `wait`."""
        return max(float(end - start), 1 / CLOCK_HZ)

    def wait(self) -> None:
        """Waits until everything that was launched has ended."""

    def empty_cache(self) -> None:
        """Empties the cache of what a kernel may read."""
        self.buffer.sum()

    def keep_busy(self, seconds: float) -> None:
        """Keeps the device busy for a while, if the host can run ahead of it."""


class CudaWatch(CpuWatch):
    """CUDA events."""

    def __init__(self, torch: Any) -> None:
        cache_bytes = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0) or USUAL_CACHE_BYTES
        super().__init__(torch, TIMES_CACHE * cache_bytes, "cuda")
        self.cuda = torch.cuda

    def mark(self) -> Any:
        event = self.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between_s(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end)) / MS_PER_S

    def wait(self) -> None:
        self.cuda.synchronize()

    def keep_busy(self, seconds: float) -> None:
        self.cuda._sleep(int(seconds * CLOCK_HZ))


def timed(watch: CpuWatch, job: Job, effort_s: float, clock: Callable[[], float] = perf_counter) -> tuple[float, ...]:
    """Seconds of each run of a job, shortest first: as many runs as fit in `effort_s`, but at least a few."""
    _trial(watch, job, clock)
    trials = [_trial(watch, job, clock)]
    if trials[0][0] * TRIES < effort_s:
        trials += [_trial(watch, job, clock) for _ in range(TRIES - 1)]
    once_s, host_s = map(min, zip(*trials, strict=True))
    busy_s = min(MOST_BUSY_S, AHEAD * host_s) if job.ahead and host_s * 2 > once_s - host_s else 0.0
    runs = min(MOST_RUNS, max(LEAST_RUNS, int(effort_s / (once_s + busy_s))))
    marks = []
    for _ in range(runs):
        watch.empty_cache()
        if busy_s:
            watch.keep_busy(busy_s)
        job.before()
        start = watch.mark()
        job.call()
        marks.append((start, watch.mark()))
        job.after()
    watch.wait()
    return tuple(sorted(watch.between_s(start, end) / job.repeat for start, end in marks))


def _trial(watch: CpuWatch, job: Job, clock: Callable[[], float]) -> tuple[float, float]:
    """Seconds of one run with everything around it, and those in which the host launched it and what goes before it."""
    watch.wait()
    began = clock()
    watch.empty_cache()
    launched = clock()
    job.before()
    job.call()
    host_s = clock() - launched
    job.after()
    watch.wait()
    return max(clock() - began, 1 / CLOCK_HZ), host_s
