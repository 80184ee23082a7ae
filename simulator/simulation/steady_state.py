"""Which training steps are simulated, and what of them is measured: the steady state of a long run by default.

Where every rank waits for the gradient norm, a step lasts from one norm to the next. Otherwise steps run into each other, and so
many are simulated that the intervals between the starts of each rank's first operations repeat: each like the one before and
like that of every other rank, or in a pattern of a few steps.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..config.scenario import Perturb, Scenario
from ..engine.skeleton import Template
from ..engine.task import Array
from ..engine.timeline import Timeline
from ..metrics import Window, whole
from ..program.labels import Labels
from ..program.program import COMPUTE

BETWEEN_NORMS = None
"""Instead of a number of training steps: one, from a gradient norm to the next."""
GROWING = (4, 6, 9, 13)
"""Numbers of training steps that are simulated until a pattern shows; the last of each number only ends the one before."""
LONGEST_PERIOD = 4
"""Training steps in a pattern, and as many as are averaged where none shows."""


def to_simulate(scenario: Scenario, asked: int | None) -> tuple[int | None, ...]:
    """How many training steps to simulate; several numbers where the next is only needed if the one before was too few."""
    if asked is not None:
        return (asked,)
    if has_transitions(scenario.perturb):
        return (1,)
    return GROWING if scenario.plan.optimizer == "post-validated" else (BETWEEN_NORMS,)


def has_transitions(perturb: Iterable[Perturb]) -> bool:
    """Whether a disturbance begins or ends, so that no training step is like the next."""
    return any(p.from_s > 0 or p.until_s is not None for p in perturb)


def measured(timeline: Timeline, labels: tuple[Labels, ...], steps: int | None, counts: tuple[int | None, ...]) -> Window | None:
    """What to measure of so many simulated steps, one of the `counts` of `to_simulate`; None if the next count is needed.

    Where there is a single count all of the steps are measured, as they were asked for.
    """
    if steps is BETWEEN_NORMS:
        return whole(timeline, labels, 1, "from one gradient norm to the next, as in a long run")
    if len(counts) == 1:
        which = "the first step" if steps == 1 else f"the mean of the first {steps} steps"
        return whole(timeline, labels, steps, f"{which}, from a standing start to the last arrival")
    starts_ns = first_starts_ns(timeline, labels)
    period = repeating(starts_ns)
    if not period and steps != counts[-1]:
        return None
    return between_starts(starts_ns, period or LONGEST_PERIOD, _description(starts_ns.shape[1], period))


def first_starts_ns(timeline: Timeline, labels: tuple[Labels, ...]) -> Array:
    """For each class of ranks (rows), when its first kernel of each training step (columns) starts."""
    skeleton = timeline.expansion.skeleton
    starts_ns = []
    for which in range(timeline.expansion.skeleton.ranks):
        program = int(skeleton.program[which])
        rows = first_kernels(skeleton.templates[program], labels[program])
        starts_ns.append(timeline.times.start_ns[timeline.expansion.tasks_of(which)[rows]])
    return np.array(starts_ns)


def first_kernels(template: Template, labels: Labels) -> Array:
    """The row of the first kernel of each training step."""
    rows = template.lanes.row(labels.lanes.index(COMPUTE))
    first: Array = np.unique(labels.iteration[rows], return_index=True)[1]
    return rows[first]


def repeating(starts_ns: Array) -> int:
    """The shortest pattern in which the last intervals between starts repeat, as long on every rank; 0 if there is none."""
    intervals_ns = np.diff(starts_ns, axis=1)
    for period in range(1, min(LONGEST_PERIOD, intervals_ns.shape[1] // 2) + 1):
        last, before = intervals_ns[:, -period:], intervals_ns[:, -2 * period : -period]
        if (last == before).all() and len(np.unique(last.sum(axis=1))) == 1:
            return period
    return 0


def between_starts(starts_ns: Array, steps: int, text: str = "") -> Window:
    """The last so many training steps, on each class from the start of the first to that of the one after the last."""
    last = starts_ns.shape[1] - 1
    return Window(starts_ns[:, last - steps], starts_ns[:, last], range(last - steps, last), steps, text)


def _description(simulated: int, period: int) -> str:
    if period == 1:
        return f"step {simulated - 1} of steps that run into each other, which is as long as the one before on every rank"
    if period:
        return f"the mean of {period} steps that run into each other, as long as the {period} before on every rank"
    return f"the mean of steps {simulated - LONGEST_PERIOD} to {simulated - 1}, in which no pattern repeats"
