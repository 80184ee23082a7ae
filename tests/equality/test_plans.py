"""On random plans, clusters and disturbances: folded and contracted equals unfolded by the reference, and replay equals the event
loop where it is legal."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simulator as sim
from simulator.config import feasible
from simulator.engine import des
from simulator.engine.fold import fold
from simulator.engine.replay import replay, why_not, with_fixed_durations
from simulator.errors import UserError
from simulator.plan.plan import Fidelity
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.workload.framework import Framework, HostTimes

from ..small_scenarios import HOST, both, bound, bound_twice, scenario, small_cluster, small_model

RECOMPUTE = st.sampled_from(
    ["none", "per-op", "selective", "full", sim.Recompute("full", first=1, early_stop=True), sim.Recompute(ops=("mlp_up",))]
)
OFFLOAD = st.sampled_from(["none", "none", "optimizer", "parameters", sim.Offload(0.7), sim.Offload(0.4, True, 0.5)])
LEARNING = st.sampled_from(
    [
        {}, {}, {"optimizer": "muon"}, {"gradient_clipping": True}, {"packing": sim.Packing(mean=16)}, {"frozen_layers": 1},
        {"lora": sim.Lora(8, ("qkv", "mlp_up", "mlp_down")), "optimizer": "sgd"},
    ]
)  # fmt: skip
OTHER_LAYERS: list[dict[str, Any]] = [
    {},
    {"window": 16, "full_attention_every": 2, "qk_norm": "head", "norms": "both"},
    {"parallel_mlp": "one_norm", "bias": "mlp", "norm": "layernorm", "positions": "alibi", "embedding_norm": True},
]


@st.composite
def shardings(draw: st.DrawFn, pp: int, dp: int) -> sim.Sharding:
    """Any sharding that goes with a pipeline, or without one, in groups that divide the replicas."""
    kind = draw(st.sampled_from(["none", "zero1", "fsdp", "hsdp", *(["zero2", "zero3"] if pp == 1 else [])]))
    group = draw(st.sampled_from([n for n in (1, 2, 4, 8) if dp % n == 0]))
    if kind in ("none", "zero1", "zero2"):
        return sim.Sharding(kind, group=None if kind == "none" else group)
    prefetch, in_flight = draw(st.integers(0, 2)), draw(st.sampled_from([None, 1, 2]))
    unit = draw(st.sampled_from([1, 1, "half-layer"]))
    return sim.Sharding(kind, group, draw(st.sampled_from([None, False])), prefetch, in_flight, unit=unit)


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    tp, pp, dp = draw(st.sampled_from([(1, 2, 4), (2, 2, 2), (2, 4, 1), (4, 1, 2), (1, 4, 2), (1, 1, 8), (2, 2, 4), (4, 4, 1)]))
    shares: list[tuple[int, dict[str, Any]]] = [
        (1, {}), (1, {}), (1, {}), (2, {}), (4, {"cp_balance": False}), (2, {"cp_kind": "all-gather"}),
        (2, {"cp_kind": "ulysses"}), (4, {"cp_kind": "mixed", "cp_ulysses": 2}),
    ]  # fmt: skip
    cp, kind = draw(st.sampled_from(shares))
    dp = max(1, dp // cp)
    chunks = draw(st.sampled_from([1, 1, 2])) if pp > 1 else 1
    schedule = draw(st.sampled_from(["interleaved", "naive"] if chunks > 1 else ["1f1b", "gpipe", "naive"]))
    layout = draw(st.sampled_from(["even", "even", "first=0", "last=0"] if pp > 1 else ["even"]))
    schemes = ["baseline", "redis"] if layout == "even" else ["baseline"]
    dividing = ["vocab-1", "vocab-2", *(["interlaced"] if tp == 1 else [])] if pp > 1 and chunks == 1 and layout == "even" else []
    scheme = draw(st.sampled_from([*schemes, *dividing]))
    if scheme in dividing:
        schedule = "1f1b" if scheme == "interlaced" else draw(st.sampled_from(["1f1b", "v-half"]))
        chunks = 2 if schedule == "v-half" else 1
    plan = sim.Plan(
        tp=tp, cp=cp, pp=pp, dp=dp, chunks=chunks, schedule=schedule, layout=layout, **kind,
        vocabulary=scheme,
        placement=tuple(draw(st.permutations(range(tp * cp * pp * dp)))) if draw(st.booleans()) else None,
        sequence_parallel=draw(st.sampled_from([None, False])),
        sharding=draw(st.sampled_from(["none", "zero1"]) if scheme in dividing else shardings(pp, dp)),
        recompute=draw(RECOMPUTE),
        rank_order=draw(st.sampled_from(["tp-cp-ep-dp-pp", "tp-pp-cp-dp", "pp-cp-tp-dp", "dp-pp-tp-cp"])),
        overlap=sim.Overlap(*(draw(st.booleans()) for _ in range(3)), cp=draw(st.booleans())),
    )  # fmt: skip
    if plan.overlap.tp and tp > 1 and plan.uses_sequence_parallel:
        plan = replace(plan, overlap=replace(plan.overlap, tp=draw(st.sampled_from([True, "decomposed"]))))
    ranks = tp * cp * pp * dp
    nodes = max(1, ranks // 4)
    cluster = small_cluster(
        nodes,
        oversubscription=draw(st.sampled_from([1.0, 3.0])),
        nodes_per_pod=draw(st.sampled_from([1, 2, 4])),
        shape=draw(st.sampled_from(["rail-optimized", "leaf-spine"])),
        fabric=draw(st.sampled_from(["ideal", "ndr-ib"])),
        host=HOST,
    )
    job = sim.Job(sequence_length=64, global_batch=dp * pp * draw(st.integers(1, 2)), **draw(LEARNING))
    tied = draw(st.booleans()) and scheme not in dividing and (pp == 1 or not plan.full_sharding.gathers)
    layers = draw(st.integers(pp * chunks, pp * chunks + 3))
    if job.learns_in_part:
        by_op = plan.recomputation.ops or plan.recompute == "per-op"
        tied, plan = False, replace(plan, vocabulary="baseline", recompute="none" if by_op else plan.recompute)
    if job.optimizer == "muon" and plan.full_sharding.kind not in ("none", "zero1"):
        job = replace(job, optimizer="adam-8bit")
    if job.packing:
        plan = replace(plan, vocabulary="baseline")
    refused = [
        *(["window"] if cp > 1 or job.packing else []), *(["parallel_mlp"] if plan.recomputation.ops else [])
    ]  # fmt: skip
    others = [layer for layer in OTHER_LAYERS if not any(field in layer for field in refused)]
    model = small_model(layers, tied_embeddings=tied, **draw(st.sampled_from(others)))
    mixture = {"experts": 8, "experts_per_token": 2, "dense_layers": draw(st.integers(0, layers - 1)), "ffn_hidden": 704}
    ep, etp = draw(st.sampled_from([(1, None), (2, None), (min(8, tp * cp * dp), 1), (2, 1)]))
    uneven = [
        sim.Moe("drawn"),
        sim.Moe("drawn", ranks="hottest"),
        sim.Moe((4, 1, 3, 0, 2, 5, 1, 1), placement=tuple(tuple(range(8))[i::ep] for i in range(ep))[::-1]),
        sim.Moe("drawn", concentration=0.3, seed=3),
    ]
    even = [sim.Moe(), sim.Moe(capacity=1.25), sim.Moe(dispatcher="deepep")]
    moe = draw(st.sampled_from([*even, *(uneven if ep > 1 else [])]))
    order = "tp-cp-ep-dp-pp" if ep > 1 else plan.rank_order
    beside, late = (ep > 1 and draw(st.booleans()) for _ in range(2))
    beside = beside and plan.recompute != "full" and (chunks > 1 or pp == 1) and schedule in ("1f1b", "interleaved")
    overlap = replace(plan.overlap, ep=beside, weight_gradients=late)
    etp = etp if moe in even[:2] else 1
    of_experts = replace(plan, ep=ep, etp=etp, moe=moe, overlap=overlap, rank_order=order, sequence_parallel=None)
    modules = 0 if plan.full_sharding.gathers or scheme in dividing else draw(st.sampled_from([0, 0, 1]))
    with suppress(UserError):  # where the rest of the plan does not go with experts or further tokens, the model has none
        mixed = small_model(layers, tied_embeddings=tied, mtp_layers=modules, **mixture)
        feasible.check(scenario(mixed, cluster, of_experts, job))
        model, plan = (mixed, of_experts) if draw(st.sampled_from([True, True, False])) else (model, plan)
    if (offload := draw(OFFLOAD)) != "none":
        with suppress(UserError):  # where the rest of the plan does not go with it, nothing is offloaded
            offloading = replace(plan, offload=offload)
            feasible.check(scenario(model, cluster, offloading, job))
            plan = offloading
    perturb = []
    if draw(st.booleans()):
        of_rank = draw(st.sampled_from([{}, {}, {"from_s": 1e-4, "until_s": 4e-4}, {"until_s": 1.0}]))
        speed = draw(st.sampled_from([0.5, 0.9, 1.3]))
        perturb.append(sim.Perturb(rank=draw(st.integers(0, ranks - 1)), speed=speed, **of_rank))
    if draw(st.booleans()):
        window = {"from_s": 1e-4, "until_s": 4e-4} if draw(st.booleans()) else {}
        perturb.append(sim.Perturb(link="node0/nvswitch>node0/gpu1", capacity=0.1, **window))
        if window and draw(st.booleans()):
            perturb.append(sim.Perturb(link="node0/nvswitch>node0/gpu1", capacity=0.5, from_s=2e-4, until_s=7e-4))
    if draw(st.booleans()):
        link = cluster.wiring.link_name(draw(st.integers(0, cluster.wiring.links - 1)))
        perturb.append(sim.Perturb(link=link, capacity=draw(st.sampled_from([0.3, 0.9]))))
    limited = replace(cluster, gpu=replace(cluster.gpu, tdp_w=draw(st.sampled_from([700.0, 700.0, 450.0]))))
    overlap, power = draw(st.sampled_from(["free", "slowed"])), draw(st.sampled_from(["sustained", "burst"]))
    fidelity = Fidelity(overlap=overlap, power=power)
    launches = draw(st.sampled_from([{}, {}, {"host": HostTimes(kernel_s=5e-6, collective_s=1e-5)}]))
    framework = Framework(p2p_scatter_gather=draw(st.booleans()), **launches)
    return scenario(model, limited, plan, job, perturb=tuple(perturb), fidelity=fidelity, framework=framework)


@settings(max_examples=8)
@given(scenarios())
def test_folded_equals_unfolded(of: Scenario) -> None:
    feasible.check(of)
    both(*bound_twice(of)).assert_equal()


@settings(max_examples=20)
@given(scenarios())
def test_replay_equals_the_event_loop_under_closed_collectives(of: Scenario) -> None:
    graph = fold(bound(of).skeleton).graph
    refused: UserError | None = None
    try:
        closed = with_fixed_durations(graph, every=True)
    except UserError as error:  # a placement may also leave the disturbed link without any flow
        refused = error
    if refused:
        assert "changes during the step" in str(refused)
        assert any(p.link and p.until_s for p in of.perturb)
        return
    assert not closed.sharing or "depends on what else" in why_not(closed)
    closed = replace(closed, sharing=None)
    one, other = des.simulate(closed), replay(closed)
    np.testing.assert_array_equal(one.start_ns, other.start_ns)
    np.testing.assert_array_equal(one.end_ns, other.end_ns)


def test_a_fluid_plan_that_shares_links_is_refused_by_replay() -> None:
    of = scenario(plan=sim.Plan(tp=1, pp=2, dp=4, rank_order="tp-pp-dp"), cluster=small_cluster(2))
    assert "share links" in why_not(fold(bound(of).skeleton).graph)
    with pytest.raises(UserError, match="replay"):
        of.simulate(engine="replay")
    closed = scenario(plan=of.plan, cluster=of.cluster, fidelity=Fidelity(collectives="closed"))
    assert closed.simulate().engine == "replay"


@pytest.mark.parametrize("oversubscription", [1.0, 1.5, 2.0, 4.0])
def test_an_uplink_is_left_out_only_where_the_nics_below_it_cannot_fill_it(oversubscription: float) -> None:
    """Replicas of four tensor-parallel ranks on two leaves: together their gradients ask for all that four NICs carry."""
    shape: dict[str, Any] = {"shape": "leaf-spine", "nodes_per_pod": 1}
    job = sim.Job(sequence_length=64, global_batch=2)
    wide, narrow = (
        both(*bound_twice(scenario(cluster=small_cluster(2, **shape, oversubscription=by), plan=sim.Plan(tp=4, dp=2), job=job)))
        for by in (1.0, oversubscription)
    )
    narrow.assert_equal()
    assert (narrow.folded_times.makespan_ns > wide.folded_times.makespan_ns) == (oversubscription > 1)


def test_several_steps_fold_too() -> None:
    of = scenario(plan=sim.Plan(tp=2, pp=2, dp=2, sharding="zero1"), perturb=(sim.Perturb(rank=3, speed=0.6),))
    both(*bound_twice(of, steps=3)).assert_equal()


@pytest.mark.parametrize(("tp", "pp"), [(4, 1), (2, 2)])
def test_groups_that_nobody_uses_have_no_tasks(tp: int, pp: int) -> None:
    plan = sim.Plan(tp=tp, pp=pp, dp=1, schedule="zb_h1" if pp > 1 else "1f1b", optimizer="post-validated")
    of = scenario(small_model(layers=2 * pp), small_cluster(1), plan, sim.Job(sequence_length=64, global_batch=2 * pp))
    found = both(*bound_twice(of, steps=3))
    found.assert_equal()
    for how in (found.whole, found.folded):
        assert (how.origin[0] >= 0).all()
    assert found.folded.tasks_unfolded == len(found.whole.graph)


def test_groups_that_nodes_hold_unevenly_take_an_algorithm_that_serves_them_all() -> None:
    """Two GPUs change places: two of the replicas of one tensor-parallel rank then sit in one node."""
    placement = (0, 1, 9, 3, 4, 5, 6, 7, 8, 2, 10, 11, 12, 13, 14, 15)
    plan = sim.Plan(tp=4, dp=4, placement=placement)
    both(*bound_twice(scenario(cluster=small_cluster(4), plan=plan, job=sim.Job(64, 4)))).assert_equal()
