"""Kernel times of a GPU predicted from the fits of the others, and how well measured GPUs are fitted.

python benchmarks/left_out.py [TABLE ...] [--outside]

reads tables of measured kernels (by default those beside the checkout, see CONTRIBUTING.md) and prints, per GPU and family with
twenty rows or more, the median and the 90th percentile of |predicted / measured - 1| in percent, the bias, and the share of rows
inside the intervals that predictions state (two standard errors either way). Each GPU is predicted without its own fits; those
of its sister boards remain. With --outside no fits are left out, as for a table that nobody fitted. Rows that multiply by weights
which nobody filled are left out.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median

from simulator.config import shipped_fits
from simulator.config.catalog import gpu_named
from simulator.costs.kernels.estimator import FitLibrary
from simulator.errors import UserError
from simulator.measurements import csv_tables
from simulator.measurements.csv_tables import Row

from simulator.measurements.kernel_words import ATTENTIONS, EXPERTS, GEMMS, GEMMS_BACKWARD
from simulator.measurements.timing_loops import loop_of
from simulator.validate import kernels
from simulator.validate.report import Predicted

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data"
TABLES = ("kernels.csv.gz", "kernels_more.csv.gz")
LEAST_ROWS = 20
ASKED = {"median": 12.0, "p90": 30.0}
"""Percent asked of the means over groups of left-out GPUs and families."""
WORSE = 0.5
"""Points by which the median of a fitted GPU and family may grow."""
EB481FC: Mapping[tuple[str, str], float] = {
    ("A100-PCIE-40", "GEMM"): 6.20,
    ("A100-PCIE-40", "memory-bound"): 1.03,
    ("A100-PCIE-80", "GEMM"): 3.24,
    ("A100-PCIE-80", "attention"): 4.48,
    ("A100-PCIE-80", "memory-bound"): 1.09,
    ("A100-SXM-80", "GEMM"): 6.37,
    ("A100-SXM-80", "attention"): 3.60,
    ("A100-SXM-80", "experts"): 8.61,
    ("B200-SXM", "GEMM"): 5.12,
    ("B200-SXM", "attention"): 5.29,
    ("B200-SXM", "experts"): 7.39,
    ("H100-SXM", "GEMM"): 3.44,
    ("H100-SXM", "attention"): 6.50,
    ("H100-SXM", "experts"): 7.28,
    ("L4", "GEMM"): 10.30,
    ("L4", "memory-bound"): 0.43,
    ("P100-PCIE", "GEMM"): 11.82,
    ("P100-PCIE", "memory-bound"): 1.96,
    ("P4", "GEMM"): 13.92,
    ("P4", "memory-bound"): 0.31,
    ("T4", "GEMM"): 9.65,
    ("T4", "memory-bound"): 2.07,
    ("V100-PCIE-32", "GEMM"): 7.71,
    ("V100-PCIE-32", "memory-bound"): 0.92,
}
"""Medians of the fitted rows of the first table, in percent, with the fits of commit eb481fc."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One row with its prediction."""

    gpu: str
    family: str
    error: float
    provenance: str
    inside: bool
    fitted: bool
    """Whether the row may be fitted."""


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
            ratio = made.value / float(row["time_us"])
            inside = abs(math.log(ratio)) <= 2 * made.sigma
            yield Judged(row["gpu"], family_of(row["op"]), ratio - 1, str(made.provenance), inside, row["role"] == "fit")


def without(library: FitLibrary, gpu: str) -> FitLibrary:
    """A library of fits without those of one GPU."""
    return replace(library, fits={name: fits for name, fits in library.fits.items() if name != gpu})


def statistics(rows: Sequence[Judged]) -> tuple[float, float, float, float]:
    """Median and 90th percentile of |error|, the median error and the share inside the intervals, in percent."""
    sizes = sorted(abs(row.error) for row in rows)
    p90 = sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))]
    inside = mean(row.inside for row in rows)
    return 100 * median(sizes), 100 * p90, 100 * median(row.error for row in rows), 100 * inside


def groups(rows: Iterable[Judged]) -> dict[tuple[str, str], list[Judged]]:
    """Rows by GPU and family, where there are enough."""
    found: dict[tuple[str, str], list[Judged]] = {}
    for row in rows:
        found.setdefault((row.gpu, row.family), []).append(row)
    return {key: found[key] for key in sorted(found) if len(found[key]) >= LEAST_ROWS}


def show(title: str, rows: Sequence[Judged]) -> None:
    """Prints the statistics of every group, their means, and the intervals by provenance."""
    print(f"\n{title}\n{'GPU':18}{'family':14}{'rows':>6}{'median':>8}{'p90':>8}{'bias':>8}{'inside':>8}  %")
    of_groups = {key: statistics(some) for key, some in groups(rows).items()}
    for (gpu, family), (middle, p90, bias, inside) in of_groups.items():
        many = sum((row.gpu, row.family) == (gpu, family) for row in rows)
        print(f"{gpu:18}{family:14}{many:6}{middle:8.1f}{p90:8.1f}{bias:+8.1f}{inside:8.0f}")
    for family in ("GEMM", "attention", "experts", "memory-bound", ""):
        some = [found for key, found in of_groups.items() if family in ("", key[1])]
        if some:
            middle, p90 = mean(one[0] for one in some), mean(one[1] for one in some)
            print(f"{'mean of groups':18}{family or 'all':14}{len(some):6}{middle:8.1f}{p90:8.1f}")
    for provenance in dict.fromkeys(row.provenance for row in rows):
        some = [row for row in rows if row.provenance == provenance]
        print(f"inside, {provenance}: {100 * mean(row.inside for row in some):.1f}% of {len(some)}")


def named(words: str) -> str:
    """The name in the catalog of a GPU in a table; empty if it is not there."""
    try:
        return gpu_named(words)
    except UserError:
        return ""


def usable(path: Path) -> list[Row]:
    """The rows of a table that multiply by weights which somebody filled, on GPUs of the catalog."""
    return [row for row in csv_tables.read(path) if named(row["gpu"]) and loop_of(row["source"], row["dtype"]).filled]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tables", nargs="*", type=Path, default=[FOLDER / name for name in TABLES])
    parser.add_argument("--outside", action="store_true", help="tables in no fit: nothing is left out")
    told = parser.parse_args()
    tables = [path for path in told.tables if path.exists()]
    if not tables:
        print("no tables of measured kernels: nothing to do")
        return
    rows = [row for path in tables for row in usable(path)]
    shipped, found = shipped_fits.shipped(), list[Judged]()
    if told.outside:
        show("Outside", list(judged(rows, shipped)))
        return
    for words in dict.fromkeys(row["gpu"] for row in rows):
        found += judged([row for row in rows if row["gpu"] == words], without(shipped, named(words)))
    show("One GPU left out", found)
    fitted = [row for row in judged(rows, shipped) if row.fitted]
    show("Fitted, in sample", fitted)
    then = [row for row in judged(usable(FOLDER / TABLES[0]), shipped) if row.fitted]
    for key, some in groups(then).items():
        now, before = statistics(some)[0], EB481FC.get(key, math.inf)
        if now > before + WORSE:
            print(f"fitted worse than at eb481fc: {' '.join(key)}: {before:.2f} -> {now:.2f}")


if __name__ == "__main__":
    main()
