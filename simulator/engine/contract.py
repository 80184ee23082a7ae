"""Contraction: a smaller graph whose tasks are chains of tasks, from whose times those of all tasks follow, to the nanosecond.

If task B waits only for task A, and only B waits for A, then B starts when A ends, whatever happens elsewhere: both become one
task, and so whole *chains* do. A task of fixed duration that waits for one other task, and for which nothing waits, is left out:
it *hangs* on the other one. Two kinds of edges constrain nothing and are dropped first: an edge that follows from two others,
and, where two branches of fixed durations leave one task and meet again, the edge from the branch that ends sooner. All this is
repeated on the smaller graph as long as it saves time.

Nothing but order and durations is used. Flows, and tasks that take a part of a resource, stay as they are. A chain may contain
tasks whose speed changes, if all belong to one rank: its *pieces* then tell `heap.py` which of them is in progress. An edge is
dropped only if the edges that make it superfluous are kept in the same round, so that a cycle of tasks stays a cycle.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from .task import Array, Csr, Sharing, TaskGraph, offsets
from .timeline import Times

FEW = 3
"""Largest number of predecessors of a task whose edges are looked at; edges of other tasks only cost time."""
PAYS = 16
"""Another round follows if the last one removed at least one in this many nodes or edges."""
PACED, FIXED = 2, 3
"""Kinds of pieces that need no resource: those that depend only on the speed of the rank, and fixed ones."""


@dataclass(frozen=True, eq=False, slots=True)
class Pieces:
    """Pieces: for each task whose speed may change, the original tasks that were joined into it, in order. The time in ns of a
    piece of fixed duration includes the tail that the next piece waits for."""

    ptr: Array
    """Task -> its first piece; the next task's first piece is the end. Other tasks have none."""
    ns: Array
    kind: Array
    """Piece -> the resource that it needs, `PACED` or `FIXED`."""

    @classmethod
    def of(cls, graph: TaskGraph) -> Pieces:
        """One piece for each task whose speed may change."""
        ns, kind = durations(graph)
        varying = kind != FIXED
        return cls(offsets(varying), ns[varying], kind[varying])


def durations(graph: TaskGraph) -> tuple[Array, Array]:
    """For each task its duration, at full speed if the speed may change, and its kind as a piece."""
    kind = np.where(graph.changing_speed_tasks(), PACED, FIXED)
    if graph.sharing:
        kind = np.where((graph.sharing.resource >= 0) & (graph.solo_ns > 0), graph.sharing.resource, kind)
    return np.where(kind == FIXED, graph.stretched_ns(), graph.solo_ns), kind


@dataclass(frozen=True, eq=False, slots=True)
class Hanging:
    """Tasks that start at a fixed time after the end of other tasks."""

    tasks: Array
    on: Array
    delay_ns: Array


@dataclass(frozen=True, eq=False, slots=True)
class Contracted:
    """A graph whose tasks are the chains of another graph, which is `whole`."""

    graph: TaskGraph
    pieces: Pieces
    whole: TaskGraph
    chain: Array
    """Task of `whole` -> its chain, or -1 for a task that hangs on another one."""
    place: Array
    """Task of `whole` -> its place in its chain."""
    offset_ns: Array
    """Task of `whole` -> the time from the start of its chain to its own start, where the chain has a fixed duration."""
    hanging: tuple[Hanging, ...]
    """Tasks hang on tasks of chains, and on tasks that hang in a later entry."""

    def times(self, of_chains: Times, begun_ns: Array) -> Times:
        """The times of all tasks of `whole`, from those of the chains and from the start of every piece."""
        lasting_ns, chain = self.whole.stretched_ns(), self.chain
        start_ns = of_chains.start_ns[chain] + self.offset_ns
        end_ns = start_ns + lasting_ns
        lone = np.bincount(chain[chain >= 0], minlength=len(self.graph))[chain] == 1
        end_ns[lone] = of_chains.end_ns[chain[lone]]
        first, end = self.pieces.ptr[:-1], self.pieces.ptr[1:]
        varying = np.flatnonzero((chain >= 0) & (end > first)[chain])
        at = first[chain[varying]] + self.place[varying]
        ended_ns = np.append(begun_ns[1:], 0)
        ended_ns[end[end > first] - 1] = of_chains.end_ns[end > first]
        start_ns[varying] = begun_ns[at]
        end_ns[varying] = np.where(self.pieces.kind[at] == FIXED, begun_ns[at] + lasting_ns[varying], ended_ns[at])
        for some in reversed(self.hanging):
            start_ns[some.tasks] = end_ns[some.on] + some.delay_ns
            end_ns[some.tasks] = start_ns[some.tasks] + lasting_ns[some.tasks]
        return Times.of(start_ns, end_ns, self.whole.tail_ns)


