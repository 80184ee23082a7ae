"""DualPipe: microbatches enter at both ends of the pipeline, and forward and backward passes that meet hide each other.

Every rank holds two stages, one of each direction, so parameters are there twice. For F = I = W and a pair FB = F + B, the span
is M(F + B) + (P/2 - 1)(FB + B - 3W); P + 1 microbatches are alive. P and M must be even, and M at least 2P. Reference:
DeepSeek-V3, arXiv 2412.19437, section 3.2.1.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import OutsideDomain
from ..program.slot import Box, Shape
from ._dualpipe import eight_steps

CHUNKS = 1


def refuse(shape: Shape) -> None:
    ranks = shape.ranks + shape.ranks % 2
    microbatches = max(2 * ranks, shape.microbatches + shape.microbatches % 2)
    if ranks != shape.ranks or microbatches != shape.microbatches:
        reason = (
            "dualpipe needs an even number of ranks, and an even number of microbatches, at least two per rank:"
            f" not {shape.microbatches} on {shape.ranks}"
        )
        raise OutsideDomain(reason, nearest={"ranks": ranks, "microbatches": microbatches})


def placements(shape: Shape) -> tuple[tuple[int, ...], tuple[int, ...]]:
    forth = tuple(range(shape.ranks))
    return forth, forth[::-1]


def order(rank: int, shape: Shape) -> Iterator[Box]:
    half = shape.microbatches // 2
    forth, back = range(half), range(half, shape.microbatches)
    if rank < shape.ranks // 2:
        return eight_steps(rank, shape.ranks // 2, (forth, back))
    return eight_steps(shape.ranks - 1 - rank, shape.ranks // 2, (back, forth))


def in_flight(rank: int, shape: Shape) -> int:
    return shape.ranks + 1
