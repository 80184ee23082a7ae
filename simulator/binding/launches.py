"""Launch overhead: the host thread of a rank launches its kernels and collectives one after the other.

An operation starts only when its launch has ended; the host runs ahead of the GPU and waits for it only at a barrier: where
it reads a number (the norm of the gradients), and in some software after every exchange of transfers that block compute, or once
or several times in every microbatch.
So the ends of all launches between two barriers are known beforehand, counted from the end of the first barrier; an operation
is *due* at the end of its launch. The engine has no notion of launches: a host is a communicator of one rank, whose turns move
no bytes and take as long as the launches that they represent.

Only few launches can delay an operation. The others are left out, and their time is added to the next launch that stays:
1. Counted from the same barrier, an operation starts no earlier than it is due, than its predecessors on its streams and in
   its rank's program can end at the best speed that the rank ever has, and, if it receives, than its sender can send.
2. A launch is left out only if the predecessors of the operation alone ensure that it starts no earlier than it is due; this
   follows by induction along the order of the graph, because each predecessor has its own launch, or its launch is left out
   for the same reason.
3. So a launch that is left out has ended when everything else that its operation waits for has ended, and every operation
   starts at the same instant with the launch as without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np

from ..engine.skeleton import Skeleton, Tariff
from ..engine.task import SPEED_BITS, Array, Csr, distinct
from ..engine.template import Template
from ..program.labels import Labels
from ..program.operations import COMPUTE, HOST, AnyOp, Collective, Purpose, Transfer
from ..program.program import WAIT
from ..program.slot import BACKWARD, FORWARD, INPUT_GRADIENT
from ..workload.framework import HostWait
from .collective_policy import BARRIER

GRAPHED = ("F", "B", "I", "W", "optimizer")
"""Phases of the steps that a graph can launch at once."""
LAUNCH = Collective(name="launch", streams=(HOST,), communicator=HOST, kind="launch", payload_bytes=0)
"""The label of a host's rows."""
ANY_TIME = -(1 << 62)
"""Earlier than every time."""
NO_TIME = ANY_TIME // 2
"""Later than `ANY_TIME` with any durations added, and earlier than every time."""
MOST_LIFTED_NS = 1 << 61
"""Largest offset that the parts of a stream are shifted by, in ns."""


@dataclass(frozen=True, slots=True)
class Host:
    """Durations of launches on the host thread that drives a GPU, in nanoseconds."""

    kernel_ns: int
    collective_ns: int
    """Launch of a collective, or of either end of a transfer."""
    graph_ns: int | None
    """Launch of a whole slot, or of the optimizer, as one CUDA graph; None launches its kernels one by one."""
    waits_for_transfers: bool = False
    """Whether operations after a wait for transfers are launched only after that wait."""
    waits: tuple[HostWait, ...] = ()
    """Where in every microbatch the host waits for what it has launched."""
    input_launches: int = 0
    """Number of kernel launches before the forward passes of the first and the last stage, of kernels that take no time."""


@dataclass(frozen=True, eq=False, slots=True)
class _RoleLaunches:
    """A template and its launches. Rows are numbered as in the template."""

    template: Template
    labels: Labels
    order: Array
    """The rows in the order in which the host launches them."""
    launched_before: Array
    """Row -> the row before which it is launched: itself, or for a receive the first row that waits for it."""
    launched_with: Array
    """Row -> the row whose launch includes it: itself, or the first row of its CUDA graph."""
    barriers: Array
    """The rows that the host waits for, in order."""
    of_all_ranks: Array
    """Barrier -> whether it is one of all ranks."""
    barriers_before: Array
    """Row -> number of barriers before it."""
    common_barriers_before: Array
    """Row -> number of barriers of all ranks before it."""
    due_ns: Array
    """Row -> end of its launch, in ns after the last of those barriers; `ANY_TIME` if it waits for no launch."""
    sends: Array
    """Row -> number of the edge that it sends over, or -1; `receives` likewise for the edge that it receives from."""
    receives: Array


