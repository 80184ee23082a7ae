"""What arithmetic loses beside communication, over the share of multiprocessors that this holds, from published steps.

python results/validation/beside.py --predict    # beside.csv: a sample of all sources at several multiples, in ten minutes

make.py reads the table. On random halves of the sources the multiple that fits one half best is scored on the other, both ways.
"""

from __future__ import annotations

import csv
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import published_rows
from halves import OUTER, halves, headline
from published_rows import PublishedRun

from simulator.config import step_constants
from simulator.files import atomic
from simulator.measurements.csv_tables import read
from simulator.validate import training
from simulator.validate.report import compare_rows

HERE = Path(__file__).parent
TABLE = HERE.parents[2] / "shared" / "data" / "training.csv"
STEPS = HERE / "beside.csv"
MULTIPLES = (1.0, 2.0, 3.5, 5.0)
"""The multiples at which steps are predicted; between them a step is interpolated."""
GRID = [1 + i / 4 for i in range(17)]
MOST = 24
"""Rows of a source in the sample."""


@dataclass(frozen=True)
class Halves:
    """What halves of the sources choose, and the scores of the other halves: with what was chosen, and with a multiple of 1."""

    chosen: tuple[float, float, float]
    """5%, 50% and 95% of the multiples that were chosen."""
    fitted: tuple[float, float]
    """Mean over sources of the median error, and of the 90th percentile."""
    plain: tuple[float, float]


def predict() -> None:
    """Predicts the sample at every multiple. Processes of a pool are forked, and have the multiple of this one."""
    table = read(TABLE) if TABLE.exists() else training.published()
    rows = [row for row in published_rows.thinned(table, MOST) if row["tier"] in published_rows.HEADLINE]
    steps: dict[str, list[float]] = {}
    shipped = step_constants.beside_communication
    for multiple in MULTIPLES:
        step_constants.beside_communication = lambda multiple=multiple: multiple
        for made in compare_rows(training, rows, "published runs").rows:
            if made.predicted:
                steps.setdefault(str(made.id), []).append(made.predicted)
    step_constants.beside_communication = shipped
    with atomic(STEPS) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", *MULTIPLES])
        writer.writerows([key, *(f"{step:.6g}" for step in of)] for key, of in steps.items())


def known() -> dict[str, tuple[float, ...]]:
    """Id -> the predicted step at every multiple, over that at 1."""
    with STEPS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]
    return {key: tuple(float(step) / float(steps[0]) for step in steps) for key, *steps in rows}


def sample(runs: Sequence[PublishedRun]) -> tuple[list[PublishedRun], Mapping[str, Sequence[float]]]:
    """The runs of the headline in the sample, and their errors over the grid."""
    steps = known()
    at_shipped = float(np.interp(step_constants.beside_communication(), MULTIPLES, range(len(MULTIPLES))))
    chosen = [run for run in runs if run.is_headline and run.id in steps]
    errors: dict[str, Sequence[float]] = {}
    for run in chosen:
        longer = np.interp(GRID, MULTIPLES, steps[run.id])
        own = float(np.interp(at_shipped, range(len(MULTIPLES)), steps[run.id]))
        errors[run.id] = ((1 + (run.error or 0.0)) / own * longer - 1).tolist()
    return chosen, errors


def mean_size(runs: Sequence[PublishedRun], errors: Mapping[str, Sequence[float]], at: int) -> float:
    """The mean over sources of the mean size of log errors."""
    by_source: dict[str, list[float]] = {}
    for run in runs:
        by_source.setdefault(run.source, []).append(abs(float(np.log1p(errors[run.id][at]))))
    return fmean(map(fmean, by_source.values()))


def by_halves(runs: Sequence[PublishedRun]) -> Halves:
    """The multiple of each half that makes the mean size of its log errors least, scored on the other half."""
    sampled, errors = sample(runs)
    chosen, scores = [], []
    for fitted_to, reported in halves(sampled):
        best = min(range(len(GRID)), key=lambda at: mean_size(fitted_to, errors, at))
        chosen.append(GRID[best])
        found = [headline(reported, lambda run, at=at: errors[run.id][at]) for at in (best, 0)]
        scores.append([value for one in found for value in (one.median, one.p90)])
    low, middle, high = np.quantile(chosen, [OUTER[0], 0.5, OUTER[1]]).tolist()
    fitted_median, fitted_p90, plain_median, plain_p90 = np.mean(scores, axis=0).tolist()
    return Halves((low, middle, high), (fitted_median, fitted_p90), (plain_median, plain_p90))


def lines(runs: Sequence[PublishedRun]) -> list[str]:
    """The lines of the report: scores of all sources by multiple, and of the halves."""
    sampled, errors = sample(runs)
    table = ["| multiple | median | p90 | bias |", "|---|---|---|---|"]
    for multiple in MULTIPLES:
        at = GRID.index(multiple)
        found = headline(sampled, lambda run, at=at: errors[run.id][at])
        table.append(f"| {multiple:g} | {found.median:.1%} | {found.p90:.1%} | {found.bias:+z.1%} |")
    made = by_halves(runs)
    (low, middle, high), (median, p90), (plain, plain_p90) = made.chosen, made.fitted, made.plain
    return [
        *table,
        "",
        f"Halves choose {low:g} to {high:g} (5% to 95%; {middle:g} in the middle). On sources that were not used the median is "
        f"{median:.1%} and the p90 {p90:.1%} with what the others chose, and {plain:.1%} and {plain_p90:.1%} with 1.",
        "",
    ]


def main() -> None:
    parser = ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--predict", action="store_true", help="predict the sample anew")
    if parser.parse_args().predict:
        predict()
    print("\n".join(lines(published_rows.read(HERE / "predictions.csv"))))


if __name__ == "__main__":
    main()
