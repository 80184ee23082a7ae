"""Regenerates predicted beside measured steps of published runs.

python results/validation/make.py              # the pages and pictures, from predictions.csv
python results/validation/make.py --predict    # predictions.csv too, which takes more than eight minutes on two cores
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap

import ablations
import accuracy_pages
import accuracy_plots
import fitted
import halves
import published_rows
from published_rows import PublishedRun

from simulator.commands._saved_outcomes import SavedOutcomes
from simulator.config.step_constants import FILE, StepConstant, arithmetic, step_constants
from simulator.files import atomic
from simulator.measurements.csv_tables import read
from simulator.validate import training

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TABLE = ROOT.parent / "shared" / "data" / "training.csv"
PREDICTIONS = HERE / "predictions.csv"
TEXTS = (HERE / "report.md", ROOT / "docs" / "accuracy.md", ROOT / "topologies" / FILE)
CONSTANTS_HEAD = """# Global constants of a step, beyond those of kernels, collectives and power: at most eight, none of
# them of a source, a model or a GPU. results/validation/make.py fits and writes them.
constants:
"""
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
    runs = ablations.with_variants(runs, rows, ids, saved)
    published_rows.write(runs, PREDICTIONS)
    found = fitted.constant(accuracy_pages.headline_runs(runs)).value
    if found != arithmetic():
        print(f"{fitted.NAME}: {found} fits better than {arithmetic()}, with which these steps were predicted: predict again")


def constants_file(*made: StepConstant) -> str:
    """The file of the global constants of steps, of which those made from published steps are written anew."""
    return CONSTANTS_HEAD + "".join(map(entry, ({**step_constants(), **{one.name: one for one in made}}).values()))


def entry(constant: StepConstant) -> str:
    """A constant as an entry of the file."""
    low, high = constant.interval
    lines = [f"  - name: {constant.name}", f"    value: {constant.value}", f"    interval: [{low}, {high}]"]
    for key in ("obtained", "moves"):
        lines += [f"    {key}: >-", *wrap(getattr(constant, key), 130, initial_indent=" " * 6, subsequent_indent=" " * 6)]
    return "\n".join([*lines, ""])


def pages(runs: Sequence[PublishedRun]) -> dict[Path, str]:
    """Every file of text that the predictions make."""
    chosen = accuracy_pages.headline_runs(runs)
    constant, factor = halves.model_error_constant(chosen), fitted.constant(chosen)
    made = accuracy_pages.report(runs, constant), accuracy_pages.accuracy(runs, constant), constants_file(factor, constant)
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
