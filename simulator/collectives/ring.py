"""Ring collectives: each rank passes pieces to the next; all_reduce is a reduce-scatter and a gather, 2(n - 1) steps.

Uncontended on equal links of latency a and bandwidth B, an all-reduce of S bytes takes 2(n - 1)(a + S/(nB)), and a broadcast,
which passes the payload on in small pieces, (n - 1)a + S/B. Where several ranks of the group sit in each node there is a
ring per rank of a node, each leaving the node through its own NIC, as NCCL builds them: every NIC carries 1/k of the bytes.
Reference: Patarasuk and Yuan, "Bandwidth optimal all-reduce", 2009.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from . import Array, Edges, Round, joined
from ._groups import Grid, is_even

KINDS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")
RINGS = True


def rounds(kind: str, nodes: Array) -> tuple[Round, ...]:
    """All rings at once."""
    return _round(kind, len(nodes), joined([(edges, 1.0) for edges in _rings(nodes)]))


def lanes(kind: str, nodes: Array) -> tuple[tuple[Round, ...], ...]:
    """Ring by ring."""
    return tuple(_round(kind, len(nodes), edges) for edges in _rings(nodes))


def _round(kind: str, n: int, edges: Edges) -> tuple[Round, ...]:
    """One round, again and again: a piece of 1/n to the next rank. A broadcast goes round but for the way back to its root."""
    if n < 2:
        return ()
    if kind == "broadcast":
        onward = edges.target != 0
        return (Round(Edges(edges.source[onward], edges.target[onward], edges.share[onward]), Fraction(1, n - 1), n - 1),)
    return (Round(edges, Fraction(1, n), (2 if kind == "all_reduce" else 1) * (n - 1)),)


def _rings(nodes: Array) -> list[Edges]:
    """The edges of each ring: of several in a node, each enters it at a rank of its own and leaves it at the one before."""
    n = len(nodes)
    member = np.arange(n)
    grid = Grid.of(nodes) if is_even(nodes) else Grid(n, 1)
    if grid.nodes == 1 or grid.per_node == 1:
        return [Edges.to_next(n)]
    k = grid.per_node
    orders = [member // k * k + (member + entry) % k for entry in range(k)]
    return [Edges.of(order, np.roll(order, -1), 1 / k) for order in orders]
