"""Ring: each rank sends pieces to the next rank; an all-reduce is a reduce-scatter and an all-gather, 2(n - 1) steps.

Uncontended on equal links of latency a and bandwidth B, an all-reduce of S bytes takes 2(n - 1)(a + S/(nB)), and a broadcast,
which passes the payload on in small pieces, (n - 1)a + S/B. Where several ranks of the group sit in each node there is a
ring per rank of a node, of the smallest where they differ, each leaving the node through its own NIC, as NCCL builds them: every
NIC carries 1/k of the bytes.
Reference: Patarasuk and Yuan, "Bandwidth optimal all-reduce", 2009.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from . import Array, Edges, Lanes, Round, side_by_side

KINDS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")
RINGS = True


def rounds(kind: str, nodes: Array) -> tuple[Round, ...]:
    """The rounds of all rings together."""
    return side_by_side(lanes(kind, nodes))


def lanes(kind: str, nodes: Array) -> tuple[tuple[Round, ...], ...]:
    """The round of each ring, which repeats: a piece of 1/n goes to the next rank.

    A broadcast does not send back to its root. Several rings of a node each enter the node at a different rank and leave it at
    the preceding rank.
    """
    n = len(nodes)
    if n < 2:
        return ((),)
    through = Lanes.of(nodes)
    k, turns, rings = through.number, 2 if kind == "all_reduce" else 1, []
    for lane in range(k):
        source = through.order(lane)
        target = np.roll(source, -1)
        if kind == "broadcast":
            onward = target != 0
            rings.append((Round(Edges.of(source[onward], target[onward], 1 / k), Fraction(1, n - 1), n - 1),))
        else:
            rings.append((Round(Edges.of(source, target, 1 / k), Fraction(1, n), turns * (n - 1)),))
    return tuple(rings)
