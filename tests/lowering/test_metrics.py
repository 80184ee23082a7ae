"""Metrics: what a framework computes from the logits of every microbatch besides the loss and its gradient."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulator as sim
from simulator.config import load
from simulator.errors import UserError
from simulator.kernels import Part
from simulator.lowering.kernels_of_framework import METRICS
from simulator.program.operations import Compute
from simulator.program.program import Program
from simulator.simulation.memory_check import memory_of
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.simulate import layout_of, program_of, simulate_scenario
from simulator.workload.framework import Framework, Fusion

VOCAB, TOKENS = 8192, 512
MODEL = sim.model({"layers": 2, "hidden": 512, "heads": 8, "vocab": VOCAB})
COMPOSER, ACC_PERPLEX = ("loss", "loss"), ("fused_loss", "accuracy", "perplexity")


def scenario(plan: Any = None, dtype: Any = "bf16", **software: Any) -> Scenario:
    job = sim.Job(sequence_length=TOKENS, global_batch=8, microbatch_size=1, dtype=dtype)
    cluster = sim.cluster("dgx-h100", nodes=1)
    return Scenario(MODEL, cluster, plan or sim.Plan(sharding="fsdp"), job, framework=Framework(**software))


def program(described: Scenario) -> Program:
    return program_of(described)


def further_tokens(**software: Any) -> Scenario:
    """A model on one rank whose modules predict two more tokens."""
    return replace(scenario(sim.Plan(), **software), model=replace(MODEL, mtp_layers=2))


def ops_of(made: Program) -> list[Compute]:
    """The kernels of the first pass forward and back."""
    steps = [step for step in made.orders[0] if step.microbatch == 0]
    return [op for step in steps for op in made.bodies[step.body].ops if isinstance(op, Compute)]


def metric_kernels(described: Scenario) -> list[Compute]:
    """The kernels of metrics in the first pass forward and back, in the order of the rank with the head."""
    made = program(described)
    steps = [step for step in made.orders[-1] if step.microbatch == 0]
    ops = [op for step in steps for op in made.bodies[step.body].ops]
    return [op for op in ops if isinstance(op, Compute) and op.operator.startswith("metric ")]


def bytes_per_logit(described: Scenario) -> list[float]:
    return [op.kernel.bytes_per_element for op in metric_kernels(described)]  # type: ignore[union-attr]


def test_frameworks_that_compute_metrics() -> None:
    foundries = ("llm-foundry-2023", "llm-foundry-2023-10", "llm-foundry-2024")
    assert {load.framework(name).metrics for name in foundries} == {COMPOSER}
    assert load.framework("none").metrics == ()
    assert load.framework("internevo-2023").metrics == ACC_PERPLEX
    assert load.framework("internevo-2023").fp32_logits


def test_t9_11_a_loss_again_is_a_log_softmax_in_16_bits_and_a_cast() -> None:
    assert bytes_per_logit(scenario(metrics=COMPOSER)) == [2 + 2, 2 + 4] * 2


def test_t9_11_logits_in_fp32_need_no_cast_after_the_softmax() -> None:
    assert bytes_per_logit(scenario(metrics=("loss",), fp32_logits=True)) == [4 + 4]


def test_t9_11_accuracy_and_perplexity_pass_over_the_logits_nine_times() -> None:
    moved = bytes_per_logit(scenario(metrics=ACC_PERPLEX, fp32_logits=True))
    assert moved == [4, 4, 4, 4, 8, 8, 4]  # loss; maxima twice and their places; subtract, exponential and sum


def test_t9_11_losses_again_come_after_the_backward_pass_and_other_metrics_before_it() -> None:
    made = program(scenario(metrics=("loss", "accuracy")))
    bodies = [made.bodies[step.body].ops for step in made.orders[0] if step.microbatch == 0]
    forward, backward = ([op for op in body if isinstance(op, Compute)] for body in bodies)
    assert [op.operator for op in forward[-3:]] == [f"metric 1 of cross_entropy {i} max" for i in range(3)]
    late = [op.operator for op in backward if op.operator.startswith("metric ")]
    assert late == ["metric 0 of cross_entropy 0 softmax", "metric 0 of cross_entropy 1 cast"]
    last_gemm = max(i for i, op in enumerate(backward) if op.part is Part.WEIGHT_GRADIENT)
    assert all(i > last_gemm for i, op in enumerate(backward) if op.operator.startswith("metric "))


@given(st.lists(st.sampled_from(sorted(METRICS)), max_size=3).map(tuple), st.booleans(), st.sampled_from([1, 2, 4]))
def test_ranks_that_divide_the_vocabulary_share_the_work_of_metrics(metrics: Any, wide: bool, tp: int) -> None:
    software = {"metrics": metrics, "fp32_logits": wide}
    whole, shared = (metric_kernels(scenario(sim.Plan(tp=n), **software)) for n in (1, tp))
    assert [op.kernel.traffic_bytes for op in whole] == [tp * op.kernel.traffic_bytes for op in shared]


def test_t9_11_a_cast_of_logits_to_fp32_goes_both_ways_and_not_in_fp32() -> None:
    def casts(dtype: str) -> set[tuple[Part, int]]:
        ops = [op for body in program(scenario(dtype=dtype, fp32_logits=True)).bodies.values() for op in body.ops]
        found = [op for op in ops if isinstance(op, Compute) and op.operator.startswith("wide_logits")]
        return {(op.part, op.kernel.traffic_bytes) for op in found}

    moved = TOKENS * VOCAB * (2 + 4)
    assert casts("bf16") == {(Part.FORWARD, moved), (Part.INPUT_GRADIENT, moved)}
    assert casts("fp32") == set()


@pytest.mark.parametrize(("wide", "each_bytes"), [(False, 2 + 4), (True, 4 + 4)])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp8", "fp32"])
def test_t9_11_the_loss_moves_the_logits_that_the_cast_wrote(dtype: str, wide: bool, each_bytes: int) -> None:
    """Forward it reads logits and writes fp32, backward it reads fp32 and writes the gradient that is cast back."""
    losses = [op for op in ops_of(program(scenario(dtype=dtype, fp32_logits=wide))) if op.operator == "cross_entropy"]
    moved = {op.part: op.kernel.traffic_bytes // (TOKENS * VOCAB) for op in losses}
    assert set(moved) == {Part.FORWARD, Part.INPUT_GRADIENT}
    assert set(moved.values()) == {8 if dtype == "fp32" else each_bytes}


def test_t9_11_a_loss_in_several_kernels_casts_no_logits_in_fp32_again() -> None:
    """The loss of Megatron-LM begins with a cast, and its gradient ends with one; `float()` of fp32 does nothing."""
    apart = Fusion(cross_entropy=False)
    for wide, casts in (False, 2), (True, 2):
        ops = ops_of(program(scenario(fp32_logits=wide, fusion=apart)))
        assert len([op for op in ops if getattr(op.kernel, "op", "") == "cast"]) == casts
    in_fp32 = ops_of(program(scenario(dtype="fp32", fusion=replace(apart, norm=False))))
    assert not [op for op in in_fp32 if getattr(op.kernel, "op", "") == "cast"]


@pytest.mark.parametrize("metrics", [COMPOSER, ACC_PERPLEX])
def test_metrics_of_further_tokens_have_names_of_their_own(metrics: Any) -> None:
    """Each loss has its metrics, and what the embedding keeps is freed once though they end the backward pass."""
    made = program(further_tokens(metrics=metrics, fp32_logits=True, dropout=True))
    for body in made.bodies.values():
        assert len({op.name for op in body.ops}) == len(body.ops)
    order = [op for step in made.orders[0] for op in made.bodies[step.body].ops]
    assert sum(op.held_bytes for op in order) == sum(op.freed_bytes for op in order) > 0


def test_metrics_after_the_backward_pass_take_time_but_no_memory() -> None:
    plan = sim.Plan(tp=8)  # no reduction of gradients beside the metrics
    plain, measured = scenario(plan), scenario(plan, metrics=COMPOSER)
    assert simulate_scenario(measured).metrics.step_time_s > simulate_scenario(plain).metrics.step_time_s
    assert memory_of(measured, layout_of(measured)) == memory_of(plain, layout_of(plain))


@pytest.mark.parametrize("software", [{"metrics": ["loss"]}, {"fp32_logits": True}])
def test_a_head_in_chunks_has_no_logits_for_metrics(software: Any) -> None:
    with pytest.raises(UserError, match="never exist"):
        load.framework({**software, "fusion": {"linear_cross_entropy": True}})
