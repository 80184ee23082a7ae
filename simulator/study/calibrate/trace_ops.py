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

from .table import Probe

DTYPES = {
    "c10::BFloat16": "bf16", "BFloat16": "bf16", "c10::Half": "fp16", "Half": "fp16", "float": "fp32", "Float": "fp32",
    "double": "fp64", "Double": "fp64", "c10::Float8_e4m3fn": "fp8", "Float8_e4m3fn": "fp8", "c10::Float8_e5m2": "fp8",
    "Float8_e5m2": "fp8",
}  # fmt: skip
PRODUCTS = {
    "aten::mm": ("gemm", 0), "aten::addmm": ("gemm", 1), "aten::addmm_": ("gemm", 1), "aten::_scaled_mm": ("gemm", 0),
    "aten::bmm": ("bmm", 0), "aten::baddbmm": ("bmm", 1), "aten::baddbmm_": ("bmm", 1),
}  # fmt: skip
"""Our operator, and where the first operand stands; the second follows it."""
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
    "flash_attn::_flash_attn_forward": ("attention_fwd", 0, 5, "flash_attention"),
    "flash_attn::_flash_attn_backward": ("attention_bwd", 1, 11, "flash_attention"),
}
"""Our operator, where the queries stand, where `is_causal` does, and the library."""
TOKENS_FIRST = "flash_attn::"
"""Operators whose tensors are batch x sequence x heads x width, not batch x heads x sequence x width."""
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
ADAMS = ("aten::_fused_adamw_", "aten::_fused_adam_")
COLLECTIVES = (
    (r"all_?reduce", "all_reduce"), (r"all_?gather", "all_gather"), (r"reduce_?scatter", "reduce_scatter"),
    (r"all_?to_?all", "alltoall"), (r"broadcast", "broadcast"), (r"send|recv", "sendrecv"),
)  # fmt: skip
FAMILIES = (
    (r"flash.*bwd|fmha.*bwd|attention.*backward", "attention_bwd"), (r"flash|fmha|attention", "attention_fwd"),
    (r"gemm|cutlass|cublas|nvjet|xmma|wgmma|splitK", "gemm"), (r"rms_?norm", "rmsnorm"), (r"layer_?norm", "layernorm"),
    (r"softmax", "softmax"), (r"adam", "adam"), (r"rope|rotary", "rope"), (r"swiglu", "swiglu"), (r"embedding", "embedding"),
)  # fmt: skip
"""What the name of a kernel tells where no operator does; it has no shape then."""


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
        word = found[place] if isinstance(found, Sequence) and place < len(found) else ""
        return {"True": True, "False": False}.get(str(word))

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
    return isinstance(value, list) and all(isinstance(size, int) and not isinstance(size, bool) for size in value)


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
    if op.name in ATTENTIONS:
        return _attention(op, *ATTENTIONS[op.name])
    if op.name in ROWWISE:
        ours, place, variant = ROWWISE[op.name]
        return _rows(op, ours, place, variant)
    if op.name in POINTWISE:
        return _rows(op, "elementwise", 0, POINTWISE[op.name]) if op.dims(0) == op.dims(1) else None
    if op.name == "aten::embedding" and op.dims(0):
        vocabulary, width = op.dims(0)
        return Probe("embedding", op.dtype(0), math.prod(op.dims(1)), width, vocabulary)
    return _adam(op) if op.name in ADAMS else None


def _product(op: Op, ours: str, place: int) -> Probe | None:
    first, second = op.dims(place), op.dims(place + 1)
    if len(first) != len(second) or len(first) != (3 if ours == "bmm" else 2):
        return None
    variant = "fwd"
    if op.is_backward:
        turned = op.transposed(place)
        variant = {True: "wgrad", False: "dgrad", None: "bwd"}[turned]
    batch = first[0] if ours == "bmm" else 0
    return Probe(ours, op.dtype(place), first[-2], second[-1], first[-1], batch, variant=variant)


def _attention(op: Op, ours: str, place: int, causal: int, variant: str) -> Probe | None:
    queries, keys = op.dims(place), op.dims(place + 1)
    if len(queries) != 4 or len(keys) != 4:
        return None
    if op.name.startswith(TOKENS_FIRST):
        queries, keys = ([shape[0], shape[2], shape[1], shape[3]] for shape in (queries, keys))
    batch, heads, seq, width = queries
    if keys[2] != seq:
        return None
    return Probe(ours, op.dtype(place), 0, 0, 0, batch, seq, heads, keys[1], width, op.flag(causal), variant)


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


def collective_of(name: str) -> str:
    """The kind of a collective by its name in a trace; nothing if it is none that we know."""
    return next((kind for pattern, kind in COLLECTIVES if re.search(pattern, name, re.IGNORECASE)), "")


def family_of(kernel: str) -> str:
    """What a kernel is by its name alone; nothing if that does not tell."""
    return next((ours for pattern, ours in FAMILIES if re.search(pattern, kernel, re.IGNORECASE)), "")
