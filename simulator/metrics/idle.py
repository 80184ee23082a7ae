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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..engine.skeleton import Expansion
from ..engine.stretched_timeline import StretchedTimeline
from ..engine.task import distinct
from ..engine.timeline import Times
from ..program.labels import Labels
from ..program.operations import COMPUTE, OFFLOAD
from . import Array, Observation, Repeats

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
class _Tasks:
    """The tasks among which a walk moves: those of all rows, or those of stretches."""

    expansion: Expansion
    times: Times
    rows: Sequence[Array]
    """Class -> the rows of its labels that begin a task."""
    begun: Sequence[Array]
    """Class -> the tasks that these rows begin."""
    number: Array
    """Task -> its place in the order by which ties are broken, 0, 1, 2 ..."""
    communicates: Array
    """Task -> whether it is a task of a communicator."""

    @classmethod
    def of_rows(cls, observed: Observation) -> _Tasks:
        """The tasks of all rows."""
        expansion, programs, graph = (
            observed.timeline.expansion,
            observed.timeline.skeleton.program,
            observed.timeline.expansion.graph,
        )
        rows, begun = zip(*map(expansion.begun_by, range(len(programs))), strict=True)
        known = dict(zip(programs.tolist(), rows, strict=True))  # the same object where they are the same rows
        rows = tuple(known[program] for program in programs.tolist())
        return cls(expansion, observed.timeline.times, rows, begun, np.arange(len(graph)), graph.speed < 0)

    @classmethod
    def of_stretches(cls, timeline: StretchedTimeline) -> _Tasks:
        """The tasks of stretches. Ties are broken as between the last rows of the stretches."""
        of, whole = timeline.stretched, timeline.skeleton
        rows = max(map(len, whole.templates))
        key, communicates = (np.zeros(len(of.graph), dtype=kind) for kind in (np.int64, bool))
        for which in range(whole.ranks - 1, -1, -1):
            stretches, tasks = of.stretches_of(which), of.tasks[which]
            slot, last = stretches.whole.slot[stretches.ends - 1], stretches.ends - 1
            owner = np.where(slot < 0, which, whole.ranks + whole.slots[slot, which])
            key[tasks], communicates[tasks] = owner * rows + last, slot >= 0
        number = np.empty_like(key)
        number[np.argsort(key, kind="stable")] = np.arange(len(key))
        heads = tuple(of.stretches_of(which).heads for which in range(whole.ranks))
        return cls(of.expansion, timeline.of_stretches, heads, of.tasks, number, communicates)


@dataclass(frozen=True, eq=False, slots=True)
class _TaskFacts:
    """Properties of each task, from the labels."""

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
    copy: Array
    """Whether the task is a copy between a rank and its host, or an update there, which no other rank takes part in."""


def measure(observed: Observation) -> TimeByCause:
    """Time of every class in the window by cause, in nanoseconds."""
    axes = tuple(dict.fromkeys((*observed.axes, DP)))
    causes = (BUSY, BUBBLE, OPTIMIZER, *axes, *map(imbalance, axes))
    return TimeByCause(causes, observed.summed("time by cause", lambda: _measured_ns(observed, causes, len(axes))))


def _measured_ns(observed: Observation, causes: Sequence[str], axes: int) -> tuple[Array, Array]:
    """Nanoseconds of every class by cause, of the timeline as it is and of the part that is repeated."""
    busy, bubble, optimizer, first_axis = range(4)
    inside = _inside(observed)
    tasks = _Tasks.of_rows(observed) if inside is None else _Tasks.of_stretches(inside.timeline)
    facts = _facts(observed, tasks)
    found = np.zeros((2, len(observed.labels), len(causes)), dtype=np.int64)
    axis_of, optimizes = np.append(facts.axis, -1), np.append(facts.optimizing, False)
    for of, via in _pieces(observed, tasks, facts, merged=inside is None):
        axis, optimizing = axis_of[of.task], optimizes[of.task]
        if via is None:
            cause = np.where(optimizing, optimizer, busy)
        else:
            waiting = np.where(optimizing, optimizer, bubble)
            cause = np.where((via >= 0) & (of.task >= 0), first_axis + axes + via, waiting)
        cause = np.where(axis >= 0, first_axis + axis, cause)
        for ns, counted in zip(found, _repeated(of, observed.repeats), strict=False):
            np.add.at(ns, (of.which, cause), counted.until_ns - counted.from_ns)
            for number, exposed_ns in inside.exposed_ns(counted) if inside else ():
                np.add.at(ns[:, first_axis + number], of.which, exposed_ns)
                np.add.at(ns, (of.which, cause), -exposed_ns)
    return found[0], found[1]


