"""Fusion: the kernels that a framework launches for the operators of a model, with the bytes that each keeps for backward.

Blocks describe operators; a framework adds biases and dropout, and runs several operators as one kernel or one operator as
several. Merged operators no longer write and read the intermediate result; split operators do. Traffic follows from the
formulas, with intermediate results in fp32 where PyTorch uses fp32: no operator has a factor of its own. Flop never change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from ..errors import InvariantBroken
from ..frozen import replace
from ..kernels import FP32_BYTES, UNFUSED, Attention, Gemm, Kernel, Part, Rowwise, Split
from ..workload.blocks.dense import BlockOp
from ..workload.framework import Framework, Fusion
from .chunked_head import in_chunks
from .repeated_keys import with_repeated_keys
from .separate_projections import sums_of_input_gradients

Layered = tuple[int, BlockOp]
"""(layer within the stage or -1, operator)."""
Piece = tuple[str, float, float]
"""A kernel of a split operator: name, and elements moved in the job's format and in fp32, per element of the operator."""

Step = tuple[str, tuple[str, int], tuple[str, int] | None]
"""A step between the products of unfused attention: word, forward and backward kernel, each with bytes per score."""

BIAS, DROPOUT, RESIDUAL = "bias", "dropout", "add"
NORMS = ("rmsnorm", "layernorm")
ACTIVATIONS = ("silu", "gelu", "relu", "relu2")
GATED = "_gated"
MASK_BYTES = 1
"""Bytes of the dropout mask per element."""
FUSED_MULTIPLE = 4
"""Megatron-LM's fused softmax needs the number of matrices of scores, and of keys, to be a multiple of this."""

FUSED_BY_COMPILER = (
    "norm", "residual_norm", "rope", "activation", "bias", "bias_activation", "bias_dropout_add", "softmax", "cross_entropy"
)  # fmt: skip
"""The fields of `Fusion` that a compiler of pointwise operators and reductions sets."""

