"""Predicted beside measured: one file per kind of measurement, all through `validate`.

A kind is a module with `UNIT`, `READS` (the columns that its predictor may see: what describes the machine and the work, and
nothing that was measured or says where; of those a table must have the ones in `NEEDS`), `completed(rows, own)`, the rows with
columns that a table may leave out, `measured(row)`, `source_key(row)` and `predictor()`, which gives a function from such a row
to a prediction. The predictor raises `UserError` for a row that it cannot predict; its message is the reason.
What was measured may be blank or unusable: the row is predicted all the same and compared with nothing.
"""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from ...errors import ALIKE, Fault, UserError, did_you_mean, nearest, shown

Row = Mapping[str, str]
LATER = {"training": "it comes with the published results"}
"""Kinds of the contract whose time has not come."""
TRUTH = {"true": True, "yes": True, "causal": True, "false": False, "no": False, "full": False}
LEAST_US = 1e-6
"""Nothing on a GPU takes less: a smaller number is no measurement."""


@dataclass(frozen=True, slots=True)
class Own:
    """A GPU of one's own, by name or file, and the file of its profile: for the rows that are of it."""

    gpu: str = ""
    profile: str = ""


@dataclass(frozen=True, slots=True)
class Predicted:
    """A prediction, in the kind's unit, and the relative standard error that it admits; 0 if it admits none."""

    value: float
    sigma: float = 0.0
    memory_gb: float | None = None
    provenance: str | None = None
    """Whose word it is: a kernel is measured, transferred or roofline, a collective interpolated, extrapolated or theoretical."""
    extrapolated: bool = False
    """Whether nobody measured such a time: the sizes lie beyond those that were measured, or it is physics alone."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One row of a table: the keys of the JSON, in order."""

    id: str | int
    source_key: str
    measured: float | None
    predicted: float | None
    error: float | None
    unit: str
    interval: tuple[float, float] | None
    memory_gb: float | None
    measured_memory_gb: float | None
    skipped: str | None
    provenance: str | None = None
    extrapolated: bool | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """All rows of a table, in its order, and how well each source is predicted."""

    rows: tuple[Judged, ...]

    @property
    def sources(self) -> dict[str, dict[str, Any]]:
        """Scores by source key, in the order of the table."""
        keys = dict.fromkeys(row.source_key for row in self.rows)
        return {key: scores([row for row in self.rows if row.source_key == key]) for key in keys}

    def as_dict(self) -> dict[str, Any]:
        return {"rows": [asdict(row) for row in self.rows], "sources": self.sources, "overall": scores(self.rows)}


def kinds() -> dict[str, Any]:
    """Every kind that can be validated, and its module."""
    from . import collectives, kernels

    return {"collectives": collectives, "kernels": kernels}


def validate(kind: str, path: Path | None, own: Own | None = None) -> Report:
    """Predicts every row of a table; without one, of what ships."""
    if kind not in kinds():
        hint = LATER.get(kind) or did_you_mean(kind, kinds())
        raise UserError(f"{kind!r} cannot be validated yet" if kind in LATER else f"no kind {kind!r}", hint=hint)
    if path is None:
        raise UserError(f"no measured {kind} ship with the simulator", hint=f"name a table: trainsim validate --kind {kind} FILE")
    if own and kind != "kernels":
        raise UserError(f"--gpu, --profile: say nothing about {kind}", hint="leave them out")
    return judged(kinds()[kind], read(path), str(path), own)


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a .csv or .csv.gz file."""
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"cannot read {str(path)!r}: {getattr(error, 'strerror', None) or error}") from None
    except UnicodeDecodeError:
        raise UserError("not a text file", where=str(path), hint="a table is CSV in UTF-8, plain or gzipped") from None
    try:
        table = csv.DictReader(text.splitlines())
        rows, names = list(table), table.fieldnames or ()
    except csv.Error as error:
        raise UserError(f"no table: {error}", where=str(path), hint="a header, then one measurement to a line") from None
    if not rows:
        raise UserError("a table without rows", where=str(path), hint="a header, then one measurement to a line")
    twice = [name for name in dict.fromkeys(names) if name and names.count(name) > 1]
    if twice:
        raise UserError(faults=[Fault(f"column {name!r} twice", "which of them counts?", f"{path}:1") for name in twice])
    return [{key: value or "" for key, value in row.items() if isinstance(key, str)} for row in rows]


def check_header(needed: Iterable[str], rows: Sequence[Row], name: str) -> None:
    """Raises for every column that a table must have and has not; once for what is no such table at all."""
    missing = [column for column in needed if column not in rows[0]]
    if missing and missing == [*needed] and not any(nearest(column, rows[0], cutoff=ALIKE) for column in missing):
        first = shown(",".join(rows[0]))
        raise UserError(f"not such a table: it begins with {first}", where=f"{name}:1", hint=f"a header with {', '.join(needed)}")
    if missing:
        raise UserError(faults=[Fault(f"no column {column!r}", did_you_mean(column, rows[0]), f"{name}:1") for column in missing])


def judged(kind: Any, rows: Sequence[Row], name: str, own: Own | None = None) -> Report:
    """The predictions of a kind for rows, beside what was measured."""
    rows = kind.completed(rows, own)
    check_header(kind.NEEDS, rows, name)
    predict = kind.predictor(own) if own else kind.predictor()
    return Report(tuple(_judge(kind, row, row.get("id") or i, predict) for i, row in enumerate(rows)))


def _judge(kind: Any, row: Row, name: str | int, predict: Callable[[Row], Predicted]) -> Judged:
    key, measured = kind.source_key(row), kind.measured(row)
    try:
        made = predict({column: row.get(column, "") for column in kind.READS})
    except UserError as error:
        return Judged(name, key, measured, None, None, kind.UNIT, None, None, None, error.faults[0].message)
    spread = math.exp(2 * made.sigma)
    interval = (made.value / spread, made.value * spread) if made.sigma else None
    off = None if measured is None else made.value / measured - 1
    known = (made.provenance, made.extrapolated)
    return Judged(name, key, measured, made.value, off, kind.UNIT, interval, made.memory_gb, None, None, *known)


def scores(rows: Iterable[Judged]) -> dict[str, Any]:
    """n, median and 90th percentile of |error|, and the median error, of the rows that were predicted and measured; skipped ones
    counted."""
    rows = list(rows)
    errors = [row.error for row in rows if row.error is not None]
    sizes = sorted(map(abs, errors))
    return {
        "n": len(errors),
        "skipped": sum(row.skipped is not None for row in rows),
        "median": median(sizes) if sizes else None,
        "p90": (quantiles(sizes, n=10, method="inclusive")[-1] if len(sizes) > 1 else sizes[0]) if sizes else None,
        "bias": median(errors) if errors else None,
    }


def count(row: Row, column: str) -> int:
    """A whole number in a cell; anything else is refused."""
    value = number(row[column])
    if not (value >= 1 and value == int(value)):
        raise UserError(f"{column}: {shown(row[column])} is no count")
    return int(value)


def time_us(row: Row) -> float | None:
    """The microseconds that a row says were measured, or None if that is no time."""
    value = number(row.get("time_us", ""))
    return value if value >= LEAST_US else None


def number(text: str) -> float:
    """The number that a cell holds, or not a number."""
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def truth(text: str) -> bool | None:
    """What a cell says of whether attention is causal: 1, true or causal, 0, false or full; None if neither."""
    words = text.strip().lower()
    return {0.0: False, 1.0: True}.get(number(words), TRUTH.get(words))
