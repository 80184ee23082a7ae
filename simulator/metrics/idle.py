"""Where the time of a compute stream goes: at work, or idle for exactly one cause at each instant.

The cause of an idle instant is found by walking back from the stream's next operation, always to the predecessor that
ended last: a transfer or collective in progress at that instant makes it exposed time of its axis; a launch in progress
makes it time of the host; a kernel still running elsewhere makes it bubble; a kernel of an optimizer, or waiting for one, is
optimizer time. If nothing is left to walk to, it is bubble. So busy + exposed + host + bubble + optimizer is the step, on
every rank, to the nanosecond.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..program.op import HOST
from . import Array, Observation

SCALES = "time"
BUBBLE, OPTIMIZER, BUSY = "bubble", "optimizer", "busy"


@dataclass(frozen=True, eq=False, slots=True)
class Spent:
    """Nanoseconds of each class of ranks (rows) by cause (columns)."""

    causes: tuple[str, ...]
    ns: Array

    def of(self, cause: str) -> Array:
        """Nanoseconds per class; zeros for a cause that does not occur."""
        if cause not in self.causes:
            return np.zeros(len(self.ns), dtype=np.int64)
        column: Array = self.ns[:, self.causes.index(cause)]
        return column


def measure(seen: Observation) -> Spent:
    """Every class's time of the observed step, by cause."""
    causes = (BUSY, BUBBLE, OPTIMIZER, *seen.axes)
    cause = _cause_of_task(seen, causes)
    latest = _latest(seen, cause == causes.index(HOST) if HOST in causes else np.zeros(len(cause), dtype=bool))
    ns = np.zeros((len(seen.classes), len(causes)), dtype=np.int64)
    gaps = []
    for which in seen.classes:
        rows, tasks = seen.compute_rows(which), seen.timeline.expansion.tasks_of(which)
        labels = seen.labels_of(which)
        start, end = (
            c[tasks[rows]].clip(seen.begin_ns, seen.end_ns) for c in (seen.timeline.times.start_ns, seen.timeline.times.end_ns)
        )
        optimizing = labels.phase[rows] == "optimizer"
        column = np.where(optimizing, causes.index(OPTIMIZER), 0)
        for axis in seen.axes:
            column[labels.axis[rows] == axis] = causes.index(axis)
        np.add.at(ns[which], column, end - start)
        gaps.append(_gaps(seen, which, latest, rows, start, end))
    _walk(np.concatenate(gaps), latest, seen.timeline.times.start_ns, cause, ns)
    return Spent(causes, ns)


def _gaps(seen: Observation, which: int, latest: Array, rows: Array, start: Array, end: Array) -> Array:
    """Idle intervals as (class, from, to, the task at whose end the walk begins)."""
    tasks, ends = seen.timeline.expansion.tasks_of(which), seen.timeline.times.end_ns
    before = np.concatenate([[seen.begin_ns], np.maximum.accumulate(end)[:-1]]) if len(rows) else np.zeros(0, dtype=np.int64)
    idle = np.flatnonzero(start > before)
    inner = np.stack([np.full(len(idle), which), before[idle], start[idle], latest[tasks[rows[idle]]]], axis=1)
    done = int(end.max(initial=seen.begin_ns))
    own = int(tasks[np.argmax(ends[tasks])]) if len(tasks) else -1
    own_end = min(int(ends[own]), seen.end_ns) if own >= 0 else done
    last = int(np.argmax(ends)) if len(ends) else -1
    tail = np.array([[which, done, own_end, own], [which, max(done, own_end), seen.end_ns, last]])
    return np.concatenate([inner, tail[tail[:, 2] > tail[:, 1]]])


def _cause_of_task(seen: Observation, causes: tuple[str, ...]) -> Array:
    """For each task, the cause (by column) of those who wait while it runs."""
    rank_of, row_of = seen.timeline.expansion.origin
    cause = np.full(len(rank_of), causes.index(BUBBLE))
    for which in seen.classes:
        labels = seen.labels_of(which)
        tasks = np.flatnonzero(rank_of == which)
        rows = row_of[tasks]
        cause[tasks[labels.phase[rows] == "optimizer"]] = causes.index(OPTIMIZER)
        for axis in seen.axes:
            cause[tasks[labels.axis[rows] == axis]] = causes.index(axis)
    return cause


def _latest(seen: Observation, is_launch: Array) -> Array:
    """For each task, the predecessor (in its streams too) that ended last, or -1.

    Communication wins a tie. A launch loses it: whoever ended with it would have been waited for without it too.
    """
    graph, times = seen.timeline.expansion.graph, seen.timeline.times
    before = graph.all_preds()
    wins = (graph.pace < 0).astype(np.int64) - 2 * is_launch
    order = np.lexsort((before.idx, wins[before.idx], times.end_ns[before.idx], before.row_of))
    latest = np.full(len(graph), -1)
    has = before.counts > 0
    latest[has] = before.idx[order][before.ptr[1:][has] - 1]
    return latest


def _walk(gaps: Array, latest: Array, start: Array, cause: Array, ns: Array) -> None:
    """Adds every gap to `ns`, piece by piece, each step of the walk for all gaps at once."""
    which, low, high, task = gaps.T
    while len(which):
        nothing = task < 0
        begins = np.where(nothing, low, np.maximum(low, start[np.maximum(task, 0)]))
        column = np.where(nothing, 1, cause[np.maximum(task, 0)])
        np.add.at(ns, (which, column), np.maximum(0, high - begins))
        high = np.minimum(high, begins)
        more = (high > low) & ~nothing
        which, low, high, task = which[more], low[more], high[more], latest[task[more]]
