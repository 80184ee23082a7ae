"""Running a load for some seconds: the time of its runs, the clock and the power of the GPU, in short windows.

The first window is a burst after a rest in which the clock recovers: as many runs as in public collectors of kernel times, if
they are short. Later windows last about a twentieth of a second. Every run is between two time marks, and the host is at most a
few windows ahead of the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from time import perf_counter, sleep
from typing import Any

from ...units import MIB, MS_PER_S, TFLOP, US_PER_S
from .sustained_loads import Load
from .timers import Job
from .torch_bench import SmiMonitor

COLUMNS = (
    "load", "detail", "share", "at_ms", "runs", "time_us", "period_us", "clock_mhz", "power_w", "throttle", "memory_mib",
)  # fmt: skip
BURST_RUNS = 12
WARM_UPS = 3
REST_S, WINDOW_S, SETTLED_S = 0.4, 0.05, 1.0
"""Rest before a load, length of a window, and the time after which clock and power count as settled, in seconds."""
AHEAD = 3
"""Number of windows by which the host may be ahead of the GPU."""
Marks = list[tuple[Any, Any]]
"""Begin and end of each run of a window."""


@dataclass(frozen=True, slots=True)
class Window:
    """Some runs of a load, one after the other. Times are in seconds."""

    at_s: float
    """Start of the window, counted from the start of the load."""
    runs: int
    run_s: float
    """Mean time of a run."""
    period_s: float
    """Mean time from one run to the next."""
    clock_mhz: float | None
    power_w: float | None
    throttle: str


@dataclass(frozen=True, slots=True)
class Sustained:
    """A load with its windows, and the peak of its memory."""

    load: Load
    windows: tuple[Window, ...]
    memory_bytes: int

    def settled(self, what: Callable[[Window], float | None]) -> float | None:
        """The median of a quantity over the windows after the first second, or over all windows if there are none."""
        late = [one for one in self.windows if one.at_s >= SETTLED_S] or self.windows
        values = [value for one in late if (value := what(one)) is not None]
        return median(values) if values else None

    def cells(self) -> Iterator[list[str]]:
        """The rows of the table, in the order of `COLUMNS`."""
        memory = f"{self.memory_bytes / MIB:.0f}" if self.memory_bytes else ""
        for one in self.windows:
            times = [f"{one.at_s * MS_PER_S:.1f}", str(one.runs), *(f"{t * US_PER_S:.7g}" for t in (one.run_s, one.period_s))]
            seen = ["" if value is None else f"{value:g}" for value in (one.clock_mhz, one.power_w)]
            yield [self.load.name, self.load.detail, f"{self.load.share:g}", *times, *seen, one.throttle, memory]

    def summary(self) -> list[str]:
        """Burst and sustained time, rate, clock and power as text, in the order of `HEADER`."""
        burst_s, run_s = self.windows[0].run_s, self.settled(lambda one: one.run_s) or 0.0
        period_s = self.settled(lambda one: one.period_s) or 1.0
        clock, power_w = self.settled(lambda one: one.clock_mhz), self.settled(lambda one: one.power_w)
        reasons = dict.fromkeys(reason for one in self.windows for reason in one.throttle.split(", ") if reason)
        return [
            self.load.name, self.load.detail, f"{run_s / period_s:.2f}", f"{burst_s * US_PER_S:,.1f}",
            f"{run_s * US_PER_S:,.1f}", f"{run_s / burst_s - 1:+.1%}" if burst_s else "",
            f"{self.load.flop / run_s / TFLOP:.0f}" if self.load.flop and run_s else "",
            "" if clock is None else f"{clock:.0f}", "" if power_w is None else f"{power_w:.0f}", ", ".join(reasons),
        ]  # fmt: skip


HEADER = ("load", "of", "busy", "burst us", "sustained us", "longer", "TFLOP/s", "MHz", "W", "clock reduced by")


def run(watch: Any, monitor: SmiMonitor, load: Load, seconds: float, memory: Callable[[], int] = lambda: 0) -> Sustained:
    """Runs a load for some seconds, at least for a window. `memory` returns the peak of held bytes since the last load."""
    job = load.build()
    if job is None:
        return Sustained(load, tuple(_idle(monitor, seconds)), 0)
    once_s = _warm(watch, job)
    rest_s = once_s * (1 / load.share - 1)
    later = max(1, round(WINDOW_S / (once_s + rest_s)))
    sleep(REST_S)
    began, base, windows = perf_counter(), watch.mark(), list[Marks]()
    while not windows or perf_counter() - began < seconds:
        windows.append([_run(watch, job, rest_s) for _ in range(later if windows else min(later, BURST_RUNS))])
        if len(windows) > AHEAD:
            watch.wait_for(windows[-1 - AHEAD][-1][1])
    watch.wait()
    return Sustained(load, tuple(_read(watch, monitor, marks, base, began) for marks in windows), memory())


def _warm(watch: Any, job: Job) -> float:
    """Seconds of one run, after some that load and compile."""
    for _ in range(WARM_UPS):
        job.call()
    start, _ = _run(watch, job, 0.0)
    _, end = _run(watch, job, 0.0)
    watch.wait()
    return float(watch.between_s(start, end)) / 2


def _run(watch: Any, job: Job, rest_s: float) -> tuple[Any, Any]:
    """Launches a run and the rest after it; returns the marks around the run."""
    start = watch.mark()
    job.call()
    end = watch.mark()
    if rest_s:
        watch.keep_busy(rest_s)
    return start, end


def _read(watch: Any, monitor: SmiMonitor, marks: Marks, base: Any, began_s: float) -> Window:
    """A window from its marks, with the readings of its time. `base` is the mark of the host's time `began_s`."""
    at_s, end_s = watch.between_s(base, marks[0][0]), watch.between_s(base, marks[-1][1])
    runs = [watch.between_s(start, end) for start, end in marks]
    between = [watch.between_s(one[0], other[0]) for one, other in pairwise(marks)]
    seen = monitor.during(began_s + at_s, began_s + end_s)
    return Window(at_s, len(marks), fmean(runs), fmean(between or runs), seen.clock_mhz, seen.power_w, seen.throttle)


def _idle(monitor: SmiMonitor, seconds: float) -> Iterator[Window]:
    """Windows of an idle GPU, at least one."""
    began_s, at_s = perf_counter(), 0.0
    while at_s < seconds or not at_s:
        sleep(WINDOW_S)
        seen = monitor.during(began_s + at_s, perf_counter())
        yield Window(at_s, 0, 0.0, 0.0, seen.clock_mhz, seen.power_w, seen.throttle)
        at_s = perf_counter() - began_s
