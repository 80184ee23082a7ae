"""A file of another kind than the one that was asked for is one fault, which says what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

import simulator as sim
from simulator.config import catalog
from simulator.errors import UserError

from ..commandline import SMALL, trainsim

TRIANGLE = "docs/clusters/triangle.yaml"
SCENARIO = str(catalog.files("scenarios")["llama3-70b-64xh100"])
MODEL = str(catalog.files("models")["llama3-8b"])
GPU = str(catalog.files("gpus")["h100"])
FRAMEWORK = str(catalog.files("frameworks")["megatron-core-2025"])


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (("run", TRIANGLE), "a cluster, not a scenario", "`trainsim topology` takes it"),
        (("run", MODEL), "a model, not a scenario", "`model: FILE`"),
        (("run", GPU), "a GPU, not a scenario", "`gpu: FILE`"),
        (("run", FRAMEWORK), "a framework, not a scenario", "`framework: FILE`"),
        (("topology", SCENARIO), "a scenario, not a cluster", "`trainsim run` takes it"),
        (("collective", "all_reduce", "--cluster", MODEL), "a model, not a cluster", "`model: FILE`"),
    ],
)
def test_a_file_of_another_kind_is_one_fault(words: tuple[str, ...], message: str, hint: str) -> None:
    said = trainsim(*words)
    assert said.code == 2
    assert f"this is {message}" in said.err
    assert hint in said.err
    assert "unknown key" not in said.err
    assert len(trainsim(*words, "--json").record["faults"]) == 1


def test_python_says_the_same() -> None:
    with pytest.raises(UserError, match="this is a cluster, not a model"):
        sim.model(TRIANGLE)
    with pytest.raises(UserError, match="this is a scenario, not a cluster"):
        sim.cluster(Path(SCENARIO), nodes=2)
    with pytest.raises(UserError, match="this is a model, not a framework"):
        sim.framework(MODEL)


@pytest.mark.parametrize("text", ["gpu: h100\n", "modle: llama3-8b\nclutser: dgx-h100\n", f"{SMALL}gpu: h100\nnodes: 2\n"])
def test_a_scenario_with_faults_remains_a_scenario(text: str, tmp_path: Path) -> None:
    (tmp_path / "scenario.yaml").write_text(text, encoding="utf-8")
    said = trainsim("run", tmp_path / "scenario.yaml")
    assert said.code == 2
    assert "unknown key" in said.err
    assert "this is" not in said.err


def test_a_file_without_a_name_beside_one_of_the_catalog_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("dgx-h100").write_text(SMALL, encoding="utf-8")
    assert sim.cluster("dgx-h100").gpus == 32
