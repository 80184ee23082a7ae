"""NVLink SHARP: the NVSwitch sums what it reads from all GPUs of a node, and copies what it writes to them.

For an all-reduce each rank reads the sum of its part of the payload and writes it to all: (k + 1)/k of the payload leaves
and reaches each of the k ranks of a node, where a ring takes 2(k - 1)/k. Uncontended in one node, with latency a and bandwidth B,
that is 2a + (k + 1)/k S/B. A scatter only reads, a gather only writes: a + S/B; that one direction of the links is then
nearly idle is not modelled. Over several nodes, rings along the rails reduce the parts, and everything is pipelined.
Reference: Ishii and Wells, "The NVLink-Network Switch", Hot Chips 34, 2022.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from . import Array, Edges, Round, Rounds, layered, on_rails, ring

KINDS = ("all_reduce", "reduce_scatter", "all_gather")
PIPELINED = True
IN_NETWORK = True
takes = on_rails


def rounds(kind: str, nodes: Array) -> tuple[Round, ...]:
    """Through the switches, along the rails, through the switches."""
    return layered(kind, nodes, through_switch(kind), ring.rounds)


def through_switch(kind: str) -> Rounds:
    """What half of a collective puts on the links of every rank of a node: a scatter goes out whole and comes in by parts."""

    def half(_: str, nodes: Array) -> Sequence[Round]:
        n = len(nodes)
        fraction = Fraction(n + 1, 2 * n) if kind == "all_reduce" else Fraction(1)
        return (Round(Edges.to_next(n), fraction),) if n > 1 else ()

    return half