def with_launches(
    skeleton: Skeleton, labels: Sequence[Labels], host: Host, *, every: bool
) -> tuple[Skeleton, tuple[Labels, ...]]:
    """The skeleton and its labels with a host for every rank. With `every`, all launches are kept."""
    blocks, edges = any(step.phase == WAIT for names in labels for step in names.steps), dict[str, int]()
    roles = [_role(*of, host, edges, blocks) for of in zip(skeleton.templates, labels, strict=True)]
    best = np.array([max(profile.value) for profile in skeleton.profiles], dtype=np.int64)[skeleton.speed]
    earliest = [_earliest_starts(role, int(best[skeleton.program == p].max(initial=1))) for p, role in enumerate(roles)]
    passed = [_least_passed_ns(role, int(best[skeleton.program == p].max(initial=1))) for p, role in enumerate(roles)]
    _raise_by_sends(roles, earliest, passed)
    waiting = [
        np.flatnonzero((role.due_ns > least) | (every & (role.due_ns > ANY_TIME)))
        for role, least in zip(roles, earliest, strict=True)
    ]
    chosen = [role.order[np.isin(role.order, role.launched_with[rows])] for role, rows in zip(roles, waiting, strict=True)]
    lasting = [_launch_durations_ns(role, rows) for role, rows in zip(roles, chosen, strict=True)]
    charges, which = np.unique(np.concatenate(lasting), return_inverse=True)
    if not len(charges):
        return skeleton, tuple(labels)
    slot, charge = len(skeleton.slots), skeleton.tariff.work.shape[1] + which
    charges_of = np.split(charge, np.cumsum([len(rows) for rows in chosen])[:-1])
    columns: dict[Any, Any] = {}
    written = [_with_launch_rows(*of, slot, columns) for of in zip(roles, chosen, waiting, charges_of, strict=True)]
    return _with_hosts(skeleton, tuple(t for t, _ in written), charges), tuple(names for _, names in written)


def _role(template: Template, labels: Labels, host: Host, edges: dict[str, int], blocks: bool) -> _RoleLaunches:
    """The launches of a template. Where transfers block, no sender waits for the launch of a receive."""
    row = np.arange(len(template))
    sends, receives = (labels.of_op(partial(_edge, edges=edges, sends=sends)) for sends in (True, False))
    first = np.full(len(row), len(row))
    np.minimum.at(first, template.preds.idx, template.preds.row_of)
    # receives come first in a rank's program, because they are posted long before
    launched_before = np.where((receives >= 0) & (first < len(row)), first, row)
    order = np.lexsort((launched_before == row, launched_before))
    launched_with = row if host.graph_ns is None else np.where(*_graphed(labels), row)
    is_barrier, of_all_ranks = (column[order] for column in _barriers(labels, host))
    ended_ns = np.cumsum(launch_times_ns(labels, host)[order])
    passed = np.cumsum(is_barrier) - is_barrier
    barriers_before, common_barriers_before, due_ns = (np.empty_like(row) for _ in range(3))
    barriers_before[order], common_barriers_before[order] = passed, np.cumsum(of_all_ranks) - of_all_ranks
    due_ns[order] = ended_ns - np.concatenate([[0], ended_ns[is_barrier]])[passed]
    due_ns = np.where((receives >= 0) & blocks, ANY_TIME, due_ns[launched_with])
    barriers = order[is_barrier], of_all_ranks[is_barrier], barriers_before, common_barriers_before
    return _RoleLaunches(template, labels, order, launched_before, launched_with, *barriers, due_ns, sends, receives)


def _barriers(labels: Labels, host: Host) -> tuple[Array, Array]:
    """For each row, whether the host waits for it, and whether the hosts of all ranks do."""
    of_all_ranks = labels.of_op(lambda op: isinstance(op, Collective) and op.kind == BARRIER)
    is_barrier = of_all_ranks.copy()
    if host.waits_for_transfers:
        is_barrier |= np.array([step.phase == WAIT for step in labels.steps])[labels.step]
    if host.waits:
        is_barrier[_waited_for(labels, host)] = True
    return is_barrier, of_all_ranks


