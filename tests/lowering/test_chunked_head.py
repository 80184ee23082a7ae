"""The head in chunks: what it computes is the same, what it keeps is not, and its gradients are summed chunk by chunk.

The numbered tests are section 9 of the second half of docs/semantics.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulator as sim
from simulator.kernels import Gemm, Part, Rowwise
from simulator.lowering.chunked_head import tokens_of_chunk
from simulator.program.operations import Compute, Purpose
from simulator.program.program import Program
from simulator.simulation.memory_check import memory_of
from simulator.simulation.runnable import RunnableScenario
from simulator.simulation.simulate import layout_of, program_of
from simulator.workload.framework import Framework, Fusion, MemoryOverhead

from ..small_scenarios import scenario, small_model

VOCAB, HIDDEN = 4096, 512
TOKENS = 600
"""Of which the last chunk has a part only."""


def of(plan: sim.Plan | None = None, *, chunked: bool = True, model: Any = None, **more: Any) -> RunnableScenario:
    software = Framework(
        fusion=Fusion(linear_cross_entropy=chunked, **more.pop("fusion", {})), memory=MemoryOverhead(logit_bytes=2)
    )
    job = sim.Job(TOKENS, 16, **more)
    return scenario(model or small_model(layers=2), plan=plan or sim.Plan(pp=1), job=job, framework=software)


def head(program: Program) -> list[Compute]:
    """The kernels of the projection and the loss, of one microbatch."""
    ops = {op.name: op for body in program.bodies.values() for op in body.ops if isinstance(op, Compute) and op.layer < 0}
    return [op for op in ops.values() if op.operator.startswith(("logits", "cross_entropy"))]


@given(st.integers(1, 1 << 20), st.integers(1, 1 << 18), st.integers(1, 1 << 14))
def test_t9_10_the_logits_of_a_chunk_take_about_the_bytes_of_all_hidden_states(tokens: int, vocab: int, hidden: int) -> None:
    size = tokens_of_chunk(tokens, vocab, hidden)
    share = -(-tokens // -(-vocab // hidden))
    assert size & (size - 1) == 0
    assert share <= size < 2 * share


@pytest.mark.parametrize("plan", [sim.Plan(), sim.Plan(pp=2, schedule="zb-h1"), sim.Plan(sharding="fsdp")], ids=str)
def test_t9_10_chunks_compute_what_the_whole_does(plan: sim.Plan) -> None:
    whole, chunks = program_of(of(plan, chunked=False)), program_of(of(plan))
    assert len(head(chunks)) > len(head(whole))
    for part in Part:
        flop = [sum(op.kernel.model_flop for op in head(program) if op.part is part) for program in (whole, chunks)]
        assert flop[0] == flop[1]
    assert sum(op.parameters for op in head(chunks)) == sum(op.parameters for op in head(whole)) == VOCAB * HIDDEN
    tokens = [op.kernel.rows for op in head(chunks) if isinstance(op.kernel, Rowwise) and op.kernel.op == "cross_entropy"]
    assert sum(tokens) == TOKENS
    assert tokens == [128, 128, 128, 128, 88]


def test_t9_10_no_kernel_of_a_chunk_holds_logits() -> None:
    whole, chunks = (head(program_of(of(chunked=chunked))) for chunked in (False, True))
    assert sum(op.held_bytes for op in whole) > TOKENS * VOCAB * 4
    assert sum(op.held_bytes for op in chunks) == TOKENS * HIDDEN * 2
    assert max(op.working_bytes for op in chunks if op.part is Part.FORWARD) == 128 * VOCAB * 2


def test_memory_falls_by_the_logits() -> None:
    """They are the peak: there is one layer, and the vocabulary is eight times as wide as the model."""
    memory = []
    for chunked in (False, True):
        chosen = of(chunked=chunked, model=small_model(layers=1))
        memory.append(max(rank.activations_bytes + rank.working_bytes for rank in memory_of(chosen, layout_of(chosen))))
    assert memory[0] - memory[1] > 0.5 * TOKENS * VOCAB * 4


@pytest.mark.parametrize("sharding", ["none", "zero1", "fsdp"])
@pytest.mark.parametrize("adds", [True, False])
def test_t9_10_every_chunk_adds_its_gradient_to_the_sum(adds: bool, sharding: str) -> None:
    """Of 16 bits: cast to fp32 (2 + 4 bytes), read, added to the sum, and written (4 + 2 + 2)."""
    ops = head(program_of(of(sim.Plan(sharding=sharding), fusion={"accumulation": adds})))
    sums = [op.kernel for op in ops if op.purpose is Purpose.ACCUMULATE]
    gradients = [op for op in ops if op.part is Part.WEIGHT_GRADIENT and isinstance(op.kernel, Gemm)]
    assert len(gradients) == 5
    assert [kernel.traffic_bytes for kernel in sums] == [VOCAB * HIDDEN * 6, VOCAB * HIDDEN * 8] * 5


def test_t9_10_gradients_in_fp32_are_added_without_a_cast() -> None:
    ops = head(program_of(of(dtype="fp32")))
    sums = [op.kernel for op in ops if op.purpose is Purpose.ACCUMULATE]
    assert sums
    assert {kernel.traffic_bytes for kernel in sums} == {VOCAB * HIDDEN * (4 + 4 + 4)}


def test_a_frozen_head_has_no_gradients_to_add() -> None:
    ops = head(program_of(of(lora=sim.Lora())))
    assert not [op for op in ops if op.part is Part.WEIGHT_GRADIENT]
    assert sum(op.kernel.model_flop for op in ops if op.part is Part.INPUT_GRADIENT) == 2 * TOKENS * VOCAB * HIDDEN


@pytest.mark.parametrize(
    "plan", [sim.Plan(tp=2), sim.Plan(tp=2, pp=2), sim.Plan(pp=2, schedule="1f1b", vocabulary="vocab-1")], ids=str
)
def test_t9_10_a_divided_vocabulary_is_projected_whole(plan: sim.Plan) -> None:
    assert program_of(of(plan)) == program_of(of(plan, chunked=False))


def test_every_prediction_of_further_tokens_is_in_chunks() -> None:
    ops = head(program_of(of(model=small_model(layers=2, mtp_layers=2))))
    for name in ("logits", "logits_2", "logits_3"):
        assert len([op for op in ops if op.name.rpartition("#")[0] == name and op.part is Part.FORWARD]) == 5


def test_a_step_in_chunks_takes_longer_by_little() -> None:
    """The sums move 14 bytes of every parameter of the head for each chunk; logits that are not kept save less here."""
    long = sim.Job(4096, 16)
    apart, chunks = (replace(of(chunked=chunked), job=long).simulate().metrics.step_time_s for chunked in (False, True))
    assert apart != chunks
    assert abs(chunks / apart - 1) < 0.25
