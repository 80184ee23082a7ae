"""Rows of a table, which is a file: they run no code, and their words count in any case."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator.errors import UserError
from simulator.validate import row_scenario, training

from ..made_up_runs import row


@pytest.mark.parametrize("field", ["schedule", "shape"])
@pytest.mark.parametrize("name", ["{folder}/found.py:order", "{folder}/found.py", "found:order"])
def test_a_row_runs_no_code(field: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "found.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\ndef order(rank, shape): return []\n")
    monkeypatch.chdir(tmp_path)
    named = {field: name.format(folder=tmp_path)}
    scenario = {
        "model": "llama3-8b",
        "cluster": {"name": "dgx-h100", "nodes": 1, **(named if field == "shape" else {})},
        "plan": {"tp": 8, **(named if field == "schedule" else {})},
    }
    made = {**row(), "scenario": json.dumps(scenario), "mem_kind": ""}
    (found,) = training.predictions([made], None)
    assert "is code, which a file may not run" in str(found)
    with pytest.raises(UserError, match="is code"):
        training.memory_gb(made)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("column", ["recompute", "flop_convention", "mem_kind"])
def test_words_of_a_row_count_in_any_case(column: str) -> None:
    words = {"recompute": "full", "flop_convention": "hardware", "mem_kind": "allocated_peak"}
    plain = {**row(), **words}
    spelled = {**plain, column: f" {words[column].title()} "}
    assert training._flop_per_token(plain) == training._flop_per_token(spelled)
    assert training._kind(plain) == training._kind(spelled) == "allocated_peak"


def test_a_row_is_not_shown_in_place_of_another_of_its_name() -> None:
    named = [{**row(), "id": name} for name in ("a", "b", "a", "3", "")]
    assert row_scenario.of_row("training", named, "b").row is named[1]
    with pytest.raises(UserError, match="2 rows are called"):
        row_scenario.of_row("training", named, "a")
    assert row_scenario.of_row("training", named, "4").row is named[4]
