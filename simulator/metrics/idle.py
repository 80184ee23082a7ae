"""Where the time of a compute stream goes: at work, or idle for exactly one cause at each instant.

The cause of an idle instant is found by walking back from the stream's next operation, always to the predecessor that
ended last, by end plus tail: a transfer or collective in progress at that instant, until it has arrived, makes it exposed time
of its axis; a launch in progress makes it time of the host; a kernel still running elsewhere makes it bubble; a kernel of an
optimizer, or waiting for one, is optimizer time. If nothing is left to walk to, it is bubble. So busy + exposed + host + bubble
+ optimizer is the step, on every rank, to the nanosecond. `exposed` gives the same exposed time task by task, for those who ask
what a task waits for.
"""

from __future__ import annotations

from collections.abc import Iterator
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


@dataclass(frozen=True, eq=False, slots=True)
class Pieces:
    """Intervals of compute streams, each spent on one task: on its own work, or on waiting for that task."""

    which: Array
    """The class of ranks."""
    task: Array
    """-1 where there is none."""
    from_ns: Array
    until_ns: Array


def measure(seen: Observation) -> Spent:
    """Every class's time of the window, by cause."""
    causes = (BUSY, BUBBLE, OPTIMIZER, *seen.axes)
    busy, bubble, optimizer, first_axis = range(4)
    axis, optimizing = _told(seen)
    waiting = np.append(np.where(axis >= 0, first_axis + axis, np.where(optimizing, optimizer, bubble)), bubble)
    working = np.where(waiting == bubble, busy, waiting)
    ns = np.zeros((len(seen.classes), len(causes)), dtype=np.int64)
    for of, is_own in _pieces(seen, axis):
        np.add.at(ns, (of.which, (working if is_own else waiting)[of.task]), of.until_ns - of.from_ns)
    return Spent(causes, ns)


def exposed(seen: Observation) -> tuple[Pieces, Array]:
    """The exposed time of every class, piece by piece, each spent on a transfer or collective, and the axis of each by its
    place in `seen.axes`. Launches are no communication."""
    axis = _told(seen)[0]
    communicates = np.append((axis >= 0) & (axis != _place_of(HOST, seen)), False)
    columns = [np.zeros((4, 0), dtype=np.int64)]
    for of, _ in _pieces(seen, axis):
        columns.append(np.stack([of.which, of.task, of.from_ns, of.until_ns])[:, communicates[of.task]])
    found = Pieces(*np.concatenate(columns, axis=1))
    return found, axis[found.task]


def _pieces(seen: Observation, axis: Array) -> Iterator[tuple[Pieces, bool]]:
    """The window of every class's compute stream in pieces; with each batch, whether they are the stream's own tasks."""
    latest = _latest(seen, axis == _place_of(HOST, seen))
    gaps = []
    for which in seen.classes:
        rows, tasks = seen.compute_rows(which), seen.timeline.expansion.tasks_of(which)
        start, end = (
            c[tasks[rows]].clip(seen.window.begin_ns[which], seen.window.end_ns[which])
            for c in (seen.timeline.times.start_ns, seen.timeline.times.end_ns)
        )
        yield Pieces(np.full(len(rows), which), tasks[rows], start, end), True
        gaps.append(_gaps(seen, which, latest, rows, start, end))
    for pieces in _walk(np.concatenate(gaps), latest, seen.timeline.times.start_ns):
        yield pieces, False


def _gaps(seen: Observation, which: int, latest: Array, rows: Array, start: Array, end: Array) -> Array:
    """Idle intervals as (class, from, to, the task at whose end the walk begins)."""
    tasks, ends = seen.timeline.expansion.tasks_of(which), seen.timeline.times.arrival_ns
    begin_ns, end_ns = int(seen.window.begin_ns[which]), int(seen.window.end_ns[which])
    before = np.concatenate([[begin_ns], np.maximum.accumulate(end)[:-1]]) if len(rows) else np.zeros(0, dtype=np.int64)
    idle = np.flatnonzero(start > before)
    inner = np.stack([np.full(len(idle), which), before[idle], start[idle], latest[tasks[rows[idle]]]], axis=1)
    done = int(end.max(initial=begin_ns))
    own = int(tasks[np.argmax(ends[tasks])]) if len(tasks) else -1
    own_end = min(int(ends[own]), end_ns) if own >= 0 else done
    last = int(np.argmax(ends)) if len(ends) else -1
    tail = np.array([[which, done, own_end, own], [which, max(done, own_end), end_ns, last]])
    return np.concatenate([inner, tail[tail[:, 2] > tail[:, 1]]])


def _told(seen: Observation) -> tuple[Array, Array]:
    """Of each task, the place of its axis in `seen.axes`, or -1; and whether it is part of an optimizer."""
    rank_of, row_of = seen.timeline.expansion.origin
    axis, optimizing = np.full(len(rank_of), -1), np.zeros(len(rank_of), dtype=bool)
    ordered = np.argsort(rank_of, kind="stable")
    cuts = np.searchsorted(rank_of[ordered], np.arange(len(seen.classes) + 1))
    for which in seen.classes:
        labels = seen.labels_of(which)
        tasks = ordered[cuts[which] : cuts[which + 1]]
        rows = row_of[tasks]
        optimizing[tasks] = labels.phase[rows] == "optimizer"
        for place, name in enumerate(seen.axes):
            axis[tasks[labels.axis[rows] == name]] = place
    return axis, optimizing


def _place_of(axis: str, seen: Observation) -> int:
    """Where an axis stands in `seen.axes`; beyond all, if nothing communicates along it."""
    return (*seen.axes, axis).index(axis)


def _latest(seen: Observation, is_launch: Array) -> Array:
    """For each task, the predecessor (in its streams too) that it waited for longest, or -1: ends count with their tails.

    Communication wins a tie. A launch loses it: whoever ended with it would have been waited for without it too.
    """
    graph, times = seen.timeline.expansion.graph, seen.timeline.times
    before, tail_ns = graph.all_preds()
    wins = (graph.pace < 0).astype(np.int64) - 2 * is_launch
    order = np.lexsort((before.idx, wins[before.idx], times.end_ns[before.idx] + tail_ns, before.row_of))
    latest = np.full(len(graph), -1)
    has = before.counts > 0
    latest[has] = before.idx[order][before.ptr[1:][has] - 1]
    return latest


def _walk(gaps: Array, latest: Array, start: Array) -> Iterator[Pieces]:
    """Every gap piece by piece, from its end back, each step of the walk for all gaps at once."""
    which, low, high, task = gaps.T
    while len(which):
        nothing = task < 0
        begins = np.where(nothing, low, np.maximum(low, start[np.maximum(task, 0)]))
        spent = high > begins
        yield Pieces(which[spent], task[spent], begins[spent], high[spent])
        high = np.minimum(high, begins)
        more = (high > low) & ~nothing
        which, low, high, task = which[more], low[more], high[more], latest[task[more]]