def contract(graph: TaskGraph) -> Contracted:
    """The graph of the chains of a graph."""
    found = _Contraction(graph)
    while found.round():
        pass
    return found.result()


class _Contraction:
    """Nodes, which are tasks at first and chains in the end, and the edges between them, in order of the later node."""

    def __init__(self, graph: TaskGraph) -> None:
        n = len(graph)
        self.graph, (self.ns, self.kind) = graph, durations(graph)
        takes = graph.sharing.group >= 0 if graph.sharing else np.zeros(n, dtype=bool)
        varies, flows = self.kind != FIXED, (graph.footprint >= 0) & (graph.work > 0)
        self.alone = flows | takes
        """Node -> whether it must not be part of a chain."""
        self.fixed = ~(self.alone | varies)
        self.lasting_ns = np.where(varies | flows, 0, self.ns)
        """Node -> its duration if it is fixed, else a lower bound of it."""
        self.rank = np.where(varies, graph.speed, -1)
        """Node -> the rank whose speed matters, or -1."""
        self.size, self.last = np.ones(n, dtype=np.int64), np.arange(n)
        """Node -> the number of its tasks, and the last of them."""
        before, self.tail_ns = graph.all_preds()
        self.src, self.dst = before.idx, before.row_of
        self.node, self.place, self.offset_ns = np.arange(n), np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
        """Task -> its node, or -1 if it hangs; its place in the node, and the time from the start of the node."""
        self.gap_ns = np.zeros(n, dtype=np.int64)
        """Task -> the time from its end to the start of the next task of its node."""
        self.hanging: list[Hanging] = []

    def round(self) -> bool:
        """Drops edges, then makes tasks hang and joins nodes; returns whether another round pays."""
        superfluous = _superfluous(self.src, self.dst, self.tail_ns, self.fixed, self.lasting_ns)
        self.keep(~superfluous)
        n, src, dst = len(self.fixed), self.src, self.dst
        awaits, awaited = np.bincount(dst, minlength=n), np.bincount(src, minlength=n)
        hangs = self.fixed & (awaits == 1) & (awaited == 0)
        joins = only(src, dst, n) & ~(self.alone[src] | self.alone[dst] | hangs[dst])
        joins &= (self.tail_ns == 0) | (self.kind[self.last[src]] == FIXED)
        chains = self.chains(joins)
        if (self.rank >= 0).any() and (mixed := self.mixed(chains[0])).any():
            joins &= ~mixed[chains[0][dst]]
            chains = self.chains(joins)
        joined = np.zeros(n, dtype=bool)
        joined[dst[joins]] = True
        if joined[chains[0]].any():
            return False  # nodes wait for one another in a cycle, and no chain has a head
        self.hang(hangs)
        self.merge(joins, chains, hangs)
        return n - len(self.fixed) > n // PAYS or int(superfluous.sum()) > len(superfluous) // PAYS

    def keep(self, kept: Array) -> None:
        """Keeps some edges."""
        self.src, self.dst, self.tail_ns = self.src[kept], self.dst[kept], self.tail_ns[kept]

    def chains(self, joins: Array) -> tuple[Array, ...]:
        """`followed` by the nodes that are joined, with the number of tasks and the time up to each node."""
        src = self.src[joins]
        return followed(len(self.fixed), src, self.dst[joins], self.size[src], self.lasting_ns[src] + self.tail_ns[joins])

    def mixed(self, head: Array) -> Array:
        """For each head, whether the speeds of several ranks matter to its chain."""
        found, rank = np.zeros(len(head), dtype=bool), np.full(len(head), -1)
        varying = np.flatnonzero(self.rank >= 0)
        rank[head[varying]] = self.rank[varying]
        found[head[varying[rank[head[varying]] != self.rank[varying]]]] = True
        return found

    def hang(self, hangs: Array) -> None:
        """Makes nodes hang on the last task of the one node that each waits for."""
        edges = np.flatnonzero(hangs[self.dst])
        if len(edges):
            edge_of = np.full(len(hangs) + 1, -1)
            edge_of[self.dst[edges]] = edges
            tasks = np.flatnonzero(edge_of[self.node] >= 0)
            edge = edge_of[self.node[tasks]]
            self.hanging.append(Hanging(tasks, self.last[self.src[edge]], self.tail_ns[edge] + self.offset_ns[tasks]))

    def merge(self, joins: Array, chains: tuple[Array, ...], hangs: Array) -> None:
        """Makes one node of every chain, and removes nodes that hang."""
        head, place, offset_ns = chains
        heads = np.flatnonzero((head == np.arange(len(head))) & ~hangs)
        number = np.full(len(head), -1)
        number[heads] = np.arange(len(heads))
        to = number[head]
        self.gap_ns[self.last[self.src[joins]]] = self.tail_ns[joins]
        self.place += np.append(place, 0)[self.node]
        self.offset_ns += np.append(offset_ns, 0)[self.node]
        self.node = np.append(to, -1)[self.node]
        ends = ~hangs
        ends[self.src[joins]] = False
        end = np.empty(len(heads), dtype=np.int64)
        end[to[ends]] = np.flatnonzero(ends)
        rank, fixed = np.full(len(heads), -1), np.ones(len(heads), dtype=bool)
        rank[to[self.rank >= 0]] = self.rank[self.rank >= 0]
        fixed[to[~self.fixed]] = False
        self.rank, self.fixed, self.alone, self.last = rank, fixed, self.alone[heads], self.last[end]
        self.lasting_ns, self.size = (offset_ns + self.lasting_ns)[end], (place + self.size)[end]
        self.keep(~(joins | hangs[self.dst]))
        order = np.argsort(to[self.dst], kind="stable")
        self.src, self.dst, self.tail_ns = to[self.src][order], to[self.dst][order], self.tail_ns[order]

    def result(self) -> Contracted:
        """The graph of the nodes. What waits for the end of a node but not for its tail is on a stream with it."""
        graph, last, n = self.graph, self.last, len(self.last)
        solo_ns = np.where(self.size == 1, self.ns[last], self.lasting_ns)
        arrives = self.tail_ns == graph.tail_ns[last[self.src]]
        pairs = np.stack([self.src[~arrives], self.dst[~arrives]], axis=1)
        streams = Csr(offsets(np.repeat([1, 2], [n, len(pairs)])), np.concatenate([np.arange(n), pairs.ravel()]))
        sharing = graph.sharing
        if sharing:
            sharing = Sharing(sharing.resource[last], sharing.takes[last], sharing.group[last], sharing.ranks)
        small = replace(
            graph,
            solo_ns=solo_ns,
            tail_ns=graph.tail_ns[last],
            speed=self.rank,
            footprint=np.where(self.alone, graph.footprint[last], -1),
            work=np.where(self.alone, graph.work[last], 0),
            cap=graph.cap[last],
            streams=streams,
            preds=Csr.from_pairs(self.dst[arrives], self.src[arrives], n),
            cap_profile=None if graph.cap_profile is None else graph.cap_profile[last],
            sharing=sharing,
        )
        first = offsets(np.where(self.rank >= 0, self.size, 0))
        tasks = np.flatnonzero((self.node >= 0) & (self.rank >= 0)[self.node])
        order = np.empty(first[-1], dtype=np.int64)
        order[first[self.node[tasks]] + self.place[tasks]] = tasks
        pieces = Pieces(first, self.ns[order] + self.gap_ns[order], self.kind[order])
        return Contracted(small, pieces, graph, self.node, self.place, self.offset_ns, tuple(self.hanging))


