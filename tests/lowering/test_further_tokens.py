"""Modules that predict further tokens: parameters, flop, exchanges and memory, against closed forms."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simulator as sim
from simulator.config import feasible
from simulator.errors import UserError
from simulator.kernels import Part
from simulator.lowering.passes.data_parallel import parameters_by_stage
from simulator.program.operations import Collective, Compute, Purpose
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.simulate import program_of

from ..small_scenarios import both, bound_twice, scenario, small_cluster, small_model

HIDDEN, VOCAB, SEQ, LAYERS = 512, 4096, 256, 8
BATCH = 8
B, G = 2, 4
"""Bytes of an activation, and of a gradient."""


def of(plan: dict[str, Any], modules: int = 1, **more: Any) -> Scenario:
    model = small_model(layers=LAYERS, mtp_layers=modules, **more.pop("model", {}))
    return scenario(model, small_cluster(2), sim.Plan(**plan), sim.Job(SEQ, BATCH, 1), **more)


def called(chosen: Scenario, rank: int = 0) -> list[Any]:
    program = program_of(chosen)
    return [op for step in program.orders[rank] for op in program.bodies[step.body].ops]


def of_projection(chosen: Scenario) -> Counter[tuple[Part, str, int]]:
    """Collectives of the projections of modules in a step: part, kind and elements of the whole tensor per token."""
    found = [op for op in called(chosen) if isinstance(op, Collective) and "joined_to_hidden" in op.operator]
    return Counter((op.part, op.kind, op.payload_bytes // (SEQ * B)) for op in found)


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 4), st.booleans(), st.booleans())
def test_t17_19_a_module_has_a_layer_three_norms_and_a_projection(modules: int, tied: bool, mixture: bool) -> None:
    """Its table and head are those of the model; flop count the head and the loss once more for each module."""
    experts = {"experts": 8, "experts_per_token": 2, "dense_layers": 1} if mixture else {}
    plain, more = (small_model(layers=LAYERS, tied_embeddings=tied, mtp_layers=n, **experts) for n in (0, modules))
    size = {"batch": 1, "seq": 1, "element_bytes": 1, "number": LAYERS - 1}
    layer = plain.block.layer(plain, **size)
    parameters = sum(op.parameters for op in layer) + 2 * HIDDEN**2 + 3 * HIDDEN
    assert more.parameters - plain.parameters == modules * parameters
    matmul = sum(op.matmul_parameters for op in layer) + 2 * HIDDEN**2 + plain.vocab * HIDDEN
    assert more.matmul_parameters - plain.matmul_parameters == modules * matmul
    more_flop, flop = (model.train_flop_per_token(SEQ, causal=False) for model in (more, plain))
    assert more_flop - flop == modules * (6 * matmul + 12 * HIDDEN * SEQ)


def test_t17_19_deepseek_v3_has_eleven_and_a_half_billion_parameters_more() -> None:
    """README_WEIGHTS.md of deepseek-ai/DeepSeek-V3: 11.5 B of its one module, without table and head; the 671 B exclude them."""
    plain, more = sim.model("deepseek-v3"), sim.model("deepseek-v3", mtp_layers=1)
    assert plain.mtp_layers == 0
    assert (more.parameters - plain.parameters) / 1e9 == pytest.approx(11.5, rel=0.01)
    assert more.train_flop_per_token(4096, causal=True) / plain.train_flop_per_token(4096, causal=True) == pytest.approx(
        1.04, abs=0.01
    )


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "plan",
    [{}, {"tp": 2, "pp": 2}, {"pp": 4, "schedule": "zb-h1"}, {"pp": 2, "cp": 2}, {"tp": 2, "pp": 2, "schedule": "dualpipe"}],
)
def test_t17_19_all_gpus_together_do_the_flop_of_the_model(plan: dict[str, Any]) -> None:
    chosen = of(plan, modules=2)
    ranks = range(chosen.plan.pp)
    kernels = [
        op.kernel for rank in ranks for op in called(chosen, rank) if isinstance(op, Compute) and op.part is not Part.OPTIMIZER
    ]
    replicas = chosen.cluster.gpus // chosen.plan.pp
    assert (
        sum(kernel.model_flop for kernel in kernels) * replicas
        == chosen.model.train_flop_per_token(SEQ, causal=False) * BATCH * SEQ
    )


def test_t17_19_modules_stand_on_the_stage_of_the_head_before_its_logits() -> None:
    program = program_of(of({"pp": 2}, modules=2))
    forward = [next(step.body for step in order if step.phase == "F") for order in program.orders]
    first, last = ([op.name for op in program.bodies[body].ops] for body in forward)
    assert not any(name.endswith("joined_to_hidden") for name in first)
    modules = ["embedding_2", "4.joined_to_hidden", "4.attention", "embedding_3", "5.joined_to_hidden", "5.prediction_norm"]
    heads = ["logits_2", "cross_entropy_2", "logits_3", "cross_entropy_3", "logits", "cross_entropy"]
    order = ["final_norm", *modules, *heads]
    assert [name for name in last if name in order] == order


def test_t17_19_tensor_parallel_ranks_gather_the_projection() -> None:
    """With sequence parallelism its input, its result, and backward the gradient and the kept input; sums of gradients of 2h."""
    times = BATCH // 4
    forward, backward = Part.FORWARD, Part.INPUT_GRADIENT
    assert of_projection(of({"tp": 2})) == {
        (forward, "all_gather", 2 * HIDDEN): times,
        (forward, "all_gather", HIDDEN): times,
        (backward, "all_gather", HIDDEN): times,
        (backward, "all_gather", 2 * HIDDEN): times,
        (backward, "reduce_scatter", 2 * HIDDEN): times,
    }
    assert of_projection(of({"tp": 2, "sequence_parallel": False})) == {
        (forward, "all_gather", HIDDEN): times,
        (backward, "all_reduce", 2 * HIDDEN): times,
    }


def test_t17_19_results_are_gathered_in_the_wide_format() -> None:
    """Only Transformer Engine gathers in 8 bits, and Megatron gathers this result, and its gradient, outside of it."""
    chosen = of({"tp": 2}, framework=sim.framework("megatron-core-2025"))
    chosen = replace(chosen, job=sim.Job(SEQ, BATCH, 1, "fp8"))
    gathers = {op.payload_bytes for op in called(chosen) if op.purpose is Purpose.GATHER_RESULT}
    assert gathers == {SEQ * HIDDEN * B}
    narrow = [op for op in called(chosen) if isinstance(op, Compute) and "joined_to_hidden" in op.name and not op.purpose]
    assert {op.kernel.dtype for op in narrow} == {"fp8"}


@pytest.mark.parametrize("tied", [False, True])
def test_t17_19_a_last_stage_without_the_embedding_has_a_copy_of_the_table(tied: bool) -> None:
    """Its gradient is added to that of the first stage, as for a tied table; one rank with both ends needs no copy."""
    model = {"tied_embeddings": tied}
    apart, v_shaped = of({"pp": 2, "sharding": "zero1"}, model=model), of({"pp": 2, "schedule": "zb-v"}, model=model)
    table = apart.model.vocab * HIDDEN
    for chosen, copies in ((apart, 2 if tied else 3), (v_shaped, 1 if tied else 2)):
        program = program_of(chosen)
        buckets = [of for rank in range(2) for of in parameters_by_stage(program, rank).values()]
        assert sum(sum(of.values()) for of in buckets) - chosen.model.parameters == table * (copies - (1 if tied else 2))
    sums = [op.payload_bytes for op in called(apart, 1) if op.purpose is Purpose.REDUCE_TIED_TABLE]
    assert sums == [table * G]
    assert not [op for op in called(v_shaped) if op.purpose is Purpose.REDUCE_TIED_TABLE]


GRID: dict[str, dict[str, Any]] = {
    "recomputed": {"tp": 2, "pp": 2, "recompute": "full", "sharding": "zero1"},
    "no sequence parallelism": {"tp": 2, "sequence_parallel": False, "overlap": sim.Overlap(tp=True)},
    "V": {"pp": 4, "schedule": "zb-v", "sharding": "zero1"},
    "interleaved": {"pp": 2, "chunks": 2, "schedule": "interleaved", "overlap": sim.Overlap(dp=False, pp=False)},
    "zero2": {"cp": 2, "sharding": "zero2"},
    "redis": {"pp": 2, "vocabulary": "redis"},
}


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", GRID)
def test_folded_equals_unfolded_with_further_tokens(name: str) -> None:
    chosen = of(GRID[name], modules=2)
    both(*bound_twice(chosen)).assert_equal()
    run, plain = chosen.simulate(), of(GRID[name], modules=0).simulate()
    assert run.metrics.step_time_s > plain.metrics.step_time_s
    assert sum(rank.total_bytes for rank in run.memory) > sum(rank.total_bytes for rank in plain.memory)
    assert run.memory_over_time(0)[1].max() == run.memory[0].total_bytes


@pytest.mark.parametrize("kind", ["fsdp", "zero3"])
def test_gathered_parameters_are_refused(kind: Any) -> None:
    with pytest.raises(UserError, match="modules for further tokens read the table again"):
        feasible.check(of({"sharding": kind}))
