"""The feed-forward network of a mixture of experts, as libraries fuse it: two products grouped by expert, and what moves.

Tokens go to `top_k` experts each, evenly. An expert that gets no token is not read. Up and gate projections are one product.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from .gemm import GemmConstants, gemm_s
from .machine import Array, Machine, columns

GATES = 2
LOADED = 16
"""Of how many channels the compiler of such kernels, Triton, would know a multiple to load them fast."""
ACTIVATION_PASSES = 3
"""Gate and value read, their product written."""
PERMUTE_PASSES = 4
"""Tokens gathered by expert, and back: each a read and a write."""


def moe_s(
    c: GemmConstants,
    on: Machine,
    tokens: ArrayLike,
    hidden: ArrayLike,
    expert: ArrayLike,
    routing: tuple[ArrayLike, ArrayLike],
    *,
    width: float = 2,
) -> Array:
    """Seconds for `tokens` of `hidden` channels through experts of `expert` channels; `routing` is (experts, top_k)."""
    tokens, hidden, expert, experts, top_k = columns(tokens, hidden, expert, *routing)
    pairs = tokens * top_k
    active = np.minimum(experts, pairs)
    rows = pairs / active
    up_s = gemm_s(c, on, rows, GATES * expert, hidden, active, width=width)
    down_s = gemm_s(c, on, rows, hidden, expert, active, width=width)
    moved = width * pairs * (ACTIVATION_PASSES * expert + PERMUTE_PASSES * hidden)
    odd = np.where(expert % LOADED == 0, 1.0, c.odd)
    took_s: Array = odd * (up_s + down_s) + moved / (c.memory * on.bytes_per_s)
    return took_s
