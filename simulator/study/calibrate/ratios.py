"""How memory-bound operators that are not plain pointwise ones stand to those that are, as somebody measured both.

A norm, a softmax, an optimizer step takes so many times as long as a pointwise kernel of the same bytes. That is told by rows
which are one operator of the framework, so large that they hardly wait for their launch: their median, and as its error what
most of them stay within, each size by the rows of all others. Rows of several operators say nothing about one kernel; a run has
those operators one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from ...costs.machine import Array, Machine
from ...costs.rowwise import RowwiseConstants, rowwise_s
from ...kernels import Kernel, Rowwise
from ...units import US_PER_S
from .table import Measured
from .words import Experts, kernels_of

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
    rows: int


def pointwise_s(c: RowwiseConstants, on: Machine, moved: Array, cold: ArrayLike) -> Array:
    """Seconds of pointwise kernels of so many bytes, of which the last cache held nothing where it was `cold`."""
    return np.where(cold, rowwise_s(c, replace(on, cache_bytes=0.0), moved), rowwise_s(c, on, moved))


def found(
    rows: Sequence[Measured], kernels: Sequence[Rowwise], c: RowwiseConstants, on: Machine, cold: ArrayLike = False
) -> tuple[Ratio, ...]:
    """The ratios that rows tell, beside what the constants of pointwise kernels say; of operators with large rows,
    or that move nothing: they stand to a launch."""
    moved = np.array([float(kernel.traffic_bytes) for kernel in kernels])
    plain_s = pointwise_s(c, on, moved, cold)
    large = (moved == 0) | (plain_s >= LARGE * c.launch_us / US_PER_S)
    times = np.array([row.seconds for row in rows]) / plain_s
    ops = np.array([kernel.op for kernel in kernels])
    chosen = [(str(op), large & (ops == op)) for op in dict.fromkeys(ops.tolist())]
    return tuple(_ratio(op, times[rows_of], moved[rows_of]) for op, rows_of in chosen if rows_of.any())


def _ratio(op: str, times: Array, sizes: Array) -> Ratio:
    """The median, and how far from it the rows of each size are by those of all others, or by all if there is one size only."""
    others = [times[sizes != size] for size in sizes]
    unseen = np.array([float(np.median(some)) if len(some) else float(np.median(times)) for some in others])
    least = LEAST_ERROR if len(times) >= FEW else FEW_ERROR
    error = max(least, float(np.quantile(np.abs(unseen / times - 1), SURE)))
    return Ratio(op, float(np.median(times)), error, len(times))


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
