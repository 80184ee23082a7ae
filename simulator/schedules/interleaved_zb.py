"""Interleaved zero bubble: interleaved 1F1B with split backward passes and delayed weight gradients, as in PyTorch.

The order of chunks and microbatches and the domain are those of `interleaved` without a group. Rank r runs
(P - 1 - r) + (V - 1)g forward passes first and delays weight gradients by r. Makespan M(F + I + W) + (P - 1)(F + I - W)/V where
P divides M and F = I = W; P microbatches alive. References: Qi et al., arXiv 2401.10241; InterleavedZeroBubble of
torch.distributed.pipelining.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..program.slot import Shape, Slot
from . import interleaved
from .zb_h1 import split_backward

WITH_ONE = {"chunks": "zb-h1"}


def refuse(shape: Shape) -> None:
    interleaved.refuse_rounds("interleaved-zb", shape)


def order(rank: int, shape: Shape) -> Iterator[Slot]:
    plain = replace(shape, group=None)
    warm_up = shape.ranks - 1 - rank + (shape.chunks - 1) * interleaved.group_of(plain)
    return split_backward(interleaved.alternating(*interleaved.passes(rank, plain), warm_up), delay=rank)


def in_flight(rank: int, shape: Shape) -> int:
    ahead = shape.ranks + (shape.chunks - 1) * interleaved.group_of(replace(shape, group=None))
    return min(ahead, shape.chunks * shape.microbatches)