def _repeated(pieces: Pieces, repeats: Repeats | None) -> Iterator[Pieces]:
    """The pieces, and their fractions inside the part of the timeline that stands for several."""
    yield pieces
    if repeats:
        from_ns, until_ns = (repeats.from_ns + repeats.inside_ns(at_ns) for at_ns in (pieces.from_ns, pieces.until_ns))
        yield replace(pieces, from_ns=from_ns, until_ns=until_ns)


@dataclass(frozen=True, eq=False, slots=True)
class _Inside:
    """The communication inside stretches, for which compute waits."""

    timeline: StretchedTimeline
    intervals: tuple[dict[int, tuple[Array, Array]], ...]
    """Class -> index of an axis in the observation's axes -> starts and ends of its rows that are inside stretches."""
    several: Array
    """Task -> whether it is a stretch of several rows."""

    def exposed_ns(self, pieces: Pieces) -> Iterator[tuple[int, Array]]:
        """For every axis with communication inside stretches, the part of every piece in which it is in progress."""
        expansion = self.timeline.stretched.expansion
        owner = np.searchsorted(expansion.own_base, pieces.task, side="right") - 1
        owner[~self.several[pieces.task]] = -1
        found: dict[int, Array] = {}
        for which in distinct(owner[owner >= 0]).tolist():
            some = np.flatnonzero(owner == which)
            at_ns = np.stack([pieces.from_ns[some], pieces.until_ns[some]])
            for number, (start_ns, end_ns) in self.intervals[which].items():
                total = found.setdefault(number, np.zeros(len(owner), dtype=np.int64))
                total[some] = np.diff(_passed_ns(start_ns, end_ns, at_ns), axis=0)
        yield from found.items()


def _passed_ns(start_ns: Array, end_ns: Array, at_ns: Array) -> Array:
    """How much of some intervals, one after the other, has passed at each of some times."""
    before = np.append(0, np.cumsum(end_ns - start_ns))
    place = np.searchsorted(start_ns, at_ns, side="right")
    last = np.maximum(place - 1, 0)
    passed: Array = before[last] + np.clip(at_ns - start_ns[last], 0, (end_ns - start_ns)[last])
    return np.where(place > 0, passed, 0)


def _inside(observed: Observation) -> _Inside | None:
    """The communication inside stretches of the observed timeline; None without stretches, or if the window is not the whole."""
    timeline = observed.timeline
    if not isinstance(timeline, StretchedTimeline) or not observed.is_whole:
        return None
    intervals = []
    is_several = np.zeros(len(timeline.stretched.graph) + 1, dtype=bool)  # the last entry is for pieces without a task
    for which, labels in enumerate(observed.labels):
        stretches = timeline.stretched.stretches_of(which)
        if stretches.whole.main != labels.lanes.index(COMPUTE):
            return None
        several = stretches.ends - stretches.heads > 1
        is_several[timeline.stretched.tasks[which]] = several
        inside = np.flatnonzero(several[stretches.of_row] & (stretches.whole.slot >= 0))
        times, axis = timeline.class_times(which), labels.numbered_axes(observed.axes)[inside]
        here = {at: inside[axis == at] for at in np.flatnonzero(np.bincount(axis + 1)[1:]).tolist()}
        intervals.append({at: (times.start_ns[some], times.end_ns[some]) for at, some in here.items()})
    return _Inside(timeline, tuple(intervals), is_several)


