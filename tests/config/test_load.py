"""Where a scenario's values come from: names, paths, files that extend files, and settings that change any field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulator as sim
from simulator.config import catalog
from simulator.config.scenario import ScenarioFile
from simulator.errors import UserError
from simulator.fields import Declared, keys

from ..commandline import SMALL, trainsim

MODEL = "layers: 8\nhidden: 1024\nheads: 16\nvocab: 32000\n"
CLUSTER = "gpu: gpus/mine.yaml\ngpus_per_node: 4\nnodes: 2\nintra_node: NVSwitch 450 GB/s\ninter_node: 4x400 Gbit/s\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a scenario, a model, a cluster and a GPU that refer to each other by relative paths."""
    (tmp_path / "gpus").mkdir()
    (tmp_path / "gpus" / "mine.yaml").write_text((catalog.folder("gpus") / "h100.yaml").read_text(encoding="utf-8"))
    (tmp_path / "model.yaml").write_text(MODEL)
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "scenario.yaml").write_text("model: model.yaml\ncluster: ./cluster.yaml\nplan: {tp: 2}\n")
    return tmp_path


def styled(name: str, style: int) -> str:
    return [name, name.upper(), name.replace("-", "_"), name.replace("_", "-").title(), f" {name} "][style]


@given(st.sampled_from(["models", "clusters", "gpus", "schedules", "shapes"]), st.integers(0, 99), st.integers(0, 4))
def test_a_name_is_a_name_in_any_case_with_dashes_or_underscores(kind: str, which: int, style: int) -> None:
    names = list(catalog.files(kind))
    name = names[which % len(names)]
    assert catalog.find(kind, styled(name, style)) == catalog.files(kind)[name]


def test_names_of_a_scenario_are_those_of_the_catalog() -> None:
    data = {"model": "LLAMA3_8B", "cluster": {"name": "DGX_H100", "gpu": "A100_80GB"}, "plan": {"schedule": "GPipe"}}
    scenario = sim.scenario(data)
    assert (scenario.model.name, scenario.cluster.name, scenario.cluster.gpu.name) == ("llama3-8b", "dgx-h100", "a100-80gb")


def test_a_path_is_seen_from_the_file_that_holds_it(folder: Path) -> None:
    scenario = sim.load(folder / "scenario.yaml")
    assert (scenario.model.name, scenario.model.layers) == ("model", 8)
    assert (scenario.cluster.name, scenario.cluster.gpu.name, scenario.cluster.gpus) == ("cluster", "mine", 8)


def test_a_path_is_also_seen_from_the_current_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "inner").mkdir()
    (folder / "inner" / "s.yaml").write_text((folder / "scenario.yaml").read_text())
    with pytest.raises(UserError, match="no file"):
        sim.load(folder / "inner" / "s.yaml")
    monkeypatch.chdir(folder)
    assert sim.load("inner/s.yaml").model.layers == 8
    assert sim.model("./model.yaml").layers == 8
    assert sim.load("scenario.yaml", ["model=model.yaml"]).model.layers == 8


def test_a_mapping_with_a_name_starts_from_its_file(folder: Path) -> None:
    data = {"model": {"name": "llama3-8b", "layers": 4}, "cluster": {"name": str(folder / "cluster.yaml"), "nodes": 1}}
    scenario = sim.scenario(data)
    assert (scenario.model.layers, scenario.model.hidden) == (4, 4096)
    assert scenario.cluster.gpus == 4


def test_a_whole_mapping_may_have_any_name() -> None:
    shape = {"layers": 8, "hidden": 1024, "heads": 16, "vocab": 32000}
    assert sim.model({"name": "mine", **shape}).name == "mine"
    with pytest.raises(UserError, match="no model 'mine'"):
        sim.model({"name": "mine", "layers": 8})


def test_a_single_gpu_needs_no_links() -> None:
    assert sim.cluster({"gpu": "h100", "gpus_per_node": 1}).gpus == 1
    with pytest.raises(sim.UserError, match="intra_node is missing"):
        sim.cluster({"gpu": "h100", "gpus_per_node": 2})
    with pytest.raises(sim.UserError, match="intra_node is missing"):
        sim.cluster({"gpu": "h100", "gpus_per_node": 1, "nodes": 2, "inter_node": "400 Gbit/s"})


def test_a_scenario_extends_another_by_path_or_by_name(folder: Path) -> None:
    middle, top = folder / "middle.yaml", folder / "top.yaml"
    middle.write_text("extends: scenario.yaml\nplan: {pp: 2}\njob: {global_batch: 8}\n")
    top.write_text("extends: middle.yaml\nplan: {tp: 4}\ncluster: {nodes: 4}\n")
    scenario = sim.load(top)
    assert (scenario.plan.tp, scenario.plan.pp, scenario.job.global_batch) == (4, 2, 8)
    assert (scenario.cluster.gpus, scenario.model.layers) == (16, 8)
    top.write_text("extends: LLAMA3_70B-64xh100\nplan: {tp: 4}\n")
    assert asdict(sim.load(top).plan) == asdict(sim.load("llama3-70b-64xh100").plan) | {"tp": 4}


def test_files_that_extend_each_other_are_refused(folder: Path) -> None:
    (folder / "a.yaml").write_text("extends: b.yaml\n")
    (folder / "b.yaml").write_text("extends: ./a.yaml\n")
    with pytest.raises(UserError, match="leads back") as refused:
        sim.load(folder / "a.yaml")
    assert refused.value.faults[0].where == f"{folder / 'b.yaml'}:1:1"


