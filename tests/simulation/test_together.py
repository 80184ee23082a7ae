"""What links carry, several jobs on one fabric, messages in place of fluids, one collective by itself."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import simulator as sim
from simulator.config import catalog
from simulator.config.fabric_files import IDEAL
from simulator.config.tenancy import Tenancy
from simulator.errors import OutsideDomain, UserError
from simulator.fabrics.policy import policy_on
from simulator.simulation.jobs import SharedRun
from simulator.simulation.run import Run
from simulator.simulation.simulate import simulate_scenario
from simulator.study.collective import spread
from simulator.units import show_s

from ..commandline import SMALL, trainsim
from ..fabrics.uncontended import steps
from ..small_scenarios import scenario, small_cluster, time_collective
from ..validate.described import links_on

PLAN = sim.Plan(tp=2, pp=2, dp=4, sharding="zero1")


def run_of(plan: sim.Plan = PLAN, **more: Any) -> Run:
    return scenario(plan=plan, cluster=small_cluster(4), **more).simulate()


@pytest.mark.parametrize("plan", [sim.Plan(tp=2, pp=2), sim.Plan(tp=1, pp=4), sim.Plan(tp=1, dp=4)])
def test_one_node_carries_what_its_ranks_send(plan: sim.Plan) -> None:
    """Inside a node every edge is two links, up to the switch and down; all of these collectives are rings or transfers."""
    run = scenario(plan=plan, cluster=small_cluster(1)).simulate()
    rows = run.timeline.to_pandas()
    sent = rows[(rows.kind != "receive") & (rows.wire_bytes > 0)]
    network = run.network
    assert network.bytes.sum() == pytest.approx(2 * sent.wire_bytes.sum(), rel=1e-5)
    assert (network.utilisation <= 1 + 1e-6).all()


WITHIN_LEAF, ACROSS = 4, 6
"""Links from GPU to GPU: up through a NIC to the leaf and down again, or through a spine too."""


@pytest.mark.parametrize(
    "order, pipeline_hops, gradient_hops",
    [
        ("tp-cp-ep-dp-pp", ACROSS + ACROSS + ACROSS, WITHIN_LEAF),
        ("tp-cp-ep-pp-dp", WITHIN_LEAF + ACROSS + WITHIN_LEAF, ACROSS),
    ],
)
def test_several_nodes_carry_bytes_times_hops(order: str, pipeline_hops: int, gradient_hops: int) -> None:
    """Four stages, twice, on eight nodes of a GPU, two to a leaf: sums from the plan alone, to the byte."""
    hidden, ffn, vocab, tokens, microbatches, replicas = 512, 2048, 4096, 256, 8, 2
    model = sim.model({"layers": 8, "hidden": hidden, "heads": 8, "ffn_hidden": ffn, "vocab": vocab})
    cluster = small_cluster(8, gpus_per_node=1, inter_node="1x100 Gbit/s", shape="leaf-spine")
    run = scenario(model, cluster, sim.Plan(pp=4, dp=replicas, rank_order=order), sim.Job(tokens, replicas * microbatches))
    network = run.simulate().network
    activation_bytes = 2 * tokens * hidden
    pipeline_bytes = 2 * replicas * microbatches * activation_bytes
    norm = 2 * hidden
    parameters = 8 * (4 * hidden**2 + 2 * hidden * ffn + 2 * norm) + 2 * vocab * hidden + norm
    ring_bytes = replicas * (2 * (replicas - 1) / replicas) * 4 * parameters
    assert network.bytes.sum() == pipeline_bytes * pipeline_hops + ring_bytes * gradient_hops


def test_a_class_of_links_is_as_busy_as_its_links_are_on_average(tmp_path: Path) -> None:
    """The time that transfers of a link cover together, added up one by one."""
    network = run_of().network
    busy_s: dict[str, list[float]] = {}
    for link in range(network.cluster.wiring.links):
        covered, reached = 0, network.begin_ns
        for begin, end, _ in sorted(network.flows(link)):
            covered += max(0, end - max(begin, reached))
            reached = max(reached, end)
        assert network.link(link).busy_s == pytest.approx(covered * 1e-9, rel=1e-12)
        busy_s.setdefault(network.link(link).kind, []).append(covered * 1e-9)
    assert {of["kind"]: of["busy_s"] for of in network.classes} == pytest.approx({k: np.mean(v) for k, v in busy_s.items()})
    assert any(0 < min(each) < max(each) for each in busy_s.values())
    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    classes = trainsim("network", file, "--json").record["classes"]
    assert max(of["busy_s"] for of in classes) > 0
    lines = trainsim("network", file).out.splitlines()
    title = next(i for i, line in enumerate(lines) if line.startswith("class of links "))
    assert "  mean busy  mean wait" in lines[title]
    for of, line in zip(classes, lines[title + 1 : title + 1 + len(classes)], strict=True):
        assert line.startswith(of["kind"])
        waited = show_s(of["waited_s"]) if of["waited_s"] else "-"
        assert re.search(rf"  {re.escape(show_s(of['busy_s']))}  +{re.escape(waited)}$", line)


def test_the_busy_time_and_the_series_of_a_link() -> None:
    run = run_of()
    network = run.network
    for use in network.busiest(5):
        link = run.scenario.cluster.link_named(use.name)
        assert 0 < use.busy_s <= run.metrics.step_time_s
        assert use.bytes <= use.busy_s * use.capacity_bytes_per_s * (1 + 1e-6)
        edges_s, rate = network.series(link, 64)
        assert (rate * np.diff(edges_s)).sum() == pytest.approx(use.bytes, rel=1e-6)
        assert use.bytes == pytest.approx(sum(size for _, _, size in network.flows(link)), rel=1e-9)
    order = [use.utilisation for use in network.busiest(100)]
    assert order == sorted(order, reverse=True)


def test_of_several_steps_one_is_counted() -> None:
    once, thrice = (scenario(plan=PLAN, cluster=small_cluster(4)).simulate(steps=steps).network.bytes.sum() for steps in (1, 3))
    assert once == pytest.approx(thrice, rel=1e-12)


def test_folded_or_not_the_network_is_the_same() -> None:
    of = scenario(plan=PLAN, cluster=small_cluster(4))
    folded, whole = (of.simulate(folding=folding).network for folding in (True, False))
    np.testing.assert_array_equal(folded.bytes, whole.bytes)
    for one, other in zip(folded.busiest(8), whole.busiest(8), strict=True):
        assert one == other


MODEL = {"layers": 4, "hidden": 512, "heads": 8, "ffn_hidden": 2048, "vocab": 4096}


def jobs(cluster: dict[str, Any], *gpus: Any, plan: dict[str, Any] | None = None) -> Tenancy:
    entries = [
        {"name": f"j{i}", "model": MODEL, "plan": plan or {"tp": 1, "dp": 8}, "job": {"global_batch": 16}, "gpus": of}
        for i, of in enumerate(gpus)
    ]
    found = sim.scenario({"cluster": cluster, "jobs": entries})
    assert isinstance(found, Tenancy)
    return found


THIN: dict[str, Any] = {
    "gpu": "h100", "gpus_per_node": 4, "nodes": 4, "intra_node": "NVSwitch 450 GB/s", "inter_node": "4x400 Gbit/s",
    "shape": "leaf-spine", "nodes_per_pod": 2, "oversubscription": 16, "fabric": "ideal",
}  # fmt: skip
FIRST, SECOND = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]
"""One node of each pod for each job: both need the uplinks."""


def test_jobs_that_share_no_link_do_not_disturb_each_other() -> None:
    run = jobs(THIN, 8, 8).simulate()
    assert [job.slowdown for job in run.jobs] == [1.0, 1.0]


def test_jobs_that_share_uplinks_slow_each_other_down() -> None:
    run: SharedRun = jobs(THIN, FIRST, SECOND).simulate()
    assert all(1.2 < job.slowdown <= 2 + 1e-9 for job in run.jobs)
    assert run.jobs[0].slowdown == pytest.approx(run.jobs[1].slowdown, rel=0.02)
    wide = jobs({**THIN, "oversubscription": 1}, FIRST, SECOND).simulate()
    assert [job.slowdown for job in wide.jobs] == pytest.approx([1.0, 1.0], rel=1e-3)


def test_who_shares_which_link() -> None:
    """The uplinks of both leaves, and nothing else; by each job the bytes that it sends over them when it is alone."""
    tenancy = jobs(THIN, FIRST, SECOND)
    run = tenancy.simulate()
    links = tenancy.shared(run, 100)
    assert {link.name for link in links} == {
        f"{a}>{b}" for leaf in ("leaf0", "leaf1") for a, b in [(leaf, "spine"), ("spine", leaf)]
    }
    for link in links:
        assert [share.name for share in link.jobs] == ["j0", "j1"]
        assert link.jobs[0].bytes == link.jobs[1].bytes > 0
        rates = [share.bytes / job.step_time_s for share, job in zip(link.jobs, run.jobs, strict=True)]
        assert link.utilisation == pytest.approx(sum(rates) / link.capacity_bytes_per_s)
        assert 0 < link.utilisation <= 1
    assert len(tenancy.shared(run, 3)) == 3
    apart = jobs(THIN, 8, 8)
    assert apart.shared(apart.simulate()) == []


def test_a_job_by_itself_is_what_it_is_alone() -> None:
    run = jobs(THIN, 16, plan={"tp": 2, "dp": 8}).simulate()
    assert run.jobs[0].slowdown == 1.0


@pytest.mark.parametrize("optimizer", ["synchronised", "post-validated"])
def test_t3_8_alone_a_job_takes_what_its_scenario_takes(optimizer: str) -> None:
    plan = {"tp": 2, "pp": 2, "dp": 4, "schedule": "zb-h1", "sharding": "zero1", "optimizer": optimizer}
    tenancy = jobs(THIN, 16, plan=plan)
    (job,) = tenancy.simulate().jobs
    alone = simulate_scenario(tenancy.tenants[0].scenario)
    assert job.step_time_s == job.alone_s == alone.metrics.step_time_s
    for field in ("tokens_per_s", "mfu", "flop_convention"):
        assert getattr(job, field) == getattr(alone.metrics, field)
    assert (job.peak_memory_bytes, job.fits) == (alone.peak_memory_bytes, alone.fits)


@pytest.mark.parametrize("schedule, batch", [("gpipe", 8), ("1f1b", 8), ("zb-h1", 32)])
def test_t3_8_first_steps_of_a_job_without_a_norm_do_not_count(schedule: str, batch: int) -> None:
    """Beside a job that shares no link with it, a job takes as long as alone, and as its scenario."""
    model = {"layers": 8, "hidden": 512, "heads": 8, "kv_heads": 4, "ffn_hidden": 1408, "vocab": 4096, "gated_mlp": True}
    plan = {"tp": 1, "pp": 2, "schedule": schedule, "sharding": "none", "optimizer": "post-validated"}
    entry = {"model": model, "plan": plan, "job": {"sequence_length": 256, "global_batch": batch}}
    cluster, framework = {**THIN, "oversubscription": 1}, "megatron-core-2025"
    other = {"name": "b", "model": MODEL, "plan": {"tp": 4}, "job": {"global_batch": 16}, "gpus": 8}
    jobs_of = [{"name": "a", "gpus": 8, **entry}, other]
    run = sim.scenario({"cluster": cluster, "framework": framework, "jobs": jobs_of}).simulate()
    alone = sim.scenario({"cluster": {**cluster, "nodes": 2}, "framework": framework, **entry}).simulate()
    assert run.jobs[0].step_time_s == run.jobs[0].alone_s == pytest.approx(alone.metrics.step_time_s, rel=1e-12)


def test_t3_8_no_step_is_measured_while_another_job_has_not_begun_or_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of ten times as long steps beside a quick one: both are measured between their own first and last edges."""
    from simulator.simulation import jobs as module

    seen: list[list[Any]] = []

    def run(*args: Any, **options: Any) -> list[Any]:
        seen.append(simulated(*args, **options))
        return seen[-1]

    simulated = module._run
    monkeypatch.setattr(module, "_run", run)
    tenancy = jobs(THIN, FIRST, SECOND)
    slow, quick = tenancy.tenants
    longer = replace(slow.scenario, job=replace(slow.scenario.job, global_batch=256))
    tenancy = replace(tenancy, tenants=(replace(slow, scenario=longer), quick))
    result = tenancy.simulate()
    edges = seen[-1]
    assert len(edges) == 2
    assert result.until_ns > result.from_ns
    for of, job in zip(edges, result.jobs, strict=True):
        assert of.at_ns[:, 0].max() <= result.from_ns
        assert of.at_ns[:, -1].min() >= result.until_ns
        at_ns = of.at_ns[0]
        whole = at_ns[(at_ns >= result.from_ns) & (at_ns <= result.until_ns)]
        assert len(whole) > 1
        assert job.step_time_s == pytest.approx((whole[-1] - whole[0]) / (len(whole) - 1) / 1e9)
    assert result.jobs[0].step_time_s > 3 * result.jobs[1].step_time_s
    assert edges[1].at_ns.shape[1] > edges[0].at_ns.shape[1]