def launch_times_ns(labels: Labels, host: Host) -> Array:
    """The time that the host takes to launch each row; none for waits, for launches themselves, and within a CUDA graph."""
    cost_ns = np.where(labels.is_compute, host.kernel_ns, host.collective_ns)
    if host.graph_ns is not None:
        graphed, first = _graphed(labels)
        cost_ns = np.where(graphed, np.where(first == np.arange(len(first)), host.graph_ns, 0), cost_ns)
    if host.input_launches:
        cost_ns[_begun(labels, FORWARD, _at_ends(labels))] += host.input_launches * host.kernel_ns
    return np.where(labels.is_wait | labels.is_launch, 0, cost_ns)


def _waited_for(labels: Labels, host: Host) -> Array:
    """The rows that the host waits for because of `host.waits`.

    Before a pass that is the last row of the compute stream, and for a loss the last kernel of its pass. A row of another stream,
    such as a send, is none: it may end only when another rank's host, which waits too, has launched the other end. The exchange
    of the numbers of rows is one: no rank waits for it before it has launched all that the others need to get there.
    """
    everywhere = np.ones(len(labels.steps), dtype=bool)
    passes = {
        "forward": ((FORWARD, everywhere),),
        "backward": ((BACKWARD, everywhere), (INPUT_GRADIENT, everywhere)),
        "inputs": ((FORWARD, _at_ends(labels)),),
        "loss": (),
        "counts": (),
    }
    stream, found = np.flatnonzero(labels.is_compute | labels.is_wait), [np.zeros(0, dtype=np.int64)]
    for phase, where in (each for wait in host.waits for each in passes[wait]):
        before = np.searchsorted(stream, _begun(labels, phase, where)) - 1
        found.append(stream[before[before >= 0]])
    if "loss" in host.waits and not any(stage.share for stage in labels.stages):
        computed, last = np.flatnonzero(labels.is_compute), np.full(len(labels.steps), -1)
        last[labels.step[computed]] = computed
        of_loss = [step.phase == FORWARD and labels.stages[step.stage].head for step in labels.steps]
        found.append(last[np.array(of_loss, dtype=bool) & (last >= 0)])
    if "counts" in host.waits and host.graph_ns is None:  # a graph has no place for the host to wait
        found.append(np.flatnonzero(labels.of_op(lambda op: op.purpose is Purpose.COUNT_ROWS)))
    return np.concatenate(found)


def _at_ends(labels: Labels) -> Array:
    """For each step, whether its stage is the first or the last one of layers."""
    ends = [not stage.share and (stage.embedding or stage.head) for stage in labels.stages]
    return np.array([step.stage >= 0 and ends[step.stage] for step in labels.steps], dtype=bool)


def _begun(labels: Labels, phase: str, where: Array) -> Array:
    """The first rows of the steps of a phase, among those `where` it counts."""
    first = _first_rows(labels)
    found: Array = first[where & np.array([step.phase == phase for step in labels.steps], dtype=bool)]
    return found[found < len(labels.step)]


def _graphed(labels: Labels) -> tuple[Array, Array]:
    """For each row, whether it is part of a CUDA graph, and the first row of its step."""
    graphed = np.array([step.phase in GRAPHED for step in labels.steps], dtype=bool)
    return graphed[labels.step], _first_rows(labels)[labels.step]


def _first_rows(labels: Labels) -> Array:
    """Step -> its first row that is no launch; the number of all rows for a step without one."""
    rows = np.flatnonzero(~labels.is_launch)
    first = np.full(len(labels.steps), len(labels.step))
    np.minimum.at(first, labels.step[rows], rows)
    return first


def _edge(op: AnyOp, edges: dict[str, int], *, sends: bool) -> int:
    """The number of the edge of a send, or of a receive; -1 for other operations. An edge without a number gets the next."""
    return edges.setdefault(op.communicator, len(edges)) if isinstance(op, Transfer) and op.sends is sends else -1


