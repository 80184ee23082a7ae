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
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

from simulator.config import shipped_fits
from simulator.validate.one_left_out import FAMILIES, Judged, groups, judged, left_out, statistics, usable

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data"
TABLES = ("kernels.csv.gz", "kernels_more.csv.gz")
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


def show(title: str, rows: Sequence[Judged]) -> None:
    """Prints the statistics of every group, their means, and the intervals by provenance."""
    print(f"\n{title}\n{'GPU':18}{'family':14}{'rows':>6}{'median':>8}{'p90':>8}{'bias':>8}{'inside':>8}  %")
    of_groups = {key: statistics(some) for key, some in groups(rows).items()}
    for (gpu, family), (middle, p90, bias, inside) in of_groups.items():
        many = sum((row.gpu, row.family) == (gpu, family) for row in rows)
        print(f"{gpu:18}{family:14}{many:6}{middle:8.1f}{p90:8.1f}{bias:+8.1f}{inside:8.0f}")
    for family in (*FAMILIES, ""):
        some = [found for key, found in of_groups.items() if family in ("", key[1])]
        if some:
            middle, p90 = mean(one[0] for one in some), mean(one[1] for one in some)
            print(f"{'mean of groups':18}{family or 'all':14}{len(some):6}{middle:8.1f}{p90:8.1f}")
    for provenance in dict.fromkeys(row.provenance for row in rows):
        some = [row for row in rows if row.provenance == provenance]
        print(f"inside, {provenance}: {100 * mean(row.inside for row in some):.1f}% of {len(some)}")


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
    shipped = shipped_fits.shipped()
    if told.outside:
        show("Outside", list(judged(rows, shipped)))
        return
    show("One GPU left out", list(left_out(rows, shipped)))
    fitted = [row for row in judged(rows, shipped) if row.fitted]
    show("Fitted, in sample", fitted)
    then = [row for row in judged(usable(FOLDER / TABLES[0]), shipped) if row.fitted]
    for key, some in groups(then).items():
        now, before = statistics(some)[0], EB481FC.get(key, math.inf)
        if now > before + WORSE:
            print(f"fitted worse than at eb481fc: {' '.join(key)}: {before:.2f} -> {now:.2f}")


if __name__ == "__main__":
    main()
