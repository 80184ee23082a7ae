"""Tables of measured kernels: one row per kernel, in the columns that `trainsim validate --kind kernels` reads.

`calibrate gpu` appends to such a table row by row, `calibrate trace` writes one, and `calibrate fit` reads one. The columns that
describe a kernel are explained in `kernel_words`. A row also holds the spread of the runs, clock and power of the GPU and the
reasons for a reduced clock, the number of PyTorch operators of the kernel, and the uncontended time of a kernel that was timed
beside others.
"""

from __future__ import annotations

import csv
import errno
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from .. import escape
from ..costs.kernels.rowwise import LOOKUPS, is_timed
from ..errors import Fault, UserError, did_you_mean, shown
from ..files import not_written, read_bounded
from ..hardware.gpu import PEAK_OF, Gpu
from ..kernels import Experts, Kernel, Rowwise
from ..units import GB, TFLOP, US_PER_S
from .csv_tables import MOST_BYTES, MOST_COUNT, Row, check_header, line_of, number, read, truth, with_gpu
from .kernel_words import EAGER, FORMAT_NAMES, SIZES, WIDTH, Probe, kernel_of, like, table_name

COLUMNS = (
    "gpu", "op", "dtype", *SIZES, "causal", "variant", "time_us", "source", "role", "p10_us", "p90_us", "runs", "clock_mhz",
    "power_w", "throttle", "operators", "alone_us", "cache",
)  # fmt: skip
NEEDED = ("gpu", "op", "dtype", "time_us")
FIT = "fit"
"""The role of rows that may be fitted. Rows without a role may be fitted too."""
TEXTS, NUMBERS, COUNTS = ("gpu", "source", "role", "throttle"), ("clock_mhz", "power_w"), ("runs", "operators")
TIMES = {"time_us": "seconds", "p10_us": "low_s", "p90_us": "high_s", "alone_us": "alone_s"}
"""Columns beside those of the kernel, by the type of their cells; for times also the fields of `Measured`."""
CACHES = {"cold": True, "warm": False, "": False}
"""Values of the column `cache`: true if the last-level cache held no operands of the kernel."""
DIGITS = 7


@dataclass(frozen=True, slots=True)
class Measured:
    """One row: a kernel on a GPU, the median time of its runs, and their spread (0 where the spread is unknown)."""

    gpu: str
    probe: Probe
    seconds: float
    low_s: float = 0.0
    """Tenth percentile of the run times, in seconds."""
    high_s: float = 0.0
    """Ninetieth percentile of the run times, in seconds."""
    runs: int = 0
    source: str = ""
    role: str = FIT
    clock_mhz: float | None = None
    power_w: float | None = None
    throttle: str = ""
    operators: int | None = None
    """Number of operators of a framework in the row; None if they were not counted."""
    alone_s: float | None = None
    """Uncontended time, in seconds, of a kernel that was timed beside others."""
    cold: bool = False
    """Whether the last-level cache held no operands of the kernel."""
    launches: int = field(default=0, compare=False)
    """Launches in a row of the loop that timed the row; 0 where the table does not state them."""
    line: int = field(default=0, compare=False)
    """Line of the row in its file; 0 for a row without a file."""

    @property
    def may_be_fitted(self) -> bool:
        return self.role in ("", FIT)

    @property
    def is_eager(self) -> bool:
        """Whether the row consists of several operators, by its variant or by their count."""
        return EAGER in self.probe.variant.lower().split() or (self.operators or 1) > 1

    def cells(self) -> list[str]:
        """The row as text, in the order of `COLUMNS`."""
        probe = self.probe
        cells = {name: str(getattr(probe, name) or "") for name in ("op", "dtype", *SIZES, "variant")}
        cells |= {name: str(getattr(self, name) or "") for name in (*TEXTS, *COUNTS)}
        cells |= {name: _written(getattr(self, name)) for name in NUMBERS}
        cells |= {column: _written((getattr(self, name) or 0.0) * US_PER_S or None) for column, name in TIMES.items()}
        cells |= {"causal": {None: "", True: "1", False: "0"}[probe.causal], "cache": "cold" * self.cold}
        return [cells[name] for name in COLUMNS]


def _written(value: float | None) -> str:
    return "" if value is None else f"{value:.{DIGITS}g}"


