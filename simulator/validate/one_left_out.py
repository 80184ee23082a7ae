"""Kernels of a GPU predicted from the fits of the other GPUs, and the errors of rows by GPU and family.

A GPU is left out with its own fits; those of its sister boards remain. Rows of GEMMs with unfilled weights, and rows of GPUs that
the catalog lacks, are not evaluated (`usable`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median

from ..config.catalog import gpu_named
from ..costs.kernels.fit_choice import FitLibrary
from ..errors import UserError
from ..measurements.csv_tables import Row, read
from ..measurements.kernel_words import ATTENTIONS, EXPERTS, GEMMS, GEMMS_BACKWARD
from ..measurements.timing_loops import loop_of
from . import kernels
from .report import Predicted, p90

LEAST_ROWS = 20
"""Fewest rows of a GPU and family for which errors are stated."""
FAMILIES = ("GEMM", "attention", "experts", "memory-bound")


@dataclass(frozen=True, slots=True)
class Judged:
    """One row with its prediction."""

    gpu: str
    family: str
    error: float
    sigma: float
    """Relative standard error that the prediction states."""
    provenance: str
    fitted: bool
    """Whether the row may be fitted."""

    @property
    def inside(self) -> bool:
        """Whether the measured time lies in the interval of two standard errors either way."""
        return abs(math.log1p(self.error)) <= 2 * self.sigma


def family_of(op: str) -> str:
    """The family of an operator of tables."""
    if op in GEMMS or op in GEMMS_BACKWARD:
        return "GEMM"
    return "attention" if op in ATTENTIONS else "experts" if op == EXPERTS else "memory-bound"


def judged(rows: Sequence[Row], library: FitLibrary) -> Iterator[Judged]:
    """Rows with their predictions by a library of fits. Rows that cannot be predicted are left out."""
    seen = [{column: row.get(column, "") for column in kernels.READS} for row in rows]
    for row, made in zip(rows, kernels.predictions(seen, None, library), strict=True):
        if isinstance(made, Predicted):
            error = made.value / float(row["time_us"]) - 1
            yield Judged(row["gpu"], family_of(row["op"]), error, made.sigma, str(made.provenance), row["role"] == "fit")


def without(library: FitLibrary, gpu: str) -> FitLibrary:
    """A library of fits without those of one GPU."""
    return replace(library, fits={name: fits for name, fits in library.fits.items() if name != gpu})


def statistics(rows: Sequence[Judged]) -> tuple[float, float, float, float]:
    """Median and 90th percentile of |error|, the median error and the share inside the intervals, in percent."""
    sizes = [abs(row.error) for row in rows]
    inside = mean(row.inside for row in rows)
    return 100 * median(sizes), 100 * p90(sizes), 100 * median(row.error for row in rows), 100 * inside


def groups(rows: Iterable[Judged]) -> dict[tuple[str, str], list[Judged]]:
    """Rows by GPU and family, where there are enough."""
    found: dict[tuple[str, str], list[Judged]] = {}
    for row in rows:
        found.setdefault((row.gpu, row.family), []).append(row)
    return {key: found[key] for key in sorted(found) if len(found[key]) >= LEAST_ROWS}


def named(words: str) -> str:
    """The name in the catalog of a GPU in a table; empty if it is not there."""
    try:
        return gpu_named(words)
    except UserError:
        return ""


def usable(path: Path) -> list[Row]:
    """The rows of a table that are evaluated."""
    rows = read(path)
    known = {words for words in {row["gpu"] for row in rows} if named(words)}
    return [row for row in rows if row["gpu"] in known and loop_of(row["source"], row["dtype"]).filled]


def left_out(rows: Sequence[Row], library: FitLibrary) -> Iterator[Judged]:
    """All rows, each predicted without the fits of its own GPU."""
    for words in dict.fromkeys(row["gpu"] for row in rows):
        yield from judged([row for row in rows if row["gpu"] == words], without(library, named(words)))
