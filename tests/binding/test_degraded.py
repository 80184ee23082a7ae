"""Degraded links on measured fabrics: caps fall with the weakest link; links at face value limit by themselves, once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulator as sim
from simulator.binding.bind import Bound
from simulator.binding.perturb import RATIO_BITS, Perturbation, profile
from simulator.engine import des
from simulator.engine.compiled import event_loop
from simulator.engine.fold import fold, refine, unfolded
from simulator.engine.replay import with_fixed_durations
from simulator.engine.task import FULL_SPEED, TaskGraph
from simulator.errors import UserError
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.simulate import bound_of, program_of

from ..small_scenarios import bound, scenario, small_cluster

UP = "node0/gpu1>node0/nvswitch"
DOWN = "node0/nvswitch>node0/gpu1"
TENSOR = sim.Plan(tp=4, sequence_parallel=False)
REPLICAS = sim.Plan(tp=1, dp=8)
LARGE_BYTES = 100_000
HALF = sim.Perturb(link=UP, capacity=0.5)


def of(fabric: str, *perturb: sim.Perturb, plan: sim.Plan = TENSOR, nodes: int = 1, **shape: Any) -> Scenario:
    return scenario(plan=plan, cluster=small_cluster(nodes, fabric=fabric, **shape), perturb=perturb)


def moving_ns(of: Scenario) -> np.ndarray:
    """How long the bytes of each all-reduce of activations or gradients move, when each is alone."""
    graph = fold(bound(of).skeleton).graph
    run = replace(of, fidelity=sim.Fidelity(collectives="closed")).simulate()
    rows = run.timeline.to_pandas(ranks=[1])
    rows = rows[(rows.kind == "all_reduce") & (rows.payload_bytes > LARGE_BYTES)]
    found: np.ndarray = (rows.end_ns - rows.start_ns).to_numpy() - graph.solo_ns[rows.task.to_numpy()]
    assert len(found) >= 10
    return found


@pytest.mark.parametrize("link", [UP, DOWN])
@pytest.mark.parametrize("fabric", ["ideal", "ndr-ib"])
def test_t7_7_a_link_at_half_rate_doubles_the_bytes_part_of_what_crosses_it_and_no_latency(fabric: str, link: str) -> None:
    """At face value the link is what limits; a measured one goes slower than the link, and its cap falls with it."""
    sound, slow = (moving_ns(of(fabric, *by)) for by in ((), (sim.Perturb(link=link, capacity=0.5),)))
    np.testing.assert_allclose(slow, 2 * sound, atol=2)


def test_t7_7_at_face_value_a_link_that_does_not_limit_changes_nothing() -> None:
    """An NVLink at 0.8 of its rate carries more than the ring over NICs asks for. A measured one waits for it all the same."""
    link = sim.Perturb(link=UP, capacity=0.8)
    sound, slow = (moving_ns(of("ideal", *by, plan=REPLICAS, nodes=2)) for by in ((), (link,)))
    np.testing.assert_array_equal(slow, sound)
    sound, slow = (moving_ns(of("ndr-ib", *by, plan=REPLICAS, nodes=2)) for by in ((), (link,)))
    np.testing.assert_allclose(slow, sound / 0.8, atol=2)


def test_t7_7_only_stepwise_takes_a_link_above_its_capacity() -> None:
    """Caps are those of links at their capacities. A link of a quarter, four times as quick, is as quick as the others."""
    quick = tuple(sim.Perturb(link=link, capacity=4) for link in ("g0>sw", "sw>g0"))

    def step_s(g0_gb_per_s: int, collectives: str, perturb: tuple[sim.Perturb, ...] = ()) -> float:
        rates = {"g0": g0_gb_per_s, "g1": 40, "g2": 40, "g3": 40}
        cluster = sim.cluster({
            "gpu": "h100", "gpus_per_node": 1, "nodes": 4, "shape": "explicit",
            "vertices": [*({"name": name, "kind": "gpu"} for name in rates), {"name": "sw", "kind": "switch"}],
            "links": [{"from": g, "to": "sw", "capacity": f"{rate} GB/s", "latency": "1 us"} for g, rate in rates.items()],
        })  # fmt: skip
        chosen = scenario(plan=sim.Plan(dp=4, sharding="zero1"), cluster=cluster, perturb=perturb)
        return float(replace(chosen, fidelity=sim.Fidelity(collectives=collectives)).simulate().metrics.step_time_s)

    slow, even, raised = step_s(10, "stepwise"), step_s(40, "stepwise"), step_s(10, "stepwise", quick)
    assert raised == pytest.approx(even, rel=1e-6)
    assert raised < 0.9 * slow
    for collectives in ("fluid", "closed"):
        with pytest.raises(UserError, match=r"perturb\.0\.capacity: only stepwise"):
            step_s(10, collectives, quick)


def test_t7_7_the_weakest_link_decides_and_what_does_not_cross_it_keeps_its_cap() -> None:
    plan = sim.Plan(tp=4, dp=2, sequence_parallel=False)
    weaker = (HALF, sim.Perturb(link=DOWN, capacity=0.8))
    sound, slow = (bound(of("ndr-ib", *by, plan=plan, nodes=2)) for by in ((), weaker))
    cap = {id(b): caps_of(b, "tp") for b in (sound, slow)}
    np.testing.assert_allclose(cap[id(slow)][0], cap[id(sound)][0] * 0.5, rtol=1e-6)
    np.testing.assert_array_equal(cap[id(slow)][1], cap[id(sound)][1])
    assert sound.algorithms == slow.algorithms


def caps_of(of: Bound, name: str) -> list[np.ndarray]:
    """For each group of a communicator, in the order of its ranks, the caps of all charges that move bytes."""
    skeleton, labels, template = of.skeleton, of.labels[0], of.skeleton.templates[0]
    row = next(i for i, op in enumerate(labels.op.tolist()) if getattr(labels.ops[op], "communicator", "") == name)
    kinds = skeleton.kind[np.unique(skeleton.slots[template.slot[row]])]
    return [skeleton.tariff.cap[kind][skeleton.tariff.work[kind] > 0] for kind in kinds.tolist()]


def test_t7_7_a_link_with_room_to_spare_counts_too() -> None:
    """Three of four NICs hardly work, so that the uplink at 0.8 never binds and is in no footprint. The fourth crosses it."""
    shape: dict[str, Any] = {"shape": "leaf-spine", "nodes_per_pod": 1}
    broken = [sim.Perturb(link=f"node0/nic{i}>leaf0", capacity=0.1) for i in (1, 2, 3)]
    uplink = sim.Perturb(link="leaf0>spine", capacity=0.8)
    plan = sim.Plan(tp=4, dp=2, sequence_parallel=False)
    found = []
    for by in ((), (*broken, uplink)):
        case = of("ndr-ib", *by, plan=plan, nodes=2, **shape)
        bound = bound_of(case, program_of(case))
        named = case.cluster.link_named(uplink.link)
        assert named in bound.every_link.footprints.idx
        assert named not in bound.skeleton.footprints.idx or not by
        found.append(caps_of(bound, "dp"))
    (whole, *_), (left, *_) = found
    np.testing.assert_allclose(left, whole * 0.8, rtol=1e-6)
    np.testing.assert_allclose(found[1][1], found[0][1] * 0.1, rtol=1e-6)


WINDOW = (
    sim.Perturb(link=UP, capacity=0.5, from_s=0.0002, until_s=0.003),
    sim.Perturb(link=UP, capacity=0.2, from_s=0.001, until_s=0.002),
)


SCATTERED = (0, 4, 1, 5, 2, 6, 8, 12, 3, 9, 7, 13, 10, 14, 11, 15)
"""Four groups of four, in each of which no rank is on the node of the one before: on two, four, four and two nodes."""


def test_t7_1_a_group_takes_the_time_of_its_own_number_of_nodes() -> None:
    """Whatever other groups there are. Rings around two and around four nodes are measured apart."""
    plan = sim.Plan(cp=4, dp=4, placement=SCATTERED, overlap=sim.Overlap(cp=False))
    alone = of("ndr-ib", plan=plan, nodes=4, nodes_per_pod=4)
    skeleton = bound(alone).skeleton
    tariff, kinds = skeleton.tariff, skeleton.kind[skeleton.slots[0, ::4]]
    times_ns = (tariff.latency_ns + tariff.work / tariff.cap)[kinds].max(axis=1)
    assert times_ns[0] == times_ns[3] != times_ns[1] == times_ns[2]


@pytest.mark.parametrize("link", [UP, "node1/nic1>leaf1", "node2/nvswitch>node2/gpu0", "node3/gpu3>node3/nvswitch"])
@pytest.mark.parametrize("plan", [sim.Plan(cp=4, dp=4, placement=SCATTERED), sim.Plan(cp=2, pp=2, placement=SCATTERED)])
def test_what_changes_only_after_the_step_changes_nothing(link: str, plan: sim.Plan) -> None:
    """The groups that cross the link are then simulated apart from the others, with the same times."""
    calm = of("ndr-ib", plan=plan, nodes=4, nodes_per_pod=4)
    first_s = calm.simulate(steps=1).metrics.step_time_s
    for later in (sim.Perturb(link=link, capacity=0.5, from_s=first_s), sim.Perturb(rank=6, speed=0.5, from_s=first_s)):
        assert replace(calm, perturb=(later,)).simulate().metrics.step_time_s == first_s


def test_t7_7_windows_that_overlap_multiply() -> None:
    skeleton = bound(of("ndr-ib", *WINDOW)).skeleton
    changing = sorted(set(skeleton.tariff.cap_profile[skeleton.tariff.cap_profile >= 0].tolist()))
    assert changing
    for index in changing:
        cap = skeleton.profiles[index]
        assert cap.since_ns == (0, 200_000, 1_000_000, 2_000_000, 3_000_000)
        np.testing.assert_allclose(cap.value, np.array([1, 0.5, 0.1, 0.5, 1]) * cap.value[0], rtol=1e-6)


windows = st.tuples(st.floats(0.1, 2), st.integers(0, 50), st.integers(1, 50) | st.none())


@given(st.lists(windows, max_size=6), st.integers(0, 110))
def test_a_profile_is_at_each_time_the_product_of_the_windows_that_are_open(of: list[Any], now: int) -> None:
    ns = 1e-9
    changes = [Perturbation(f, rank=0, from_s=since * ns, until_s=(since + more) * ns if more else None) for f, since, more in of]
    expected = float(FULL_SPEED)
    for factor, since, more in of:
        if since <= now and (more is None or now < since + more):
            expected *= factor
    assert profile(FULL_SPEED, changes).at(now) == round(expected)


@pytest.mark.slow
@pytest.mark.parametrize("plan", [TENSOR, REPLICAS, sim.Plan(tp=2, pp=2, dp=2, sharding="zero1", rank_order="tp-pp-dp")], ids=str)
def test_for_a_while_all_engines_take_the_same_time_and_it_lies_between_never_and_always(plan: sim.Plan) -> None:
    nodes = 1 if plan is TENSOR else 2
    sound, while_, always = (
        of("ndr-ib", *by, plan=plan, nodes=nodes) for by in ((), WINDOW[:1], (replace(WINDOW[0], from_s=0.0, until_s=None),))
    )
    took = [case.simulate(steps=1).observation.until_ns for case in (sound, while_, always)]
    assert took[0] < took[1] < took[2]
    skeleton = bound(while_).skeleton
    whole, folded = unfolded(skeleton), fold(skeleton)
    assert whole.graph.cap_profile is not None
    expected = des.simulate(whole.graph)
    for simulate in engines():
        for how in (whole, folded):
            found = simulate(with_fixed_durations(how.graph))
            for rank in range(skeleton.ranks):
                mine = whole.tasks_of(rank)
                theirs = how.tasks_of(int(how.class_of[rank]))
                np.testing.assert_array_equal(expected.start_ns[mine], found.start_ns[theirs])
                np.testing.assert_array_equal(expected.arrival_ns[mine], found.arrival_ns[theirs])


def engines() -> list[Any]:
    return [des.simulate, event_loop.simulate] if event_loop.INSTALLED else [des.simulate]


def test_closed_collectives_refuse_caps_that_change() -> None:
    with pytest.raises(UserError, match="changes during the step"):
        replace(of("ndr-ib", *WINDOW), fidelity=sim.Fidelity(collectives="closed")).simulate()


def test_a_group_on_a_degraded_link_is_in_a_class_of_its_own() -> None:
    plan = sim.Plan(tp=4, dp=2, sequence_parallel=False)
    sound, slow = (bound(of("ndr-ib", *by, plan=plan, nodes=2)).skeleton for by in ((), (HALF,)))
    assert (refine(sound).classes, refine(slow).classes) == (1, 2)


def test_what_is_left_of_a_cap_is_never_nothing_unless_the_link_carries_nothing() -> None:
    dead = sim.Perturb(link=UP, capacity=0.0, from_s=0.0001, until_s=0.0003)
    skeleton = bound(of("ndr-ib", dead)).skeleton
    graph: TaskGraph = unfolded(skeleton).graph
    lowest = {min(skeleton.profiles[index].value) for index in graph.changing_caps}
    assert lowest == {0}
    assert des.simulate(graph).makespan_ns > 300_000
    assert RATIO_BITS < 62
