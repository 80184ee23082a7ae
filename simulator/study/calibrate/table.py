"""Tables of measured kernels: one row a kernel, in the columns that `trainsim validate --kind kernels` reads.

The harness appends to such a table row by row, a trace is turned into one, and a profile is fitted to one. What the words of
a row mean stands in study/validate/kernels.py; beyond those there are the spread of the runs, what the GPU's clock and power
were and what held the clock down, how many operators of PyTorch the row is made of, and what a kernel beside others takes alone.
"""

from __future__ import annotations

import csv
import errno
import io
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ... import escape
from ...errors import Fault, UserError, did_you_mean, shown
from ...files import not_written, read_bounded
from ...units import US_PER_S
from ..gpus.kernel import WIDTH
from ..tables import MOST_BYTES, MOST_COUNT, check_header, number, read, truth

SIZES = ("m", "n", "k", "batch", "seq", "heads", "kv_heads", "head_dim")
WORDS = ("gpu", "op", "dtype")
SPREAD = ("p10_us", "p90_us", "runs", "clock_mhz", "power_w")
SEEN = ("throttle", "operators", "alone_us", "cache")
COLUMNS = (*WORDS, *SIZES, "causal", "variant", "time_us", "source", "role", *SPREAD, *SEEN)
BEFORE_CACHE = COLUMNS[:-1]
"""As tables of `calibrate gpu` once were."""
NEEDED = (*WORDS, "time_us")
FIT = "fit"
"""The role of rows that may be fitted; a row without a role may be as well."""
COLD = "trainsim calibrate gpu"
"""How the source begins of rows that were measured with a cold cache, in tables that have no column to say so."""
CACHES = {"cold": True, "warm": False, "": False}
"""What the column `cache` says: whether nothing of what a kernel reads was in the last cache."""
EAGER = "eager"
"""In the variant of what frameworks write out of several operators where a library may have one kernel."""
DIGITS = 7
DTYPE_WORDS = {"bfloat16": "bf16", "half": "fp16", "float16": "fp16", "float": "fp32", "float32": "fp32", "e4m3": "fp8"}
"""What others call a dtype, for a hint."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A kernel to measure, in the words of a table; a size of 0 is one that it does not have."""

    op: str
    dtype: str
    m: int = 0
    n: int = 0
    k: int = 0
    batch: int = 0
    seq: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    causal: bool | None = None
    variant: str = ""

    def __str__(self) -> str:
        sizes = [f"{name}={getattr(self, name)}" for name in SIZES if getattr(self, name)]
        causal = [] if self.causal is None else ["causal" if self.causal else "full"]
        return " ".join(filter(None, [self.op, self.variant, self.dtype, *sizes, *causal]))


@dataclass(frozen=True, slots=True)
class Measured:
    """One row: a kernel on a GPU, the median time of its runs, and how they spread (0 where nothing is said)."""

    gpu: str
    probe: Probe
    seconds: float
    low_s: float = 0.0
    """A tenth of the runs stayed below."""
    high_s: float = 0.0
    """A tenth of the runs stayed above."""
    runs: int = 0
    source: str = ""
    role: str = FIT
    clock_mhz: float | None = None
    power_w: float | None = None
    throttle: str = ""
    operators: int | None = None
    """Of a framework, that the row is made of; None if nothing is said."""
    alone_s: float | None = None
    """Of a kernel that ran beside others, without them."""
    cold: bool = False
    """Whether the last cache held nothing of what the kernel reads."""
    line: int = field(default=0, compare=False)
    """Of its file; 0 if it comes from none."""

    @property
    def may_be_fitted(self) -> bool:
        return self.role in ("", FIT)

    @property
    def is_eager(self) -> bool:
        """Whether it is made of several operators: it says so, or they were counted."""
        return EAGER in self.probe.variant.lower().split() or (self.operators or 1) > 1

    def cells(self) -> list[str]:
        """The row as it is written, in the order of `COLUMNS`."""
        probe, causal = self.probe, {None: "", True: "1", False: "0"}[self.probe.causal]
        sizes = [str(size or "") for size in (getattr(probe, name) for name in SIZES)]
        spread = [_us(self.low_s), _us(self.high_s), str(self.runs or ""), _cell(self.clock_mhz), _cell(self.power_w)]
        words = [self.gpu, probe.op, probe.dtype, *sizes, causal, probe.variant, _us(self.seconds), self.source, self.role]
        seen = [self.throttle, str(self.operators or ""), _us(self.alone_s or 0.0), "cold" * self.cold]
        return [*words, *spread, *seen]


