"""Which of our kernels an operator of a PyTorch trace is: by its name, and by the shapes that it was called with.

Some operators are made of others (a norm of products and sums, on some devices): of those the outermost counts. Products are
found by the innermost, for what stands around them reshapes. Where arguments stand follows the schemas of torch.ops.aten
(2.13) and of flash-attn; shapes are there if the profiler ran with record_shapes=True.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .kernel_words import BY_PYTORCH, Probe

DTYPES = {
    "c10::BFloat16": "bf16", "BFloat16": "bf16", "c10::Half": "fp16", "Half": "fp16", "float": "fp32", "Float": "fp32",
    "double": "fp64", "Double": "fp64", "c10::Float8_e4m3fn": "fp8", "Float8_e4m3fn": "fp8", "c10::Float8_e5m2": "fp8",
    "Float8_e5m2": "fp8", "c10::Float4_e2m1fn_x2": "nvfp4", "Float4_e2m1fn_x2": "nvfp4",
}  # fmt: skip
SHARED = "e8m0"
"""In the dtype of scales: powers of two, one for 32 elements, which makes of fp8 and nvfp4 the formats of MX."""
OF_MX = {"fp8": "mxfp8", "nvfp4": "mxfp4"}
PRODUCTS = {
    "aten::mm": ("gemm", 0), "aten::addmm": ("gemm", 1), "aten::addmm_": ("gemm", 1), "aten::_scaled_mm": ("gemm", 0),
    "aten::bmm": ("bmm", 0), "aten::baddbmm": ("bmm", 1), "aten::baddbmm_": ("bmm", 1),
}  # fmt: skip
"""Our operator, and where the first operand stands; the second follows it."""
KERNEL_ALONE = "fwd kernel"
"""The variant of a product forward in fp32. Where tables say `fwd` alone, an eager framework was timed with it."""
GROUPED = {"aten::_grouped_mm": 2, "aten::_scaled_grouped_mm": 4}
"""Where the ends of the groups stand; the operands are first."""
SCALES = 2
"""Where the scales of the first operand stand, in what is scaled."""
FIRST = -1
"""The first truth value among the arguments, wherever it stands: versions of flash-attn differ."""
_SDPA = "aten::_scaled_dot_product_"
ATTENTIONS = {
    f"{_SDPA}flash_attention": ("attention_fwd", 0, 4, "flash_attention"),
    f"{_SDPA}flash_attention_backward": ("attention_bwd", 1, 11, "flash_attention"),
    f"{_SDPA}efficient_attention": ("attention_fwd", 0, 6, "mem_efficient"),
    f"{_SDPA}efficient_attention_backward": ("attention_bwd", 1, 11, "mem_efficient"),
    f"{_SDPA}cudnn_attention": ("attention_fwd", 0, 6, "cudnn"),
    f"{_SDPA}cudnn_attention_backward": ("attention_bwd", 1, 14, "cudnn"),
    f"{_SDPA}flash_attention_for_cpu": ("attention_fwd", 0, 4, "flash_attention"),
    f"{_SDPA}flash_attention_for_cpu_backward": ("attention_bwd", 1, 7, "flash_attention"),
    "flash_attn::_flash_attn_forward": ("attention_fwd", 0, FIRST, "flash_attention"),
    "flash_attn::_flash_attn_backward": ("attention_bwd", 1, FIRST, "flash_attention"),
    "flash_attn::_flash_attn_varlen_forward": ("attention_fwd", 0, FIRST, "flash_attention"),
    "flash_attn::_flash_attn_varlen_backward": ("attention_bwd", 1, FIRST, "flash_attention"),
    "flash_attn_3::fwd": ("attention_fwd", 0, FIRST, "fa3"),
    "flash_attn_3::bwd": ("attention_bwd", 1, FIRST, "fa3"),
    "flash_attn_3::_flash_attn_forward": ("attention_fwd", 0, FIRST, "fa3"),
    "flash_attn_3::_flash_attn_backward": ("attention_bwd", 1, FIRST, "fa3"),
}
"""Our operator, where the queries stand, where `is_causal` does, and the library."""
TOKENS_FIRST = "flash_attn"
"""Operators whose tensors are batch x sequence x heads x width, not batch x heads x sequence x width; without a batch if the
sequences are packed."""
ROWWISE = {
    "aten::rms_norm": ("rmsnorm", 0, ""), "aten::_fused_rms_norm": ("rmsnorm", 0, ""),
    "aten::_fused_rms_norm_backward": ("rmsnorm_bwd", 1, ""), "aten::layer_norm": ("layernorm", 0, ""),
    "aten::native_layer_norm": ("layernorm", 0, ""), "aten::native_layer_norm_backward": ("layernorm_bwd", 1, ""),
    "aten::softmax": ("softmax", 0, ""), "aten::_softmax": ("softmax", 0, ""),
    "aten::_softmax_backward_data": ("softmax_bwd", 0, ""), "aten::cross_entropy_loss": ("cross_entropy", 0, ""),
    "aten::_log_softmax_backward_data": ("cross_entropy_bwd", 0, ""),
    "aten::embedding_dense_backward": ("embedding_bwd", 0, ""), "aten::silu": ("elementwise", 0, "silu"),
    "aten::silu_backward": ("elementwise_bwd", 0, "silu"), "aten::gelu": ("elementwise", 0, "gelu"),
    "aten::gelu_backward": ("elementwise_bwd", 0, "gelu"), "aten::native_dropout": ("elementwise", 0, "dropout"),
    "aten::dropout": ("elementwise", 0, "dropout"),
}  # fmt: skip
"""Our operator, where the tensor of its shape stands, and the variant."""
POINTWISE = {"aten::add": "add", "aten::add_": "add", "aten::mul": "mul", "aten::mul_": "mul"}
TRUTH = {"True": True, "False": False}
ADAMS = ("aten::_fused_adamw_", "aten::_fused_adam_")


MOST_DIMENSIONS, MOST_SIZE = 64, 2**62
"""Of a tensor, and of a dimension or a stride."""
DECIMAL = re.compile(r"\d{1,18}")


@dataclass(slots=True)
class Op:
    """An operator of the host in a trace; `parent` is the one that called it. Times in microseconds, as they stand there."""

    name: str
    start_us: float
    end_us: float
    args: Mapping[str, Any]
    parent: Op | None = None
    inner: list[Op] = field(default_factory=list)
    process: Any = None
    depth: int = 0
    """How many operators it lies in."""

    def dims(self, place: int) -> list[int]:
        """The shape of an argument; nothing for what is no tensor."""
        found = self.args.get("Input Dims")
        shape = found[place] if isinstance(found, Sequence) and place < len(found) else []
        return [int(size) for size in shape] if _is_shape(shape) else []

    def dtype(self, place: int) -> str:
        found = self.args.get("Input type")
        word = found[place] if isinstance(found, Sequence) and place < len(found) else ""
        return DTYPES.get(str(word), str(word).lower())

    def flag(self, place: int) -> bool | None:
        """A truth value among the arguments; None if the trace does not tell."""
        found = self.args.get("Concrete Inputs")
        words = list(map(str, found)) if isinstance(found, Sequence) else []
        if place == FIRST:
            return next((TRUTH[word] for word in words if word in TRUTH), None)
        return TRUTH.get(words[place]) if place < len(words) else None

    @property
    def first_count(self) -> int | None:
        """The first whole number among the arguments; None if the trace does not tell."""
        found = self.args.get("Concrete Inputs")
        return (
            next((int(word) for word in map(str, found) if DECIMAL.fullmatch(word)), None)
            if isinstance(found, Sequence)
            else None
        )

    def transposed(self, place: int) -> bool | None:
        """Whether a matrix is read across its rows; None if the trace does not tell."""
        found = self.args.get("Input Strides")
        strides = found[place] if isinstance(found, Sequence) and place < len(found) else []
        return strides[-1] != 1 if _is_shape(strides) and len(strides) > 1 else None

    @property
    def chain(self) -> list[Op]:
        """Itself, its caller, the caller of that ..."""
        found, op = [self], self.parent
        while op is not None:
            found.append(op)
            op = op.parent
        return found

    @property
    def is_backward(self) -> bool:
        return any("Backward" in op.name for op in self.chain)


def _is_shape(value: Any) -> bool:
    few = isinstance(value, list) and len(value) <= MOST_DIMENSIONS
    return few and all(type(size) is int and abs(size) <= MOST_SIZE for size in value)


def is_composite(op: Op) -> bool:
    """Whether an operator stands for all that it calls."""
    return op.name in ATTENTIONS or op.name in ROWWISE or op.name in ADAMS or op.name == "aten::embedding"


def found(op: Op) -> tuple[Op, Probe] | None:
    """The operator that a kernel was launched for, and what of ours it is: the outermost composite, else the innermost known."""
    known = [(outer, probe) for outer in op.chain if (probe := probe_of(outer)) is not None]
    composite = [pair for pair in known if is_composite(pair[0])]
    return next(iter(composite[-1:] or known[:1]), None)


def probe_of(op: Op) -> Probe | None:
    """An operator as a kernel of ours, with its sizes; None if it is none or its shapes are not recorded."""
    if op.name in PRODUCTS:
        return _product(op, *PRODUCTS[op.name])
    if op.name in GROUPED:
        return _grouped(op, GROUPED[op.name])
    if op.name in ATTENTIONS:
        return _attention(op, *ATTENTIONS[op.name])
    if op.name in ROWWISE:
        ours, place, variant = ROWWISE[op.name]
        return _rows(op, ours, place, variant)
    if op.name in POINTWISE:
        return _rows(op, "elementwise", 0, POINTWISE[op.name]) if op.dims(0) == op.dims(1) else None
    if op.name == "aten::embedding" and len(op.dims(0)) == 2:
        vocabulary, width = op.dims(0)
        return Probe("embedding", op.dtype(0), math.prod(op.dims(1)), width, vocabulary)
    return _adam(op) if op.name in ADAMS else None


def _product(op: Op, ours: str, place: int) -> Probe | None:
    first, second = op.dims(place), op.dims(place + 1)
    if len(first) != len(second) or len(first) != (3 if ours == "bmm" else 2):
        return None
    batch, dtype, k = first[0] if ours == "bmm" else 0, op.dtype(place), first[-1]
    variant = KERNEL_ALONE if dtype == "fp32" else "fwd"
    if op.is_backward:
        turned = op.transposed(place)
        variant = {True: "wgrad", False: "dgrad", None: "bwd"}[turned]
    if dtype == "nvfp4":
        k *= 2  # two elements share a byte, and those are counted
    if SHARED in op.dtype(SCALES):
        dtype = OF_MX.get(dtype, dtype)
    return Probe(ours, dtype, first[-2], second[-1], k, batch, variant=variant)


def _grouped(op: Op, ends: int) -> Probe | None:
    """Products of groups of tokens, each with its own weight, or of pairs of such groups; groups are taken to be alike."""
    first, second, groups = op.dims(0), op.dims(1), math.prod(op.dims(ends))
    if len(op.dims(ends)) != 1 or not groups or (len(first), len(second)) not in ((2, 3), (2, 2), (3, 2)):
        return None
    m, k, n = first[-2], first[-1], second[-1]
    variant = ("dgrad" if op.is_backward else "fwd") if len(second) == 3 else "wgrad"
    if len(second) == 3:
        m = math.ceil(m / groups)
    elif len(first) == 2:
        k = math.ceil(k / groups)
    else:
        n = math.ceil(n / groups)
    return Probe("grouped_gemm", op.dtype(0), m, n, k, groups, variant=variant)


def _attention(op: Op, ours: str, place: int, causal: int, variant: str) -> Probe | None:
    queries, keys = op.dims(place), op.dims(place + 1)
    if op.name.startswith(TOKENS_FIRST):
        queries, keys = _unpacked(op, queries), _unpacked(op, keys)
        queries, keys = ([shape[0], shape[2], shape[1], shape[3]] if len(shape) == 4 else [] for shape in (queries, keys))
    if len(queries) != 4 or len(keys) != 4:
        return None
    batch, heads, seq, width = queries
    if keys[2] != seq:
        return None
    return Probe(ours, op.dtype(place), 0, 0, 0, batch, seq, heads, keys[1], width, op.flag(causal), f"{variant} {BY_PYTORCH}")


def _unpacked(op: Op, shape: list[int]) -> list[int]:
    """The shape of packed sequences as that of a batch, if all are as long as the longest; the starts of those stand first among
    the tensors of one dimension, and their longest first among the numbers."""
    if len(shape) != 3:
        return shape
    starts = next((found for i in range(len(op.args.get("Input Dims", ()))) if len(found := op.dims(i)) == 1), [1])
    batch = starts[0] - 1
    alike = batch > 0 and shape[0] % batch == 0 and (batch == 1 or op.first_count == shape[0] // batch)
    return [batch, shape[0] // batch, *shape[1:]] if alike else []


def _rows(op: Op, ours: str, place: int, variant: str) -> Probe | None:
    shape = op.dims(place)
    return Probe(ours, op.dtype(place), math.prod(shape[:-1]), shape[-1], variant=variant) if shape else None


def _adam(op: Op) -> Probe | None:
    """A fused step over a list of tensors, whose shapes stand in a list."""
    recorded = op.args.get("Input Dims")
    shapes = recorded[0] if isinstance(recorded, list) and recorded else []
    if not (isinstance(shapes, list) and shapes and all(_is_shape(shape) for shape in shapes)):
        return None
    # lists have no dtype of their own in a trace; the fused optimizer of fp32 training is what is modelled
    return Probe("adam", "fp32", 1, sum(math.prod(shape) for shape in shapes))