def _earliest_starts(role: _RoleLaunches, speed: int) -> Array:
    """A lower bound of the start of each row from all causes but its own launch, in ns, counted like `due_ns`.

    `speed` is the highest that a rank of the role ever has.
    """
    template, compute = role.template, role.labels.lanes.index(COMPUTE)
    least_ns = np.where(template.slot < 0, -(-(template.shortest_ns << SPEED_BITS) // speed), 0)
    earliest = np.where(role.barriers_before == 0, 0, ANY_TIME)
    _raise_by_stream_order(template.lanes.row(compute), role, least_ns, earliest)
    row, before = template.preds.row_of, template.preds.idx
    known = np.flatnonzero(role.barriers_before[row] == role.barriers_before[before])
    _raise_by_predecessors(row[known], before[known], role, least_ns, earliest)
    for lane in range(len(template.lanes)):
        if lane != compute:
            _raise_by_stream_order(template.lanes.row(lane), role, least_ns, earliest)
    while len(known := known[(role.due_ns > earliest)[row[known]]]):  # a predecessor may have a later start by now
        least = earliest.copy()
        _raise_by_predecessors(row[known], before[known], role, least_ns, earliest)
        if (earliest == least).all():
            break
    return earliest


def _raise_by_predecessors(row: Array, before: Array, role: _RoleLaunches, least_ns: Array, earliest: Array) -> None:
    """Raises `earliest` by edges of the program: each row starts no earlier than the row before it can have ended."""
    ended = np.maximum(earliest, role.due_ns) + least_ns
    np.maximum.at(earliest, row, ended[before])


def _raise_by_stream_order(rows: Array, role: _RoleLaunches, least_ns: Array, earliest: Array) -> None:
    """Raises `earliest` by the order of one stream: a row starts no earlier than the rows before it can have ended.

    All parts between barriers are processed together: each is shifted above the one before, so that running maxima do not mix.
    """
    if not len(rows):
        return
    starts, passed = np.maximum(earliest[rows], role.due_ns[rows]), np.cumsum(least_ns[rows])
    known, ahead = starts > NO_TIME, starts + least_ns[rows] - passed
    lowest = int(ahead[known].min(initial=0)) - 1
    span = int(ahead[known].max(initial=0)) - lowest + 1
    part = np.append(0, np.cumsum(np.diff(role.barriers_before[rows]) != 0))
    if int(part[-1]) * span > MOST_LIFTED_NS:
        for half in np.split(rows, [np.searchsorted(part, part[-1] // 2, side="right")]):
            _raise_by_stream_order(half, role, least_ns, earliest)
        return
    highest = np.maximum.accumulate(np.where(known, ahead - lowest, 0) + part * span) - part * span
    ended = np.where(highest > 0, highest + lowest + passed, ANY_TIME)
    follows = np.flatnonzero(part[1:] == part[:-1])
    behind = rows[1:][follows]
    earliest[behind] = np.maximum(earliest[behind], ended[follows])


def _least_passed_ns(role: _RoleLaunches, speed: int) -> Array:
    """For each row, a lower bound of the time in ns from the last barrier of all ranks before it to the last barrier of its own
    rank; -1 if both are the same.

    Between the two the compute stream has run everything up to the latter barrier, if that is part of the stream.
    """
    lane, barriers = role.template.lanes.row(role.labels.lanes.index(COMPUTE)), role.barriers
    lasts_ns = -(-(role.template.shortest_ns[lane] << SPEED_BITS) // speed) * (role.template.slot[lane] < 0)
    ended_ns, common = np.cumsum(lasts_ns), role.common_barriers_before[lane]
    begun_ns = (ended_ns - lasts_ns)[np.searchsorted(common, common)]
    of_row = np.zeros(len(role.barriers_before), dtype=np.int64)
    of_row[lane] = ended_ns - begun_ns
    passed_ns: Array = np.append(-1, np.where(role.of_all_ranks, -1, of_row[barriers]))
    return passed_ns[role.barriers_before]


def _raise_by_sends(roles: Sequence[_RoleLaunches], earliest: Sequence[Array], passed: Sequence[Array]) -> None:
    """Raises `earliest` of receives to that of their sends, both counted from the same barrier of all ranks.

    A receive is raised if its rank has had no other barrier since; its sender may have had some, `passed` ns later at least. If a
    host waits for transfers, these block, and no receive is launched before it starts.
    """
    sent: dict[int, tuple[Array, Array]] = {}
    for role, least, later_ns in zip(roles, earliest, passed, strict=True):
        starts, edges = np.maximum(least, role.due_ns) + np.maximum(later_ns, 0), role.sends
        sent |= {e: (starts[edges == e], role.common_barriers_before[edges == e]) for e in distinct(edges[edges >= 0]).tolist()}
    for role, least, later_ns in zip(roles, earliest, passed, strict=True):
        for edge in distinct(role.receives[role.receives >= 0]).tolist():
            rows, (starts, common) = np.flatnonzero(role.receives == edge), sent[edge]
            alike = (common == role.common_barriers_before[rows]) & (later_ns[rows] < 0)
            least[rows] = np.where(alike, np.maximum(least[rows], starts), least[rows])


def _launch_durations_ns(role: _RoleLaunches, rows: Array) -> Array:
    """The duration of each kept launch, including launches merged into it. `rows` are in the order of launches."""
    due_ns, part = role.due_ns[rows], role.barriers_before[rows]
    follows = np.concatenate([[False], part[1:] == part[:-1]])[: len(rows)]
    return due_ns - np.where(follows, np.roll(due_ns, 1), 0)


def _with_launch_rows(
    role: _RoleLaunches, chosen: Array, waiting: Array, charge: Array, slot: int, columns: dict[Any, Any]
) -> tuple[Template, Labels]:
    """The template and its labels with an additional row for every kept launch, before the row that it launches."""
    old, labels = role.template, role.labels
    n, count = len(old), len(chosen)
    rows = np.argsort(np.concatenate([2 * np.arange(n) + 1, 2 * role.launched_before[chosen]]), kind="stable")
    place = np.argsort(rows)
    launch_of = np.full(n, -1)
    launch_of[chosen] = place[n:]
    solo_ns = np.zeros((*old.solo_ns.shape[:-1], n + count), dtype=np.int64)
    solo_ns[..., place[:n]] = old.solo_ns
    part = role.barriers_before[chosen]
    first = np.flatnonzero((part > 0) & (part != np.concatenate([[0], part])[:count]))
    after = [place[old.preds.row_of], place[waiting], place[n:][first]]
    before = [place[old.preds.idx], launch_of[role.launched_with[waiting]], place[role.barriers[part[first] - 1]]]
    lanes = Csr(np.append(old.lanes.ptr, len(old.lanes.idx) + count), np.concatenate([place[old.lanes.idx], place[n:]]))
    template = Template(
        np.append(old.slot, np.full(count, slot))[rows],
        solo_ns,
        np.append(old.charge, charge)[rows],
        Csr.from_pairs(np.concatenate(after), np.concatenate(before), n + count),
        lanes,
        None if old.resource is None else np.append(old.resource, np.full(count, -1))[rows],
    )
    names = replace(
        labels,
        ops=(*labels.ops, LAUNCH),
        step=np.append(labels.step, labels.step[chosen])[rows],
        op=np.append(labels.op, np.full(count, len(labels.ops)))[rows],
        lanes=(*labels.lanes, HOST),
        axes=(*labels.axes, HOST),
        columns=columns,
    )
    return template, names


def _with_hosts(skeleton: Skeleton, templates: tuple[Template, ...], charges: Array) -> Skeleton:
    """The skeleton with the given templates, and for every rank a communicator of its own whose turns last `charges` ns."""
    old, ranks, communicators = skeleton.tariff, skeleton.ranks, skeleton.communicators
    kinds, known = old.work.shape
    tables = {column.name: np.pad(getattr(old, column.name), ((0, 1), (0, len(charges)))) for column in fields(old)}
    tables["latency_ns"][kinds, known:] = charges
    no_links = np.full(ranks * skeleton.patterns, skeleton.footprints.ptr[-1])
    return replace(
        skeleton,
        templates=templates,
        tariff=Tariff(**tables),
        slots=np.concatenate([skeleton.slots, communicators + np.arange(ranks)[None, :]]),
        kind=np.append(skeleton.kind, np.full(ranks, kinds)),
        footprints=Csr(np.append(skeleton.footprints.ptr, no_links), skeleton.footprints.idx),
    )
