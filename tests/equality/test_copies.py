"""Where blocks of replicas are copies of each other, one of them gives the same times as all of them, rank by rank."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

import simulator as sim
from simulator.binding.bind import Bound, bind, bind_first
from simulator.config import derived, feasible
from simulator.engine import heap
from simulator.engine.fold import Folded, folded
from simulator.engine.timeline import Timeline
from simulator.errors import UserError
from simulator.hardware import wiring
from simulator.simulation import simulate
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.simulate import program_of, site_of
from simulator.study.critical_path import critical_path
from simulator.workload.framework import Framework, HostTimes

from ..small_scenarios import scenario, small_cluster, small_model

ALGORITHM = st.sampled_from(["auto", "ring", "halving_doubling", "hierarchical"])


@st.composite
def replicated(draw: st.DrawFn) -> Scenario:
    """A plan with many replicas on nodes of four GPUs."""
    tp, cp, pp = draw(st.sampled_from([(1, 1, 2), (2, 1, 2), (4, 1, 4), (8, 1, 1), (2, 2, 2), (1, 4, 1), (4, 1, 2), (1, 1, 1)]))
    dp = draw(st.sampled_from([4, 6, 8, 12]))
    ep, etp = draw(st.sampled_from([(1, None), (1, None), (2, 1), (4, 1)]))
    order = "tp-cp-ep-dp-pp" if ep > 1 else draw(st.sampled_from(["tp-cp-ep-dp-pp", "tp-pp-cp-dp", "tp-cp-dp-pp", "dp-tp-pp-cp"]))
    kind = draw(st.sampled_from(["none", "zero1", "zero1", "fsdp", *(["zero2"] if pp == 1 else [])]))
    group = draw(st.sampled_from([None, 2])) if kind in ("zero1", "fsdp") else None
    plan = sim.Plan(
        tp=tp, cp=cp, pp=pp, dp=dp, ep=ep, etp=etp, rank_order=order, sharding=sim.Sharding(kind, group),
        schedule=draw(st.sampled_from(["1f1b", "gpipe"])), moe=sim.Moe(dispatcher=draw(st.sampled_from(["alltoall", "deepep"]))),
    )  # fmt: skip
    experts = {"experts": 8, "experts_per_token": 2, "ffn_hidden": 704} if ep > 1 else {}
    ranks = tp * cp * pp * dp
    if ranks % 4:
        reject()
    cluster = small_cluster(
        ranks // 4,
        oversubscription=draw(st.sampled_from([1.0, 1.0, 1.0, 3.0])),
        nodes_per_pod=draw(st.sampled_from([1, 2, 3, 4, 64])),
        shape=draw(st.sampled_from(["rail-optimized", "leaf-spine", "fat-tree"])),
        fabric=draw(st.sampled_from(["ideal", "ndr-ib"])),
    )
    framework = Framework(host=HostTimes(kernel_s=draw(st.sampled_from([0.0, 5e-6]))))
    job = sim.Job(sequence_length=64, global_batch=2 * pp * dp)
    perturb = tuple(draw(st.lists(disturbances(cluster), max_size=2)))
    return scenario(small_model(2 * pp, **experts), cluster, plan, job, framework=framework, perturb=perturb)


@st.composite
def disturbances(draw: st.DrawFn, cluster: Any) -> sim.Perturb:
    """A slow or quick rank, or a link of a node with less capacity, always or for a while."""
    node, gpu = draw(st.integers(0, cluster.nodes - 1)), draw(st.integers(0, 3))
    window = draw(st.sampled_from([{}, {}, {"from_s": 1e-4, "until_s": 4e-4}]))
    names = (
        f"node{node}/gpu{gpu}>node{node}/nvswitch",
        f"node{node}/nvswitch>node{node}/gpu{gpu}",
        f"node{node}/gpu{gpu}>node{node}/nic{gpu}",
    )
    name = draw(st.sampled_from([None, None, *names] if cluster.nodes > 1 else [None, *names[:2]]))
    if name is None:
        return sim.Perturb(rank=4 * node + gpu, speed=draw(st.sampled_from([0.5, 0.9, 1.3])), **window)
    return sim.Perturb(link=name, capacity=draw(st.sampled_from([0.1, 0.6, 0.9])), **window)


def twice(of: Scenario, algorithm: str = "ring") -> tuple[Bound, Bound]:
    """A scenario bound rank by rank, and as `simulate` binds it. Collectives that know the algorithm are carried out by it."""
    program, mesh, site = program_of(of), derived.mesh_of(of), site_of(of)
    site = replace(site, policy=replace(site.policy, algorithm=algorithm))
    gpus = None if of.plan.placement is None else derived.gpus_of(of)
    return bind(program, mesh, site, gpus=gpus), bind_first(program, mesh, site, gpus=gpus)


def timeline(of: Folded) -> Timeline:
    expansion = of.expansion()
    return Timeline(heap.simulate(expansion.graph), expansion)


def check(of: Scenario, algorithm: str = "ring") -> bool:
    """Whether there are copies; if so, every row of every rank starts and ends as without them."""
    try:
        feasible.check(of)
    except UserError:
        reject()
    every, first = twice(of, algorithm)
    if not first.copies:
        return False
    one, other = folded(every.merged), first.folded()
    assert other.tasks_unfolded == one.tasks_unfolded
    assert first.skeleton.ranks < every.skeleton.ranks == len(other.class_of)
    assert other.skeleton.ranks == one.skeleton.ranks
    left, right = timeline(one), timeline(other)
    for rank in range(every.skeleton.ranks):
        mine, theirs = left.rank_times(rank), right.rank_times(rank)
        for column in ("start_ns", "end_ns", "arrival_ns"):
            np.testing.assert_array_equal(getattr(mine, column), getattr(theirs, column))
    return True


@settings(max_examples=25)
@given(replicated(), ALGORITHM)
def test_one_block_stands_for_all(of: Scenario, algorithm: str) -> None:
    check(of, algorithm)


@pytest.mark.slow
@settings(max_examples=300)
@given(replicated(), ALGORITHM)
def test_one_block_stands_for_all_many_times(of: Scenario, algorithm: str) -> None:
    check(of, algorithm)


def of_replicas(cluster: Any = None, plan: Any = None, **more: Any) -> Scenario:
    plan = plan or sim.Plan(tp=4, pp=2, dp=8, sharding="zero1")
    return scenario(small_model(4), cluster or small_cluster(16), plan, sim.Job(64, 32), **more)


@pytest.mark.parametrize("sharding", ["none", "zero1", sim.Sharding("zero1", 2)], ids=["replicas", "zero1", "in groups"])
@pytest.mark.parametrize("order", ["tp-cp-ep-dp-pp", "tp-pp-dp"])
def test_replicas_on_whole_nodes_are_copies(sharding: Any, order: str) -> None:
    assert check(of_replicas(plan=sim.Plan(tp=4, pp=2, dp=8, sharding=sharding, rank_order=order)))


def test_a_block_has_as_many_replicas_as_fill_its_nodes() -> None:
    plan = sim.Plan(tp=2, pp=2, dp=16)
    _, first = twice(scenario(small_model(4), small_cluster(16), plan, sim.Job(64, 64)))
    assert first.copies
    assert (first.copies.count, first.skeleton.ranks) == (8, 8)


def test_replicas_of_experts_are_copies() -> None:
    plan = sim.Plan(tp=2, pp=2, dp=16, ep=8, etp=1)
    model = small_model(4, experts=8, experts_per_token=2, ffn_hidden=704)
    assert check(scenario(model, small_cluster(16), plan, sim.Job(64, 64)))


@pytest.mark.parametrize(
    ("why", "changes"),
    [
        ("uplinks that bind", {"cluster": small_cluster(16, oversubscription=3.0)}),
        ("pods that divide some replicas only", {"cluster": small_cluster(16, nodes_per_pod=12)}),
        ("routes that depend on more than pods", {"cluster": small_cluster(16, shape="fat-tree")}),
        ("a slow link between switches", {"perturb": (sim.Perturb(link="leaf0>spine", capacity=0.5),)}),
        ("slow ranks in half of them", {"perturb": tuple(sim.Perturb(rank=4 * replica, speed=0.5) for replica in range(4))}),
        ("ranks that stand elsewhere", {"plan": sim.Plan(tp=4, pp=2, dp=8, placement=tuple(range(64))[::-1])}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_replicas_are_bound_one_by_one(why: str, changes: dict[str, Any]) -> None:
    assert not twice(of_replicas(**changes))[1].copies, why


@pytest.mark.parametrize(("algorithm", "alike"), [("ring", True), ("tree", False)])
def test_groups_that_load_their_replicas_differently_are_bound_rank_by_rank(algorithm: str, *, alike: bool) -> None:
    of = of_replicas(plan=sim.Plan(tp=4, dp=16))
    _, first = twice(of, algorithm)
    assert algorithm in {*first.algorithms.values()}
    assert bool(first.copies) == alike


SLOW = {
    "a slow rank": sim.Perturb(rank=13, speed=0.5),
    "a quick rank": sim.Perturb(rank=0, speed=1.5),
    "a slow link within a node": sim.Perturb(link="node9/nvswitch>node9/gpu1", capacity=0.1),
    "a slow link to a NIC": sim.Perturb(link="node3/gpu1>node3/nic1", capacity=0.2),
    "a link that is a little slow": sim.Perturb(link="node15/gpu1>node15/nic1", capacity=0.9),
    "a link that is slow for a while": sim.Perturb(link="node0/gpu1>node0/nic1", capacity=0.1, from_s=1e-4, until_s=5e-4),
}


@pytest.mark.parametrize("fabric", ["ideal", "ndr-ib"])
@pytest.mark.parametrize("order", ["tp-cp-ep-dp-pp", "tp-pp-dp"])
@pytest.mark.parametrize("why", SLOW)
def test_blocks_with_a_disturbance_are_bound_beside_one_that_stands_for_all_others(why: str, order: str, fabric: str) -> None:
    plan = sim.Plan(tp=4, pp=2, dp=8, sharding="zero1", rank_order=order)
    of = of_replicas(plan=plan, cluster=small_cluster(16, fabric=fabric), perturb=(SLOW[why],))
    assert check(of)
    copies = twice(of)[1].copies
    assert copies
    assert (copies.count, len(copies.laid_out), len(copies.ranks)) == (8, 2, 16)


def test_several_disturbances_of_several_blocks() -> None:
    perturb = tuple(SLOW[name] for name in ("a slow rank", "a slow link within a node", "a slow link to a NIC"))
    of = of_replicas(plan=sim.Plan(tp=4, dp=16), perturb=(*perturb, sim.Perturb(rank=14, speed=0.7)))
    assert check(of)
    copies = twice(of)[1].copies
    assert copies
    assert copies.laid_out == (0, 3, 9)


def test_nodes_that_send_more_than_others_are_looked_at_together() -> None:
    quick = [sim.Perturb(link=f"node{node}/gpu1>node{node}/nic1", capacity=1.5) for node in (3, 9)]
    assert twice(of_replicas(perturb=tuple(quick[:1])))[1].copies
    assert not twice(of_replicas(perturb=tuple(quick)))[1].copies


def test_links_of_large_clusters_are_looked_up_without_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, short = (small_cluster(6, nodes_per_pod=2).wiring for _ in range(2))
    links = np.array([-1, *range(whole.links), -1])
    expected = [whole.capacities(links), whole.latencies(links)]
    monkeypatch.setattr(wiring, "MOST_WRITTEN", 0)
    for one, other in zip(expected, [short.capacities(links), short.latencies(links)], strict=True):
        np.testing.assert_array_equal(one, other)
    assert (expected[0][0], expected[1][0]) == (np.inf, 0.0)
    assert "source" not in vars(short)


@pytest.mark.parametrize("nodes", [1, 5])
def test_links_of_nodes_are_numbered_back(nodes: int) -> None:
    cluster = small_cluster(nodes + 1)
    assembly = cluster.assembly
    for node in range(cluster.nodes):
        found, local = assembly.in_node(assembly.of_node(node))
        assert (found == node).all()
        assert local.tolist() == [*range(assembly.links_of_node)]
    fabric = np.arange(assembly.first_fabric, cluster.wiring.links)
    assert (assembly.in_node(fabric)[0] == -1).all()


def test_a_million_gpus_are_never_ranks() -> None:
    plan = sim.Plan(tp=8, pp=16, schedule="1f1b", sharding="zero1")
    cluster = sim.cluster("dgx-h100", nodes=1 << 17)
    job = sim.Job(sequence_length=8192, global_batch=4 << 13)
    run = sim.simulate(sim.model("llama3-405b"), cluster, plan, job, allow_oom=True)
    assert (run.gpus, run.bound.skeleton.ranks, run.engine_timeline.skeleton.ranks) == (1 << 20, 128, 16)
    link = sim.Perturb(link="node99999/gpu1>node99999/nic1", capacity=0.5)
    slow = sim.simulate(
        sim.model("llama3-405b"), cluster, plan, job, allow_oom=True, perturb=[link, sim.Perturb(rank=1000, speed=0.9)]
    )
    assert slow.bound.skeleton.ranks == 3 * 128
    assert slow.metrics.step_time_s > run.metrics.step_time_s
    assert "source" not in vars(cluster.wiring)
    assert "vertices" not in vars(cluster)


@pytest.mark.parametrize("overlap", ["free", "slowed"])
@pytest.mark.parametrize(
    "perturb", [(), (sim.Perturb(link="node9/gpu1>node9/nic1", capacity=0.3), sim.Perturb(rank=13, speed=0.6))]
)
def test_what_a_run_says_of_links_is_the_same(monkeypatch: pytest.MonkeyPatch, overlap: Any, perturb: Any) -> None:
    plan, fidelity = sim.Plan(tp=2, pp=2, dp=16, sharding="zero1", rank_order="tp-dp-pp"), sim.Fidelity(overlap=overlap)
    of = scenario(small_model(4), small_cluster(16), plan, sim.Job(512, 64), fidelity=fidelity, perturb=perturb)
    first = of.simulate()
    monkeypatch.setattr(simulate, "bound_first_of", lambda of, program, site, within: simulate.bound_of(of, program, site))
    every = of.simulate()
    assert first.bound.copies
    assert not every.bound.copies
    assert first.metrics == every.metrics
    one, other = first.network, every.network
    assert (one.busiest(50), one.classes, one.waits, one.waited_links(50)) == (
        other.busiest(50), other.classes, other.waits, other.waited_links(50)
    )  # fmt: skip
    assert critical_path(first) == critical_path(every)
    assert first.as_dict() == every.as_dict() | {"wall_s": first.as_dict()["wall_s"]}