def only(src: Array, dst: Array, n: int) -> Array:
    """For each edge, whether it is the only one to its later node and the only one from its earlier node."""
    only_one: Array = (np.bincount(dst, minlength=n)[dst] == 1) & (np.bincount(src, minlength=n)[src] == 1)
    return only_one


def followed(n: int, src: Array, dst: Array, *distances: Array) -> tuple[Array, ...]:
    """For each of `n` nodes the first node of its chain, and the distances from there; each node has at most one edge in and one
    edge out. All chains are followed at once by pointer doubling."""
    head, sums = np.arange(n), [np.zeros(n, dtype=np.int64) for _ in distances]
    head[dst] = src
    for total, distance in zip(sums, distances, strict=True):
        total[dst] = distance
    for _ in range(n.bit_length()):
        via = head[dst]
        further = head[via]
        dst, via, further = (column[further != via] for column in (dst, via, further))
        for total in sums:
            total[dst] = total[dst] + total[via]
        head[dst] = further
    return head, *sums


def _superfluous(src: Array, dst: Array, tail_ns: Array, fixed: Array, least_ns: Array) -> Array:
    """For each edge, whether other edges, which are kept, constrain its later node at least as much.

    Edge `e` from u to v follows from edge `f` from w to v if w waits for u, or, where u has a fixed duration and waits for one
    node only, if w waits for that one and ends no sooner than u. Of two edges between the same nodes one is dropped.
    """
    awaits = np.bincount(dst, minlength=len(fixed))
    first = np.cumsum(awaits) - awaits
    e, f = (np.concatenate(column) for column in zip(*_pairs(awaits, first), strict=True))
    u, w = src[e], src[f]
    twice = e[(u == w) & ((tail_ns[e] < tail_ns[f]) | ((tail_ns[e] == tail_ns[f]) & (e > f)))]
    branch = np.flatnonzero(fixed[u] & (awaits[u] == 1) & (u != w))
    since = first[u[branch]]
    before = np.concatenate([u, src[since]])
    after_ns = np.concatenate([tail_ns[e], tail_ns[since] + least_ns[u[branch]] + tail_ns[e[branch]]])
    e, f, u, w = (np.concatenate([column, column[branch]]) for column in (e, f, u, w))
    waiting, found = np.flatnonzero((awaits[w] > 0) & (u != w)), [np.zeros((3, 0), dtype=np.int64)]
    for k in range(FEW):
        waiting = waiting[awaits[w[waiting]] > k]
        g = first[w[waiting]] + k
        some = waiting[src[g] == before[waiting]]
        g = first[w[some]] + k
        at_least_ns = tail_ns[g] + least_ns[w[some]] + tail_ns[f[some]]
        equal = (at_least_ns == after_ns[some]) & ((before[some] == u[some]) | (e[some] > f[some]))
        follows = (at_least_ns > after_ns[some]) | equal
        found.append(np.stack([e[some], g, f[some]])[:, follows])
    superfluous, maybe = np.zeros(len(src), dtype=bool), np.zeros(len(src), dtype=bool)
    e, g, f = np.concatenate(found, axis=1)
    maybe[e] = maybe[twice] = True
    superfluous[e[~(maybe[g] | maybe[f])]] = superfluous[twice] = True
    return superfluous


def _pairs(awaits: Array, first: Array) -> Iterator[tuple[Array, Array]]:
    """All pairs of edges to the same node, for nodes with few."""
    for count in range(2, FEW + 1):
        nodes = first[awaits == count]
        for i, j in permutations(range(count), 2):
            yield nodes + i, nodes + j
