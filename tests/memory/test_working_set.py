"""Memory beside activations, by hand: working sets, logits, results of stages, and gradients at the end of a step."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

import simulator as sim
from simulator.config import catalog
from simulator.kernels import Part, Rowwise
from simulator.memory.account import RankMemory
from simulator.memory.items import Terms, end_of_step
from simulator.plan.plan import Shards
from simulator.program.holdings import Holding
from simulator.program.operations import AnyOp, Compute, Purpose
from simulator.program.slot import BACKWARD, FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT
from simulator.simulation.memory_check import memory_of
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.simulate import layout_of, program_of
from simulator.workload.framework import Framework, Fusion, LowPrecision, MemoryOverhead

from ..small_scenarios import scenario, small_cluster, small_model

TOKENS, HIDDEN, INNER, VOCAB = 128, 512, 1408, 4096
GRADIENTS = "gradients at the end of a step"


def of(plan: Any = None, *, model: Any = None, dtype: str = "bf16", sequence: int = TOKENS, **framework: Any) -> Scenario:
    job = sim.Job(sequence, 8, 1, dtype=dtype)  # type: ignore[arg-type]
    return scenario(
        model or small_model(layers=2), small_cluster(1), plan or sim.Plan(dp=4), job, framework=Framework(**framework)
    )


def ops_of(chosen: Scenario, phase: str) -> list[AnyOp]:
    """The operations of the last body of a phase."""
    program = program_of(chosen)
    (name,) = {step.body for step in program.orders[-1] if step.phase == phase and "reducing" not in step.body}
    return list(program.bodies[name].ops)


def working(chosen: Scenario, operator: str, part: Part, purpose: Purpose | None = None) -> int:
    """Bytes of the working set of an operator of the model, in units of an element of two bytes for each token."""
    found = (op for op in ops_of(chosen, FORWARD if part is Part.FORWARD else BACKWARD) if op.operator == operator)
    (size_bytes,) = (op.working_bytes for op in found if op.part is part and op.purpose is purpose)
    assert size_bytes % (2 * TOKENS) == 0
    return size_bytes // (2 * TOKENS)


def memory(chosen: Scenario) -> tuple[RankMemory, ...]:
    return memory_of(chosen, layout_of(chosen))


def item(rank: RankMemory, what: str) -> int:
    return sum(one.size_bytes for one in rank.items if one.what == what)


def test_t11_6_a_working_set_is_what_a_kernel_reads_and_writes_and_nobody_holds() -> None:
    chosen = of()
    assert working(chosen, "0.mlp_up", Part.FORWARD) == 2 * INNER  # its input is held
    assert working(chosen, "0.gated_activation", Part.FORWARD) == INNER
    assert working(chosen, "0.mlp_residual", Part.FORWARD) == 3 * HIDDEN
    assert working(chosen, "0.gated_activation", Part.INPUT_GRADIENT) == 3 * INNER
    assert (
        working(chosen, "0.mlp_down", Part.INPUT_GRADIENT)
        == working(chosen, "0.mlp_down", Part.WEIGHT_GRADIENT)
        == HIDDEN + INNER
    )


@pytest.mark.parametrize("attention", ["", "unfused"])
@pytest.mark.parametrize(
    "recompute",
    ["selective", "per-op", "full", sim.Recompute("full", early_stop=True), sim.Recompute(ops=("mlp_up", "gated_activation"))],
)
def test_t11_6_what_was_repeated_is_held_already(recompute: Any, attention: str) -> None:
    """Gradients of a layer that is repeated take what those of any other layer take."""
    plain, again = (
        {op.name: op.working_bytes for op in ops_of(of(sim.Plan(dp=4, recompute=words), attention=attention), BACKWARD)}
        for words in ("none", recompute)
    )
    assert plain == {name: again[name] for name in plain}


@pytest.mark.parametrize("recompute", ["full", sim.Recompute(ops=("mlp_up", "gated_activation"))])
@pytest.mark.parametrize("scaling", ["delayed", "current"])
def test_t11_6_a_repeated_cast_has_no_more_of_a_working_set_than_the_cast(recompute: Any, scaling: Any) -> None:
    """Weights are in no working set, and operands are in that of the GEMM."""
    recipe = LowPrecision(scaling=scaling, cached_weights=False)
    chosen = of(sim.Plan(dp=4, recompute=recompute), dtype="fp8", low_precision=recipe)
    forward, backward = (
        {op.name: op for op in ops_of(chosen, phase) if isinstance(op, Compute)} for phase in (FORWARD, BACKWARD)
    )
    casts = [name for name, op in forward.items() if op.purpose in (Purpose.CAST, Purpose.CAST_WEIGHTS)]
    repeated = [backward[f"{name}.again"] for name in casts if f"{name}.again" in backward]
    assert repeated
    assert not any(op.working_bytes for op in (*repeated, *map(forward.__getitem__, casts)))


def test_t11_6_gradients_of_tables_and_of_weights_that_are_added_by_a_kernel() -> None:
    table, weight = VOCAB * HIDDEN // TOKENS, HIDDEN * INNER // TOKENS
    assert working(of(), "embedding", Part.WEIGHT_GRADIENT) == 3 * HIDDEN + table
    apart = of(fusion=Fusion(accumulation=False))
    assert working(apart, "0.mlp_down", Part.WEIGHT_GRADIENT) == HIDDEN + INNER + weight
    assert working(apart, "0.mlp_down", Part.WEIGHT_GRADIENT, Purpose.ACCUMULATE) == weight
    fsdp = program_of(of(sim.Plan(dp=4, sharding="fsdp")))
    found = [
        op for body in fsdp.bodies.values() for op in body.ops if (op.operator, op.part) == ("embedding", Part.WEIGHT_GRADIENT)
    ]
    assert {op.working_bytes for op in found if op.purpose is None} == {2 * TOKENS * 3 * HIDDEN}


@pytest.mark.parametrize("tied", [True, False])
def test_t11_6_a_head_and_look_ups_that_share_a_table_make_gradients_as_large_as_it(tied: bool) -> None:
    """The table counts as a parameter of the embedding, and its gradients are made wherever it is read."""
    table = VOCAB * HIDDEN // TOKENS
    model = small_model(layers=2, tied_embeddings=tied, mtp_layers=2)
    apart = of(model=model, fusion=Fusion(accumulation=False))
    for name in ("logits", "logits_2", "logits_3"):
        assert working(apart, name, Part.WEIGHT_GRADIENT) == HIDDEN + VOCAB + table
        assert working(apart, name, Part.WEIGHT_GRADIENT, Purpose.ACCUMULATE) == table
    for name in ("embedding", "embedding_2", "embedding_3"):
        assert working(apart, name, Part.WEIGHT_GRADIENT) == 3 * HIDDEN + table


def test_t11_6_the_peak_is_higher_by_what_the_largest_sum_has_more() -> None:
    """All activations are held when the gradient of the logits makes that of their input."""
    (rank,) = memory(of(model=small_model(layers=8)))
    assert rank.working_bytes == rank.bytes_of(Holding.WORKSPACE) == 2 * TOKENS * (VOCAB + HIDDEN)
    assert rank.total_bytes == rank.static_bytes + rank.activations_bytes


@pytest.mark.parametrize(("tp", "each"), [(1, 10), (2, 16)])
def test_t11_7_copies_of_logits(tp: int, each: int) -> None:
    overhead = MemoryOverhead(logit_bytes=10, tp_logit_bytes=16)
    chosen = of(sim.Plan(tp=tp), memory=overhead)
    for phase in (FORWARD, BACKWARD):
        (size_bytes,) = {op.working_bytes for op in ops_of(chosen, phase) if op.operator == "cross_entropy" and op.working_bytes}
        assert size_bytes == TOKENS * VOCAB // tp * (each - 4)
    held = [op.held_bytes for op in ops_of(chosen, FORWARD) if op.operator == "cross_entropy" and op.held_bytes]
    assert held == [TOKENS * VOCAB // tp * 4]


def test_t11_8_a_stage_keeps_its_result_for_every_microbatch_in_flight() -> None:
    plan, model = sim.Plan(pp=4), small_model(layers=8)
    plain, keeping = (memory(of(plan, model=model, memory=MemoryOverhead(stage_results=keeps))) for keeps in (False, True))
    more = [after.activations_bytes - before.activations_bytes for before, after in zip(plain, keeping, strict=True)]
    assert more == [count * TOKENS * HIDDEN * 2 for count in (4, 3, 2, 0)]


def test_t11_9_an_optimizer_copies_gradients_of_16_bits_to_fp32() -> None:
    for sharding, shards in (("none", 1), ("zero1", 4)):
        chosen = of(sim.Plan(dp=4, sharding=sharding), sequence=8, dtype="fp16", gradients="fp16")
        (rank,) = memory(chosen)
        tensors = rank.activations_bytes + item(rank, "kernels at the peak")
        assert item(rank, GRADIENTS) == max(0, 4 * -(-chosen.model.parameters // shards) - tensors)
        assert item(memory(of(sim.Plan(dp=4, sharding=sharding), sequence=8))[0], GRADIENTS) == 0


def test_t11_10_gradients_that_are_copied_as_a_whole() -> None:
    """DeepSpeed: 8 + 12/d bytes for each parameter in bf16 and 2 more at the end; 4 + 12/d in fp16, and a buffer and 6/d more."""
    whole, plan = MemoryOverhead(whole_gradients=True), sim.Plan(dp=4, sharding="zero1")
    wide = of(plan, sequence=8, memory=whole)
    (rank,) = memory(wide)
    count, tensors = wide.model.parameters, rank.activations_bytes + item(rank, "kernels at the peak")
    assert rank.parameters_bytes + rank.gradients_bytes == 8 * count
    assert item(rank, GRADIENTS) == 2 * count - tensors
    assert rank.fragmentation_bytes == tensors
    (rank,) = memory(of(plan, sequence=8, dtype="fp16", gradients="fp16", memory=whole))
    assert rank.parameters_bytes + rank.gradients_bytes == 4 * count
    assert item(rank, GRADIENTS) == 1_000_000_000 + 6 * -(-count // 4) - tensors


@pytest.mark.parametrize(
    "gradient_bytes, whole, expected",
    [(4, True, 2 * (-(-1000 // 4) + -(-3001 // 2))), (4, False, 0), (2, False, 4 * (-(-1000 // 8) + -(-3001 // 4))),
     (2, True, 1_000_000_000 + (4 + 2) * (-(-1000 // 8) + -(-3001 // 4)))],
)  # fmt: skip
def test_t11_9_shares_of_experts_are_copied_at_the_end_of_a_step_too(gradient_bytes: int, whole: bool, expected: int) -> None:
    """1,000 parameters, whose gradients 4 ranks divide and their optimizer 8, and 3,001 of experts, divided by 2 and by 4."""
    terms = Terms(
        parameter_bytes=2, gradient_bytes=gradient_bytes, element_bytes=2, shards=Shards(1, 4, 8), expert_shards=Shards(1, 2, 4),
        degrees={}, overhead=MemoryOverhead(whole_gradients=whole),
    )  # fmt: skip
    update = Rowwise("update", 1, 1, 2, 2)
    kernels = [
        Compute(name=name, streams=("compute",), kernel=update, parameters=number, expert=name == "experts")
        for name, number in (("rest", 1000), ("experts", 3001))
    ]
    size_bytes, formula = end_of_step(kernels, terms)
    assert size_bytes == expected
    assert eval(formula.replace(" bytes x ", "*").replace(" bytes", "").replace(" parameters", "").replace(",", "")) == expected


BUCKETS = "gradient buckets of DDP"


@pytest.mark.parametrize(
    ("plan", "buckets"),
    [({"dp": 4}, 1), ({"dp": 1}, 0), ({"dp": 1, "cp": 4}, 1), ({"dp": 2, "tp": 2}, 0.5), ({"dp": 4, "sharding": "zero1"}, 0),
     ({"dp": 4, "sharding": "fsdp"}, 0)],
)  # fmt: skip
@pytest.mark.parametrize(("gradients", "each_bytes"), [("fp32", 4), ("bf16", 2)])
def test_t11_11_replicas_hold_gradients_in_buckets_too(plan: Any, buckets: float, gradients: Any, each_bytes: int) -> None:
    """DDP of PyTorch, unless gradients are views of its buckets; norms are whole on tensor-parallel ranks."""
    plain, chosen = (
        memory(of(sim.Plan(**plan), gradients=gradients, memory=MemoryOverhead(gradient_buckets=held)))[0]
        for held in (False, True)
    )
    count = small_model(layers=2).parameters
    assert item(plain, BUCKETS) == 0
    assert item(chosen, BUCKETS) == pytest.approx(each_bytes * count * buckets, rel=0.01)
    assert chosen.total_bytes - plain.total_bytes == item(chosen, BUCKETS)
    if buckets:
        assert item(chosen, BUCKETS) == item(chosen, "gradients")
        (one,) = (each for each in chosen.items if each.what == BUCKETS)
        assert one.kind is Holding.GRADIENTS
        assert one.formula.startswith(f"{each_bytes} bytes x ")


def test_t11_11_buckets_have_what_is_reduced_and_learns() -> None:
    """Not experts that one rank holds alone, nor frozen layers."""
    experts, buckets = small_model(layers=2, experts=4, experts_per_token=1), MemoryOverhead(gradient_buckets=True)
    (alone,), (copied,) = (memory(of(sim.Plan(dp=4, ep=ep), model=experts, memory=buckets)) for ep in (4, 1))
    assert (
        item(alone, BUCKETS)
        == item(alone, "gradients") - 4 * sum(times * op.parameters for times, op in experts.operators if op.expert) // 4
    )
    assert item(copied, BUCKETS) == item(copied, "gradients")
    frozen = of(memory=buckets)
    (rank,) = memory(replace(frozen, job=replace(frozen.job, frozen_layers=1)))
    assert 0 < item(rank, BUCKETS) == item(rank, "gradients") < item(memory(frozen)[0], BUCKETS)


def test_t11_11_which_frameworks_run_ddp_of_pytorch() -> None:
    running = {name for name in catalog.files("frameworks") if sim.framework(name).memory.gradient_buckets}
    families = {re.sub(r"(-\d+)+$", "", name) for name in running}
    assert families == {"pytorch", "pytorch-bf16", "torchtitan", "llm-foundry"}


def test_t11_1_between_input_and_weight_gradients_a_layer_of_a_gpt_holds_32_sbh() -> None:
    """34 sbh + 5 a s^2 b before: of inputs of linear layers 14 sbh, of gradients of their results 18 sbh (arXiv 2401.10241)."""
    gpt = sim.model(
        {"layers": 2, "hidden": 512, "heads": 8, "vocab": 4096, "bias": True, "activation": "gelu", "norm": "layernorm"}
    )
    plan = sim.Plan(pp=2, schedule="zb-h1")
    chosen = of(plan, model=gpt, attention="unfused", dropout=True, fusion=Fusion(bias_dropout_add=True, bias_activation=True))
    program, left = program_of(chosen), {}
    for phase in (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT):
        body = next(step.body for step in program.orders[0] if step.phase == phase)
        ops = [op for op in program.bodies[body].ops if op.layer == 0]
        left[phase] = sum(op.held_bytes - op.freed_bytes for op in ops)
    sbh, scores = TOKENS * HIDDEN, 5 * 8 * TOKENS**2
    assert left[FORWARD] == 34 * sbh + scores
    assert left[FORWARD] + left[INPUT_GRADIENT] == 32 * sbh
    assert sum(left.values()) == 0