def exposed(observed: Observation) -> tuple[Pieces, Array]:
    """The exposed time of every class as pieces, each spent waiting for a transfer or collective, and the axis of each piece as
    an index in `observed.axes`. Launches are not communication."""
    tasks = _Tasks.of_rows(observed)
    facts = _facts(observed, tasks)
    communicates = np.append((facts.axis >= 0) & ~facts.launch, False)
    columns = [np.zeros((4, 0), dtype=np.int64)]
    for of, _ in _pieces(observed, tasks, facts):
        columns.append(np.stack([of.which, of.task, of.from_ns, of.until_ns])[:, communicates[of.task]])
    found = Pieces(*np.concatenate(columns, axis=1))
    return found, facts.axis[found.task]


def waits(observed: Observation, axis: str | None = None) -> Pieces:
    """The pieces of bubble; with an axis those of its imbalance, each with the kernel of the slower member as its task."""
    tasks = _Tasks.of_rows(observed)
    facts = _facts(observed, tasks)
    axis_of, optimizes = np.append(facts.axis, -1), np.append(facts.optimizing, False)
    columns = [np.zeros((4, 0), dtype=np.int64)]
    for of, via in _pieces(observed, tasks, facts):
        if via is not None:
            member = (via >= 0) & (of.task >= 0)
            sought = ~member & ~optimizes[of.task] if axis is None else member & (via == (*observed.axes, DP).index(axis))
            columns.append(np.stack([of.which, of.task, of.from_ns, of.until_ns])[:, sought & (axis_of[of.task] < 0)])
    return Pieces(*np.concatenate(columns, axis=1))


def _facts(observed: Observation, of: _Tasks) -> _TaskFacts:
    """Properties of each task. Later classes are written first, so that the first rank of a task determines its properties."""
    expansion, dp = of.expansion, (*observed.axes, DP).index(DP)
    axis, coordinate = (np.full(len(expansion.graph), -1) for _ in range(2))
    flags = np.zeros(len(axis), dtype=np.int8)  # four bits in one number, which is written as quickly as one bit
    before: Labels | None = None
    before_rows = np.zeros(0, dtype=np.int64)
    for which, labels in reversed(list(enumerate(observed.labels))):
        rows, tasks = of.rows[which], of.begun[which]
        if labels is not before or rows is not before_rows:
            before, before_rows, place = labels, rows, labels.numbered_axes(observed.axes)[rows]
            compute, launch, transfer = (column[rows] for column in (labels.is_compute, labels.is_launch, labels.is_transfer))
            optimizer, norm = (labels.in_phase(phase)[rows] for phase in ("optimizer", "norm"))
            bits = (optimizer & compute) + 2 * launch + 4 * transfer + 8 * (norm & ~launch)
        coordinate[tasks], axis[tasks], flags[tasks] = labels.pipeline, place, bits
    optimizing, launch, transfer, norm = (flags & bit > 0 for bit in (1, 2, 4, 8))
    copy = axis == observed.axes.index(OFFLOAD) if OFFLOAD in observed.axes else np.zeros(len(axis), dtype=bool)
    return _TaskFacts(axis, optimizing, launch, transfer, norm, coordinate, dp, copy)


def _pieces(
    observed: Observation, of: _Tasks, facts: _TaskFacts, *, merged: bool = False
) -> Iterator[tuple[Pieces, Array | None]]:
    """The window of all compute streams in pieces: first their tasks, then their waits with the state of the walk.

    With `merged`, one piece may stand for several that wait for kernels of one rank, one after the other.
    """
    expansion, times, window = of.expansion, of.times, observed.window
    latest, busy, gaps = _latest(of, facts.launch), [], []
    ended = np.flatnonzero(times.arrival_ns == np.max(times.arrival_ns, initial=-1))
    last = int(ended[np.argmin(of.number[ended])]) if len(ended) else -1
    for which, labels in enumerate(observed.labels):
        template, own = expansion.template_of(which), of.begun[which]
        tasks = own[template.lanes.row(labels.lanes.index(COMPUTE))]
        start, end = (c[tasks].clip(window.begin_ns[which], window.end_ns[which]) for c in (times.start_ns, times.end_ns))
        busy.append(np.stack([np.full(len(tasks), which), tasks, start, end]))
        gaps.append(_gaps(observed, times, which, own, last, np.stack([latest[tasks], start, end])))
    yield Pieces(*np.concatenate(busy, axis=1)), None
    first = _first_of_run(latest, facts) if merged else slice(None)
    coordinates = np.array([labels.pipeline for labels in observed.labels])
    yield _walk(np.concatenate(gaps), latest[first], times.start_ns[first], facts, coordinates)