def line(cells: Iterable[str]) -> str:
    """Cells as a line of CSV, with cells that a spreadsheet would evaluate escaped as text."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(map(escape.csv_cell, cells))
    return out.getvalue()


def text(rows: Iterable[Measured]) -> str:
    """A table as CSV text."""
    return line(COLUMNS) + "".join(line(row.cells()) for row in rows)


def append(path: Path, row: Measured) -> None:
    """Appends a row in one write, so that a killed program loses at most one row."""
    added = (line(row.cells()) if path.exists() and path.stat().st_size else text([row])).encode("utf-8")
    try:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            before = os.fstat(handle).st_size
            if os.write(handle, added) < len(added):
                os.ftruncate(handle, before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(handle)
    except OSError as error:
        raise not_written(path, error, hint="the rows before are kept") from None


def content(path: Path) -> bytes:
    """The present content of a table's file; empty if there is no file."""
    return read_bounded(path, MOST_BYTES, "a table of measurements") if path.exists() else b""


def repair_last_line(path: Path) -> None:
    """Removes an incomplete last line, which a killed program left."""
    held = content(path)
    whole = held.rfind(b"\n") + 1
    if whole < len(held):
        os.truncate(path, whole)


def rows_of(path: Path, gpu: str = "") -> list[Measured]:
    """The rows of a table, plain or gzipped, all of the GPU `gpu` where the table has no such column. Raises `UserError` with
    file:line for every invalid cell."""
    rows = with_gpu(read(path), gpu)
    check_header(NEEDED, rows, str(path))
    faults = [Fault(message, hint, f"{path}:{line_of(row)}") for row in rows for message, hint in _wrong(row)]
    if faults:
        raise UserError(faults=faults)
    return [_measured(row, line_of(row)) for row in rows]


def is_cold(row: Row) -> bool:
    """Whether the cache was cold, by the column `cache` of a row."""
    return CACHES.get(_cell(row, "cache").lower(), False)


def launches_of(row: Row) -> int:
    """Launches in a row of the loop that timed a row, by its column `launches`; 0 where the column is empty or missing."""
    return _count(row, "launches")


def probe_of(row: Row) -> Probe:
    """The kernel that a row names. Raises `UserError` for an invalid cell."""
    dtype = table_name(row["dtype"])
    if dtype not in WIDTH:
        known = FORMAT_NAMES.get(dtype)
        near = f", here it is {known}" if known in WIDTH else like(dtype, WIDTH)
        raise UserError(f"dtype: {shown(row['dtype'])} is not known{near}")
    for message, hint in _wrong_kernel(row):
        raise UserError(message, hint=hint)
    return _probe(row)


def _wrong(row: Row) -> Iterator[tuple[str, str]]:
    """Faults in the cells of a row, with hints on how to write them."""
    for name in ("op", "dtype"):
        if not row[name].strip():
            yield f"{name} is empty", "such as gemm" if name == "op" else "such as bf16"
    dtype = table_name(row["dtype"])
    if dtype and dtype not in WIDTH and _cell(row, "role") in ("", FIT):
        yield f"dtype: {shown(row['dtype'])} is not known", did_you_mean(FORMAT_NAMES.get(dtype, dtype), WIDTH)
    if not number(row["time_us"]) > 0:
        yield f"time_us: {shown(row['time_us'])} is not a positive number", "microseconds, such as 57.4"
    yield from _wrong_counts(row, *COUNTS)
    for name in ("p10_us", "p90_us", *NUMBERS, "alone_us"):
        if (cell := _cell(row, name)) and not number(cell) >= 0:
            yield f"{name}: {shown(cell)} is not a number", "a number, or nothing"
    yield from _wrong_kernel(row)


def _wrong_kernel(row: Row) -> Iterator[tuple[str, str]]:
    """Faults in the cells that describe the kernel and its cache."""
    yield from _wrong_counts(row, *SIZES, "launches")
    if (causal := _cell(row, "causal")) and truth(causal) is None:
        yield f"causal: {shown(causal)} is neither 0 nor 1", "1 where only earlier keys are seen"
    if _cell(row, "cache").lower() not in CACHES:
        yield f"cache: {shown(row['cache'])} is neither cold nor warm", "cold where nothing of what is read was in the cache"


