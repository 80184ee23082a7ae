"""What kernel models say of measured rows, in columns: with what was measured together with a kernel.

Products of training add to a gradient in fp32; those of inference libraries in FP8 were timed with a cast of their first operand
from 16 bits; attention may be forward, backward, or both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ...costs.attention import AttentionConstants, Heads, attention_s
from ...costs.gemm import GemmConstants, accumulation_s, gemm_s
from ...costs.machine import Array, Machine
from ...costs.moe import moe_s
from ...costs.rowwise import LOOKUPS, lookup_s
from ...units import US_PER_S
from ..gpus.operator_names import WIDTH
from .deep_gemm import spilled_s
from .groups import Group
from .kernel_words import adds_to_gradient, turns_of
from .ratios import pointwise_s

CAST_START = (10.0, 2.5)
"""Of an unfused cast, where fitting starts: microseconds, and passes over the bytes that it reads and writes."""
CAST_FROM_BYTES = 2
"""Of an element before it is cast."""


@dataclass(frozen=True, slots=True)
class Timed:
    """How products were timed."""

    adds: ArrayLike = False
    """Which of them add to a gradient in fp32."""
    cast: Sequence[float] | Array = ()
    """With an unfused cast of the first operand: microseconds, and passes over its bytes."""
    turns: int = 0
    """Over and over, with so many second operands in turn."""


def products_s(c: GemmConstants, on: Machine, sizes: Sequence[Array], width: float, timed: Timed) -> Array:
    """Seconds of products of `sizes` m, n, k and batch, as they were timed."""
    m, n, k, batch = sizes
    time = gemm_s(c, on, m, n, k, batch, width=width, turns=timed.turns)
    time = time + np.where(timed.adds, accumulation_s(c, on, m, n) * batch, 0.0)
    return time + cast_s(timed.cast, on, m, k, width) if len(timed.cast) else time


def cast_s(cast: Sequence[float] | Array, on: Machine, m: Array, k: Array, width: float) -> Array:
    """Seconds of an unfused cast of an operand of m x k from 16 bits."""
    took_s: Array = cast[0] / US_PER_S + cast[1] * m * k * (CAST_FROM_BYTES + width) / on.bytes_per_s
    return took_s


def passes_s(c: AttentionConstants, on: Machine, what: Heads, forward: Array, backward: Array) -> Array:
    """Seconds of the passes of attention that were measured, each where its column is 1."""
    both: Array = forward * attention_s(c, on, what) + backward * attention_s(c, on, what, backward=True)
    return both


def predicted(c: Any, group: Group, cast: Array) -> Array:
    """Seconds of the rows of a group; `cast` is its two numbers, and a third where DeepGEMM's slow steps were timed too."""
    if group.family == "attention":
        what = Heads(*(group.column(name) for name in ("batch", "seq", "heads", "kv_heads", "head_dim", "causal")))
        return passes_s(c, group.on, what, group.forward, group.backward)
    if group.family == "rowwise":
        moved = group.column("traffic_bytes")
        looked_up = np.array([kernel.op in LOOKUPS for kernel in group.kernels])
        elements = np.array([kernel.rows * kernel.columns for kernel in group.kernels], dtype=np.float64)
        return np.where(looked_up, lookup_s(c, group.on, elements, moved), pointwise_s(c, group.on, moved, group.cold))
    sizes, width = [group.column(name) for name in ("m", "n", "k", "batch")], WIDTH[group.rows[0].probe.dtype]
    m, n, k, batch = sizes
    if group.family == "moe":
        return moe_s(c, group.on, m, k, n, (batch, group.column("top_k")), width=width)
    turns = min(turns_of(row.probe.variant) for row in group.rows)
    timed = Timed(np.array([adds_to_gradient(row.probe) for row in group.rows]), cast[:2], turns)
    time = products_s(c, group.on, sizes, width, timed)
    if len(cast) > 2:
        time = time + spilled_s(cast[2], group.on, m, n, k)
    if not group.backward.any():
        return time
    # the gradient of the first operand is (m, k) x (k, n) here, and that of the second follows from it
    return time + np.where(group.backward, gemm_s(c, group.on, n, k, m, batch, width=width), 0.0)
