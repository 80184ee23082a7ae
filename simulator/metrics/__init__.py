"""Metrics: functions of a timeline, one idea per file.

A metric's `measure(observation)` returns a number or a frozen record of numbers, and its `SCALES` says what becomes of them
when all times grow k-fold: `time` grows too, `fraction` stays, `rate` shrinks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..engine.timeline import Timeline
from ..program.labels import Labels
from ..program.op import COMPUTE
from ..units import seconds

if TYPE_CHECKING:
    from .idle import Spent

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Observation:
    """A timeline with its labels, over one training step, from `begin_ns` to `end_ns`: the last one, unless said otherwise."""

    timeline: Timeline
    labels: tuple[Labels, ...]
    model_flop: float = 0.0
    """What the model needs per step, by the full convention, over all GPUs."""
    peak_flop_per_s: float = 0.0
    """Of one GPU."""
    step: int = -1
    """Which of the simulated training steps, negative from the last."""

    @cached_property
    def classes(self) -> range:
        return range(self.timeline.expansion.ranks)

    @cached_property
    def weight(self) -> Array:
        """How many ranks each class stands for."""
        return self.timeline.multiplicity

    def labels_of(self, which: int) -> Labels:
        """The labels of a class's rows."""
        return self.labels[int(self.timeline.expansion.skeleton.program[which])]

    @cached_property
    def step_ends_ns(self) -> Array:
        """The last arrival of each training step that was simulated."""
        steps = 1 + max(int(labels.iteration.max(initial=0)) for labels in self.labels)
        ends = np.zeros(steps, dtype=np.int64)
        for which in self.classes:
            tasks = self.timeline.expansion.tasks_of(which)
            np.maximum.at(ends, self.labels_of(which).iteration, self.timeline.times.arrival_ns[tasks])
        return ends

    @property
    def iteration(self) -> int:
        """The number of the observed step."""
        return self.step % len(self.step_ends_ns)

    @property
    def begin_ns(self) -> int:
        """The end of the step before."""
        return int(self.step_ends_ns[self.iteration - 1]) if self.iteration else 0

    @property
    def end_ns(self) -> int:
        return int(self.step_ends_ns[self.iteration])

    @property
    def step_ns(self) -> int:
        return self.end_ns - self.begin_ns

    @cached_property
    def spent(self) -> Spent:
        """Where the time of every class went: what `idle` measures, kept because several metrics need it."""
        from . import idle

        return idle.measure(self)

    @property
    def step_s(self) -> float:
        return seconds(self.step_ns)

    def mean_s(self, per_class_ns: Array) -> float:
        """Mean over all ranks of a quantity per class, in seconds."""
        return seconds(float(np.dot(per_class_ns, self.weight)) / self.timeline.ranks)

    def compute_rows(self, which: int) -> Array:
        """The rows of a class's compute stream, in order."""
        labels = self.labels_of(which)
        template = self.timeline.expansion.skeleton.templates[int(self.timeline.expansion.skeleton.program[which])]
        return template.lanes.row(labels.lanes.index(COMPUTE))

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """Every axis that anything communicates along."""
        return tuple(sorted({axis for labels in self.labels for axis in labels.axes if axis}))
