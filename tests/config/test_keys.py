"""No key is accepted and ignored: of a scenario, with all that stands inside it, and of a file of a fabric. Each has a case in
keys.py, whose other value changes the result, is refused, or is said to have no effect. A new key without a case fails.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import simulator as sim
from simulator.config import shipped_fits
from simulator.config.fabric_files import Fabric
from simulator.config.scenario import ScenarioFile
from simulator.config.tenancy import KEYS
from simulator.config.without_use import unused
from simulator.costs.collectives import theory
from simulator.costs.collectives.link_constants import Across, Inside
from simulator.costs.collectives.theory import Call
from simulator.errors import UserError
from simulator.simulation.runnable import scenario as from_mapping

from ..commandline import SMALL, trainsim
from ..small_scenarios import time_collective
from . import keys as cases
from .keys import BASE, CASES, CLUSTER, FABRIC, FABRIC_CASES, GPU, Case, changed

ALONE = {"nodes": 1, "inter_node": None, "shape": None, "nodes_per_pod": None}
INSIDE = Inside("ours", 400e9, 5e-6, 1e-6, 0.8, 1.5e-5)
PLACES = [
    {**ALONE, "gpus_per_node": 2},
    {"nodes": 2},
    {"nodes": 16, "nodes_per_pod": 32},
    {**ALONE, "gpus_per_node": 8, "intra_node": "cube-mesh 4x100 GB/s"},
]
"""What a fabric's times are looked at on."""
SIZES = [2**10, 2**19, 2**25, 2**30]


def outcome(run: Any) -> dict[str, Any]:
    """What a user sees of a result, in numbers and words: without what it was asked, and how long the simulation took."""
    record = {key: value for key, value in run.as_dict().items() if key not in ("wall_s", "scenario")}
    return {**record, "summary": run.summary}


@cache
def base_outcome(text: str) -> dict[str, Any]:
    return outcome(from_mapping(json.loads(text)).simulate())


