"""Names of formats and operators as tables and command lines write them, and the kernels and bytes that they stand for.

`gemm` is (m, k) x (k, n), `batch` times in `bmm` and for each group in `grouped_gemm`. Memory-bound operators have m rows of n
columns. Tables end the name of a backward pass in `_bwd`, workloads in `_backward`; both are read. The backward pass of a
matrix product is the two products that make the gradients of both operands, neither added to anything.
"""

from __future__ import annotations

from ..costs.kernels.rowwise import BACKWARD
from ..errors import UserError
from ..kernels import Attention, Gemm, Part
from ..lowering.passes.data_parallel import ADAM_BYTES

WIDTH = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "fp8_block": 1, "mxfp8": 1, "nvfp4": 0.5625, "mxfp4": 0.53125}
"""Bytes of an element of each format. Four-bit formats include the byte that scales 16 or 32 elements."""
SINGLE = ("fp32", "tf32")
FORMAT_NAMES = {
    "bfloat16": "bf16", "half": "fp16", "float16": "fp16", "float": "fp32", "float32": "fp32", "double": "fp64", "e4m3": "fp8",
    "float8_e4m3fn": "fp8", "float8_e5m2": "fp8", "float4_e2m1fn_x2": "nvfp4",
}  # fmt: skip
"""Formats as PyTorch and other tools name them, in lower case."""
TABLE_BACKWARD = "_bwd"
"""How tables end the name of a backward pass."""

GEMMS = {
    "gemm": Part.FORWARD, "gemm_dgrad": Part.INPUT_GRADIENT, "gemm_wgrad": Part.WEIGHT_GRADIENT, "bmm": Part.FORWARD,
    "grouped_gemm": Part.FORWARD,
}  # fmt: skip
"""Matrix products, and the part of training that each belongs to."""
GEMMS_BACKWARD = ("gemm_bwd", "bmm_bwd", "grouped_gemm_bwd")
"""The products of both gradients, timed together."""
ATTENTION_BOTH = "attention_fwd_bwd"
ATTENTIONS = {
    "attention": (Part.FORWARD,), "attention_fwd": (Part.FORWARD,), "attention_bwd": (Part.INPUT_GRADIENT,),
    ATTENTION_BOTH: (Part.FORWARD, Part.INPUT_GRADIENT),
}  # fmt: skip
"""Attention, and the passes that were timed together."""
EXPERTS = "moe_ffn"
PASSES = {
    "add": (3, 3), "mul": (3, 3), "dropout": (2, 3), "residual": (3, 3), "embedding": (2, 3), "copy": (2, 2), "cast": (2, 2),
    "gelu": (2, 3), "silu": (2, 3), "relu": (2, 3), "silu_gated": (3, 5), "gelu_gated": (3, 5), "rope": (2, 2),
    "layernorm": (2, 3), "rmsnorm": (2, 3), "softmax": (2, 3), "cross_entropy": (2, 2), "adam": (7, 7), "quantise": (2, 2),
}  # fmt: skip
"""Elements that a memory-bound operator moves per element of its shape, forward and backward, if all have one width. Adam reads
parameter, gradient and two moments, and writes all but the gradient."""
NARROWING = ("cast", "quantise")
"""Operators that read 16 bits and write the format that is asked for, once."""
FORWARD_ONLY = ("adam", "copy", *NARROWING)
"""Operators that have no backward pass."""
OTHER_NAMES = {
    "elementwise": "add", "swiglu": "silu_gated", "geglu": "gelu_gated", "rms_norm": "rmsnorm", "layer_norm": "layernorm",
    "quantize": "quantise", "adamw": "adam", "memcpy": "copy",
}  # fmt: skip
"""Memory-bound operators under names that workloads do not use."""
KNOWN = (*GEMMS, *GEMMS_BACKWARD, *ATTENTIONS, EXPERTS, *PASSES, *OTHER_NAMES)


def table_name(name: str) -> str:
    """A format or an operator as tables write it: lower case, underscores, and `_bwd` for a backward pass."""
    plain = name.strip().lower().replace("-", "_")
    return plain.removesuffix(BACKWARD) + TABLE_BACKWARD if plain.endswith(BACKWARD) else plain


def is_backward(op: str) -> bool:
    """Whether the table's name of an operator means its backward pass alone."""
    return op.endswith(TABLE_BACKWARD)


def workload_name(op: str) -> str:
    """The name that workloads use for a memory-bound operator, or for the operator whose backward pass it is."""
    base = op.removesuffix(TABLE_BACKWARD).removesuffix(BACKWARD)
    return OTHER_NAMES.get(base, base)


def element_bytes(dtype: str) -> int:
    """Whole bytes of an element, at least 1."""
    return max(1, int(WIDTH[dtype]))


def gemms_of(op: str, sizes: tuple[int, int, int], batch: int, width: float) -> tuple[Gemm, ...]:
    """The matrix products of elements of `width` bytes that an operator of `sizes` m, n and k stands for."""
    m, n, k = sizes
    if op in GEMMS_BACKWARD:
        return Gemm(m, k, n, width, batch=batch), Gemm(k, n, m, width, batch=batch)
    return (Gemm(m, n, k, width, GEMMS[op], batch),)


def attention_of(sizes: tuple[int, int, int, int, int], causal: bool, dtype: str, part: Part) -> Attention:
    """Attention of `sizes` batch, sequence, heads, key heads and width of a head."""
    batch, seq, heads, kv_heads, head_dim = sizes
    if heads % kv_heads:
        raise UserError(f"{heads} heads cannot share {kv_heads} key heads evenly", hint="--kv-heads divides --heads")
    return Attention(batch, seq, heads, kv_heads, head_dim, causal, element_bytes(dtype), part)


def bytes_per_element(name: str, dtype: str, *, backward: bool = False) -> float:
    """Bytes that a memory-bound operator moves per element of its shape, as one kernel and as it is in a run.

    Adam keeps its moments in fp32 in every format, and so are the gradients and the weights that it updates. The probabilities
    of a loss are in fp32 too.
    """
    if backward and name in FORWARD_ONLY:
        raise UserError(f"{name} has no backward pass", hint=f"{name} alone")
    if name == "adam" and dtype not in SINGLE:
        return float(ADAM_BYTES + WIDTH["fp32"])
    if name == "cross_entropy":
        return float(WIDTH[dtype] + WIDTH["fp32"])
    return WIDTH["bf16"] + WIDTH[dtype] if name in NARROWING else float(PASSES[name][backward] * WIDTH[dtype])
