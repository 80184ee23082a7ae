"""1F1B: after a short warm-up every rank alternates one forward and one backward pass.

The makespan of GPipe, (M + P - 1)(F + B), with the activations of at most P microbatches alive. Reference: Narayanan et
al., arXiv 2104.04473, "PipeDream-Flush"; Megatron's order, which takes any M.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..program.slot import Shape, Slot

CHUNKS = 1


def order(rank: int, shape: Shape) -> Iterator[Slot]:
    warm_up = min(shape.ranks - 1 - rank, shape.microbatches)
    for microbatch in range(warm_up):
        yield Slot("F", rank, microbatch)
    for microbatch in range(shape.microbatches - warm_up):
        yield Slot("F", rank, warm_up + microbatch)
        yield Slot("B", rank, microbatch)
    for microbatch in range(shape.microbatches - warm_up, shape.microbatches):
        yield Slot("B", rank, microbatch)


def in_flight(rank: int, shape: Shape) -> int:
    return min(shape.ranks - rank, shape.microbatches)
