"""Python gets the same answers as a file: what is wrong, where, and what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import simulator as sim
from simulator.config.document import parse
from simulator.errors import UserError
from simulator.simulation.runnable import runnable

from ..commandline import SMALL

SHAPE = {"layers": 8, "hidden": 1024, "heads": 16, "vocab": 32000}
LONG = 10**5000
JOB = sim.Job(sequence_length=1024, global_batch=32)


def simulated(plan: Any = None, job: Any = JOB, **options: Any) -> sim.Run:
    return sim.simulate(sim.model(SHAPE), sim.cluster("dgx-h100", nodes=2), plan, job, **options)


def a_scenario() -> Any:
    return sim.scenario({"model": SHAPE, "cluster": {"name": "dgx-h100", "nodes": 2}})


REFUSED: dict[str, tuple[Callable[[], object], str, str]] = {
    "a number as a model": (lambda: sim.model(3), "model: 3 is not a name", 'model("llama3-70b")'),  # type: ignore[arg-type]
    "nothing as a cluster": (lambda: sim.cluster(None), "cluster: null", 'cluster("dgx-h100")'),  # type: ignore[arg-type]
    "an unknown model": (lambda: sim.model("lama3-8b"), "no model 'lama3-8b'", "did you mean 'llama3-8b'?"),
    "an unknown cluster": (lambda: sim.cluster("dgx-h10"), "no cluster 'dgx-h10'", "did you mean 'dgx-h100'?"),
    "an unknown GPU": (lambda: sim.cluster("dgx-h100", gpu="h99"), "no GPU 'h99'", "h100"),
    "an unknown field": (lambda: sim.model("llama3-8b", layrs=3), "model.layrs: unknown key", "did you mean 'layers'?"),
    "a wrong type": (lambda: sim.model(SHAPE, layers="8"), "model.layers should be a whole number, not '8'", "write 8"),
    "a tuple": (lambda: sim.model(SHAPE, layers=(8,)), "model.layers should be a whole number, not a tuple", "such as 32"),
    "a number of numpy's": (lambda: sim.model(SHAPE, layers=np.int64(8)), "model.layers should be", "int(...) makes it one"),
    "no layers": (lambda: sim.model({}), "model.layers is missing", "decoder layers"),
    "zero nodes": (lambda: sim.cluster("dgx-h100", nodes=0), "cluster.nodes: 0 is too small", "at least 1"),
    "half a node": (lambda: sim.cluster("dgx-h100", nodes=2.5), "cluster.nodes should be a whole number", "write 2 or 3"),
    "a bare bandwidth": (lambda: sim.cluster("dgx-h100", pcie=63), "cluster.pcie: 63 is a bare number", "400 Gbit/s"),
    "a number as a file": (lambda: sim.load(3), "3 is neither a file nor a name", "scenario.yaml"),  # type: ignore[arg-type]
    "an unknown scenario": (lambda: sim.load("llama3-70b"), "no scenario 'llama3-70b'", "did you mean 'llama3-70b-64xh100'?"),
    "a missing file": (lambda: sim.load(Path("nope.yaml")), "no file 'nope.yaml'", ""),
    "a list as a scenario": (lambda: sim.scenario([]), "not a list", "scenario.yaml"),  # type: ignore[arg-type]
    "a scenario without a cluster": (lambda: sim.scenario({"model": SHAPE}), "cluster is missing", "dgx-h100"),
    "a name as a model": (lambda: sim.simulate("llama3-8b", None), "model is 'llama3-8b'", "sim.model("),  # type: ignore[arg-type]
    "a name as a cluster": (lambda: sim.simulate(sim.model(SHAPE), "x"), "cluster is 'x'", "sim.cluster("),  # type: ignore[arg-type]
    "a mapping as a plan": (lambda: simulated({"tp": 2}), "plan is a mapping", "sim.Plan("),
    "a mapping as a job": (lambda: simulated(None, {"dtype": "bf16"}), "job is a mapping", "sim.Job("),
    "a word as a fidelity": (lambda: simulated(fidelity="closed"), "fidelity is 'closed'", "sim.Fidelity("),
    "a mapping as an overlap": (lambda: simulated(sim.Plan(overlap={})), "plan.overlap is a mapping", "sim.Overlap("),  # type: ignore[arg-type]
    "a mapping as a perturbation": (lambda: simulated(perturb=[{"rank": 1}]), "perturb.0 is a mapping", "sim.Perturb("),
    "a degree of zero": (lambda: simulated(sim.Plan(tp=0)), "plan.tp: 0 is too small", "at least 1"),
    "a degree in words": (lambda: simulated(sim.Plan(pp="two")), "plan.pp should be a whole", "at least 1"),  # type: ignore[arg-type]
    "a degree of numpy's": (lambda: simulated(sim.Plan(tp=np.int64(2))), "plan.tp should be", "int(...)"),  # type: ignore[arg-type]
    "an unknown schedule": (lambda: simulated(sim.Plan(schedule="1f1c")), "no schedule '1f1c'", "did you mean '1f1b'?"),
    "a number as a schedule": (lambda: simulated(sim.Plan(schedule=3)), "plan.schedule: 3", "order(rank, shape)"),  # type: ignore[arg-type]
    "an unknown sharding": (
        lambda: simulated(sim.Plan(sharding="zero")),
        "plan.sharding: 'zero'",
        "known: fsdp, hsdp, none, zero1",
    ),
    "an unknown order": (lambda: simulated(sim.Plan(rank_order="tp-xp")), "plan.rank_order: 'xp' is not an axis", "known: cp"),
    "an unknown format": (lambda: simulated(None, sim.Job(dtype="bf61")), "job.dtype: 'bf61'", "did you mean 'bf16'?"),
    "no number": (lambda: simulated(None, sim.Job(global_batch=float("nan"))), "job.global_batch should", "at least 1"),  # type: ignore[arg-type]
    "a batch that does not divide": (lambda: simulated(None, sim.Job(1024, 30)), "job.global_batch: 30", "16 or 32"),
    "an unknown fidelity": (lambda: simulated(fidelity=sim.Fidelity("exact")), "fidelity.collectives: 'exact'", "closed, fluid"),
    "a number as a key": (lambda: sim.model({**SHAPE, 1: 2}), "model.1: 1 cannot be a key", "words"),  # type: ignore[dict-item]
    "a number as a setting": (lambda: sim.load("llama3-70b-64xh100", ["plan.tp=1", 3]), "--set 3 sets nothing", "plan.tp=4"),  # type: ignore[list-item]
    "text for a list of settings": (
        lambda: sim.load("llama3-70b-64xh100", "plan.tp=4"),
        "settings is 'plan.tp=4', not a list",
        "['plan.tp=4']",
    ),
    "nothing as settings": (lambda: sim.load("llama3-70b-64xh100", None), "settings is null, not a list", "plan.tp=4"),  # type: ignore[arg-type]
    "a number for a list of settings": (lambda: sim.load("llama3-70b-64xh100", 3), "settings is 3, not a list", "plan.tp=4"),  # type: ignore[arg-type]
    "a long number as a setting": (lambda: sim.load("llama3-70b-64xh100", [LONG]), "--set a number of 5001 digits", ""),  # type: ignore[list-item]
    "a long number as an engine": (lambda: simulated(engine=LONG), "no engine a number of 5001 digits", "known: auto"),
    "a long number of steps": (lambda: simulated(steps=LONG), "a number of 5001 digits steps", "a whole number"),
    "yes as a number of steps": (lambda: simulated(steps=True), "true steps cannot be simulated", "a whole number"),
    "a long rank": (lambda: simulated(perturb=[sim.Perturb(LONG, 0.5)]), "no rank a number of 5001 digits", "0 to 15"),
    "a long time": (lambda: simulated(perturb=[sim.Perturb(1, 0.5, from_s=LONG)]), "perturb.0.from", ""),
    "an empty perturbation": (lambda: simulated(perturb=[sim.Perturb()]), "perturb.0 names neither", "speed: 0.8"),
    "a speed of no number": (lambda: simulated(perturb=[sim.Perturb(1, float("nan"))]), "perturb.0.speed", "constant factor"),
    "a rank too many": (lambda: simulated(perturb=[sim.Perturb(16, 0.5)]), "perturb.0.rank: there is no rank 16", "0 to 15"),
    "a negative time": (lambda: simulated(perturb=[sim.Perturb(1, 0.5, from_s=-1)]), "perturb.0.from", "at least 0 s"),
    "no cluster": (lambda: sim.simulate(sim.model(SHAPE)), "no cluster was given", 'sim.cluster("dgx-h100", nodes=8)'),
    "a scenario as a model": (lambda: sim.simulate(a_scenario()), "model is an object of class RunnableScenario", ".simulate()"),  # type: ignore[arg-type]
    "a number as a perturbation": (lambda: simulated(perturb=3), "perturb is 3, not disturbances", "sim.Perturb(rank=13"),
    "nothing as a run": (lambda: sim.gantt(None), "what is null, not a run", "gantt(sim.simulate("),  # type: ignore[arg-type]
    "a model as a run": (lambda: sim.gantt(sim.model(SHAPE)), "what is an object of class Model", "gantt(sim.simulate("),  # type: ignore[arg-type]
    "a number as ranks": (lambda: sim.gantt(simulated(), ranks=3), "ranks is 3, not several ranks", "ranks=[0, 1]"),  # type: ignore[arg-type]
    "a rank in words": (lambda: sim.gantt(simulated(), ranks="1"), "rank is '1', not a whole number", "0 to 15"),  # type: ignore[arg-type]
    "no rank": (lambda: sim.gantt(simulated(), ranks=[]), "no rank is chosen", "ranks=[0, 1]"),
    "a number as a title": (lambda: sim.gantt(simulated(), title=5), "title is 5, not a text", "title="),  # type: ignore[arg-type]
    "one number as a size": (lambda: sim.gantt(simulated(), size_in=5), "size_in is 5, not two numbers", "(14, 6)"),  # type: ignore[arg-type]
    "three numbers as a size": (lambda: sim.gantt(simulated(), size_in=(1, 2, 3)), "not two numbers", "(14, 6)"),  # type: ignore[arg-type]
    "a number as a window": (lambda: sim.gantt(simulated(), window_s=5), "window_s is 5, not two numbers", "window_s="),  # type: ignore[arg-type]
    "words as a window": (lambda: sim.gantt(simulated(), window_s=("a", "b")), "not two numbers", "window_s="),  # type: ignore[arg-type]
    "a rank that is not there": (lambda: sim.gantt(simulated(), ranks=[16]), "no rank 16", "0 to 15"),
    "nothing to trace": (lambda: sim.trace(None, "a.json"), "run is null, not a run", "trace(sim.simulate("),  # type: ignore[arg-type]
    "nowhere to trace to": (lambda: sim.trace(simulated(), None), "path is null", 'trace(run, "trace.json.gz")'),  # type: ignore[arg-type]
    "nothing as an engine": (lambda: simulated(engine=None), "no engine null", "known: auto"),
    "an empty mapping as a plan": (lambda: simulated({}), "plan is a mapping", "sim.Plan("),
    "an unknown engine": (lambda: simulated(engine="dse"), "no engine 'dse'", "did you mean 'des'?"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_told_with_a_hint(case: str) -> None:
    call, message, hint = REFUSED[case]
    with pytest.raises(UserError) as refused:
        call()
    assert message in str(refused.value)
    assert hint in refused.value.hint
    assert not refused.value.faults[0].where


def test_all_faults_come_together() -> None:
    with pytest.raises(UserError) as refused:
        simulated(sim.Plan(tp=0, pp=0, sharding="x"), sim.Job(dtype="y"), perturb=[sim.Perturb(-1)])
    assert len(refused.value.faults) >= 5
    with pytest.raises(UserError) as refused:
        sim.scenario({"model": {"layers": "x"}, "cluster": {"name": "dgx-h10"}, "plan": {"tp": 0}, "jop": {}})
    assert {fault.message.split()[0].strip(":") for fault in refused.value.faults} >= {"model.layers", "no", "plan.tp", "jop"}


def test_so_do_those_of_a_cluster_by_itself(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    lines = ("gpu: h10", "gpus_per_node: 8", "intra_node: NVSwith 450 GB/s", "shape: rail-optimised")
    file.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(UserError) as refused:
        sim.cluster(file)
    assert [fault.where.removeprefix(f"{file}:").split(":")[0] for fault in refused.value.faults] == ["1", "3", "4"]
    assert [fault.hint.split("?")[0] for fault in refused.value.faults] == [
        f"did you mean {name!r}" for name in ("h100", "NVSwitch", "rail-optimized")
    ]


def test_an_empty_file_is_told_what_a_cluster_starts_with(tmp_path: Path) -> None:
    file = tmp_path / "empty.yaml"
    file.touch()
    with pytest.raises(UserError) as refused:
        sim.cluster(file)
    assert "`gpu: h100` in a cluster" in refused.value.hint


def test_python_and_a_file_describe_the_same(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(SMALL)
    from_file, from_mapping = sim.load(file), sim.scenario(parse(SMALL, "s").data)
    assert from_file == from_mapping
    by_hand = simulated(sim.Plan(tp=2, pp=2))
    read = from_file.simulate()
    assert runnable(by_hand.scenario) == read.scenario
    assert by_hand.metrics == read.metrics


def test_every_field_of_a_file_arrives() -> None:
    overlap = {"dp": False, "tp": True, "pp": False, "ep": False}
    degrees = {"tp": 2, "pp": 2, "dp": 2, "cp": 1, "ep": 1, "sequence_parallel": False, "chunks": 2}
    words = {"schedule": "interleaved", "sharding": "zero1", "recompute": "none", "rank_order": "tp-dp-pp"}
    job = {"sequence_length": 512, "global_batch": 16, "microbatch_size": 2, "dtype": "fp16"}
    fidelity = {"collectives": "closed", "granularity": "op"}
    perturb = [
        {"rank": 3, "speed": 0.5, "from": "1 ms", "until": "2 ms"},
        {"link": "node0/gpu0>node0/nvswitch", "capacity": 0.25},
    ]
    sections = {"plan": {**degrees, **words, "overlap": overlap}, "job": job, "fidelity": fidelity, "perturb": perturb}
    found = sim.scenario({"model": SHAPE, "cluster": {"name": "dgx-h100", "nodes": 1}, **sections})
    assert found.plan == sim.Plan(**degrees, **words, overlap=sim.Overlap(**overlap))
    assert (found.job, found.fidelity) == (sim.Job(**job), sim.Fidelity(**fidelity))
    slow = sim.Perturb(rank=3, speed=0.5, from_s=0.001, until_s=0.002)
    assert found.perturb == (slow, sim.Perturb(link="node0/gpu0>node0/nvswitch", capacity=0.25))


def test_changes_by_keyword_are_those_of_a_mapping() -> None:
    assert sim.model("llama3-8b", layers=4) == sim.model({"name": "llama3-8b", "layers": 4})
    assert sim.cluster("dgx-h100", nodes=8) == sim.cluster({"name": "DGX_H100", "nodes": 8})
    assert sim.cluster("dgx-h100", gpu={"name": "h100", "memory": "1 TB"}).gpu.memory_bytes == 10**12


def test_a_mapping_that_is_given_is_not_changed() -> None:
    data = {"model": dict(SHAPE), "cluster": {"name": "dgx-h100"}, "plan": {"overlap": {"tp": True}}}
    before = repr(data)
    sim.scenario(data)
    sim.model(data["model"], layers=3)
    assert repr(data) == before
