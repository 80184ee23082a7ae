"""Ring collectives: each rank passes pieces to the next; all_reduce is a reduce-scatter and a gather, 2(n - 1) steps.

Alone on equal links of latency a and bandwidth B, an all-reduce of S bytes takes 2(n - 1)(a + S/(nB)), and a broadcast,
which passes the payload on in small pieces, (n - 1)a + S/B. Where several ranks of the group sit in each node there is a
ring per rank of a node, each leaving the node through its own NIC, as NCCL builds them: every NIC carries 1/k of the bytes.
Reference: Patarasuk and Yuan, "Bandwidth optimal all-reduce", 2009.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from . import Array, Edges, Round
from ._nodes import Grid, is_even

KINDS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")
RINGS = True


def rounds(kind: str, nodes: Array) -> tuple[Round, ...]:
    """One round, again and again: a piece of 1/n to the next rank. A broadcast goes round but for the way back to its root."""
    n = len(nodes)
    if n < 2:
        return ()
    edges = _edges(nodes)
    if kind == "broadcast":
        onward = edges.target != 0
        return (Round(Edges(edges.source[onward], edges.target[onward], edges.share[onward]), Fraction(1, n - 1), n - 1),)
    return (Round(edges, Fraction(1, n), (2 if kind == "all_reduce" else 1) * (n - 1)),)


def _edges(nodes: Array) -> Edges:
    """The edges of all rings."""
    n = len(nodes)
    member = np.arange(n)
    grid = Grid.of(nodes) if is_even(nodes) else Grid(n, 1)
    if grid.nodes == 1 or grid.per_node == 1:
        return Edges.of(member, (member + 1) % n)
    k = grid.per_node
    first = member // k * k
    inside = Edges.of(member, first + (member - first + 1) % k, (k - 1) / k)
    next_node = (first + k) % n
    across = Edges.of(first + (member - first - 1) % k, next_node + (member - first), 1 / k)
    return Edges(*(np.concatenate([getattr(inside, c), getattr(across, c)]) for c in ("source", "target", "share")))
