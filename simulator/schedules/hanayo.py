"""Hanayo: wave pipeline; microbatches pass the ranks back and forth several times, and more waves mean a smaller bubble.

V chunks per rank, placed on the ranks in alternating directions, are W = V / 2 waves; parameters are stored once. With B = 2F
and M = P the bubble ratio is (2P - 2) / (3PW + 2P - 2). No order of this placement has a smaller ratio, because rank P - 1
idles at the start, before the first gradient reaches it and at the end; the paper states (2P - 2) / (3PW + P - 1). Activations
of at most P microbatches are alive. Reference: Liu et al., arXiv 2308.15762.
"""

from __future__ import annotations

from ..errors import OutsideDomain
from ..program.slot import Shape, Slot, snaked
from ._greedy import Problem, Wave, greedy, greedy_in_reverse

FORWARD, BACKWARD = 1, 2
"""The durations for which orders are built."""


def refuse(shape: Shape) -> None:
    if shape.chunks % 2:
        reason = f"hanayo needs an even number of chunks per rank, two for a wave: not {shape.chunks}"
        raise OutsideDomain(reason, nearest={"chunks": shape.chunks + 1})


placement = snaked


def orders(shape: Shape) -> list[list[Slot]]:
    """The shortest of three orders: the best one for M = P, one for many microbatches, and one for a few more than P."""
    ranks, both = shape.ranks, FORWARD + BACKWARD
    problem = Problem(ranks, [snaked(shape)] * shape.microbatches, shape.stages, FORWARD, BACKWARD)
    half = both * shape.stages / 2
    tight_end = Wave(ranks, half, 2 * BACKWARD, 1.5 * FORWARD, backward_first=True)
    steady = Wave(ranks, half, 2 * FORWARD, 2 * BACKWARD)
    stream = Wave(shape.microbatches, 0, both, both)
    found = [greedy_in_reverse(problem, tight_end), greedy(problem, steady), greedy(problem, stream)]
    best, _ = min(found, key=lambda result: result[1])
    return best


def in_flight(rank: int, shape: Shape) -> int:
    """The chunks of P microbatches. If M <= P, an early rank has freed its first chunks before the last microbatches return."""
    if shape.microbatches > shape.ranks:
        return shape.stages
    return shape.chunks * shape.microbatches - max(0, shape.microbatches - 1 - rank)
