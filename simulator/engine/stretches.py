"""Stretches: rows of a rank that follow each other without a break are simulated as one task, before their tasks are made.

In a folded skeleton most rows of a rank depend on no other rank: own work, and turns of communicators with this one class of
ranks, over links that no other communicator crosses meanwhile (`mutual_exclusion.py`), which always take the same time. If such a
row waits for the row before it, both belong to one *run*: each of its rows starts when the one before it ends. A run is cut into
stretches before rows that wait for other runs and after rows that other runs wait for. Three kinds of edges constrain nothing
and cut nothing: edges within a run, edges that the order of the main lane (the lane with most own work) implies, and duplicates.

Nothing but order and durations is used: every row starts and ends at the same nanosecond as in the whole skeleton. A stretch may
hold rows that others slow; its *pieces* then tell `heap.py` which of them is in progress.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from .contract import FIXED, Pieces, durations
from .fold import Folded
from .mutual_exclusion import LinkSharers
from .replay import with_fixed_durations
from .skeleton import Expansion, Skeleton, expand
from .task import BOTH, CORES, FULL_SPEED, MEMORY, SPEED_BITS, WEIGHT_BITS, Array, Csr, TaskGraph, offsets, run_starts
from .template import Template
from .timeline import Times

OPEN = -1
"""Value in place of the duration of a row that is a stretch by itself."""
STRETCHES_OF_ROW = 4
"""Estimated number of stretches per row that is a stretch by itself, including the cuts around it; only saves useless work."""
MOST_NS = 1 << 45
"""Longest time of a row for which products with speeds fit into 64 bits."""


@dataclass(frozen=True, eq=False)
class Stretches:
    """The rows of a template, and the stretches into which they are divided."""

    whole: Template
    template: Template
    """The program with a row for each stretch."""
    heads: Array
    """Stretch -> its first row in the whole template; it ends before the first row of the next stretch."""
    ns: Array
    """Row -> its time in ns if nothing slows it; `OPEN` for a stretch by itself."""
    piece_ns: Array
    kind: Array
    """Row -> its time and kind as a piece: at full speed, with the resource that it needs; or `FIXED`."""

    @cached_property
    def ends(self) -> Array:
        """Stretch -> the row after its last one."""
        ends: Array = np.append(self.heads, len(self.whole))[1:]
        return ends

    @cached_property
    def of_row(self) -> Array:
        """Row -> its stretch."""
        rows: Array = np.repeat(np.arange(len(self.heads)), self.ends - self.heads)
        return rows

    @cached_property
    def closed(self) -> Array:
        """Stretch -> whether its rows follow each other and depend on no other rank, except that others may slow them."""
        closed: Array = self.ns[self.heads] > 0
        return closed

    @cached_property
    def offset_ns(self) -> Array:
        """Row -> the time in ns from the start of its stretch to its own start, if nothing slows the stretch."""
        before = np.append(0, np.cumsum(np.maximum(self.ns, 0)))[:-1]
        offset_ns: Array = before - before[self.heads][self.of_row]
        return offset_ns


@dataclass(frozen=True, eq=False)
class Stretched:
    """A skeleton whose templates are made of stretches, its expansion, and the pieces of its tasks."""

    stretches: tuple[Stretches, ...]
    """Template -> its stretches."""
    expansion: Expansion
    graph: TaskGraph
    """Its graph, with fixed durations for tasks that always take the same time."""
    pieces: Pieces
    tasks: tuple[Array, ...]
    """Rank -> the tasks of its stretches."""

    def stretches_of(self, rank: int) -> Stretches:
        """The stretches of a rank."""
        return self.stretches[int(self.expansion.skeleton.program[rank])]

    def rows(self, rank: int, times: Times, begun_ns: Array) -> Times:
        """The times of all rows of a rank, from those of all stretches and from the start of every piece."""
        stretches, tasks = self.stretches_of(rank), self.tasks[rank]
        start_ns = times.start_ns[tasks][stretches.of_row] + stretches.offset_ns
        first = self.pieces.ptr[tasks]
        slowed = stretches.closed & (self.pieces.ptr[tasks + 1] > first)
        rows = np.flatnonzero(slowed[stretches.of_row])
        start_ns[rows] = begun_ns[rows + (first - stretches.heads)[stretches.of_row[rows]]]
        end_ns = np.append(start_ns, 0)[1:]
        end_ns[stretches.ends - 1] = times.end_ns[tasks]
        arrival_ns = end_ns.copy()
        arrival_ns[stretches.ends - 1] = np.where(stretches.closed, times.end_ns[tasks], times.arrival_ns[tasks])
        return Times(start_ns, end_ns, arrival_ns)


def stretched(ranks: Folded, groups: Callable[[int], Array], *, every: bool = False, at_least: float = 0.0) -> Stretched | None:
    """The skeleton of stretches. `groups(program)` numbers the rows of a template: rows with different numbers are never of one
    stretch. With `every`, transfers take their uncontended time, as in `with_fixed_durations`. None if stretches have fewer than
    `at_least` rows on average.
    """
    skeleton = ranks.skeleton
    members = np.bincount(skeleton.members[0], minlength=skeleton.communicators)
    fixed_ns, shares = _fixed_ns(skeleton, every=every)
    fixed_ns = np.where(members[:, None] == 1, fixed_ns, OPEN)
    if at_least and _may_not_pay(skeleton, fixed_ns, at_least):
        return None
    turn_ns = _turns_ns(ranks, fixed_ns, shares & (fixed_ns != OPEN))
    if sum(map(len, turn_ns)) < at_least * STRETCHES_OF_ROW * sum(int((ns == OPEN).sum()) for ns in turn_ns):
        return None
    taking = ((skeleton.tariff.cores > 0) | (skeleton.tariff.memory > 0))[skeleton.kind]
    known: dict[tuple[int, int, bytes], int] = {}
    divided: list[Stretches] = []
    program = np.empty_like(skeleton.program)
    for rank, (number, profile) in enumerate(zip(skeleton.program.tolist(), skeleton.speed.tolist(), strict=True)):
        takes = taking[skeleton.slots[:, rank]]
        key = number, profile, turn_ns[rank].tobytes() + takes.tobytes()
        if key not in known:
            known[key] = len(divided)
            speed = skeleton.profiles[profile].value[0] if skeleton.profiles[profile].steady else 0
            divided.append(_divided(skeleton.templates[number], turn_ns[rank], takes, speed, groups(number)))
        program[rank] = known[key]
    rows, heads = np.array([(len(one.whole), len(one.heads)) for one in divided])[program].sum(axis=0).tolist()
    if rows < at_least * heads:
        return None
    expansion = expand(replace(skeleton, templates=tuple(one.template for one in divided), program=program))
    return _with_pieces(tuple(divided), expansion, every=every)


def _may_not_pay(skeleton: Skeleton, fixed_ns: Array, at_least: float) -> bool:
    """Whether stretches will have fewer than `at_least` rows on average, because many turns of communicators depend on others."""
    rows = alone = 0
    for number, template in enumerate(skeleton.templates):
        ranks, turns = np.flatnonzero(skeleton.program == number), np.flatnonzero(template.slot >= 0)
        charges = int(template.charge[turns].max(initial=0)) + 1
        counts = np.bincount(template.slot[turns] * charges + template.charge[turns])
        slot, charge = np.divmod(np.flatnonzero(counts), charges)
        depends = fixed_ns[skeleton.slots[slot][:, ranks], charge[:, None]] == OPEN
        rows, alone = rows + len(ranks) * len(template), alone + int((depends * counts[counts > 0][:, None]).sum())
    return rows < at_least * STRETCHES_OF_ROW * alone


def _turns_ns(ranks: Folded, fixed_ns: Array, shares: Array) -> list[Array]:
    """By rank, the fixed time in ns of each row that is a turn of a communicator; 0 for own work, and `OPEN` for a time that
    depends on others. By communicator and charge, `fixed_ns` is the uncontended time, and `shares` whether others use
    the same links.
    """
    skeleton, found = ranks.skeleton, list[Array]()
    sharers = LinkSharers(skeleton, ranks.have_common_member()) if shares.any() else None
    for rank, number in enumerate(skeleton.program.tolist()):
        template = skeleton.templates[number]
        turns, ns = template.turns, np.zeros(len(template), dtype=np.int64)
        charged = skeleton.slots[template.slot[turns], rank], template.charge[turns]
        ns[turns] = fixed_ns[charged]
        if sharers and len(rows := turns[shares[charged]]):
            ns[rows] = np.where(sharers.exclusive(rank, template.main, rows), ns[rows], OPEN)
        found.append(ns)
    return found


def _fixed_ns(skeleton: Skeleton, *, every: bool) -> tuple[Array, Array]:
    """(communicator, charge) -> the uncontended time in ns of its tasks, `OPEN` if that is not fixed; and whether others may use
    their links meanwhile. With `every` contention is left out.
    """
    tariff, footprints, changing = skeleton.tariff, skeleton.footprints, ~_steady(skeleton)[skeleton.link_profile]
    capacity = np.array([skeleton.profiles[i].value[0] for i in skeleton.link_profile.tolist()], dtype=np.int64)
    owner = footprints.row_of // skeleton.patterns
    least, most = np.full(len(capacity), skeleton.communicators), np.full(len(capacity), -1)
    np.minimum.at(least, footprints.idx, owner)
    np.maximum.at(most, footprints.idx, owner)
    varies, shares = np.zeros((2, len(footprints)), dtype=bool)
    varies[footprints.row_of[changing[footprints.idx]]] = True
    shares[footprints.row_of[(least < most)[footprints.idx]]] = not every
    weight = skeleton.single_weight if every and skeleton.single_weight is not None else skeleton.footprint_weight
    rate = np.full(len(footprints), np.iinfo(np.int64).max)
    np.minimum.at(rate, footprints.row_of, (capacity[footprints.idx] << WEIGHT_BITS) // weight)
    kind = skeleton.kind
    work, footprint = tariff.work[kind], np.arange(len(kind))[:, None] * skeleton.patterns + tariff.pattern[kind]
    moves_ns = -(-work // np.maximum(1, np.minimum(tariff.cap[kind], rate[footprint])))
    is_open = (tariff.tail_ns[kind] > 0) | ((work > 0) & (varies[footprint] | (tariff.cap_profile[kind] >= 0)))
    fixed = np.where(is_open, OPEN, tariff.latency_ns[kind] + np.where(work > 0, moves_ns, 0))
    return fixed, (work > 0) & shares[footprint]


def _steady(skeleton: Skeleton) -> Array:
    return np.array([profile.steady for profile in skeleton.profiles], dtype=bool)


def _divided(whole: Template, turn_ns: Array, takes: Array, speed: int, group: Array) -> Stretches:
    """The stretches of a template, given the fixed times of turns, the parts of resources that turns take by slot and charge, and
    the speed of the rank (0: it changes)."""
    own = whole.slot < 0
    ns = np.where(own, whole.durations_ns(0), turn_ns)
    if not speed:  # all pieces of a stretch would change their speed
        ns[:] = OPEN
    kind = np.full(len(whole), FIXED)
    if whole.resource is not None:
        kind = np.where(own & (whole.resource >= 0), whole.resource, FIXED)
    ns = np.where((ns > 0) & (ns < MOST_NS), ns, OPEN)
    piece_ns = ns.copy()
    if speed not in (0, FULL_SPEED):
        slower = np.flatnonzero(own & (ns > 0))
        ns[slower] = -(-(ns[slower] << SPEED_BITS) // speed)
        piece_ns = np.where(kind == FIXED, ns, piece_ns)
    cut = _cut(whole, ns > 0, group)
    while (out := _beside(whole, takes, ns, cut)).any():
        ns = np.where(out, OPEN, ns)
        cut = _cut(whole, ns > 0, group)
    return Stretches(whole, _as_template(whole, ns, kind, cut), cut.heads, ns, piece_ns, kind)


def _beside(whole: Template, takes: Array, ns: Array, cut: _Cut) -> Array:
    """The rows of communicators that may slow own work beside them, and so must stay separate: those at the ends of runs, or all
    if own work that may be slowed is on several lanes. Within a run nothing is beside a row."""
    if whole.resource is None:
        return np.zeros(len(whole), dtype=bool)
    slows = (whole.slot >= 0) & (ns > 0) & takes[np.maximum(whole.slot, 0), whole.charge]
    lanes = np.count_nonzero(np.bincount(whole.lanes.row_of[(whole.resource >= 0)[whole.lanes.idx]]))
    out: Array = slows & ((lanes > 1) | ~cut.between)
    return out


class _Cut(NamedTuple):
    """Where stretches begin, and the edges that are left between them."""

    heads: Array
    """Stretch -> its first row."""
    run: Array
    """Row -> its run."""
    between: Array
    """Row -> whether, in its run, it is on the main lane or between rows of it, so that no row of the main lane is beside it."""
    src: Array
    dst: Array
    """Edge -> the row before and the row after."""
    lane: Array
    """Edge -> the lane whose order it is, or -1 for a predecessor."""


def _cut(whole: Template, inside: Array, group: Array) -> _Cut:
    """Cuts a template into stretches; `inside` are the rows that may be part of a longer one."""
    n, lanes, main = len(whole), whole.lanes, whole.main
    queue = lanes.row(main) if len(lanes) else lanes.idx
    if not len(queue):
        inside = np.zeros(n, dtype=bool)
        queue = np.zeros(1, dtype=np.int64)
    src, dst, lane = whole.edges
    adjacent = np.zeros(n, dtype=bool)
    adjacent[dst[src == dst - 1]] = True
    head = np.ones(n + 1, dtype=bool)
    head[1:n] = ~(adjacent[1:] & inside[1:] & inside[:-1] & (group[1:] == group[:-1]))
    run = np.cumsum(head[:n])
    queued, last = np.zeros(n + 1, dtype=np.int64), len(queue) - 1
    queued[queue] = 1
    passed = np.cumsum(queued[:n]) - 1
    following = passed + 1 - queued[:n]
    next_main, last_main = queue[np.minimum(following, last)], queue[np.maximum(passed, 0)]
    ends_in = (following <= last) & (run[next_main] == run)
    begins_in = (passed >= 0) & (run[last_main] == run)
    between = ends_in & begins_in
    left = run[src] != run[dst]
    src, dst, lane = src[left], dst[left], lane[left]
    implied = (inside & ends_in)[src] & begins_in[dst] & (following[src] < passed[dst]) & (lane != main)
    src, dst, lane = src[~implied], dst[~implied], lane[~implied]
    needed = (src == _last(src, dst * (n + 1) + run[src])) | (lane == main)
    src, dst, lane = src[needed], dst[needed], lane[needed]
    head[dst] = head[src + 1] = True
    stretch = np.cumsum(head[:n])
    alone = ~(between & (stretch[next_main] == stretch) & (stretch[last_main] == stretch))
    head[:n][alone] = head[1:][alone] = True
    return _Cut(np.flatnonzero(head[:n]), run, between, src, dst, lane)


def _last(values: Array, key: Array) -> Array:
    """For each entry the largest value of all entries with its key."""
    if not len(key):
        return values
    order = np.argsort(key, kind="stable")
    begins = run_starts(key[order])
    largest = np.empty_like(values)
    largest[order] = np.repeat(np.maximum.reduceat(values[order], begins), np.diff(np.append(begins, len(key))))
    return largest


def _as_template(whole: Template, ns: Array, kind: Array, cut: _Cut) -> Template:
    """The template with a row for each stretch."""
    n, inside, main = len(whole), ns > 0, whole.main
    heads, run, _, src, dst, lane = cut
    head = np.zeros(n, dtype=np.int64)
    head[heads] = 1
    node = np.cumsum(head) - 1
    closed = inside[heads]
    goes_on = 1 + np.flatnonzero(run[heads[1:]] == run[heads[:-1]])  # the next stretch of a run waits for the one before it
    queued = (lane >= 0) & ~inside[src]  # the order of a lane takes no tail: these edges stay on lanes
    pairs = queued & inside[dst] & (lane != main)
    edge = ~queued & (lane != main)
    preds = Csr.from_pairs(np.concatenate([node[dst[edge]], goes_on]), np.concatenate([node[src[edge]], goes_on - 1]), len(heads))
    rows, on = whole.lanes.idx, whole.lanes.row_of
    kept = ~inside[rows] | (on == main)
    rows, on = node[rows[kept]], on[kept]
    once = np.append(True, (rows[1:] != rows[:-1]) | (on[1:] != on[:-1]))[: len(rows)]
    paired = np.stack([node[src[pairs]], node[dst[pairs]]], axis=1)
    counts = np.concatenate([np.bincount(on[once], minlength=len(whole.lanes)), np.full(len(paired), 2)])
    lanes = Csr(offsets(counts), np.concatenate([rows[once], paired.ravel()]))
    resource = None
    if whole.resource is not None:
        needs = [np.bitwise_or.reduceat(kind == which, heads) if n else kind == which for which in (CORES, MEMORY)]
        resource = np.where(
            needs[CORES] & needs[MEMORY], BOTH, np.where(needs[CORES], CORES, np.where(needs[MEMORY], MEMORY, -1))
        )
    lasting_ns = np.where(inside, ns, whole.durations_ns(0))
    solo_ns = np.add.reduceat(lasting_ns, heads) if n else lasting_ns
    slot = np.where(closed, -1, whole.slot[heads])
    return Template(slot, solo_ns, whole.charge[heads], preds, lanes, resource)


def _with_pieces(divided: tuple[Stretches, ...], expansion: Expansion, *, every: bool) -> Stretched:
    """The expansion with fixed durations for tasks that always take the same time, and the pieces of tasks that others may
    slow."""
    graph = with_fixed_durations(expansion.graph, every=every)
    slowed = graph.sharing.resource >= 0 if graph.sharing else np.zeros(len(graph), dtype=bool)
    steady = np.append(~graph.changing()[graph.speed_profile], True)[graph.speed]
    graph = replace(graph, speed=np.where(steady & ~slowed, -1, graph.speed))
    ns, kind = durations(graph)
    varies = kind != FIXED
    tasks_of = tuple(map(expansion.tasks_of, range(expansion.skeleton.ranks)))
    count, of_rows = varies.astype(np.int64), np.zeros(len(graph), dtype=bool)
    columns: list[tuple[Array, Array]] = []
    for number, tasks in zip(expansion.skeleton.program.tolist(), tasks_of, strict=True) if slowed.any() else ():
        stretches = divided[number]
        chosen = stretches.closed & slowed[tasks]
        count[tasks[chosen]], of_rows[tasks[chosen]] = (stretches.ends - stretches.heads)[chosen], True
        rows = chosen[stretches.of_row]
        columns.append((stretches.piece_ns[rows], stretches.kind[rows]))
    piece_ns, piece_kind = np.repeat(ns, count), np.repeat(kind, count)
    if columns:  # in the order of own work: rank by rank, row by row
        inside = np.repeat(of_rows, count)
        piece_ns[inside], piece_kind[inside] = (np.concatenate(column) for column in zip(*columns, strict=True))
    return Stretched(divided, expansion, graph, Pieces(offsets(count), piece_ns, piece_kind), tasks_of)
