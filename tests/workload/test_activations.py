"""What a layer keeps for its backward pass, against Korthikanti et al., arXiv 2205.05198, section 4 and equations 1 to 5.

They count 34sbh bytes + 5as²b; dropout masks (2sbh) are not modelled here, and a fused attention keeps one fp32 number per
row (4abs) in place of the scores (5as²b).
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulator as sim
from simulator.workload.blocks.dense import BlockOp
from tests.workload.shapes import gpt

LAYERS = (2, 5)


def kept(ops: list[BlockOp], *names: str) -> int:
    return sum(op.saved_bytes for op in ops if not names or op.name in names)


@given(st.integers(1, 4), st.integers(1, 512), st.integers(1, 16), st.integers(1, 64))
def test_a_gpt_layer_keeps_32sbh(b: int, s: int, a: int, d: int) -> None:
    """By parts: attention 11sbh and MLP 19sbh, each less a dropout mask of sbh, and two norms of 2sbh."""
    h = a * d
    model = gpt(h, a, seq=s)
    ops = model.block.layer(model, batch=b, seq=s, element_bytes=2)
    sbh, statistics = s * b * h, 4 * a * b * s
    assert kept(ops, "qkv", "attention", "attention_out") == (11 - 1) * sbh + statistics
    assert kept(ops, "mlp_up", "activation", "mlp_down") == (19 - 1) * sbh
    assert kept(ops, "attention_norm", "mlp_norm") == 4 * sbh
    assert kept(ops) == (34 - 2) * sbh + statistics


@pytest.mark.parametrize(("parallel_mlp", "inputs"), [("none", 4), ("two_norms", 3), ("one_norm", 2)])
def test_what_two_branches_read_is_kept_once(parallel_mlp: str, inputs: int) -> None:
    """Inputs of sbh elements: of both norms, and of the first linear layer of attention and of the MLP."""
    model = sim.model({"layers": 1, "hidden": 64, "heads": 4, "vocab": 8, "ffn_hidden": 256, "parallel_mlp": parallel_mlp})
    ops = model.block.layer(model, batch=1, seq=32, element_bytes=2)
    assert kept(ops, "attention_norm", "qkv", "mlp_norm", "mlp_up") == inputs * 2 * 32 * 64


@given(st.integers(1, 4), st.integers(1, 512), st.integers(1, 64), st.integers(1, 5000))
def test_the_head_keeps_its_input_twice_and_fp32_logits(b: int, s: int, h: int, v: int) -> None:
    """4sbh(1 + v/h) in the paper: the final norm's input, the projection's input, and logits in fp32."""
    model = gpt(h, 1, vocab=v, seq=s)
    assert kept(model.block.head(model, batch=b, seq=s, element_bytes=2)) == 4 * s * b * h + 4 * s * b * v


def per_layer(**plan: Any) -> float:
    """Activation bytes that one more layer costs on a GPU."""
    peaks = []
    for layers in LAYERS:
        run = sim.simulate(
            gpt(1024, 16, layers, 1024, 256),
            sim.cluster("dgx-a100", nodes=1),
            sim.Plan(dp=1, tp=8, **plan),
            sim.Job(sequence_length=256, global_batch=4, microbatch_size=4, dtype="fp16"),
        )
        peaks.append(run.memory[0].activations_bytes)
    return (peaks[1] - peaks[0]) / (LAYERS[1] - LAYERS[0])


@pytest.mark.parametrize("sequence_parallel, sbh", [(False, 10 - 2 + 24 / 8), (True, (34 - 2) / 8)])
def test_tensor_and_sequence_parallelism_divide_it_as_in_the_paper(sequence_parallel: bool, sbh: float) -> None:
    """sbh(10 + 24/t) with tensor parallelism alone, 34sbh/t with sequence parallelism too; less the masks outside."""
    s, b, h, a, t = 256, 4, 1024, 16, 8
    assert per_layer(sequence_parallel=sequence_parallel) == pytest.approx(sbh * s * b * h + 4 * a * b * s / t)


@given(st.integers(1, 512), st.integers(1, 512))
def test_a_gated_mlp_keeps_both_halves(s: int, ffn: int) -> None:
    """SwiGLU: the input (h), gate and up (2 ffn), and their product (ffn), two bytes each."""
    model = sim.model({"layers": 1, "hidden": 64, "heads": 4, "vocab": 8, "gated_mlp": True, "ffn_hidden": ffn})
    ops = model.block.layer(model, batch=1, seq=s, element_bytes=2)
    assert kept(ops, "mlp_up", "gated_activation", "mlp_down") == 2 * s * (64 + 3 * ffn)
