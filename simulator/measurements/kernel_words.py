"""Measured kernels in the words of a table, and as kernels of the workload: one reading for fits, validation, traces and reports.

A row names an operator, a format, sizes, and in `variant` what else tells kernels apart: the part of training that a matrix
product belongs to (`acc=true` if it is added to an fp32 gradient), the library of attention, the elementwise operator. A row may
have timed several kernels together. Some rows are no kernels of a workload: launches, and copies to the host. Memory-bound
operators move the bytes that they move in a run; where eager PyTorch ran them one by one in fp32, the bytes of its kernels.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..costs.kernels.rowwise import BACKWARD, autograd, backward_name, is_one_by_one, traced_passes
from ..errors import UserError, shown
from ..kernels import Attention, Experts, Gemm, Kernel, Part, Rowwise
from .attention_libraries import BY_PYTORCH, PYTORCH_ATTENTION
from .operator_names import (
    ATTENTIONS,
    EXPERTS,
    FORWARD_ONLY,
    GEMMS,
    GEMMS_BACKWARD,
    PASSES,
    TABLE_BACKWARD,
    WIDTH,
    attention_of,
    bytes_per_element,
    element_bytes,
    gemms_of,
    is_backward,
    workload_name,
)

SIZES = ("m", "n", "k", "batch", "seq", "heads", "kv_heads", "head_dim")
"""The columns of sizes; a size of 0 is one that a kernel does not have."""
TOP_K = re.compile(r"top[-_ ]?k *(?:[=:] *)?(\d{1,9})", re.IGNORECASE)
INNER_SECOND = re.compile(r"torch2\.1 (linear|bmm)$")
"""Products of tables whose second size is the inner one: (m, n) x (n, k), as NeuSight's own script multiplies them
(profile_bmm: randn(B, M, N) by randn(B, N, K)). The times agree: on the same A100, rows of models take as long as the
header says, (m, k) x (k, n), and these as long with n and k exchanged; a batch of products of 64 in m or k takes twice its
share of time there, where a tile is half empty, and one of 64 in n its share; and a product of 960 x 960 x 32768 on an H100
is as slow as 64 tiles on 132 multiprocessors."""
VALUE_WIDTH = re.compile(r"v_head_dim=(\d{1,9})")
"""Heads whose values have another width than their keys."""
VARIANTS = {Part.FORWARD: ("fwd",), Part.INPUT_GRADIENT: ("dgrad",), Part.WEIGHT_GRADIENT: ("wgrad", "wgrad acc=true")}
"""How the products of a part of training are run: a weight gradient into 16 bits, and added to one in fp32."""
ACCUMULATES = re.compile(r"wgrad.*acc=true|grad_w")
IN_TURN = "tn fwd"
"""How tables of inference libraries call a product."""
TURNS = 6
"""Their public collectors (ai-dynamo/aiconfigurator, collector/*/collect_gemm.py) time it in a loop over so many weights, or
five: more than the cache holds, unless they are small."""
EAGER = "eager"
"""In the variant of what frameworks write out of several operators where a library may have one kernel."""
ELEMENTWISE = ("add", "mul", "relu", "gelu", "dropout", "silu")
"""Operators of workloads that a table calls elementwise, and names in `variant`."""
TABLE_OP = {"silu_gated": "swiglu", "gelu_gated": "geglu"}
WRITTEN_OUT = ("swiglu", "rope", "cross_entropy", "quantise")
"""Operators of a model for which PyTorch has no single one: their rows say `eager`."""
LABEL = "torch2.1"
"""How some tables begin the variant of an operator."""
OTHER_ELEMENTWISE = {"drop": "dropout", "div": "truediv"}
BINARY = re.compile(r"(add|mul|div|pow|sub|truediv|where)\b")
BINARY_PASSES, UNARY_PASSES = 3, 2
"""Over the elements of a row's shape, of an elementwise operator that workloads do not have. Backward it reads its gradient and
writes another."""
WIDE_GELU = "gelu32"
"""Gelu in 16 bits is bound by its arithmetic; in 32 bits it is not."""
WITHIN = ("", "d2d", "dtod")
"""Copies within a GPU's memory; others cross links."""
FLOP_PER_BYTE = 256
"""About the ratio of a GPU's peaks: orders kernels by their time."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A kernel to measure, in the words of a table."""

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


# From a kernel to rows --------------------------------------------------------------------------------------------------------


def probes_of(kernel: Kernel, dtype: str) -> list[Probe]:
    """The rows that measure a kernel of a workload: attention by every library of PyTorch."""
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
    """The kernel that a row timed, the first of two; None if it is none of a workload, or the row says too little."""
    return next(iter(kernels_of(probe)), None)


def kernels_of(probe: Probe) -> tuple[Kernel | Experts, ...]:
    """The kernels that a row timed together; none if it is none of a workload, or the row says too little."""
    try:
        return kernels_in(probe)
    except UserError:
        return ()


def kernels_in(probe: Probe) -> tuple[Kernel | Experts, ...]:
    """The kernels that a row timed together. Raises `UserError` with the reason if they are none of a workload."""
    if probe.dtype not in WIDTH:
        raise UserError(f"dtype: {shown(probe.dtype)} is not known")
    if probe.op in GEMMS or probe.op in GEMMS_BACKWARD:
        return _gemms(probe)
    if probe.op in ATTENTIONS:
        return _attention(probe)
    return (_experts(probe) if probe.op == EXPERTS else rowwise_of(probe),)


def _needs(probe: Probe, *sizes: str) -> None:
    """Refuses a row that lacks a size."""
    for name in sizes:
        if not getattr(probe, name):
            raise UserError(f"{name}: {shown('')} is no count")


def _gemms(probe: Probe) -> tuple[Gemm, ...]:
    _needs(probe, "m", "n", "k")
    m, n, k = probe.m, probe.n, probe.k
    sizes = (m, k, n) if INNER_SECOND.match(probe.variant.lower()) else (m, n, k)
    op = "gemm_wgrad" if adds_to_gradient(probe) and probe.op in GEMMS else probe.op
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
    """The memory-bound operator of a row with the bytes that it moved. Raises `UserError` if there is none."""
    name, elementwise = name_of(probe.op, probe.variant), _base(probe.op) == "elementwise"
    if name not in PASSES and not elementwise:
        raise UserError(f"op: {shown(probe.op)} is not known")
    if name == "copy" and "".join(probe.variant.lower().split()[:1]) not in WITHIN:
        raise UserError(f"op: {shown(probe.op)} as {shown(probe.variant)} is no kernel of the workload")
    _needs(probe, "m", "n")
    if is_backward(probe.op) and name in FORWARD_ONLY:
        raise UserError(f"{name} has no backward pass")
    known, each = _backward(name, probe) if is_backward(probe.op) else _forward(name, probe)
    return Rowwise(known, probe.m, probe.n, element_bytes(probe.dtype), each)


def name_of(op: str, variant: str) -> str:
    """The name that workloads use for the memory-bound operator of a row, or for the one whose backward pass it is."""
    base = _base(op)
    words = variant.lower().removeprefix(LABEL).split() if base == "elementwise" else []
    name = workload_name(words[0] if words else base)
    return OTHER_ELEMENTWISE.get(name, name)


def _base(op: str) -> str:
    return op.removesuffix(TABLE_BACKWARD)


def _forward(name: str, probe: Probe) -> tuple[str, float]:
    """The name of a forward pass and the bytes that it moves per element."""
    width = WIDTH[probe.dtype]
    known = WIDE_GELU if name == "gelu" and probe.dtype == "fp32" else name
    traced = traced_passes(name, probe.variant) if is_one_by_one(probe.dtype, probe.variant) else None
    if traced is not None:
        return known, traced * width
    if name in PASSES:
        return known, bytes_per_element(name, probe.dtype)
    return known, (BINARY_PASSES if BINARY.fullmatch(name) else UNARY_PASSES) * width


def _backward(name: str, probe: Probe) -> tuple[str, float]:
    """The name of a backward pass and the bytes that it moves per element."""
    width = WIDTH[probe.dtype]
    one_by_one = is_one_by_one(probe.dtype, probe.variant)
    written_out = autograd(name, width) if one_by_one else None
    if written_out:
        return written_out
    each = bytes_per_element(name, probe.dtype, backward=True) if name in PASSES else UNARY_PASSES * width
    return (backward_name(name) if one_by_one else f"{name}{BACKWARD}"), each


# What else the words of a row say ---------------------------------------------------------------------------------------------


def turns_of(variant: str) -> int:
    """How many second operands took turns when a product was timed; 0 if none did, as far as its words tell."""
    return TURNS if variant.strip().lower() == IN_TURN else 0


def adds_to_gradient(probe: Probe) -> bool:
    """Whether a product is added to a gradient in fp32."""
    return ACCUMULATES.search(probe.variant.lower()) is not None or GEMMS.get(probe.op) is Part.WEIGHT_GRADIENT


def work(probe: Probe) -> float:
    """How much there is to do, in flop or what takes as long: for an order, not for a time."""
    kernel = kernel_of(probe)
    if kernel is None:
        return float(max(1, probe.m) * max(1, probe.n) * max(1, probe.k))
    return float(max(kernel.flop, FLOP_PER_BYTE * kernel.traffic_bytes))
