"""Interleaved zero bubble: interleaved 1F1B with the backward split and weight gradients delayed, as torch runs it.

The order of chunks and microbatches and the domain are those of `interleaved` without a group. Rank r runs
(P - 1 - r) + (V - 1)g forward passes first and delays weight gradients by r. Makespan M(F + I + W) + (P - 1)(F + I - W)/V
where P divides M and F = I = W; P microbatches alive. References: Qi et al., arXiv 2401.10241; InterleavedZeroBubble of
torch.distributed.pipelining.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..program.slot import Shape, Slot
from . import interleaved
from ._delayed import most_alive, weave

WITH_ONE = {"chunks": "zb-h1"}


def refuse(shape: Shape) -> None:
    interleaved.refuse(replace(shape, group=None))


def order(rank: int, shape: Shape) -> Iterator[Slot]:
    fused = list(interleaved.order(rank, replace(shape, group=None)))
    return weave(fused, _warm_up(rank, shape), delay=rank)


def _warm_up(rank: int, shape: Shape) -> int:
    group = interleaved.group_of(replace(shape, group=None))
    return shape.ranks - 1 - rank + (shape.chunks - 1) * group


def in_flight(rank: int, shape: Shape) -> int:
    return most_alive(shape.chunks * shape.microbatches, _warm_up(rank, shape), delay=rank)
