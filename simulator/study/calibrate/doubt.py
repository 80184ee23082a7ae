"""Rows that cannot be: kernels that are faster than the peak of their GPU, or than its memory; tables far slower than either.

Both hold for every kernel and need no model; constants alone would follow whatever unit a column is in. A clock may stand a
little above the one that a peak is stated at, and what the last cache holds need not come from memory, once in and once out. A
few such rows are left out, each named; many mean that the table is not what it says it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...costs.rowwise import LOOKUPS, is_timed
from ...errors import Fault, UserError
from ...hardware.gpu import PEAK_OF, Gpu
from ...kernels import Experts, Kernel, Rowwise
from ...units import GB, TFLOP
from ..gpus.kernel import WIDTH
from .table import Measured
from .words import kernel_of

ABOVE = 1.05
"""How far above a peak a row may lie."""
IN_AND_OUT = 2
"""What was read before may be in the cache, and what is written may stay there."""
UNKNOWN_CACHE_BYTES = 2**27
"""More than that of most GPUs that do not tell."""
MOST_SHARE = 0.05
"""More of the rows than that are many."""
MOST_NAMED = 8
SLOW, LAUNCH_S = 20, 2.0**-15
"""A table whose every row takes so many times what the peaks and a slow launch (about 30 us) do is in another unit."""
HINT = "is time_us in microseconds, are m, n, k in elements, and is it the right GPU and dtype?"


@dataclass(frozen=True, slots=True)
class Impossible:
    """A row that cannot be, and why not."""

    row: Measured
    why: str

    def fault(self, path: Path) -> Fault:
        return Fault(f"{self.row.probe}: {self.why}", HINT, f"{path}:{self.row.line}")


def believable(rows: Sequence[Measured], gpu: Gpu, path: Path) -> tuple[list[Measured], list[Impossible]]:
    """The rows of a file that can be, and those that cannot; refused if those are many."""
    reasons = [(row, _why(row, gpu)) for row in rows]
    wrong = [Impossible(row, why) for row, why in reasons if why]
    if len(wrong) > MOST_SHARE * len(rows):
        faults = [one.fault(path) for one in wrong[:MOST_NAMED]]
        more = f"{len(wrong)} of {len(rows)} rows are faster than {gpu.name} can be"
        raise UserError(faults=[*faults, Fault(more, HINT, str(path))])
    _not_slow(rows, gpu, path)
    return [row for row, why in reasons if not why], wrong


def _not_slow(rows: Sequence[Measured], gpu: Gpu, path: Path) -> None:
    """Refuses rows all of which are far slower than what any GPU does."""
    kernels = [(row, kernel) for row in rows if row.may_be_fitted and (kernel := kernel_of(row.probe)) is not None]
    times = [row.seconds / (_bound_s(row, kernel, gpu) + LAUNCH_S) for row, kernel in kernels]
    if times and min(times) > SLOW:
        many = f"every row is at least {min(times):,.0f} times slower than the peaks of {gpu.name} and a launch"
        raise UserError(many, where=str(path), hint=HINT)


def _bound_s(row: Measured, kernel: Kernel | Experts, gpu: Gpu) -> float:
    """What a kernel takes at the peaks."""
    peak = gpu.peak_flop_per_s.get(PEAK_OF.get(row.probe.dtype, row.probe.dtype))
    computed_s = kernel.flop / peak if peak and not isinstance(kernel, Rowwise) else 0.0
    return max(computed_s, kernel.traffic_bytes / gpu.memory_bytes_per_s)


def _why(row: Measured, gpu: Gpu) -> str:
    """Why a row cannot be; empty if it can, or takes no part in a fit."""
    kernel = kernel_of(row.probe) if row.may_be_fitted else None
    if kernel is None:
        return ""
    peak = gpu.peak_flop_per_s.get(PEAK_OF.get(row.probe.dtype, row.probe.dtype))
    reached = kernel.flop / row.seconds
    if peak and not isinstance(kernel, Rowwise) and reached > ABOVE * peak:
        return f"{reached / TFLOP:,.4g} TFLOP/s, and the peak of {gpu.name} is {peak / TFLOP:,.4g}"
    rate = (_least_bytes(kernel, row.probe.dtype) - IN_AND_OUT * (gpu.cache_bytes or UNKNOWN_CACHE_BYTES)) / row.seconds
    if rate > ABOVE * gpu.memory_bytes_per_s:
        return f"{rate / GB:,.4g} GB/s, and the memory of {gpu.name} has {gpu.memory_bytes_per_s / GB:,.4g}"
    return ""


def _least_bytes(kernel: Kernel | Experts, dtype: str) -> float:
    """What a kernel moves at least; of a look-up the result alone, for rows of the table come again."""
    if not isinstance(kernel, Rowwise):
        return kernel.traffic_bytes * min(1.0, WIDTH[dtype])
    if kernel.op in LOOKUPS:
        return kernel.traffic_bytes / 2
    return float(kernel.traffic_bytes) if is_timed(kernel.op) else 0.0