RMSNORM: tuple[Piece, ...] = (
    ("cast", 1, 1), ("square", 0, 2), ("mean", 0, 1), ("scale", 0, 2), ("cast", 1, 1), ("multiply", 2, 0)
)  # fmt: skip
RMSNORM_BACKWARD: tuple[Piece, ...] = (
    ("multiply", 2, 0), ("multiply", 3, 0), ("sum", 1, 0), ("cast", 1, 1), ("scale", 0, 2), ("multiply", 0, 3),
    ("sum", 0, 1), ("multiply", 0, 2), ("add", 0, 3), ("cast", 1, 1),
)  # fmt: skip
"""RMSNorm as in Llama's code: x in fp32 over the root of its mean square, cast back, times the weight; and the kernels that
autograd derives for the backward pass."""
LAYERNORM: tuple[Piece, ...] = (("layernorm", 2, 0),)
LAYERNORM_BACKWARD: tuple[Piece, ...] = (("layernorm_backward", 3, 0), ("sum", 2, 0))
"""Layer norm of PyTorch: one kernel forward; backward a separate kernel sums the gradients of the weights."""
ROPE: tuple[Piece, ...] = (("negate", 1, 0), ("concatenate", 2, 0), ("multiply", 2, 0), ("multiply", 2, 0), ("add", 3, 0))
"""x cos + rotated(x) sin, where the rotated half is negated and joined to the other half; the backward pass moves as much."""
LOSS: tuple[Piece, ...] = (
    ("cast", 1, 1), ("max", 0, 1), ("subtract", 0, 2), ("exponential", 0, 2), ("sum", 0, 1), ("divide", 0, 2)
)  # fmt: skip
LOSS_BACKWARD: tuple[Piece, ...] = (("scale", 0, 2), ("cast", 1, 1))
"""The loss over a divided vocabulary as in Megatron-LM."""
LOSS_OPERATOR = "cross_entropy"
METRICS: dict[str, tuple[Piece, ...]] = {
    "loss": (("softmax", 2, 0), ("cast", 1, 1)),
    "fused_loss": ((LOSS_OPERATOR, 1, 0),),
    "accuracy": (("max", 1, 0), ("max", 1, 0), ("max", 1, 0)),
    "perplexity": (("subtract", 2, 0), ("exponential", 2, 0), ("sum", 1, 0)),
}
"""Metric of a microbatch -> its kernels on logits. `loss`: cross_entropy_loss asks for a log-softmax in the format of the logits,
and autocast casts the result for nll_loss, which reads one element of a row (aten/src/ATen/native/LossNLL.cpp @0321fa7 and
autocast_mode.cpp, pytorch/pytorch). The others: AccPerplex and LossWithTypeId in internlm/model/metrics.py, InternLM/InternEvo
@c628a8c; accuracy takes the largest logit of a token twice, and then its place."""
AFTER_BACKWARD = ("loss",)
"""Metrics that are computed after the backward pass of a microbatch (`_train_microbatch` in composer/trainer/trainer.py,
mosaicml/composer @c14b8d0), not before it."""
PIECES: dict[str, tuple[str, tuple[Piece, ...], tuple[Piece, ...]]] = {
    "rmsnorm": ("norm", RMSNORM, RMSNORM_BACKWARD),
    "layernorm": ("norm", LAYERNORM, LAYERNORM_BACKWARD),
    "rope": ("rope", ROPE, ROPE),
    LOSS_OPERATOR: ("cross_entropy", LOSS, LOSS_BACKWARD),
}
"""Operator -> the field of `Fusion` that keeps the operator whole, and the forward and backward kernels of a split operator."""
PERMUTE, UNPERMUTE = "permute", "unpermute"
PERMUTATIONS: dict[str, tuple[tuple[Piece, ...], tuple[Piece, ...]]] = {
    PERMUTE: ((("gather", 2, 0),), (("scatter", 3, 0),)),
    UNPERMUTE: (
        (("zero", 1, 0), ("scatter", 2, 0), ("multiply", 2, 0), ("sum", 1, 0)),
        (("multiply", 2, 0), ("multiply", 3, 0), ("sum", 1, 0), ("gather", 2, 0)),
    ),
}
"""Permutation of tokens -> its forward and backward kernels in PyTorch, as in permute and unpermute of
megatron/core/transformer/moe/moe_utils.py, NVIDIA/Megatron-LM core_v0.8.0. Backward, rows of a token are added up in place."""


def framework_kernels(
    ops: Sequence[Layered], framework: Framework, tp: int = 1, *, chunked: bool = False, dtype: str = "bf16"
) -> list[Layered]:
    """The kernels of a framework for operators in forward order; a compiler fuses all pointwise operators and reductions.

    Operators are whole; `tp` is the number of ranks that will divide them. With `chunked`, the head runs in chunks. `dtype` is
    the format of the job.
    """
    fused = FUSED_BY_COMPILER if framework.compile else ("cross_entropy",) if chunked else ()
    if fused:
        framework = replace(framework, fusion=replace(framework.fusion, **dict.fromkeys(fused, True)))
    ops = list(in_chunks(ops)) if chunked else ops
    added = [(layer, new) for layer, op in ops for new in _with_bias_and_dropout(op, framework)]
    merged = _merged(added, framework.fusion)
    pieces = [(layer, op, piece) for layer, op in merged for piece in _pieces(op, framework, tp, dtype)]
    losses = [(layer, op) for layer, op in merged if _kind(op) == LOSS_OPERATOR]
    late = [(layer, metric) for layer, op in losses for metric in _metrics(op, framework, late=True)]
    own = [(layer, replace(piece, listed=True, makes=op.makes) if op.listed else piece) for layer, op, piece in pieces]
    return [*reversed(late), *own]  # the backward pass runs operators from the last to the first


