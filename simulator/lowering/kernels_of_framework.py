"""Fusion: a model's operators as the kernels that a framework launches for them, with the bytes that they keep for backward.

Blocks describe operators; a framework runs them with biases and dropout, several as one kernel or one as several. What is
merged no longer writes and reads what passes between; what is split does. Traffic follows from the formulas, with
intermediate results in fp32 where PyTorch has them so: no operator has a factor of its own. Flop never change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..errors import InvariantBroken
from ..kernels import Attention, Gemm, Kernel, Part, Rowwise, Split
from ..program.program import AnyOp, Body, Compute, Program, Purpose
from ..workload.blocks.dense import BlockOp
from ..workload.framework import UNFUSED, Framework, Fusion

Layered = tuple[int, BlockOp]
"""(layer within the stage or -1, operator)."""
Piece = tuple[str, float, float]
"""A kernel of an operator that is split: its name, and how many elements it moves in the job's format and in fp32."""

BIAS, DROPOUT, RESIDUAL = "bias", "dropout", "add"
NORMS = ("rmsnorm", "layernorm")
ACTIVATIONS = ("silu", "gelu", "relu")
GATED = "_gated"
MASK_BYTES = 1
"""Of an element that is dropped or kept."""
FP32_BYTES = 4

BY_COMPILER = (
    "norm", "residual_norm", "rope", "activation", "bias", "bias_activation", "bias_dropout_add", "softmax", "cross_entropy"
)  # fmt: skip
"""What a compiler of pointwise operators and reductions fuses."""

RMSNORM: tuple[Piece, ...] = (
    ("cast", 1, 1), ("square", 0, 2), ("mean", 0, 1), ("scale", 0, 2), ("cast", 1, 1), ("multiply", 2, 0)
)  # fmt: skip
RMSNORM_BACKWARD: tuple[Piece, ...] = (
    ("multiply", 2, 0), ("multiply", 3, 0), ("sum", 1, 0), ("cast", 1, 1), ("scale", 0, 2), ("multiply", 0, 3),
    ("sum", 0, 1), ("multiply", 0, 2), ("add", 0, 3), ("cast", 1, 1),
)  # fmt: skip
"""As Llama's code writes it: x in fp32 over the root of its mean square, cast back, times the weight; and what autograd
makes of that."""
LAYERNORM: tuple[Piece, ...] = (("layernorm", 2, 0),)
LAYERNORM_BACKWARD: tuple[Piece, ...] = (("layernorm_backward", 3, 0), ("sum", 2, 0))
"""PyTorch's own layer norm is one kernel forward, and sums the gradients of its weights apart."""
ROPE: tuple[Piece, ...] = (("negate", 1, 0), ("concatenate", 2, 0), ("multiply", 2, 0), ("multiply", 2, 0), ("add", 3, 0))
"""x cos + rotated(x) sin, the rotated half negated and joined to the other; backward moves as much."""
LOSS: tuple[Piece, ...] = (
    ("cast", 1, 1), ("max", 0, 1), ("subtract", 0, 2), ("exponential", 0, 2), ("sum", 0, 1), ("divide", 0, 2)
)  # fmt: skip
LOSS_BACKWARD: tuple[Piece, ...] = (("scale", 0, 2), ("cast", 1, 1))
"""As Megatron-LM writes the loss over a divided vocabulary."""
PIECES: dict[str, tuple[str, tuple[Piece, ...], tuple[Piece, ...]]] = {
    "rmsnorm": ("norm", RMSNORM, RMSNORM_BACKWARD),
    "layernorm": ("norm", LAYERNORM, LAYERNORM_BACKWARD),
    "rope": ("rope", ROPE, ROPE),
    "cross_entropy": ("cross_entropy", LOSS, LOSS_BACKWARD),
}
"""Operator -> the field of `Fusion` that keeps it whole, and its kernels forward and backward where it is not."""