def leaves(schema: type[Declared]) -> Iterator[str]:
    """Every field of a scenario by its dotted name."""
    for key, spec in keys(schema).items():
        inner = spec.form.record
        if inner is not None and inner is spec.form.kind and not spec.form.optional:
            yield from (f"{key}.{leaf}" for leaf in leaves(inner))
        elif spec.form.origin is not Mapping:
            yield key


@pytest.mark.parametrize("field", [*leaves(ScenarioFile)])
def test_a_setting_overrides_any_field_and_is_where_a_fault_is_placed(field: str, folder: Path) -> None:
    wrong = "[[[1]]]"
    with pytest.raises(UserError) as refused:
        sim.load(folder / "scenario.yaml", [f"{field}={wrong}"])
    assert all(fault.where == f"--set {field}={wrong}" and field in fault.message for fault in refused.value.faults)


def test_settings_are_read_as_yaml_and_the_last_one_counts(folder: Path) -> None:
    settings = ["plan.tp=1", " plan.tp = 4 ", "plan.overlap={tp: true}", 'job.dtype="fp16"', "plan.dp=null"]
    scenario = sim.load(folder / "scenario.yaml", settings)
    assert (scenario.plan.tp, scenario.plan.dp, scenario.job.dtype) == (4, None, "fp16")
    assert (scenario.plan.overlap.tp, scenario.plan.overlap.dp) == (True, None)


def test_a_setting_writes_into_a_name_and_into_a_list(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("model: llama3-8b\ncluster: dgx-h100\nperturb: [{rank: 1, speed: 0.5}, {rank: 2, speed: 0.5}]\n")
    settings = ["model.layers=4", "cluster.gpu.memory=1 TB", "perturb.1.speed=0.25"]
    scenario = sim.load(file, settings)
    assert (scenario.model.name, scenario.model.layers, scenario.cluster.gpu.name) == ("llama3-8b", 4, "h100")
    assert scenario.cluster.gpu.memory_bytes == 10**12
    assert [p.speed for p in scenario.perturb] == [0.5, 0.25]


@pytest.mark.parametrize(
    ("base", "over", "expected"),
    [
        ("plan: {recompute: none}", "plan.recompute={scope: full, every: 2}", sim.Recompute("full", every=2)),
        ("plan: {recompute: full}", "plan.recompute.every=2", sim.Recompute("full", every=2)),
        ("plan: {offload: optimizer}", "plan.offload.activations=0.5", sim.Offload(0.5, True)),
        ("plan: {offload: none}", "plan.offload={activations: 0.5}", sim.Offload(0.5)),
        ("plan: {sharding: zero1}", "plan.sharding.group=4", sim.Sharding("zero1", 4)),
        ("job: {optimizer: adam}", "job.optimizer={kind: muon}", sim.Optimizer("muon")),
    ],
)
def test_keys_may_be_set_where_a_word_stands(base: str, over: str, expected: Any, tmp_path: Path) -> None:
    file, child = tmp_path / "base.yaml", tmp_path / "child.yaml"
    file.write_text(f"model: llama3-8b\ncluster: dgx-h100\n{base}\n")
    part, _, field = over.partition("=")[0].partition(".")
    scenario = sim.load(file, [over])
    assert getattr(getattr(scenario, part), field.partition(".")[0]) == expected
    text = over.partition("=")[2]
    if field.count("."):
        field, _, key = field.partition(".")
        text = f"{{{key}: {text}}}"
    child.write_text(f"extends: base.yaml\n{part}: {{{field}: {text}}}\n")
    assert sim.load(child) == scenario


@pytest.mark.parametrize("setting", ["plan.nope.x=4", "plan.moe.routing=drawn", "plan.moe={capacity: 2}"])
def test_a_fault_of_a_mapping_that_a_setting_made_is_placed_there(setting: str, folder: Path) -> None:
    with pytest.raises(UserError) as refused:
        sim.load(folder / "scenario.yaml", [setting]).simulate()
    assert [fault.where for fault in refused.value.faults] == [f"--set {setting}"]


@pytest.mark.parametrize("setting", ["plan.tp", "=3", "plan..tp=3", ".tp=3", "plan.tp={", "plan.tp=[1", "perturb.0.speed=2"])
def test_what_sets_nothing_is_refused(setting: str, folder: Path) -> None:
    (folder / "scenario.yaml").write_text(SMALL + "perturb: []\n")
    said = trainsim("run", folder / "scenario.yaml", "--set", setting)
    assert said.code == 2
    assert "--set" in said.err
    assert "hint: " in said.err


def test_every_wrong_setting_is_told() -> None:
    with pytest.raises(UserError) as refused:
        sim.load("llama3-70b-64xh100", ["plan.tp", "job=", "=1"])
    assert len(refused.value.faults) == 2
    with pytest.raises(UserError) as refused:
        sim.load("llama3-70b-64xh100", ["plan.tq=1", "job.x=1", "plan.pp=0"])
    assert [fault.where for fault in refused.value.faults] == ["--set job.x=1", "--set plan.pp=0", "--set plan.tq=1"]


def test_a_file_in_the_current_folder_goes_before_a_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "llama3-70b-64xh100").write_text(SMALL)
    assert sim.load("llama3-70b-64xh100").model.layers == 8
    with pytest.raises(UserError, match="no scenario 'scenario'") as refused:
        sim.load("scenario")
    assert refused.value.hint == "did you mean 'scenario.yaml'?"


@pytest.mark.parametrize("name", ["", ".", "nope", "x" * 5000, "a\0b", "no/such/file", "/"])
def test_what_names_no_scenario_is_refused(name: str) -> None:
    said = trainsim("run", name)
    assert said.code == 2
    assert said.err.startswith("error: ")
    assert "Traceback" not in said.err