def _us(seconds: float) -> str:
    return f"{seconds * US_PER_S:.{DIGITS}g}" if seconds else ""


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.{DIGITS}g}"


def line(cells: Iterable[str]) -> str:
    """Cells as a line of CSV; what a spreadsheet would compute is text in it."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(map(escape.csv_cell, cells))
    return out.getvalue()


def text(rows: Iterable[Measured]) -> str:
    """A whole table."""
    return line(COLUMNS) + "".join(line(row.cells()) for row in rows)


def append(path: Path, row: Measured) -> None:
    """Adds a row in one write, so that whoever is killed loses one row at most."""
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
    """What a table in a file of its own holds so far; nothing if there is no file."""
    return read_bounded(path, MOST_BYTES, "a table of measurements") if path.exists() else b""


def mend(path: Path) -> None:
    """Cuts off a last line that has no end: whoever wrote it was killed meanwhile."""
    if not path.exists() or not path.stat().st_size:
        return
    held = content(path)
    whole = held.rfind(b"\n") + 1
    if whole < len(held):
        os.truncate(path, whole)


def rows_of(path: Path, gpu: str = "") -> list[Measured]:
    """The rows of a table, plain or gzipped, all of one GPU where that has no column. Raises with file:line for every cell that
    makes no sense."""
    rows = completed(read(path), gpu)
    check_header(NEEDED, rows, str(path))
    faults: list[Fault] = []
    found: list[Measured] = []
    for i, row in enumerate(rows):
        wrong = list(_wrong(row))
        faults += [Fault(message, hint, f"{path}:{i + 2}") for message, hint in wrong]
        if not wrong:
            found.append(_measured(row, i + 2))
    if faults:
        raise UserError(faults=faults)
    return found


def completed(rows: Sequence[Mapping[str, str]], gpu: str) -> list[Mapping[str, str]]:
    """Rows with the columns that their table leaves out and that can be told: whose they are, and that they were measured with a
    cold cache, by what measured them."""
    missing = {"gpu": gpu} if gpu and "gpu" not in rows[0] else {}
    cold = [row.get("source", "").startswith(COLD) for row in rows]
    if "cache" in rows[0] or not any(cold):
        return [{**row, **missing} for row in rows]
    return [{**row, **missing, "cache": "cold" * was} for row, was in zip(rows, cold, strict=True)]


def is_cold(row: Mapping[str, str]) -> bool | None:
    """Whether a row says that the cache was cold; None if that is no word for it."""
    return CACHES.get(row.get("cache", "").strip().lower())


def _wrong(row: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """What is wrong with the cells of a row, and how to write them."""
    for name in ("op", "dtype"):
        if not row[name].strip():
            yield f"{name} is empty", "such as gemm" if name == "op" else "such as bf16"
    dtype, role = row["dtype"].strip().lower().replace("-", "_"), row.get("role", "").strip()
    if dtype and dtype not in WIDTH and role in ("", FIT):
        yield f"dtype: {shown(row['dtype'])} is not known", did_you_mean(DTYPE_WORDS.get(dtype, dtype), WIDTH)
    if not number(row["time_us"]) > 0:
        yield f"time_us: {shown(row['time_us'])} is no positive number", "microseconds, such as 57.4"
    for name in (*SIZES, "runs", "operators"):
        cell = row.get(name, "").strip()
        if cell and not (0 <= number(cell) <= MOST_COUNT and number(cell) == int(number(cell))):
            yield f"{name}: {shown(cell)} is no count", "a whole number, or nothing"
    for name in ("p10_us", "p90_us", "clock_mhz", "power_w", "alone_us"):
        cell = row.get(name, "").strip()
        if cell and not number(cell) >= 0:
            yield f"{name}: {shown(cell)} is no number", "a number, or nothing"
    causal = row.get("causal", "").strip()
    if causal and truth(causal) is None:
        yield f"causal: {shown(causal)} is neither 0 nor 1", "1 where only earlier keys are seen"
    if is_cold(row) is None:
        yield f"cache: {shown(row['cache'])} is neither cold nor warm", "cold where nothing of what is read was in the cache"


def probe_of(row: Mapping[str, str]) -> Probe:
    """The kernel of a row whose cells make sense."""
    sizes = {name: _count(row, name) for name in SIZES}
    op, dtype = (row[name].strip().lower().replace("-", "_") for name in ("op", "dtype"))
    if op.endswith("_backward"):
        op = op.removesuffix("_backward") + "_bwd"
    return Probe(op, dtype, **sizes, causal=truth(row.get("causal", "")), variant=row.get("variant", "").strip())


def _measured(row: Mapping[str, str], line: int) -> Measured:
    low_us, high_us, clock_mhz, power_w = (_optional(row, name) for name in SPREAD if name != "runs")
    spread = ((low_us or 0.0) / US_PER_S, (high_us or 0.0) / US_PER_S, _count(row, "runs"))
    words = (row.get("source", "").strip(), row.get("role", "").strip())
    alone_us = _optional(row, "alone_us")
    made = Measured(row["gpu"].strip(), probe_of(row), number(row["time_us"]) / US_PER_S, *spread, *words, clock_mhz, power_w)
    held, alone_s = row.get("throttle", "").strip(), alone_us / US_PER_S if alone_us else None
    operators, cold = _count(row, "operators") or None, bool(is_cold(row))
    return replace(made, throttle=held, operators=operators, alone_s=alone_s, cold=cold, line=line)


def _count(row: Mapping[str, str], name: str) -> int:
    cell = row.get(name, "").strip()
    return int(number(cell)) if cell else 0


def _optional(row: Mapping[str, str], name: str) -> float | None:
    cell = row.get(name, "").strip()
    return number(cell) if cell else None


def rows_on(rows: Sequence[Measured], gpu: str, named: Callable[[str], str]) -> tuple[str, list[Measured]]:
    """The GPU that a profile is of, and its rows; `gpu` says which where the table does not, or names several."""
    owners = {words: _known(words, named) for words in dict.fromkeys(row.gpu for row in rows)}
    found = list(dict.fromkeys(owner for owner in owners.values() if owner))
    wanted = gpu or (found[0] if len(found) == 1 else "")
    if not wanted and len(found) > 1:
        raise UserError(f"the table holds measurements of {len(found)} GPUs", hint=f"--gpu takes one of {', '.join(found)}")
    if not wanted:
        words = next(iter(owners)) or "nothing"
        raise UserError(f"the table's GPU, {words!r}, is not in the catalog", hint="--gpu names one that is, or a file of yours")
    if wanted in found:
        return wanted, [row for row in rows if owners[row.gpu] == wanted]
    strangers = [words for words, owner in owners.items() if owner is None]
    if len(strangers) != 1:
        raise UserError(f"no row is of {wanted!r}", hint=did_you_mean(wanted, found) if found else "")
    return wanted, [row for row in rows if owners[row.gpu] is None]


def _known(words: str, named: Callable[[str], str]) -> str | None:
    try:
        return named(words)
    except UserError:
        return None
