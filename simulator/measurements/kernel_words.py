"""Names of kernels in tables and the kernels of the workload for them: one reading for fits, validation, traces and reports.

A row names an operator, a format and sizes. The column `variant` has further distinctions: the part of training of a GEMM
(`acc=true` if the result is added to an fp32 gradient), the library of attention, or the elementwise operator. `gemm` is (m, k) x
(k, n), repeated `batch` times in `bmm` and for each group in `grouped_gemm`. Memory-bound operators have m rows of n columns, and
move the bytes that they move in a run; where eager PyTorch ran its operators one by one in fp32, the bytes of its kernels. Tables
end the name of a backward pass in `_bwd`, workloads in `_backward`; both are read. The backward pass of a GEMM is the two GEMMs
for the gradients of both operands, without accumulation. A row may have timed several kernels together. Some rows are no kernels
of a workload: launches, and copies to the host.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..costs.kernels.rowwise import BACKWARD, autograd, backward_name, is_one_by_one, traced_passes
from ..errors import ALIKE, UserError, nearest, shown
from ..kernels import Attention, Experts, Gemm, Kernel, Part, Rowwise
from ..workload.optimizer import Optimizer
from .attention_libraries import BY_PYTORCH, PYTORCH_ATTENTION

WIDTH = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "fp8_block": 1, "mxfp8": 1, "nvfp4": 0.5625, "mxfp4": 0.53125}
"""Bytes per element of each format. Four-bit formats include the scale byte of each 16 or 32 elements."""
SINGLE = ("fp32", "tf32")
FORMAT_NAMES = {
    "bfloat16": "bf16", "half": "fp16", "float16": "fp16", "float": "fp32", "float32": "fp32", "double": "fp64", "e4m3": "fp8",
    "float8_e4m3fn": "fp8", "float8_e5m2": "fp8", "float4_e2m1fn_x2": "nvfp4",
}  # fmt: skip
"""Names of formats in PyTorch and other tools, in lower case, and the names in tables."""
TABLE_BACKWARD = "_bwd"
"""Suffix of backward passes in tables."""

GEMMS = {
    "gemm": Part.FORWARD, "gemm_dgrad": Part.INPUT_GRADIENT, "gemm_wgrad": Part.WEIGHT_GRADIENT, "bmm": Part.FORWARD,
    "grouped_gemm": Part.FORWARD,
}  # fmt: skip
"""GEMM operators of tables, and the part of training of each."""
GEMMS_BACKWARD = ("gemm_bwd", "bmm_bwd", "grouped_gemm_bwd")
"""Operators whose rows time the GEMMs of both gradients together."""
ATTENTIONS = {
    "attention": (Part.FORWARD,), "attention_fwd": (Part.FORWARD,), "attention_bwd": (Part.INPUT_GRADIENT,),
    "attention_fwd_bwd": (Part.FORWARD, Part.INPUT_GRADIENT),
}  # fmt: skip
"""Attention operators of tables, and the passes that were timed together."""
EXPERTS = "moe_ffn"
PASSES = {
    "add": (3, 3), "mul": (3, 3), "dropout": (2, 3), "residual": (3, 3), "embedding": (2, 3), "copy": (2, 2), "cast": (2, 2),
    "gelu": (2, 3), "silu": (2, 3), "relu": (2, 3), "silu_gated": (3, 5), "gelu_gated": (3, 5), "rope": (2, 2),
    "layernorm": (2, 3), "rmsnorm": (2, 3), "softmax": (2, 3), "cross_entropy": (2, 2), "adam": (7, 7), "quantise": (2, 2),
}  # fmt: skip
"""Elements that a memory-bound operator moves per element of its shape, forward and backward, if all have the same width. Adam
reads parameter, gradient and two moments, and writes all of these except the gradient."""
NARROWING = ("cast", "quantise")
"""Operators that read 16-bit elements and write the requested format, once each."""
FORWARD_ONLY = ("adam", "copy", *NARROWING)
"""Operators without a backward pass."""
OTHER_NAMES = {
    "elementwise": "add", "swiglu": "silu_gated", "geglu": "gelu_gated", "rms_norm": "rmsnorm", "layer_norm": "layernorm",
    "quantize": "quantise", "adamw": "adam", "memcpy": "copy",
}  # fmt: skip
"""Other names of memory-bound operators in tables, and the names that workloads use."""
KNOWN = (*GEMMS, *GEMMS_BACKWARD, *ATTENTIONS, EXPERTS, *PASSES, *OTHER_NAMES)

SIZES = ("m", "n", "k", "batch", "seq", "heads", "kv_heads", "head_dim")
"""Columns with sizes; a size of 0 is a size that the kernel does not have."""
TOP_K = re.compile(r"top[-_ ]?k *(?:[=:] *)?(\d{1,9})", re.IGNORECASE)
INNER_SECOND = re.compile(r"torch2\.1 (linear|bmm)$")
"""Variants of GEMM rows whose second size is the inner one: (m, n) x (n, k), as NeuSight's own script multiplies them
(profile_bmm: randn(B, M, N) by randn(B, N, K)). The times agree: on the same A100, rows of models take as long as the header
says, (m, k) x (k, n), and these rows as long with n and k exchanged; a batched GEMM with m or k of 64 takes twice its share of
time there, since half of a tile is empty, while n of 64 takes its share; and a GEMM of 960 x 960 x 32768 on an H100 is as slow as
64 tiles on 132 multiprocessors."""
GROUPED_ACTIVATIONS, GROUPED_WEIGHTS = re.compile(r"grad_act"), re.compile(r"grad_w")
"""Variants of grouped GEMM rows that time a gradient and carry the sizes of the forward pass, m tokens of a group by n by k
(MooreThreads/SimuMax@4dcaae5, configs/system): the gradient of the activations is (m, n) x (n, k), and that of the weights, which
is added up in fp32, (n, m) x (m, k)."""
VALUE_WIDTH = re.compile(r"v_head_dim=(\d{1,9})")
"""Variant of attention whose values have another width per head than its keys."""
VARIANTS = {Part.FORWARD: ("fwd",), Part.INPUT_GRADIENT: ("dgrad",), Part.WEIGHT_GRADIENT: ("wgrad", "wgrad acc=true")}
"""Variants of the GEMMs of each part of training. A weight gradient has two: a 16-bit result, and accumulation into fp32."""
ACCUMULATES = re.compile(r"wgrad.*acc=true|grad_w")
"""Variants of GEMMs that add their result to an fp32 gradient."""
OF_BACKWARD = re.compile(r"\b[dw]grad\b")
"""Variants of other GEMMs of the backward pass. They count as gradients of inputs, whatever their operands."""
IN_TURN = "tn fwd"
"""Variant of a forward GEMM in tables of inference libraries."""
TURNS = 6
"""Weights in the timing loop of their public collectors (ai-dynamo/aiconfigurator, collector/*/collect_gemm.py). The loop uses
five or six weights: more than the cache holds, unless the weights are small."""
EAGER = "eager"
"""Marks, in the variant, operators that frameworks compose from several operators where a library may have a single kernel."""
ELEMENTWISE = ("add", "mul", "relu", "gelu", "dropout", "silu")
"""Operators of workloads that a table calls elementwise and names in `variant`."""
TABLE_OP = {"silu_gated": "swiglu", "gelu_gated": "geglu"}
WRITTEN_OUT = ("swiglu", "rope", "cross_entropy", "quantise")
"""Operators of a model without a single PyTorch operator: their rows say `eager`."""
LABEL = "torch2.1"
"""Prefix of operator variants in some tables."""
OTHER_ELEMENTWISE = {"drop": "dropout", "div": "truediv"}
BINARY = re.compile(r"(add|mul|div|pow|sub|truediv|where)\b")
BINARY_PASSES, UNARY_PASSES = 3, 2
"""Elements that binary and unary elementwise operators unknown to workloads move per element of a row's shape. The backward pass
reads one gradient and writes another."""
WIDE_GELU = "gelu32"
"""Name of gelu in 32 bits, which is memory-bound; gelu in 16 bits is compute-bound."""
WITHIN = ("", "d2d", "dtod")
"""Variants of copies within a GPU's memory; other copies cross links."""
FLOP_PER_BYTE = 256
"""Approximate ratio of a GPU's peak to its memory bandwidth, for sorting kernels by their time."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A kernel to measure, described as in the columns of a table."""

    op: str
    dtype: str
    m: int = 0
    n: int = 0
    k: int = 0
    batch: int = 0
    seq: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    causal: bool | None = None
    variant: str = ""

    def __str__(self) -> str:
        sizes = [f"{name}={getattr(self, name)}" for name in SIZES if getattr(self, name)]
        causal = [] if self.causal is None else ["causal" if self.causal else "full"]
        return " ".join(filter(None, [self.op, self.variant, self.dtype, *sizes, *causal]))


# Operators and formats ----------------------------------------------------------------------------------------------------


def table_name(name: str) -> str:
    """A format or an operator in the spelling of tables: lower case, underscores, and `_bwd` for a backward pass."""
    plain = name.strip().lower().replace("-", "_")
    return plain.removesuffix(BACKWARD) + TABLE_BACKWARD if plain.endswith(BACKWARD) else plain


def like(word: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown word: the known word that is most like it, where one is."""
    near = nearest(word, known, cutoff=ALIKE)
    return f"; did you mean {near!r}?" if near else ""


def is_backward(op: str) -> bool:
    """Whether a table's operator name means the backward pass alone."""
    return op.endswith(TABLE_BACKWARD)


def workload_name(op: str) -> str:
    """The workload's name of a memory-bound operator, without the suffix of a backward pass."""
    base = op.removesuffix(TABLE_BACKWARD).removesuffix(BACKWARD)
    return OTHER_NAMES.get(base, base)


def element_bytes(dtype: str) -> int:
    """Bytes per element as a whole number, at least 1."""
    return max(1, int(WIDTH[dtype]))


def gemms_of(op: str, sizes: tuple[int, int, int], batch: int, width: float) -> tuple[Gemm, ...]:
    """The GEMMs, with elements of `width` bytes, of an operator with `sizes` m, n and k."""
    m, n, k = sizes
    if op in GEMMS_BACKWARD:
        return Gemm(m, k, n, width, batch=batch), Gemm(k, n, m, width, batch=batch)
    return (Gemm(m, n, k, width, GEMMS[op], batch),)


def attention_of(sizes: tuple[int, int, int, int, int], causal: bool, dtype: str, part: Part) -> Attention:
    """The attention kernel with `sizes` batch, sequence, heads, key heads and width of a head."""
    batch, seq, heads, kv_heads, head_dim = sizes
    if heads % kv_heads:
        raise UserError(f"{heads} heads cannot share {kv_heads} key heads evenly", hint="--kv-heads divides --heads")
    return Attention(batch, seq, heads, kv_heads, head_dim, causal, element_bytes(dtype), part)


def bytes_per_element(name: str, dtype: str, *, backward: bool = False) -> float:
    """Bytes that a memory-bound operator moves per element of its shape as one kernel in a run.

    Adam keeps its moments in fp32 in every format, and so are the gradients and weights that it updates. The probabilities of a
    loss are in fp32 too.
    """
    if backward and name in FORWARD_ONLY:
        raise UserError(f"{name} has no backward pass", hint=f"{name} alone")
    if name == "adam" and dtype not in SINGLE:
        return float(Optimizer().pieces(2, fused=True)[0].moved_bytes + WIDTH["fp32"])
    if name == "cross_entropy":
        return float(WIDTH[dtype] + WIDTH["fp32"])
    return WIDTH["bf16"] + WIDTH[dtype] if name in NARROWING else float(PASSES[name][backward] * WIDTH[dtype])


# From a kernel to rows --------------------------------------------------------------------------------------------------------


def probes_of(kernel: Kernel, dtype: str) -> list[Probe]:
    """The rows that measure a kernel of a workload. Attention has a row for every library of PyTorch."""
    if isinstance(kernel, Gemm):
        op, batch = ("bmm", kernel.batch) if kernel.batch > 1 else ("gemm", 0)
        return [Probe(op, dtype, kernel.m, kernel.n, kernel.k, batch, variant=word) for word in VARIANTS[kernel.part]]
    if isinstance(kernel, Attention):
        op = "attention_fwd" if kernel.part is Part.FORWARD else "attention_bwd"
        sizes = (kernel.batch, kernel.seq, kernel.heads, kernel.kv_heads, kernel.head_dim, kernel.causal)
        names = [] if kernel.prefix else [f"{name} {BY_PYTORCH}" for name in PYTORCH_ATTENTION]
        return [Probe(op, dtype, 0, 0, 0, *sizes, variant=name) for name in names]
    name, end = kernel.op.removesuffix(BACKWARD), TABLE_BACKWARD * kernel.op.endswith(BACKWARD)
    if name in ELEMENTWISE:
        # the gradients of an addition are passed on, not computed
        return [] if end and name == "add" else [Probe(f"elementwise{end}", dtype, kernel.rows, kernel.columns, variant=name)]
    table_op = TABLE_OP.get(name, name)
    return [Probe(f"{table_op}{end}", dtype, kernel.rows, kernel.columns, variant=EAGER * (table_op in WRITTEN_OUT))]


# From a row to kernels --------------------------------------------------------------------------------------------------------


def kernel_of(probe: Probe) -> Kernel | Experts | None:
    """The first kernel that a row timed; None if the row is no kernel of a workload, or incomplete."""
    return next(iter(kernels_of(probe)), None)


def kernels_of(probe: Probe) -> tuple[Kernel | Experts, ...]:
    """The kernels that a row timed together; empty if the row is no kernel of a workload, or incomplete."""
    try:
        return kernels_in(probe)
    except UserError:
        return ()


def kernels_in(probe: Probe) -> tuple[Kernel | Experts, ...]:
    """The kernels that a row timed together. Raises `UserError` with the reason if the row is no kernel of a workload."""
    if probe.dtype not in WIDTH:
        raise UserError(f"dtype: {shown(probe.dtype)} is not known{like(probe.dtype, WIDTH)}")
    if probe.op in GEMMS or probe.op in GEMMS_BACKWARD:
        return _gemms(probe)
    if probe.op in ATTENTIONS:
        return _attention(probe)
    return (_experts(probe) if probe.op == EXPERTS else rowwise_of(probe),)


def _needs(probe: Probe, *sizes: str) -> None:
    """Raises `UserError` for a row without a required size."""
    for name in sizes:
        if not getattr(probe, name):
            raise UserError(f"{name}: {shown('')} is not a count")


def _gemms(probe: Probe) -> tuple[Gemm, ...]:
    _needs(probe, "m", "n", "k")
    m, n, k, variant = probe.m, probe.n, probe.k, probe.variant.lower()
    if probe.op == "grouped_gemm" and GROUPED_WEIGHTS.search(variant):
        sizes = (n, k, m)
    elif INNER_SECOND.match(variant) or (probe.op == "grouped_gemm" and GROUPED_ACTIVATIONS.search(variant)):
        sizes = (m, k, n)
    else:
        sizes = (m, n, k)
    adds, back = ACCUMULATES.search(variant), OF_BACKWARD.search(variant)
    op = ("gemm_wgrad" if adds else "gemm_dgrad" if back else probe.op) if probe.op in GEMMS else probe.op
    return gemms_of(op, sizes, probe.batch or 1, element_bytes(probe.dtype))


def _attention(probe: Probe) -> tuple[Attention, ...]:
    _needs(probe, "batch", "seq", "heads", "head_dim")
    values = VALUE_WIDTH.search(probe.variant)
    head_dim = (probe.head_dim + int(values[1])) // 2 if values else probe.head_dim
    if probe.causal is None:
        raise UserError(f"causal: {shown('')} is neither 0 nor 1")
    sizes = (probe.batch, probe.seq, probe.heads, probe.kv_heads or probe.heads, head_dim)
    return tuple(attention_of(sizes, probe.causal, probe.dtype, part) for part in ATTENTIONS[probe.op])


def _experts(probe: Probe) -> Experts:
    top_k = TOP_K.search(probe.variant)
    if not top_k:
        raise UserError("variant: a mixture of experts needs its topk, such as topk8")
    _needs(probe, "m", "k", "n", "batch")
    if not 1 <= int(top_k[1]) <= probe.batch:
        raise UserError(f"variant: {shown(probe.variant)}, and there are {probe.batch} experts")
    return Experts(probe.m, probe.n, probe.k, probe.batch, int(top_k[1]), element_bytes(probe.dtype))


def rowwise_of(probe: Probe) -> Rowwise:
    """The memory-bound operator of a row with its bytes. Raises `UserError` if the row is no such operator."""
    name, backward = name_of(probe.op, probe.variant), is_backward(probe.op)
    if name not in PASSES and probe.op.removesuffix(TABLE_BACKWARD) != "elementwise":
        raise UserError(f"op: {shown(probe.op)} is not known{like(probe.op, KNOWN)}")
    if name == "copy" and "".join(probe.variant.lower().split()[:1]) not in WITHIN:
        raise UserError(f"op: {shown(probe.op)} as {shown(probe.variant)} is not a kernel of the workload")
    _needs(probe, "m", "n")
    width, one_by_one = WIDTH[probe.dtype], is_one_by_one(probe.dtype, probe.variant)
    if name in PASSES:
        moved = bytes_per_element(name, probe.dtype, backward=backward)
    else:
        moved = (BINARY_PASSES if BINARY.fullmatch(name) and not backward else UNARY_PASSES) * width
    known = f"{name}{BACKWARD}" if backward else WIDE_GELU if name == "gelu" and probe.dtype == "fp32" else name
    if one_by_one and backward:
        known, moved = autograd(name, width) or (backward_name(name), moved)
    elif one_by_one and (passes := traced_passes(name, probe.variant)) is not None:
        moved = passes * width
    return Rowwise(known, probe.m, probe.n, element_bytes(probe.dtype), moved)


def name_of(op: str, variant: str) -> str:
    """The workload's name of the memory-bound operator of a row, without the suffix of a backward pass."""
    base = op.removesuffix(TABLE_BACKWARD)
    words = variant.lower().removeprefix(LABEL).split() if base == "elementwise" else []
    name = workload_name(words[0] if words else base)
    return OTHER_ELEMENTWISE.get(name, name)


def turns_of(variant: str) -> int:
    """Number of second operands used in turn in the timing of a GEMM; 0 if the row does not state it."""
    return TURNS if variant.strip().lower() == IN_TURN else 0


def work(probe: Probe) -> float:
    """Work of a kernel in flop, or equally slow bytes: for sorting kernels, not for times."""
    kernel = kernel_of(probe)
    if kernel is None:
        return float(max(1, probe.m) * max(1, probe.n) * max(1, probe.k))
    return float(max(kernel.flop, FLOP_PER_BYTE * kernel.traffic_bytes))
