"""Number of training steps to simulate, and the part of them to measure: by default the steady state of a long run.

Where every rank waits for the gradient norm, a step lasts from one norm to the next. Otherwise consecutive steps overlap, and
steps are simulated until the intervals between the starts of each rank's first operations repeat: every interval equals the
interval before and is the same on every rank, or the intervals repeat with a period of a few steps.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..config.scenario import Perturb, Scenario
from ..engine.task import Array
from ..engine.template import Template
from ..engine.timeline import Timeline
from ..metrics import Window, whole
from ..program.labels import Labels
from ..program.operations import COMPUTE

BETWEEN_NORMS = None
"""Value in place of a number of training steps: a single step from one gradient norm to the next."""
GROWING = (4, 6, 9, 13)
"""Numbers of training steps that are tried until the intervals repeat; the last step only marks the end of the step before."""
LONGEST_PERIOD = 4
"""Largest period of a pattern in training steps, and the number of steps to average where no pattern repeats."""


def to_simulate(scenario: Scenario, asked: int | None) -> tuple[int | None, ...]:
    """Numbers of training steps to simulate, in order; each further number is needed only if the number before was too small."""
    if asked is not None:
        return (asked,)
    if has_transitions(scenario.perturb):
        return (1,)
    return (BETWEEN_NORMS,) if scenario.plan.waits_for_norm(scenario.job.gradient_clipping) else GROWING


def has_transitions(perturb: Iterable[Perturb]) -> bool:
    """Whether a disturbance begins or ends, so that no training step is like the next."""
    return any(p.from_s > 0 or p.until_s is not None for p in perturb)


def measured(timeline: Timeline, labels: tuple[Labels, ...], steps: int | None, counts: tuple[int | None, ...]) -> Window | None:
    """The window to measure of `steps` simulated steps, one of the `counts` of `to_simulate`; None if the next count is needed.

    With a single count all steps are measured, since the user asked for this number.
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
    """Start of the first kernel of each training step (columns) on each class of ranks (rows), in nanoseconds."""
    skeleton = timeline.skeleton
    starts_ns = []
    for which in range(skeleton.ranks):
        program = int(skeleton.program[which])
        rows = first_kernels(skeleton.templates[program].whole, labels[program])
        starts_ns.append(timeline.class_times(which).start_ns[rows])
    return np.array(starts_ns)


def first_kernels(template: Template, labels: Labels) -> Array:
    """The row of the first kernel of each training step."""
    rows = template.lanes.row(labels.lanes.index(COMPUTE))
    first: Array = np.unique(labels.iteration[rows], return_index=True)[1]
    return rows[first]


def repeating(starts_ns: Array) -> int:
    """The shortest period in steps with which the last intervals between starts repeat on every rank; 0 without a period."""
    intervals_ns = np.diff(starts_ns, axis=1)
    for period in range(1, min(LONGEST_PERIOD, intervals_ns.shape[1] // 2) + 1):
        last, before = intervals_ns[:, -period:], intervals_ns[:, -2 * period : -period]
        if (last == before).all() and len(np.unique(last.sum(axis=1))) == 1:
            return period
    return 0


def between_starts(starts_ns: Array, steps: int, text: str = "") -> Window:
    """Window of the `steps` training steps before the last simulated step, on each class from start of step to start of step."""
    last = starts_ns.shape[1] - 1
    return Window(starts_ns[:, last - steps], starts_ns[:, last], range(last - steps, last), steps, text)


def _description(simulated: int, period: int) -> str:
    if period == 1:
        return f"step {simulated - 1} of overlapping steps, as long as the one before on every rank"
    if period:
        return f"the mean of {period} overlapping steps, as long as the {period} before on every rank"
    return f"the mean of steps {simulated - LONGEST_PERIOD} to {simulated - 1}, in which no pattern repeats"
