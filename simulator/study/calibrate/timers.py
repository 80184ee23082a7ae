"""Timing one kernel: warm-ups, a cache made cold before every run, and the spread of the runs.

The loop is the same for every device; a `Watch` knows how to mark a moment, to wait, and to make the cache cold. On a GPU
marks are CUDA events, and where the host needs longer to launch a kernel than the GPU to run it, the GPU is kept busy first,
so that the launch is not timed. On a CPU a mark is the time. A cache is made cold by reading what is larger than it: writing
would leave it full of lines that the kernel has to put back first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles
from time import perf_counter
from typing import Any, Protocol

from ...units import MS_PER_S

LEAST_RUNS, MOST_RUNS = 5, 100
TRIES = 3
"""Runs that tell how long one takes, after one that tells nothing: what comes first also loads and compiles."""
AHEAD, MOST_BUSY_S = 3.0, 2.0**-8
"""How long the GPU is kept busy: in times of what the host needs for a launch, and about 4 ms at most."""
CPU_CACHE_BYTES = 2**25
"""More than most CPUs cache for a core."""
TIMES_CACHE = 4
FLOAT_BYTES = 4
USUAL_CACHE_BYTES = 2**26
"""Of a GPU that does not tell."""
CLOCK_HZ = 2 * 2**30
"""About what a GPU runs at: for keeping it busy."""


@dataclass(frozen=True, slots=True)
class Job:
    """A kernel ready to run: `call` launches it, or `repeat` of its kind."""

    call: Callable[[], object]
    before: Callable[[], object] = lambda: None
    """What is launched before the time starts."""
    after: Callable[[], object] = lambda: None
    repeat: int = 1
    ahead: bool = True
    """Whether the host may be ahead; not if it is the launch that is timed."""
    alone_s: float | None = None
    """Of a kernel beside others: how long it takes without them."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The times of some runs, in seconds, shortest first, and what else was seen while they ran."""

    times_s: tuple[float, ...]
    clock_mhz: float | None = None
    power_w: float | None = None
    throttle: str = ""
    """What held the clock down, where a GPU tells."""
    operators: int | None = None
    """Of PyTorch, that the kernel is made of; None where nobody counted."""
    alone_s: float | None = None

    @property
    def median_s(self) -> float:
        return median(self.times_s)

    @property
    def span_s(self) -> tuple[float, float]:
        """Between which four fifths of the runs lie."""
        if len(self.times_s) < 2:
            return self.times_s[0], self.times_s[0]
        tenths = quantiles(self.times_s, n=10, method="inclusive")
        return tenths[0], tenths[-1]


class Watch(Protocol):
    """How a device tells time."""

    def mark(self) -> Any:
        """This moment, on the device."""

    def between_s(self, start: Any, end: Any) -> float:
        """Seconds from mark to mark, after `wait`."""

    def wait(self) -> None:
        """Until all that was launched has ended."""

    def cool(self) -> None:
        """Makes the cache cold."""

    def busy(self, seconds: float) -> None:
        """Keeps the device busy meanwhile, if the host can run ahead of it."""


def timed(watch: Watch, job: Job, effort_s: float, clock: Callable[[], float] = perf_counter) -> tuple[float, ...]:
    """Seconds of each run of a job, shortest first: as many runs as fit in `effort_s`, but a few at least."""
    _tried(watch, job, clock)
    once_s, host_s = _tried(watch, job, clock)
    for _ in range(TRIES - 1 if once_s * TRIES < effort_s else 0):
        again_s, its_host_s = _tried(watch, job, clock)
        once_s, host_s = min(once_s, again_s), min(host_s, its_host_s)
    busy_s = min(MOST_BUSY_S, AHEAD * host_s) if job.ahead and host_s * 2 > once_s - host_s else 0.0
    runs = min(MOST_RUNS, max(LEAST_RUNS, int(effort_s / (once_s + busy_s))))
    marks = []
    for _ in range(runs):
        watch.cool()
        if busy_s:
            watch.busy(busy_s)
        job.before()
        start = watch.mark()
        job.call()
        marks.append((start, watch.mark()))
        job.after()
    watch.wait()
    return tuple(sorted(watch.between_s(start, end) / job.repeat for start, end in marks))


def _tried(watch: Watch, job: Job, clock: Callable[[], float]) -> tuple[float, float]:
    """Seconds of one run with all around it, and those in which the host launched it and what goes before."""
    watch.wait()
    began = clock()
    watch.cool()
    launched = clock()
    job.before()
    job.call()
    host_s = clock() - launched
    job.after()
    watch.wait()
    return max(clock() - began, 1 / CLOCK_HZ), host_s


class CpuWatch:
    """The clock of the host."""

    def __init__(self, torch: Any) -> None:
        self.buffer = torch.ones(CPU_CACHE_BYTES // FLOAT_BYTES)

    def mark(self) -> float:
        return perf_counter()

    def between_s(self, start: float, end: float) -> float:
        return max(end - start, 1 / CLOCK_HZ)

    def wait(self) -> None:
        """Nothing runs ahead."""

    def cool(self) -> None:
        self.buffer.sum()

    def busy(self, seconds: float) -> None:
        """Nothing runs ahead."""


class CudaWatch:
    """CUDA events."""

    def __init__(self, torch: Any) -> None:
        self.cuda = torch.cuda
        cache_bytes = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0) or USUAL_CACHE_BYTES
        self.buffer = torch.ones(TIMES_CACHE * cache_bytes // FLOAT_BYTES, device="cuda")

    def mark(self) -> Any:
        event = self.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between_s(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end)) / MS_PER_S

    def wait(self) -> None:
        self.cuda.synchronize()

    def cool(self) -> None:
        self.buffer.sum()

    def busy(self, seconds: float) -> None:
        self.cuda._sleep(int(seconds * CLOCK_HZ))
