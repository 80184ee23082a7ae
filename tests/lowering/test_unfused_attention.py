"""Unfused attention whose mask and softmax are operators of PyTorch: section 9 of the second half of docs/semantics.md."""

from __future__ import annotations

from typing import Any

import pytest

import simulator as sim
from simulator.kernels import Rowwise
from simulator.lowering.kernels_of_framework import framework_kernels
from simulator.program.operations import Compute
from simulator.simulation.simulate import program_of
from simulator.workload.blocks.dense import BlockOp

from ..small_scenarios import scenario, small_cluster, small_model

SEQ, HEADS = 128, 8


def of_scores(dtype: str, element_bytes: int, *, software: str = "deepspeed-2023", seq: int = SEQ) -> list[BlockOp]:
    """The operators on scores in a layer, under DeepSpeed of 2023 with Hugging Face's Llama or another framework."""
    model = small_model(1)
    layer = [(0, op) for op in model.block.layer(model, batch=1, seq=seq, element_bytes=element_bytes)]
    found = [op for _, op in framework_kernels(layer, sim.framework(software), dtype=dtype)]
    return [
        op for op in found if isinstance(op.forward, Rowwise) and op.name.startswith("attention_") and op.forward.columns == seq
    ]


MOVED: dict[str, tuple[int, list[tuple[str, int, int]], int]] = {
    "bf16": (2, [("scale", 4, 4), ("mask", 4, 0), ("wide", 6, 6), ("softmax", 8, 12), ("narrow", 6, 6)], 6),
    "fp16": (2, [("scale", 4, 4), ("mask", 4, 0), ("softmax", 6, 10), ("narrow", 6, 6)], 6),
    "fp32": (4, [("scale", 8, 8), ("mask", 8, 0), ("softmax", 8, 12)], 4),
}
"""Format -> its bytes; the steps, with the bytes that each moves per score forward and backward; and what is kept of a score."""


@pytest.mark.parametrize("dtype", MOVED)
def test_t9_5_softmax_of_operators_of_pytorch_runs_in_fp32(dtype: str) -> None:
    element_bytes, steps, kept = MOVED[dtype]
    ops = of_scores(dtype, element_bytes)

    def moved(kernel: Any) -> float:
        return kernel.bytes_per_element if kernel else 0

    assert [(op.name.removeprefix("attention_"), moved(op.forward), moved(op.input_gradient)) for op in ops] == steps
    assert sum(op.saved_bytes for op in ops) == kept * HEADS * SEQ**2


@pytest.mark.parametrize("dtype", MOVED)
def test_t9_5_the_format_of_the_job_decides(dtype: Any) -> None:
    job = sim.Job(sequence_length=SEQ, global_batch=1, dtype=dtype)
    of = scenario(small_model(1), small_cluster(1, gpus_per_node=1), sim.Plan(), job, framework=sim.framework("deepspeed-2023"))
    program = program_of(of)
    body = next(body for name, body in program.bodies.items() if name.startswith("F"))
    found = [op for op in body.ops if op.operator.startswith("0.attention_") and isinstance(op, Compute)]
    names = [op.operator.removeprefix("0.attention_") for op in found if isinstance(op.kernel, Rowwise)]
    others = ("residual", "norm", "repeated_keys", "repeated_values")
    assert [name for name in names if name not in others and " " not in name] == [name for name, *_ in MOVED[dtype][1]]


def test_t9_9_in_fp32_a_softmax_that_is_not_fused_casts_nothing() -> None:
    """Scores by threes, which Megatron-LM's kernel does not take, are scaled, masked and normalised as they are."""
    found = of_scores("fp32", 4, software="megatron-lm-2022", seq=SEQ + 1)
    assert [op.name for op in found] == [f"attention_{word}" for word in ("scale", "mask", "softmax", "dropout")]
    assert found[2].saved_bytes == 4 * HEADS * (SEQ + 1) ** 2
