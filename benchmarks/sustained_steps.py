"""Errors of whole steps in bursts and at sustained clocks: 212 published rows, and ratios between boards of Blackwell.

python benchmarks/sustained_steps.py TABLE.csv

The rows are those of benchmarks/sustained_steps.txt: no recomputation, no division of parameters, no experts, no shared
sequences, no offload, the vocabulary on the last stage, a layer for each stage and chunk. Profiles of frameworks name the library
of attention of their date. Nothing here is fitted to a step.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, median, quantiles
from typing import Any

from simulator.measurements.csv_tables import Row, read
from simulator.measurements.training_rows import scenario_of
from simulator.validate.training import _simulated, measured

ROWS = Path(__file__).with_suffix(".txt")
RATIOS = (("gb300", "b200"), ("gb300", "gb200"))


def described(row: Row, power: str) -> str:
    """The scenario of a row as JSON, in bursts or at sustained clocks."""
    scenario: dict[str, Any] = scenario_of(row)[0]
    return json.dumps({**scenario, "fidelity": {"power": power, "calibration": "kernels"}})


def errors(rows: Sequence[Row], power: str) -> dict[str, float]:
    """Relative errors of the predicted steps, by id."""
    texts = [described(row, power) for row in rows]
    outcomes = dict(_simulated(list(dict.fromkeys(texts))))
    found = {}
    for row, text in zip(rows, texts, strict=True):
        outcome, time_s = outcomes[text], measured(row)
        if isinstance(outcome, str) or not time_s:
            print(f"{row['id']}: {outcome if isinstance(outcome, str) else 'no time'}")
        else:
            found[row["id"]] = outcome.step_s / time_s - 1
    return found


def p90(values: Sequence[float]) -> float:
    return quantiles(values, n=10, method="inclusive")[-1] if len(values) > 1 else values[0]


def by_source(rows: Sequence[Row], found: Mapping[str, float], column: str) -> Iterator[tuple[str, list[float]]]:
    """The errors of every source, or of every GPU of every source."""
    for name in dict.fromkeys(" ".join(row[key] for key in column.split()) for row in rows):
        own = [found[row["id"]] for row in rows if row["id"] in found and " ".join(row[k] for k in column.split()) == name]
        if own:
            yield name, own


def ratios(rows: Sequence[Row], found: Mapping[str, float]) -> Iterator[str]:
    """Published and predicted ratios of step times on two boards: Llama 3 8B in mxfp8, by GPUs and batch."""
    steps: dict[tuple[str, ...], dict[str, tuple[float, float]]] = {}
    for row in rows:
        time_s = measured(row)
        if "8b" in row["model_name"].lower() and row["dtype"] == "mxfp8" and row["id"] in found and time_s:
            key = tuple(row[name] for name in ("gpus", "global_batch", "micro_batch", "seq_len", "framework_date"))
            steps.setdefault(key, {})[row["gpu_model"]] = (time_s, time_s * (1 + found[row["id"]]))
    for key, boards in steps.items():
        for over, under in RATIOS:
            if over in boards and under in boards:
                published, predicted = (boards[over][i] / boards[under][i] for i in (0, 1))
                yield f"{over} over {under} {key}: published {published:.3f}, predicted {predicted:.3f}"


def main() -> None:
    if len(sys.argv) < 2 or not Path(sys.argv[1]).exists():
        print("needs a table of training runs")
        return
    wanted = set(ROWS.read_text().split())
    rows = [row for row in read(Path(sys.argv[1])) if row["id"] in wanted]
    for power in ("burst", "sustained"):
        found = errors(rows, power)
        print(f"{power}: {len(found)} rows".ljust(40) + f"{'n':>4}{'median':>9}{'p90':>8}{'bias':>8}")
        for column in ("source_key", "source_key gpu_model"):
            scores = []
            for name, own in by_source(rows, found, column):
                off = list(map(abs, own))
                scores.append((median(off), p90(off)))
                print(f"  {name:38}{len(own):>4}{median(off):>9.1%}{p90(off):>8.1%}{median(own):>+8.1%}")
            print(f"  {'mean over ' + column:42}{mean(m for m, _ in scores):>9.1%}{mean(p for _, p in scores):>8.1%}")
        print(*ratios(rows, found), sep="\n")


if __name__ == "__main__":
    main()
