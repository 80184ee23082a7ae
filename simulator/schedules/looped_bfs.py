"""Looped BFS: every chunk takes all microbatches before the next chunk starts, and the backward pass mirrors it.

Makespan M(F + B) + (P - 1)(F + B)/V for M >= P, all M microbatches alive. It sends and reduces the parameters of a chunk once,
early. Reference: Lamy-Poirier, arXiv 2211.05953; microbatches go backward last first, as in torch.distributed.pipelining.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..program.slot import Shape, Slot


def order(rank: int, shape: Shape) -> Iterator[Slot]:
    forward = [
        Slot("F", stage, microbatch)
        for stage in range(rank, shape.stages, shape.ranks)
        for microbatch in range(shape.microbatches)
    ]
    yield from forward
    yield from (slot._replace(kind="B") for slot in reversed(forward))


def in_flight(rank: int, shape: Shape) -> int:
    return shape.chunks * shape.microbatches
