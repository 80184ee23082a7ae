"""Collective algorithms, one file each: the messages between the ranks of a group, in rounds.

An algorithm is a module with `KINDS`, the collectives that it knows, and a pure function `rounds(kind, nodes)`: given the
node of every rank of a group (members of a node are consecutive), the rounds of messages that carry one payload. A message of
a round starts when both its ends have finished the previous round; in a repeated round, as soon as the data that its source
passes on has arrived. The payload of a gather or a scatter is the whole tensor; that of an all-to-all is what one rank
holds before (and after) it; a broadcast starts at the first member. Everything else follows from the rounds:

- without contention, each round takes the latency of its slowest message plus the time of its busiest link; a repeated round
  follows a ring and takes the mean latency of its messages;
- with `PIPELINED = True` the payload is cut so fine that all rounds are in progress at once: latencies add up, and the busiest
  link of all rounds together limits the rate. With a finite number of pieces it takes the latencies once and then, tick by tick,
  the time of the busiest link of the rounds in progress (`windows`): one piece takes the sum over the rounds, and more pieces
  approach the limit;
- under contention a collective is modelled as one flow: all messages of all rounds together, weighted by their bytes.

An all-to-all may be uneven: its module takes `rounds(kind, nodes, matrix)`, where entry (i, j) is the data that rank i sends to
rank j, in any unit, and the payload is the mean over ranks of the data that a rank holds.

Optional names of a module are

- `takes(kind, nodes)`, whether the algorithm can serve a group (absent: every group);
- `alike(kind, nodes)`, whether all ranks have equal roles (absent: all but the root of a broadcast);
- `lanes(kind, nodes)`, the rounds in independent parts, such as several rings (absent: one part);
- `RINGS = True`, where every rank of a node sends to the next one: on meshes, binding places neighbours on direct links;
- `IN_NETWORK = True`, where switches reduce and copy: an edge stands for the bytes that its source sends into the network and
  its target receives from it, whichever rank they come from.

A *grid* is a group with equally many ranks in every node; ranks of one index form a rail across the nodes. *Swaps* are
exchanges between ranks whose numbers differ in one bit. Where the size is no power of two, some ranks first send all their data
to a neighbour, which takes part in their place and sends them the result. Reference: Rabenseifner, "Optimization of Collective
Reduction Operations", 2004.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, groupby
from itertools import pairwise as neighbours
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Edges:
    """Directed edges between the members of a group, by position in the group, each with its share of the bytes."""

    source: Array
    target: Array
    share: Array

    @classmethod
    def of(cls, source: Array, target: Array, share: float = 1.0) -> Edges:
        return cls(source, target, np.full(len(source), share))

    @classmethod
    def to_next(cls, n: int) -> Edges:
        """From each of n members to the next one, and from the last to the first."""
        member = np.arange(n)
        return cls.of(member, (member + 1) % n)

    def shifted(self, by: int) -> Edges:
        """The edges with both ends shifted by `by` positions in the group."""
        return Edges(self.source + by, self.target + by, self.share)

    def turned(self) -> Edges:
        """The edges in the opposite direction."""
        return Edges(self.target, self.source, self.share)

    @cached_property
    def key(self) -> tuple[bytes, ...]:
        """A key that is equal for equal edges."""
        return tuple(np.ascontiguousarray(column).tobytes() for column in (self.source, self.target, self.share))


class Everyone(Edges):
    """The edges from every member to every other, which are written out only when they are needed one by one."""

    def __init__(self, members: int) -> None:
        object.__setattr__(self, "members", members)

    members: int

    @cached_property
    def source(self) -> Array:
        return np.repeat(np.arange(self.members), self.members - 1)

    @cached_property
    def target(self) -> Array:
        source, other = np.divmod(np.arange(self.members * (self.members - 1)), self.members - 1)
        return other + (other >= source)

    @cached_property
    def share(self) -> Array:
        return np.ones(self.members * (self.members - 1))

    @cached_property
    def key(self) -> tuple[bytes, ...]:
        return (b"everyone", str(self.members).encode())


@dataclass(frozen=True, eq=False, slots=True)
class Round:
    """Simultaneous messages: each edge carries its share of `fraction` of the payload; repeated `repeats` times in a row."""

    edges: Edges
    fraction: Fraction
    repeats: int = 1


def is_pipelined(algorithm: ModuleType) -> bool:
    """Whether an algorithm cuts its payload into pieces."""
    return bool(getattr(algorithm, "PIPELINED", False))


def wire_fraction(rounds: Sequence[Round]) -> Fraction:
    """Bytes per byte of payload that an edge of share 1 in every round carries."""
    return sum((r.fraction * r.repeats for r in rounds), Fraction(0))


def windows(rounds: Sequence[Round], pieces: int | None) -> Iterator[tuple[tuple[Round, ...], int]]:
    """The rounds that are under way together while `pieces` pieces pass through all rounds, and the number of such ticks.

    In a tick every message under way carries one piece. With infinitely fine pieces (None) there is one tick, of all rounds.
    """
    if pieces is None:
        yield tuple(rounds), 1
        return
    if pieces == 1:
        yield from (((replace(r, repeats=1),), r.repeats) for r in rounds)
        return
    cuts = list(accumulate((r.repeats for r in rounds), initial=0))

    def under_way(tick: int) -> tuple[int, ...]:
        first, last = max(0, tick - pieces + 1), min(tick + 1, cuts[-1])
        return tuple(max(0, min(last, end) - max(first, begin)) for begin, end in neighbours(cuts))

    ticks = range(cuts[-1] + pieces - 1 if rounds else 0)
    for counts, alike in groupby(map(under_way, ticks)):
        together = tuple(replace(r, repeats=count) for r, count in zip(rounds, counts, strict=True) if count)
        yield together, sum(1 for _ in alike)


def joined(parts: Sequence[tuple[Edges, float]]) -> Edges:
    """The union of several sets of edges, each with a factor on its shares; shares of equal edges are added up."""
    source, target = (np.concatenate([getattr(e, name) for e, _ in parts]) for name in ("source", "target"))
    share = np.concatenate([e.share * factor for e, factor in parts])
    n = int(max(source.max(initial=-1), target.max(initial=-1))) + 1
    key, which = np.unique(source * n + target, return_inverse=True)
    return Edges(key // max(n, 1), key % max(n, 1), np.bincount(which, weights=share, minlength=len(key)))


def side_by_side(lanes: Sequence[Sequence[Round]]) -> tuple[Round, ...]:
    """The rounds of parallel lanes combined. The lanes differ in their edges only."""
    return tuple(replace(each[0], edges=joined([(r.edges, 1.0) for r in each])) for each in zip(*lanes, strict=True))


Rounds = Callable[[str, Array], Sequence[Round]]


@dataclass(frozen=True, slots=True)
class Grid:
    """A group with `per_node` ranks in each of its nodes. Member `i` of node `x` stands at `x * per_node + i`."""

    nodes: int
    per_node: int

    @classmethod
    def of(cls, nodes: Array) -> Grid:
        """The grid of a group, which must have equally many ranks in every node."""
        if not is_even(nodes):
            raise UserError(
                "nodes of the group hold different numbers of its ranks, or ranks of a node are not side by side",
                hint="ring, tree and direct support such groups",
            )
        per_node = int((nodes == nodes[0]).sum())
        return cls(len(nodes) // per_node, per_node)

    def inside(self, rounds: Sequence[Round]) -> tuple[Round, ...]:
        """The given rounds of the members of one node, in every node."""
        first = np.arange(self.nodes)[:, None] * self.per_node

        def in_all_nodes(edges: Edges) -> Edges:
            return Edges((first + edges.source).ravel(), (first + edges.target).ravel(), np.tile(edges.share, self.nodes))

        return tuple(replace(r, edges=in_all_nodes(r.edges)) for r in rounds)

    def across(self, rounds: Sequence[Round], part: Fraction) -> tuple[Round, ...]:
        """The given rounds among one rank of each node, on every rail, with `part` of the payload each."""
        rail = np.arange(self.per_node)

        def on_all_rails(edges: Edges) -> Edges:
            source, target = ((end[:, None] * self.per_node + rail).ravel() for end in (edges.source, edges.target))
            return Edges(source, target, np.repeat(edges.share, self.per_node))

        return tuple(replace(r, edges=on_all_rails(r.edges), fraction=r.fraction * part) for r in rounds)


def is_even(nodes: Array) -> bool:
    """Whether all nodes of a group hold the same number of its ranks, side by side in the order of the group."""
    ends = np.flatnonzero(np.concatenate([nodes[1:] != nodes[:-1], [True]]))
    sizes = np.diff(ends, prepend=-1)
    return bool((sizes == sizes[0]).all()) and len(ends) == len({*nodes[ends].tolist()})


@dataclass(frozen=True, slots=True)
class Lanes:
    """Lanes (rings or trees) through a group, as many as its smallest node has ranks. Each lane enters every node at a different
    rank and leaves it at the rank before, so that it has its own NIC in every node. There is one lane within a node, or if the
    ranks of a node are not consecutive."""

    first: Array
    """Node -> its first member."""
    sizes: Array
    """Node -> the number of its members."""
    number: int

    @classmethod
    def of(cls, nodes: Array) -> Lanes:
        ends = np.flatnonzero(np.append(nodes[1:] != nodes[:-1], True)) + 1
        sizes = np.diff(ends, prepend=0)
        side_by_side = len(ends) == len({*nodes[ends - 1].tolist()})
        return cls(ends - sizes, sizes, int(sizes.min()) if len(sizes) > 1 and side_by_side else 1)

    def order(self, lane: int) -> Array:
        """The members in the order in which a lane passes them."""
        first, size = np.repeat(self.first, self.sizes), np.repeat(self.sizes, self.sizes)
        order: Array = first + (np.arange(len(first)) - first + lane) % size
        return order

    def entries(self, lane: int) -> Array:
        """Node -> the member at which a lane enters it."""
        entries: Array = self.first + lane
        return entries


def on_rails(kind: str, nodes: Array) -> bool:
    """Whether a group has rails, which algorithms across nodes need: the same number of ranks in every node, side by side."""
    return is_even(nodes)


def layered(kind: str, nodes: Array, inside: Rounds, across: Rounds) -> tuple[Round, ...]:
    """Reduce-scatter in the nodes, the collective along each rail on the resulting parts, all-gather in the nodes.

    A reduce-scatter needs no gather after it, and an all-gather no scatter before it.
    """
    grid = Grid.of(nodes)
    members = np.zeros(grid.per_node, dtype=np.int64)
    before = () if kind == "all_gather" else grid.inside(inside("reduce_scatter", members))
    after = () if kind == "reduce_scatter" else grid.inside(inside("all_gather", members))
    return (*before, *grid.across(across(kind, np.arange(grid.nodes)), Fraction(1, grid.per_node)), *after)


def is_power_of_two(n: int) -> bool:
    return n & (n - 1) == 0


def needs_no_helpers(kind: str, nodes: Array) -> bool:
    """Whether the size of a group is a power of two, so that no rank acts for another in swaps."""
    return is_power_of_two(len(nodes))


def swaps(n: int, plan: Sequence[tuple[int, Fraction]]) -> tuple[Round, ...]:
    """Exchanges of a fraction of the payload between ranks that differ in the given bit, one after the other."""
    whole = 1 << n.bit_length() - 1
    helper = 2 * np.arange(n - whole)
    core = np.concatenate([helper, np.arange(2 * len(helper), n)])
    exchanged = tuple(Round(Edges.of(core, core[np.arange(whole) ^ (1 << bit)]), fraction) for bit, fraction in plan)
    if not len(helper):
        return exchanged
    give, take = (Round(Edges.of(*ends), Fraction(1)) for ends in ((helper + 1, helper), (helper, helper + 1)))
    return (give, *exchanged, take)
