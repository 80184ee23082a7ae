"""Work that would take long is estimated from its sizes, refused with the estimate, and done where it is asked for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulator as sim
from simulator.engine.skeleton import task_count
from simulator.errors import UserError
from simulator.simulation import estimated_effort
from simulator.simulation.estimated_effort import Effort
from simulator.simulation.simulate import bound_of, program_of
from simulator.study.flows import Case, Flow, effort_of, end_times_s, most_at_once
from simulator.units import US_PER_S

from ..commandline import SMALL, trainsim
from ..small_scenarios import scenario, time_collective

LARGE: dict[str, list[str]] = {
    "every rank of a million": ["run", "million.yaml", "--no-fold"],
    "everybody to everybody": ["collective", "alltoall", "--cluster", "dgx-h100", "--gpus", "16384", "--algorithm", "pairwise"],
    "a search": ["schedule", "optimal", "--ranks", "128", "--microbatches", "512"],
    "a long schedule": ["schedule", "1f1b", "--ranks", "1000", "--microbatches", "1000"],
    "a drawn graph": ["collective", "all_reduce", "--cluster", "drawn.yaml"],
    "a run on a drawn graph": ["run", "drawn-run.yaml"],
    "flows": ["flows", "flows.json"],
    "rows": ["validate", "--kind", "kernels", "rows.csv"],
    "a million in a table": ["topology", "dgx-h100", "--nodes", "131072"],
}
SMALLEST: dict[str, list[str]] = {
    "run": ["run", "small.yaml"],
    "memory": ["memory", "small.yaml"],
    "network": ["network", "small.yaml"],
    "collective": ["collective", "alltoall", "--cluster", "dgx-h100", "-b", "1M", "-e", "1M"],
    "schedule": ["schedule", "1f1b", "--ranks", "2", "--microbatches", "2"],
    "flows": ["flows", "few.json"],
    "validate": ["validate", "--kind", "kernels", "few.csv"],
    "topology": ["topology", "dgx-h100"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("effort")
    (home / "small.yaml").write_text(SMALL)
    (home / "million.yaml").write_text(
        "model: llama3-8b\ncluster: {name: dgx-h100, nodes: 131072}\nplan: {tp: 2, pp: 4}\njob: {global_batch: 1048576}\n"
    )
    gpus = 3000
    (home / "drawn.yaml").write_text(
        f"gpu: h100\ngpus_per_node: 1\nnodes: {gpus}\nshape: explicit\nvertices:\n"
        + "".join(f"- {{name: g{i}, kind: gpu}}\n" for i in range(gpus))
        + "links:\n"
        + "".join(
            f"- {{from: g{i}, to: g{(i + step) % gpus}, capacity: 50 GB/s, latency: 1 us}}\n"
            for i in range(gpus)
            for step in (1, 7)
        )
    )
    (home / "drawn-run.yaml").write_text("model: llama3-8b\ncluster: ./drawn.yaml\nplan: {tp: 4}\njob: {global_batch: 750}\n")
    for name, count in (("flows.json", 20_000), ("few.json", 2)):
        flows = [{"size_B": 1 + i, "route": [i % 1000, (7 * i + 1) % 1000]} for i in range(count)]
        case = {"name": "drawn", "links": [{"capacity_Bps": 100}] * 1000, "flows": flows}
        (home / name).write_text(json.dumps({"cases": [case]}))
    for name, count in (("rows.csv", 150_000), ("few.csv", 1)):
        (home / name).write_text("gpu,op,dtype,m,n,k,time_us\n" + "h100,gemm,bf16,8,8,8,10\n" * count)
    return home


@pytest.mark.thinned(2)
@pytest.mark.parametrize("case", LARGE)
def test_large_work_is_refused_with_its_estimate(case: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(estimated_effort, "MOST_S", 10)  # so that the files of the cases stay small
    said = trainsim(*LARGE[case])
    assert said.code == 2, said.err
    assert "would take about" in said.err
    assert "--long" in said.err
    assert not said.out


@pytest.mark.parametrize("name", SMALLEST)
def test_a_flag_lifts_the_limit(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(estimated_effort, "MOST_S", 0)
    assert trainsim(*SMALLEST[name]).code == 2
    assert trainsim(*SMALLEST[name], "--long").code == 0


def test_the_keyword_does_too_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    of, cluster = scenario(), sim.cluster("dgx-h100")
    monkeypatch.setattr(estimated_effort, "MOST_S", 0)
    for work in (of.simulate, lambda **long: time_collective("all_reduce", cluster, [1024], **long)):
        with pytest.raises(UserError, match="long=True"):
            work()
        work(long=True)


def test_memory_counts_too() -> None:
    estimated_effort.Limits().check(Effort(US_PER_S, estimated_effort.MOST_BYTES), "this", "")
    with pytest.raises(UserError, match=r"this would take about 1 s and 4\.1 GiB"):
        estimated_effort.Limits().check(Effort(US_PER_S, 1.025 * estimated_effort.MOST_BYTES), "this", "")


def hand_made_graph(vertices: int) -> Any:
    """What routes are estimated from: a graph that somebody drew, of so many vertices and links."""
    wiring = SimpleNamespace(vertices=[SimpleNamespace(count=vertices)], links=vertices)
    return SimpleNamespace(shape_name="explicit", wiring=wiring)


sizes = st.integers(1, 10_000)
ESTIMATES: dict[str, Any] = {
    "a run": lambda n: estimated_effort.of_run([100 * n, n], 1000, folding=False, by="des"),
    "a folded run": lambda n: estimated_effort.of_run([1000], n, folding=True, by="compiled"),
    "routes": lambda n: estimated_effort.of_routes(hand_made_graph(n), n),
    "an exchange": estimated_effort.of_exchange,
    "a collective": estimated_effort.of_collective,
    "a schedule": lambda n: 8 * n * estimated_effort.SLOT,
    "flows": lambda n: estimated_effort.of_flows([3] * n, 10, n),
    "rows": lambda n: n * estimated_effort.PREDICTION,
    "a topology": lambda n: n * estimated_effort.LISTED_GPU,
}


@given(st.sampled_from(sorted(ESTIMATES)), sizes, sizes)
def test_more_work_is_estimated_to_take_longer(what: str, one: int, other: int) -> None:
    fewer, more = (ESTIMATES[what](n) for n in sorted((one, other)))
    assert fewer.seconds <= more.seconds
    assert fewer.bytes <= more.bytes


@pytest.mark.parametrize("plan", [sim.Plan(), sim.Plan(tp=4), sim.Plan(tp=2, pp=2), sim.Plan(pp=4)])
@pytest.mark.parametrize("framework", ["megatron-core-2025", None])
def test_tasks_are_estimated_within_a_factor_of_three(plan: Any, framework: str | None) -> None:
    """Before anything is bound, from the rows of the program alone."""
    of = scenario(plan=plan, **({"framework": sim.framework(framework)} if framework else {}))
    program = program_of(of)
    rows = [sum(len(program.bodies[step.body].ops) for step in steps) for steps in program.orders]
    tasks = task_count(bound_of(of, program).skeleton)
    estimated = estimated_effort.of_run(rows, of.cluster.gpus, folding=False, by="des").seconds
    assert 1 / 3 < (tasks * estimated_effort.TASK["des"]).seconds / estimated < 3


def test_what_work_takes_is_told_before_it_begins() -> None:
    told: list[Effort] = []
    scenario().simulate(expect=told.append)
    assert told
    assert all(0 < one.seconds < 1 for one in told)


def test_messages_of_stepwise_are_in_its_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    """26 s and 1.0 GB were measured for this all-to-all of 512, 0.4 s for one of 64; a step that counts its messages, too."""
    monkeypatch.setattr(estimated_effort, "MOST_S", 10)
    with pytest.raises(UserError, match=r"261,632 messages of stepwise would take about 2\d s and 9"):
        time_collective("alltoall", sim.cluster("dgx-h100", nodes=64), [2**30], fidelity="stepwise")
    estimates: list[Effort] = []
    time_collective("alltoall", sim.cluster("dgx-h100", nodes=8), [2**30], fidelity="stepwise", expect=estimates.append)
    assert 0.4 / 3 < estimates[-1].seconds < 0.4 * 3


@pytest.mark.slow
def test_a_stepwise_run_counts_its_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    estimates: list[Effort] = []
    step = sim.scenario(
        {
            "model": "llama3-8b",
            "cluster": {"name": "dgx-h100", "nodes": 1},
            "plan": {"tp": 8},
            "job": {"global_batch": 1},
            "fidelity": {"collectives": "stepwise"},
        }
    )
    step.simulate(expect=estimates.append)
    monkeypatch.setattr(estimated_effort, "MOST_S", estimates[-1].seconds * 0.99)
    with pytest.raises(UserError, match=r"messages of stepwise would take about .*done only on request"):
        step.simulate()
    step.simulate(long=True)


def test_flows_one_after_the_other_are_few_at_once() -> None:
    """3,000 of them take 0.16 s to simulate; as many at once take minutes, and are refused."""
    apart = Case("apart", (1.0,), (0.0,), tuple(Flow(2.0 * i, 1.0, (0,)) for i in range(3000)))
    together = replace(apart, flows=tuple(replace(flow, start_s=0.0) for flow in apart.flows))
    assert 0.16 / 3 < effort_of(apart).seconds < 0.16 * 3
    assert effort_of(together).seconds > 100 * effort_of(apart).seconds


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9), st.sets(st.integers(0, 3), min_size=1)), max_size=30))
def test_no_more_flows_are_under_way_than_are_estimated(drawn: list[tuple[int, int, set[int]]]) -> None:
    case = Case("drawn", (1.0,) * 4, (0.0,) * 4, tuple(Flow(float(s), float(b), tuple(sorted(r))) for s, b, r in drawn))
    ends_s = end_times_s(case)
    most = max((sum(f.start_s <= at < e for f, e in zip(case.flows, ends_s, strict=True)) for at in range(40)), default=0)
    assert most <= most_at_once(case)
