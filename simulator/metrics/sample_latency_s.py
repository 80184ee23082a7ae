"""Sample latency: time from the start of a microbatch's first forward slot to the end of its last, mean over microbatches.

The latency grows with the number of stages, and with the time that a microbatch waits for ranks that run other slots. If
sequences are split, each part counts by itself. The mean is also taken over the replicas.
"""

from __future__ import annotations

import numpy as np

from ..program.labels import Labels
from ..program.slot import FORWARD
from ..units import seconds
from . import Array, Observation

SCALES = "time"
LABEL = "sample latency"


def measure(observed: Observation) -> float:
    """Seconds from the first stage to the last; zero without forward slots.

    Every replica runs a stage on equally many ranks, so the mean latency is the difference of the means of ends and starts.
    """
    last = max(int(labels.stage.max(initial=0)) for labels in observed.labels)
    starts_ns, ends_ns = _mean_ns(observed, 0, ends=False), _mean_ns(observed, last, ends=True)
    return seconds(ends_ns - starts_ns)


def _mean_ns(observed: Observation, stage: int, *, ends: bool) -> float:
    """Mean end, or start, of the forward slots of a stage over its microbatches and ranks, in nanoseconds."""
    total_ns = slots = 0
    before: Labels | None = None
    for which, (labels, ranks) in enumerate(zip(observed.labels, observed.timeline.multiplicity.tolist(), strict=True)):
        if labels is not before:
            before, (rows, first) = labels, _rows_of_slots(labels, observed, stage)
        if len(first):
            times = observed.timeline.class_times(which)
            column, edge = (times.end_ns, np.maximum) if ends else (times.start_ns, np.minimum)
            total_ns += ranks * int(edge.reduceat(column[rows], first).sum())
            slots += ranks * len(first)
    return total_ns / slots if slots else 0.0


def _rows_of_slots(labels: Labels, observed: Observation, stage: int) -> tuple[Array, Array]:
    """The rows of the forward slots of a stage, slot by slot, and where each slot begins among them."""
    forward = (labels.phase == FORWARD) & (labels.stage == stage) & observed.counts(labels.iteration)
    rows = np.flatnonzero(forward & ~labels.is_launch)
    rows = rows[np.argsort(labels.step[rows], kind="stable")]
    return rows, np.flatnonzero(np.diff(labels.step[rows], prepend=-1))
