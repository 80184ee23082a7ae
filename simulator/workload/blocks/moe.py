"""Decoder layer with a mixture of experts, and multi-head latent attention, as in Mixtral and DeepSeek.

The MLP of a layer is a router, which chooses experts for every token, and the experts. The router is a GEMM with softmax and
top-k. Tokens are copied into the order of their experts (permutation), pass through the experts as grouped GEMMs, one GEMM per
expert, and are added up again (unpermutation). The router's weights multiply the activation inside the experts, as in
Megatron-LM, so that nothing is kept for the sum. Shared experts are an MLP for every token. The first layers, or all but every
n-th, may be dense. `expert` marks the operators that expert parallelism divides; they are written for an even load.

Latent attention (MLA) projects the input to a latent of keys and values, and mostly one of queries, which norms and a second
projection expand into heads. Reference: DeepSeek-V2, arXiv 2405.04434, section 2.1; DeepSeek-V3, arXiv 2412.19437, section 2.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...kernels import Gemm, Kernel, Split
from ..architecture import Architecture
from . import dense
from .dense import KEYS, QUERIES, VALUES, BlockOp, biased, linear, norm, rowwise, scores
from .dense import embedding as embedding
from .dense import head as head

FP32_BYTES = 4


def layer(model: Architecture, *, batch: int, seq: int, element_bytes: int, prefix: int = 0, number: int = 0) -> list[BlockOp]:
    """The operators of a layer, by its number, on `batch` sequences of `seq` tokens after `prefix` tokens, in forward order."""
    attending = (_latent_attention if model.kv_lora_rank else dense.attention)(
        model, batch, seq, element_bytes, prefix, dense.window_of(model, number)
    )
    fed_forward = (_mixture if has_experts(model, number) else dense.mlp)(model, batch * seq, element_bytes)
    return dense.composed(model, (batch * seq, model.hidden, element_bytes), attending, fed_forward)


def has_experts(model: Architecture, number: int) -> bool:
    """Whether the `number`-th layer has experts; the others have a dense MLP."""
    return model.experts > 0 and number >= model.dense_layers and (number + 1) % model.expert_interval == 0


def kind(model: Architecture, number: int) -> str:
    """The kind of the `number`-th layer, in words; empty where all layers of the model are alike."""
    mixed = model.experts and (model.dense_layers or model.expert_interval > 1)
    words = (dense.kind(model, number), ("expert" if has_experts(model, number) else "dense") if mixed else "")
    return " ".join(filter(None, words))


def _latent_attention(
    model: Architecture, batch: int, seq: int, element_bytes: int, prefix: int, window: int
) -> Iterator[BlockOp]:
    """Latent attention. The projections to latents are small, and whole on every tensor-parallel rank.

    One kernel rotates the channels of positions, and writes the keys and values of all heads.
    """
    tokens, bias, value_dim = batch * seq, biased(model, "qkv"), model.value_head_dim or model.head_dim
    latent, rank = model.kv_lora_rank + model.rope_head_dim, model.kv_lora_rank
    keys_and_values = model.heads * (model.head_dim - model.rope_head_dim + value_dim)
    rotated = (tokens, model.heads * (model.rope_head_dim + model.head_dim + value_dim), element_bytes)
    yield from _queries(model, tokens, element_bytes)
    down = linear("kv_down", (tokens, model.hidden, latent, element_bytes), Split.SEQUENCE, bias=bias)
    yield replace(down, saved_bytes=0)  # the first projection of queries keeps the same input
    yield norm(model, "kv_norm", (tokens, rank, element_bytes))
    up = linear("kv_up", (tokens, rank, keys_and_values, element_bytes), Split.COLUMN, bias=bias)
    yield replace(up, makes=(KEYS, VALUES))
    yield rowwise("rope", "rope", rotated, Split.INNER, moved=(2, 2))
    yield scores(model, batch, seq, element_bytes, prefix, window)
    of_heads = (tokens, model.heads * value_dim, model.hidden, element_bytes)
    yield linear("attention_out", of_heads, Split.ROW, bias=biased(model, "attention_out"))


def _queries(model: Architecture, tokens: int, element_bytes: int) -> Iterator[BlockOp]:
    """The projection to queries; with a latent of queries the projection to the latent, a norm, and the projection to heads."""
    rank, queries, bias = model.q_lora_rank, model.heads * model.head_dim, biased(model, "qkv")
    if not rank:
        whole = linear("q", (tokens, model.hidden, queries, element_bytes), Split.COLUMN, bias=bias)
        yield replace(whole, makes=(QUERIES,), input_shared=True)  # the projection to the latent of keys reads it too
        return
    yield linear("q_down", (tokens, model.hidden, rank, element_bytes), Split.SEQUENCE, bias=bias)
    yield norm(model, "q_norm", (tokens, rank, element_bytes))
    up = linear("q_up", (tokens, rank, queries, element_bytes), Split.COLUMN, bias=bias)
    yield replace(up, makes=(QUERIES,))


def _mixture(model: Architecture, tokens: int, element_bytes: int) -> Iterator[BlockOp]:
    """Shared experts, router and experts."""
    permuted = (tokens * model.experts_per_token, model.hidden, element_bytes)
    yield from _shared(model, tokens, element_bytes)
    sizes = (tokens, model.hidden, model.experts, element_bytes)
    router = linear("router", sizes, Split.SEQUENCE, bias=biased(model, "mlp_up"))
    yield replace(router, saved_bytes=0) if model.shared_experts else router  # shared experts keep the same input
    yield rowwise("top_k", "softmax", (tokens, model.experts, FP32_BYTES), Split.SEQUENCE, moved=(2, 3), saved=1)
    yield rowwise("permute", "permute", permuted, Split.SEQUENCE, moved=(2, 2))
    yield from _experts(model, permuted[0], element_bytes)
    yield rowwise("unpermute", "permute", permuted, Split.SEQUENCE, moved=(2, 2))


def _shared(model: Architecture, tokens: int, element_bytes: int) -> Iterator[BlockOp]:
    """The shared experts as one MLP, which keeps the input that the router reads too."""
    if not model.shared_experts:
        return
    gates, width = 2 if model.gated_mlp else 1, model.shared_experts * model.expert_ffn_hidden
    up = linear("shared_up", (tokens, model.hidden, gates * width, element_bytes), Split.COLUMN, bias=biased(model, "mlp_up"))
    yield replace(up, input_shared=True)  # the router and the experts read it too
    activated = dense.activation(model, (tokens, width, element_bytes))
    yield replace(activated, name=f"shared_{activated.name}")
    yield linear("shared_down", (tokens, width, model.hidden, element_bytes), Split.ROW, bias=biased(model, "mlp_up"))
    yield rowwise("shared_add", "add", (tokens, model.hidden, element_bytes), Split.SEQUENCE, moved=(3, 3))


def _experts(model: Architecture, copies: int, element_bytes: int) -> Iterator[BlockOp]:
    """The experts on `copies` copies of tokens, evenly shared, rounded up to whole rows per expert."""
    gates, width, rows = 2 if model.gated_mlp else 1, model.expert_ffn_hidden, -(-copies // model.experts)
    up = linear("expert_up", (rows, model.hidden, gates * width, element_bytes), Split.COLUMN, bias=biased(model, "mlp_up"))
    yield _grouped(model, up)
    activated = dense.activation(model, (model.experts * rows, width, element_bytes))
    yield replace(activated, name=f"expert_{activated.name}", expert=True)
    down = linear("expert_down", (rows, width, model.hidden, element_bytes), Split.ROW, bias=biased(model, "mlp_up"))
    yield _grouped(model, down)


def _grouped(model: Architecture, op: BlockOp) -> BlockOp:
    """A linear layer of one expert as the grouped GEMM of all experts; a token multiplies the parameters of its own experts."""

    def all_of(kernel: Kernel | None) -> Kernel | None:
        return replace(kernel, batch=model.experts) if isinstance(kernel, Gemm) else kernel

    return replace(
        op,
        forward=all_of(op.forward),
        input_gradient=all_of(op.input_gradient),
        weight_gradient=all_of(op.weight_gradient),
        parameters=op.parameters * model.experts,
        whole_parameters=op.whole_parameters * model.experts,
        matmul_parameters=op.matmul_parameters * model.experts_per_token,
        saved_bytes=op.saved_bytes * model.experts,
        expert=True,
    )
