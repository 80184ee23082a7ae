"""Reports of predictions against measurements: one file per kind of measurement, all through `validate`.

A kind is a module of this folder with `UNIT`, `MEASURED_COLUMN`, `READS`, `NEEDS`, `SOURCE`, `measured(row)` and
`predictions(rows, gpu)`; its name is that of its file. `READS` are the columns that its predictor may see: columns that describe
the machine and the work, never measured values. A table must have the columns in `NEEDS`. Rows with the same cells in `SOURCE`
are of one source, and scored together. `predictions` gives for each row a prediction, or the `UserError` whose message is the
reason for its absence. A kind with `measured_memory_gb(row)` reports memory too. A kind with an `EFFORT` per row takes long, but
needs no `long`. A kind with `own_gpu(own)` also predicts for the GPU that this function returns; rows of a table without a column
`gpu` belong to this GPU. A row whose measurement is blank or unusable is predicted too, but not compared; a note says why the
`MEASURED_COLUMN` is unusable. A kind with `published()` has shipped rows; one whose `predictions` saves its outcomes has an
`EFFORT`; one with `apart(row)` names groups of rows that are also scored separately, and one with `notes_on_measured(row)` has
more to say of measurements.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean, median
from typing import Any

from ..config import catalog
from ..config.suggestions import meant
from ..errors import ALIKE, UserError, did_you_mean, must_be, nearest, shown
from ..escape import Summarised
from ..measurements.csv_tables import Row, check_header, described, line_of, number, read, with_gpu
from ..simulation import estimated_effort

TIER_C = "tier C"
"""Group of the rows whose description is partly guessed."""


@dataclass(frozen=True, slots=True)
class Own:
    """A user's GPU, by name or file, and the file of its profile: both apply to the rows of that GPU."""

    gpu: str = ""
    profile: str = ""


@dataclass(frozen=True, slots=True)
class Predicted:
    """A prediction in the unit of the kind, and its stated relative standard error; 0 if none is stated."""

    value: float
    sigma: float = 0.0
    provenance: str | None = None
    """A kernel is measured, transferred or roofline; a collective interpolated, extrapolated or theoretical."""
    extrapolated: bool = False
    """Whether the sizes are outside the measured range, or the prediction is theoretical."""
    memory_gb: float | None = None
    """Memory of the fullest GPU, in the unit of the measured one."""
    note: str | None = None
    """Properties of the row that the prediction leaves out or replaces."""


def p90(errors: Sequence[float]) -> float:
    """The smallest of some errors that nine in ten do not exceed."""
    return sorted(errors)[math.ceil(0.9 * len(errors)) - 1]


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
    note: str | None = None
    apart: str | None = None
    """The group in which the row is also scored separately."""


@dataclass(frozen=True, repr=False)
class Report(Summarised):
    """All rows of a table, in its order, and the errors of each source."""

    rows: tuple[ComparedRow, ...]
    lines: tuple[int, ...] = ()
    """The line of the table on which each row begins; 0 for one that is in no file."""
    unread: tuple[str, ...] = ()
    """Notes on columns that are not read, although they are like one that the table lacks."""

    @cached_property
    def sources(self) -> dict[str, dict[str, Any]]:
        """Scores by source key, in the order of the table."""
        keys = dict.fromkeys(row.source_key for row in self.rows)
        return {key: error_statistics([row for row in self.rows if row.source_key == key]) for key in keys}

    @cached_property
    def apart(self) -> dict[str, dict[str, Any]]:
        """Scores of the groups that are also scored separately."""
        groups = sorted({row.apart for row in self.rows if row.apart})
        return {group: error_statistics([row for row in self.rows if row.apart == group]) for group in groups}

    @cached_property
    def overall(self) -> dict[str, Any]:
        """Scores of all rows, with the means of those of the sources. Sources of tier C do not count among these."""
        anchors = {row.source_key for row in self.rows if row.apart == TIER_C}
        counted = [of for name, of in self.sources.items() if of["n"] and name not in anchors]
        means = {key: mean(of[key] for of in counted) if counted else None for key in ("median", "p90", "bias")}
        over = {"sources": len(counted), "n": sum(of["n"] for of in counted), **means}
        return {**error_statistics(self.rows), "over_sources": over}

    def as_dict(self) -> dict[str, Any]:
        record = {"rows": [asdict(row) for row in self.rows], "sources": self.sources, "overall": self.overall}
        return {**record, "apart": self.apart} if self.apart else record

    @property
    def summary(self) -> list[tuple[str, str]]:
        """The prediction error of each source, and of all sources together."""
        found = []
        for name, of in [*self.sources.items(), ("all", self.overall)]:
            words = f"{of['n']} rows compared, {of['skipped']} skipped"
            if of["n"]:
                words += f": median |error| {of['median']:.1%}, 90% below {of['p90']:.1%}, bias {of['bias']:+.1%}"
            found.append((name, words))
        return found


def kinds() -> dict[str, Any]:
    """Every kind that can be validated, and its module."""
    return {name: module for name, module in catalog.modules(__package__).items() if hasattr(module, "predictions")}


