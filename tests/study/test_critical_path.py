"""The critical path of a step is as long as the step, and goes through what is slow."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simulator as sim
from simulator.study.critical_path import critical_path

from ..small_scenarios import scenario, small_cluster, small_model


def run_of(plan: dict[str, Any], *slow: sim.Perturb, **options: Any) -> sim.Run:
    chosen = sim.Plan(**plan)
    gpus = chosen.tp * chosen.pp * (chosen.dp or 1)
    job = sim.Job(sequence_length=128, global_batch=8)
    more = {"framework": options.pop("framework", sim.framework("none"))}
    return scenario(small_model(layers=4), small_cluster(gpus // 4), chosen, job, perturb=slow, **more).simulate(**options)


@settings(max_examples=12)
@given(st.data())
def test_its_length_is_the_measured_window(data: st.DataObject) -> None:
    """To the nanosecond, whether steps run into each other or not, from a standing start or not; without a gap."""
    tp, pp = data.draw(st.sampled_from([(1, 1), (2, 2), (1, 4), (4, 1)]))
    plan = {
        "tp": tp, "pp": pp, "dp": 8 // tp // pp,
        "schedule": data.draw(st.sampled_from(["1f1b", "gpipe", "zb-h1"])),
        "sharding": data.draw(st.sampled_from(["none", "zero1"])),
        "optimizer": data.draw(st.sampled_from(["synchronised", "post-validated"])),
    }  # fmt: skip
    slow = [sim.Perturb(rank=data.draw(st.integers(0, 7)), speed=0.5)] if data.draw(st.booleans()) else []
    framework = sim.framework(data.draw(st.sampled_from(["none", "megatron-core-2025"])))
    run = run_of(plan, *slow, framework=framework, steps=data.draw(st.sampled_from([None, None, 2])))
    path = critical_path(run)
    assert path.length_ns == run.observation.window_ns[run.observation.window.end_ns.argmax()]
    assert all(one.until_ns == next_.from_ns for one, next_ in pairwise(path.segments))
    assert sum(path.by_category.values()) * path.steps == pytest.approx(path.length_ns * 1e-9)


def test_it_goes_through_the_stage_of_a_slow_rank() -> None:
    path = critical_path(run_of({"tp": 1, "pp": 4, "dp": 1}, sim.Perturb(rank=2, speed=0.25)))
    assert next(iter(path.by(lambda segment: segment.stage))) == 2


def test_where_every_rank_has_its_own_rows_segments_are_single_operations() -> None:
    """Rows of such ranks are merged for the simulation; the path tells them apart again."""
    model = small_model(layers=4, experts=8, experts_per_token=2, expert_ffn_hidden=256)
    plan = sim.Plan(ep=4, dp=8, moe=sim.Moe(routing="drawn"))
    run = scenario(model, small_cluster(2), plan, sim.Job(sequence_length=128, global_batch=16)).simulate()
    path = critical_path(run)
    assert path.length_ns == run.observation.window_ns.max()
    assert any("expert" in segment.op for segment in path.segments)


def test_waits_for_a_full_link_are_segments_that_name_it() -> None:
    """Replicas of two nodes reduce over NICs, of which one has a hundredth of its rate: the path waits for that link."""
    slow = sim.Perturb(link="node1/nic2>leaf2", capacity=0.01)
    path = critical_path(run_of({"tp": 1, "pp": 1, "dp": 8}, slow))
    assert next(iter(path.by_link)) == "node1/nic2>leaf2"
    assert path.by_link["node1/nic2>leaf2"] <= path.by_category["dp"]
    assert {one.category for one in path.segments if one.link} == {"dp"}
    assert {one.link for one in path.segments if one.category == "compute"} == {""}


@pytest.mark.parametrize("factor", [2, 10])
def test_speeding_up_links_off_the_path_changes_the_step_by_exactly_nothing(factor: int) -> None:
    """Two replicas of a pipeline from node to node: every rank has a NIC, so that no flows share a link. All NICs are degraded.
    One replica is slower: the path goes through its NICs (2 and 3), and the transfers of the other are off it."""
    cluster, nics = small_cluster(2, inter_node="4x100 Gbit/s"), range(4)

    def step(*quicker: int) -> sim.Run:
        slow = [sim.Perturb(rank=6, speed=0.5)]
        for node, nic in [(node, nic) for node in (0, 1) for nic in nics]:
            capacity = 0.05 * (factor if nic in quicker else 1)
            ends = f"node{node}/nic{nic}", f"leaf{nic}"
            slow += [sim.Perturb(link=">".join(pair), capacity=capacity) for pair in (ends, ends[::-1])]
        job, plan = sim.Job(sequence_length=128, global_batch=8), sim.Plan(tp=2, pp=2, dp=2)
        return scenario(small_model(layers=4), cluster, plan, job, perturb=slow).simulate()

    run = step()
    on_path = {int(link.partition("nic")[2][0]) for link in critical_path(run).by_link if "nic" in link}
    assert on_path
    assert on_path <= {2, 3}
    assert run.network.bytes[[run.site.cluster.link_named(f"node0/nic{nic}>leaf{nic}") for nic in nics]].all()
    assert step(0, 1).metrics.step_time_s == run.metrics.step_time_s
    assert step(2, 3).metrics.step_time_s < run.metrics.step_time_s
