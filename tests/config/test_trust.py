"""Code that files name is refused before anything is imported, in every field and file; what is typed is trusted."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

import simulator as sim
from simulator.config.scenario import ScenarioFile
from simulator.errors import UserError
from simulator.fields import Declared, keys

from ..commandline import SMALL, trainsim
from ..project.source import modules

CODE = """\
import pathlib, sys
print("printed by import")
with open(pathlib.Path(__file__).parent / "ran", "a") as ran:
    ran.write("x")
from simulator.hardware.shapes import leaf_spine
def order(rank, shape):
    print("printed by order")
    for m in range(shape.microbatches): yield "F", rank, m
    for m in range(shape.microbatches): yield "B", rank, m
class Shape:
    @staticmethod
    def fabric(cluster):
        print("printed by fabric")
        return leaf_spine.fabric(cluster)
"""
CLUSTER = """\
gpu: h100
gpus_per_node: 8
nodes: 2
intra_node: NVSwitch 450 GB/s
inter_node: 8x400 Gbit/s
shape: mine.py:Shape
"""
HONEST = CLUSTER.replace("shape: mine.py:Shape\n", "")
SCHEDULED = SMALL.replace("pp: 2", "pp: 2, schedule: 'mine.py:order'")
SHAPED = SMALL.replace("{name: dgx-h100, nodes: 2}", "cluster.yaml")
JOBS = """\
cluster: cluster.yaml
jobs:
  - {name: a, model: {layers: 4, hidden: 512, heads: 8, vocab: 1000}, plan: {pp: 2}, gpus: 8}
  - {name: b, model: {layers: 4, hidden: 512, heads: 8, vocab: 1000}, plan: {pp: 2, schedule: "mine.py:order"}, gpus: 8}
"""
FILES = {
    "schedule": ({"a.yaml": SCHEDULED}, ["a.yaml:3:22: plan.schedule"]),
    "file": ({"a.yaml": SCHEDULED.replace("mine.py:order", "mine.py")}, ["a.yaml:3:22: plan.schedule"]),
    "file of a shape": ({"a.yaml": SMALL.replace("nodes: 2", "shape: mine.py")}, ["a.yaml:2:27: cluster.shape"]),
    "module": ({"a.yaml": SCHEDULED.replace("mine.py:", "mine:")}, ["a.yaml:3:22: plan.schedule"]),
    "extended": ({"a.yaml": "extends: b.yaml\n", "b.yaml": SCHEDULED}, ["b.yaml:3:22: plan.schedule"]),
    "shape": ({"a.yaml": SHAPED, "cluster.yaml": CLUSTER}, ["cluster.yaml:6:1: cluster.shape"]),
    "inline": ({"a.yaml": SMALL.replace("nodes: 2", "shape: 'mine.py:Shape'")}, ["a.yaml:2:27: cluster.shape"]),
    "jobs": ({"a.yaml": JOBS, "cluster.yaml": CLUSTER}, ["cluster.yaml:6:1: cluster.shape", "a.yaml:4:85: plan.schedule"]),
    "one job": ({"a.yaml": JOBS, "cluster.yaml": HONEST}, ["a.yaml:4:85: plan.schedule"]),
    "both and a typo": (
        {"a.yaml": SCHEDULED.replace("dgx-h100, nodes", "dgx-h100, shape: 'mine:Shape', nodes").replace("tp: 2", "tp: two")},
        ["a.yaml:2:27: cluster.shape", "a.yaml:3:8: plan.tp", "a.yaml:3:24: plan.schedule"],
    ),
}

TAKE = ("run", "memory", "network")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "mine.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("mine", None)


def ran(folder: Path) -> int:
    """How often the code was imported."""
    return len((folder / "ran").read_text()) if (folder / "ran").exists() else 0


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder / "a.yaml"


@pytest.mark.parametrize("case", FILES)
def test_code_in_files_is_refused_before_any_import(case: str, folder: Path) -> None:
    files, places = FILES[case]
    scenario = written(folder, files)
    said = trainsim("run", scenario, "--json")
    assert said.code == 2
    faults = said.record["faults"]
    assert {f"{Path(f['where']).name}: {f['message'].replace(':', '').split()[0]}" for f in faults} == set(places)
    of_code = [fault for fault in faults if "is code" in fault["message"]]
    assert len(of_code) == sum("schedule" in place or "shape" in place for place in places)
    assert all("--trust" in fault["hint"] for fault in of_code)
    with pytest.raises(UserError, match="is code"):
        sim.load(scenario)
    assert not ran(folder)


def places(schema: type[Declared], at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every field that may stand in a scenario, those of what it names included."""
    for key, spec in keys(schema).items():
        yield (*at, key)
        if spec.form.record:
            yield from places(spec.form.record, (*at, key))
    yield from ((*at, key) for key in schema.comments)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("code", ["mine:order", "mine.py:order", "mine:Shape", "mine.py"])
