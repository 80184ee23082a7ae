"""Stepwise collectives: every collective of an unfolded graph replaced by the messages of its algorithm.

A message starts when both its ends have finished the previous round; in a repeated round, when the bytes that its source passes
on have arrived. Each message is one task: its bytes occupy the edge one message after the other, and its latency is a tail, which
delays only the tasks that wait for it. Parallel rings are independent. The task of a collective becomes its end, and a new task,
its start, occupies its streams from the beginning; the task of a transfer becomes its single message. In a pipelined algorithm
an empty message goes ahead through all rounds and takes their latencies. Then the bytes move in lock step: in each tick those of
all pieces under way, or all at once for infinitely fine pieces. Measurements do not enter: the times are those of the algorithm
on the links. The clock of such a graph has up to 1024 ticks per nanosecond, as far as its integers allow: steps end at whole
ticks, and the rounding of hundreds of consecutive steps would otherwise add up to hundreds of nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import numpy as np

from ..collectives import Round, is_pipelined, windows
from ..engine.skeleton import Expansion
from ..engine.task import RATE_BITS, SPEED_BITS, UNCAPPED, WEIGHT_BITS, Array, Csr, Profile, TaskGraph, distinct, offsets
from ..engine.timeline import Times
from ..program.operations import Collective, Transfer
from ..units import ns
from .bind import Bound, Site
from .host_copies import ALGORITHM as COPY
from .mesh_rings import ClusterRounds
from .templates import TRANSFER

FINEST, MOST_BITS = 10, 61
"""Largest number of fractional bits of a nanosecond in the clock, and of bits in the integers of the compiled engine."""

Edge = tuple[int, int]
"""From one GPU to another."""
Message = tuple[int, int, int]
"""Source, target, and work of its bytes."""


@dataclass(frozen=True, eq=False, slots=True)
class Stepwise:
    """A graph with messages, and which of its tasks starts each collective."""

    graph: TaskGraph
    tasks: int
    """Number of tasks of the original graph, which come first."""
    start_task: Mapping[int, int]
    bits: int
    """A tick of the graph's clock is 2^-bits ns."""

    def times(self, times: Times) -> Times:
        """The times of the original tasks in nanoseconds: a collective lasts from its start task to its end."""
        start = times.start_ns[: self.tasks].copy()
        for task, start_task in self.start_task.items():
            start[task] = times.start_ns[start_task]
        columns = (column[: self.tasks] for column in (start, times.end_ns, times.arrival_ns))
        return Times(*(-(-column >> self.bits) for column in columns))  # rounded up once, like the end of a flow


class Counts(NamedTuple):
    """The size of a graph with messages, known before it is written."""

    messages: int
    edges: int
    """Pairs of GPUs between which messages are sent."""
    collectives: int
    tasks: int
    """Tasks of the original graph, including those of collectives."""


def stepwise(bound: Bound, site: Site, expansion: Expansion, check_counts: Callable[[Counts], None]) -> Stepwise:
    """The unfolded expansion of a bound program with collectives replaced by messages.

    `may_begin` receives their counts before any message is written, and raises if there are too many.
    """
    messages = _Messages(bound, site, expansion)
    check_counts(messages.counts())
    return messages.build()


@dataclass(frozen=True, eq=False, slots=True)
class _Collective:
    """A task of a communicator: the GPUs of its members, its kind and payload, and its algorithm."""

    task: int
    gpus: Array
    kind: str
    payload_bytes: int
    algorithm: str


