"""Time of a compute stream by cause: busy, or idle for exactly one cause at each instant.

The cause of an idle instant is found by walking back from the stream's next operation, at each step to the predecessor with the
latest end plus tail. The rank waits for the task of this walk that is in progress at the instant:
- a transfer (until its arrival) or a collective: exposed time of its axis;
- a launch: time of the host;
- a kernel of another rank, reached through a transfer: bubble, as the rank waits for another stage;
- a kernel reached through a collective of an axis: imbalance of that axis, as a member of the group still computes;
- a kernel reached through the gradient norm, or when the rank has nothing left to do: imbalance of dp if the kernel is of the
  same pipeline coordinate, else bubble;
- a kernel of an optimizer that no collective waits for: optimizer time.
The first collective of the walk determines the axis of the imbalance. A transfer later in the walk changes the cause to bubble,
except after a collective over replicas: a rank that waits for another replica waits for the whole pipeline of that replica.
Hence busy + exposed + imbalance + host + bubble + optimizer is the step, on every rank, to the nanosecond, and without a pipeline
there is no bubble. `exposed` gives the same exposed time for each task that a rank waits for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..program.labels import Labels
from ..program.program import COMPUTE
from . import Array, Observation

SCALES = "time"
BUBBLE, OPTIMIZER, BUSY = "bubble", "optimizer", "busy"
DP = "dp"
DIRECTLY, STAGE, NORM = -1, -2, -3
"""States of a walk other than the index of the axis of its first collective: no collective or transfer so far; a transfer, so
that the walk is in another stage; the gradient norm."""


def imbalance(axis: str) -> str:
    """Name of the cause for waiting at a collective of an axis for a member that still computes."""
    return f"imbalance of {axis}"


@dataclass(frozen=True, eq=False, slots=True)
class TimeByCause:
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
    """Intervals of compute streams, in each of which a stream runs one task or waits for one task."""

    which: Array
    """The class of ranks."""
    task: Array
    """The task that the stream runs or waits for; -1 without a task."""
    from_ns: Array
    until_ns: Array


@dataclass(frozen=True, eq=False, slots=True)
class _TaskFacts:
    """Facts about each task, from the labels."""

    axis: Array
    """Index of the task's axis in the observation's axes, or -1."""
    optimizing: Array
    """Whether the task is part of an optimizer."""
    launch: Array
    transfer: Array
    norm: Array
    coordinate: Array
    """Pipeline coordinate of the first rank that takes part in the task."""
    dp: int
    """Index of dp among the axes, or the number of axes if dp is not among them."""


def measure(observed: Observation) -> TimeByCause:
    """Time of every class in the window by cause, in nanoseconds."""
    axes = tuple(dict.fromkeys((*observed.axes, DP)))
    causes = (BUSY, BUBBLE, OPTIMIZER, *axes, *map(imbalance, axes))
    busy, bubble, optimizer, first_axis = range(4)
    facts = _facts(observed)
    ns = np.zeros((len(observed.labels), len(causes)), dtype=np.int64)
    axis_of, optimizes = np.append(facts.axis, -1), np.append(facts.optimizing, False)
    for of, via in _pieces(observed, facts):
        axis, optimizing = axis_of[of.task], optimizes[of.task]
        if via is None:
            cause = np.where(optimizing, optimizer, busy)
        else:
            waiting = np.where(optimizing, optimizer, bubble)
            cause = np.where((via >= 0) & (of.task >= 0), first_axis + len(axes) + via, waiting)
        cause = np.where(axis >= 0, first_axis + axis, cause)
        np.add.at(ns, (of.which, cause), of.until_ns - of.from_ns)
    return TimeByCause(causes, ns)


def exposed(observed: Observation) -> tuple[Pieces, Array]:
    """The exposed time of every class as pieces, each spent waiting for a transfer or collective, and the axis of each piece as
    an index in `observed.axes`. Launches are not communication."""
    facts = _facts(observed)
    communicates = np.append((facts.axis >= 0) & ~facts.launch, False)
    columns = [np.zeros((4, 0), dtype=np.int64)]
    for of, _ in _pieces(observed, facts):
        columns.append(np.stack([of.which, of.task, of.from_ns, of.until_ns])[:, communicates[of.task]])
    found = Pieces(*np.concatenate(columns, axis=1))
    return found, facts.axis[found.task]


def waits(observed: Observation, axis: str | None = None) -> Pieces:
    """The pieces of bubble; with an axis those of its imbalance, each with the kernel of the slower member as its task."""
    facts = _facts(observed)
    axis_of, optimizes = np.append(facts.axis, -1), np.append(facts.optimizing, False)
    columns = [np.zeros((4, 0), dtype=np.int64)]
    for of, via in _pieces(observed, facts):
        if via is not None:
            member = (via >= 0) & (of.task >= 0)
            sought = ~member & ~optimizes[of.task] if axis is None else member & (via == (*observed.axes, DP).index(axis))
            columns.append(np.stack([of.which, of.task, of.from_ns, of.until_ns])[:, sought & (axis_of[of.task] < 0)])
    return Pieces(*np.concatenate(columns, axis=1))


def _facts(observed: Observation) -> _TaskFacts:
    """Facts about each task. Later classes are written first, so that the first rank of a task determines its facts."""
    expansion, dp = observed.timeline.expansion, (*observed.axes, DP).index(DP)
    axis, coordinate = (np.full(len(expansion.graph), -1) for _ in range(2))
    optimizing, launch, transfer, norm = (np.zeros(len(axis), dtype=bool) for _ in range(4))
    before: Labels | None = None
    for which, labels in reversed(list(enumerate(observed.labels))):
        rows, tasks = expansion.begun_by(which)
        if labels is not before:
            before, place = labels, np.full(len(rows), -1)
            for number, name in enumerate(observed.axes):
                place[labels.axis[rows] == name] = number
            optimizes = ((labels.phase == "optimizer") & labels.is_compute)[rows]
            is_norm = ((labels.phase == "norm") & ~labels.is_launch)[rows]
            launches, transfers = labels.is_launch[rows], labels.is_transfer[rows]
        coordinate[tasks], axis[tasks] = labels.pipeline, place
        launch[tasks], transfer[tasks], optimizing[tasks], norm[tasks] = launches, transfers, optimizes, is_norm
    return _TaskFacts(axis, optimizing, launch, transfer, norm, coordinate, dp)


def _pieces(observed: Observation, facts: _TaskFacts) -> Iterator[tuple[Pieces, Array | None]]:
    """The window of every class's compute stream in pieces; with the state of the walk, or None for tasks of the stream."""
    expansion, times, window = observed.timeline.expansion, observed.timeline.times, observed.window
    latest, gaps = _latest(observed, facts.launch), []
    last = int(np.argmax(times.arrival_ns)) if len(times.arrival_ns) else -1
    for which, labels in enumerate(observed.labels):
        template, (_, own) = expansion.template_of(which), expansion.begun_by(which)
        tasks = own[template.lanes.row(labels.lanes.index(COMPUTE))]
        start, end = (c[tasks].clip(window.begin_ns[which], window.end_ns[which]) for c in (times.start_ns, times.end_ns))
        yield Pieces(np.full(len(tasks), which), tasks, start, end), None
        gaps.append(_gaps(observed, which, own, last, np.stack([latest[tasks], start, end])))
    yield _walk(np.concatenate(gaps), latest, times.start_ns, facts, np.array([of.pipeline for of in observed.labels]))


