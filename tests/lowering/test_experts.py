"""Experts, sentence by sentence: meshes, rows, exchanges, gradients and memory, against closed forms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from math import ceil
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import simulator as sim
from simulator.config import derived, feasible
from simulator.errors import UserError
from simulator.kernels import Gemm, Part
from simulator.lowering import routing
from simulator.lowering.passes.expert_parallel import touched
from simulator.lowering.routing import drawn
from simulator.program.operations import Collective, Compute, Purpose
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.simulate import program_of

from ..small_scenarios import both, bound_twice, scenario, small_cluster, small_model

LAYERS, HIDDEN, EXPERTS, CHOSEN, WIDTH, SEQ, BYTES = 4, 512, 8, 2, 704, 256, 2
MIXTURE = {"experts": EXPERTS, "experts_per_token": CHOSEN, "expert_ffn_hidden": WIDTH}
LATENT = {"kv_heads": 8, "head_dim": 96, "kv_lora_rank": 64, "q_lora_rank": 48, "rope_head_dim": 32, "value_head_dim": 64}
EXCHANGES = (Purpose.DISPATCH, Purpose.COMBINE)


def mixture(layers: int = LAYERS, **changes: Any) -> Any:
    return small_model(layers=layers, **{**MIXTURE, **changes})


def of(plan: dict[str, Any], nodes: int = 2, batch: int = 16, **changes: Any) -> Scenario:
    chosen = scenario(mixture(**changes), small_cluster(nodes), sim.Plan(**plan), sim.Job(SEQ, batch, 1))
    feasible.check(chosen)
    return chosen


def called(chosen: Scenario, pipeline: int = 0) -> Iterator[Any]:
    """The operations of a training step of a rank."""
    program = program_of(chosen)
    for step in program.orders[pipeline]:
        yield from program.bodies[step.body].ops


def exchanges(chosen: Scenario, kind: str, part: Part) -> list[int]:
    """Payloads of the exchanges of experts in a step."""
    found = (op for op in called(chosen) if isinstance(op, Collective) and op.purpose in EXCHANGES)
    return [op.payload_bytes for op in found if (op.kind, op.part) == (kind, part)]


def grouped(chosen: Scenario, part: Part) -> Counter[tuple[int, int, int, int]]:
    """The shapes of the GEMMs of experts in a step."""
    found = (op.kernel for op in called(chosen) if isinstance(op, Compute) and op.expert and op.part is part)
    return Counter((gemm.batch, gemm.m, gemm.n, gemm.k) for gemm in found if isinstance(gemm, Gemm))


def test_t17_1_experts_have_a_mesh_of_their_own_with_the_same_pipelines() -> None:
    """Megatron's groups, by hand: 16 ranks, tp 2, dp 4, pp 2, and experts over 4 ranks whole."""
    mesh = derived.mesh_of(of({"tp": 2, "pp": 2, "ep": 4, "etp": 1}, nodes=4, batch=64))
    assert mesh.groups(("ep",)).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    assert mesh.groups(("edp",)).tolist() == [[0, 4], [1, 5], [2, 6], [3, 7], [8, 12], [9, 13], [10, 14], [11, 15]]
    assert mesh.groups(("etp",)).tolist() == [[rank] for rank in range(16)]
    assert mesh.groups(("tp",)).tolist()[:2] == [[0, 1], [2, 3]]
    assert (mesh.coordinate("ep") == np.tile(np.arange(4), 4)).all()
    usual = derived.mesh_of(of({"tp": 2, "pp": 2, "ep": 4}, nodes=4, batch=64))
    assert usual.groups(("etp",)).tolist() == usual.groups(("tp",)).tolist()
    assert usual.groups(("ep",)).tolist()[:2] == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_t17_1_other_pipelines_are_refused() -> None:
    """Where dp is slowest, whole experts on tensor-parallel ranks would put neighbours into a pipeline."""
    assert of({"tp": 2, "pp": 2, "ep": 1, "rank_order": "tp-pp-dp"})
    with pytest.raises(UserError, match="gives experts other pipelines than the rest of the model") as caught:
        of({"tp": 2, "pp": 2, "ep": 2, "etp": 1, "rank_order": "tp-pp-ep-dp"})
    assert caught.value.hint
    assert "ends in pp" in caught.value.hint