@pytest.mark.parametrize("window_s", [(0.0, 0.001), (0.001, 0.002), (0.5, None)])
def test_t3_8_where_a_disturbance_begins_or_ends_every_job_does_one_step(window_s: tuple[float, float | None]) -> None:
    """As `run` does it: on links that nobody shares a job takes what its scenario takes by itself, disturbed or not."""
    slow = sim.Perturb(rank=1, speed=0.5, from_s=window_s[0], until_s=window_s[1])
    tenancy = jobs({**THIN, "nodes_per_pod": 4}, [0, 1, 2, 3], [4, 5, 6, 7], plan={"dp": 4})
    tenancy = replace(tenancy, perturb=(slow,))
    result = tenancy.simulate()
    alone_of = replace(tenancy.tenants[0].scenario, cluster=sim.cluster({**THIN, "nodes": 1}), perturb=(slow,))
    alone = simulate_scenario(alone_of)
    assert result.jobs[0].step_time_s == result.jobs[0].alone_s == alone.metrics.step_time_s
    assert result.jobs[1].step_time_s == result.jobs[1].alone_s
    assert (result.jobs[0].step_time_s > result.jobs[1].step_time_s) == (window_s[0] < 0.5)
    assert any("one step" in note for note in result.notes)


def test_t3_8_jobs_whose_steps_differ_too_much_are_refused() -> None:
    tenancy = jobs(THIN, FIRST, SECOND)
    slow, quick = tenancy.tenants
    longer = replace(slow.scenario, job=replace(slow.scenario.job, sequence_length=8192, global_batch=4096))
    shorter = replace(quick.scenario, job=replace(quick.scenario.job, sequence_length=16))
    tenancy = replace(tenancy, tenants=(replace(slow, scenario=longer), replace(quick, scenario=shorter)))
    with pytest.raises(UserError, match="j1 does so many steps during one step of j0"):
        tenancy.simulate(allow_oom=True)