class _Messages:
    """The messages of all collectives of a graph, written one collective after the other."""

    def __init__(self, bound: Bound, site: Site, expansion: Expansion) -> None:
        self.bound, self.site, self.before = bound, site, expansion.graph
        self.collectives = list(_collectives(bound, expansion))
        self.plans = ClusterRounds(site.cluster)
        self.tail_ns: list[int] = []
        self.work: list[int] = []
        self.footprint: list[int] = []
        self.preds: list[list[int]] = []
        self.streams: list[list[int]] = []
        self.edges: dict[Edge, int] = {}
        self.routes: list[tuple[list[int], int]] = []
        """Footprint of an edge: its links, and its latency in nanoseconds."""

    def build(self) -> Stepwise:
        before = self.before
        n, footprints = len(before), len(before.footprints)
        ends: dict[int, list[int]] = {}
        start_task: dict[int, int] = {}
        solo_ns, tail_ns, work, footprint = (c.copy() for c in (before.solo_ns, before.tail_ns, before.work, before.footprint))
        done = np.array([collective.task for collective in self.collectives], dtype=np.int64)
        work[done] = solo_ns[done] = tail_ns[done] = 0
        footprint[done] = -1
        cap = before.cap.copy()
        cap[done] = UNCAPPED
        for collective in self.collectives:
            if collective.kind == TRANSFER:
                work[collective.task], edge, tail_ns[collective.task] = self._message(collective)
                footprint[collective.task] = edge + footprints
                continue
            start_task[collective.task] = self._add_task(0, 0, -1, before.preds.row(collective.task).tolist())
            ends[collective.task] = self._add_collective(collective, start_task[collective.task])
        new = len(self.work)
        links, crossed = before.footprints, Csr.from_lists([links for links, _ in self.routes])
        kept = [ends.get(task, row.tolist()) for task, row in enumerate(map(before.preds.row, range(n)))]
        graph = TaskGraph(
            np.concatenate([solo_ns, np.zeros(new, dtype=np.int64)]),
            np.concatenate([tail_ns, np.array(self.tail_ns, dtype=np.int64)]),
            np.concatenate([before.speed, np.full(new, -1)]),
            np.concatenate([footprint, np.array([f + footprints if f >= 0 else -1 for f in self.footprint], dtype=np.int64)]),
            np.concatenate([work, np.array(self.work, dtype=np.int64)]),
            np.concatenate([cap, np.full(new, UNCAPPED)]),
            self._streams(start_task),
            Csr.from_lists([*kept, *self.preds]),
            Csr(offsets(np.append(links.counts, crossed.counts)), np.append(links.idx, crossed.idx)),
            np.append(before.footprint_weight, np.full(len(crossed.idx), 1 << WEIGHT_BITS)),
            before.link_profile,
            before.speed_profile,
            before.profiles,
        )
        bits = _spare_bits(graph)
        return Stepwise(_with_finer_clock(graph, bits), n, start_task, bits)

    def counts(self) -> Counts:
        """The counts of the graph to be built, from the rounds alone."""
        counts: dict[tuple[str, str, bytes], int] = {}
        messages, edges = 0, np.zeros(0, dtype=np.int64)
        for collective in self.collectives:
            key = collective.algorithm, collective.kind, collective.gpus.tobytes()
            if key not in counts:
                counts[key], used = self._count(collective)
                edges = np.union1d(edges, used)
            messages += counts[key]
        return Counts(messages, len(edges), len(self.collectives), len(self.before))

    def _count(self, collective: _Collective) -> tuple[int, Array]:
        """Number of messages of a collective, including empty ones of pipelined algorithms, and the numbers of its edges."""
        algorithm, how = self.site.policy.algorithms[collective.algorithm], (collective.kind, collective.gpus)
        if not is_pipelined(algorithm):
            rounds = tuple(chain.from_iterable(self.plans.lanes(algorithm, *how)))
            ahead, cut = 0, list(windows(rounds, 1))
        else:
            rounds = self.plans.rounds(algorithm, *how)
            ahead = sum(len(r.edges.source) * r.repeats for r in rounds)
            cut = list(windows(rounds, self.site.policy.pieces))
        messages = ahead + sum(len(r.edges.source) * ticks for together, ticks in cut for r in together)
        gpus, all_gpus = collective.gpus, self.site.cluster.gpus
        numbers = [np.zeros(0, dtype=np.int64), *(gpus[r.edges.source] * all_gpus + gpus[r.edges.target] for r in rounds)]
        return messages, distinct(np.concatenate(numbers))

    def _add_task(self, tail_ns: int, work: int, footprint: int, preds: list[int]) -> int:
        self.tail_ns.append(tail_ns)
        self.work.append(work)
        self.footprint.append(footprint)
        self.preds.append(preds)
        return len(self.before) + len(self.work) - 1

    def _message(self, transfer: _Collective) -> tuple[int, int, int]:
        """The work, the footprint and the tail of the single message of a transfer."""
        algorithm = self.site.policy.algorithms[transfer.algorithm]
        [r] = self.plans.rounds(algorithm, transfer.kind, transfer.gpus)
        [(source, target, work)] = _messages(transfer, r, transfer.payload_bytes)
        return work, *self._edge((source, target))

    def _add_collective(self, collective: _Collective, start: int) -> list[int]:
        """Adds the messages of a collective; returns those that end it."""
        algorithm, how = self.site.policy.algorithms[collective.algorithm], (collective.kind, collective.gpus)
        if not is_pipelined(algorithm):
            lanes = self.plans.lanes(algorithm, *how)
            return [start, *(m for lane in lanes for m in self._add_rounds(collective, lane, collective.payload_bytes, start))]
        rounds = self.plans.rounds(algorithm, *how)
        done, gates = self._add_rounds(collective, rounds, 0, start), []
        pieces = self.site.policy.pieces
        for window, ticks in windows(rounds, pieces):
            for _ in range(ticks):
                gates.append(self._add_task(0, 0, -1, done))
                done = self._add_simultaneous(collective, window, collective.payload_bytes / (pieces or 1), gates[-1])
        self.streams.append(gates)
        return [start, *done]

    def _add_simultaneous(self, collective: _Collective, rounds: Sequence[Round], payload_bytes: float, gate: int) -> list[int]:
        """Adds messages of several rounds that start together after the task `gate`; returns all of them."""
        sent = []
        for r in rounds:
            for source, target, work in _messages(collective, r, payload_bytes * r.repeats):
                sent.append(self._add_task(0, work, self._edge((source, target))[0], [gate]))
                self.streams.append(sent[-1:])
        return sent

    def _add_rounds(self, collective: _Collective, rounds: Sequence[Round], payload_bytes: float, start: int) -> list[int]:
        """Adds the messages of one round after the other; returns the last messages of all ranks."""
        last: dict[int, list[int]] = {}
        for r in rounds:
            messages = list(_messages(collective, r, payload_bytes))
            ends = [(source, target) for source, target, _ in messages]
            first = [[m for rank in edge for m in last.get(rank, ())] or [start] for edge in ends]
            ended: dict[int, list[int]] = {}
            for edge, arrival in zip(ends, self._add_round(messages, r.repeats, first), strict=True):
                for rank in edge:
                    ended.setdefault(rank, []).append(arrival)
            last |= ended
        return [*dict.fromkeys(chain.from_iterable(last.values()))]

    def _add_round(self, messages: Sequence[Message], repeats: int, first: Sequence[list[int]]) -> list[int]:
        """Adds the messages of a round `repeats` times, the first after the tasks `first`; returns the last of each edge."""
        queues: list[list[int]] = [[] for _ in messages]
        arrived: dict[int, list[int]] = {}
        for turn in range(repeats):
            for queue, (source, target, work), before in zip(queues, messages, first, strict=True):
                footprint, latency_ns = self._edge((source, target))
                queue.append(self._add_task(latency_ns, work, footprint, arrived.get(source, []) if turn else before))
            arrived = {}
            for queue, (_, target, _) in zip(queues, messages, strict=True):
                arrived.setdefault(target, []).append(queue[-1])
        self.streams += queues
        return [queue[-1] for queue in queues]

    def _edge(self, edge: Edge) -> tuple[int, int]:
        """The footprint of an edge, and its latency in nanoseconds."""
        if edge not in self.edges:
            links = [int(link) for link in self.site.cluster.route(np.array(edge[:1]), np.array(edge[1:]))[0] if link >= 0]
            latency_ns = ns(float(self.site.cluster.wiring.latency_s[links].sum()))
            self.edges[edge] = len(self.routes)
            self.routes.append((links, latency_ns))
        which = self.edges[edge]
        return which, self.routes[which][1]

    def _streams(self, start_task: Mapping[int, int]) -> Csr:
        """Every stream with the start of a collective in front of its end, the streams of edges, and the starters'."""
        rows = [
            [x for task in row.tolist() for x in ((start_task[task], task) if task in start_task else (task,))]
            for row in map(self.before.streams.row, range(len(self.before.streams)))
        ]
        return Csr.from_lists([*rows, *self.streams])


