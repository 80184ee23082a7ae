"""Scenarios that are written into another folder: they name the same files, whatever lies beside the new one."""

from __future__ import annotations

import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import yaml

from simulator.config import catalog
from simulator.config.derived import placed
from simulator.config.document import Document
from simulator.config.load import document_of, load
from simulator.config.scenario import Scenario
from simulator.config.written_paths import plan_with_paths_from, with_paths_from
from simulator.plan.plan import Moe, Plan

from ..commandline import trainsim

MODEL = "{{layers: {layers}, hidden: 512, heads: 8, vocab: 32000, experts: 4, experts_per_token: 2, expert_ffn_hidden: 256}}\n"
SCENARIO = """\
extends: bases/base.yaml
model: m.yaml
cluster: {name: c.yaml, nodes: 2, fabric: ./fabric.yaml}
plan: {tp: 2, pp: 2, ep: 2, moe: {routing: shares.csv}}
framework: {name: ../a/f.yaml}
"""
SPACE = "tp: [1, 2]\npp: [1]\nep: [2]\nmicrobatch: [1]\nschedule: [1f1b]\nrecompute: [none]\nsplit: [even]\n"


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scenario that names files in its folder `a`, from the folder above; `b` has others of the same names."""
    monkeypatch.chdir(tmp_path)
    for folder, layers, nodes in (("a", 2, 2), ("b", 4, 4)):
        Path(folder, "bases").mkdir(parents=True)
        Path(folder, "m.yaml").write_text(MODEL.format(layers=layers), encoding="utf-8")
        Path(folder, "c.yaml").write_text(
            f"gpu: g.yaml\ngpus_per_node: 4\nnodes: {nodes}\nintra_node: NVSwitch 450 GB/s\ninter_node: 4x400 Gbit/s\n",
            encoding="utf-8",
        )
        shutil.copy(catalog.files("gpus")["h100" if folder == "a" else "a100-80gb"], Path(folder, "g.yaml"))
        shutil.copy(catalog.files("fabrics")["ndr-ib" if folder == "a" else "hdr-ib"], Path(folder, "fabric.yaml"))
        shutil.copy(
            catalog.files("frameworks")["megatron-core-2025" if folder == "a" else "deepspeed-2023"], Path(folder, "f.yaml")
        )
        counts = (3, 1, 1, 1) if folder == "a" else (1, 1, 1, 1)
        rows = "".join(f"{expert},{tokens}\n" for expert, tokens in enumerate(counts))
        Path(folder, "shares.csv").write_text(f"expert,tokens\n{rows}", encoding="utf-8")
        Path(folder, "mine.py").write_text("from simulator.schedules.gpipe import order\n", encoding="utf-8")
        Path(folder, "table.csv").write_text("0F0,0B0\n" if folder == "a" else "0F0,0F1,0B0,0B1\n", encoding="utf-8")
        Path(folder, "bases", "base.yaml").write_text("job: {sequence_length: 256, global_batch: 16}\n", encoding="utf-8")
        Path(folder, "s.yaml").write_text(SCENARIO, encoding="utf-8")
    return Path("a/s.yaml")


def loaded(file: Path) -> Scenario:
    """The scenario of a file, without the way to the files that it names."""
    found = load(file, trust=True)
    assert isinstance(found, Scenario)
    fabric = found.cluster.fabric and replace(found.cluster.fabric, file="")
    return replace(found, cluster=replace(found.cluster, fabric=fabric), plan=replace(placed(found), schedule=""))


def written(document: Document, folder: str) -> Path:
    """A document as a file of a folder."""
    file = Path(folder, "written.yaml")
    file.write_text(yaml.safe_dump(with_paths_from(document, Path(folder)).data), encoding="utf-8")
    return file


@pytest.mark.parametrize("schedule", ["1f1b", "mine.py", "mine.py:order", "table.csv"])
@pytest.mark.parametrize("folder", ["a", "b", "b/bases", "."])
def test_a_scenario_in_another_folder_names_the_same_files(schedule: str, folder: str, scenario: Path) -> None:
    scenario.write_text(SCENARIO.replace("pp: 2", f"pp: 2, schedule: '{schedule}'"), encoding="utf-8")
    before = document_of(scenario)
    file = written(before, folder)
    assert loaded(file) == loaded(scenario)
    after = document_of(file).at(("plan", "schedule"))
    if schedule != "1f1b":
        path, named = (str(text).partition(":")[0] for text in (after, schedule))
        assert (Path(folder) / path).resolve() == (Path("a") / named).resolve()
        assert str(after).partition(":")[2] == schedule.partition(":")[2]


def test_a_link_to_the_folder_leads_back_from_where_it_leads(scenario: Path, tmp_path: Path) -> None:
    far = tmp_path / "x/y/z"
    far.mkdir(parents=True)
    Path("link").symlink_to(far, target_is_directory=True)
    assert loaded(written(document_of(scenario), "link")) == loaded(scenario)


def test_settings_absolute_paths_and_names_of_the_catalog(scenario: Path, tmp_path: Path) -> None:
    """What was typed starts at the current folder; a profile is a path in any case."""
    typed = ("framework=megatron-core-2025", "plan.moe.routing=b/shares.csv", f"model={tmp_path / 'a/m.yaml'}")
    found = with_paths_from(document_of(scenario, [*typed, "cluster.gpu={name: h100, profile: p.yaml}"]), Path("b"))
    assert found.at(("framework", "name")) in (None, "megatron-core-2025")
    assert found.at(("plan", "moe", "routing")) == "./shares.csv"
    assert found.at(("model",)) == str(tmp_path / "a/m.yaml")
    assert found.at(("cluster", "name")) == "../a/c.yaml"
    assert found.at(("cluster", "fabric")) == "../a/fabric.yaml"
    assert found.at(("cluster", "gpu")) == {"name": "h100", "profile": "../p.yaml"}
    assert with_paths_from(document_of(scenario), Path("a")).at(("cluster", "fabric")) == "./fabric.yaml"


def test_the_winner_of_a_search_is_written_with_its_files(scenario: Path) -> None:
    Path("space.yaml").write_text(SPACE, encoding="utf-8")
    said = trainsim("search", scenario, "--space", "space.yaml", "--workers", 1, "--top", 1, "--write", "b/best.yaml", "--json")
    again = trainsim("run", "b/best.yaml", "--json").record
    best = said.record["best"][0]
    assert (again["step_time_s"], again["peak_memory_bytes"]) == (best["step_time_s"], best["peak_memory_bytes"])
    won, given = loaded(Path("b/best.yaml")), loaded(scenario)
    assert (won.model, won.cluster, won.framework) == (given.model, given.cluster, given.framework)
    assert asdict(won.plan.moe) == asdict(given.plan.moe)


def test_a_plan_that_was_read_keeps_its_shares_of_tokens() -> None:
    plan = Plan(moe=Moe(routing="a/shares.csv"))
    assert plan_with_paths_from(plan, Path("b")).moe.routing == "../a/shares.csv"
    assert plan_with_paths_from(Plan(), Path("b")) == Plan()


def test_advice_is_written_with_its_files(scenario: Path) -> None:
    assert trainsim("advise", scenario, "--out", "b/advised.yaml").code == 0
    advised, given = loaded(Path("b/advised.yaml")), loaded(scenario)
    assert (advised.model, advised.cluster, advised.framework) == (given.model, given.cluster, given.framework)
    printed = trainsim("advise", scenario, "--json").record["yaml"]
    Path("printed.yaml").write_text(printed, encoding="utf-8")
    assert loaded(Path("printed.yaml")) == advised
    assert trainsim("advise", "a/m.yaml", "--cluster", "a/c.yaml", "--out", "b/typed.yaml").code == 0
    assert loaded(Path("b/typed.yaml")).model == given.model
