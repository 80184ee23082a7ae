"""The hash of a scenario: other files, named by the same text, make another scenario."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from simulator.commands import _scenario_key
from simulator.commands._scenario_key import ScenarioKeys
from simulator.config.load import document_of
from simulator.config.named_parts import CODE, MAY_BE_PATHS
from simulator.config.scenario import NAMED
from simulator.config.shipped_fits import PROFILE

from ..commandline import SMALL, trainsim

CLUSTER = "{name: dgx-h100, nodes: 2}"
FIELDS = {
    ("model",): [("model: {layers: 8, hidden: 1024, heads: 16, vocab: 32000}", "model: part.yaml", "part.yaml")],
    ("cluster",): [(CLUSTER, "part.yaml", "part.yaml")],
    ("cluster", "gpu"): [(CLUSTER, "{name: dgx-h100, gpu: part.yaml}", "part.yaml")],
    ("framework",): [("plan:", "framework: part.yaml\nplan:", "part.yaml")],
    ("cluster", "fabric"): [(CLUSTER, "{name: dgx-h100, fabric: ./part.yaml}", "part.yaml")],
    PROFILE: [(CLUSTER, "{name: dgx-h100, gpu: {name: h100, profile: part.yaml}}", "part.yaml")],
    ("plan", "moe", "routing"): [("tp: 2", f"tp: 2, moe: {{routing: {file}}}", file) for file in ("part.csv", "part.json")],
    ("plan", "schedule"): [
        ("tp: 2", f"tp: 2, schedule: '{name}'", name.partition(":")[0]) for name in ("part.csv", "part.py", "part.py:order")
    ],
    ("cluster", "shape"): [
        (CLUSTER, f"{{name: dgx-h100, shape: '{name}'}}", "part.py") for name in ("part.py", "part.py:Shape")
    ],
}  # fmt: skip
"""Every field that may name a file: what is written in its place, and the file."""
MODULES = [
    ("part:order", ["part.py"]),
    ("whole.part:order", ["whole/__init__.py", "whole/part.py"]),
    ("whole:order", ["whole/__init__.py"]),
    ("spaces.inner.part:order", ["spaces/inner/part.py"]),
]


def key(file: Path) -> str:
    return ScenarioKeys().key(document_of(file))


def test_every_field_that_may_name_a_file_is_tried() -> None:
    assert {*FIELDS} == {*(part.place for part in NAMED), *MAY_BE_PATHS, *CODE, PROFILE}


@pytest.mark.parametrize("from_above", [True, False])
@pytest.mark.parametrize(("old", "new", "name"), [case for cases in FIELDS.values() for case in cases])
def test_the_same_text_with_another_file_is_another_scenario(
    old: str, new: str, name: str, from_above: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = []
    for folder, content in (("a", "nodes: 1\n"), ("b", "nodes: 2\n"), ("a", "nodes: 1\n"), ("a", "nodes: 2\n")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "scenario.yaml").write_text(SMALL.replace(old, new), encoding="utf-8")
        (tmp_path / folder / name).write_text(content, encoding="utf-8")
        monkeypatch.chdir(tmp_path if from_above else tmp_path / folder)
        keys.append(key(Path(folder, "scenario.yaml") if from_above else Path("scenario.yaml")))
    assert keys[0] == keys[2] != keys[1]
    assert keys[3] != keys[0]


@pytest.mark.parametrize("field", ["schedule", "shape"])
@pytest.mark.parametrize(("name", "files"), MODULES)
def test_the_source_of_a_module_belongs_to_a_scenario_and_is_not_run(
    field: str, name: str, files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the current folder, else of another where modules are found; the packages around a module are run with it."""
    old, new = (CLUSTER, "{{name: dgx-h100, shape: '{}'}}") if field == "shape" else ("tp: 2", "tp: 2, schedule: '{}'")
    for folder in ("here", "there"):
        for file in files:
            (tmp_path / folder / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / file).write_text("raise SystemExit\n", encoding="utf-8")
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(SMALL.replace(old, new.format(name)), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path / "there")
    imported = {*sys.modules}
    monkeypatch.chdir(tmp_path / "here")
    for folder in ("here", "there"):
        for file in files:
            before = key(scenario)
            assert key(scenario) == before
            (tmp_path / folder / file).write_text("raise SystemExit  # changed\n", encoding="utf-8")
            assert key(scenario) != before
        monkeypatch.chdir(tmp_path)
    assert {*sys.modules} == imported


@pytest.mark.parametrize("name", [":order", "..part:order", "nowhere:order", "sys:order", "a b:order", "missing.py:order"])
def test_code_that_is_not_there_has_a_hash(name: str, tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(SMALL.replace("tp: 2", f"tp: 2, schedule: '{name}'"), encoding="utf-8")
    assert key(scenario) == key(scenario)


def test_the_solver_belongs_to_a_schedule_that_it_searches_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = []
    for here in (True, False, True):
        monkeypatch.setattr(_scenario_key, "find_spec", lambda name, here=here: here)
        monkeypatch.setattr(_scenario_key, "version_of", lambda name: "9")
        for schedule in ("optimal", "zb-auto"):
            (tmp_path / "scenario.yaml").write_text(SMALL.replace("tp: 2", f"tp: 2, schedule: {schedule}"), encoding="utf-8")
            keys.append(key(tmp_path / "scenario.yaml"))
    assert keys[:2] == keys[4:]
    assert (keys[0] == keys[2], keys[1] == keys[3]) == (False, True)


def test_a_table_of_a_space_that_has_changed_is_searched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("scenario.yaml").write_text(SMALL, encoding="utf-8")
    Path("space.yaml").write_text(
        "tp: [8]\npp: [2]\nmicrobatch: [16]\nschedule: [table.csv]\nrecompute: [none]\nsplit: [even]\n", encoding="utf-8"
    )
    words = ("search", "scenario.yaml", "--space", "space.yaml", "--json")
    times = []
    for table in ("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"):
        Path("table.csv").write_text(table, encoding="utf-8")
        resumed, anew = trainsim(*words, "--store", "plans.sqlite", "--resume"), trainsim(*words)
        assert resumed.record["best"] == anew.record["best"]
        times.append(resumed.record["best"][0]["step_time_s"])
    assert times[0] != times[1]
