"""What kernel models say of measured rows, in columns: with what was measured together with a kernel.

Products of training add to a gradient in fp32; those of inference libraries in FP8 were timed with a cast of their first operand
from 16 bits; attention may be forward, backward, or both.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from ...costs.attention import AttentionConstants, Heads, attention_s
from ...costs.gemm import GemmConstants, accumulation_s, gemm_s
from ...costs.machine import Array, Machine
from ...units import US_PER_S

CAST_START = (10.0, 2.5)
"""Of an unfused cast, where fitting starts: microseconds, and passes over the bytes that it reads and writes."""
CAST_FROM_BYTES = 2
"""Of an element before it is cast."""


def products_s(
    c: GemmConstants, on: Machine, sizes: Sequence[Array], width: float, adds: ArrayLike, cast: Sequence[float] | Array = ()
) -> Array:
    """Seconds of products of `sizes` m, n, k and batch; those that `adds` says add to a gradient, all cast if there is a cast."""
    m, n, k, batch = sizes
    time = gemm_s(c, on, m, n, k, batch, width=width)
    time = time + np.where(adds, accumulation_s(c, on, m, n) * batch, 0.0)
    return time + cast_s(cast, on, m, k, width) if len(cast) else time


def cast_s(cast: Sequence[float] | Array, on: Machine, m: Array, k: Array, width: float) -> Array:
    """Seconds of an unfused cast of an operand of m x k from 16 bits."""
    took_s: Array = cast[0] / US_PER_S + cast[1] * m * k * (CAST_FROM_BYTES + width) / on.bytes_per_s
    return took_s


def passes_s(c: AttentionConstants, on: Machine, what: Heads, forward: Array, backward: Array) -> Array:
    """Seconds of the passes of attention that were measured, each where its column is 1."""
    both: Array = forward * attention_s(c, on, what) + backward * attention_s(c, on, what, backward=True)
    return both
