"""Memory-bound operators: their bytes at the rate that streaming kernels sustain, and what an operator needs beyond.

A pointwise kernel moves its bytes at a fraction of the memory's rate that hardly depends on the operation. Reductions over a
row and operators that a framework runs as several kernels take a multiple of that, which is the same from GPU to GPU: the
ratios below. A lookup is bound by the arithmetic of its indices, not by bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..units import GB, US_PER_S
from .machine import Array, Machine, columns

BACKWARD = "_backward"


@dataclass(frozen=True, slots=True)
class RowwiseConstants:
    """Fitted to one GPU."""

    launch_us: float = 1.5
    stream: float = 0.87
    """Fraction of the memory's rate that a pointwise kernel reaches."""
    lookup_cycles: float = 1.75
    """Clock cycles for which an element that is looked up keeps one multiprocessor busy."""


@dataclass(frozen=True, slots=True)
class Work:
    """What an operator takes over a pointwise kernel of the same bytes: fused into one kernel, and as eager frameworks run it,
    in how many kernels; `backward` is the same of its backward pass, fused, over the bytes of that.
    """

    fused: float = 1.0
    eager: float = 1.0
    backward: float = 1.0
    eager_kernels: int = 1


POINTWISE = Work()
WORK = {
    "layernorm": Work(1.3, 1.45, 2.3, 4),
    "rmsnorm": Work(1.3, 2.6, 2.3, 2),
    "softmax": Work(1.25, 1.25, 2.2),
    "cross_entropy": Work(1.25, 3.0, 1.25, 6),
    "rope": Work(1.0, 2.1, 1.0, 2),
    "gated": Work(1.0, 1.85, 1.0, 2),
    "gelu": Work(1.0, 1.4, 1.0),
    "dropout": Work(1.2, 1.2, 1.3),
    "adam": Work(1.15, 2.0, 1.15, 8),
    "quantise": Work(1.2, 2.7, 1.2, 3),
    "embedding": Work(1.0, 1.0, 1.0, 2),
}
"""The global constants of memory-bound operators; 1 for all others.

Fused reductions: fp32 layer norm and softmax of torch 2.1 on four GPUs, over add on the same (NeuSight: 1.0 to 1.5); their
backward: 2.7 and 2.6 times forward there, on 3 passes over memory against 2. Eager ones: sustained bandwidth of fp16 norms,
rope, swiglu and gelu on A100 and H100 over that of add, equal on both to 5% (as the reference notes on measured kernels give
them; layer norm without its floor). Dropout: 2.7 times forward backward in fp32. Cross-entropy: as softmax; eager, by its
passes in fp32. Adam: 34 bytes per parameter at three quarters of the rate. Quantise: the casts that are taken apart from FP8
products in results/kernels. Kernels: what they are in PyTorch.
"""
LOOKUPS = ("embedding",)


def work_of(op: str) -> Work:
    """The ratios of an operator, by its name with or without `_backward`."""
    name = op.removesuffix(BACKWARD)
    return WORK["gated"] if name.endswith("_gated") else WORK.get(name, POINTWISE)


def slowness(op: str, *, eager: bool = False) -> float:
    """How much slower than a pointwise kernel an operator (or its backward pass) moves its bytes."""
    work = work_of(op)
    if not op.endswith(BACKWARD):
        return work.eager if eager else work.fused
    return work.backward * (work.eager / work.fused if eager else 1.0)


def launches(op: str, *, eager: bool = False) -> int:
    """How many kernels an operator is."""
    return work_of(op).eager_kernels if eager else 1


def clock_per_s(tensor_flop_per_s: float, sms: int) -> float:
    """The clock that the tensor peak was stated at: a multiprocessor does a power of two flop in a cycle, at 1.3 to 2.6 GHz."""
    per_sm = tensor_flop_per_s / sms
    usual = 1.85 * GB
    return float(per_sm / 2 ** round(math.log2(per_sm / usual)))


def rowwise_s(c: RowwiseConstants, on: Machine, bytes_moved: ArrayLike, slower: ArrayLike = 1.0, kernels: int = 1) -> Array:
    """Seconds of an operator that moves so many bytes."""
    moved, slower = columns(bytes_moved, slower)
    return kernels * c.launch_us / US_PER_S + np.maximum(slower / c.stream, 1.0) * moved / on.bytes_per_s


def lookup_s(c: RowwiseConstants, on: Machine, elements: ArrayLike, bytes_moved: ArrayLike, kernels: int = 1) -> Array:
    """Seconds of looking up rows of a table, of so many elements in all; `on` in 16 bits, whose peak tells the clock."""
    elements, moved = columns(elements, bytes_moved)
    indexing_s = elements * c.lookup_cycles / (on.sms * clock_per_s(on.flop_per_s, on.sms))
    return kernels * c.launch_us / US_PER_S + np.maximum(indexing_s, moved / (c.stream * on.bytes_per_s))