def test_no_field_of_a_file_is_imported(code: str, folder: Path) -> None:
    """Whatever a field is for."""
    every = list(dict.fromkeys(places(ScenarioFile)))
    assert len(every) > 100
    for above in dict.fromkeys(place[:-1] for place in every):
        data: dict[str, Any] = yaml.safe_load(SMALL)
        inner = data
        for part in above:
            value = inner.get(part)
            inner[part] = value if isinstance(value, dict) else {"name": value} if isinstance(value, str) else {}
            inner = inner[part]
        for wrong in (code, [code], {"name": code}):
            inner.update((place[-1], wrong) for place in every if place[:-1] == above)
            (folder / "a.yaml").write_text(yaml.safe_dump(data))
            with suppress(UserError):
                sim.load(folder / "a.yaml")
    assert not ran(folder)


@pytest.mark.parametrize("command", TAKE)
def test_every_command_that_reads_a_scenario_refuses_code_and_takes_trust(command: str, folder: Path) -> None:
    scenario = written(folder, {"a.yaml": SCHEDULED})
    assert trainsim(command, scenario).code == 2
    assert not ran(folder)
    said = trainsim(command, scenario, "--trust", "--json")
    assert said.code == 0
    assert said.record
    assert ran(folder) == 1


@pytest.mark.parametrize(
    "args", [["topology"], ["collective", "all_reduce", "-b", "1M", "-e", "1M", "--gpus", "32", "--cluster"]]
)
def test_every_command_that_reads_a_cluster_refuses_code_and_takes_trust(args: list[str], folder: Path) -> None:
    (folder / "cluster.yaml").write_text(CLUSTER)
    said = trainsim(*args, "cluster.yaml")
    assert said.code == 2
    assert "cluster.yaml:6:1: cluster.shape: 'mine.py:Shape' is code" in said.err
    assert not ran(folder)
    said = trainsim(*args, "cluster.yaml", "--trust", "--json")
    assert said.code == 0
    assert said.record
    assert said.err.count("note: imports mine.py:Shape") == 1
    assert "printed by fabric" in said.err
    assert ran(folder) == 1


def test_a_trusted_run_says_what_it_imports_once_and_prints_on_stderr(folder: Path) -> None:
    said = trainsim("run", written(folder, {"a.yaml": SCHEDULED}), "--trust", "--json")
    assert said.record["step_time_s"] > 0
    assert said.err.count("imports") == 1
    assert str(folder / "mine.py:order") in said.err
    assert "printed by import" in said.err
    assert "printed by order" in said.err
    assert ran(folder) == 1


def test_several_jobs_import_once(folder: Path) -> None:
    scenario = written(folder, {"a.yaml": JOBS, "cluster.yaml": CLUSTER})
    assert trainsim("run", scenario, "--trust", "--json").record["jobs"]
    assert ran(folder) == 2  # the shape and the schedule


def test_no_job_imports_before_all_were_looked_at(folder: Path) -> None:
    scenario = written(folder, {"a.yaml": JOBS, "cluster.yaml": HONEST})
    typed = ["--set", "jobs.0.plan.schedule=mine.py:order"]
    for more in ([], ["--set", "cluster=nowhere"]):
        assert trainsim("run", scenario, *typed, *more).code == 2
    assert not ran(folder)
    assert trainsim("run", scenario, *typed, "--set", "jobs.1.plan.schedule=1f1b").code == 0
    assert ran(folder) == 1