@pytest.mark.parametrize(
    ("gpus", "says"),
    [
        (([0, 1, 2, 3, 4, 5, 6, 7], [7, 8, 9, 10, 11, 12, 13, 14]), "GPU 7 of j1 belongs to j0 too"),
        ((8, 16), "j1 has GPU 23, but inline has 16"),
        ((6,), "6 GPUs are neither whole nodes of 4 nor a part of one"),
        (("all",), "'all' are not GPUs"),
        ((-8,), "-8 are not GPUs"),
        ((["0-7"],), "'0-7' is not a number of a GPU"),
        (([],), "are not GPUs"),
    ],
)
def test_gpus_that_cannot_be_had(gpus: tuple[Any, ...], says: str) -> None:
    with pytest.raises(UserError, match=says):
        jobs(THIN, *gpus)


def test_jobs_that_nobody_could_tell_apart_are_refused(tmp_path: Path) -> None:
    entry = {"model": MODEL, "plan": {"dp": 4}, "job": {"global_batch": 16}, "gpus": 4}
    file = tmp_path / "jobs.yaml"
    lines = [json.dumps({"name": name, **entry}) for name in ("a", "b", "a", "job 4")] + [json.dumps(entry)]
    file.write_text("cluster: " + json.dumps({**THIN, "nodes": 8}) + "\njobs:\n" + "".join(f"  - {line}\n" for line in lines))
    said = trainsim("run", file)
    assert said.code == 2
    assert f"{file}:5:" in said.err
    assert "two are called 'a'" in said.err
    assert "two are called 'job 4'" in said.err


