"""Time of the fused feed-forward network of a mixture of experts: two GEMMs grouped by expert, and the memory traffic.

Every token goes to `top_k` experts; the load of the experts is even. The weights of an expert without tokens are not read. Up and
gate projections are one GEMM.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ...kernels import Experts
from .estimator import Estimator
from .family import BURST, Fit, KernelFamily, TimedKernels, Transfer, priors
from .gemm import FAMILY as GEMM
from .gemm import GemmConstants, gemm_s
from .gpu_model import Array, Machine, columns

UP_PROJECTIONS = 2
"""Number of projections, gate and up, that are one GEMM."""
LOAD_MULTIPLE = 16
"""Number of channels of which an expert's channels must be a multiple for fast loads by Triton, the compiler of such kernels."""
ACTIVATION_PASSES = 3
"""Passes over the activations: gate and value are read, their product is written."""
PERMUTE_PASSES = 4
"""Passes over the hidden channels: tokens are gathered by expert and scattered back, each with a read and a write."""
Routing = tuple[ArrayLike, ArrayLike]
"""Number of experts, and number of experts per token (top_k)."""


def moe_s(
    constants: GemmConstants,
    machine: Machine,
    tokens: ArrayLike,
    hidden: ArrayLike,
    expert: ArrayLike,
    routing: Routing,
    *,
    element_bytes: float = 2,
    launches: ArrayLike = BURST,
) -> Array:
    """Seconds of the feed-forward network for `tokens` tokens of `hidden` channels and experts of `expert` channels."""
    tokens, hidden, expert, experts, top_k = columns(tokens, hidden, expert, *routing)
    pairs = tokens * top_k
    active = np.minimum(experts, pairs)
    rows = pairs / active
    how: dict[str, Any] = {"element_bytes": element_bytes, "launches": launches}
    up_s = gemm_s(constants, machine, rows, UP_PROJECTIONS * expert, hidden, active, **how)
    down_s = gemm_s(constants, machine, rows, hidden, expert, active, **how)
    moved = element_bytes * pairs * (ACTIVATION_PASSES * expert + PERMUTE_PASSES * hidden)
    odd = np.where(expert % LOAD_MULTIPLE == 0, 1.0, constants.odd)
    took_s: Array = odd * (up_s + down_s) + moved / (constants.memory * machine.bytes_per_s)
    return took_s


class ExpertsFamily(KernelFamily):
    """The family of fused feed-forward networks of experts."""

    name, plural = "moe", "experts"
    constants = GemmConstants
    far_sigma = 0.25
    held_out = ("n", "k")
    narrower = True

    def kernel_s(self, constants: GemmConstants, estimator: Estimator, machine: Machine, kernel: Experts) -> float:
        how: dict[str, Any] = {"element_bytes": kernel.element_bytes, "launches": estimator.options.launches}
        return float(moe_s(constants, machine, kernel.m, kernel.k, kernel.n, (kernel.batch, kernel.top_k), **how))

    def sizes(self, kernel: Experts) -> dict[str, float]:
        return {"m": kernel.m, "n": kernel.n, "k": kernel.k}

    def seconds(self, constants: GemmConstants, timed: TimedKernels, extra: Array) -> Array:
        m, k, n, experts, top_k = (timed.column(name) for name in ("m", "k", "n", "batch", "top_k"))
        how: dict[str, Any] = {"element_bytes": timed.element_bytes, "launches": timed.loop}
        return timed.per_row(moe_s(constants, timed.machine, m, k, n, (experts, top_k), **how))

    def free(self, timed: TimedKernels, start: GemmConstants) -> dict[str, float]:
        odd = start.odd > 1 and bool((timed.column("n") % LOAD_MULTIPLE).any())
        return priors(start, *(("odd",) if odd else ()))

    def transferred(self, fit: Fit, transfer: Transfer) -> Fit:
        return replace(GEMM.transferred(fit, transfer), cast=None)


FAMILY = ExpertsFamily()