def _gaps(observed: Observation, which: int, own: Array, last: int, compute: Array) -> Array:
    """Idle intervals as (class, from, to, task at whose end the walk begins, state of the walk).

    `compute` holds the latest predecessor, the start and the end of each task of the compute stream. After its last kernel a rank
    waits for its remaining tasks, and then for the `last` task of all ranks.
    """
    latest, start, end = compute
    ends = observed.timeline.times.arrival_ns
    begin_ns, end_ns = int(observed.window.begin_ns[which]), int(observed.window.end_ns[which])
    before = np.append(begin_ns, np.maximum.accumulate(end))[:-1]
    idle = np.flatnonzero(start > before)
    inner = np.stack([np.full(len(idle), which), before[idle], start[idle], latest[idle], np.full(len(idle), DIRECTLY)], axis=1)
    done = int(end.max(initial=begin_ns))
    last_own = int(own[::-1][np.argmax(ends[own][::-1])]) if len(own) else -1
    own_end = min(int(ends[last_own]), end_ns) if last_own >= 0 else done
    tail = np.array([[which, done, own_end, last_own, DIRECTLY], [which, max(done, own_end), end_ns, last, NORM]])
    return np.concatenate([inner, tail[tail[:, 2] > tail[:, 1]]])


def latest_predecessors(observed: Observation) -> Array:
    """For each task the predecessor for which it waited longest, as in `measure`; -1 without a predecessor."""
    return _latest(observed, _facts(observed).launch)


def _latest(observed: Observation, is_launch: Array) -> Array:
    """The predecessor (streams included) for which each task waited longest, by end plus tail; -1 without a predecessor.

    Communication wins a tie. A launch loses a tie: without the launch the task would have waited for the other predecessor too.
    """
    graph, times = observed.timeline.expansion.graph, observed.timeline.times
    before, tail_ns = graph.all_preds()
    latest = np.full(len(graph), -1)
    if not len(before.idx):
        return latest
    has = before.counts > 0
    begins = before.ptr[:-1][has]
    passed_ns = times.end_ns[before.idx] + tail_ns
    last_ns = np.repeat(np.maximum.reduceat(passed_ns, begins), before.counts[has])
    wins = (graph.speed < 0) + 2 * ~is_launch
    order = np.where(passed_ns == last_ns, wins[before.idx] * len(graph) + before.idx, -1)
    latest[has] = np.maximum.reduceat(order, begins) % len(graph)
    return latest


def _walk(gaps: Array, latest: Array, start: Array, facts: _TaskFacts, coordinate: Array) -> tuple[Pieces, Array]:
    """The pieces of every gap, from its end backwards, with the state of the walk; each step of the walk is done for all gaps."""
    collective = (facts.axis >= 0) & ~facts.launch & ~facts.transfer
    which, low, high, task, via = gaps.T
    found = [np.zeros((5, 0), dtype=np.int64)]
    while len(which):
        nothing = task < 0
        holds = (via == NORM) & ~nothing & (facts.axis[task] < 0)
        via = np.where(holds, np.where(coordinate[which] == facts.coordinate[task], facts.dp, STAGE), via)
        begins = np.where(nothing, low, np.maximum(low, start[np.maximum(task, 0)]))
        lasts = high > begins
        found.append(np.stack([which, task, begins, high, via])[:, lasts])
        high = np.minimum(high, begins)
        more = (high > low) & ~nothing
        which, low, high, task, via = which[more], low[more], high[more], task[more], via[more]
        via = np.where(collective[task] & (via == DIRECTLY), np.where(facts.norm[task], NORM, facts.axis[task]), via)
        via = np.where(facts.transfer[task] & (via != facts.dp), STAGE, via)
        task = latest[task]
    *pieces, states = np.concatenate(found, axis=1)
    return Pieces(*pieces), states
