"""1F1B: after a short warm-up every rank alternates one forward and one backward pass.

The makespan of GPipe, (M + P - 1)(F + B), with the activations of at most P microbatches alive. Reference: Narayanan et
al., arXiv 2104.04473, "PipeDream-Flush"; Megatron's order, which takes any M.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..program.slot import Exchange, Shape, Slot
from ._delayed import one_by_one
from ._megatron_exchanges import without_interleaving

CHUNKS = 1


def order(rank: int, shape: Shape) -> Iterator[Slot]:
    return one_by_one(*_passes(rank, shape), _warm_up(rank, shape))


def _warm_up(rank: int, shape: Shape) -> int:
    return min(shape.ranks - 1 - rank, shape.microbatches)


def exchanges(rank: int, shape: Shape) -> Iterator[Exchange]:
    return without_interleaving(*_passes(rank, shape), _warm_up(rank, shape))


def _passes(rank: int, shape: Shape) -> tuple[list[Slot], list[Slot]]:
    forward, backward = ([Slot(kind, rank, microbatch) for microbatch in range(shape.microbatches)] for kind in "FB")
    return forward, backward


def in_flight(rank: int, shape: Shape) -> int:
    return min(shape.ranks - rank, shape.microbatches)