def _with_bias_and_dropout(op: BlockOp, framework: Framework) -> Iterator[BlockOp]:
    """An operator with its bias and its dropout, which are not part of blocks."""
    kernel = op.forward
    dropped = framework.dropout and isinstance(kernel, Rowwise)
    if dropped and _kind(op) == RESIDUAL:
        yield _dropout(op.name, _rowwise(kernel))
    yield op
    if isinstance(kernel, Gemm) and op.parameters > op.matmul_parameters > 0 and not framework.fusion.bias:
        whole = Rowwise(BIAS, kernel.m * kernel.batch, kernel.n, int(kernel.element_bytes), 2 * kernel.element_bytes)
        gradient = replace(whole, op="bias_backward", bytes_per_element=kernel.element_bytes)
        split = Split.INNER if op.split is Split.COLUMN else Split.SEQUENCE
        bias = BlockOp(f"{op.name}_bias", whole, split, weight_gradient=gradient, listed=op.listed)
        yield replace(bias, expert=op.expert)
    if dropped and op.split is Split.LOOKUP:
        yield _dropout(op.name, _rowwise(kernel))


def _dropout(name: str, beside: Rowwise, split: Split = Split.SEQUENCE) -> BlockOp:
    """Dropout of the result of an operator: the mask is written forward, kept, and read backward."""
    moved = 2 * beside.element_bytes + MASK_BYTES
    kernel = replace(beside, op=DROPOUT, bytes_per_element=moved)
    backward = replace(kernel, op="dropout_backward")
    return BlockOp(f"{name}_dropout", kernel, split, backward, saved_bytes=kernel.rows * kernel.columns * MASK_BYTES)


def _merged(ops: Sequence[Layered], fused: Fusion) -> list[Layered]:
    """Operators, each merged with the preceding operators that the framework runs in the same kernel."""
    out: list[Layered] = []
    for layer, op in ops:
        name, absorbed = _kind(op), set[str]()
        if name == RESIDUAL and fused.bias_dropout_add:
            absorbed = {BIAS, DROPOUT}
        elif name.removesuffix(GATED) in ACTIVATIONS and fused.bias_activation:
            absorbed = {BIAS}
        for i in range(len(out) - 1, -1, -1):
            reduced = out[i][1].split is Split.SUM and op.split is not Split.SUM  # a reduction lies between the two
            if _kind(out[i][1]) not in absorbed or reduced:
                break
            left, op = _absorbed(out[i][1], op)
            out[i] = (out[i][0], left)
        if name in NORMS and fused.residual_norm and fused.norm and out and _sums(out[-1][1]):
            op = _joined(out.pop()[1], op)
        out.append((layer, op))
    return out


def _kind(op: BlockOp) -> str:
    return op.forward.op if isinstance(op.forward, Rowwise) else ""


def _sums(op: BlockOp) -> bool:
    """Whether an operator ends in a residual sum, with or without dropout."""
    backward = op.input_gradient
    return op.forward is not None and isinstance(backward, Rowwise) and backward.op == f"{RESIDUAL}_backward"


def _absorbed(first: BlockOp, then: BlockOp) -> tuple[BlockOp, BlockOp]:
    """The rest of an operator (its backward pass) whose forward pass the next operator includes, and the next operator."""
    early, late = _rowwise(first.forward), _rowwise(then.forward)
    beyond = (early.bytes_per_element - 2 * early.element_bytes) * early.columns / late.columns
    op = DROPOUT if DROPOUT in (early.op, late.op) else late.op
    kernel = replace(late, op=op, bytes_per_element=late.bytes_per_element + beyond)
    left = replace(first, forward=None, saved_bytes=0)
    return left, replace(then, forward=kernel, saved_bytes=then.saved_bytes + first.saved_bytes)


def _joined(add: BlockOp, norm: BlockOp) -> BlockOp:
    """A norm with a fused residual sum: the forward pass writes but does not read the sum, the backward pass does neither."""
    total, scaled = _rowwise(add.forward), _rowwise(norm.forward)
    passed, returned = _rowwise(add.input_gradient), _rowwise(norm.input_gradient)
    width = scaled.element_bytes
    return replace(
        norm,
        name=f"add_{norm.name}",
        forward=replace(scaled, bytes_per_element=scaled.bytes_per_element + total.bytes_per_element - width),
        input_gradient=replace(returned, bytes_per_element=returned.bytes_per_element + passed.bytes_per_element - 2 * width),
        saved_bytes=norm.saved_bytes + add.saved_bytes,
    )


def _rowwise(kernel: Kernel | None) -> Rowwise:
    if not isinstance(kernel, Rowwise):
        raise InvariantBroken(f"{kernel} is not an operator on rows")
    return kernel


