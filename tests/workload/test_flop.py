"""Flop and parameters: the sum over operators is the formula that the papers print."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.kernels import Attention, Gemm, Part
from simulator.workload.blocks.dense import BlockOp
from simulator.workload.model import Model
from tests.workload.shapes import gpt, models

SIZES = (st.integers(1, 4), st.integers(1, 512))


def matrix_flop(ops: list[BlockOp], *parts: str) -> int:
    kernels = [getattr(op, part) for op in ops for part in parts]
    return sum(kernel.model_flop for kernel in kernels if kernel is not None)


def all_ops(model: Model, batch: int, seq: int) -> list[BlockOp]:
    size = {"batch": batch, "seq": seq, "element_bytes": 2}
    block = model.block
    return [*block.embedding(model, **size), *block.layer(model, **size) * model.layers, *block.head(model, **size)]


@given(models(), *SIZES)
def test_a_step_is_6n_and_12lhs_per_token(model: Model, batch: int, seq: int) -> None:
    """N and the attention term counted from the shape, not by the model's own sums."""
    h, d, ffn = model.hidden, model.head_dim, model.ffn_hidden
    per_layer = h * (model.heads + 2 * model.kv_heads) * d + model.heads * d * h + (3 if model.gated_mlp else 2) * h * ffn
    n = model.layers * per_layer + model.vocab * h
    tokens, width = batch * seq, model.heads * d
    done = matrix_flop(all_ops(model, batch, seq), "forward", "input_gradient", "weight_gradient")
    assert done == 6 * n * tokens + 12 * model.layers * width * seq * tokens
    assert model.matmul_parameters == n
    assert model.train_flop_per_token(seq, causal=False) * tokens == done
    assert model.train_flop_per_token(seq, causal=True) == 6 * n + 6 * model.layers * width * seq


@given(models(), *SIZES)
def test_backward_is_twice_forward(model: Model, batch: int, seq: int) -> None:
    ops = all_ops(model, batch, seq)
    assert matrix_flop(ops, "input_gradient", "weight_gradient") == 2 * matrix_flop(ops, "forward")


@given(st.integers(1, 8), st.integers(1, 512), st.integers(1, 32), st.sampled_from([64, 128]), st.booleans())
def test_attention_kernels_do_half_if_causal_and_recompute_scores_backward(
    batch: int, seq: int, heads: int, head_dim: int, causal: bool
) -> None:
    """FlashAttention's counts: 4bs²hd forward, 2.5 times that backward, half of both below the diagonal."""
    forward = Attention(batch, seq, heads, heads, head_dim, causal, 2)
    backward = Attention(batch, seq, heads, heads, head_dim, causal, 2, Part.INPUT_GRADIENT)
    square = batch * seq * seq * heads * head_dim
    assert (forward.model_flop, backward.model_flop) == (4 * square, 8 * square)
    assert (forward.flop, backward.flop) == ((2 * square, 5 * square) if causal else (4 * square, 10 * square))


@given(st.integers(1, 12), st.integers(1, 8), st.integers(1, 64), st.integers(1, 5000), st.integers(1, 2048))
def test_gpt_parameters_and_flop_are_the_formulas_of_megatron(l: int, heads: int, d: int, v: int, s: int) -> None:  # noqa: E741
    """arXiv 2104.04473: P = 12lh²(1 + 13/(12h) + (V + s)/(12lh)), without its final norm (2h); F = 72Bslh²(1 + s/(6h) + V/(12lh))
    where nothing is recomputed (the paper's 96 and 16 recompute the layers)."""
    h = heads * d
    model = gpt(h, heads, l, v, s)
    parameters = 12 * l * h * h * (1 + Fraction(13, 12 * h) + Fraction(v + s, 12 * l * h))
    assert model.parameters == parameters + 2 * h
    flop = 72 * s * l * h * h * (1 + Fraction(s, 6 * h) + Fraction(v, 12 * l * h))
    assert model.train_flop_per_token(s, causal=False) * s == flop


def test_bytes_of_a_matrix_product_are_its_three_matrices() -> None:
    product = Gemm(m=3, n=5, k=7, element_bytes=2, batch=11)
    assert product.flop == 2 * 3 * 5 * 7 * 11
    assert product.traffic_bytes == 2 * 11 * (3 * 7 + 7 * 5 + 3 * 5)
    assert product.result_bytes == 2 * 11 * 3 * 5


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_head_is_counted_once(tied: bool) -> None:
    model = Model("m", 1, 16, 2, 2, 8, 64, 1000, tied_embeddings=tied)
    assert model.parameters == model.layer_parameters + 16 + 16 * 1000 * (1 if tied else 2)
