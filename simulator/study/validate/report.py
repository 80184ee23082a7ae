"""Predicted beside measured: one file per kind of measurement, all through `validate`.

A kind is a module with `UNIT`, `READS` (the columns that its predictor may see: what describes the machine and the work, and
nothing that was measured or says where; of those a table must have the ones in `NEEDS`), `completed(rows, own)`, the rows with
columns that a table may leave out, `measured(row)`, `source_key(row)` and `predictions(rows, own)`, which gives for each of such
rows a prediction, or the `UserError` whose message is the reason why there is none.
What was measured may be blank or unusable: the row is predicted all the same and compared with nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from ...errors import UserError, did_you_mean
from .. import effort
from ..tables import Row, check_header, read
from .predicted import Own, Predicted

LATER = {"training": "it comes with the published results"}
"""Kinds of the contract whose time has not come."""


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


def validate(
    kind: str, path: Path | None, own: Own | None = None, *, long: bool = False, expect: effort.Expect = effort.nobody
) -> Report:
    """Predicts every row of a table; without one, of what ships. Tables that take long are refused, unless `long` says that they
    may."""
    if kind not in kinds():
        hint = LATER.get(kind) or did_you_mean(kind, kinds())
        raise UserError(f"{kind!r} cannot be validated yet" if kind in LATER else f"no kind {kind!r}", hint=hint)
    if path is None:
        raise UserError(f"no measured {kind} ship with the simulator", hint=f"name a table: trainsim validate --kind {kind} FILE")
    if own and kind != "kernels":
        raise UserError(f"--gpu, --profile: say nothing about {kind}", hint="leave them out")
    rows = read(path)
    effort.check(effort.of_table(len(rows)), f"a table of {len(rows):,} rows", "cut it into several", long=long, expect=expect)
    return judged(kinds()[kind], rows, str(path), own)


def judged(kind: Any, rows: Sequence[Row], name: str, own: Own | None = None) -> Report:
    """The predictions of a kind for rows, beside what was measured."""
    rows = kind.completed(rows, own)
    check_header(kind.NEEDS, rows, name)
    found = kind.predictions([{column: row.get(column, "") for column in kind.READS} for row in rows], own)
    pairs = enumerate(zip(rows, found, strict=True))
    return Report(tuple(_judge(kind, row, row.get("id") or i, made) for i, (row, made) in pairs))


def _judge(kind: Any, row: Row, name: str | int, made: Predicted | UserError) -> Judged:
    key, measured = kind.source_key(row), kind.measured(row)
    if isinstance(made, UserError):
        return Judged(name, key, measured, None, None, kind.UNIT, None, None, None, made.faults[0].message)
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
