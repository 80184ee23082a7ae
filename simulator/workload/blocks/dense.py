"""The dense decoder layer, GPT-style and Llama-style, with its embedding and head.

Norm, attention, residual, norm, MLP, residual: grouped-query attention if there are fewer key heads than heads, an MLP of
two or (gated) three matrices. Attention is one fused kernel that keeps its inputs and one number per row; the gated MLP's
two up projections are one matrix product, as they are in every framework.
"""

from __future__ import annotations

from ...kernels import Attention, Gemm, Part, Rowwise, Split
from ..architecture import Architecture
from .block_op import BlockOp, linear, rowwise

FP32_BYTES = 4


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
