"""Unfused attention whose mask and softmax are operators of PyTorch: section 9 of the second half of docs/semantics.md."""

from __future__ import annotations

from typing import Any

import pytest

import simulator as sim
from simulator.kernels import Attention, Gemm, Rowwise
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


def gemms(of: sim.Run) -> list[Gemm]:
    ops = (op for body in of.program.bodies.values() for op in body.ops if isinstance(op, Compute))
    return [op.kernel for op in ops if isinstance(op.kernel, Gemm)]


def run(heads: int, *, seq: int = 2048, dtype: Any = "bf16", attention: str = "unfused") -> sim.Run:
    """A step of a model 1,728 wide: 16 heads of 108 channels, or 12 of 144."""
    model = sim.model({"layers": 2, "hidden": 1728, "heads": heads, "vocab": 32000, "gated_mlp": False})
    job = sim.Job(sequence_length=seq, global_batch=1, dtype=dtype)
    software = sim.framework({"attention": attention})
    return scenario(model, small_cluster(1, gpus_per_node=1, gpu="a100-80gb"), sim.Plan(), job, framework=software).simulate()


@pytest.mark.parametrize(
    "head, keys, width, aligned",
    [(64, 2048, 2, True), (108, 2048, 2, False), (112, 2048, 2, True), (64, 2047, 2, False), (108, 2048, 4, True)],
)
def test_t9_15_rows_begin_at_multiples_of_16_bytes(head: int, keys: int, width: int, aligned: bool) -> None:
    assert Attention(1, keys, 8, 8, head, True, width).aligned == aligned


def test_t9_15_only_the_products_of_heads_go_without_tensor_cores() -> None:
    found = gemms(run(16))
    assert {kernel.aligned for kernel in found if kernel.batch > 1} == {False}
    assert {kernel.aligned for kernel in found if kernel.batch == 1} == {True}
    assert all(kernel.aligned for kernel in gemms(run(12)))
    assert all(kernel.aligned for kernel in gemms(run(16, attention="")))


def test_t9_15_products_without_tensor_cores_run_at_the_peak_of_fp32() -> None:
    slow, fast = ({row.name: row for row in run(heads).kernel_costs} for heads in (16, 12))
    for name in ("attention_scores", "attention_context", "attention_keys.dgrad"):
        assert "without tensor cores" in slow[name].shape
        assert "without" not in fast[name].shape
        flop_per_s = 16 * 2 * 2048**2 * 108 / slow[name].seconds_each
        assert 0.5 * 19.5e12 < flop_per_s < 19.5e12
        assert slow[name].seconds_each > 5 * fast[name].seconds_each
    assert slow["mlp_up"].seconds_each == fast["mlp_up"].seconds_each


def test_t9_15_attention_without_a_kernel_of_its_own_is_timed_alike() -> None:
    """`trainsim kernel attention --library unfused` has the same products."""
    narrow, wide = (
        sim.kernel("attention", "a100-80gb", seq=2048, heads=heads, head_dim=head, library="unfused")
        for heads, head in ((16, 108), (12, 144))
    )
    assert narrow.time_us > 2 * wide.time_us
