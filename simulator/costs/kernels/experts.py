"""Time of the fused feed-forward network of a mixture of experts: two GEMMs grouped by expert, and the memory traffic.

Every token goes to `top_k` experts; the load of the experts is even. The weights of an expert without tokens are not read. Up and
gate projections are one GEMM.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from ...kernels import Experts
from .estimator import Estimator
from .family import Fit, KernelFamily, TimedKernels, Transfer, priors
from .gemm import FAMILY as GEMM
from .gemm import GemmConstants, gemm_s
from .gpu_model import Array, Machine, columns

GATES = 2
LOADED = 16
"""Number of channels of which an expert's channels must be a multiple for fast loads by Triton, the compiler of such kernels."""
ACTIVATION_PASSES = 3
"""Passes over the activations: gate and value are read, their product is written."""
PERMUTE_PASSES = 4
"""Passes over the hidden channels: tokens are gathered by expert and scattered back, each with a read and a write."""
Routing = tuple[ArrayLike, ArrayLike]
"""Number of experts, and number of experts per token (top_k)."""


def moe_s(
    c: GemmConstants, on: Machine, tokens: ArrayLike, hidden: ArrayLike, expert: ArrayLike, routing: Routing, *, width: float = 2
) -> Array:
    """Seconds of the feed-forward network for `tokens` tokens of `hidden` channels and experts of `expert` channels."""
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


class ExpertsFamily(KernelFamily):
    """The family of fused feed-forward networks of experts."""

    name, plural = "moe", "experts"
    constants = GemmConstants
    far_sigma = 0.3
    held_out = ("n", "k")
    narrower = True

    def kernel_s(self, c: GemmConstants, by: Estimator, on: Machine, kernel: Experts) -> float:
        return float(moe_s(c, on, kernel.m, kernel.k, kernel.n, (kernel.batch, kernel.top_k), width=kernel.element_bytes))

    def sizes(self, kernel: Experts) -> dict[str, float]:
        return {"m": kernel.m, "n": kernel.n, "k": kernel.k}

    def seconds(self, c: GemmConstants, timed: TimedKernels, extra: Array) -> Array:
        m, k, n, experts, top_k = (timed.column(name) for name in ("m", "k", "n", "batch", "top_k"))
        return timed.per_row(moe_s(c, timed.on, m, k, n, (experts, top_k), width=timed.width_bytes))

    def free(self, timed: TimedKernels, start: GemmConstants) -> dict[str, float]:
        odd = start.odd > 1 and bool((timed.column("n") % LOADED).any())
        return priors(start, *(("odd",) if odd else ()))

    def transferred(self, fit: Fit, transfer: Transfer) -> Fit:
        return replace(GEMM.transferred(fit, transfer), cast=None)


FAMILY = ExpertsFamily()