def test_a_file_that_was_typed_is_trusted_and_a_space_of_a_search_imports_none(folder: Path) -> None:
    scenario = written(folder, {"a.yaml": SMALL, "space.yaml": "schedule: [mine.py]\n"})
    assert "user code is not accepted here" in trainsim("search", scenario, "--space", "space.yaml").err
    assert not ran(folder)
    said = trainsim("run", scenario, "--set", "plan.schedule=mine.py", "--json")
    assert said.record["scenario"]["plan"]["schedule"] == "mine.py"
    assert ran(folder) == 1
    assert trainsim("schedule", "mine.py", "--ranks", 2, "--microbatches", 4).code == 0
    assert ran(folder) == 2


def test_what_is_typed_is_trusted_and_what_it_leads_to_is_not(folder: Path) -> None:
    scenario = written(folder, {"a.yaml": SMALL, "cluster.yaml": CLUSTER})
    assert trainsim("run", scenario, "--set", "plan.schedule=mine.py:order", "--json").record["step_time_s"] > 0
    assert ran(folder) == 1
    said = trainsim("run", scenario, "--set", "plan.schedule=mine.py:order", "--set", "cluster=cluster.yaml")
    assert said.code == 2
    assert "cluster.yaml:6:1: cluster.shape" in said.err
    assert ran(folder) == 1


def test_python_trusts_what_is_written_in_it_and_no_file(folder: Path) -> None:
    (folder / "cluster.yaml").write_text(CLUSTER)
    model, job = sim.model({"layers": 4, "hidden": 512, "heads": 8, "vocab": 1000}), sim.Job(512, 32)
    run = sim.simulate(model, sim.cluster("dgx-h100", nodes=1), sim.Plan(pp=2, schedule="mine.py:order"), job)
    assert run.as_dict()["scenario"]["plan"]["schedule"] == "mine.py:order"
    assert ran(folder) == 1
    with pytest.raises(UserError, match="is code"):
        sim.cluster("cluster.yaml")
    with pytest.raises(UserError, match="is code"):
        sim.scenario({"model": {"layers": 4, "hidden": 512, "heads": 8, "vocab": 1000}, "cluster": "cluster.yaml"})
    assert ran(folder) == 1
    assert sim.cluster("cluster.yaml", trust=True).gpus == 16
    assert sim.cluster({"name": "dgx-h100", "nodes": 2, "shape": "mine.py:Shape"}).gpus == 16
    assert ran(folder) == 3


def test_what_code_does_wrong_has_the_place_that_names_it(folder: Path) -> None:
    said = trainsim("run", written(folder, {"a.yaml": SCHEDULED.replace(":order", ":odrer")}), "--trust")
    assert said.code == 2
    assert "a.yaml:3:22: plan.schedule: " in said.err
    assert "did you mean 'order'?" in said.err


def name_of(node: ast.expr) -> str:
    """What is called, as it is written: `exec`, `np.load`."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


MAY_EXECUTE = {
    "exec": {"user_code"},
    "compile": {"user_code"},
    "import_module": {"__init__", "cli", "catalog", "family", "user_code"},
}
NEVER = {"eval", "__import__", "np.load", "pd.read_pickle", "yaml.load", "yaml.unsafe_load", "yaml.full_load"}
UNPICKLES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "runpy"}


def test_nothing_is_unpickled_and_one_module_executes() -> None:
    """What numba keeps in its own cache is its own."""
    for module in modules():
        name = Path(module.path).stem
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call):
                called = name_of(node.func)
                assert called not in NEVER, f"{module.path}:{node.lineno}"
                assert name in MAY_EXECUTE.get(called.rpartition("importlib.")[2], {name}), f"{module.path}:{node.lineno}"
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            assert not {found.split(".")[0] for found in names} & UNPICKLES, f"{module.path}:{node.lineno}"
