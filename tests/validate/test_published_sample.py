"""A sample of the published runs, predicted: no source is further off than `published_sample.json` says, by more than a point.

`python -m tests.validate.published_sample` writes that file anew, when costs have changed for a good reason.
"""

from __future__ import annotations

import json
import math

import pytest

from simulator.validate import training
from simulator.validate.report import compare_rows

from .published_sample import FILE, IN_ALL, PUBLISHED

SLACK = 0.01
"""How much the median error of a source may grow."""


def test_a_sample_of_published_runs_is_predicted_as_well_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "FEW", IN_ALL)  # one process: other tests take the other cores
    bars = json.loads(FILE.read_text())
    runs = {name for bar in bars.values() for name in bar["runs"]}
    assert len(runs) == IN_ALL
    report = compare_rows(training, [row for row in PUBLISHED if row["id"] in runs], "sample")
    assert {row.id for row in report.rows} == runs
    assert all(row.predicted and math.isfinite(row.predicted) and row.memory_gb and not row.skipped for row in report.rows)
    worse = {
        source: (of["median"], bars[source]["median"])
        for source, of in report.sources.items()
        if of["median"] > bars[source]["median"] + SLACK
    }
    assert not worse, "median errors now, and as written down"
