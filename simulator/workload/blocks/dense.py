"""Dense decoder layer, GPT-style and Llama-style, with embedding and head.

A layer is norm, attention, residual, norm, MLP, residual, with grouped-query attention if the model has fewer key heads than
heads, and an MLP of two or (gated) three matrices. Attention is one fused kernel that keeps its inputs and one number per row;
the two up projections of the gated MLP are one GEMM, as in every framework.

Models differ from this in where their norms are (OLMo 2, Gemma 2), in norms of queries and keys (Qwen3), in windows of attention
(Mistral, Gemma 3), and in parallel layers (GPT-NeoX, Falcon): there attention and MLP read the same input, with one norm or two,
and their results are added before the residual sum. The partial sums of both are then reduced as one, as EleutherAI's GPT-NeoX
does (megatron/model/transformer.py, `gpt_j_residual`), whereas each column layer has its own reduction backward.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ...frozen import Plain, replace
from ...kernels import Attention, Gemm, Kernel, Part, Rowwise, Split
from ..architecture import Architecture

FP32_BYTES = 4
BIASED = {"qkv": ("qkv",), "attention": ("qkv", "attention_out"), "mlp": ("mlp_up", "mlp_down")}
"""The linear layers with biases, for each word of `Architecture.bias`."""
QUERIES, KEYS, VALUES = "queries", "keys", "values"
"""The inputs of attention."""


@dataclass(frozen=True)
class BlockOp(Plain):
    """An operator: the kernel of each part, the parameters, and the bytes kept from forward to backward."""

    name: str
    forward: Kernel | None
    """None for an operator of the backward pass only."""
    split: Split
    input_gradient: Kernel | None = None
    weight_gradient: Kernel | None = None
    parameters: int = 0
    whole_parameters: int = 0
    """The part of `parameters` that a tensor-parallel group does not divide: biases added to sums, learned positions."""
    matmul_parameters: int = 0
    expert: bool = False
    """Whether the operator belongs to the experts of a layer, which expert parallelism divides."""
    saved_bytes: int = 0
    """Bytes kept for the backward pass, before any splitting: mostly the input of the operator."""
    fused_weight_gradient: bool = False
    """Whether the kernel of the input gradient also makes the gradients of the parameters."""
    frozen: bool = False
    """Whether the parameters of the operator are frozen."""
    adapter: str = ""
    """For an operator of an adapter: "in" for its first matrix, "out" for its second; `split` is that of the adapted layer."""
    matrices: tuple[int, ...] = ()
    """For a linear layer of several matrices in one GEMM: the outputs of each."""
    listed: bool = False
    """Whether the plan lists the operator among those whose results the backward pass computes again."""
    keeps_result: bool = False
    """For attention: whether `saved_bytes` includes the result, because no other operator keeps it unchanged."""
    input_kept: bool = False
    """For a linear layer that may keep its input in fewer bits: whether another operator keeps the input unchanged."""
    input_shared: bool = False
    """For a linear layer: whether other operators read the same input, in the format of activations."""
    makes: tuple[str, ...] = ()
    """The inputs of attention (`QUERIES`, `KEYS`, `VALUES`) that the operator produces, without inputs that only pass through
    it."""


def layer(model: Architecture, *, batch: int, seq: int, element_bytes: int, prefix: int = 0, number: int = 0) -> list[BlockOp]:
    """The operators of a layer, by its number, on `batch` sequences of `seq` tokens after `prefix` tokens, in forward order."""
    shape = (batch * seq, model.hidden, element_bytes)
    attending = attention(model, batch, seq, element_bytes, prefix, window_of(model, number))
    return composed(model, shape, attending, mlp(model, batch * seq, element_bytes))


def composed(
    model: Architecture, shape: tuple[int, int, int], attending: Iterable[BlockOp], fed_forward: Iterable[BlockOp]
) -> list[BlockOp]:
    """A layer with its attention and its MLP, norms, and residual sums."""
    first, second = _with_norms(model, "attention", shape, attending), _with_norms(model, "mlp", shape, fed_forward)
    residual = rowwise("mlp_residual", "add", shape, Split.SEQUENCE, moved=(3, 3))
    if model.parallel_mlp != "none":
        return [*first, *second, rowwise("branches", "add", shape, Split.SUM, moved=(3, 3)), residual]
    return [*first, replace(residual, name="attention_residual"), *second, residual]


def _with_norms(model: Architecture, name: str, shape: tuple[int, int, int], operators: Iterable[BlockOp]) -> list[BlockOp]:
    """Attention or MLP with the norms at its input and at its output."""
    at_input = model.norms != "after" and not (name == "mlp" and model.parallel_mlp == "one_norm")
    first = [norm(model, f"{name}_norm", shape)] if at_input else []
    if name == "mlp" and model.parallel_mlp == "two_norms":
        first = [replace(op, saved_bytes=0) for op in first]  # the norm of attention keeps the same input
    last = [norm(model, f"{name}_post_norm", shape)] if model.norms != "before" else []
    return [*first, *operators, *last]


def kind(model: Architecture, number: int) -> str:
    """The kind of the `number`-th layer, in a word; empty where all layers of the model are alike."""
    mixed = model.window and model.full_attention_every
    return ("full" if _sees_all(model, number) else "windowed") if mixed else ""


def window_of(model: Architecture, number: int) -> int:
    """The window of attention in a layer; 0 where tokens attend to all earlier tokens."""
    return 0 if _sees_all(model, number) else model.window


def _sees_all(model: Architecture, number: int) -> bool:
    """Whether the tokens of a layer attend to all earlier tokens."""
    return not model.window or bool(model.full_attention_every and (number + 1) % model.full_attention_every == 0)


def attention(model: Architecture, batch: int, seq: int, element_bytes: int, prefix: int, window: int) -> Iterator[BlockOp]:
    """Attention from its projections to its output, without norms of the residual stream."""
    tokens, queries, keys = batch * seq, model.heads * model.head_dim, model.kv_heads * model.head_dim
    qkv = linear("qkv", (tokens, model.hidden, queries + 2 * keys, element_bytes), Split.COLUMN, bias=biased(model, "qkv"))
    shared = model.parallel_mlp == "one_norm"
    yield replace(qkv, matrices=(queries, keys, keys), makes=(QUERIES, KEYS, VALUES), input_shared=shared)
    if model.qk_norm == "head":
        rows = (tokens * (model.heads + model.kv_heads), model.head_dim, element_bytes)
        parameters = 2 * _norm_parameters(model, model.head_dim)
        of_heads = rowwise("qk_norm", model.norm, rows, Split.HEADS, moved=(2, 3), saved=1, parameters=parameters)
        yield replace(of_heads, whole_parameters=parameters, makes=(QUERIES, KEYS))
    elif model.qk_norm == "full":
        rows = (tokens, queries + keys, element_bytes)
        parameters = _norm_parameters(model, queries + keys)
        of_all = rowwise("qk_norm", model.norm, rows, Split.INNER, moved=(2, 3), saved=1, parameters=parameters)
        yield replace(of_all, makes=(QUERIES, KEYS))
    if model.positions == "rope":
        yield rowwise("rope", "rope", (tokens, queries + keys, element_bytes), Split.INNER, moved=(2, 2))
    yield scores(model, batch, seq, element_bytes, prefix, window)
    bias = biased(model, "attention_out")
    yield linear("attention_out", (tokens, queries, model.hidden, element_bytes), Split.ROW, bias=bias)


def mlp(model: Architecture, tokens: int, element_bytes: int) -> Iterator[BlockOp]:
    """The MLP, without its norms."""
    hidden, inner, gates = model.hidden, model.ffn_hidden, 2 if model.gated_mlp else 1
    up = linear("mlp_up", (tokens, hidden, gates * inner, element_bytes), Split.COLUMN, bias=biased(model, "mlp_up"))
    up = replace(up, matrices=(inner,) * gates)
    yield replace(up, saved_bytes=0) if model.parallel_mlp == "one_norm" else up  # attention keeps the same input
    yield activation(model, (tokens, inner, element_bytes))
    yield linear("mlp_down", (tokens, inner, hidden, element_bytes), Split.ROW, bias=biased(model, "mlp_down"))


def activation(model: Architecture, shape: tuple[int, int, int]) -> BlockOp:
    """The activation of an MLP with its gate, if there is one."""
    gates = 2 if model.gated_mlp else 1
    name, kernel = ("gated_activation", f"{model.activation}_gated") if model.gated_mlp else ("activation", model.activation)
    return rowwise(name, kernel, shape, Split.INNER, moved=(gates + 1, 2 * gates + 1), saved=gates)


def embedding(model: Architecture, *, batch: int, seq: int, element_bytes: int) -> list[BlockOp]:
    """Token (and learned position) embedding: a gather forward, a scatter of gradients backward; some models norm the result."""
    tokens = batch * seq
    learned = model.max_sequence_length * model.hidden if model.positions == "learned" else 0
    lookup = BlockOp(
        "embedding",
        forward=Rowwise("embedding", tokens, model.hidden, element_bytes, 2 * element_bytes),
        weight_gradient=Rowwise("embedding_backward", tokens, model.hidden, element_bytes, 3 * element_bytes),
        split=Split.LOOKUP,
        parameters=model.vocab * model.hidden + learned,
        whole_parameters=learned,
    )
    return [lookup, *([norm(model, "embedding_norm", (tokens, model.hidden, element_bytes))] if model.embedding_norm else [])]


def head(model: Architecture, *, batch: int, seq: int, element_bytes: int, owns_table: bool = True) -> list[BlockOp]:
    """Final norm, projection to the vocabulary, and the loss, whose softmax is kept in fp32.

    A head that does not own its table uses the table of the embedding, which holds and counts the parameters.
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
    return [norm(model, "final_norm", (tokens, model.hidden, element_bytes)), logits, loss]


