"""Kernels in the words of a table, and back: the workload's `Gemm`, `Attention` and `Rowwise` as rows, rows as those.

A matrix product is told by its shape and, in `variant`, by the part of training it belongs to; what is added to an fp32
gradient says `acc=true`. Attention has a row for each library that may run it. Not every row is a kernel of the workload:
launches and copies to the host are measured for their own sake. What is written out of several operators says `eager`. Some
rows timed two kernels together: both products of a backward pass, and attention forward and backward. `validate` reads the
same words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...kernels import Attention, Experts, Gemm, Kernel, Part
from ..gpus.kernel import WIDTH
from .moved import BACK, rowwise_of
from .table import EAGER, Probe

PRODUCTS = {
    "gemm": Part.FORWARD, "bmm": Part.FORWARD, "grouped_gemm": Part.FORWARD,
    "gemm_dgrad": Part.INPUT_GRADIENT, "gemm_wgrad": Part.WEIGHT_GRADIENT,
}  # fmt: skip
BOTH = ("gemm_bwd", "bmm_bwd", "grouped_gemm_bwd")
"""The products of both operands' gradients, neither added to anything."""
FORWARD_BACKWARD = "attention_fwd_bwd"
ATTENTIONS = {
    "attention": (Part.FORWARD,), "attention_fwd": (Part.FORWARD,), "attention_bwd": (Part.INPUT_GRADIENT,),
    FORWARD_BACKWARD: (Part.FORWARD, Part.INPUT_GRADIENT),
}  # fmt: skip
EXPERTS = "moe_ffn"
TOP_K = re.compile(r"top[-_ ]?k *(?:[=:] *)?(\d{1,9})", re.IGNORECASE)
INNER_SECOND = re.compile(r"torch2\.1 (linear|bmm)$")
"""Products of tables whose second size is the inner one: (m, n) x (n, k), as NeuSight's own script multiplies them
(profile_bmm: randn(B, M, N) by randn(B, N, K)). So say the times too: on the same A100, rows of models take as long as the
header says, (m, k) x (k, n), and these as long with n and k exchanged; a batch of products of 64 in m or k takes twice its
share of time there, where a tile is half empty, and one of 64 in n its share; and a product of 960 x 960 x 32768 on an H100
is as slow as 64 tiles on 132 multiprocessors."""
TE_VALUES = re.compile(r"v_head_dim=(\d{1,9})")
"""Heads whose values are of another width than their keys."""
VARIANTS = {
    Part.FORWARD: ("fwd",),
    Part.INPUT_GRADIENT: ("dgrad",),
    Part.WEIGHT_GRADIENT: ("wgrad", "wgrad acc=true"),
}
"""How the products of a part are run: a weight gradient into 16 bits, and added to one in fp32."""
ADDS = re.compile(r"wgrad.*acc=true|grad_w")
IN_TURN = "tn fwd"
"""How tables of inference libraries call a product."""
TURNS = 6
"""Their public collectors (ai-dynamo/aiconfigurator, collector/*/collect_gemm.py) time it in a loop over so many weights, or
five: more than the cache holds, unless they are small."""
BY_PYTORCH = "by=pytorch"
"""Behind the name of an attention library: as PyTorch means it, the kernel alone. Inference frameworks mean others by it."""
LIBRARIES = tuple(f"{name} {BY_PYTORCH}" for name in ("flash_attention", "cudnn", "mem_efficient"))
"""Of attention, as PyTorch has them."""
ELEMENTWISE = ("add", "mul", "relu", "gelu", "dropout", "silu")
"""Operators that a table calls elementwise, and names in `variant`."""
TABLE_OP = {"silu_gated": "swiglu", "gelu_gated": "geglu"}
WRITTEN_OUT = ("swiglu", "rope", "cross_entropy", "quantise")
"""What PyTorch has no one operator for, that takes what a model gives: the rows say that they are several."""
FLOP_PER_BYTE = 256
"""About the ratio of a GPU's peaks: orders kernels by their time."""


def turns_of(variant: str) -> int:
    """How many second operands took turns when a product was timed; 0 if none did, as far as its words tell."""
    return TURNS if variant.strip().lower() == IN_TURN else 0


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


def kernel_of(probe: Probe) -> Kernel | Experts | None:
    """The kernel that a row measured, of two the first; None if it is none of the workload's, or says too little."""
    return next(iter(kernels_of(probe)), None)


def kernels_of(probe: Probe) -> tuple[Kernel | Experts, ...]:
    """The kernels that a row timed together; none if it is none of the workload's, or says too little."""
    width = max(1, int(WIDTH.get(probe.dtype, 0)))
    if probe.dtype not in WIDTH:
        return ()
    if probe.op in PRODUCTS or probe.op in BOTH:
        return _products(probe, width) if probe.m and probe.n and probe.k else ()
    if probe.op in ATTENTIONS:
        return tuple(filter(None, (_attention(probe, width, part) for part in ATTENTIONS[probe.op])))
    if probe.op == EXPERTS:
        top_k = TOP_K.search(probe.variant.lower())
        found = Experts(probe.m, probe.n, probe.k, probe.batch, int(top_k[1]) if top_k else 0, width)
        return (found,) if found.m and found.n and found.k and 1 <= found.top_k <= found.batch else ()
    kernel = rowwise_of(probe)
    return (kernel,) if kernel else ()


def _products(probe: Probe, width: int) -> tuple[Gemm, ...]:
    m, n, k = product_sizes((probe.m, probe.n, probe.k), probe.variant)
    batch = probe.batch or 1
    if probe.op in BOTH:
        return Gemm(m, k, n, width, batch=batch), Gemm(k, n, m, width, batch=batch)
    return (Gemm(m, n, k, width, Part.WEIGHT_GRADIENT if adds(probe) else Part.FORWARD, batch),)


def library_of(variant: str) -> str:
    """The library of attention that a row names: one spelling, without what is said beside it, such as `contig=True`."""
    return "_".join(word for word in variant.lower().replace("-", "_").split() if "=" not in word)


def product_sizes(sizes: tuple[int, int, int], variant: str) -> tuple[int, int, int]:
    """The sizes (m, n, k) of a product (m, k) x (k, n) from those that its row names so."""
    m, n, k = sizes
    return (m, k, n) if INNER_SECOND.match(variant.strip().lower()) else sizes


def adds(probe: Probe) -> bool:
    """Whether a product is added to a gradient in fp32."""
    return ADDS.search(probe.variant.lower()) is not None or PRODUCTS.get(probe.op) is Part.WEIGHT_GRADIENT


def _attention(probe: Probe, width: int, part: Part) -> Attention | None:
    head_dim = mean_width(probe.head_dim, probe.variant)
    heads = (probe.batch, probe.seq, probe.heads, probe.kv_heads or probe.heads, head_dim)
    return Attention(*heads, probe.causal, width, part) if all(heads) and probe.causal is not None else None


def mean_width(head_dim: int, variant: str) -> int:
    """The width of a head, of which the values may have another."""
    values = TE_VALUES.search(variant)
    return (head_dim + int(values[1])) // 2 if values else head_dim


def work(probe: Probe) -> float:
    """How much there is to do, in flop or what takes as long: for an order, not for a time."""
    kernel = kernel_of(probe)
    if kernel is None:
        return float(max(1, probe.m) * max(1, probe.n) * max(1, probe.k))
    return float(max(kernel.flop, FLOP_PER_BYTE * kernel.traffic_bytes))
