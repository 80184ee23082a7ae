"""Published runs that ship: what their files hold, and that they are the rows of the table that they were taken from."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import simulator as sim
from simulator.config import catalog, feasible, load
from simulator.config.document import read
from simulator.config.scenario import Scenario
from simulator.measurements.csv_tables import Row
from simulator.measurements.csv_tables import read as read_table
from simulator.measurements.published_runs import ABOUT, KEYS, KEYS_OF_RUNS, KEYS_OF_TABLES, rows
from simulator.measurements.training_rows import scenario_of
from simulator.validate import training

from ..project.source import ROOT

TABLE = ROOT.parent / "shared" / "data" / "training.csv"
FILES = catalog.files("published")
ROWS = rows()
REQUIRED = set(KEYS) - {"shared", "flop_convention", "memory_kind"}


def scenario(row: Row) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(row["scenario"])
    return found


def loaded(data: dict[str, Any]) -> Scenario:
    found = load.scenario(data)
    assert isinstance(found, Scenario)
    return replace(found, marks={}, read=())


@pytest.mark.parametrize("name", FILES)
def test_a_file_says_where_its_numbers_are_from_and_holds_nothing_that_is_not_read(name: str) -> None:
    file = read(FILES[name]).data
    assert set(KEYS) >= file.keys() >= REQUIRED
    assert file["tier"] in ("A", "B")
    assert all(isinstance(text, str) for text in [*file["conventions"], *file["assumed"]])
    for table in file["tables"]:
        assert set(KEYS_OF_TABLES) >= table.keys() >= {"where", "runs"}
        for run in table["runs"]:
            assert set(KEYS_OF_RUNS) >= run.keys() >= {"id", "measured"}
    for row in (row for row in ROWS if row["source_key"] == name):
        assert training.measured(row)
        assert row["flop_convention"] or row.get("step_time_s") or row.get("tokens_per_s_per_gpu") or row.get("samples_per_s")
        assert row["mem_kind"] or "mem_gb" not in row


@pytest.mark.parametrize("name", FILES)
def test_a_run_is_a_scenario(name: str) -> None:
    """The last one of each file; all of them stand in the slow test below."""
    *_, row = (row for row in ROWS if row["source_key"] == name)
    found = feasible.check(loaded(scenario(row)))
    assert str(found.cluster.gpus) == row["gpus"]


def test_there_are_two_hundred_runs_and_no_id_stands_twice() -> None:
    assert len(ROWS) >= 200
    assert max(Counter(row["id"] for row in ROWS).values()) == 1
    assert {row[column] for row in ROWS for column in ("source_title", "source_locator")}.isdisjoint({""})
    assert set(ABOUT.values()) < ROWS[0].keys()


def test_runs_span_generations_sizes_and_parallelisms() -> None:
    plans = [scenario(row)["plan"] for row in ROWS]
    gpus = [int(row["gpus"]) for row in ROWS]
    assert (min(gpus), max(gpus)) == (1, 11_616)
    assert {"a100-40gb", "a100-80gb", "h100", "h100-96gb-500w", "h200", "b200", "gb200", "gb300"} <= {
        row["gpu_model"] for row in ROWS
    }
    assert all(any(plan.get(axis, 1) > 1 for plan in plans) for axis in ("tp", "pp", "cp", "ep", "dp", "chunks"))
    assert {"1f1b", "interleaved", "zb-auto", "v-half"} <= {plan.get("schedule", "") for plan in plans}
    assert {"none", "zero1", "zero2", "zero3", "fsdp"} <= {str(plan.get("sharding", "")) for plan in plans}
    assert {"none", "full", "selective"} <= {str(plan.get("recompute", "")) for plan in plans}
    assert {"offload", "vocabulary", "moe", "overlap"} <= {key for plan in plans for key in plan}
    assert {"bf16", "fp16", "fp8", "mxfp8", "nvfp4"} <= {row["dtype"] for row in ROWS}


def as_dated_there(of: Scenario) -> Scenario:
    """A scenario with the profile of the date in the table, which is wrong for some runs (results/validation/misdescribed.py)."""
    return replace(of, framework=sim.framework("llm-foundry-2023")) if of.framework.name == "llm-foundry-2023-10" else of


@pytest.mark.slow
@pytest.mark.skipif(not Path(TABLE).exists(), reason="the table of published runs is not part of this project")
def test_a_run_is_its_row_of_the_table() -> None:
    """The same scenario, measured time and memory, tier and group, however it is written. Steps that we timed are not there."""
    table = {row["id"]: row for row in read_table(TABLE)}
    for row in ROWS:
        if row["source_key"] == "single-gpu-steps":
            continue
        theirs = table[row["id"]]
        assert as_dated_there(loaded(scenario(row))) == loaded(scenario_of(theirs)[0]), row["id"]
        assert training.measured(row) == pytest.approx(training.measured(theirs), rel=1e-5), row["id"]
        assert training.measured_memory_gb(row) == training.measured_memory_gb(theirs)
        assert (row["tier"], training.apart(row)) == (theirs["tier"], training.apart(theirs))
        assert "mem_gb" not in row or row["mem_kind"] == theirs["mem_kind"]
