"""Double binary tree of NCCL, pipelined: each tree carries half of the payload; inner ranks of one are leaves of the other.

Uncontended on equal links of latency a and bandwidth B and for n > 3, an all-reduce of S bytes takes 2 ceil(log2 n) a + 2 S/B:
partial sums move up both trees while results move down. A broadcast, whose root feeds both trees, takes
(ceil(log2(n - 1)) + 1)a + S/B. Over several nodes, the trees connect nodes and the ranks of a node form chains,
as in NCCL; there is one pair of trees, with its part of the payload, per rank of a node (of the smallest node if they differ).
References: Sanders, Speck, Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009; Jeaugey,
"Massively Scale Your Deep Learning Training with NCCL 2.4", 2019.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np

from . import Array, Edges, Grid, Lanes, Round, is_even, joined, layered, ring

KINDS = ("all_reduce", "broadcast")
PIPELINED = True
RINGS = True
HALF = Fraction(1, 2)


def alike(kind: str, nodes: Array) -> bool:
    """Whether all ranks have equal roles: a tree of more than two ranks has a root and leaves."""
    return len(nodes) <= 2


def rounds(kind: str, nodes: Array) -> tuple[Round, ...]:
    """The rounds, one per level of the trees: up and then down, or for a broadcast down from the root."""
    grid, through = Grid.of(nodes) if is_even(nodes) else Grid(1, len(nodes)), Lanes.of(nodes)
    if grid.nodes == 1:
        return _over_uneven_nodes(through) if through.number > 1 and kind == "all_reduce" else over_ranks(kind, nodes)
    return layered(kind, nodes, ring.rounds, over_ranks) if kind == "all_reduce" else _broadcast(grid)


def _over_uneven_nodes(through: Lanes) -> tuple[Round, ...]:
    """The rounds of an all-reduce over nodes of which some have more ranks: along the ranks of every node to the one at which a
    lane enters it, up and down the trees of the lane, and along the ranks of every node again."""
    lanes, longest = range(through.number), int(through.sizes.max()) - 1
    part, inside = 1 / through.number, np.ones(int(through.sizes.sum()), dtype=bool)
    inside[through.first] = False  # the first place of every node in the order of a lane, into which no rank of the node sends
    orders = [through.order(lane) for lane in lanes]
    along = joined([(Edges.of(order[1:][inside[1:]], order[:-1][inside[1:]]), part) for order in orders])
    to_entries = Round(along, Fraction(1, longest), longest)

    def on_lanes(edges: Edges) -> Edges:
        at = [through.entries(lane) for lane in lanes]
        return joined([(Edges(entries[edges.source], entries[edges.target], edges.share), part) for entries in at])

    trees = over_ranks("all_reduce", np.arange(len(through.sizes)))
    return (to_entries, *(replace(r, edges=on_lanes(r.edges)) for r in trees), replace(to_entries, edges=along.turned()))


def over_ranks(kind: str, nodes: Array) -> tuple[Round, ...]:
    """The rounds of trees over all ranks of a group, whichever nodes they are in."""
    n = len(nodes)
    if n < 2:
        return ()
    if kind == "broadcast":
        return _from_first(n)
    levels = _levels(n)
    return (*(Round(edges, HALF) for edges in reversed(levels)), *(Round(edges.turned(), HALF) for edges in levels))


def _from_first(n: int) -> tuple[Round, ...]:
    """The rounds of a broadcast: the first rank sends to the roots of two trees over all other ranks."""
    others = n - 1
    if others == 1:
        return (Round(Edges.of(np.array([0]), np.array([1])), Fraction(1)),)
    first = np.zeros(1, dtype=np.int64)
    roots = np.concatenate([first, _second(others, first)])
    down = [edges.turned().shifted(1) for edges in _levels(others)]
    return tuple(Round(edges, HALF) for edges in (Edges.of(np.zeros(2, dtype=np.int64), roots + 1), *down))


def _broadcast(grid: Grid) -> tuple[Round, ...]:
    """The rounds of a broadcast over nodes: along the first node, down the trees of every rail, along the other nodes."""
    k = grid.per_node
    trees = grid.across(over_ranks("broadcast", np.arange(grid.nodes)), Fraction(1, k))
    if k == 1:
        return trees
    member = np.arange(k - 1)
    along = Round(Edges.of(member, member + 1), Fraction(1, k - 1), k - 1)
    chains = Grid(grid.nodes - 1, k).inside(ring.rounds("all_gather", np.zeros(k, dtype=np.int64)))
    return (along, *trees, *(replace(r, edges=r.edges.shifted(k)) for r in chains))


def _levels(n: int) -> list[Edges]:
    """The edges of both trees from child to parent, by level, starting with the children of the roots."""
    parent, depth = _tree(n)
    at = [np.flatnonzero(depth == d) for d in range(1, int(depth.max()) + 1)]
    return [
        joined([(Edges.of(child, parent[child]), 1.0), (Edges.of(_second(n, child), _second(n, parent[child])), 1.0)])
        for child in at
    ]


def _tree(n: int) -> tuple[Array, Array]:
    """Parent and depth of every rank in a binary tree in which odd ranks are leaves. The root, 0, is its own parent.

    The lowest set bit of a rank gives its height above the leaves. The parent of a rank has the next higher bit set instead,
    or, if there is no such rank, just the lowest bit cleared.
    """
    member = np.arange(n)
    low = member & -member
    parent = (member ^ low) | (low << 1)
    parent = np.where(parent < n, parent, member ^ low)
    depth, above = np.zeros(n, dtype=np.int64), member
    while above.any():
        depth += above > 0
        above = parent[above]
    return parent, depth


def _second(n: int, rank: Array) -> Array:
    """The rank at the same place in the second tree: ranks mirrored, or for odd n shifted by one, so that leaves get children."""
    return n - 1 - rank if n % 2 == 0 else (rank + 1) % n
