"""The README tells the truth: its transcripts, its Python, its scenario file, its map, its files."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from simulator.config import catalog
from simulator.simulation.runnable import load
from simulator.simulation.runnable import scenario as from_mapping

from .readme import CLUSTERS, EXPLAIN, README, SEARCH, rendered

ROOT = README.parent
INPUTS = (".py", ".csv")
"""Files of a study from which the others are made: its scripts, and predictions that take long (`make validation`)."""


def test_readme_transcripts_are_what_the_commands_print() -> None:
    text = README.read_text(encoding="utf-8")
    assert rendered(text) == text, "python -m tests.project.readme writes them anew"


@pytest.mark.slow
def test_docs_transcripts_of_explain_are_what_the_commands_print() -> None:
    text = EXPLAIN.read_text(encoding="utf-8")
    assert rendered(text) == text, "python -m tests.project.readme writes them anew"


@pytest.mark.slow
def test_docs_transcripts_of_search_are_what_the_commands_print(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(README.parent)
    text = SEARCH.read_text(encoding="utf-8")
    assert rendered(text) == text, "python -m tests.project.readme writes them anew"


def test_docs_transcripts_of_clusters_are_what_the_commands_print(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(README.parent)
    text = CLUSTERS.read_text(encoding="utf-8")
    assert rendered(text) == text, "python -m tests.project.readme writes them anew"


def test_readme_scenario_is_the_one_that_ships() -> None:
    block = re.search(r"```yaml\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    assert block
    assert from_mapping(yaml.safe_load(block[1])) == load("llama3-70b-64xh100")


CONTRACT = ROOT.parent / "shared" / "INTERFACE.md"


@pytest.mark.skipif(not CONTRACT.exists(), reason="needs the contract, ../shared/INTERFACE.md")
def test_the_scenario_of_the_contract_runs_as_it_is_written() -> None:
    block = re.search(r"```yaml\n(.*?)```", CONTRACT.read_text(encoding="utf-8"), re.S)
    assert block
    assert from_mapping(yaml.safe_load(block[1])).simulate().metrics.step_time_s > 0


def test_readme_names_places_that_exist() -> None:
    text = README.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (ROOT / target).exists(), target
    for place in re.findall(r"`((?:simulator|workloads|topologies|notebooks|docs|tests|results|benchmarks)[\w/.]*)`", text):
        assert (ROOT / place).exists(), place


def test_readme_names_every_scenario_script() -> None:
    """The contract has several of them beside the scenarios in YAML."""
    named = set(re.findall(r"`(\w+\.py)`", README.read_text(encoding="utf-8")))
    scripts = {script.name for script in catalog.folder("scenarios").glob("*.py")}
    assert len(scripts) > 2
    assert scripts <= named


@pytest.mark.slow
@pytest.mark.parametrize("script", sorted((catalog.folder("scenarios")).glob("*.py")), ids=lambda p: p.stem)
def test_docs_scenario_scripts_run(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(script), run_name="__main__")
    assert len(capsys.readouterr().out.splitlines()) > 2


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", sorted(catalog.files("scenarios")))
def test_docs_scenarios_run(name: str) -> None:
    run = load(name).simulate()
    assert run.fits
    assert 0.15 < run.metrics.mfu < 0.7


@pytest.mark.slow
@pytest.mark.parametrize("script", sorted((ROOT / "notebooks").glob("[0-9]*.py")), ids=lambda p: p.stem)
def test_docs_notebooks_execute_and_are_what_their_scripts_say(script: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("jupytext")
    pytest.importorskip("nbclient")
    execute = runpy.run_path(str(ROOT / "notebooks" / "make.py"))["execute"]
    fresh = execute(script)
    kept = nbformat.read(script.with_suffix(".ipynb"), as_version=4)
    assert [cell.source for cell in kept.cells] == [cell.source for cell in fresh.cells]
    pictures = [o for cell in fresh.cells for o in cell.get("outputs", []) if "image/png" in o.get("data", {})]
    assert pictures
    for old, new in zip(kept.cells, fresh.cells, strict=True):
        assert _text(old) == _text(new)


def _text(cell: object) -> list[str]:
    """What a cell printed or showed as text."""
    outputs = getattr(cell, "outputs", [])
    return [o.get("text") or o.get("data", {}).get("text/plain", "") for o in outputs if o.get("output_type") != "error"]


def table_read(script: Path) -> Path | None:
    """The table of measurements beside this checkout that a study is made from, if it is made from one."""
    named = re.search(r'"shared" / "data" / .*?"([\w.]+)"', script.read_text(encoding="utf-8"))
    return ROOT.parent / "shared" / "data" / named[1] if named else None


@pytest.mark.slow
@pytest.mark.parametrize("script", sorted((ROOT / "results").glob("*/make.py")), ids=lambda p: p.parent.name)
def test_docs_results_are_regenerated_with_zero_diff(script: Path, tmp_path: Path) -> None:
    table = table_read(script)
    if table is not None and not table.exists():
        pytest.skip(f"made from ../shared/data/{table.name}, which is not there")
    checkout = tmp_path / "checkout"
    for folder in ("simulator", "topologies", "workloads", "results"):
        shutil.copytree(ROOT / folder, checkout / folder, ignore=shutil.ignore_patterns("__pycache__", "_scratch"))
    if table is not None:
        (tmp_path / "shared").symlink_to(table.parents[1])
    kept = sorted(file for file in script.parent.iterdir() if file.is_file() and file.suffix not in INPUTS)
    for file in kept:
        (checkout / file.relative_to(ROOT)).unlink()
    again = checkout / script.relative_to(ROOT)
    subprocess.run([sys.executable, str(again)], cwd=checkout, env={**os.environ, "PYTHONPATH": str(checkout)}, check=True)
    written = list((checkout / "topologies").rglob("*.yaml"))
    for file in [*kept, *(ROOT / f.relative_to(checkout) for f in written)]:
        assert (checkout / file.relative_to(ROOT)).read_bytes() == file.read_bytes(), file