def _wrong_counts(row: Row, *names: str) -> Iterator[tuple[str, str]]:
    for name in names:
        cell = _cell(row, name)
        if cell and not (0 <= number(cell) <= MOST_COUNT and number(cell) == int(number(cell))):
            yield f"{name}: {shown(cell)} is not a count", "a whole number, or nothing"


def _probe(row: Row) -> Probe:
    sizes = {name: _count(row, name) for name in SIZES}
    causal, variant = truth(_cell(row, "causal")), _cell(row, "variant")
    return Probe(table_name(row["op"]), table_name(row["dtype"]), **sizes, causal=causal, variant=variant)


def _measured(row: Row, line: int) -> Measured:
    held: dict[str, Any] = {name: _cell(row, name) for name in TEXTS}
    held |= {name: float(cell) if (cell := _cell(row, name)) else None for name in NUMBERS}
    held |= {name: number(_cell(row, column) or "0") / US_PER_S for column, name in TIMES.items()}
    runs, operators = (_count(row, name) for name in COUNTS)
    held |= {"runs": runs, "operators": operators or None, "alone_s": held["alone_s"] or None}
    return Measured(probe=_probe(row), cold=is_cold(row), launches=launches_of(row), line=line, **held)


def _cell(row: Row, name: str) -> str:
    return row.get(name, "").strip()


def _count(row: Row, name: str) -> int:
    return int(number(_cell(row, name) or "0"))


def spread(times: Sequence[float]) -> tuple[float, float, float]:
    """The median and the tenth and ninetieth percentiles of some times."""
    if len(times) < 2:
        return times[0], times[0], times[0]
    tenths = quantiles(times, n=10, method="inclusive")
    return median(times), tenths[0], tenths[-1]


# Impossible rows ------------------------------------------------------------------------------------------------------------

ABOVE = 1.05
"""Largest ratio of a row's speed to the peak: clocks may exceed the clock at which the peak is stated."""
IN_AND_OUT = 2
"""Number of cache sizes saved in memory traffic: input may be cached before the kernel, and output may stay in the cache."""
UNKNOWN_CACHE_BYTES = 2**27
"""Size in bytes assumed for the last-level cache of a GPU that does not state it: more than most GPUs have."""
MOST_SHARE = 0.05
"""Largest fraction of impossible rows in a table that is accepted."""
MOST_NAMED = 8
SLOW, LAUNCH_S = 20, 2.0**-15
"""If every row takes this many times the time at the peaks plus a slow launch (about 30 us), the times are in another unit."""
IMPOSSIBLE_HINT = "is time_us in microseconds, are m, n, k in elements, and is it the right GPU and dtype?"


@dataclass(frozen=True, slots=True)
class ImpossibleRow:
    """A row that cannot be true, with the reason."""

    row: Measured
    why: str


def split_possible(rows: Sequence[Measured], gpu: Gpu, path: Path) -> tuple[list[Measured], list[ImpossibleRow]]:
    """The possible and impossible rows of a file: kernels faster than the peak or the memory of their GPU allows are impossible.
    Raises `UserError` if many rows are impossible, or if all rows are far slower than both limits, since the columns are then not
    in the expected units.

    Both tests hold for every kernel and need no model; a fit alone would follow any unit of a column. Clocks may run slightly
    above the clock at which the peak is stated, and data in the last-level cache need not come from memory, once in and once out.
    """
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
        faults = [Fault(f"{one.row.probe}: {one.why}", IMPOSSIBLE_HINT, f"{path}:{one.row.line}") for one in wrong[:MOST_NAMED]]
        more = f"{len(wrong)} of {len(rows)} rows are faster than {gpu.name} can be"
        raise UserError(faults=[*faults, Fault(more, IMPOSSIBLE_HINT, str(path))])
    if slowdowns and min(slowdowns) > SLOW:
        many = f"every row is at least {min(slowdowns):,.0f} times slower than the peaks of {gpu.name} and a launch"
        raise UserError(many, where=str(path), hint=IMPOSSIBLE_HINT)
    return possible, wrong


def _why_impossible(row: Measured, kernel: Kernel | Experts, peak: float, gpu: Gpu) -> str:
    """The reason why a row is impossible; empty for a possible row. `peak`, in FLOP/s, is 0 where no peak is known or binding."""
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
