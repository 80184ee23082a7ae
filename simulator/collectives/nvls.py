"""NVLink SHARP (NVLS): the NVSwitch reduces data that it reads from all GPUs of a node and multicasts the result to them.

For an all-reduce each rank reads the sum of its part of the payload and writes it to all: (k + 1)/k of the payload leaves and
reaches each of the k ranks of a node, where a ring takes 2(k - 1)/k. Uncontended in one node, with latency a and bandwidth B,
that is 2a + (k + 1)/k S/B. A scatter only reads, a gather only writes: a + S/B; that one direction of the links is then nearly
idle is not modelled. Over several nodes, rings along the rails reduce the parts, and everything is pipelined. Reference: Ishii
and Wells, "The NVLink-Network Switch", Hot Chips 34, 2022.
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
    """The rounds through the NVSwitches, along the rails, and through the NVSwitches again."""
    return layered(kind, nodes, through_switch(kind), ring.rounds)


def through_switch(kind: str) -> Rounds:
    """The load of a reduce-scatter or an all-gather on the links of every rank of a node, as one round.

    Alone it is the whole payload. In an all-reduce of n ranks each of the two puts (n + 1)/(2n) of the payload on every link.
    """

    def half(_: str, nodes: Array) -> Sequence[Round]:
        n = len(nodes)
        fraction = Fraction(n + 1, 2 * n) if kind == "all_reduce" else Fraction(1)
        return (Round(Edges.to_next(n), fraction),) if n > 1 else ()

    return half