def _pieces(op: BlockOp, framework: Framework, tp: int, dtype: str) -> list[BlockOp]:
    """The kernels that a framework runs for an operator."""
    kernel, kind = op.forward, _kind(op)
    if isinstance(kernel, Attention) and framework.repeated_keys and kernel.kv_heads < kernel.heads:
        *copies, whole = with_repeated_keys(op, kernel)
        return [*copies, *_pieces(whole, framework, tp, dtype)]
    if isinstance(kernel, Gemm):
        return [*sums_of_input_gradients(op, kernel, framework), op]
    if isinstance(kernel, Attention) and framework.attention == UNFUSED:
        return _attention(op, kernel, framework, tp, dtype)
    if op.name in PERMUTATIONS and not framework.fusion.permutation:
        return _permuted(op)
    return _of_logits(op, framework) if kind == LOSS_OPERATOR else _whole_or_split(op, framework)


def _whole_or_split(op: BlockOp, framework: Framework) -> list[BlockOp]:
    """An operator on rows as one kernel, or as those of PyTorch if the framework does not fuse them."""
    kind = _kind(op)
    if kind in NORMS and framework.fp32_norms and _rowwise(op.forward).element_bytes < FP32_BYTES:
        return _norm_of_fp32(op)
    apart = PIECES.get(kind)
    if kind.endswith(GATED):
        gate, multiply = kind.removesuffix(GATED), ("multiply", 3, 0)
        apart = "activation", ((gate, 2, 0), multiply), (multiply, multiply, (f"{gate}_backward", 3, 0))
    return [op] if apart is None or getattr(framework.fusion, apart[0]) else _split(op, apart[1], apart[2])


def _norm_of_fp32(op: BlockOp) -> list[BlockOp]:
    """A norm after a cast of its input to fp32, which it keeps unless both are repeated; its gradient in fp32 is cast back."""
    whole, back = _rowwise(op.forward), _rowwise(op.input_gradient)
    wider = FP32_BYTES - whole.element_bytes
    cast = replace(whole, op="cast", bytes_per_element=whole.element_bytes + FP32_BYTES)
    norm = replace(
        op,
        forward=replace(whole, bytes_per_element=whole.bytes_per_element + wider),
        input_gradient=replace(back, bytes_per_element=back.bytes_per_element + 2 * wider),
        saved_bytes=op.saved_bytes if op.listed else op.saved_bytes * FP32_BYTES // int(whole.element_bytes),
    )
    return [BlockOp(f"{op.name} cast", cast, op.split, cast), norm]


def _permuted(op: BlockOp) -> list[BlockOp]:
    """The kernels of a permutation of tokens in PyTorch. Gradients of the router's weights need the rows that these multiply."""
    whole = _rowwise(op.forward)
    rows_bytes = whole.rows * whole.columns * int(whole.element_bytes) if op.name == UNPERMUTE else 0
    return _split(replace(op, saved_bytes=op.saved_bytes + rows_bytes), *PERMUTATIONS[op.name])


def _of_logits(loss: BlockOp, framework: Framework) -> list[BlockOp]:
    """The kernels of a loss with its metrics. A cast of the logits to fp32 may precede them, which then read and write fp32."""
    whole = _rowwise(loss.forward)
    if not framework.fp32_logits or whole.element_bytes == FP32_BYTES:
        return [*_whole_or_split(loss, framework), *_metrics(loss, framework, late=False)]
    cast = replace(whole, op="cast", bytes_per_element=whole.element_bytes + FP32_BYTES)
    wide = replace(loss, forward=_in_fp32(whole), input_gradient=loss.input_gradient and _in_fp32(_rowwise(loss.input_gradient)))
    casts = BlockOp(f"wide_logits of {loss.name}", cast, Split.INNER, cast)
    return [casts, *_whole_or_split(wide, framework), *_metrics(wide, framework, late=False)]


def _in_fp32(kernel: Rowwise) -> Rowwise:
    """A kernel of the loss, which moves one element in the format of the logits and one in fp32, on logits in fp32."""
    wider_bytes = FP32_BYTES - kernel.element_bytes
    return replace(kernel, element_bytes=FP32_BYTES, bytes_per_element=kernel.bytes_per_element + wider_bytes)


