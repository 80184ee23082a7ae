"""Timing one kernel: warm-ups, a cold cache before every run, and the spread of the runs.

The loop is the same for every device; a watch marks a moment, waits, and empties the cache. On a GPU marks are CUDA events. Where
the host needs longer to launch a kernel than the GPU to run it, the GPU is kept busy first, so that the launch is not timed. On a
CPU a mark is the time of the host's clock. The cache is emptied by reading more than its size: writing would leave modified lines
that the kernel would have to write back first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from ...units import MS_PER_S

LEAST_RUNS, MOST_RUNS = 5, 100
TRIES = 3
"""Trial runs that measure the time of a run, after a first run that also loads and compiles."""
AHEAD, MOST_BUSY_S = 3.0, 2.0**-8
"""How long the GPU is kept busy: a multiple of the host's time for a launch, and at most about 4 ms."""
CPU_CACHE_BYTES = 2**25
"""Size of the cache to empty on a CPU: more than most CPUs have per core."""
TIMES_CACHE = 4
FLOAT_BYTES = 4
USUAL_CACHE_BYTES = 2**26
"""Size assumed for the cache of a GPU that does not state it."""
CLOCK_HZ = 2 * 2**30
"""Approximate clock of a GPU, for converting seconds of busy time into cycles."""


@dataclass(frozen=True, slots=True)
class Job:
    """A kernel ready to run: `call` launches it, or `repeat` kernels of its kind."""

    call: Callable[[], object]
    before: Callable[[], object] = lambda: None
    """Called before the timed interval starts."""
    after: Callable[[], object] = lambda: None
    repeat: int = 1
    ahead: bool = True
    """Whether the host may launch ahead of the GPU. False if the launch itself is timed."""
    alone_s: float | None = None
    """Time of a concurrent kernel without the kernels beside it, in seconds."""


class CpuWatch:
    """The clock of the host as a watch; the host never runs ahead of a CPU."""

    def __init__(self, torch: Any, cache_bytes: int = CPU_CACHE_BYTES, device: str = "cpu") -> None:
        self.buffer = torch.ones(cache_bytes // FLOAT_BYTES, device=device)

    def mark(self) -> Any:
        """A mark of the current moment on the device."""
        return perf_counter()

    def between_s(self, start: Any, end: Any) -> float:
        """Seconds between two marks, after `wait`."""
        return max(float(end - start), 1 / CLOCK_HZ)

    def wait(self) -> None:
        """Waits until everything that was launched has finished."""

    def wait_for(self, mark: Any) -> None:
        """Waits until the device has passed a mark."""

    def empty_cache(self) -> None:
        """Evicts the operands of a kernel from the cache."""
        self.buffer.sum()

    def keep_busy(self, seconds: float) -> None:
        """Keeps the device busy for some seconds, if the host can run ahead of the device."""


class CudaWatch(CpuWatch):
    """A watch of CUDA events."""

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

    def wait_for(self, mark: Any) -> None:
        mark.synchronize()

    def keep_busy(self, seconds: float) -> None:
        self.cuda._sleep(int(seconds * CLOCK_HZ))


def timed(watch: CpuWatch, job: Job, effort_s: float, clock: Callable[[], float] = perf_counter) -> tuple[float, ...]:
    """Seconds of each run of a job, in ascending order: as many runs as fit in `effort_s`, and at least `LEAST_RUNS`."""
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
    """Seconds of one run with all its overhead, and seconds in which the host launched the run and its preparation."""
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
