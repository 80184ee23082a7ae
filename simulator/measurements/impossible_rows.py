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
from .kernel_words import WIDTH, kernel_of

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


def split_possible(rows: Sequence[Measured], gpu: Gpu, path: Path) -> tuple[list[Measured], list[ImpossibleRow]]:
    """The possible rows of a file and the impossible ones. Raises if the latter are many."""
    possible, wrong, slowdowns = list[Measured](), list[ImpossibleRow](), list[float]()
    for row in rows:
        kernel, why = kernel_of(row.probe) if row.may_be_fitted else None, ""
        if kernel is not None:
            of_dtype = gpu.peak_flop_per_s.get(PEAK_OF.get(row.probe.dtype, row.probe.dtype), 0.0)
            peak = 0.0 if isinstance(kernel, Rowwise) else of_dtype
            bound_s = max(kernel.flop / peak if peak else 0.0, kernel.traffic_bytes / gpu.memory_bytes_per_s)
            slowdowns.append(row.seconds / (bound_s + LAUNCH_S))
            why = _why_impossible(row, kernel, peak, gpu)
        if why:
            wrong.append(ImpossibleRow(row, why))
        else:
            possible.append(row)
    if len(wrong) > MOST_SHARE * len(rows):
        faults = [Fault(f"{one.row.probe}: {one.why}", HINT, f"{path}:{one.row.line}") for one in wrong[:MOST_NAMED]]
        more = f"{len(wrong)} of {len(rows)} rows are faster than {gpu.name} can be"
        raise UserError(faults=[*faults, Fault(more, HINT, str(path))])
    if slowdowns and min(slowdowns) > SLOW:
        many = f"every row is at least {min(slowdowns):,.0f} times slower than the peaks of {gpu.name} and a launch"
        raise UserError(many, where=str(path), hint=HINT)
    return possible, wrong


def _why_impossible(row: Measured, kernel: Kernel | Experts, peak: float, gpu: Gpu) -> str:
    """The reason why a row cannot be true; empty if it can. `peak`, in FLOP/s, is 0 where none is known or binds."""
    reached = kernel.flop / row.seconds
    if peak and reached > ABOVE * peak:
        return f"{reached / TFLOP:,.4g} TFLOP/s, and the peak of {gpu.name} is {peak / TFLOP:,.4g}"
    if not isinstance(kernel, Rowwise):
        least_bytes = kernel.traffic_bytes * min(1.0, WIDTH[row.probe.dtype])
    elif kernel.op in LOOKUPS:
        least_bytes = kernel.traffic_bytes / 2  # the result alone: rows of the table may come again
    else:
        least_bytes = kernel.traffic_bytes if is_timed(kernel.op) else 0.0
    rate = (least_bytes - IN_AND_OUT * (gpu.cache_bytes or UNKNOWN_CACHE_BYTES)) / row.seconds
    if rate > ABOVE * gpu.memory_bytes_per_s:
        return f"{rate / GB:,.4g} GB/s, and the memory of {gpu.name} has {gpu.memory_bytes_per_s / GB:,.4g}"
    return ""
