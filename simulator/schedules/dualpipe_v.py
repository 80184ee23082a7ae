"""DualPipeV: DualPipe on half of the ranks, with two chunks per rank in a V and a single copy of the parameters.

The first and the last stage are on rank 0. For F = I = W of a chunk and a pair FB = F + B, the span is
2M(F + B) + (P - 1)(FB + B - 3W); 2P + 1 chunks are alive. M must be at least 2P. Reference: the public repository of DualPipe
(DeepSeek-V3, arXiv 2412.19437); the idea to cut DualPipe in half is from Sea AI Lab.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import OutsideDomain
from ..program.slot import Box, Shape, snaked
from .dualpipe import bidirectional_order

CHUNKS = 2
PAIRS = True


def refuse(shape: Shape) -> None:
    if shape.microbatches < 2 * shape.ranks:
        reason = f"dualpipe-v needs at least two microbatches per rank: {shape.microbatches} < {2 * shape.ranks}"
        raise OutsideDomain(reason, nearest={"microbatches": 2 * shape.ranks})


placement = snaked


def order(rank: int, shape: Shape) -> Iterator[Box]:
    everything = range(shape.microbatches)
    return bidirectional_order(rank, shape.ranks, (everything, everything))


def in_flight(rank: int, shape: Shape) -> int:
    return 2 * shape.ranks + 1