@settings(max_examples=15)
@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2]))
def test_t17_1_every_rank_is_in_one_group_of_each_kind(tp: int, etp: int, ep: int, pp: int) -> None:
    chosen = scenario(mixture(), small_cluster(8), sim.Plan(tp=tp, etp=etp, ep=ep, pp=pp), sim.Job(SEQ, 64, 1))
    assume(etp * ep * pp <= 32)
    mesh = derived.mesh_of(chosen)
    sizes = {"etp": etp, "ep": ep, "edp": 32 // (etp * ep * pp)}
    for axis, size in sizes.items():
        groups = mesh.groups((axis,))
        assert groups.shape == (32 // size, size)
        assert sorted(groups.ravel().tolist()) == list(range(32))
        assert mesh.sizes[axis] == size
    assert (mesh.groups(("etp", "ep", "edp")) == mesh.groups(("tp", "cp", "dp"))).all()


def test_t17_2_layers_with_experts_have_a_router_and_others_a_dense_mlp() -> None:
    model = mixture(layers=6, dense_layers=1, expert_interval=2, shared_experts=2)
    size = {"batch": 1, "seq": 16, "element_bytes": 2}
    kinds = [model.block.kind(model, number) for number in range(6)]
    assert kinds == ["dense", "expert", "dense", "expert", "dense", "expert"]
    dense, expert = ({op.name: op for op in model.block.layer(model, **size, number=number)} for number in (0, 1))
    assert "mlp_up" in dense
    assert "router" not in dense
    assert "mlp_up" not in expert
    assert {"router", "top_k", "permute", "unpermute", "shared_up", "shared_down"} < set(expert)
    assert (expert["shared_up"].forward.n, expert["shared_down"].forward.k) == (2 * 2 * WIDTH, 2 * WIDTH)
    bodies = program_of(scenario(model, small_cluster(1), sim.Plan(pp=4), sim.Job(SEQ, 16, 1))).bodies
    assert {"F of embedding, 1 dense layers", "F of 1 expert, 1 dense layers"} < set(bodies)


def test_t17_2_latent_attention_projects_to_latents_and_back() -> None:
    """DeepSeek-V2's sizes (arXiv 2405.04434, appendix C), here with 8 heads of 64 + 32 channels."""
    model = mixture(**LATENT)
    ops = {op.name: op for op in model.block.layer(model, batch=1, seq=16, element_bytes=2)}
    shapes = {
        name: (ops[name].forward.k, ops[name].forward.n) for name in ("q_down", "q_up", "kv_down", "kv_up", "attention_out")
    }
    assert shapes == {
        "q_down": (512, 48), "q_up": (48, 8 * 96), "kv_down": (512, 64 + 32), "kv_up": (64, 8 * (64 + 64)),
        "attention_out": (8 * 64, 512),
    }  # fmt: skip
    kernel = ops["attention"].forward
    assert kernel.model_flop == 2 * 16 * 16 * 8 * (96 + 64)
    assert kernel.traffic_bytes == 16 * 8 * 2 * (96 + 64) * 2


def test_t17_3_balanced_experts_have_equal_rows() -> None:
    """Rows of an expert: all copies of tokens of the group over the number of experts."""
    rows, width = 4 * SEQ * CHOSEN // EXPERTS, 2 * WIDTH
    whole = grouped(of({"ep": 4}), Part.FORWARD)
    assert whole == {(2, rows, width, HIDDEN): LAYERS * 2, (2, rows, HIDDEN, WIDTH): LAYERS * 2}
    shared = grouped(of({"tp": 2, "ep": 4}), Part.FORWARD)
    assert set(shared) == {(2, rows, width // 2, HIDDEN), (2, rows, HIDDEN, WIDTH // 2)}
    apart = grouped(of({"tp": 2, "ep": 4, "etp": 1}), Part.FORWARD)
    assert set(apart) == {(2, rows // 2, width, HIDDEN), (2, rows // 2, HIDDEN, WIDTH)}
    odd = {shape[1] for shape in grouped(of({"ep": 2}, experts_per_token=3, experts=10), Part.FORWARD)}
    assert odd == {-(-2 * SEQ * 3 // 10)}, "rounded up to whole rows"


@settings(max_examples=10, deadline=None)
@given(st.sampled_from([1, 2]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]), st.sampled_from(["1f1b", "zb-h1"]))
def test_t17_3_no_degree_changes_the_flop_of_a_step(tp: int, ep: int, etp: int, schedule: str) -> None:
    """Where rows divide: the flop of all GPUs is that of the model."""
    chosen = of({"tp": tp, "ep": ep, "etp": etp, "pp": 2, "schedule": schedule}, nodes=4, batch=64)
    done = sum(
        op.kernel.model_flop
        for rank in range(2)
        for op in called(chosen, rank)
        if isinstance(op, Compute) and op.part is not Part.OPTIMIZER
    )
    router = 6 * HIDDEN * EXPERTS * LAYERS
    per_token = chosen.model.train_flop_per_token(SEQ, causal=False)
    assert router < per_token
    assert done * 8 == per_token * 64 * SEQ


def test_t17_3_all_experts_with_an_even_capacity_are_a_dense_mlp() -> None:
    """Each token goes through every expert: the flop of an MLP as wide as all experts together, whatever the capacity says."""
    every = mixture(experts=4, experts_per_token=4, expert_ffn_hidden=352)
    dense = small_model(layers=LAYERS)
    routers = 6 * LAYERS * HIDDEN * 4
    assert every.train_flop_per_token(SEQ, causal=True) - routers == dense.train_flop_per_token(SEQ, causal=True)
    plan = sim.Plan(ep=2, moe=sim.Moe(capacity=1))
    at_capacity, dropless = (
        grouped(scenario(every, small_cluster(1), each, sim.Job(SEQ, 16, 1)), Part.FORWARD) for each in (plan, sim.Plan(ep=2))
    )
    assert at_capacity == dropless


@pytest.mark.parametrize("ep", [2, 4, 8])
def test_t17_4_four_all_to_alls_per_layer_and_microbatch(ep: int) -> None:
    """Each of k T h elements, of which (ep - 1) / ep leave the rank."""
    chosen = of({"ep": ep})
    payload, times = SEQ * CHOSEN * HIDDEN * BYTES, LAYERS * 2 * 2
    for part in (Part.FORWARD, Part.INPUT_GRADIENT):
        assert exchanges(chosen, "alltoall", part) == [payload] * times
    moved = both(*bound_twice(chosen))
    moved.assert_equal()
    run = chosen.simulate()
    assert run.metrics.exposed_s["ep"] > 0
    alone = of({"ep": 1})
    assert not exchanges(alone, "alltoall", Part.FORWARD)
    assert alone.simulate().metrics.exposed_s["ep"] == 0


def test_t17_4_sequence_parallel_ranks_send_their_own_tokens() -> None:
    assert set(exchanges(of({"tp": 2, "ep": 4, "etp": 1}), "alltoall", Part.FORWARD)) == {SEQ // 2 * CHOSEN * HIDDEN * BYTES}
    with pytest.raises(UserError, match="must share the tokens of a model with experts"):
        of({"tp": 2, "ep": 4, "sequence_parallel": False})


def test_t17_5_tensor_parallel_experts_gather_rows_and_scatter_sums() -> None:
    """The rows of a rank's experts, forward and backward; experts that nobody cuts need neither."""
    chosen = of({"tp": 2, "ep": 4})
    rows = 2 * SEQ * CHOSEN // 2 * HIDDEN * BYTES
    for part in (Part.FORWARD, Part.INPUT_GRADIENT):
        assert exchanges(chosen, "all_gather", part) == exchanges(chosen, "reduce_scatter", part) == [rows] * (LAYERS * 4)
    order = [op.purpose for op in called(chosen) if getattr(op, "communicator", "") in ("ep", "etp") and op.layer == 0]
    assert order[:4] == [Purpose.DISPATCH, Purpose.DISPATCH, Purpose.COMBINE, Purpose.COMBINE]
    assert not exchanges(of({"tp": 2, "ep": 4, "etp": 1}), "all_gather", Part.FORWARD)


@pytest.mark.parametrize("capacity", [0.5, 1.0, 1.25])
def test_t17_6_a_capacity_fixes_rows_and_bytes(capacity: float) -> None:
    """C = ceil(cf k T / E) rows from each rank for each expert; dropless ranks tell each other how many rows they send."""
    chosen = of({"ep": 4, "moe": sim.Moe(capacity=capacity)})
    slots = -int(-capacity * CHOSEN * SEQ // EXPERTS)
    assert {shape[:2] for shape in grouped(chosen, Part.FORWARD)} == {(EXPERTS // 4, 4 * slots)}
    assert set(exchanges(chosen, "alltoall", Part.FORWARD)) == {EXPERTS * slots * HIDDEN * BYTES}
    for each, times in ((chosen, 0), (of({"ep": 4}), LAYERS * 2)):
        counts = [op for op in called(each) if isinstance(op, Collective) and op.purpose is Purpose.COUNT_ROWS]
        assert [(op.payload_bytes, op.kind) for op in counts] == [(4 * EXPERTS * 8, "all_gather")] * times


def ways(chosen: Scenario) -> Counter[tuple[str, Purpose, int]]:
    found = (op for op in called(chosen) if isinstance(op, Collective) and op.purpose in EXCHANGES)
    return Counter((op.communicator, op.purpose, op.payload_bytes) for op in found)


@given(st.integers(1, 8), st.integers(1, 6), st.integers(1, 8))
def test_t17_10_places_that_a_token_touches(places: int, experts: int, chosen: int) -> None:
    """Counted over all choices of experts."""
    assume(chosen <= places * experts <= 14)
    choices = list(combinations(range(places * experts), chosen))
    mean = Fraction(sum(len({expert // experts for expert in choice}) for choice in choices), len(choices))
    assert touched(places, experts, chosen) == mean


def test_t17_10_deepep_sends_a_token_once_to_a_node_and_once_to_a_gpu() -> None:
    """Eight GPUs on two nodes, two experts of 32 per token: 4 on a GPU."""
    deepep = of({"ep": 8, "moe": sim.Moe(dispatcher="deepep")}, experts=32)
    nodes, gpus = touched(2, 16, 2), touched(8, 4, 2)
    assert (nodes, gpus) == (2 * (1 - Fraction(16 * 15, 32 * 31)), 8 * (1 - Fraction(28 * 27, 32 * 31)))
    inside, across = (ceil(places * SEQ * HIDDEN * BYTES) for places in (gpus, nodes))
    times = LAYERS * 2 * 2
    assert ways(deepep) == {
        (name, purpose, payload): times
        for name, payload in (("ep inside", inside), ("ep across", across))
        for purpose in EXCHANGES
    }
    mesh, groups = derived.mesh_of(deepep), program_of(deepep).communicators
    members = {name: mesh.groups(c.axes, c.pipeline, c.size, c.stride).tolist() for name, c in groups.items()}
    assert members["ep inside"] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert members["ep across"] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    one_node = of({"ep": 8, "moe": sim.Moe(dispatcher="deepep", nodes_per_token=1)}, experts=32)
    assert {way for way in ways(one_node) if way[0] == "ep across"} == {("ep across", p, SEQ * HIDDEN * BYTES) for p in EXCHANGES}
    assert deepep.simulate().metrics.exposed_s["ep"] < of({"ep": 8}, experts=32).simulate().metrics.exposed_s["ep"]


DEEPEP: dict[str, Any] = {"dispatcher": "deepep"}


def test_t17_10_all_groups_have_as_many_neighbours_on_a_node() -> None:
    """Groups of eight on nodes of six: 6 + 2, 4 + 4 and 2 + 6 ranks on a node, of which each two neighbours share one."""
    plan = sim.Plan(ep=8, dp=24, moe=sim.Moe(**DEEPEP))
    placed = scenario(mixture(), small_cluster(4, gpus_per_node=6), plan, sim.Job(sequence_length=SEQ, global_batch=24))
    assert derived.placed(placed).moe.node == 2
    assert placed.simulate().metrics.exposed_s["ep"] > 0
    fewer = replace(placed, cluster=small_cluster(2, gpus_per_node=8), plan=replace(plan, ep=4, dp=16))
    assert derived.placed(fewer).moe.node == 4
    assert derived.placed(replace(fewer, plan=replace(fewer.plan, rank_order="tp-cp-dp-ep-pp"))).moe.node == 2


def on_gpus(*gpus: int, **moe: Any) -> Scenario:
    """Two groups of four on two nodes of four, on the GPUs that a placement says."""
    return of({"ep": 4, "placement": gpus, "moe": sim.Moe(**DEEPEP, **moe)})


def test_t17_10_equal_places_of_groups_take_equal_time() -> None:
    """Whichever group comes first, whichever node comes first in both groups, and whichever rank on a node."""
    straddling = (0, 1, 4, 5), (2, 3, 6, 7)
    found = [of_groups[0] + of_groups[1] for of_groups in (straddling, straddling[::-1])]
    found += [(4, 5, 0, 1, 6, 7, 2, 3), (1, 0, 5, 4, 3, 2, 7, 6)]
    assert len({on_gpus(*gpus).simulate().metrics.step_time_s for gpus in found}) == 1
    uneven = (0, 1, 2, 4, 3, 5, 6, 7), (3, 5, 6, 7, 0, 1, 2, 4)
    assert {derived.placed(on_gpus(*gpus)).moe.node for gpus in uneven} == {1}
    assert len({on_gpus(*gpus).simulate().metrics.step_time_s for gpus in uneven}) == 1


def test_t17_10_ranks_of_a_node_are_consecutive_or_their_number_is_stated() -> None:
    with pytest.raises(sim.UserError, match=r"plan.moe.node: in a group of ep the ranks of a node are not consecutive"):
        on_gpus(0, 4, 1, 5, 2, 6, 3, 7)
    assert derived.placed(on_gpus(0, 4, 1, 5, 2, 6, 3, 7, node=1)).moe.node == 1
    with pytest.raises(sim.UserError, match=r"plan.moe.node: 2 consecutive ranks of a group of ep are on several nodes"):
        on_gpus(0, 4, 1, 5, 2, 6, 3, 7, node=2)
    with pytest.raises(sim.UserError, match=r"plan.moe.node: 8 consecutive ranks .* several nodes\n.*node: 4"):
        of({"ep": 8, "moe": sim.Moe(**DEEPEP, node=8)})


def test_t17_10_a_token_goes_to_as_many_nodes_as_the_group_has() -> None:
    """One rank of each group on each of four nodes."""
    spread = {"ep": 4, "rank_order": "tp-cp-dp-ep-pp"}
    chosen = [of({**spread, "moe": sim.Moe(**DEEPEP, nodes_per_token=nodes)}, nodes=4) for nodes in (1, 2, 4)]
    times = [each.simulate().metrics.step_time_s for each in chosen]
    assert times == sorted(set(times))
    assert times[-1] == of({**spread, "moe": sim.Moe(**DEEPEP)}, nodes=4).simulate().metrics.step_time_s
    with pytest.raises(sim.UserError, match="nodes_per_token: 5 of 4 nodes"):
        of({**spread, "moe": sim.Moe(**DEEPEP, nodes_per_token=5)}, nodes=4)


def test_t17_10_both_ways_run_side_by_side_and_experts_wait_for_both() -> None:
    run = of({"ep": 8, "moe": sim.Moe(dispatcher="deepep")}).simulate(steps=1)
    rows = run.timeline.to_pandas(ranks=[0])
    for way in ("dispatch", "combine"):
        ends = rows[rows.block.str.contains(f"{way} over ep")]
        inside, across = (ends[ends.stream == name].reset_index() for name in ("ep inside", "ep across"))
        assert (inside.start_ns == across.start_ns).all()
        starts = rows[rows.stream == "compute"].start_ns.to_numpy()
        both_end = np.maximum(inside.end_ns, across.end_ns).to_numpy()
        assert np.isin(both_end, starts).all(), "what follows starts when the later way has ended"


def test_t17_10_dispatches_are_narrow_and_combines_are_not() -> None:
    """As in DeepSeek's software. Megatron Core sends 16 bits both ways, with experts in fp8 too."""
    chosen = replace(of({"ep": 8, "moe": sim.Moe(dispatcher="deepep")}), job=sim.Job(SEQ, 16, 1, "fp8"))
    usual = sim.framework("megatron-core-moe-2025")
    own = replace(usual, low_precision=replace(usual.low_precision, narrow_dispatch=True))
    for framework, ratio in ((usual, 1), (own, 2)):
        paid = {(name, purpose): payload for name, purpose, payload in ways(replace(chosen, framework=framework))}
        for name in ("ep inside", "ep across"):
            assert paid[name, Purpose.COMBINE] == pytest.approx(ratio * paid[name, Purpose.DISPATCH], abs=2)
    blocks = replace(chosen, job=sim.Job(SEQ, 16, 1, "fp8_block"), framework=own)
    paid = {(name, purpose): payload for name, purpose, payload in ways(blocks)}
    scaled = paid["ep inside", Purpose.COMBINE] / 2 * (1 + 4 / 128)
    assert paid["ep inside", Purpose.DISPATCH] == pytest.approx(scaled, abs=2), "with an fp32 scale for 128 elements"


def tokens_of(chosen: Scenario, layer: int = 0) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, drawn(chosen.model, chosen.plan, SEQ, layer).tolist()))


def test_t17_11_drawn_rows_are_uneven_and_all_there() -> None:
    moe = sim.Moe(routing="drawn")
    rows = np.array(tokens_of(of({"ep": 4, "moe": moe})))
    assert (rows.sum(axis=1) == SEQ * CHOSEN).all()
    assert len(set(rows.sum(axis=0).tolist())) > 1
    again, other = (tokens_of(of({"ep": 4, "moe": replace(moe, seed=seed)})) for seed in (0, 1))
    assert again == tuple(map(tuple, rows.tolist())) != other
    wild = np.array(tokens_of(of({"ep": 4, "moe": replace(moe, concentration=0.5)}))).sum(axis=0)
    tame = np.array(tokens_of(of({"ep": 4, "moe": replace(moe, concentration=1e6)}))).sum(axis=0)
    assert wild.max() - wild.min() > rows.sum(axis=0).max() - rows.sum(axis=0).min() > tame.max() - tame.min()
    cyclic = np.array(tokens_of(of({"ep": 4, "moe": replace(moe, placement="cyclic")})))
    assert cyclic.sum() == rows.sum()
    assert not (cyclic == rows).all()


def test_t17_11_ranks_exchange_and_compute_their_own_rows() -> None:
    chosen = of({"ep": 4, "moe": sim.Moe(routing="drawn")})
    program = program_of(chosen)
    assert program.variants == ((0,), (1,), (2,), (3,))
    ((order,),) = {program.orders}
    ops = [op for step in order for op in program.bodies[step.body].ops]
    for layer in range(LAYERS):
        rows, of_layer = np.array(tokens_of(chosen, layer)), [op for op in ops if op.layer == layer]
        for rank in range(4):
            gemms = {op.kernels()[rank].m for op in of_layer if isinstance(op, Compute) and op.expert and
                     op.part is Part.FORWARD and isinstance(op.kernel, Gemm)}  # fmt: skip
            assert gemms == {-(-int(rows[:, rank].sum()) // 2)}
        for purpose, matrix in ((Purpose.DISPATCH, rows), (Purpose.COMBINE, rows.T)):
            found = {op.matrix_bytes for op in of_layer if isinstance(op, Collective) and op.purpose is purpose}
            assert found == {tuple(map(tuple, (matrix * HIDDEN * BYTES).tolist()))}
    run = chosen.simulate()
    assert run.metrics.imbalance_s["ep"] > 0
    assert run.memory[0].activations_bytes > of({"ep": 4}).simulate().memory[0].activations_bytes
    assert run.memory_over_time(0)[1].max() == run.memory[0].total_bytes


def test_t17_11_uneven_exchanges_of_equal_rows_are_even_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A balanced matrix gives one role, and the same times as balanced routing."""

    def even(model: Any, plan: sim.Plan, tokens: int, layer: int) -> np.ndarray:
        return np.full((plan.ep, plan.ep), tokens * model.experts_per_token // plan.ep)

    monkeypatch.setattr(routing, "drawn", even)
    for cluster in (small_cluster(2), small_cluster(2, fabric="ndr-ib")):
        balanced = replace(of({"ep": 8}), cluster=cluster)
        uneven = replace(balanced, plan=replace(balanced.plan, moe=sim.Moe(routing="drawn")))
        assert not program_of(uneven).variants
        assert uneven.simulate().metrics.step_time_s == pytest.approx(balanced.simulate().metrics.step_time_s, rel=1e-6)


@pytest.mark.parametrize(
    "plan, fault",
    [
        ({"ep": 3}, "8 experts of inline do not divide by ep 3"),
        ({"tp": 2, "pp": 4, "ep": 2}, "2 GPUs of a pipeline rank do not divide by ep x etp = 4"),
        ({"tp": 2, "cp": 2, "ep": 8, "moe": sim.Moe(dispatcher="deepep")}, "8 GPUs of a pipeline rank do not divide by ep x etp"),
        ({"tp": 1, "etp": 3}, "expert_ffn_hidden 704 of inline does not divide by etp 3"),
        ({"tp": 2, "ep": 2, "moe": sim.Moe(dispatcher="deepep")}, "not to shares on 2 ranks"),
        ({"ep": 2, "moe": sim.Moe(dispatcher="deepep", capacity=1)}, "deepep sends the rows that there are"),
        ({"ep": 8, "moe": sim.Moe(dispatcher="deepep", node=3)}, "ep 8 does not divide into nodes of 3"),
        ({"ep": 8, "moe": sim.Moe(dispatcher="deepep", nodes_per_token=3)}, "3 of 2 nodes"),
        ({"ep": 8, "moe": sim.Moe(node=4)}, "alltoall has no use for it"),
        ({"ep": 8, "moe": sim.Moe(seed=4)}, "balanced routing has no use for it"),
        ({"ep": 8, "moe": sim.Moe(routing="drawn", capacity=1.25)}, "the load of all experts is even"),
        ({"ep": 1, "moe": sim.Moe(routing="drawn")}, "without expert parallelism"),
        ({"ep": 8, "moe": sim.Moe(routing="drawn", dispatcher="deepep")}, "for balanced routing only"),
        ({"tp": 2, "ep": 2, "moe": sim.Moe(routing="drawn")}, "for whole experts only"),
        ({"ep": 2, "sharding": "zero3"}, "zero3 is not modelled with expert parallelism"),
        ({"ep": 4, "sharding": sim.Sharding("zero1", group=2)}, "2 data-parallel ranks do not hold whole groups of ep x etp = 4"),
    ],
)
def test_what_experts_cannot_do_is_refused_with_a_hint(plan: dict[str, Any], fault: str) -> None:
    with pytest.raises(UserError) as caught:
        of(plan)
    assert any(fault in each.message and each.hint for each in caught.value.faults), str(caught.value)


def test_shared_experts_that_tensor_parallel_ranks_cannot_divide_are_refused() -> None:
    with pytest.raises(UserError, match="the shared experts of inline, 50 wide together, do not divide by tp 4") as caught:
        of({"tp": 4, "etp": 1, "ep": 4}, expert_ffn_hidden=50, shared_experts=1)
    assert caught.value.hint == "tp: 2"


def reductions(chosen: Scenario, purpose: Purpose) -> Counter[tuple[str, str, int]]:
    found = (op for op in called(chosen) if isinstance(op, Collective) and op.purpose is purpose)
    return Counter((op.communicator, op.kind, op.payload_bytes) for op in found if op.layer >= 0)


def layer_parameters(model: Any) -> tuple[int, int]:
    """Parameters of the experts of a layer, and of the rest of the layer."""
    ops = model.block.layer(model, batch=1, seq=1, element_bytes=1)
    return sum(op.parameters for op in ops if op.expert), sum(op.parameters for op in ops if not op.expert)


def test_t17_7_gradients_of_experts_are_reduced_over_their_copies() -> None:
    model = mixture()
    experts, rest = layer_parameters(model)
    assert experts == EXPERTS * 3 * HIDDEN * WIDTH
    plain = reductions(of({"ep": 4}), Purpose.REDUCE_GRADIENTS)
    assert plain == {("edp", "all_reduce", experts // 4 * 4): LAYERS, ("dp", "all_reduce", rest * 4): LAYERS}
    sharded = of({"ep": 4, "sharding": "zero1"})
    scattered = {("edp", "reduce_scatter", experts // 4 * 4): LAYERS, ("dp", "reduce_scatter", rest * 4): LAYERS}
    assert reductions(sharded, Purpose.REDUCE_GRADIENTS) == scattered
    gathered = {("edp", "all_gather", experts // 4 * 2): LAYERS, ("dp", "all_gather", rest * 2): LAYERS}
    assert reductions(sharded, Purpose.GATHER_PARAMETERS) == gathered
    alone = reductions(of({"ep": 8}), Purpose.REDUCE_GRADIENTS)
    assert {name for name, _, _ in alone} == {"dp"}, "an expert without copies is not reduced"


def test_t17_7_an_expert_may_have_copies_where_the_rest_has_none() -> None:
    """Eight tensor-parallel ranks hold four whole experts each: two copies of each."""
    chosen = of({"tp": 4, "pp": 2, "ep": 2, "etp": 1}, batch=4)
    experts, _ = layer_parameters(chosen.model)
    assert reductions(chosen, Purpose.REDUCE_GRADIENTS) == {("edp", "all_reduce", experts // 2 * 4): LAYERS // 2}


@pytest.mark.parametrize("sharding", ["none", "zero1"])
def test_t17_7_memory_holds_a_share_of_the_experts(sharding: str) -> None:
    chosen = of({"ep": 4, "sharding": sharding})
    experts, rest = layer_parameters(chosen.model)
    rest = LAYERS * rest + 2 * chosen.model.vocab * HIDDEN + HIDDEN
    memory = chosen.simulate().memory[0]
    assert memory.parameters_bytes == 2 * (LAYERS * experts // 4 + rest)
    shares = (8, 2) if sharding == "zero1" else (1, 1)
    assert memory.optimizer_bytes == pytest.approx(12 * (rest / shares[0] + LAYERS * experts / 4 / shares[1]), abs=24)


def test_t17_8_the_rows_of_experts_are_kept_for_the_backward_pass() -> None:
    """Dispatched rows (h), gate and up (2f) and their product (f) for every copy; half as many with half of the capacity."""

    def held(plan: dict[str, Any]) -> int:
        found = (op for op in called(replace(of(plan), job=sim.Job(SEQ, 8, 1))) if isinstance(op, Compute) and op.expert)
        return sum(op.held_bytes for op in found)

    rows = SEQ * CHOSEN * LAYERS
    assert held({"ep": 1}) == held({"ep": 4}) == rows * (HIDDEN + 3 * WIDTH) * BYTES
    assert held({"ep": 4, "moe": sim.Moe(capacity=0.5)}) == held({"ep": 4}) // 2
    assert held({"tp": 2, "dp": 4, "ep": 4}) == rows * (HIDDEN + 3 * WIDTH // 2) * BYTES * 2 // 2 * 2
    run = of({"ep": 4}).simulate()
    assert run.memory_over_time(0)[1].max() == run.memory[0].total_bytes


def test_t17_9_flop_per_token_count_the_experts_that_a_token_passes_through() -> None:
    model, dense = mixture(shared_experts=1), small_model(layers=LAYERS)
    mlp = 3 * HIDDEN * (CHOSEN + 1) * WIDTH + HIDDEN * EXPERTS - 3 * HIDDEN * dense.ffn_hidden
    assert model.matmul_parameters == dense.matmul_parameters + LAYERS * mlp
    assert model.active_parameters == model.parameters - LAYERS * (EXPERTS - CHOSEN) * 3 * HIDDEN * WIDTH
    deepseek = sim.model("deepseek-v3")
    per_token = 6 * deepseek.matmul_parameters + 6 * 61 * 128 * (192 + 128) * 4096
    assert deepseek.train_flop_per_token(4096, causal=False) == per_token


@pytest.mark.parametrize(
    "name, active",
    [("mixtral-8x7b", 12.9), ("deepseek-v2", 21.4), ("gpt-oss-120b", 5.7), ("kimi-k2", 32.9), ("qwen3-235b-a22b", 22.2)],
)
def test_t17_9_active_parameters_of_published_models(name: str, active: float) -> None:
    """As their publishers count them, with both tables."""
    assert sim.model(name).active_parameters / 1e9 == pytest.approx(active, abs=0.06)


GRID: dict[str, dict[str, Any]] = {
    "zero1": {"ep": 4, "sharding": "zero1"},
    "tensor parallel": {"tp": 2, "pp": 2, "ep": 2},
    "whole experts": {"tp": 2, "pp": 2, "ep": 4, "etp": 1, "sharding": "zero1"},
    "overlap": {"tp": 2, "pp": 2, "ep": 2, "overlap": sim.Overlap(tp=True, dp=False)},
    "blocking": {"pp": 4, "ep": 2, "overlap": sim.Overlap(pp=False)},
    "split backward": {"pp": 2, "ep": 4, "schedule": "zb-h1", "sharding": "zero1"},
    "two directions": {"pp": 2, "ep": 2, "schedule": "dualpipe", "sharding": "zero1"},
    "interleaved": {"pp": 2, "ep": 2, "chunks": 2, "schedule": "interleaved"},
    "parts of sequences": {"pp": 2, "ep": 2, "schedule": "seq-1f1b", "splits": 2},
    "post-validated": {"pp": 2, "ep": 2, "schedule": "zb-h1", "optimizer": "post-validated"},
    "recomputed": {"pp": 2, "ep": 4, "recompute": "full", "moe": sim.Moe(dispatcher="deepep", node=2)},
    "recomputed activation": {"tp": 2, "ep": 4, "recompute": sim.Recompute(ops=("mlp_norm", "expert_gated_activation"))},
    "capacity": {"ep": 8, "moe": sim.Moe(capacity=1.25)},
    "deepep": {"pp": 2, "ep": 4, "moe": sim.Moe(dispatcher="deepep", node=2)},
    "drawn": {"pp": 2, "ep": 4, "sharding": "zero1", "moe": sim.Moe(routing="drawn", placement="cyclic")},
    "drawn, whole experts": {"tp": 2, "pp": 2, "ep": 4, "etp": 1, "schedule": "zb-h1", "moe": sim.Moe(routing="drawn", seed=3)},
    "deepep inside a node": {"ep": 4, "moe": sim.Moe(dispatcher="deepep")},
}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", GRID)
def test_folded_equals_unfolded_for_every_plan(name: str) -> None:
    chosen = of(GRID[name], dense_layers=1, shared_experts=1, **LATENT)
    both(*bound_twice(chosen)).assert_equal()
    run = chosen.simulate()
    assert run.metrics.hfu >= run.metrics.mfu * (1 - 1e-9)


@pytest.mark.parametrize(
    "dtype, framework", [("fp8", "megatron-core-2025"), ("bf16", "torchtitan-2024"), ("bf16", "megatron-lm-2021")]
)
def test_frameworks_run_experts(dtype: str, framework: str) -> None:
    """Casts of grouped GEMMs cover all rows of all experts, and added gradients all their weights."""
    chosen = replace(of({"tp": 2, "ep": 4, "sharding": "zero1"}), framework=sim.framework(framework))
    chosen = replace(chosen, job=sim.Job(SEQ, 16, 1, dtype))
    assert chosen.simulate().metrics.step_time_s > 0
    casts = [
        op
        for op in called(chosen)
        if op.purpose in (Purpose.CAST, Purpose.CAST_WEIGHTS, Purpose.CAST_CACHED_WEIGHTS) and getattr(op, "expert", 0)
    ]
    sums = [op for op in called(chosen) if op.purpose is Purpose.ACCUMULATE and op.expert]
    rows, per_rank = 2 * SEQ * CHOSEN // 2, EXPERTS // 4
    if dtype == "fp8":
        assert {op.kernel.rows for op in casts} == {rows * 2 // 2, per_rank * HIDDEN, per_rank * WIDTH // 2}
    if framework == "megatron-lm-2021":
        assert {op.kernel.rows for op in sums} == {per_rank * HIDDEN, per_rank * WIDTH // 2}
