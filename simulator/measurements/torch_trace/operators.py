"""Kernels of a table for the operators of a PyTorch trace, by their names and by the shapes that they were called with.

Some operators are made of others (a norm of products and sums, on some devices): of those the outermost counts. Matrix products
are found by the innermost, because the operators around them reshape. The places of arguments follow the schemas of
torch.ops.aten (2.13) and of flash-attn. Shapes are recorded if the profiler ran with record_shapes=True.

Where no operator of the trace is known, the names of GPU kernels tell operators and collectives. The names are from public
profiles of 2023 to 2026: of PyTorch, cuDNN, FlashAttention 2 and 3, xFormers, Transformer Engine, Apex, cuBLAS and CUTLASS, and
the kernels of PyTorch's symmetric memory.
"""

from __future__ import annotations

import math
import re

from ..attention_libraries import BY_PYTORCH
from ..kernel_words import Probe
from .events import FIRST, Op, is_shape

SHARED = "e8m0"
"""Part of the dtype of scales that are powers of two, one per 32 elements, which mark the MX formats of fp8 and nvfp4."""
OF_MX = {"fp8": "mxfp8", "nvfp4": "mxfp4"}
TRACE_GEMMS = {
    "aten::mm": ("gemm", 0), "aten::addmm": ("gemm", 1), "aten::addmm_": ("gemm", 1), "aten::_scaled_mm": ("gemm", 0),
    "aten::bmm": ("bmm", 0), "aten::baddbmm": ("bmm", 1), "aten::baddbmm_": ("bmm", 1),
}  # fmt: skip
"""Table operator of each PyTorch GEMM, and the place of the first operand; the second operand follows."""
KERNEL_ALONE = "fwd kernel"
"""Variant of a forward fp32 GEMM. The variant `fwd` alone would mean that an eager framework was timed with the kernel."""
TRACE_GROUPED_GEMMS = {"aten::_grouped_mm": 2, "aten::_scaled_grouped_mm": 4}
"""Place of the group ends among the arguments of a grouped GEMM; the operands come first."""
DECIMAL = re.compile(r"\d{1,18}")
SCALES = 2
"""Place of the scales of the first operand among the arguments of a scaled GEMM."""
_SDPA, _FA2, _FA3 = "aten::_scaled_dot_product_", "flash_attn::_flash_attn_", "flash_attn_3::"
TRACE_ATTENTIONS = {
    f"{_SDPA}flash_attention": ("attention_fwd", 0, 4, "flash_attention"),
    f"{_SDPA}flash_attention_backward": ("attention_bwd", 1, 11, "flash_attention"),
    f"{_SDPA}efficient_attention": ("attention_fwd", 0, 6, "mem_efficient"),
    f"{_SDPA}efficient_attention_backward": ("attention_bwd", 1, 11, "mem_efficient"),
    f"{_SDPA}cudnn_attention": ("attention_fwd", 0, 6, "cudnn"),
    f"{_SDPA}cudnn_attention_backward": ("attention_bwd", 1, 14, "cudnn"),
    f"{_SDPA}flash_attention_for_cpu": ("attention_fwd", 0, 4, "flash_attention"),
    f"{_SDPA}flash_attention_for_cpu_backward": ("attention_bwd", 1, 7, "flash_attention"),
    **dict.fromkeys((f"{_FA2}forward", f"{_FA2}varlen_forward"), ("attention_fwd", 0, FIRST, "flash_attention")),
    **dict.fromkeys((f"{_FA2}backward", f"{_FA2}varlen_backward"), ("attention_bwd", 1, FIRST, "flash_attention")),
    **dict.fromkeys((f"{_FA3}fwd", f"{_FA3}_flash_attn_forward"), ("attention_fwd", 0, FIRST, "fa3")),
    **dict.fromkeys((f"{_FA3}bwd", f"{_FA3}_flash_attn_backward"), ("attention_bwd", 1, FIRST, "fa3")),
}
"""Table operator of each PyTorch attention, the places of the queries and of `is_causal`, and the library."""
TOKENS_FIRST = "flash_attn"
"""Operators whose tensors are batch x sequence x heads x width, not batch x heads x sequence x width. Packed sequences have no
batch dimension."""
TRACE_ROWWISE = {
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
"""Table operator of each memory-bound PyTorch operator, the place of the tensor with its shape, and the variant."""
POINTWISE = {"aten::add": "add", "aten::add_": "add", "aten::mul": "mul", "aten::mul_": "mul"}
ADAMS = ("aten::_fused_adamw_", "aten::_fused_adam_")
COLLECTIVES = (
    (r"all_?reduce|cross_device_reduce", "all_reduce"), (r"all_?gather", "all_gather"),
    (r"reduce_?scatter", "reduce_scatter"), (r"all_?to_?all", "alltoall"), (r"broadcast", "broadcast"),
    (r"send|recv", "sendrecv"),
)  # fmt: skip
COLLECTIVE_KERNEL = re.compile(r"^(void )?(nccl|rccl)|multimem_|(one|two)_shot_all_?reduce|cross_device_reduce", re.IGNORECASE)
"""Names of kernels of NCCL and RCCL, and of libraries that access the memory of their peers: torch.ops.symm_mem, vLLM."""
COMPILED = re.compile(r"^triton_(poi|per|red|for)_")
"""Names of compiler-fused kernels. A name lists all fused operators, so it does not tell one operator."""
OPERATORS = (
    (r"rms_?norm", "rmsnorm"), (r"layer_?norm|\bln_(fwd|bwd)|GammaBeta|cuComputeGradInput", "layernorm"),
    (r"rope|rotary", "rope"), (r"flash|fmha|attention|sdpa|dot_do_o|convert_dq", "attention"),
    (r"gemm|cutlass|cublas|nvjet|xmma|wgmma|splitK", "gemm"), (r"cross_?entropy|nll_loss|log_?soft_?max", "cross_entropy"),
    (r"soft_?max", "softmax"), (r"adam", "adam"), (r"swiglu|silu_?(and_)?mul", "swiglu"), (r"embedding", "embedding"),
)  # fmt: skip
BACKWARD = re.compile(r"bwd|backward|bprop|cutlassB|grad|dot_do_o|convert_dq", re.IGNORECASE)
"""Names of backward kernels, with both kernels around attention's backward pass: sums of output and gradient, and the cast of
dq."""
ONE_WAY = ("gemm", "adam")
"""Operators whose kernel names do not show the direction."""


def is_composite(op: Op) -> bool:
    """Whether an operator represents all operators that it calls."""
    return op.name in TRACE_ATTENTIONS or op.name in TRACE_ROWWISE or op.name in ADAMS or op.name == "aten::embedding"


def known_operator(op: Op) -> tuple[Op, Probe] | None:
    """The operator of a kernel, as a row of a table: the outermost composite operator, otherwise the innermost known."""
    known = [(outer, probe) for outer in op.chain if (probe := probe_of(outer)) is not None]
    composite = [pair for pair in known if is_composite(pair[0])]
    return next(iter(composite[-1:] or known[:1]), None)


def probe_of(op: Op) -> Probe | None:
    """The row of a table for an operator, with its sizes; None if no operator matches, or shapes are not recorded."""
    if op.name in TRACE_GEMMS:
        return _gemm(op, *TRACE_GEMMS[op.name])
    if op.name in TRACE_GROUPED_GEMMS:
        return _grouped(op, TRACE_GROUPED_GEMMS[op.name])
    if op.name in TRACE_ATTENTIONS:
        return _attention(op, *TRACE_ATTENTIONS[op.name])
    if op.name in TRACE_ROWWISE:
        return _rows(op, *TRACE_ROWWISE[op.name])
    if op.name in POINTWISE and op.dims(0) == op.dims(1):
        return _rows(op, "elementwise", 0, POINTWISE[op.name])
    if op.name == "aten::embedding" and len(op.dims(0)) == 2:
        vocabulary, width = op.dims(0)
        return Probe("embedding", op.dtype(0), math.prod(op.dims(1)), width, vocabulary)
    return _adam(op) if op.name in ADAMS else None


def _gemm(op: Op, ours: str, place: int) -> Probe | None:
    first, second = op.dims(place), op.dims(place + 1)
    if len(first) != len(second) or len(first) != (3 if ours == "bmm" else 2):
        return None
    batch, dtype, k = first[0] if ours == "bmm" else 0, op.dtype(place), first[-1]
    variant = KERNEL_ALONE if dtype == "fp32" else "fwd"
    if op.is_backward:
        strides = op.argument("Input Strides", place)
        is_known = is_shape(strides) and len(strides) > 1
        # the gradient of a weight reads its first operand across the rows
        variant = "bwd" if not is_known else "dgrad" if strides[-1] == 1 else "wgrad"
    if dtype == "nvfp4":
        k *= 2  # the shape counts bytes, and two elements share a byte
    if SHARED in op.dtype(SCALES):
        dtype = OF_MX.get(dtype, dtype)
    return Probe(ours, dtype, first[-2], second[-1], k, batch, variant=variant)


def _grouped(op: Op, ends: int) -> Probe | None:
    """A grouped GEMM of tokens with one weight per group, or of pairs of groups. All groups are assumed to be of equal size."""
    first, second, groups = op.dims(0), op.dims(1), math.prod(op.dims(ends))
    split = {(2, 3): "m", (2, 2): "k", (3, 2): "n"}.get((len(first), len(second)))
    if len(op.dims(ends)) != 1 or not groups or split is None:
        return None
    sizes = {"m": first[-2], "n": second[-1], "k": first[-1]}
    sizes[split] = math.ceil(sizes[split] / groups)
    variant = "wgrad" if split != "m" else "dgrad" if op.is_backward else "fwd"
    return Probe("grouped_gemm", op.dtype(0), sizes["m"], sizes["n"], sizes["k"], groups, variant=variant)


def _attention(op: Op, ours: str, place: int, causal: int, variant: str) -> Probe | None:
    queries, keys = (_heads_first(op, op.dims(at)) for at in (place, place + 1))
    if len(queries) != 4 or len(keys) != 4 or keys[2] != queries[2]:
        return None
    batch, heads, seq, width = queries
    return Probe(ours, op.dtype(place), 0, 0, 0, batch, seq, heads, keys[1], width, op.flag(causal), f"{variant} {BY_PYTORCH}")


def _heads_first(op: Op, shape: list[int]) -> list[int]:
    """The shape of a tensor as batch x heads x sequence x width. Packed sequences form a batch if all are as long as the longest;
    their starts are the first one-dimensional tensor among the arguments, and the longest length is the first number."""
    if not op.name.startswith(TOKENS_FIRST):
        return shape
    if len(shape) == 3:
        starts = next((found for i in range(len(op.args.get("Input Dims", ()))) if len(found := op.dims(i)) == 1), [1])
        batch, longest = starts[0] - 1, next((int(value) for value in op.values if DECIMAL.fullmatch(value)), None)
        alike = batch > 0 and shape[0] % batch == 0 and (batch == 1 or longest == shape[0] // batch)
        shape = [batch, shape[0] // batch, *shape[1:]] if alike else []
    return [shape[0], shape[2], shape[1], shape[3]] if len(shape) == 4 else []


def _rows(op: Op, ours: str, place: int, variant: str) -> Probe | None:
    shape = op.dims(place)
    return Probe(ours, op.dtype(place), math.prod(shape[:-1]), shape[-1], variant=variant) if shape else None


def _adam(op: Op) -> Probe | None:
    """A fused Adam step over a list of tensors, whose shapes are in a list."""
    shapes = op.argument("Input Dims", 0)
    if not (isinstance(shapes, list) and shapes and all(map(is_shape, shapes))):
        return None
    # lists have no dtype of their own in a trace; the fused optimizer of fp32 training is what is modelled
    return Probe("adam", "fp32", 1, sum(math.prod(shape) for shape in shapes))


def collective_of(name: str) -> str:
    """The kind of a collective by its name in a trace; empty if it is unknown."""
    return next((kind for pattern, kind in COLLECTIVES if re.search(pattern, name, re.IGNORECASE)), "")


def operator_of(kernel: str) -> str:
    """The operator of a kernel by its name alone; empty if the name does not identify an operator."""
    if COMPILED.match(kernel):
        return ""
    op = next((op for pattern, op in OPERATORS if re.search(pattern, kernel, re.IGNORECASE)), "")
    if not op or op in ONE_WAY:
        return op
    back = BACKWARD.search(kernel) is not None
    return f"{op}_bwd" if back else "attention_fwd" if op == "attention" else op
