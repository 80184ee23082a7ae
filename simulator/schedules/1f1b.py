"""1F1B: after a short warm-up every rank alternates one forward and one backward pass.

The makespan of GPipe, (M + P - 1)(F + B), with the activations of at most P microbatches alive. Reference: Narayanan et
al., arXiv 2104.04473, "PipeDream-Flush"; Megatron's order, which takes any M.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..program.slot import Exchange, Shape, Slot
from ._megatron_exchanges import without_interleaving

CHUNKS = 1


def order(rank: int, shape: Shape) -> Iterator[Slot]:
    warm_up = _warm_up(rank, shape)
    for microbatch in range(warm_up):
        yield Slot("F", rank, microbatch)
    for microbatch in range(shape.microbatches - warm_up):
        yield Slot("F", rank, warm_up + microbatch)
        yield Slot("B", rank, microbatch)
    for microbatch in range(shape.microbatches - warm_up, shape.microbatches):
        yield Slot("B", rank, microbatch)


def _warm_up(rank: int, shape: Shape) -> int:
    return min(shape.ranks - 1 - rank, shape.microbatches)


def exchanges(rank: int, shape: Shape) -> Iterator[Exchange]:
    forward, backward = ([Slot(kind, rank, microbatch) for microbatch in range(shape.microbatches)] for kind in "FB")
    return without_interleaving(forward, backward, _warm_up(rank, shape))


def in_flight(rank: int, shape: Shape) -> int:
    return min(shape.ranks - rank, shape.microbatches)