def validate(
    kind: str,
    path: str | Path | None = None,
    own: Own | None = None,
    *,
    long: bool = False,
    saved: Any = None,
    expect: estimated_effort.Expect = estimated_effort.no_progress,
) -> Report:
    """Predicts every row of a table, or of the shipped published rows if no table is given. Tables that take long are refused,
    unless `long` permits them. A kind with an `EFFORT` uses the outcomes in `saved`, and adds new ones as they come."""
    must_be(own, (Own, type(None)), "own", "a GPU with its profile", 'Own(gpu="h100", profile="mine.yaml")')
    kind = kind_named(kind)
    known, rows = kinds()[kind], rows_of(kind, path)
    if own and not hasattr(known, "own_gpu"):
        raise UserError(f"--gpu, --profile: say nothing about {kind}", hint="leave them out")
    if saved is not None and not hasattr(known, "EFFORT"):
        raise UserError(f"--save: {kind} are predicted too quickly to be saved", hint="leave it out")
    if hasattr(known, "EFFORT"):
        return compare_rows(known, rows, str(path), own, saved=saved, expect=expect)
    estimated_effort.Limits(long=long, expect=expect).check(
        len(rows) * estimated_effort.PREDICTION, f"a table of {len(rows):,} rows", "cut it into several"
    )
    return compare_rows(known, rows, str(path), own)


def kind_named(kind: str) -> str:
    """The kind that a name in any case means. Raises `UserError` for an unknown one."""
    known = kinds()
    if (name := meant(kind, known)) is None:
        raise UserError(f"no kind {shown(kind)}", hint=did_you_mean(str(kind), known))
    return name


def rows_of(kind: str, path: str | Path | None) -> list[Row]:
    """The rows of a table, or the shipped published rows if no table is given."""
    kind = kind_named(kind)
    must_be(path, (str, Path, type(None)), "path", "the name of a table", 'sim.validate("kernels", "kernels.csv")')
    if path is not None:
        return list(read(Path(path)))
    if not hasattr(kinds()[kind], "published"):
        raise UserError(f"no measured {kind} ship with the simulator", hint=f"name a table: trainsim validate --kind {kind} FILE")
    return list(kinds()[kind].published())


def compare_rows(kind: Any, rows: Sequence[Row], name: str, own: Own | None = None, **options: Any) -> Report:
    """The rows of a table with their predictions by a kind; `options` are those of its predictions."""
    gpu = kind.own_gpu(own) if own else None
    rows = with_gpu(rows, gpu.name if gpu else "")
    check_header(kind.NEEDS, rows, name)
    found = kind.predictions([described(row, kind.READS) for row in rows], gpu, **options)
    compared = (_compared_row(kind, i, row, made) for i, (row, made) in enumerate(zip(rows, found, strict=True)))
    return Report(tuple(compared), tuple(map(line_of, rows)), tuple(_unread(kind.READS, rows[0])))


def _unread(reads: Sequence[str], columns: Row) -> Iterator[str]:
    """Notes on the columns of a table that are like one that the predictor reads, and that the table lacks."""
    lacking = [column for column in reads if column not in columns]
    for column in columns:
        near = nearest(column, lacking, cutoff=ALIKE) if column not in reads else None
        if near:
            yield f"column {shown(column)} is not read, and there is no column {near!r}"


def _compared_row(kind: Any, number: int, row: Row, made: Predicted | UserError) -> ComparedRow:
    measured = kind.measured(row)
    known = (row.get("id") or number, "+".join(row.get(column, "") for column in kind.SOURCE), measured)
    measured_gb = kind.measured_memory_gb(row) if hasattr(kind, "measured_memory_gb") else None
    apart = kind.apart(row) or None if hasattr(kind, "apart") else None
    if isinstance(made, UserError):
        return ComparedRow(*known, None, None, kind.UNIT, None, None, measured_gb, made.faults[0].message, apart=apart)
    two_sigma = math.exp(2 * made.sigma)
    interval = (made.value / two_sigma, made.value * two_sigma) if made.sigma else None
    error, notes = None if measured is None else made.value / measured - 1, [made.note] if made.note else []
    notes += _notes_on_measured(kind, row, measured)
    by = made.provenance, made.extrapolated, "; ".join(notes) or None
    return ComparedRow(*known, made.value, error, kind.UNIT, interval, made.memory_gb, measured_gb, None, *by, apart)


def _notes_on_measured(kind: Any, row: Row, measured: float | None) -> Iterator[str]:
    """Notes on the cell of the measurement: it holds no time, although a row may be compared by another column, or it is
    missing."""
    column = kind.MEASURED_COLUMN
    cell = row.get(column, "").strip()
    if cell and (measured is None or not number(cell) > 0):
        yield f"{column}: {shown(cell)} is not a time" + (", another column is compared" if measured is not None else "")
    yield from kind.notes_on_measured(row) if hasattr(kind, "notes_on_measured") else ()
    near = nearest(column, set(row) - set(kind.READS), cutoff=ALIKE) if column not in row and measured is None else None
    if near:
        yield f"no column {column!r}, although there is {near!r}"


def error_statistics(rows: Sequence[ComparedRow]) -> dict[str, Any]:
    """Median and 90th percentile of |error|, and the median error, of the `n` rows that were both predicted and measured; also
    the number of skipped rows; and, where memory was measured too, the same of memory."""
    times, skipped = [row.error for row in rows if row.error is not None], sum(row.skipped is not None for row in rows)
    found = _errors(times)
    memory = [row.memory_gb / row.measured_memory_gb - 1 for row in rows if row.memory_gb and row.measured_memory_gb]
    return {"n": found.pop("n"), "skipped": skipped, **found, **({"memory": _errors(memory)} if memory else {})}


def _errors(errors: Sequence[float]) -> dict[str, Any]:
    sizes = [abs(error) for error in errors]
    known = (median(sizes), p90(sizes), median(errors)) if errors else (None, None, None)
    return {"n": len(errors), **dict(zip(("median", "p90", "bias"), known, strict=True))}
