"""How memory-bound operators that are not plain pointwise ones stand to those that are, as somebody measured both.

A norm, a softmax, an optimizer step takes so many times as long as a pointwise kernel of the same bytes. That is told by rows
which are one operator of the framework, so large that they hardly wait for their launch: their median, and as its error what
most of them stay within, each size by the rows of all others. How far off smaller rows are by that ratio is told beside it: how
often they wait for a launch differs from operator to operator. Rows of several operators say nothing about one kernel; a run has
those operators one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from ...costs.machine import Array, Machine
from ...costs.rowwise import RowwiseConstants, ratio_s
from ...costs.shelf import RatioRows
from ...kernels import Kernel, Rowwise
from ...units import US_PER_S
from ..gpus.operator_names import Experts
from .kernel_words import kernels_of
from .table import Measured

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
    told: RatioRows
    smaller_rows: int = 0
    """Too small to tell it."""

    @property
    def rows(self) -> int:
        return self.told.rows


def pointwise_s(c: RowwiseConstants, on: Machine, moved: Array, cold: ArrayLike, times: ArrayLike = 1.0) -> Array:
    """Seconds of kernels that take so many times as long as pointwise ones of so many bytes, of which the last cache held nothing
    where it was `cold`."""
    nothing_held = replace(on, cache_bytes=0.0)
    return np.where(cold, ratio_s(c, nothing_held, moved, times), ratio_s(c, on, moved, times))


def found(
    rows: Sequence[Measured], kernels: Sequence[Rowwise], c: RowwiseConstants, on: Machine, cold: ArrayLike = False
) -> tuple[Ratio, ...]:
    """The ratios that rows tell, beside what the constants of pointwise kernels say; of operators with large rows,
    or that move nothing: they stand to a launch."""
    moved, seconds = np.array([float(kernel.traffic_bytes) for kernel in kernels]), np.array([row.seconds for row in rows])
    ops, cold = np.array([kernel.op for kernel in kernels]), np.broadcast_to(cold, moved.shape)
    large = (moved == 0) | (pointwise_s(c, on, moved, cold) >= LARGE * c.launch_us / US_PER_S)

    def ratio(op: str) -> Ratio:
        """The median, and how far off the rows of each size are by those of all others, or by all if there is one size only."""
        told, small = large & (ops == op), ~large & (ops == op)
        sizes, times = moved[told], seconds[told] / pointwise_s(c, on, moved[told], cold[told])
        all_times = float(np.median(times))
        others = [times[sizes != size] for size in sizes]
        unseen = np.array([float(np.median(some)) if len(some) else all_times for some in others])
        errors = np.abs(pointwise_s(c, on, sizes, cold[told], unseen) / seconds[told] - 1)
        smaller = np.abs(pointwise_s(c, on, moved[small], cold[small], all_times) / seconds[small] - 1)
        least = LEAST_ERROR if len(times) >= FEW else FEW_ERROR
        off = float(np.quantile(smaller, SURE)) if len(smaller) else 0.0
        known = RatioRows(float(sizes.min()), float(sizes.max()), len(times), off)
        return Ratio(op, all_times, max(least, float(np.quantile(errors, SURE))), known, len(smaller))

    return tuple(ratio(str(op)) for op in dict.fromkeys(ops.tolist()) if (large & (ops == op)).any())


def against(rows: Iterable[Measured], seconds: Callable[[Kernel | Experts, Measured], float]) -> dict[str, tuple[float, int]]:
    """Measured over predicted time, by operator and dtype: the median, and of how many rows. `seconds`
    is told of which row a kernel is: one of several operators is compared with those."""
    told: dict[str, list[float]] = {}
    for row in rows:
        kernels = kernels_of(row.probe)
        if kernels and row.may_be_fitted:
            words = filter(None, (row.probe.op, row.probe.variant, row.probe.dtype))
            told.setdefault(" ".join(words), []).append(row.seconds / sum(seconds(kernel, row) for kernel in kernels))
    return {name: (math.exp(float(np.median(np.log(values)))), len(values)) for name, values in told.items()}