def pair(case: Case, key: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The base of a case, and the same with its key at the other value."""
    base = changed(BASE, case.of)
    return base, changed(base, {key: case.value})


def test_every_key_has_a_case_and_every_case_a_key() -> None:
    known = set(cases.keys(ScenarioFile))
    assert known - set(CASES) - cases.COMMENTS == {"cluster.gpu.profile"}, "give it a value in keys.py that must show"
    assert set(CASES) <= known
    known = set(cases.keys(Fabric))
    assert known - set(FABRIC_CASES) - set(cases.WITHOUT_TOPOLOGY) == cases.FABRIC_COMMENTS
    assert set(FABRIC_CASES) <= known


@pytest.mark.thinned(10)
@pytest.mark.parametrize("key", [key for key in CASES if key not in cases.REFUSED | cases.WITHOUT_EFFECT])
def test_another_value_shows(key: str) -> None:
    base, other = pair(CASES[key], key)
    run = from_mapping(other).simulate()
    assert outcome(run) != base_outcome(json.dumps(base))
    assert not [note for note in run.notes if note.startswith(f"{key}:")]


@pytest.mark.parametrize("key", sorted(cases.REFUSED))
def test_another_value_is_refused(key: str) -> None:
    base, other = pair(CASES[key], key)
    assert from_mapping(base).simulate()
    with pytest.raises(UserError):
        from_mapping(other).simulate()


@pytest.mark.parametrize("key", sorted(cases.WITHOUT_EFFECT))
def test_another_value_is_said_to_have_no_effect(key: str) -> None:
    base, other = pair(CASES[key], key)
    run = from_mapping(other).simulate()
    assert run.metrics == from_mapping(base).simulate().metrics
    assert any(note.startswith(f"{key}: ") and "no effect" in note for note in run.notes)
    assert "no effect" in repr(run)


def test_what_a_file_of_the_catalog_says_of_power_needs_no_word(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    for setting, said in (("350 W", True), ("700 W", False), (None, False)):
        burst = ["--set", "fidelity.power=burst"]
        told = trainsim("run", file, "--json", *burst, *([] if setting is None else ["--set", f"cluster.gpu.tdp={setting}"]))
        assert told.code == 0
        assert ("cluster.gpu.tdp: 350 W has no effect" in told.err) == said
        assert "no effect" not in told.out
        assert told.record["step_time_s"] > 0
    both = ("--set", "cluster.gpu.tdp=350 W", "--set", "fidelity.power=burst")
    assert "no effect, a burst is too short for it" in trainsim("run", file, *both).out
    for command in ("memory", "network"):
        assert "no effect" in trainsim(command, file, *both).err
    assert "no effect" not in trainsim("run", file, "--set", "cluster.gpu.tdp=350 W").out


@pytest.mark.parametrize(("shape", "nodes", "said"), [("dragonfly", 4, True), ("fat-tree", 4, True), ("leaf-spine", 4, False)])
def test_pods_of_a_shape_without_them_are_said_to_have_no_effect(shape: str, nodes: int, said: bool) -> None:
    run = from_mapping(changed(BASE, {"cluster.shape": shape, "cluster.nodes": nodes})).simulate()
    assert any(note.startswith("cluster.nodes_per_pod: 2 has no effect") for note in run.notes) == said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "gb300-nvl72"}, ""),
        ({"name": "gb200-nvl72"}, ""),
        ({"name": "gb200-nvl72", "inter_node": "72x800 Gbit/s"}, "100 GB/s of a NIC have no effect beyond 50 GB/s"),
        ({"name": "gb200-nvl72", "inter_node": "36x800 Gbit/s"}, ""),
        ({"name": "gb200-nvl72", "gpus_per_node": 64}, "56.25 GB/s of a NIC have no effect beyond 50 GB/s"),
        ({"name": "dgx-h100", "inter_node": "8x800 Gbit/s"}, "100 GB/s of a NIC have no effect beyond 63 GB/s"),
    ],
)
def test_nics_that_are_faster_than_the_links_to_them_are_said_to_have_no_effect(change: dict[str, object], said: str) -> None:
    """NICs of 72 GPUs that a scenario leaves to 64 of them are one case; two GPUs feed a NIC that they share."""
    found = unused(from_mapping({**BASE, "cluster": {"nodes": 2, **change}, "plan": {}, "job": {"global_batch": 2304}}))
    assert [note.partition(", ")[0] for note in found] == ([f"cluster.inter_node: {said}"] if said else [])


def test_defaults_may_be_written_out() -> None:
    """Tensor parallelism of experts that a model lacks, and of sequences on one GPU, which is said to have no effect."""
    usual = from_mapping(BASE).simulate()
    spelled = from_mapping(changed(BASE, {"plan.etp": usual.scenario.plan.tp, "plan.sequence_parallel": True})).simulate()
    assert spelled.metrics == usual.metrics
    for given in (True, False, None):
        run = from_mapping(changed(BASE, {"plan.tp": 1, "plan.sequence_parallel": given})).simulate()
        assert any("plan.sequence_parallel: it has no effect" in note for note in run.notes) == (given is True)


def test_a_profile_shows(tmp_path: Path) -> None:
    fits = [fit for fit in shipped_fits.shipped().fits["h100"] if fit.family == "gemm"]
    file = tmp_path / "mine.yaml"
    file.write_text(shipped_fits.text("mine", fits, "a profile"))
    profiled = changed(BASE, {"cluster.gpu.profile": str(file)})
    assert outcome(from_mapping(profiled).simulate()) != base_outcome(json.dumps(BASE))


@pytest.mark.slow
def test_every_key_of_a_job_shows() -> None:
    own = {"model": {**BASE["model"], "layers": 4}, "plan": {"tp": 2}, "job": {"sequence_length": 512, "global_batch": 8}}
    entries = [{"name": name, "gpus": 8, **own} for name in ("a", "b")]
    two = {"cluster": {**CLUSTER, "gpus_per_node": 4, "nodes": 4}, "jobs": entries}
    other = {
        "name": "c", "gpus": 4, "plan": {"tp": 4}, "job": {"sequence_length": 1024, "global_batch": 8},
        "model": {**BASE["model"], "layers": 2},
    }  # fmt: skip
    assert set(other) == set(KEYS)

    def told(data: Any) -> Any:
        run = from_mapping(data).simulate()
        return run.as_dict()["jobs"], run.summary

    base = told(two)
    for key, value in other.items():
        assert told(changed(two, {f"jobs.0.{key}": value})) != base, key
    noted = from_mapping(changed(two, {"cluster.gpu": {**GPU, "tdp": "350 W"}})).simulate()
    assert [note for note in noted.notes if "no effect" in note]


def test_what_a_scenario_extends_shows(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(SMALL)
    (tmp_path / "mine.yaml").write_text("extends: base.yaml\n")
    (tmp_path / "other.yaml").write_text(SMALL.replace("layers: 8", "layers: 10"))
    step = trainsim("run", tmp_path / "mine.yaml", "--json").record["step_time_s"]
    (tmp_path / "mine.yaml").write_text("extends: other.yaml\n")
    assert trainsim("run", tmp_path / "mine.yaml", "--json").record["step_time_s"] > step


def times(fabric: dict[str, Any], folder: Path) -> Any:
    """What collectives take on a fabric, how that is known, and the range of a step that waits for one."""
    file = folder / "ours.yaml"
    file.write_text(json.dumps(fabric))
    found: list[Any] = []
    for place in PLACES:
        shape = {key: value for key, value in {**CLUSTER, **place, "fabric": str(file)}.items() if value is not None}
        cluster = sim.cluster(shape)
        for kind in ("all_reduce", "all_gather", "alltoall", "sendrecv"):
            found.append([row.as_dict() for row in time_collective(kind, cluster, SIZES)])
    step = changed(BASE, {"cluster.fabric": str(file), "cluster.nodes": 2, "plan": {"tp": 1}})
    return found, from_mapping(step).simulate().step_time_interval_s


@pytest.mark.parametrize("key", cases.WITHOUT_TOPOLOGY)
def test_another_value_of_a_fabric_shows_where_no_topology_is_given(key: str) -> None:
    across, call = Across("ours", 50e9, 8, 1e-5, 0.9), Call("sendrecv", 2**30, 16, nodes=16)
    other = replace(across, **{key.removeprefix("across."): cases.WITHOUT_TOPOLOGY[key]})
    assert theory.seconds(call, INSIDE, other) != theory.seconds(call, INSIDE, across)


@pytest.mark.thinned(6)
@pytest.mark.parametrize("key", FABRIC_CASES)
def test_another_value_of_a_fabric_shows(key: str, tmp_path: Path) -> None:
    case = FABRIC_CASES[key]
    base = changed(FABRIC, case.of)
    assert times(changed(base, {key: case.value}), tmp_path) != times(base, tmp_path)
