"""Metrics: functions of a timeline, one idea per file.

A metric's `measure(observation)` returns a number or a frozen record of numbers, and its `SCALES` says what becomes of them
when all times grow k-fold: `time` grows too, `fraction` stays, `rate` shrinks. A metric with a `LABEL` gives one number, seconds
for a `time`; every run shows it under that label, and in its JSON under the name of the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..engine.timeline import Timeline
from ..program.labels import Labels
from ..units import seconds

Array = NDArray[Any]


@dataclass(frozen=True, eq=False, slots=True)
class Window:
    """What of a timeline is measured: whole training steps, on each class of ranks from a moment until another.

    The compute stream of a class does nothing in that time but what belongs to those steps, and all of it. Where all ranks begin
    together the moments are the same for all.
    """

    begin_ns: Array
    end_ns: Array
    iterations: range
    """The numbers of the steps whose operations count."""
    steps: int
    """How many training steps they make up: from one gradient norm to the next the ends of two make one."""
    text: str = ""
    """A description of what is measured."""

    def __repr__(self) -> str:
        return f"Window({self.steps} steps on {len(self.begin_ns):,} classes of ranks: {self.text or 'all of them'})"


def whole(timeline: Timeline, labels: tuple[Labels, ...], steps: int | None = None, text: str = "") -> Window:
    """All of a timeline, from zero to the last end: as many training steps as it has, or `steps`."""
    numbers = range(1 + max(int(of.iteration.max(initial=0)) for of in labels))
    begin_ns = np.zeros(timeline.expansion.skeleton.ranks, dtype=np.int64)
    return Window(begin_ns, begin_ns + timeline.times.makespan_ns, numbers, steps or len(numbers), text)


@dataclass(frozen=True, eq=False)
class Observation:
    """A timeline with its labels, over a window of whole training steps. `observe` makes it."""

    timeline: Timeline
    labels: tuple[Labels, ...]
    """Of the rows of each class of ranks."""
    window: Window
    axes: tuple[str, ...]
    """Every axis that anything communicates along."""
    model_flop: float
    """What the model needs per step, by the full convention, over all GPUs."""
    peak_flop_per_s: float
    """Of one GPU."""

    def __repr__(self) -> str:
        return f"Observation({self.timeline!r}, {self.window.text or 'all of it'})"

    @property
    def window_ns(self) -> Array:
        """How long the window lasts on each class of ranks."""
        lasted: Array = self.window.end_ns - self.window.begin_ns
        return lasted

    @property
    def from_ns(self) -> int:
        """When the window begins on the first rank."""
        return int(self.window.begin_ns.min())

    @property
    def until_ns(self) -> int:
        """When it ends on the last."""
        return int(self.window.end_ns.max())

    @cached_property
    def step_s(self) -> float:
        """A training step, on average over those of the window, and over ranks where they differ."""
        return self.mean_s(self.window_ns)

    def mean_s(self, per_class_ns: Array) -> float:
        """Seconds per training step, on average over ranks, of what took so long on each class in the window."""
        all_ns = np.dot(per_class_ns.astype(object), self.timeline.multiplicity)  # in integers of any size
        return seconds(int(all_ns) / (self.timeline.ranks * self.window.steps))

    def counts(self, iteration: Array) -> Array:
        """Whether what belongs to the training steps of these numbers is measured."""
        counted: Array = (iteration >= self.window.iterations.start) & (iteration < self.window.iterations.stop)
        return counted


def observe(
    timeline: Timeline,
    labels: tuple[Labels, ...],
    model_flop: float = 0.0,
    peak_flop_per_s: float = 0.0,
    window: Window | None = None,
) -> Observation:
    """The observation of a timeline, given the labels of each program that its ranks run; without a window, of all of it."""
    of_class = tuple(labels[program] for program in timeline.expansion.skeleton.program.tolist())
    axes = tuple(sorted({axis for of in labels for axis in of.axes if axis}))
    return Observation(timeline, of_class, window or whole(timeline, labels), axes, model_flop, peak_flop_per_s)