def framework_kernels(ops: Sequence[Layered], framework: Framework) -> list[Layered]:
    """The operators in forward order as the framework's kernels; a compiler fuses all that is pointwise."""
    if framework.compile:
        framework = replace(framework, fusion=replace(framework.fusion, **dict.fromkeys(BY_COMPILER, True)))
    added = [(layer, new) for layer, op in ops for new in _with_bias_and_dropout(op, framework)]
    return [(layer, piece) for layer, op in _merged(added, framework.fusion) for piece in _pieces(op, framework)]


def _with_bias_and_dropout(op: BlockOp, framework: Framework) -> Iterator[BlockOp]:
    """An operator with its bias and its dropout, which blocks leave out."""
    kernel = op.forward
    dropped = framework.dropout and isinstance(kernel, Rowwise)
    if dropped and _kind(op) == RESIDUAL:
        yield _dropout(op.name, _rowwise(kernel))
    yield op
    if isinstance(kernel, Gemm) and op.parameters > op.matmul_parameters > 0 and not framework.fusion.bias:
        whole = Rowwise(BIAS, kernel.m, kernel.n, int(kernel.element_bytes), 2 * kernel.element_bytes)
        gradient = replace(whole, op="bias_backward", bytes_per_element=kernel.element_bytes)
        split = Split.INNER if op.split is Split.COLUMN else Split.SEQUENCE
        yield BlockOp(f"{op.name}_bias", whole, split, weight_gradient=gradient)
    if dropped and op.split is Split.LOOKUP:
        yield _dropout(op.name, _rowwise(kernel))


def _dropout(name: str, beside: Rowwise, split: Split = Split.SEQUENCE) -> BlockOp:
    """Dropout of what an operator yields: the mask is written forward, kept, and read backward."""
    moved = 2 * beside.element_bytes + MASK_BYTES
    kernel = replace(beside, op=DROPOUT, bytes_per_element=moved)
    backward = replace(kernel, op="dropout_backward")
    return BlockOp(f"{name}_dropout", kernel, split, backward, saved_bytes=kernel.rows * kernel.columns * MASK_BYTES)


def _merged(ops: Sequence[Layered], fused: Fusion) -> list[Layered]:
    """Operators with those before them that the framework runs in the same kernel."""
    out: list[Layered] = []
    for layer, op in ops:
        name, absorbed = _kind(op), set[str]()
        if name == RESIDUAL and fused.bias_dropout_add:
            absorbed = {BIAS, DROPOUT}
        elif name.removesuffix(GATED) in ACTIVATIONS and fused.bias_activation:
            absorbed = {BIAS}
        for i in range(len(out) - 1, -1, -1):
            if _kind(out[i][1]) not in absorbed:
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
    """Whether an operator ends in a residual sum, with dropout or without."""
    backward = op.input_gradient
    return op.forward is not None and isinstance(backward, Rowwise) and backward.op == f"{RESIDUAL}_backward"


def _absorbed(first: BlockOp, then: BlockOp) -> tuple[BlockOp, BlockOp]:
    """What is left of an operator (its backward pass) whose forward pass the next one does on the way, and that one."""
    early, late = _rowwise(first.forward), _rowwise(then.forward)
    beyond = (early.bytes_per_element - 2 * early.element_bytes) * early.columns / late.columns
    op = DROPOUT if DROPOUT in (early.op, late.op) else late.op
    kernel = replace(late, op=op, bytes_per_element=late.bytes_per_element + beyond)
    left = replace(first, forward=None, saved_bytes=0)
    return left, replace(then, forward=kernel, saved_bytes=then.saved_bytes + first.saved_bytes)


def _joined(add: BlockOp, norm: BlockOp) -> BlockOp:
    """A norm that sums what it normalises: forward the sum is written but not read again, backward it is neither."""
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
        raise InvariantBroken(f"{kernel} is no operator on rows")
    return kernel


def _pieces(op: BlockOp, framework: Framework) -> list[BlockOp]:
    """An operator as the kernels that it runs as."""
    kernel, kind = op.forward, _kind(op)
    if isinstance(kernel, Attention) and framework.attention == UNFUSED:
        return _attention(op, kernel, framework)
    apart = PIECES.get(kind)
    if kind.endswith(GATED):
        gate, multiply = kind.removesuffix(GATED), ("multiply", 3, 0)
        apart = "activation", ((gate, 2, 0), multiply), (multiply, multiply, (f"{gate}_backward", 3, 0))
    return [op] if apart is None or getattr(framework.fusion, apart[0]) else _split(op, apart[1], apart[2])