def _metrics(loss: BlockOp, framework: Framework, *, late: bool) -> Iterator[BlockOp]:
    """The kernels of the metrics of a framework that follow the backward pass (`late`), or the loss. They keep nothing."""
    whole = _rowwise(loss.forward)
    width = FP32_BYTES if framework.fp32_logits else whole.element_bytes
    for number, metric in enumerate(framework.metrics):
        for i, (name, narrow, wide) in enumerate(METRICS[metric] if (metric in AFTER_BACKWARD) is late else ()):
            if name != "cast" or width < FP32_BYTES:
                kernel = replace(whole, op=name, element_bytes=width, bytes_per_element=narrow * width + wide * FP32_BYTES)
                called = f"metric {number} of {loss.name} {i} {name}"
                yield BlockOp(called, None, Split.INNER, kernel) if late else BlockOp(called, kernel, Split.INNER)


def _split(op: BlockOp, forward: Sequence[Piece], backward: Sequence[Piece]) -> list[BlockOp]:
    """The kernels of a split operator on rows: the first owns the parameters, the last forward kernel the bytes for backward.

    The first sum of the backward pass runs over tokens and adds to the gradients of the operator's parameters. Nothing in fp32 is
    cast to fp32.
    """
    whole, inner = _rowwise(op.forward), Split.INNER if op.split is Split.LOSS else op.split
    forward, backward = (
        [piece for piece in pieces if piece[0] != "cast" or whole.element_bytes < FP32_BYTES] for pieces in (forward, backward)
    )

    def kernel(piece: Piece) -> Rowwise:
        return replace(whole, op=piece[0], bytes_per_element=piece[1] * whole.element_bytes + piece[2] * FP32_BYTES)

    made = partial(BlockOp, split=inner, expert=op.expert)
    there = [made(f"{op.name} {i} {piece[0]}", kernel(piece)) for i, piece in enumerate(forward)]
    back = [made(f"{op.name} {i} {piece[0]}", None, input_gradient=kernel(piece)) for i, piece in enumerate(backward)]
    there[0] = replace(there[0], parameters=op.parameters, whole_parameters=op.whole_parameters)
    there[-1] = replace(there[-1], split=op.split, saved_bytes=op.saved_bytes)
    if op.fused_weight_gradient:
        first = next(i for i, piece in enumerate(backward) if piece[0] == "sum")
        back[first] = replace(back[first], fused_weight_gradient=True)
    return [*there, *reversed(back)]


def _softmax_in_fp32(width: int) -> list[Step]:
    """Megatron-LM's softmax where its own kernel cannot run."""
    cast, moved = ("cast", width + FP32_BYTES), 2 * FP32_BYTES
    steps: list[Step] = [
        ("wide", cast, cast),
        ("scale", ("scale", moved), ("scale", moved)),
        ("mask", ("mask", moved), ("mask_backward", moved)),
        ("softmax", ("softmax", moved), ("softmax_backward", moved + FP32_BYTES)),
        ("narrow", cast, cast),
    ]
    return steps if width < FP32_BYTES else steps[1:-1]


def _softmax_apart(width: int, dtype: str) -> list[Step]:
    """The same with operators of PyTorch: scale and mask in the format of the job, softmax in fp32, and a cast back.

    Adding a mask has no backward kernel. With fp16 the kernels of softmax convert what they read and what they write back.
    """
    cast, both = ("cast", width + FP32_BYTES), 2 * FP32_BYTES
    first: list[Step] = [("scale", ("scale", 2 * width), ("scale", 2 * width)), ("mask", ("mask", 2 * width), None)]
    if dtype == "fp16":
        softmax: Step = "softmax", ("softmax", width + FP32_BYTES), ("softmax_backward", both + width)
        return [*first, softmax, ("narrow", cast, cast)]
    softmax = "softmax", ("softmax", both), ("softmax_backward", both + FP32_BYTES)
    return [*first, softmax] if width == FP32_BYTES else [*first, ("wide", cast, cast), softmax, ("narrow", cast, cast)]