@pytest.mark.parametrize("wrong", [[1], {"a": 1}, True])
def test_a_name_of_a_job_is_text_or_nothing(wrong: Any, tmp_path: Path) -> None:
    entry = {"model": MODEL, "plan": {"dp": 8}, "job": {"global_batch": 16}, "gpus": 8}
    file = tmp_path / "jobs.yaml"

    def written(*names: Any) -> Path:
        lines = [json.dumps({"name": name, **entry}) for name in names]
        file.write_text("cluster: " + json.dumps(THIN) + "\njobs:\n" + "".join(f"  - {line}\n" for line in lines))
        return file

    said = trainsim("run", written("a", wrong))
    assert said.code == 2
    assert f"{file}:4:6: jobs: name: " in said.err
    assert "is not a name" in said.err
    tenancy = sim.load(written(7, None))
    assert isinstance(tenancy, Tenancy)
    assert [tenant.name for tenant in tenancy.tenants] == ["7", "job 1"]


def test_all_faults_of_jobs_are_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    """GPUs that a job without a list has are not known behind one that is no job: nobody is told that they clash."""
    entry = {"model": MODEL, "plan": {"dp": 4}, "job": {"global_batch": 16}}
    held: tuple[Any, ...] = ([0, 1, 2, 3], [3, 4, 5, 6], [7, 7, 8, 9], [-1], 4, [12, 13, 14, 15], [28, 29, 30, 32])
    lines = [json.dumps({"name": "a" if i < 2 else f"j{i}", **entry, "gpus": gpus}) for i, gpus in enumerate(held)]
    head = ["fidelity: {collectives: stepwise}", "cluster: " + json.dumps({**THIN, "nodes": 8}), "jobs:"]
    file = tmp_path / "jobs.yaml"
    file.write_text("".join(f"{line}\n" for line in (*head, *(f"  - {line}" for line in lines))))
    faults = trainsim("run", file, "--json").record["faults"]
    expected = [
        (1, "stepwise is not supported for several jobs"),
        (5, "two are called 'a'"),
        (5, "GPU 3 of a belongs to a too"),
        (6, "GPU 7 is listed twice for j2"),
        (7, "-1 is not a number of a GPU"),
        (10, "j6 has GPU 32, but inline has 32"),
    ]
    assert [int(fault["where"].split(":")[-2]) for fault in faults] == [line for line, _ in expected]
    assert all(says in fault["message"] for fault, (_, says) in zip(faults, expected, strict=True))


