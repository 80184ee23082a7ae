"""ZB-H1: 1F1B with the backward split, weight gradients fill a part of the bubble in the memory of 1F1B.

Rank r delays weight gradients by r microbatches, so that every rank holds P. Makespan M(F + I + W) + (P - 1)(F + I - W) for
M >= P, as long as W is no longer than F and I. Reference: Qi et al., arXiv 2401.10241, section 2.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..program.slot import Shape, Slot
from ._delayed import most_alive, weave

CHUNKS = 1


def order(rank: int, shape: Shape) -> Iterator[Slot]:
    passes = [Slot(kind, rank, microbatch) for kind in ("F", "B") for microbatch in range(shape.microbatches)]
    return weave(passes, warm_up=shape.ranks - 1 - rank, delay=rank)


def in_flight(rank: int, shape: Shape) -> int:
    return most_alive(shape.microbatches, warm_up=shape.ranks - 1 - rank, delay=rank)
