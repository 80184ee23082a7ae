"""Ring collectives: each rank passes pieces to the next; all_reduce is a reduce-scatter and a gather, 2(n - 1) steps.

Uncontended on equal links of latency a and bandwidth B, an all-reduce of S bytes takes 2(n - 1)(a + S/(nB)), and a broadcast,
which passes the payload on in small pieces, (n - 1)a + S/B. Where several ranks of the group sit in each node there is a
ring per rank of a node, each leaving the node through its own NIC, as NCCL builds them: every NIC carries 1/k of the bytes.
Reference: Patarasuk and Yuan, "Bandwidth optimal all-reduce", 2009.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from . import Array, Edges, Grid, Round, is_even, side_by_side

KINDS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")
RINGS = True


def rounds(kind: str, nodes: Array) -> tuple[Round, ...]:
    """All rings at once."""
    return side_by_side(lanes(kind, nodes))


def lanes(kind: str, nodes: Array) -> tuple[tuple[Round, ...], ...]:
    """Ring by ring, one round again and again: a piece of 1/n to the next rank. A broadcast goes round but for the way back to
    its root. Of several rings in a node each enters it at a rank of its own and leaves it at the one before.
    """
    n = len(nodes)
    if n < 2:
        return ((),)
    member, grid = np.arange(n), Grid.of(nodes) if is_even(nodes) else Grid(n, 1)
    k = grid.per_node if grid.nodes > 1 else 1
    turns, rings = 2 if kind == "all_reduce" else 1, []
    for entry in range(k):
        source = member // k * k + (member + entry) % k
        target = np.roll(source, -1)
        if kind == "broadcast":
            onward = target != 0
            rings.append((Round(Edges.of(source[onward], target[onward], 1 / k), Fraction(1, n - 1), n - 1),))
        else:
            rings.append((Round(Edges.of(source, target, 1 / k), Fraction(1, n), turns * (n - 1)),))
    return tuple(rings)
