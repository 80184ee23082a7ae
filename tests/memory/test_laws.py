"""Laws of memory, flop and volumes for any plan: recomputation, offload, frozen layers, adapters, and windows and documents of a
whole sequence."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import simulator as sim
from simulator.advise.candidates import legal
from simulator.kernels import Gemm, Part
from simulator.lowering.passes.data_parallel import parameters_by_stage
from simulator.program.operations import COPY_IN, COPY_OUT, Collective, Compute, Purpose
from simulator.simulation.memory_check import memory_of
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.simulate import layout_of, program_of

from ..small_scenarios import HOST, scenario, small_cluster, small_model

SEQUENCE = 256
LATENTS = {"kv_lora_rank": 128, "q_lora_rank": 192, "rope_head_dim": 32, "head_dim": 96, "value_head_dim": 64, "kv_heads": 8}
MIXTURE = {"experts": 8, "experts_per_token": 2, "expert_ffn_hidden": 256, "shared_experts": 1, "dense_layers": 1}
MODELS: tuple[dict[str, Any], ...] = (
    {}, {"tied_embeddings": True}, {"norms": "both", "qk_norm": "head"}, {"parallel_mlp": "one_norm"}, LATENTS, MIXTURE,
    {"gated_mlp": False, "positions": "learned", "max_sequence_length": SEQUENCE, "bias": True},
)  # fmt: skip
SOFTWARE = ("none", "megatron-core-2025", "megatron-lm-2021", "pytorch-2024", "deepspeed-2023")
RECOMPUTED = ("selective", "full", sim.Recompute("full", every=2), sim.Recompute("full", early_stop=True))
FORMATS = ("bf16", "fp16", "fp8", "mxfp8", "nvfp4")


@st.composite
def plans(draw: st.DrawFn) -> dict[str, Any]:
    schedule, chunks = draw(st.sampled_from([("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("gpipe", 1)]))
    pp, tp = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 4]))
    pipeline = {"pp": pp, "schedule": schedule, "chunks": chunks} if pp > 1 else {}
    sharding, sequence = draw(st.sampled_from(["none", "zero1", "zero2", "fsdp"])), draw(st.booleans())
    return {"tp": tp, "sequence_parallel": sequence if tp > 1 else None, "sharding": sharding, "recompute": "none", **pipeline}


@st.composite
def scenarios(draw: st.DrawFn, formats: tuple[str, ...] = FORMATS, models: Any = MODELS) -> Scenario:
    """Any scenario that is not refused."""
    job = sim.Job(SEQUENCE, 16, draw(st.sampled_from([1, 2])), dtype=draw(st.sampled_from(formats)))  # type: ignore[arg-type]
    chosen = scenario(
        small_model(8, **draw(st.sampled_from(models))), small_cluster(4, gpu="b200", host=HOST), sim.Plan(**draw(plans())), job,
        framework=sim.framework(draw(st.sampled_from(SOFTWARE))),
    )  # fmt: skip
    assume(legal(chosen))
    return chosen


@dataclass(frozen=True)
class Facts:
    """Bytes of each rank; flop, without and with repetitions; bytes moved by kernels; and payloads by purpose and kind."""

    memory: list[int]
    flop: int
    executed: int
    moved_bytes: int
    payloads: Counter[tuple[Purpose | None, str]]


def facts(chosen: Scenario) -> Facts:
    program, flop, payloads = program_of(chosen), Counter[bool](), Counter[tuple[Purpose | None, str]]()
    ops = [op for order in program.orders for step in order for op in program.bodies[step.body].ops]
    for op in ops:
        if isinstance(op, Compute):
            flop[op.purpose is Purpose.RECOMPUTE] += op.kernel.model_flop
        elif isinstance(op, Collective):
            payloads[op.purpose, op.kind] += op.payload_bytes
    moved_bytes = sum(op.kernel.traffic_bytes for op in ops if isinstance(op, Compute))
    memory = [rank.total_bytes for rank in memory_of(chosen, layout_of(chosen))]
    assert sum(op.held_bytes for op in ops) == sum(op.freed_bytes for op in ops)
    return Facts(memory, flop[False], sum(flop.values()), moved_bytes, payloads)


def no_more_memory(one: Facts, other: Facts) -> bool:
    return all(mine <= theirs for mine, theirs in zip(one.memory, other.memory, strict=True))


@settings(max_examples=15, deadline=None)
@given(scenarios(), st.sampled_from(RECOMPUTED))
def test_t12_7_recomputation_takes_no_more_memory_and_no_fewer_flop(chosen: Scenario, words: Any) -> None:
    again = replace(chosen, plan=replace(chosen.plan, recompute=words))
    assume(legal(again))
    repeated, kept = facts(again), facts(chosen)
    assert no_more_memory(repeated, kept)
    assert repeated.flop == kept.flop == kept.executed < repeated.executed


@settings(max_examples=15, deadline=None)
@given(scenarios(), st.sampled_from([sim.Offload(0.5), sim.Offload(1.0), sim.Offload(optimizer=True), "parameters"]))
def test_t19_2_offload_takes_no_more_memory_of_gpus(chosen: Scenario, offload: Any) -> None:
    """What is copied out of a microbatch is copied back."""
    copying = replace(chosen, plan=replace(chosen.plan, offload=offload))
    assume(legal(copying))
    away, here = facts(copying), facts(chosen)
    assert no_more_memory(away, here)
    assert (away.flop, away.executed) == (here.flop, here.executed)
    if not copying.plan.offloading.optimizer:
        assert away.payloads[Purpose.OFFLOAD, COPY_OUT] == away.payloads[Purpose.OFFLOAD, COPY_IN] > 0


@settings(max_examples=10, deadline=None)
@given(scenarios(("bf16", "fp16", "fp32")), st.sampled_from(["none", "selective", "full"]))
def test_t20_6_freezing_one_layer_more_increases_nothing(chosen: Scenario, words: Any) -> None:
    chosen = replace(chosen, plan=replace(chosen.plan, recompute=words))
    frozen = [replace(chosen, job=replace(chosen.job, frozen_layers=layers)) for layers in (1, 3, 8)]
    assume(all(map(legal, frozen)))
    before = facts(chosen)
    for now in map(facts, frozen):
        assert no_more_memory(now, before)
        assert now.flop < before.flop
        assert now.executed < before.executed
        assert now.moved_bytes < before.moved_bytes
        assert all(size_bytes <= before.payloads[what] for what, size_bytes in now.payloads.items())
        before = now


@settings(max_examples=8, deadline=None)
@given(scenarios())
def test_t16_6_a_window_or_a_document_of_the_whole_sequence_is_none(chosen: Scenario) -> None:
    windowed = replace(chosen, model=replace(chosen.model, window=SEQUENCE))
    packed = replace(chosen, job=replace(chosen.job, packing=sim.Packing(lengths=(SEQUENCE,))))
    assert facts(windowed) == facts(chosen)
    if legal(packed):
        assert facts(packed) == facts(chosen)


@pytest.mark.parametrize("targets", [("qkv",), ("attention_out", "mlp_down"), ("q_up", "kv_up", "mlp_up")])
@settings(max_examples=6, deadline=None)
@given(chosen=scenarios(("bf16",), ({}, {"bias": True}, LATENTS)), rank=st.sampled_from([8, 32]))
def test_t20_7_adapters_have_a_row_and_a_column_of_each_channel(chosen: Scenario, rank: int, targets: tuple[str, ...]) -> None:
    """All that learns is (inputs + outputs) x rank for each layer, whatever divides it."""
    chosen = replace(chosen, job=replace(chosen.job, lora=sim.Lora(rank, targets)))
    assume(legal(chosen))
    model, program = chosen.model, program_of(chosen)
    layer = model.block.layer(model, batch=1, seq=1, element_bytes=1)
    widths = [(op.forward.k, op.forward.n) for op in layer if op.name in targets and isinstance(op.forward, Gemm)]
    learning = sum(sum(of.values()) for r in range(program.ranks) for of in parameters_by_stage(program, r).values())
    assert learning * chosen.plan.tp == model.layers * rank * sum(inputs + outputs for inputs, outputs in widths)
    ops = [op for body in program.bodies.values() for op in body.ops if isinstance(op, Compute) and op.adapter]
    assert {op.part for op in ops} == {Part.FORWARD, Part.INPUT_GRADIENT, Part.WEIGHT_GRADIENT}