def _attention(op: BlockOp, whole: Attention, framework: Framework, tp: int, dtype: str) -> list[BlockOp]:
    """Attention with scores in memory: two GEMMs forward, four backward, and mask, softmax and dropout between the GEMMs.

    Kept for backward are queries, keys and values, the probabilities, the probabilities after dropout, and the dropout mask.
    If mask and softmax are one kernel, it does not read scores that a causal mask hides, and writes whole rows; backward is one
    kernel of the same kind (megatron/fused_kernels/scaled_upper_triang_masked_softmax.h, NVIDIA/Megatron-LM). PyTorch's own
    backward multiplies gradient and result first, in a separate kernel (aten/src/ATen/native/cuda/SoftMax.cu).

    That kernel takes matrices of scores by fours. If the number of a rank's matrices of a microbatch (b a / tp), or of keys, is
    not a multiple of four, PyTorch casts the scores to fp32, scales, masks, normalises and casts back (is_kernel_available and
    forward_torch_softmax in megatron/model/fused_softmax.py, NVIDIA/Megatron-LM @35a3fa8, and its copy in
    bigscience-workshop/Megatron-DeepSpeed @541b967). Where mask and softmax are operators of PyTorch, they are those of Hugging
    Face's Llama (models/llama/modeling_llama.py, huggingface/transformers v4.33): softmax(scores, dtype=fp32), cast back.

    The GEMMs read heads where they are, one beside the other in the hidden state. If heads, or rows of scores, are no multiple of
    16 bytes, cuBLAS of 2022 takes no tensor cores for them: steps of BLOOM with heads of 108 took 1.34 to 1.44 times as long as
    with heads of 144. Later versions are assumed to do the same.
    """
    lines, width = whole.batch * whole.heads, whole.element_bytes
    seq, keys, (depth, value_depth) = whole.seq, whole.seq + whole.prefix, whole.widths
    # a causal part of a sequence counts its rows and its columns, as in fused attention
    counted = (seq + 2 * whole.prefix, keys) if whole.causal and whole.prefix else (1, 1)

    def gemm(m: int, n: int, k: int, part: Part = Part.INPUT_GRADIENT) -> Gemm:
        return Gemm(m, n, k, width, part, lines, counted=counted, aligned=whole.aligned)

    def rows(name: str, moved_bytes: float) -> Rowwise:
        return Rowwise(name, lines * seq, keys, width, round(moved_bytes))

    def step(name: str, forward: Kernel | None, backward: Kernel | None, saved: int = 0) -> BlockOp:
        return BlockOp(f"{op.name}_{name}", forward, Split.HEADS, backward, saved_bytes=saved)

    inputs = whole.batch * seq * ((whole.heads + whole.kv_heads) * depth + whole.kv_heads * value_depth) * width
    scores = lines * seq * keys * width
    seen = (whole.prefix + (seq + 1) / 2) / keys if whole.causal and framework.fusion.softmax else 1.0
    yields = [
        step("scores", gemm(seq, keys, depth, Part.FORWARD), gemm(seq, depth, keys), inputs),
        step("keys", None, gemm(keys, depth, seq)),
    ]
    fused = framework.fusion.softmax
    if fused and (framework.compile or not (lines // tp % FUSED_MULTIPLE or keys % FUSED_MULTIPLE)):
        yields += [step("softmax", rows("softmax", (1 + seen) * width), rows("softmax", (1 + 2 * seen) * width), scores)]
    else:
        kept = {"softmax": scores // width * FP32_BYTES, "narrow": 0 if framework.dropout else scores}
        yields += [
            step(word, rows(*forward), backward and rows(*backward), kept.get(word, 0))
            for word, forward, backward in (_softmax_in_fp32(width) if fused else _softmax_apart(width, dtype))
        ]
    if framework.dropout:
        dropped = _dropout(op.name, rows(DROPOUT, 2 * width), Split.HEADS)
        yields += [replace(dropped, saved_bytes=dropped.saved_bytes + scores)]
    return [
        *yields,
        step("context", gemm(seq, value_depth, keys, Part.FORWARD), gemm(seq, keys, value_depth)),
        step("values", None, gemm(keys, value_depth, seq)),
    ]
