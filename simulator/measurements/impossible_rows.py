"""Impossible rows: kernels faster than the peak or the memory of their GPU allows, and tables far slower than both.

Both tests hold for every kernel and need no model; a fit alone would follow whatever unit a column is in. Clocks may run slightly
above the one that a peak is stated at, and data in the last cache need not come from memory, once in and once out. A few such
rows are left out and named; many mean that the table is not what it says it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..costs.kernels.rowwise import LOOKUPS, is_timed
from ..errors import Fault, UserError
from ..hardware.gpu import PEAK_OF, Gpu
from ..kernels import Experts, Kernel, Rowwise
from ..units import GB, TFLOP
from .kernel_table import Measured
from .kernel_words import kernel_of
from .operator_names import WIDTH

ABOVE = 1.05
"""Ratio to a peak that a row may reach."""
IN_AND_OUT = 2
"""Times the cache saves its size: input may be in it already, and output may stay there."""
UNKNOWN_CACHE_BYTES = 2**27
"""Size assumed for the last cache of a GPU that does not state it: more than most have."""
MOST_SHARE = 0.05
"""Share of impossible rows above which a table is refused."""
MOST_NAMED = 8
SLOW, LAUNCH_S = 20, 2.0**-15
"""A table whose every row takes this many times the peaks plus a slow launch (about 30 us) is in another unit."""
HINT = "is time_us in microseconds, are m, n, k in elements, and is it the right GPU and dtype?"


@dataclass(frozen=True, slots=True)
class ImpossibleRow:
    """A row that cannot be true, and the reason."""

    row: Measured
    why: str

    def fault(self, path: Path) -> Fault:
        return Fault(f"{self.row.probe}: {self.why}", HINT, f"{path}:{self.row.line}")


def split_possible(rows: Sequence[Measured], gpu: Gpu, path: Path) -> tuple[list[Measured], list[ImpossibleRow]]:
    """The possible rows of a file and the impossible ones. Raises if the latter are many."""
    reasons = [(row, _why_impossible(row, gpu)) for row in rows]
    wrong = [ImpossibleRow(row, why) for row, why in reasons if why]
    if len(wrong) > MOST_SHARE * len(rows):
        faults = [one.fault(path) for one in wrong[:MOST_NAMED]]
        more = f"{len(wrong)} of {len(rows)} rows are faster than {gpu.name} can be"
        raise UserError(faults=[*faults, Fault(more, HINT, str(path))])
    kernels = [(row, kernel) for row in rows if row.may_be_fitted and (kernel := kernel_of(row.probe)) is not None]
    times = [row.seconds / (_bound_s(row, kernel, gpu) + LAUNCH_S) for row, kernel in kernels]
    if times and min(times) > SLOW:
        many = f"every row is at least {min(times):,.0f} times slower than the peaks of {gpu.name} and a launch"
        raise UserError(many, where=str(path), hint=HINT)
    return [row for row, why in reasons if not why], wrong


def _bound_s(row: Measured, kernel: Kernel | Experts, gpu: Gpu) -> float:
    """Seconds that a kernel takes at the peaks of compute and memory."""
    peak = _peak(row, kernel, gpu)
    return max(kernel.flop / peak if peak else 0.0, kernel.traffic_bytes / gpu.memory_bytes_per_s)


def _peak(row: Measured, kernel: Kernel | Experts, gpu: Gpu) -> float | None:
    """The peak that binds a kernel; None for memory-bound operators and unknown formats."""
    known = None if isinstance(kernel, Rowwise) else gpu.peak_flop_per_s.get(PEAK_OF.get(row.probe.dtype, row.probe.dtype))
    return known or None


def _why_impossible(row: Measured, gpu: Gpu) -> str:
    """The reason why a row cannot be true; empty if it can, or is not fitted."""
    kernel = kernel_of(row.probe) if row.may_be_fitted else None
    if kernel is None:
        return ""
    peak, reached = _peak(row, kernel, gpu), kernel.flop / row.seconds
    if peak and reached > ABOVE * peak:
        return f"{reached / TFLOP:,.4g} TFLOP/s, and the peak of {gpu.name} is {peak / TFLOP:,.4g}"
    rate = (_least_bytes(kernel, row.probe.dtype) - IN_AND_OUT * (gpu.cache_bytes or UNKNOWN_CACHE_BYTES)) / row.seconds
    if rate > ABOVE * gpu.memory_bytes_per_s:
        return f"{rate / GB:,.4g} GB/s, and the memory of {gpu.name} has {gpu.memory_bytes_per_s / GB:,.4g}"
    return ""


def _least_bytes(kernel: Kernel | Experts, dtype: str) -> float:
    """Bytes that a kernel moves at least: of a look-up the result alone, since rows of the table may come again."""
    if not isinstance(kernel, Rowwise):
        return kernel.traffic_bytes * min(1.0, WIDTH[dtype])
    if kernel.op in LOOKUPS:
        return kernel.traffic_bytes / 2
    return float(kernel.traffic_bytes) if is_timed(kernel.op) else 0.0
