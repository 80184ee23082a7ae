"""Kernels in the words of a table, and back: the workload's `Gemm`, `Attention` and `Rowwise` as rows, rows as those.

A matrix product is told by its shape and, in `variant`, by the part of training it belongs to; what is added to an fp32
gradient says `acc=true`. Attention has a row for each library that may run it. Not every row is a kernel of the workload:
launches and copies to the host are measured for their own sake. What is written out of several operators says `eager`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...kernels import Attention, Gemm, Kernel, Part, Rowwise
from ..kernel import OTHER, PASSES, WIDTH
from .table import EAGER, Probe

PRODUCTS = ("gemm", "bmm", "grouped_gemm")
VARIANTS = {
    Part.FORWARD: ("fwd",),
    Part.INPUT_GRADIENT: ("dgrad",),
    Part.WEIGHT_GRADIENT: ("wgrad", "wgrad acc=true"),
}
"""How the products of a part are run: a weight gradient into 16 bits, and added to one in fp32."""
ADDS = re.compile(r"wgrad.*acc=true|grad_w")
LIBRARIES = ("flash_attention", "cudnn", "mem_efficient")
"""Of attention, as PyTorch has them."""
ELEMENTWISE = ("add", "mul", "relu", "gelu", "dropout", "silu")
"""Operators that a table calls elementwise, and names in `variant`."""
TABLE_OP = {"silu_gated": "swiglu", "gelu_gated": "geglu"}
WRITTEN_OUT = ("swiglu", "rope", "cross_entropy", "quantise")
"""What PyTorch has no one operator for, that takes what a model gives: the rows say that they are several."""
BACK = "_bwd"
FUSED_ADAM_PASSES = 7
"""Of the fused optimizer of PyTorch in one precision: parameter, gradient and two moments read, all but the gradient written."""
FLOP_PER_BYTE = 256
"""About the ratio of a GPU's peaks: orders kernels by their time."""


def probes_of(kernel: Kernel, dtype: str, libraries: Iterable[str] = LIBRARIES) -> list[Probe]:
    """The rows that measure a kernel."""
    if isinstance(kernel, Gemm):
        op, batch = ("bmm", kernel.batch) if kernel.batch > 1 else ("gemm", 0)
        return [Probe(op, dtype, kernel.m, kernel.n, kernel.k, batch, variant=word) for word in VARIANTS[kernel.part]]
    if isinstance(kernel, Attention):
        op = "attention_fwd" if kernel.part is Part.FORWARD else "attention_bwd"
        sizes = (kernel.batch, kernel.seq, kernel.heads, kernel.kv_heads, kernel.head_dim, kernel.causal)
        return [Probe(op, dtype, 0, 0, 0, *sizes, variant=library) for library in libraries if not kernel.prefix]
    name, back = kernel.op.removesuffix("_backward"), BACK * kernel.op.endswith("_backward")
    if name in ELEMENTWISE:
        # the gradients of a sum are passed on, not computed
        return [] if back and name == "add" else [Probe(f"elementwise{back}", dtype, kernel.rows, kernel.columns, variant=name)]
    ours = TABLE_OP.get(name, name)
    return [Probe(f"{ours}{back}", dtype, kernel.rows, kernel.columns, variant=EAGER * (ours in WRITTEN_OUT))]


def kernel_of(probe: Probe) -> Kernel | None:
    """The kernel that a row measured; None if it is none of the workload's, or says too little."""
    width = WIDTH.get(probe.dtype)
    base, back = probe.op.removesuffix(BACK), probe.op.endswith(BACK)
    if width is None:
        return None
    if probe.op in PRODUCTS:
        sizes = (probe.m, probe.n, probe.k)
        part = Part.WEIGHT_GRADIENT if adds(probe) else Part.FORWARD
        return Gemm(*sizes, max(1, int(width)), part, probe.batch or 1) if all(sizes) else None
    if base == "attention_fwd" or probe.op == "attention_bwd":
        return _attention(probe, max(1, int(width)))
    name = probe.variant.lower().partition(" ")[0] if base == "elementwise" else base
    name = OTHER.get(name, name)
    if name not in PASSES or not (probe.m and probe.n) or (name == "copy" and probe.variant != "d2d"):
        return None
    return Rowwise(f"{name}{'_backward' * back}", probe.m, probe.n, max(1, int(width)), _bytes(name, probe.dtype, back))


def adds(probe: Probe) -> bool:
    """Whether a product is added to a gradient in fp32."""
    return ADDS.search(probe.variant.lower()) is not None


def _attention(probe: Probe, width: int) -> Attention | None:
    part = Part.FORWARD if probe.op == "attention_fwd" else Part.INPUT_GRADIENT
    heads = (probe.batch, probe.seq, probe.heads, probe.kv_heads or probe.heads, probe.head_dim)
    return Attention(*heads, probe.causal, width, part) if all(heads) and probe.causal is not None else None


def _bytes(name: str, dtype: str, back: bool) -> int:
    """Moved for each element of an operator."""
    if name in ("cast", "quantise"):
        return round(WIDTH["bf16"] + WIDTH[dtype])
    if name == "adam" and dtype == "fp32":
        return round(FUSED_ADAM_PASSES * WIDTH[dtype])
    return max(1, round(PASSES[name][back] * WIDTH[dtype]))


def work(probe: Probe) -> float:
    """How much there is to do, in flop or what takes as long: for an order, not for a time."""
    kernel = kernel_of(probe)
    if kernel is None:
        return float(max(1, probe.m) * max(1, probe.n) * max(1, probe.k))
    return float(max(kernel.flop, FLOP_PER_BYTE * kernel.traffic_bytes))