def _spare_bits(graph: TaskGraph) -> int:
    """Number of fractional bits of a nanosecond for which the integers of a graph leave room."""
    longest_ns = (
        *(int(column.max(initial=0)) for column in (graph.solo_ns, graph.tail_ns)),
        *(since for profile in graph.profiles for since in profile.since_ns),
    )
    used = max(int(graph.work.max(initial=0)).bit_length(), max(longest_ns).bit_length() + SPEED_BITS)
    return max(0, min(FINEST, MOST_BITS - used))


def _with_finer_clock(graph: TaskGraph, bits: int) -> TaskGraph:
    """The same graph with 2^bits ticks to a nanosecond: times and work grow, rates stay, for they are counted per nanosecond."""
    profiles = tuple(Profile(tuple(since << bits for since in profile.since_ns), profile.value) for profile in graph.profiles)
    columns = {name: getattr(graph, name) << bits for name in ("solo_ns", "tail_ns", "work")}
    return replace(graph, **columns, profiles=profiles)


def _messages(collective: _Collective, r: Round, payload_bytes: float) -> Iterator[Message]:
    """The messages of a round."""
    shares = r.edges.share * float(r.fraction) * payload_bytes * (1 << RATE_BITS)
    sources, targets = collective.gpus[r.edges.source], collective.gpus[r.edges.target]
    return zip(sources.tolist(), targets.tolist(), np.ceil(shares).astype(np.int64).tolist(), strict=True)


def _collectives(bound: Bound, expansion: Expansion) -> Iterator[_Collective]:
    """Every task of the graph that moves bytes, in order."""
    skeleton = bound.skeleton
    communicator, slot, rank = skeleton.members
    for at in np.unique(communicator, return_index=True)[1].tolist():
        r, s = int(rank[at]), int(slot[at])
        program = int(skeleton.program[r])
        template, labels = skeleton.templates[program], bound.labels[program]
        rows = template.rows_of(s)
        tasks = expansion.tasks_of(r)[rows]
        members = bound.gpus_of(int(communicator[at]))
        for task, row in zip(tasks.tolist(), rows.tolist(), strict=True):
            op = labels.ops[int(labels.op[row])]
            if not isinstance(op, (Collective, Transfer)) or not expansion.graph.work[task]:
                continue
            kind = TRANSFER if isinstance(op, Transfer) else op.kind
            name = bound.algorithms[op.communicator, int(template.charge[row])]
            if name == COPY:
                continue  # a transfer is a single message already
            yield _Collective(task, members, kind, op.payload_bytes, name)