def test_jobs_are_not_simulated_stepwise_and_say_so(tmp_path: Path) -> None:
    entries = [{"name": n, "model": MODEL, "plan": {"dp": 8}, "job": {"global_batch": 16}, "gpus": 8} for n in "ab"]
    file = tmp_path / "jobs.yaml"
    file.write_text("cluster: " + json.dumps(THIN) + "\njobs: " + json.dumps(entries) + "\nfidelity:\n  collectives: stepwise\n")
    said = trainsim("run", file)
    assert said.code == 2
    assert f"{file}:4:" in said.err
    assert "fidelity.collectives: stepwise is not supported for several jobs" in said.err
    assert "--set fidelity.collectives" in trainsim("network", file, "--set", "fidelity.collectives=stepwise").err
    assert trainsim("run", file, "--set", "fidelity.collectives=closed").code == 0


def test_jobs_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    entries = [{"name": n, "model": MODEL, "plan": {"dp": 8}, "job": {"global_batch": 16}, "gpus": 8} for n in "ab"]
    file.write_text(json.dumps({"cluster": THIN, "jobs": entries}))
    said = trainsim("run", file, "--json")
    assert [job["name"] for job in said.record["jobs"]] == ["a", "b"]
    assert {"step_time_s", "alone_s", "slowdown", "mfu", "peak_memory_bytes"} <= set(said.record["jobs"][0])
    assert trainsim("run", file, "--steps", "2").code == 2
    assert trainsim("network", file, "--json").record["shared_links"] == []
    assert "no two jobs share a link" in trainsim("network", file).out
    assert trainsim("network", file, "--link", "leaf0>spine").code == 2
    entries = [{**entry, "gpus": gpus} for entry, gpus in zip(entries, (FIRST, SECOND), strict=True)]
    file.write_text(json.dumps({"cluster": THIN, "jobs": entries}))
    first = trainsim("network", file, "--json").record["shared_links"][0]
    assert [share["name"] for share in first["jobs"]] == ["a", "b"]
    assert first["name"] in trainsim("network", file, "--top", 1).out
    assert trainsim("memory", file).code == 2
    file.write_text(json.dumps({"cluster": THIN, "jobs": [{**entries[0], "model": "lama3-8b"}]}))
    wrong = trainsim("run", file)
    assert wrong.code == 2
    assert "did you mean 'llama3-8b'" in wrong.err


def test_a_stepwise_run_says_that_it_takes_links_at_their_face_value() -> None:
    run = scenario(plan=sim.Plan(tp=4), cluster=small_cluster(1), fidelity=sim.Fidelity(collectives="stepwise")).simulate()
    assert "links at their nominal rates" in run.engine_reason


def test_stepwise_and_fluid_agree_within_latencies() -> None:
    """A training step with every message of every ring, and the same with one fluid per collective."""
    job = sim.Job(sequence_length=256, global_batch=4)
    for plan in (sim.Plan(tp=4), sim.Plan(tp=2, pp=2), sim.Plan(tp=1, dp=4)):
        step_s = {}
        for fidelity in ("fluid", "stepwise"):
            of = scenario(plan=plan, job=job, cluster=small_cluster(1), fidelity=sim.Fidelity(collectives=fidelity))
            step_s[fidelity] = of.simulate().metrics.step_time_s
        assert step_s["stepwise"] == pytest.approx(step_s["fluid"], rel=2e-3)


def test_a_slow_link_is_felt_message_by_message() -> None:
    """Rings wait for it in every step, as the fluid does; latencies of their other hops pass meanwhile, at any size alike."""
    disturbed = sim.Perturb(link="node0/gpu1>node0/nvswitch", capacity=0.25)
    whole = scenario(plan=sim.Plan(tp=4), cluster=small_cluster(1), perturb=(disturbed,))

    def step_s(tokens: int, fidelity: str) -> float:
        of = replace(whole, job=sim.Job(tokens, 2), fidelity=sim.Fidelity(collectives=fidelity))
        return of.simulate().metrics.step_time_s

    short, long = (step_s(tokens, "fluid") - step_s(tokens, "stepwise") for tokens in (2048, 4096))
    assert 0 < short == pytest.approx(long, abs=1e-8)


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
def test_one_ring_alone(kind: str, nodes: int) -> None:
    cluster = sim.cluster("dgx-h100", nodes=nodes, fabric="ideal")
    sizes = [2**20, 2**26, 2**30]
    fluid, stepwise = (time_collective(kind, cluster, sizes, algorithm="ring", fidelity=f) for f in ("fluid", "stepwise"))
    for one, other in zip(fluid, stepwise, strict=True):
        latency_s = (2 if kind == "all_reduce" else 1) * cluster.gpus * 1e-5
        assert one.time_s == pytest.approx(other.time_s, abs=latency_s)
    assert fluid[-1].bus_gb_per_s < 450