def biased(model: Architecture, name: str) -> bool:
    """Whether a linear layer has a bias."""
    return model.bias if isinstance(model.bias, bool) else name in BIASED[model.bias]


def _norm_parameters(model: Architecture, width: int) -> int:
    """Parameters of a norm over `width` channels."""
    return width * {"none": 0, "weight": 1, "all": 2 if model.norm == "layernorm" else 1}[model.norm_parameters]


def norm(model: Architecture, name: str, shape: tuple[int, int, int]) -> BlockOp:
    """A norm over the channels of the residual stream, or of a latent."""
    parameters = _norm_parameters(model, shape[1])
    return rowwise(name, model.norm, shape, Split.SEQUENCE, moved=(2, 3), saved=1, parameters=parameters)


def scores(model: Architecture, batch: int, seq: int, element_bytes: int, prefix: int, window: int) -> BlockOp:
    """Fused attention, which keeps queries, keys, values and one number per row.

    The window is that of the model, since ranks that exchange tokens for heads attend to more than `seq` tokens.
    """
    chunked = window > 0 and model.window_kind == "chunked"
    shape = (batch, seq, model.heads, model.kv_heads, model.head_dim, True, element_bytes)
    forward = Attention(*shape, prefix=prefix, window=window, chunked=chunked, value_dim=model.value_head_dim)
    tokens, (depth, value_depth) = batch * seq, forward.widths
    width = (model.heads + model.kv_heads) * depth + model.kv_heads * value_depth
    return BlockOp(
        "attention",
        forward=forward,
        input_gradient=replace(forward, part=Part.INPUT_GRADIENT),
        split=Split.INNER,
        saved_bytes=tokens * (width * element_bytes + model.heads * FP32_BYTES),
    )


def linear(name: str, shape: tuple[int, int, int, int], split: Split, *, bias: bool) -> BlockOp:
    """A linear layer of shape (tokens, inputs, outputs, bytes per element): three GEMMs of equal flop; the input is kept."""
    tokens, inputs, outputs, element_bytes = shape
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
    kernel: str,
    shape: tuple[int, int, int],
    split: Split,
    *,
    moved: tuple[int, int],
    saved: int = 0,
    parameters: int = 0,
) -> BlockOp:
    """A memory-bound operator of shape (rows, columns, bytes per element); `moved` (forward, backward) and `saved` are numbers of
    elements per element of the shape.
    """
    rows, columns, element_bytes = shape
    forward_bytes, backward_bytes = (times * element_bytes for times in moved)
    return BlockOp(
        name,
        forward=Rowwise(kernel, rows, columns, element_bytes, forward_bytes),
        input_gradient=Rowwise(f"{kernel}_backward", rows, columns, element_bytes, backward_bytes),
        split=split,
        parameters=parameters,
        saved_bytes=saved * rows * columns * element_bytes,
        fused_weight_gradient=parameters > 0,
    )
