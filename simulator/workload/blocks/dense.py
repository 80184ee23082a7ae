"""The dense decoder layer, GPT-style and Llama-style, with its embedding and head.

Norm, attention, residual, norm, MLP, residual: grouped-query attention if there are fewer key heads than heads, an MLP of
two or (gated) three matrices. Attention is one fused kernel that keeps its inputs and one number per row; the gated MLP's
two up projections are one matrix product, as they are in every framework.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...kernels import Attention, Gemm, Kernel, Part, Rowwise, Split
from ..architecture import Architecture

FP32_BYTES = 4


@dataclass(frozen=True, slots=True)
class BlockOp:
    """An operator: its kernel in each direction, its parameters, and the bytes that it keeps from forward to backward."""

    name: str
    forward: Kernel | None
    """None for what only the backward pass does."""
    split: Split
    input_gradient: Kernel | None = None
    weight_gradient: Kernel | None = None
    parameters: int = 0
    whole_parameters: int = 0
    """Of those, the ones that a tensor-parallel group does not divide: biases added to sums, learned positions."""
    matmul_parameters: int = 0
    saved_bytes: int = 0
    """Kept for the backward pass, before any splitting: mostly the operator's own input."""
    fused_weight_gradient: bool = False
    """The kernel of the input gradient makes the gradients of the parameters too."""


def layer(model: Architecture, *, batch: int, seq: int, element_bytes: int, prefix: int = 0) -> list[BlockOp]:
    """The operators of one layer on `batch` sequences of `seq` tokens, in forward order; `prefix` tokens came before."""
    tokens, width = batch * seq, model.heads * model.head_dim
    return [
        _norm(model, "attention_norm", tokens, element_bytes),
        _qkv(model, tokens, element_bytes),
        *_rope(model, tokens, element_bytes),
        _attention(model, batch, seq, element_bytes, prefix),
        linear("attention_out", tokens, width, model.hidden, element_bytes, Split.ROW, bias=model.bias),
        _residual(model, "attention_residual", tokens, element_bytes),
        _norm(model, "mlp_norm", tokens, element_bytes),
        _mlp_up(model, tokens, element_bytes),
        _activation(model, tokens, element_bytes),
        linear("mlp_down", tokens, model.ffn_hidden, model.hidden, element_bytes, Split.ROW, bias=model.bias),
        _residual(model, "mlp_residual", tokens, element_bytes),
    ]


def embedding(model: Architecture, *, batch: int, seq: int, element_bytes: int) -> list[BlockOp]:
    """Token (and learned position) embedding: a gather forward, a scatter of gradients backward."""
    tokens = batch * seq
    lookup = BlockOp(
        "embedding",
        forward=Rowwise("embedding", tokens, model.hidden, element_bytes, 2 * element_bytes),
        weight_gradient=Rowwise("embedding_backward", tokens, model.hidden, element_bytes, 3 * element_bytes),
        split=Split.LOOKUP,
        parameters=model.embedding_parameters,
        whole_parameters=model.embedding_parameters - model.vocab * model.hidden,
    )
    return [lookup]


def head(model: Architecture, *, batch: int, seq: int, element_bytes: int, owns_table: bool = True) -> list[BlockOp]:
    """Final norm, projection to the vocabulary, and the loss, whose softmax is kept in fp32.

    A head that does not own its table uses the embedding's, which is held and counted there.
    """
    tokens = batch * seq
    project = Gemm(tokens, model.vocab, model.hidden, element_bytes)
    logits = BlockOp(
        "logits",
        forward=project,
        input_gradient=Gemm(tokens, model.hidden, model.vocab, element_bytes, Part.INPUT_GRADIENT),
        weight_gradient=Gemm(model.hidden, model.vocab, tokens, element_bytes, Part.WEIGHT_GRADIENT),
        split=Split.COLUMN,
        parameters=model.vocab * model.hidden if owns_table else 0,
        matmul_parameters=model.vocab * model.hidden,
        saved_bytes=tokens * model.hidden * element_bytes,
    )
    loss = BlockOp(
        "cross_entropy",
        forward=Rowwise("cross_entropy", tokens, model.vocab, element_bytes, element_bytes + FP32_BYTES),
        input_gradient=Rowwise("cross_entropy_backward", tokens, model.vocab, element_bytes, FP32_BYTES + element_bytes),
        split=Split.LOSS,
        saved_bytes=tokens * model.vocab * FP32_BYTES,
    )
    return [_norm(model, "final_norm", tokens, element_bytes), logits, loss]


