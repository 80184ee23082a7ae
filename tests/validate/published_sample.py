"""The sample of the published runs that `make test` predicts, and the median error of each of its sources.

The files take turns with their runs of the least work, layers times microbatches of a data-parallel rank, 32 in all.
`python -m tests.validate.published_sample` writes the sample and its medians into `published_sample.json`.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from simulator.config import load
from simulator.config.scenario import Scenario
from simulator.measurements.csv_tables import Row
from simulator.measurements.published_runs import rows
from simulator.validate import training
from simulator.validate.report import Report, compare_rows

FILE = Path(__file__).with_suffix(".json")
PUBLISHED = rows()
IN_ALL = 32


def work(row: Row) -> int:
    """Layers times microbatches of a data-parallel rank: about how many operations a simulation has."""
    found = load.scenario(json.loads(row["scenario"]))
    assert isinstance(found, Scenario)
    plan, job = found.plan, found.job
    replicas = found.cluster.gpus // (plan.tp * plan.pp * plan.cp)
    return found.model.layers * (job.global_batch // (replicas * job.microbatch_size))


def sample() -> list[Row]:
    """The runs of the least work, in the order of the files."""
    turns, seen = list[tuple[int, int, str]](), Counter[str]()
    for steps, name, source in sorted((work(row), row["id"], row["source_key"]) for row in PUBLISHED):
        turns.append((seen[source], steps, name))
        seen[source] += 1
    chosen = {name for _, _, name in sorted(turns)[:IN_ALL]}
    return [row for row in PUBLISHED if row["id"] in chosen]


def record(report: Report) -> dict[str, dict[str, object]]:
    """The runs of each source, and the median of their errors."""
    runs = {source: [row.id for row in report.rows if row.source_key == source] for source in report.sources}
    return {source: {"median": round(of["median"], 4), "runs": runs[source]} for source, of in report.sources.items()}


if __name__ == "__main__":
    FILE.write_text(json.dumps(record(compare_rows(training, sample(), "sample")), indent=1) + "\n")
