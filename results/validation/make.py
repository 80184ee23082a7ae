"""Regenerates predicted beside measured steps of published runs.

python results/validation/make.py              # the pages and pictures, from predictions.csv
python results/validation/make.py --predict    # predictions.csv too, which takes more than eight minutes on two cores
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

import ablations
import accuracy_pages
import accuracy_plots
import halves
import published_rows
from published_rows import PublishedRun

from simulator.commands._saved_outcomes import SavedOutcomes
from simulator.config.step_constants import FILE, text_with
from simulator.files import atomic
from simulator.measurements.csv_tables import read
from simulator.validate import training

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TABLE = ROOT.parent / "shared" / "data" / "training.csv"
PREDICTIONS = HERE / "predictions.csv"
TEXTS = (HERE / "report.md", ROOT / "docs" / "accuracy.md", ROOT / "topologies" / FILE)
OUTCOMES = ROOT / "results" / "_scratch" / "published_runs.jsonl"
MOST_VARIED = 8
"""Rows of a source whose ablations are predicted."""


def predict(most: int, varied: int) -> None:
    """Predicts at most so many rows of each source, all for 0, and the ablations of some; goes on where it was stopped."""
    table = read(TABLE) if TABLE.exists() else training.published()
    rows = published_rows.thinned(table, most)
    OUTCOMES.parent.mkdir(exist_ok=True)
    saved = SavedOutcomes(OUTCOMES)
    runs = published_rows.predicted(table, rows, saved)
    chosen = [row for row in rows if row["tier"] in published_rows.HEADLINE]
    ids = {row["id"] for row in published_rows.thinned(chosen, varied)}
    published_rows.write(ablations.with_variants(runs, rows, ids, saved), PREDICTIONS)


def pages(runs: Sequence[PublishedRun]) -> dict[Path, str]:
    """Every file of text that the predictions make."""
    chosen = accuracy_pages.headline_runs(runs)
    constant = halves.model_error_constant(chosen)
    made = accuracy_pages.report(runs, constant), accuracy_pages.accuracy(runs, constant), text_with(constant)
    return dict(zip(TEXTS, made, strict=True))


def pictures(runs: Sequence[PublishedRun]) -> None:
    """Draws every picture."""
    chosen = accuracy_pages.headline_runs(runs)
    accuracy_plots.scatter(chosen, HERE / "scatter.png")
    accuracy_plots.sources(chosen, HERE / "sources.png")
    accuracy_plots.mechanisms(accuracy_pages.by_mechanism(runs), HERE / "mechanisms.png")
    scores = accuracy_pages.compared(runs)
    accuracy_plots.ablations({name: (score.median, score.p90) for name, score in scores.items()}, HERE / "ablations.png")


def main() -> None:
    parser = ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--predict", action="store_true", help="predict all rows anew")
    parser.add_argument("--most", type=int, default=0, help="rows of a source; 0 for all")
    parser.add_argument("--varied", type=int, default=MOST_VARIED, help="rows of a source whose ablations are predicted")
    given = parser.parse_args()
    if given.predict:
        predict(given.most, given.varied)
    runs = published_rows.read(PREDICTIONS)
    for path, text in pages(runs).items():
        path.parent.mkdir(exist_ok=True)
        with atomic(path) as partial:
            partial.write_text(text, encoding="utf-8")
    pictures(runs)


if __name__ == "__main__":
    main()
