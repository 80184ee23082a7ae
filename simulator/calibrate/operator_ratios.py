"""Measured ratios of other memory-bound operators to plain pointwise ones.

A norm, a softmax, an optimizer step takes so many times as long as a pointwise kernel of the same bytes. It is fitted to rows
which are one operator of the framework, so large that they hardly wait for their launch: their median, and as its error what
most of them stay within, each size by the rows of all others. How far off smaller rows are by that ratio is reported beside it:
how often they wait for a launch differs from operator to operator. Rows of several operators say nothing about one kernel; a run
has those operators one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..costs.kernels.family import RatioRows
from ..costs.kernels.gpu_model import Array, Machine
from ..costs.kernels.rowwise import RowwiseConstants, pointwise_s
from ..kernels import Rowwise
from ..units import US_PER_S

FEW, FEW_ERROR = 3, 0.15
"""Fewer rows than that are not sure to more than this."""
LARGE = 5.0
"""A pointwise kernel of the bytes of a large row takes so many times as long as its launch."""
SURE = 0.68
"""The share of rows whose error stays below that of a ratio."""
LEAST_ERROR = 0.05
"""As of every fit to what is bound by memory."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as long as a pointwise kernel an operator takes."""

    op: str
    times: float
    error: float
    """Relative error that 68% of the rows stay below, each size unseen."""
    large: RatioRows
    """The rows that it was fitted to."""
    smaller_rows: int = 0
    """Too small to be fitted to."""

    @property
    def rows(self) -> int:
        return self.large.rows


def ratios_of(
    seconds: Array, kernels: Sequence[Rowwise], c: RowwiseConstants, on: Machine, cold: ArrayLike = False
) -> tuple[Ratio, ...]:
    """The ratios of measured times to those of pointwise kernels by some constants; of operators with large rows, or that move
    nothing: they stand to a launch."""
    moved = np.array([float(kernel.traffic_bytes) for kernel in kernels])
    ops, cold = np.array([kernel.op for kernel in kernels]), np.broadcast_to(cold, moved.shape)
    large = (moved == 0) | (pointwise_s(c, on, moved, cold) >= LARGE * c.launch_us / US_PER_S)

    def ratio(op: str) -> Ratio:
        """The median, and how far off the rows of each size are by those of all others, or by all if there is one size only."""
        own, small = large & (ops == op), ~large & (ops == op)
        sizes, times = moved[own], seconds[own] / pointwise_s(c, on, moved[own], cold[own])
        all_times = float(np.median(times))
        others = [times[sizes != size] for size in sizes]
        unseen = np.array([float(np.median(some)) if len(some) else all_times for some in others])
        errors = np.abs(pointwise_s(c, on, sizes, cold[own], unseen) / seconds[own] - 1)
        smaller = np.abs(pointwise_s(c, on, moved[small], cold[small], all_times) / seconds[small] - 1)
        least = LEAST_ERROR if len(times) >= FEW else FEW_ERROR
        off = float(np.quantile(smaller, SURE)) if len(smaller) else 0.0
        known = RatioRows((float(sizes.min()), float(sizes.max())), len(times), off)
        return Ratio(op, all_times, max(least, float(np.quantile(errors, SURE))), known, len(smaller))

    return tuple(ratio(str(op)) for op in dict.fromkeys(ops.tolist()) if (large & (ops == op)).any())
