"""Naive model parallelism: one microbatch at a time, forward through all stages and back, before the next may start.

Makespan M P (F + B). The baseline that every pipeline schedule is measured against.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..program.slot import Shape, Slot, looped


def order(rank: int, shape: Shape) -> Iterator[Slot]:
    mine = [stage for stage, at in enumerate(looped(shape)) if at == rank]
    for microbatch in range(shape.microbatches):
        yield from (Slot("F", stage, microbatch) for stage in mine)
        yield from (Slot("B", stage, microbatch) for stage in reversed(mine))


def in_flight(rank: int, shape: Shape) -> int:
    return shape.chunks
