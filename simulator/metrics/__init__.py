"""Metrics: functions of a timeline, one metric per file, and the observation of a timeline that these functions take.

A metric's `measure(observation)` returns a number or a frozen record of numbers. The constant `SCALES` of the file says how these
numbers change when all times grow k-fold: a `time` grows k-fold, a `fraction` stays, a `rate` shrinks. A metric with a `LABEL`
returns one number, in seconds for a `time`; every run shows the number under this label, and in JSON under the file name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
    """The measured part of a timeline: whole training steps, with a begin and an end time for each class of ranks.

    Between these times the compute stream of a class runs all operations of the measured steps and no other operations. Where all
    ranks begin together, the times are the same for all classes.
    """

    begin_ns: Array
    end_ns: Array
    iterations: range
    """The numbers of the steps whose operations count."""
    steps: int
    """Number of training steps in the window: from one gradient norm to the next, parts of two iterations form one step."""
    text: str = ""
    """A description of what is measured."""

    def __repr__(self) -> str:
        return f"Window({self.steps} steps on {len(self.begin_ns):,} classes of ranks: {self.text or 'all of them'})"


def whole(timeline: Timeline, labels: tuple[Labels, ...], steps: int | None = None, text: str = "") -> Window:
    """The window of a whole timeline, from zero to the last end, with `steps` training steps (default: all iterations)."""
    numbers = range(1 + max(int(of.iteration.max(initial=0)) for of in labels))
    begin_ns = np.zeros(timeline.skeleton.ranks, dtype=np.int64)
    return Window(begin_ns, begin_ns + timeline.makespan_ns, numbers, steps or len(numbers), text)


@dataclass(frozen=True, eq=False, slots=True)
class Repeats:
    """A part of a timeline that stands for several: it is repeated a number of further times, each time the same."""

    times: int
    from_ns: int
    lasts_ns: int
    steps: tuple[Array, ...]
    """Role -> the steps of the program that are run once more each time."""
    measured: dict[str, tuple[Any, Any]] = field(default_factory=dict, repr=False)
    """Name -> cached measurement of the timeline as it is, and of one repetition; valid for any number of repetitions."""

    def inside_ns(self, at_ns: Array) -> Array:
        """How much of the part has passed at each of some times."""
        passed: Array = (at_ns - self.from_ns).clip(0, self.lasts_ns)
        return passed


@dataclass(frozen=True, eq=False)
class Observation:
    """A timeline with its labels, over a window of whole training steps; `observe` constructs an observation."""

    timeline: Timeline
    labels: tuple[Labels, ...]
    """Labels of the rows of each class of ranks."""
    window: Window
    axes: tuple[str, ...]
    """Every axis with communication."""
    model_flop: float
    """Flop that the model needs per step, by the full convention, over all GPUs."""
    peak_flop_per_s: float
    """Peak flop/s of one GPU."""
    repeats: Repeats | None = None
    """The part that stands for several parts of the observed steps; only in a window that is the whole timeline."""

    def __repr__(self) -> str:
        return f"Observation({self.timeline!r}, {self.window.text or 'all of it'})"

    @property
    def window_ns(self) -> Array:
        """Duration of the window on each class of ranks, in nanoseconds."""
        lasted: Array = self.window.end_ns - self.window.begin_ns
        return lasted + self.repeats.times * self.repeats.lasts_ns if self.repeats else lasted

    @property
    def is_whole(self) -> bool:
        """Whether the window is the whole timeline."""
        return not self.window.begin_ns.any() and bool((self.window.end_ns == self.timeline.makespan_ns).all())

    @property
    def from_ns(self) -> int:
        """Earliest begin of the window over all ranks, in nanoseconds."""
        return int(self.window.begin_ns.min())

    @property
    def until_ns(self) -> int:
        """Latest end of the window over all ranks, in nanoseconds."""
        return int(self.window.end_ns.max())

    @cached_property
    def step_s(self) -> float:
        """Mean time of a training step over the steps of the window and over ranks, in seconds."""
        return self.mean_s(self.window_ns)

    def mean_s(self, per_class_ns: Array) -> float:
        """Mean over ranks, in seconds per training step, of a time that is given for each class over the whole window."""
        all_ns = np.dot(per_class_ns.astype(object), self.timeline.multiplicity)  # in integers of any size
        return seconds(int(all_ns) / (self.timeline.ranks * self.window.steps))

    def summed(self, name: str, measure: Callable[[], Sequence[Any]]) -> Any:
        """A sum over the whole step: measured over the timeline as it is, plus the repeated part times its repetitions."""
        if not self.repeats:
            return measure()[0]
        known = self.repeats.measured
        if name not in known:
            known[name] = (found := measure())[0], found[1]
        once, again = known[name]
        return once + self.repeats.times * again

    def counts(self, iteration: Array) -> Array:
        """Whether operations with these iteration numbers belong to the measured training steps."""
        counted: Array = (iteration >= self.window.iterations.start) & (iteration < self.window.iterations.stop)
        return counted

    def calls(self, which: int) -> Array:
        """Number of times that each row of a class of ranks occurs in the measured training steps."""
        once, *again = self.calls_in_parts(which)
        return once + self.repeats.times * again[0] if self.repeats else once

    def calls_in_parts(self, which: int) -> list[Array]:
        """The same for the timeline as it is, and the number that each repetition of the repeated part adds, if there is one."""
        labels = self.labels[which]
        once: Array = self.counts(labels.iteration).astype(np.int64)
        if not self.repeats:
            return [once]
        is_repeated = np.zeros(len(labels.steps), dtype=bool)
        is_repeated[self.repeats.steps[int(self.timeline.skeleton.program[which])]] = True
        return [once, np.where(is_repeated[labels.step], once, 0)]


def observe(
    timeline: Timeline,
    labels: tuple[Labels, ...],
    model_flop: float = 0.0,
    peak_flop_per_s: float = 0.0,
    window: Window | None = None,
    repeats: Repeats | None = None,
) -> Observation:
    """The observation of a timeline, given the labels of each program of its ranks; the default window is the whole timeline."""
    of_class = tuple(labels[program] for program in timeline.skeleton.program.tolist())
    axes = tuple(sorted(set[str]().union(*(of.axes for of in labels)) - {""}))
    return Observation(timeline, of_class, window or whole(timeline, labels), axes, model_flop, peak_flop_per_s, repeats)