@pytest.mark.parametrize(("gpus", "nodes", "each"), [(16, None, 8), (16, 4, 4), (None, 2, 8), (3, None, 3)])
def test_gpus_spread_over_nodes(gpus: int | None, nodes: int | None, each: int) -> None:
    chosen = spread(sim.cluster("dgx-h100", nodes=4), gpus, nodes)
    assert len(chosen) == (gpus or 16)
    assert np.bincount(chosen // 8).tolist() == [each] * (len(chosen) // each)


def test_gpus_that_do_not_spread() -> None:
    with pytest.raises(OutsideDomain):
        spread(sim.cluster("dgx-h100", nodes=4), 9)


def test_the_table_on_the_command_line() -> None:
    said = trainsim("collective", "all-reduce", "--cluster", "dgx-h100", "--gpus", "8", "-b", "1K", "-e", "1G", "-f", "32")
    assert said.code == 0
    assert "busbw" in said.out
    record = trainsim(
        "collective", "all_reduce", "--cluster", "dgx-h100", "--nodes", "4", "-b", "1M", "-e", "1M", "--json"
    ).record
    assert record["rows"][0]["size_bytes"] == 2**20
    assert record["gpus"] == 32
    for wrong in (["all_reduse"], ["all_reduce", "-b", "8X"], ["all_reduce", "-b", "2M", "-e", "1M"]):
        refused = trainsim("collective", *wrong, "--cluster", "dgx-h100")
        assert refused.code == 2
        assert "hint" in refused.err


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "alltoall", "sendrecv"])
def test_t7_1_alone_a_collective_takes_what_was_measured_or_what_its_messages_need(kind: str) -> None:
    sizes = [2**k for k in range(3, 34, 5)]
    measured, ideal = (sim.cluster("dgx-h100", nodes=2, fabric=fabric) for fabric in ("", "ideal"))
    timing = policy_on(measured).timing
    assert timing
    nodes = np.arange(16) // 8
    rows, bare = (time_collective(kind, cluster, sizes) for cluster in (measured, ideal))
    for row, least in zip(rows, bare, strict=True):
        known = timing(kind, "auto", nodes, row.size_bytes)
        assert known
        assert row.time_s >= known.seconds * (1 - 1e-3) - 2e-9
        assert row.time_s == pytest.approx(max(known.seconds, min(row.time_s, least.time_s)), rel=1e-3, abs=2e-9)
        assert row.provenance == known.provenance


def test_t7_2_auto_takes_what_needs_least() -> None:
    cluster = sim.cluster("dgx-h100", nodes=8, fabric="ideal")
    sizes = [8, 2**16, 2**30]
    chosen = time_collective("all_reduce", cluster, sizes)
    each = {a: time_collective("all_reduce", cluster, sizes, algorithm=a) for a in ("ring", "tree", "hierarchical_pipelined")}
    for i, row in enumerate(chosen):
        assert row.time_s == min(rows[i].time_s for rows in each.values())
        assert row.algorithm == min(each, key=lambda name: each[name][i].time_s)


@pytest.mark.parametrize("name", ["dgx-a100", "dgx-h100", "dgx-b200"])
def test_tp_16_over_two_nodes_sums_in_layers(name: str) -> None:
    """Inside the nodes, across them, and inside: a NIC sends an eighth of the payload, where flat rings send 15/64 of it.

    On A100 NCCL finds rings and trees about as good, and takes now these, now those.
    """
    cluster, nodes = sim.cluster(name, nodes=2), np.arange(16) // 8
    rows = time_collective("all_reduce", cluster, [2**k for k in range(3, 34)])
    layered = [row.algorithm in ("tree", "nvls_tree") for row in rows]
    assert sum(layered) / len(rows) > 0.75 if name == "dgx-a100" else all(layered)
    for algorithm in {row.algorithm for row in rows}:
        sent = np.zeros(16)
        for r in catalog.module("collectives", algorithm).rounds("all_reduce", nodes):
            leaves = nodes[r.edges.source] != nodes[r.edges.target]
            np.add.at(sent, r.edges.source[leaves], r.edges.share[leaves] * float(r.fraction * r.repeats))
        assert sent == pytest.approx(np.full(16, 15 / 64 if algorithm == "ring" else 1 / 8))