def _split(op: BlockOp, forward: Sequence[Piece], backward: Sequence[Piece]) -> list[BlockOp]:
    """The pieces of an operator on rows: the first owns its parameters, the last forward one what it keeps.

    The first sum of the backward pass is that over tokens, which adds to the gradients of its parameters.
    """
    whole, inner = _rowwise(op.forward), Split.INNER if op.split is Split.LOSS else op.split

    def kernel(piece: Piece) -> Rowwise:
        return replace(whole, op=piece[0], bytes_per_element=piece[1] * whole.element_bytes + piece[2] * FP32_BYTES)

    there = [BlockOp(f"{op.name} {i} {piece[0]}", kernel(piece), inner) for i, piece in enumerate(forward)]
    back = [BlockOp(f"{op.name} {i} {piece[0]}", None, inner, kernel(piece)) for i, piece in enumerate(backward)]
    there[0] = replace(there[0], parameters=op.parameters, whole_parameters=op.whole_parameters)
    there[-1] = replace(there[-1], split=op.split, saved_bytes=op.saved_bytes)
    if op.fused_weight_gradient:
        first = next(i for i, piece in enumerate(backward) if piece[0] == "sum")
        back[first] = replace(back[first], fused_weight_gradient=True)
    return [*there, *reversed(back)]


def _attention(op: BlockOp, whole: Attention, framework: Framework) -> list[BlockOp]:
    """Attention whose scores are written: two products forward, four backward, and between them mask, softmax and dropout.

    Kept are queries, keys and values, the probabilities, and what is left of them with the mask of the dropout.
    """
    lines, width = whole.batch * whole.heads, whole.element_bytes
    seq, keys, depth = whole.seq, whole.seq + whole.prefix, whole.head_dim

    def product(m: int, n: int, k: int, part: Part = Part.INPUT_GRADIENT) -> Gemm:
        return Gemm(m, n, k, width, part, lines)

    def rows(name: str, moved: int) -> Rowwise:
        return Rowwise(name, lines * seq, keys, width, moved * width)

    def step(name: str, forward: Kernel | None, backward: Kernel, saved: int = 0) -> BlockOp:
        return BlockOp(f"{op.name}_{name}", forward, Split.HEADS, backward, saved_bytes=saved)

    inputs = whole.batch * seq * (whole.heads + 2 * whole.kv_heads) * depth * width
    scores = lines * seq * keys * width
    yields = [
        step("scores", product(seq, keys, depth, Part.FORWARD), product(seq, depth, keys), inputs),
        step("keys", None, product(keys, depth, seq)),
    ]
    if not framework.fusion.softmax:
        yields += [step("mask", rows("mask", 2), rows("mask_backward", 2))]
    yields += [step("softmax", rows("softmax", 2), rows("softmax_backward", 3), scores)]
    if framework.dropout:
        dropped = _dropout(op.name, rows(DROPOUT, 2), Split.HEADS)
        yields += [replace(dropped, saved_bytes=dropped.saved_bytes + scores)]
    return [
        *yields,
        step("context", product(seq, depth, keys, Part.FORWARD), product(seq, keys, depth)),
        step("values", None, product(keys, depth, seq)),
    ]


def accumulate(program: Program, *, element_bytes: int, gradient_bytes: int) -> Program:
    """Every weight gradient read in the job's format and added, by a kernel of its own, to one in the gradients' format."""
    moved = element_bytes + 2 * gradient_bytes

    def added(body: Body) -> Iterator[AnyOp]:
        for op in body.ops:
            yield op
            if isinstance(op, Compute) and op.part is Part.WEIGHT_GRADIENT and isinstance(op.kernel, Gemm):
                kernel = Rowwise("add", op.kernel.m, op.kernel.n, gradient_bytes, moved)
                after = (op.name,) if op.detached else None
                yield replace(op, name=f"{op.name}.sum", purpose=Purpose.ACCUMULATE, kernel=kernel, after=after)

    return program.with_bodies(added)
