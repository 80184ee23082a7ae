"""Double binary tree, pipelined: two trees with half of the payload each, in which no rank is twice between two others.

Uncontended on equal links of latency a and bandwidth B and for n > 3, an all-reduce of S bytes takes 2 ceil(log2 n) a + 2 S/B:
sums go up both trees while results come down. A broadcast feeds both from its root: (ceil(log2(n - 1)) + 1)a + S/B. Over
several nodes with as many ranks in each, the trees join nodes, one pair per rail with its part of the payload, and ranks of
a node form chains, as in NCCL. References: Sanders, Speck, Traeff, "Two-tree algorithms for full bandwidth broadcast,
reduction and scan", 2009; Jeaugey, "Massively Scale Your Deep Learning Training with NCCL 2.4", 2019.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np

from . import Array, Edges, Grid, Round, is_even, joined, layered, ring

KINDS = ("all_reduce", "broadcast")
PIPELINED = True
RINGS = True
HALF = Fraction(1, 2)


def alike(kind: str, nodes: Array) -> bool:
    """A tree has a root and leaves."""
    return len(nodes) <= 2


def rounds(kind: str, nodes: Array) -> tuple[Round, ...]:
    """Level by level: up and down again, or down from the root."""
    grid = Grid.of(nodes) if is_even(nodes) else Grid(1, len(nodes))
    if grid.nodes == 1:
        return over_ranks(kind, nodes)
    return layered(kind, nodes, ring.rounds, over_ranks) if kind == "all_reduce" else _broadcast(grid)


def over_ranks(kind: str, nodes: Array) -> tuple[Round, ...]:
    """The trees of a group whose ranks are all treated the same."""
    n = len(nodes)
    if n < 2:
        return ()
    if kind == "broadcast":
        return _from_first(n)
    levels = _levels(n)
    return (*(Round(edges, HALF) for edges in reversed(levels)), *(Round(edges.turned(), HALF) for edges in levels))


def _from_first(n: int) -> tuple[Round, ...]:
    """The first rank feeds the roots of two trees over all others."""
    others = n - 1
    if others == 1:
        return (Round(Edges.of(np.array([0]), np.array([1])), Fraction(1)),)
    first = np.zeros(1, dtype=np.int64)
    roots = np.concatenate([first, _second(others, first)])
    down = [edges.turned().shifted(1) for edges in _levels(others)]
    return tuple(Round(edges, HALF) for edges in (Edges.of(np.zeros(2, dtype=np.int64), roots + 1), *down))


def _broadcast(grid: Grid) -> tuple[Round, ...]:
    """Along the first node, from there down the trees of every rail, and along the chains of all other nodes."""
    k = grid.per_node
    trees = grid.across(over_ranks("broadcast", np.arange(grid.nodes)), Fraction(1, k))
    if k == 1:
        return trees
    member = np.arange(k - 1)
    along = Round(Edges.of(member, member + 1), Fraction(1, k - 1), k - 1)
    chains = Grid(grid.nodes - 1, k).inside(ring.rounds("all_gather", np.zeros(k, dtype=np.int64)))
    return (along, *trees, *(replace(r, edges=r.edges.shifted(k)) for r in chains))


def _levels(n: int) -> list[Edges]:
    """Both trees, from child to parent, those right below the roots first."""
    parent, depth = _tree(n)
    at = [np.flatnonzero(depth == d) for d in range(1, int(depth.max()) + 1)]
    return [
        joined([(Edges.of(child, parent[child]), 1.0), (Edges.of(_second(n, child), _second(n, parent[child])), 1.0)])
        for child in at
    ]


def _tree(n: int) -> tuple[Array, Array]:
    """Parent and depth of every rank in a binary tree in which odd ranks are leaves. The root, 0, has itself for parent.

    The lowest bit set is how far a rank is above the leaves; its parent has the next bit set instead, if that exists.
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
    """Who takes the place of a rank in the second tree: mirrored, or for odd n turned by one, so that leaves get children."""
    return n - 1 - rank if n % 2 == 0 else (rank + 1) % n