@pytest.mark.parametrize("kind", ["reduce_scatter", "all_gather"])
@pytest.mark.parametrize("name", ["dgx-a100", "dgx-h100", "dgx-b200"])
def test_over_two_nodes_gathers_go_in_rings_through_every_nic_and_at_face_value_in_layers(name: str, kind: str) -> None:
    """As for TP 16 with sequence parallelism. NCCL has rings for them, one per NIC; less would go through these in layers."""
    cluster, sizes = sim.cluster(name, nodes=2), [2**20, 2**28]
    bare = replace(cluster, fabric=IDEAL)
    assert {row.algorithm for row in time_collective(kind, cluster, sizes)} == {"ring"}
    layered, flat = (time_collective(kind, bare, sizes, algorithm=a) for a in ("auto", "ring"))
    for one, other in zip(layered, flat, strict=True):
        assert one.algorithm == "hierarchical_pipelined"
        assert one.time_s < other.time_s
    inside = replace(cluster, nodes=1)
    assert {row.algorithm for row in time_collective(kind, inside, sizes)} == {"ring"}


WITHOUT_A_THEORY = [
    (name, kind)
    for name in (
        "halving_doubling",
        "recursive_doubling",
        "hierarchical",
        "hierarchical_pipelined",
        "bruck",
        "pairwise",
        "binomial",
    )
    for kind in catalog.module("collectives", name).KINDS
]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("name, kind", WITHOUT_A_THEORY)
def test_what_nobody_measured_pays_what_the_fabric_charges(name: str, kind: str, nodes: int) -> None:
    """A launch, a step or a crossing per round, and rates that links reach: never the bare links, never called measured."""
    cluster, sizes = sim.cluster("dgx-h100", nodes=nodes), [8, 2**20, 2**30]
    links = links_on(cluster)
    inside, across = links.inside, links.across
    rounds = steps(catalog.module("collectives", name).rounds(kind, np.arange(8 * nodes) // 8))
    bare = time_collective(kind, replace(cluster, fabric=IDEAL), sizes, algorithm=name)
    for row, least in zip(time_collective(kind, cluster, sizes, algorithm=name), bare, strict=True):
        assert row.provenance == "theoretical"
        assert row.time_s >= least.time_s
        assert row.time_s >= inside.launch_s + rounds * inside.step_s * (across is None)
    assert time_collective(kind, cluster, [2**30], algorithm=name)[0].time_s > bare[-1].time_s * 1.05


def test_a_layered_ring_of_one_node_takes_what_a_ring_takes() -> None:
    """Its rounds are a ring's: a check of the constants against what was measured."""
    cluster, sizes = sim.cluster("dgx-h100", nodes=1), [2**k for k in range(3, 31, 3)]
    ours, measured = (time_collective("all_reduce", cluster, sizes, algorithm=a) for a in ("hierarchical", "ring"))
    for one, other in zip(ours, measured, strict=True):
        assert one.time_s == pytest.approx(other.time_s, rel=0.25)


def test_t7_3_and_4_in_company_links_are_shared_and_closed_leaves_that_out() -> None:
    """Gradients of two stages cross the same thin uplinks."""
    cluster = small_cluster(4, nodes_per_pod=1, oversubscription=8, shape="leaf-spine")
    plan = sim.Plan(tp=1, pp=2, dp=8, rank_order="pp-dp-tp")
    fluid, closed = (
        scenario(plan=plan, cluster=cluster, fidelity=sim.Fidelity(collectives=f)).simulate().metrics.step_time_s
        for f in ("fluid", "closed")
    )
    assert fluid > closed * 1.05


@pytest.mark.parametrize("plan", [sim.Plan(tp=4, dp=4), sim.Plan(tp=2, dp=4, pp=2), sim.Plan(tp=1, dp=16, sharding="zero1")])
@pytest.mark.parametrize("slow", [None, "node1/nic2>leaf1", "leaf1>spine"])
def test_closed_leaves_out_those_who_are_simulated_as_one_too(plan: sim.Plan, slow: str | None) -> None:
    """Four rings of data parallelism behind one thin uplink are alike, and each takes what it takes alone."""
    cluster = small_cluster(4, nodes_per_pod=1, oversubscription=4, shape="leaf-spine")
    perturb = (sim.Perturb(link=slow, capacity=0.25),) if slow else ()
    of = scenario(plan=plan, cluster=cluster, fidelity=sim.Fidelity(collectives="closed"), perturb=perturb)
    folded, whole = (simulate_scenario(of, folding=folding) for folding in (True, False))
    assert folded.engine_timeline.expansion.skeleton.ranks < whole.engine_timeline.expansion.skeleton.ranks
    assert folded.metrics.step_time_s == whole.metrics.step_time_s


def test_t7_5_jobs_are_one_simulation() -> None:
    slow = jobs(THIN, FIRST, SECOND).simulate()
    apart = jobs(THIN, list(range(8)), list(range(8, 16))).simulate()
    assert slow.jobs[0].step_time_s > apart.jobs[0].step_time_s


def together(cluster: Any, *jobs: dict[str, Any], **more: Any) -> SharedRun:
    model = {"layers": 4, "hidden": 512, "heads": 8, "ffn_hidden": 1408, "vocab": 4096}
    listed = [{"name": f"job {i}", "model": model, "job": {"sequence_length": 256, "global_batch": 32}, **job}
              for i, job in enumerate(jobs)]  # fmt: skip
    found = sim.scenario({"cluster": cluster, "jobs": listed, **more}).simulate()
    assert isinstance(found, SharedRun)
    return found


def test_the_kernels_of_a_job_do_not_depend_on_idle_gpus() -> None:
    """The slowest board that it waits for is one of its own."""
    job = {"gpus": 8, "plan": {"tp": 2, "pp": 2}}
    few, many = (together({"name": "dgx-h100", "nodes": nodes}, job).jobs[0].alone_s for nodes in (1, 8))
    assert few == many


EXPERTS = {"layers": 2, "hidden": 512, "heads": 8, "ffn_hidden": 704, "vocab": 4096, "experts": 8, "experts_per_token": 2}


def with_experts(gpus: list[int], ep: int = 8, **options: Any) -> float:
    """The step in seconds of a job with DeepEP on GPUs of two nodes of eight."""
    moe = {"dispatcher": "deepep", **options.pop("moe", {})}
    job = {"model": EXPERTS, "gpus": gpus, "plan": {"ep": ep, "sharding": "zero1", "moe": moe, **options}}
    return together({"name": "dgx-h100", "nodes": 2}, job).jobs[0].alone_s


def test_the_gpus_of_a_job_say_which_of_its_ranks_share_a_node() -> None:
    """Half of each of two nodes is as two nodes of half the size, and ranks of a node stand beside each other in any order."""
    halves = [0, 1, 2, 3, 8, 9, 10, 11]
    usual = with_experts(halves)
    assert usual == with_experts(halves, moe={"node": 4}) == with_experts([10, 11, 9, 8, 1, 0, 3, 2])
    with pytest.raises(UserError, match=r"job 0: plan.moe.node: 8 consecutive ranks"):
        with_experts(halves, moe={"node": 8})
    alternating = [0, 8, 1, 9, 2, 10, 3, 11]
    with pytest.raises(UserError, match=r"job 0: plan.moe.node: in a group of ep the ranks of a node are not consecutive"):
        with_experts(alternating)
    assert usual == with_experts(alternating, placement=[0, 2, 4, 6, 1, 3, 5, 7]), "rank 1 is on GPU 1 again"
    assert with_experts(alternating, ep=2) == with_experts(alternating, ep=2, moe={"node": 1})
    six_and_two = [0, 1, 2, 3, 4, 5, 8, 9]
    assert with_experts(six_and_two) == with_experts(six_and_two, moe={"node": 2})


def test_the_gpus_of_a_job_are_a_placement_of_its_ranks() -> None:
    """A job on a whole cluster takes as long as the scenario with its GPUs as the placement."""
    gpus = [15, 0, 8, 3, 1, 11, 2, 9, 4, 12, 5, 13, 6, 14, 7, 10]
    plan = {"tp": 2, "pp": 2, "sharding": "zero1"}
    job = {"model": MODEL, "plan": plan, "job": {"global_batch": 16}}
    cluster = {"name": "dgx-h100", "nodes": 2}
    alone = sim.scenario({**job, "cluster": cluster, "plan": {**plan, "placement": gpus}}).simulate()
    assert together(cluster, {**job, "gpus": gpus}).jobs[0].alone_s == pytest.approx(alone.metrics.step_time_s, rel=1e-9)


@pytest.mark.parametrize(
    "cluster",
    [
        {"name": "dgx-h100", "nodes": 8, "shape": "torus", "dims": [4, 2]},
        {"gpu": "h100", "gpus_per_node": 2, "nodes": 2, "shape": "explicit",
         "vertices": [*({"name": f"g{i}", "kind": "gpu"} for i in range(4)), {"name": "sw", "kind": "switch"}],
         "links": [{"from": f"g{i}", "to": "sw", "capacity": "50 GB/s", "latency": "1 us"} for i in range(4)]},
    ],
    ids=["torus", "explicit"],
)  # fmt: skip
def test_jobs_run_on_parts_that_are_no_clusters_by_themselves(cluster: Any) -> None:
    gpus = sim.scenario({"cluster": cluster, "model": "llama3-8b"}).cluster.gpus // 2
    found = together(cluster, *({"gpus": gpus, "plan": {"sharding": "zero1"}} for _ in range(2)))
    assert [job.step_time_s > 0 for job in found.jobs] == [True, True]
