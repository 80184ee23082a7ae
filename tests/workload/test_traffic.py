"""Bytes that memory-bound operators and attention move: every tensor once, counted by hand."""

from __future__ import annotations

import pytest

import simulator as sim
from simulator.kernels import Attention, Part
from simulator.workload.blocks.dense import BlockOp

BATCH, SEQ, HIDDEN, HEADS, KV_HEADS, FFN, VOCAB = 2, 24, 64, 4, 2, 176, 96
TOKENS, HEAD_DIM = BATCH * SEQ, HIDDEN // HEADS


def ops(gated: bool) -> dict[str, BlockOp]:
    model = sim.model(
        {
            "layers": 1, "hidden": HIDDEN, "heads": HEADS, "kv_heads": KV_HEADS, "ffn_hidden": FFN, "vocab": VOCAB,
            "gated_mlp": gated,
        }
    )  # fmt: skip
    size = {"batch": BATCH, "seq": SEQ, "element_bytes": 2}
    block = model.block
    found = block.embedding(model, **size) + block.layer(model, **size) + block.head(model, **size)
    return {op.name: op for op in found}


@pytest.mark.parametrize(
    "name, width, forward, backward",
    [
        ("attention_norm", HIDDEN, "read x, write y", "read x and dy, write dx"),
        ("rope", (HEADS + KV_HEADS) * HEAD_DIM, "read x, write y", "read dy, write dx"),
        ("attention_residual", HIDDEN, "read x and y, write z", "read dx and dy, write dz"),
        ("gated_activation", FFN, "read gate and up, write y", "read gate and up and dy, write dgate and dup"),
        ("activation", FFN, "read x, write y", "read x and dy, write dx"),
        ("final_norm", HIDDEN, "read x, write y", "read x and dy, write dx"),
    ],
)
def test_rowwise_operators_move_each_tensor_once(name: str, width: int, forward: str, backward: str) -> None:
    op = ops(gated=name != "activation")[name]
    assert op.input_gradient is not None
    for kernel, said in ((op.forward, forward), (op.input_gradient, backward)):
        tensors = len(said.replace(",", " and").split(" and "))
        assert kernel.traffic_bytes == tensors * TOKENS * width * 2
        assert kernel.flop == 0


def test_the_embedding_copies_rows_and_adds_their_gradients() -> None:
    lookup = ops(gated=True)["embedding"]
    assert lookup.input_gradient is None
    assert lookup.weight_gradient is not None
    assert lookup.forward.traffic_bytes == 2 * TOKENS * HIDDEN * 2
    assert lookup.weight_gradient.traffic_bytes == 3 * TOKENS * HIDDEN * 2


def test_the_loss_reads_logits_and_writes_fp32() -> None:
    loss = ops(gated=True)["cross_entropy"]
    assert loss.input_gradient is not None
    assert loss.forward.traffic_bytes == loss.input_gradient.traffic_bytes == TOKENS * VOCAB * (2 + 4)


def test_attention_moves_queries_keys_values_and_output_and_backward_their_gradients_too() -> None:
    forward = Attention(BATCH, SEQ, HEADS, KV_HEADS, HEAD_DIM, True, 2)
    backward = Attention(BATCH, SEQ, HEADS, KV_HEADS, HEAD_DIM, True, 2, Part.INPUT_GRADIENT)
    tensors = 2 * TOKENS * HEAD_DIM * (HEADS + KV_HEADS + KV_HEADS + HEADS)
    assert (forward.traffic_bytes, backward.traffic_bytes) == (tensors, 2 * tensors)
