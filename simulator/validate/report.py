"""Predicted beside measured: one file per kind of measurement, all through `validate`.

A kind is a module of this folder with `UNIT`, `READS`, `NEEDS`, `completed(rows, own)`, `measured(row)`, `source_key(row)` and
`predictions(rows, own)`; its name is that of its file. `READS` are the columns that its predictor may see: those that describe
the machine and the work, never what was measured. A table must have the columns in `NEEDS`; `completed` adds others that it
leaves out. `predictions` gives for each row a prediction, or the `UserError` whose message is the reason why there is none. A
kind with `OWN_GPU` also predicts by a profile of one's own. A row whose measurement is blank or unusable is predicted all the
same and compared with nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from ..config import catalog
from ..errors import UserError, did_you_mean
from ..escape import Summarised
from ..measurements.csv_tables import Row, check_header, read
from ..simulation import estimated_effort


@dataclass(frozen=True, slots=True)
class Own:
    """A GPU of one's own, by name or file, and the file of its profile: both apply to the rows of that GPU."""

    gpu: str = ""
    profile: str = ""


@dataclass(frozen=True, slots=True)
class Predicted:
    """A prediction, in the kind's unit, and the relative standard error that it admits; 0 if it admits none."""

    value: float
    sigma: float = 0.0
    provenance: str | None = None
    """A kernel is measured, transferred or roofline; a collective interpolated, extrapolated or theoretical."""
    extrapolated: bool = False
    """Whether the sizes lie beyond those that were measured, or the prediction is theoretical."""


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """One row of a table with its prediction: the keys of the JSON, in order."""

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


@dataclass(frozen=True, repr=False)
class Report(Summarised):
    """All rows of a table, in its order, and the errors of each source."""

    rows: tuple[ComparedRow, ...]

    @property
    def sources(self) -> dict[str, dict[str, Any]]:
        """Scores by source key, in the order of the table."""
        keys = dict.fromkeys(row.source_key for row in self.rows)
        return {key: scores([row for row in self.rows if row.source_key == key]) for key in keys}

    def as_dict(self) -> dict[str, Any]:
        return {"rows": [asdict(row) for row in self.rows], "sources": self.sources, "overall": scores(self.rows)}

    @property
    def summary(self) -> list[tuple[str, str]]:
        """How well each source is predicted, and all together."""
        return [(name, _in_words(of)) for name, of in [*self.sources.items(), ("all", scores(self.rows))]]


def _in_words(of: Mapping[str, Any]) -> str:
    if of["median"] is None:
        return f"{of['n']} rows compared, {of['skipped']} skipped"
    errors = f"median |error| {of['median']:.1%}, 90% below {of['p90']:.1%}, bias {of['bias']:+.1%}"
    return f"{of['n']} rows compared, {of['skipped']} skipped: {errors}"


def kinds() -> dict[str, Any]:
    """Every kind that can be validated, and its module."""
    return {name: module for name, module in catalog.modules(__package__).items() if hasattr(module, "predictions")}


def validate(
    kind: str,
    path: str | Path | None,
    own: Own | None = None,
    *,
    long: bool = False,
    expect: estimated_effort.Expect = estimated_effort.no_progress,
) -> Report:
    """Predicts every row of a table. Tables that take long are refused, unless `long` permits them."""
    known = kinds()
    if kind not in known:
        raise UserError(f"no kind {kind!r}", hint=did_you_mean(kind, known))
    if path is None:
        raise UserError(f"no measured {kind} ship with the simulator", hint=f"name a table: trainsim validate --kind {kind} FILE")
    if own and not hasattr(known[kind], "OWN_GPU"):
        raise UserError(f"--gpu, --profile: say nothing about {kind}", hint="leave them out")
    rows = read(Path(path))
    takes = len(rows) * estimated_effort.PREDICTION
    estimated_effort.Limits(long=long, expect=expect).check(takes, f"a table of {len(rows):,} rows", "cut it into several")
    return judged(known[kind], rows, str(path), own)


def judged(kind: Any, rows: Sequence[Row], name: str, own: Own | None = None) -> Report:
    """The rows of a table with their predictions by a kind."""
    rows = kind.completed(rows, own)
    check_header(kind.NEEDS, rows, name)
    found = kind.predictions([{column: row.get(column, "") for column in kind.READS} for row in rows], own)
    pairs = enumerate(zip(rows, found, strict=True))
    return Report(tuple(_judge(kind, row, row.get("id") or i, made) for i, (row, made) in pairs))


def _judge(kind: Any, row: Row, name: str | int, made: Predicted | UserError) -> ComparedRow:
    key, measured = kind.source_key(row), kind.measured(row)
    if isinstance(made, UserError):
        return ComparedRow(name, key, measured, None, None, kind.UNIT, None, None, None, made.faults[0].message)
    spread = math.exp(2 * made.sigma)
    interval = (made.value / spread, made.value * spread) if made.sigma else None
    off = None if measured is None else made.value / measured - 1
    known = (made.provenance, made.extrapolated)
    return ComparedRow(name, key, measured, made.value, off, kind.UNIT, interval, None, None, None, *known)


def scores(rows: Iterable[ComparedRow]) -> dict[str, Any]:
    """Median and 90th percentile of |error|, and the median error, of the `n` rows that were both predicted and measured; the
    number of skipped rows."""
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
