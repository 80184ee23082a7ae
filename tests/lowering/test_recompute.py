"""Recomputation of activations: which operations are repeated and where, what is kept, what it adds to flop and collectives.

The numbered tests are section 12 of the second half of docs/semantics.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

import simulator as sim
from simulator.config import derived, feasible
from simulator.errors import UserError
from simulator.kernels import Attention, Part, Split
from simulator.program.operations import AnyOp, Collective, Compute, Purpose
from simulator.program.program import Program
from simulator.simulation.memory_check import remedies
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.simulate import layout_of, program_of, site_of
from simulator.simulation.slot_durations import slot_durations
from simulator.workload.framework import Framework, UsualPlan

from ..small_scenarios import scenario, small_cluster, small_model
from ..workload.shapes import gpt

LAYERS, HIDDEN, FFN, HEADS, TOKENS, WIDTH = 4, 512, 1408, 8, 256, 2
LISTED = ["attention_norm", "qkv", "rope", "attention", "mlp_norm", "mlp_up", "gated_activation"]
"""Operators of a layer whose results may be recomputed, if those before and behind them agree."""


def of(recompute: Any, *, framework: str = "none", dtype: str = "bf16", gathered: bool = False, **plan: Any) -> Scenario:
    chosen = sim.Plan(**{"dp": 1, **plan}, recompute=recompute)
    gpus = chosen.tp * chosen.pp
    cluster = small_cluster(max(1, gpus // 4)) if gpus % 4 == 0 else small_cluster(1, gpus_per_node=gpus)
    job = sim.Job(sequence_length=TOKENS, global_batch=4, dtype=dtype)
    software = replace(sim.framework(framework), gathered_inputs=gathered)
    return scenario(small_model(LAYERS), cluster, chosen, job, framework=software)


def bodies(of: Scenario, phase: str) -> Iterator[tuple[AnyOp, ...]]:
    """The operations of every slot of a kind, in a step."""
    program = program_of(of)
    return (program.bodies[step.body].ops for order in program.orders for step in order if step.phase == phase)


def held(ops: tuple[AnyOp, ...], layer: int) -> int:
    return sum(op.held_bytes for op in ops if op.layer == layer)


def again(ops: tuple[AnyOp, ...]) -> list[AnyOp]:
    return [op for op in ops if op.purpose is Purpose.RECOMPUTE]


def everything_held(program: Program) -> dict[tuple[int, int, int], int]:
    """Bytes held by stage, microbatch and layer, over all its passes."""
    total: dict[tuple[int, int, int], int] = {}
    for order in program.orders:
        for step in order:
            for op in program.bodies[step.body].ops:
                key = step.stage, step.microbatch, op.layer
                total[key] = total.get(key, 0) + op.held_bytes
    return total


def test_t12_1_a_layer_keeps_its_input_and_is_repeated_right_before_its_first_gradient() -> None:
    whole = {op.name: op for op in next(bodies(of("none", tp=2), "F"))}
    forward, backward = (next(bodies(of("full", tp=2), phase)) for phase in "FB")
    for layer in range(LAYERS):
        assert held(forward, layer) == TOKENS * HIDDEN * WIDTH // 2, "its input, divided by sequence parallelism"
        repeated = [op for op in again(backward) if op.layer == layer]
        assert [op.name for op in repeated] == [f"{name}.again" for name, op in whole.items() if op.layer == layer]
        assert held(tuple(repeated), layer) == held(tuple(whole.values()), layer) - held(forward, layer)
        first = next(i for i, op in enumerate(backward) if op.layer == layer)
        assert list(backward[first : first + len(repeated)]) == repeated
        assert not again(backward[first + len(repeated) :][: len(repeated)])
        freed = [op.freed_bytes for op in backward if op.layer == layer]
        assert freed[-1] == sum(freed) == held(tuple(whole.values()), layer)
    for op in again(backward):
        original = whole[op.name.removesuffix(".again")]
        assert op.part is Part.FORWARD
        assert op.operator == original.operator
        if isinstance(op, Compute) and isinstance(original, Compute):
            assert (op.kernel, op.parameters, op.adds_gradient) == (original.kernel, 0, False)
    assert len({op.name for op in backward}) == len(backward)


def test_t12_1_where_the_backward_pass_is_split_the_input_gradients_come_with_the_repetition() -> None:
    chosen = of("full", tp=2, pp=2, schedule="zb-h1")
    assert all(map(again, bodies(chosen, "I")))
    assert not any(map(again, bodies(chosen, "W")))
    assert all(held(ops, layer) > 0 for ops in bodies(chosen, "I") for layer in range(LAYERS // 2))


@pytest.mark.parametrize(
    "recompute",
    [
        "selective",
        "full",
        sim.Recompute("full", early_stop=True),
        sim.Recompute("full", every=2, early_stop=True),
        sim.Recompute("full", together=2, early_stop=True),
        sim.Recompute(ops=("attention_norm",)),
        sim.Recompute(ops=("mlp_up",)),
        sim.Recompute(ops=("mlp_up", "gated_activation")),
        "per-op",
    ],
)
@pytest.mark.parametrize("schedule", ["zb-h1", "v-half"])
def test_t11_1_weight_gradients_find_the_inputs_that_were_repeated(recompute: Any, schedule: str) -> None:
    """What I leaves for W is what it leaves without recomputation: no input of a linear layer is gone, and nothing else stays."""

    def left(chosen: Any) -> set[int]:
        program = program_of(of(chosen, framework="torchtitan-2025", pp=2, schedule=schedule))
        sums: dict[tuple[int, int], int] = {}
        for step in (step for order in program.orders for step in order if step.phase in ("F", "I")):
            of_step = sum(op.held_bytes - op.freed_bytes for op in program.bodies[step.body].ops)
            sums[step.stage, step.microbatch] = sums.get((step.stage, step.microbatch), 0) + of_step
        return set(sums.values())

    assert left(recompute) == left("none")


@pytest.mark.parametrize("framework", ["none", "megatron-lm-2021"])
def test_t12_2_selective_repeats_attention_between_its_inputs_and_its_result(framework: str) -> None:
    """Fused attention keeps no statistics, unfused attention no scores: queries, keys and values, and the result stay."""
    before, forward = (next(bodies(of(word, framework=framework, tp=2), "F")) for word in ("none", "selective"))
    backward = next(bodies(of("selective", framework=framework, tp=2), "B"))
    kernels = [op for op in again(backward) if isinstance(op, Compute)]
    assert kernels == again(backward), "attention needs no collective"
    if framework == "none":
        assert all(isinstance(op.kernel, Attention) for op in kernels)
        dropped = TOKENS * HEADS // 2 * 4
    else:
        assert {op.split for op in kernels} == {Split.HEADS}
        dropped = 5 * HEADS // 2 * TOKENS**2
    for layer in range(LAYERS):
        assert held(before, layer) - held(forward, layer) == dropped


RUNS = {
    ("attention_norm",): HIDDEN,
    ("mlp_norm",): HIDDEN,
    ("gated_activation",): FFN,
    ("mlp_up",): 2 * FFN,
    ("mlp_norm", "mlp_up"): HIDDEN + 2 * FFN,
    ("mlp_norm", "mlp_up", "gated_activation"): HIDDEN + 3 * FFN,
    ("qkv", "rope"): 2 * HIDDEN,
    ("attention",): HIDDEN + 2 * HEADS,
}
"""Operators in a row -> elements per token that are not kept: the result of each, and the statistics of attention in fp32."""


@pytest.mark.parametrize("names", RUNS)
def test_t12_3_the_results_of_listed_operators_are_not_kept(names: tuple[str, ...]) -> None:
    before, forward = (next(bodies(of(how), "F")) for how in ("none", sim.Recompute(ops=names)))
    backward = next(bodies(of(sim.Recompute(ops=names)), "B"))
    for layer in range(LAYERS):
        repeated = [op for op in again(backward) if op.layer == layer]
        assert [op.operator for op in repeated] == [f"{layer}.{name}" for name in names]
        assert held(before, layer) - held(forward, layer) == RUNS[names] * TOKENS * WIDTH == held(tuple(repeated), layer)
    consumer = LISTED[LISTED.index(names[-1]) + 1] if names[-1] != "gated_activation" else "mlp_down"
    consumer = "attention_out" if names == ("attention",) else consumer
    last = backward.index(again(backward)[-1])
    assert backward[last + 1].operator == f"0.{consumer}"


def test_t12_3_attention_and_the_operators_that_feed_it_are_repeated_in_order() -> None:
    backward = next(bodies(of(sim.Recompute("selective", ops=("qkv", "rope"))), "B"))
    names = [op.operator for op in again(backward) if op.layer == 0]
    assert names == ["0.qkv", "0.rope", "0.attention"]


IN_NARROW = {
    ("mlp_norm",): (["mlp_norm"], ["add_mlp_norm"]),
    ("gated_activation",): (["gated_activation", "mlp_down.cast"], ["gated_activation"]),
    ("mlp_up", "gated_activation"): (
        ["mlp_up.gather", "mlp_up", "gated_activation", "mlp_down.cast"],
        [
            "mlp_up.cast scale",
            "mlp_up.cast",
            "mlp_up.gather",
            "mlp_up.weights scale",
            "mlp_up.weights",
            "mlp_up",
            "gated_activation",
        ],
    ),
}
"""Operators in a row -> what is repeated where casts are kept and norms write them, and where inputs are kept in 16 bits."""


@pytest.mark.parametrize("names", IN_NARROW)
def test_t12_9_a_cast_is_repeated_where_a_gemm_keeps_it(names: tuple[str, ...]) -> None:
    for framework, expected in zip(("megatron-core-2025", "torchtitan-2024"), IN_NARROW[names], strict=True):
        of_ops, of_none = (
            of(how, framework=framework, dtype="fp8", tp=2, sharding="zero1") for how in (sim.Recompute(ops=names), "none")
        )
        repeated = [op for op in again(next(bodies(of_ops, "B"))) if op.layer == 0]
        assert [op.name for op in repeated] == [f"0.{name}.again" for name in expected]
        dropped = held(next(bodies(of_none, "F")), 0) - held(next(bodies(of_ops, "F")), 0)
        assert dropped == held(tuple(repeated), 0) > 0


@pytest.mark.parametrize(
    ("fields", "layers"),
    [({}, [0, 1, 2, 3]), ({"first": 3}, [0, 1, 2]), ({"every": 2}, [1, 3]), ({"first": 3, "every": 2}, [1])],
)
def test_t12_4_first_and_every_choose_layers_of_a_stage(fields: dict[str, int], layers: list[int]) -> None:
    backward = next(bodies(of(sim.Recompute("full", **fields)), "B"))
    assert sorted({op.layer for op in again(backward)}) == layers


@pytest.mark.parametrize(("together", "groups"), [(1, 4), (2, 2), (3, 2), (4, 1)])
def test_t12_4_layers_together_keep_one_input(together: int, groups: int) -> None:
    forward, backward = (next(bodies(of(sim.Recompute("full", together=together)), phase)) for phase in "FB")
    kept = [held(forward, layer) for layer in range(LAYERS)]
    assert kept == [0 if layer % together else TOKENS * HIDDEN * WIDTH for layer in range(LAYERS)]
    starts = [i for i, op in enumerate(backward) if op in again(backward) and backward[i - 1] not in again(backward)]
    assert len(starts) == groups


def tp_volume(of: Scenario) -> float:
    """Payload of the tensor-parallel collectives of a layer and a microbatch on a rank, in all-reduces of all activations."""
    total = 0.0
    for phase in "FBIW":
        for ops in bodies(of, phase):
            collectives = [op for op in ops if isinstance(op, Collective) and op.layer >= 0 and op.communicator == "tp"]
            total += sum(op.payload_bytes * (1 if op.kind == "all_reduce" else 0.5) for op in collectives)
    return total / (4 * LAYERS * TOKENS * HIDDEN * WIDTH)


@pytest.mark.parametrize(
    ("recompute", "all_reduces", "halves", "once"),
    [
        ("none", 4, 10, 8),
        ("selective", 4, 10, 8),
        ("full", 6, 14, 12),
        (sim.Recompute("full", every=2), 5, 12, 10),
        (sim.Recompute("full", early_stop=True), 5, 13, 11),
        (sim.Recompute(ops=("mlp_norm", "mlp_up")), 4, 11, 9),
    ],
)
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_t12_5_repeated_layers_repeat_their_collectives(
    recompute: Any, all_reduces: int, halves: int, once: int, schedule: str
) -> None:
    """`once`: of layers that keep their input as gathered."""
    plan = {"tp": 2, "pp": 2 if schedule == "zb-h1" else 1, "schedule": schedule}
    assert tp_volume(of(recompute, sequence_parallel=False, **plan)) == all_reduces
    assert 2 * tp_volume(of(recompute, **plan)) == halves
    assert 2 * tp_volume(of(recompute, gathered=True, **plan)) == once


@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
@pytest.mark.parametrize("norms", ["before", "after"])
def test_t12_1_the_input_of_a_layer_is_kept_as_it_comes(norms: str, dtype: str, gathered: bool) -> None:
    """Also where the first operator would keep it cast, or gathered: it does so when it runs again."""
    whole = replace(of("full", tp=2, dtype=dtype, gathered=gathered), model=small_model(LAYERS, norms=norms))
    forward, backward = (next(bodies(whole, phase)) for phase in "FB")
    assert {held(forward, layer) for layer in range(LAYERS)} == {TOKENS * HIDDEN * WIDTH // 2}
    first = next(
        op for op in again(backward) if op.operator == "0.qkv" and isinstance(op, Compute) and op.kernel.family == "gemm"
    )
    bits = 1 if dtype == "fp8" else WIDTH
    as_it_came = norms == "after" and not gathered and dtype == "bf16"
    assert first.held_bytes == (0 if as_it_came else TOKENS * HIDDEN * bits // (1 if gathered else 2))


def test_t12_3_what_is_kept_as_gathered_is_not_gathered_again() -> None:
    listed = sim.Recompute(ops=("qkv", "rope"))
    for gathered in (False, True):
        backward = next(bodies(of(listed, tp=2, gathered=gathered), "B"))
        names = {op.name for op in again(backward) if op.layer == 1}
        assert ("1.qkv.gather.again" in names) is not gathered
        assert "1.qkv.again" in names


@pytest.mark.parametrize(("name", "changes"), [("first kernel", {"frozen": 2}), ("dropout", {"framework": "megatron-lm-2021"})])
def test_t12_1_whatever_a_layer_begins_with_it_keeps_its_input(name: str, changes: dict[str, Any]) -> None:
    whole = of("full", **{key: value for key, value in changes.items() if key == "framework"})
    if name == "first kernel":
        job = replace(whole.job, lora=sim.Lora(targets=("mlp_up",)))
        whole = replace(whole, model=small_model(LAYERS, norms="after", qk_norm="full"), job=job)
    forward = next(bodies(whole, "F"))
    assert {held(forward, layer) for layer in range(1, LAYERS)} == {TOKENS * HIDDEN * WIDTH}


def test_t12_11_results_of_scatters_in_pieces_are_kept_too() -> None:
    for compiled in (False, True):
        software = replace(sim.framework("torchtitan-2025"), compile=compiled)
        kept = []
        for how in (False, "decomposed"):
            chosen = replace(of("per-op", tp=2, overlap=sim.Overlap(tp=how)), framework=software)  # type: ignore[arg-type]
            kept.append([held(next(bodies(chosen, "F")), layer) for layer in range(LAYERS)])
        assert kept[0] == kept[1]


def test_t12_6_an_early_stop_leaves_out_what_follows_the_last_tensor_that_is_needed() -> None:
    stops = sim.Recompute("full", early_stop=True)
    backward = next(bodies(of(stops, tp=2), "B"))
    assert [op.operator for op in again(backward) if op.layer == 0][-1] == "0.gated_activation"
    assert held(next(bodies(of("full", tp=2), "F")), 0) == held(next(bodies(of(stops, tp=2), "F")), 0)
    assert held(next(bodies(of("full", tp=2), "B")), 0) == held(backward, 0)
    masks = next(bodies(of(stops, framework="megatron-lm-2021", tp=2), "B"))
    assert [op.operator for op in again(masks) if op.layer == 0][-1] == "0.mlp_residual", "it makes the mask of dropout"
    scores = next(bodies(of(sim.Recompute("selective", early_stop=True), framework="megatron-lm-2021", tp=2), "B"))
    assert [op.operator for op in again(scores) if op.layer == 0][-1] == "0.attention_dropout"


@pytest.mark.parametrize(("recompute", "part"), [("none", 0), ("full", 1), (sim.Recompute("full", every=2), 1 / 2)])
def test_t12_7_hfu_counts_what_is_repeated_and_mfu_does_not(recompute: Any, part: float) -> None:
    run = of(recompute).simulate()
    model, job = run.scenario.model, run.scenario.job
    repeated = (2 * model.layer_parameters * TOKENS + 4 * TOKENS**2 * HIDDEN) * LAYERS * part * job.global_batch
    norms = 2 * HIDDEN * 2 * TOKENS * LAYERS * part * job.global_batch  # their parameters multiply nothing in a GEMM
    needed = model.train_flop_per_token(TOKENS, causal=False) * TOKENS * job.global_batch
    assert run.metrics.hfu / run.metrics.mfu == pytest.approx(1 + (repeated - norms) / needed, rel=1e-9)


def per_layer(recompute: Any, *, together: int = 1, **plan: Any) -> float:
    """Activation bytes that one more layer costs on a GPU, with dropout and attention that is not fused."""
    peaks = []
    for layers in (2 * together, 4 * together):
        chosen = sim.Plan(dp=1, recompute=recompute, **plan)
        cluster = sim.cluster({**CLUSTER, "gpus_per_node": chosen.tp})
        job = sim.Job(sequence_length=256, global_batch=4, microbatch_size=4, dtype="fp16")
        run = sim.simulate(gpt(1024, 16, layers, 1024, 256), cluster, chosen, job, framework=sim.framework("megatron-lm-2021"))
        peaks.append(run.memory[0].activations_bytes)
    return (peaks[1] - peaks[0]) / (2 * together)


CLUSTER = {"gpu": "a100-80gb", "nodes": 1, "intra_node": "NVSwitch 300 GB/s"}
SCORES = 5 * 16 * 256 / 1024
"""5as/h."""


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("recompute", "alone", "tensor", "sequence"),
    [
        ("none", 34 + SCORES, 10 + 24 / 8 + SCORES / 8, (34 + SCORES) / 8),
        ("selective", 34, 10 + 24 / 8, 34 / 8),
        ("full", 2, 2, 2 / 8),
        (sim.Recompute("full", together=2), 1, 1, 1 / 8),
        (sim.Recompute("full", early_stop=True), 2, 2, 2 / 8),
    ],
)
def test_t12_8_a_layer_keeps_what_was_published(recompute: Any, alone: float, tensor: float, sequence: float) -> None:
    """Korthikanti et al., arXiv 2205.05198: table 2, in units of sbh."""
    together, sbh = getattr(recompute, "together", 1), 256 * 4 * 1024
    assert per_layer(recompute, together=together) == pytest.approx(alone * sbh)
    assert per_layer(recompute, together=together, tp=8, sequence_parallel=False) == pytest.approx(tensor * sbh)
    assert per_layer(recompute, together=together, tp=8) == pytest.approx(sequence * sbh)


PLANS = st.sampled_from([
    {"tp": 2}, {"tp": 4, "sequence_parallel": False}, {"tp": 2, "overlap": sim.Overlap(tp=True)}, {"pp": 2, "schedule": "zb-h1"},
    {"pp": 2, "tp": 2, "schedule": "zb-h1", "overlap": sim.Overlap(tp=True)}, {"pp": 2, "schedule": "seq-1f1b", "splits": 2},
    {"pp": 2, "schedule": "dualpipe"}, {"pp": 2, "schedule": "zb-v", "chunks": 2}, {"pp": 2, "overlap": sim.Overlap(pp=False)},
])  # fmt: skip
CHOICES = st.one_of(
    st.builds(
        sim.Recompute, st.just("full"), st.just(()), st.sampled_from([None, 1, 2]), st.just(1), st.integers(1, 2), st.booleans()
    ),
    st.builds(
        lambda scope, ops, every: sim.Recompute(scope, ops, every=every),
        st.sampled_from(["none", "selective"]),
        st.lists(st.sampled_from(LISTED), min_size=1, unique=True).map(tuple),
        st.integers(1, 2),
    ),
    st.sampled_from(["selective", "full", sim.Recompute("selective", early_stop=True)]),
)
SOFTWARE = st.sampled_from([
    ("none", "bf16"), ("megatron-lm-2021", "bf16"), ("megatron-core-2025", "bf16"), ("megatron-core-2025", "fp8"),
    ("torchtitan-2024", "bf16"), ("none", "fp8_block"),
])  # fmt: skip


def without_memory(op: AnyOp) -> AnyOp:
    return replace(op, held_bytes=0, freed_bytes=0, working_bytes=0)


def without_and_with(recompute: Any, plan: dict[str, Any], software: tuple[str, str]) -> tuple[Scenario, Scenario]:
    """A drawn plan without recomputation, and with it; a draw that does not go together is left out."""
    framework, dtype = software
    without, recomputing = (of(how, framework=framework, dtype=dtype, **plan) for how in ("none", recompute))
    try:
        feasible.check(recomputing)
    except UserError:
        reject()
    return without, recomputing


@pytest.mark.slow
@given(plan=PLANS, recompute=CHOICES, software=SOFTWARE)
@settings(deadline=None, max_examples=30)
def test_the_passes_of_a_layer_hold_the_same_bytes_however_they_are_divided(
    plan: dict[str, Any], recompute: Any, software: tuple[str, str]
) -> None:
    """What the forward pass no longer holds the repetition holds, and all of it is freed; everything else is as it was."""
    before, after = without_and_with(recompute, plan, software)
    layout = layout_of(before)  # the order of some schedules depends on durations
    one, other = (program_of(scenario, 1, layout) for scenario in (before, after))
    assert everything_held(one) == everything_held(other)
    left: dict[tuple[int, int], int] = {}
    for order in other.orders:
        for step in order:
            ops, key = other.bodies[step.body].ops, (step.stage, step.microbatch)
            left[key] = left.get(key, 0) + sum(op.held_bytes - op.freed_bytes for op in ops)
            assert left[key] >= 0
            assert all(op.held_bytes >= 0 for op in ops)
            assert len({op.name for op in ops}) == len(ops)
    assert not any(left.values())
    for order, as_before in zip(other.orders, one.orders, strict=True):
        for step, was in zip(order, as_before, strict=True):
            kept = [without_memory(op) for op in other.bodies[step.body].ops if op not in again((op,))]
            ops = [without_memory(op) for op in one.bodies[was.body].ops]
            assert [replace(op, listed=False) if isinstance(op, Compute) else op for op in kept] == ops


@given(plan=PLANS, recompute=CHOICES, software=SOFTWARE)
@settings(deadline=None, max_examples=8)
def test_recomputation_never_takes_more_memory_nor_less_time(plan: dict[str, Any], recompute: Any, software: Any) -> None:
    before, after = without_and_with(recompute, plan, software)
    kept, repeated = before.simulate(), after.simulate()
    if layout_of(before) == layout_of(after):  # the order of some schedules depends on durations
        assert repeated.peak_memory_bytes <= kept.peak_memory_bytes
    assert repeated.metrics.step_time_s >= kept.metrics.step_time_s
    assert repeated.metrics.mfu <= kept.metrics.mfu


def test_a_schedule_that_depends_on_durations_sees_the_repetition() -> None:
    lasting = []
    for word in ("none", "full"):
        chosen = of(word, tp=2, pp=2, schedule="zb-auto")
        lasting.append(slot_durations(chosen, chosen.schedule, derived.schedule_shape(chosen), site_of(chosen)))
    kept, repeated = lasting
    assert repeated.forward == kept.forward
    assert repeated.weight_gradient == kept.weight_gradient
    assert all(long > short for long, short in zip(repeated.input_gradient, kept.input_gradient, strict=True))


def test_an_out_of_memory_suggests_what_is_not_done_yet() -> None:
    assert "recompute: full" in remedies(of("none"))
    assert "recompute: full" in remedies(of("selective"))
    assert "recompute" not in remedies(of("full"))


def test_t12_6_ranks_whose_experts_have_no_rows_repeat_the_same_collectives() -> None:
    model = small_model(1, experts=8, experts_per_token=2)
    given = sim.Moe((4, 1, 3, 0, 2, 5, 1, 1))
    plan = sim.Plan(dp=8, ep=8, recompute=sim.Recompute("full", early_stop=True), moe=given)
    unequal = scenario(model, small_cluster(2), plan, sim.Job(sequence_length=TOKENS, global_batch=8))
    program = program_of(unequal)
    repeated = []
    for order in program.orders:
        ops = [op for step in order for op in program.bodies[step.body].ops if op.purpose is Purpose.RECOMPUTE]
        repeated.append(sum(isinstance(op, Collective) for op in ops))
    assert len(program.variants) > 2
    again = [op for body in program.bodies.values() for op in body.ops if op.purpose is Purpose.RECOMPUTE]
    assert any(isinstance(op, Compute) and 0 in op.rows_of_variants for op in again)
    assert len(set(repeated)) == 1
    assert repeated[0] > 0


def test_selective_stands_for_the_operators_that_a_framework_lists() -> None:
    """Those of them that the model has; without any of them it is attention, as without a list."""
    listed = ("mlp_norm", "gated_activation", "expert_gated_activation")
    for names, same in ((listed, sim.Recompute(ops=listed[:2])), (listed[2:], sim.Recompute("selective"))):
        framework = Framework(plan=UsualPlan(selective=names))
        found, plain = (
            derived.with_usual_plan(replace(of(how), framework=framework)) for how in ("selective", sim.Recompute("full"))
        )
        assert found.plan.recomputation == same
        assert plain.plan.recomputation == sim.Recompute("full")


def test_an_out_of_memory_suggests_to_divide_the_optimizer_where_several_ranks_hold_it() -> None:
    """Of a single replica, both directions of a schedule do."""
    assert "sharding: zero1" not in remedies(of("none", tp=2, pp=4))
    assert "sharding: zero1" in remedies(of("none", tp=2, pp=4, schedule="chimera"))
