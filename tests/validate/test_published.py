"""`trainsim validate --kind training` without a table: published runs that ship, shown as scenarios and saved as they come."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from simulator.commands import _saved_outcomes
from simulator.commands._saved_outcomes import SavedOutcomes
from simulator.config import load
from simulator.measurements import published_runs
from simulator.validate import training
from simulator.validate.report import Predicted, compare_rows, rows_of

from ..commandline import trainsim
from .test_training import ROWS, table

RUN = "zero-bubble-019"


def test_without_a_table_the_published_runs_are_the_rows() -> None:
    assert rows_of("training", None) == published_runs.rows()
    assert trainsim("validate", "--kind", "kernels").code == 2


def test_a_row_is_shown_as_the_scenario_that_runs(tmp_path: Path) -> None:
    said = trainsim("validate", "--kind", "training", "--show", RUN)
    assert said.code == 0
    assert said.out.startswith(f"# {RUN}: Zero Bubble Pipeline Parallelism")
    assert "# measured: samples_per_s " in said.out
    (tmp_path / "shown.yaml").write_text(said.out)
    (row,) = (row for row in published_runs.rows() if row["id"] == RUN)
    assert load.load(tmp_path / "shown.yaml") == load.scenario(json.loads(row["scenario"]))
    assert trainsim("validate", "--kind", "training", "--show", RUN, "--json").record == json.loads(row["scenario"])


def test_a_row_of_a_table_is_shown_with_what_its_scenario_leaves_out(tmp_path: Path) -> None:
    rows = table(tmp_path / "rows.csv", ROWS)
    said = trainsim("validate", "--kind", "training", rows, "--show", "run-1")
    assert "# note: launch_blocking: " in said.out
    (tmp_path / "shown.yaml").write_text(said.out)
    run = trainsim("run", tmp_path / "shown.yaml", "--json").record
    assert run["step_time_s"] == compare_rows(training, ROWS[1:2], "rows").rows[0].predicted


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--kind", "training", "--show", "zero-bubble-19"), "did you mean 'zero-bubble-019'?"),
        (("--kind", "training", "FILE", "--show", "run-2"), "tp, pp: blank, the row has no layout"),
        (("--kind", "kernels", "FILE", "--show", "run-0"), "kernels become no scenarios"),
        (("--kind", "training", "--show", RUN, "--rows"), "predicts nothing"),
        (("--kind", "kernels", "FILE", "--save", "here.jsonl"), "kernels are predicted too quickly to be saved"),
        (("--kind", "training", "FILE", "--save", "FILE"), "no outcome of a validation"),
        (("--kind", "training", "FILE", "--save", "nowhere/here.jsonl"), "does not exist"),
    ],
)
def test_what_cannot_be_shown_or_saved_is_refused(args: tuple[str, ...], says: str, tmp_path: Path) -> None:
    file = table(tmp_path / "rows.csv", ROWS)
    said = trainsim("validate", *(file if arg == "FILE" else arg for arg in args))
    assert said.code == 2
    assert says in said.err
    assert not Path("here.jsonl").exists(), "a command that is refused leaves no file"


def test_a_stopped_validation_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An outcome that was not written whole runs again; others are read, also those that are a reason."""
    path, ran, run = tmp_path / "outcomes.jsonl", list[str](), training._run
    monkeypatch.setattr(training, "_run", lambda text: ran.append(text) or run(text))
    first = compare_rows(training, ROWS, "rows", saved=SavedOutcomes(path))
    written = path.read_text()
    assert (len(ran), written.count("\n")) == (3, 3)
    path.write_text(written[:-20])
    assert compare_rows(training, ROWS, "rows", saved=SavedOutcomes(path)) == first
    assert (len(ran), path.read_text()) == (4, written)
    assert compare_rows(training, ROWS, "rows", saved=SavedOutcomes(path)) == first
    assert len(ran) == 4


def test_what_was_saved_and_is_no_outcome_is_simulated_again(tmp_path: Path) -> None:
    path = tmp_path / "outcomes.jsonl"
    first = compare_rows(training, ROWS, "rows", saved=SavedOutcomes(path))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    made = lines[0]["outcome"]
    for wrong in (1, [], {}, {**made, "step_s": "1"}, {**made, "memory": {}}, {**made, "memory": dict.fromkeys(made["memory"])}):
        path.write_text("".join(json.dumps({**line, "outcome": wrong}) + "\n" for line in lines))
        assert compare_rows(training, ROWS, "rows", saved=SavedOutcomes(path)) == first, wrong


def test_sources_count_alike_and_groups_are_scored_apart() -> None:
    """Errors of 1 to 10% of one source, 20% of a source with a derived row, and 90% of an anchor."""
    sizes = [("many", "A", n / 100) for n in range(1, 11)] + [("one", "B", 0.2), ("anchor", "C", 0.9)]
    given = [
        {**ROWS[0], "id": str(i), "source_key": source, "tier": tier, "step_time_s": "1", "mem_gb": "8"}
        for i, (source, tier, _) in enumerate(sizes)
    ]
    given[10]["facts"] = "heads=derived"
    errors = iter(error for *_, error in sizes)
    made = {"predictions": lambda rows, gpu: [Predicted(1 + next(errors), memory_gb=6.0) for _ in rows]}
    record = compare_rows(SimpleNamespace(**{**vars(training), **made}), given, "rows").as_dict()
    of_many, overall = record["sources"]["many"], record["overall"]
    assert (of_many["n"], of_many["median"], of_many["p90"]) == (10, pytest.approx(0.055), pytest.approx(0.09))
    assert of_many["memory"] == {"n": 10, "median": 0.25, "p90": 0.25, "bias": -0.25}
    over = {"sources": 2, "n": 11, "median": 0.1275, "p90": 0.145, "bias": 0.1275}
    assert overall["over_sources"] == pytest.approx(over)
    assert overall["p90"] == pytest.approx(0.2)
    assert {group: of["n"] for group, of in record["apart"].items()} == {"derived layers or heads": 1, "tier C": 1}


def test_outcomes_of_another_version_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = SavedOutcomes(tmp_path / "outcomes.jsonl")
    saved.add("a scenario", "a reason")
    assert SavedOutcomes(tmp_path / "outcomes.jsonl").get("a scenario") == "a reason"
    assert SavedOutcomes(tmp_path / "outcomes.jsonl").get("another") is None
    monkeypatch.setattr(_saved_outcomes, "version", lambda: "another")
    assert SavedOutcomes(tmp_path / "outcomes.jsonl").get("a scenario") is None