def _norm(model: Architecture, name: str, tokens: int, element_bytes: int) -> BlockOp:
    parameters = model.hidden * (2 if model.norm == "layernorm" else 1)
    return rowwise(
        name,
        tokens,
        model.hidden,
        element_bytes,
        Split.SEQUENCE,
        forward=2,
        backward=3,
        saved=1,
        parameters=parameters,
        kernel=model.norm,
    )


def _qkv(model: Architecture, tokens: int, element_bytes: int) -> BlockOp:
    outputs = (model.heads + 2 * model.kv_heads) * model.head_dim
    return linear("qkv", tokens, model.hidden, outputs, element_bytes, Split.COLUMN, bias=model.bias)


def _rope(model: Architecture, tokens: int, element_bytes: int) -> list[BlockOp]:
    if model.positions != "rope":
        return []
    width = (model.heads + model.kv_heads) * model.head_dim
    return [rowwise("rope", tokens, width, element_bytes, Split.INNER, forward=2, backward=2)]


def _attention(model: Architecture, batch: int, seq: int, element_bytes: int, prefix: int) -> BlockOp:
    shape = (batch, seq, model.heads, model.kv_heads, model.head_dim, True, element_bytes)
    tokens, width = batch * seq, (model.heads + 2 * model.kv_heads) * model.head_dim
    return BlockOp(
        "attention",
        forward=Attention(*shape, prefix=prefix),
        input_gradient=Attention(*shape, Part.INPUT_GRADIENT, prefix),
        split=Split.INNER,
        saved_bytes=tokens * (width * element_bytes + model.heads * FP32_BYTES),
    )


def _mlp_up(model: Architecture, tokens: int, element_bytes: int) -> BlockOp:
    outputs = model.ffn_hidden * (2 if model.gated_mlp else 1)
    return linear("mlp_up", tokens, model.hidden, outputs, element_bytes, Split.COLUMN, bias=model.bias)


def _activation(model: Architecture, tokens: int, element_bytes: int) -> BlockOp:
    gates = 2 if model.gated_mlp else 1
    name = "gated_activation" if model.gated_mlp else "activation"
    return rowwise(
        name,
        tokens,
        model.ffn_hidden,
        element_bytes,
        Split.INNER,
        forward=gates + 1,
        backward=2 * gates + 1,
        saved=gates,
        kernel=f"{model.activation}{'_gated' * model.gated_mlp}",
    )


def _residual(model: Architecture, name: str, tokens: int, element_bytes: int) -> BlockOp:
    return rowwise(name, tokens, model.hidden, element_bytes, Split.SEQUENCE, forward=3, backward=3, kernel="add")


def linear(name: str, tokens: int, inputs: int, outputs: int, element_bytes: int, split: Split, *, bias: bool) -> BlockOp:
    """A linear layer: three matrix products of equal flop, its input kept."""
    return BlockOp(
        name,
        forward=Gemm(tokens, outputs, inputs, element_bytes),
        input_gradient=Gemm(tokens, inputs, outputs, element_bytes, Part.INPUT_GRADIENT),
        weight_gradient=Gemm(inputs, outputs, tokens, element_bytes, Part.WEIGHT_GRADIENT),
        split=split,
        parameters=inputs * outputs + (outputs if bias else 0),
        whole_parameters=outputs if bias and split is Split.ROW else 0,
        matmul_parameters=inputs * outputs,
        saved_bytes=tokens * inputs * element_bytes,
    )


def rowwise(
    name: str,
    rows: int,
    columns: int,
    element_bytes: int,
    split: Split,
    *,
    forward: int,
    backward: int,
    saved: int = 0,
    parameters: int = 0,
    kernel: str = "",
) -> BlockOp:
    """A memory-bound operator that moves `forward` (`backward`) and keeps `saved` elements per element of its shape."""
    op = kernel or name
    return BlockOp(
        name,
        forward=Rowwise(op, rows, columns, element_bytes, forward * element_bytes),
        input_gradient=Rowwise(f"{op}_backward", rows, columns, element_bytes, backward * element_bytes),
        split=split,
        parameters=parameters,
        saved_bytes=saved * rows * columns * element_bytes,
        fused_weight_gradient=parameters > 0,
    )