def _gaps(observed: Observation, times: Times, which: int, own: Array, last: int, compute: Array) -> Array:
    """Idle intervals as (class, from, to, task at whose end the walk begins, state of the walk).

    `compute` holds the latest predecessor, the start and the end of each task of the compute stream. After its last kernel a rank
    waits for its remaining tasks, and then for the `last` task of all ranks.
    """
    latest, start, end = compute
    ends = times.arrival_ns
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
    tasks = _Tasks.of_rows(observed)
    return _latest(tasks, _facts(observed, tasks).launch)


def _latest(of: _Tasks, is_launch: Array) -> Array:
    """The predecessor (streams included) for which each task waited longest, by end plus tail; -1 without a predecessor.

    Communication wins a tie. A launch loses a tie: without the launch the task would have waited for the other predecessor too.
    """
    graph, times = of.expansion.graph, of.times
    before, tail_ns = graph.all_preds()
    latest = np.full(len(graph), -1)
    if not len(before.idx):
        return latest
    has = before.counts > 0
    begins = before.ptr[:-1][has]
    passed_ns = times.end_ns[before.idx] + tail_ns
    last_ns = np.repeat(np.maximum.reduceat(passed_ns, begins), before.counts[has])
    order = (of.communicates + 2 * ~is_launch) * len(graph) + of.number
    most = np.maximum.reduceat(np.where(passed_ns == last_ns, order[before.idx], -1), begins)
    latest[has] = np.argsort(of.number)[most % len(graph)]
    return latest


def _first_of_run(latest: Array, facts: _TaskFacts) -> Array:
    """Task -> the first kernel of the run of kernels of its rank up to it that wait only for each other and have the same cause;
    for other tasks the task itself."""
    goes_on = latest[1:] == np.arange(len(latest) - 1)
    for column in (facts.optimizing, facts.coordinate):
        goes_on &= column[1:] == column[:-1]
    goes_on &= (facts.axis[1:] < 0) & (facts.axis[:-1] < 0)
    first: Array = np.maximum.accumulate(np.where(np.append(False, goes_on), 0, np.arange(len(latest))))
    return first


def _walk(gaps: Array, latest: Array, start: Array, facts: _TaskFacts, coordinate: Array) -> tuple[Pieces, Array]:
    """The pieces of every gap, from its end backwards, with the state of the walk; each step of the walk is done for all gaps."""
    collective = (facts.axis >= 0) & ~(facts.launch | facts.transfer | facts.copy)
    first_state = np.where(collective, np.where(facts.norm, NORM, facts.axis), DIRECTLY)
    changes = facts.transfer | (first_state != DIRECTLY)
    start = np.append(start, np.iinfo(np.int64).min)  # the last entry is for walks without a task, which end there
    which, low, high, task, via = gaps.T.copy()
    found, normed, final = [(np.zeros(0, dtype=np.int64),) * 5], True, False
    while len(which):
        if normed:
            held = np.flatnonzero((via == NORM) & (task >= 0))
            held = held[facts.axis[task[held]] < 0]
            via[held] = np.where(coordinate[which[held]] == facts.coordinate[task[held]], facts.dp, STAGE)
            normed = NORM in via
        begins = np.maximum(low, start[task])
        found.append((which, task, begins, high, via if final else via.copy()))
        high = np.minimum(high, begins)
        goes_on = high > low
        if np.count_nonzero(goes_on) < len(which):
            which, low, high, task, via = (column[goes_on] for column in (which, low, high, task, via))
        if not final and np.count_nonzero(changes[task]):
            directly = np.flatnonzero(via == DIRECTLY)
            via[directly] = first_state[task[directly]]
            via[facts.transfer[task] & (via != facts.dp)] = STAGE
            normed = NORM in via
            final = bool(((via == STAGE) | (via == facts.dp)).all())  # no walk leaves these states
        task = latest[task]
    walked = [np.concatenate(column) for column in zip(*found, strict=True)]
    passes = walked[3] > walked[2]
    *pieces, states = (column[passes] for column in walked)
    return Pieces(*pieces), states
