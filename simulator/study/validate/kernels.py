"""Kernels: the time of one, in a table of matrix products, attention and memory-bound operators.

What the words of a row mean: `gemm` is (m, k) x (k, n), `batch` times in `bmm` and for each group in `grouped_gemm`;
attention has its own columns, and its `variant` names the library; row-wise operators have m rows of n columns, moved as
often as the eager kernel does; `_bwd` is the backward pass, for products that of both operands. fp32 is fp32, not TF32. FP8
products forward were measured with the cast of their first operand, which is its own kernel here and is added.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache

from ...costs.machine import architecture
from ...costs.measured import Estimate, Estimator, Options
from ...costs.shelf import FOR_AMPERE
from ...errors import UserError, shown
from ...kernels import Attention, Gemm, Part, Rowwise
from ...units import US_PER_S
from .. import kernel_fits
from ..kernel import WIDTH
from ..measured_gpus import named
from . import Predicted, Row, count, number, time_us

UNIT = "us"
READS = ("gpu", "op", "dtype", "m", "n", "k", "batch", "seq", "heads", "kv_heads", "head_dim", "causal", "variant")

LIBRARIES = (
    (r"fa_?3|flash_?attention[-_ ]?v?3", "fa3"),
    (r"cudnn|torch_flow|trtllm", "torch_flow"),
    (r"fa_?2|flash|triton|flashinfer", "flash_attention"),
)
"""What stands in the name of an attention library that has no fit of its own, and whose it takes."""
BINARY = re.compile(r"(add|mul|div|pow|sub|truediv|where)\b")
PASSES = {"swiglu": 3, "embedding": 2}
"""Over the elements of a row's shape, by the best kernel; two for the rest."""
BACKWARD_PASSES = {
    "gelu": 3,
    "tanh": 3,
    "relu": 3,
    "pow": 6,
    "dropout": 5,
    "drop": 5,
    "softmax": 3,
    "layernorm": 3,
    "embedding": 9,
}
"""The same of their backward passes, as fp32 labels of torch 2.1 show them; two for the rest. `add` has none."""
GATED = "silu_gated"
ONE_KERNEL, SEVERAL = ("adam", "cast", "copy"), ("cross_entropy", "quantise", "geglu")
"""Operators that PyTorch has as one kernel, and those that it makes of others."""
TE_VALUES = re.compile(r"v_head_dim=(\d+)")


def source_key(row: Row) -> str:
    """Rows are judged by GPU and operator."""
    return f"{row['gpu']}+{row['op']}"


def measured(row: Row) -> float | None:
    """Microseconds."""
    return time_us(row)


def predictor() -> Callable[[Row], Predicted]:
    """Predicts a row from the fits that ship."""
    shelf = kernel_fits.shelf()
    found = cache(lambda words: kernel_fits.gpu(named(words)))
    libraries = shelf.libraries("attention")

    @cache
    def estimator(gpu: str, dtype: str, library: str) -> Estimator:
        options = Options(library, eager=True, tensor_cores=dtype != "fp32")
        made = Estimator(found(gpu), dtype, shelf, options)
        made.gpu.peak(made.peak_dtype)
        return made

    def predict(row: Row) -> Predicted:
        op, dtype = row["op"].strip().lower(), row["dtype"].strip().lower()
        if dtype not in WIDTH:
            raise UserError(f"dtype: {shown(row['dtype'])} is not known")
        library = _library(row["variant"], libraries) if op.startswith("attention") else ""
        if library in FOR_AMPERE and architecture(found(row["gpu"])).kernels == "blackwell":
            library = ""  # what frameworks call so there are not those kernels
        estimates = _estimates(estimator(row["gpu"], dtype, library), op, row)
        total = sum(e.seconds for e in estimates)
        return Predicted(total * US_PER_S, max(e.sigma for e in estimates))

    return predict


def _library(variant: str, known: tuple[str, ...]) -> str:
    name = variant.strip().lower()
    return name if name in known else next((mine for words, mine in LIBRARIES if re.search(words, name)), "")


def _estimates(by: Estimator, op: str, row: Row) -> list[Estimate]:
    """The kernels that a row timed together."""
    if op.startswith("attention_"):
        return _attention(by, op, row)
    if op == "moe_ffn":
        top_k = re.search(r"topk(\d+)", row["variant"])
        if not top_k:
            raise UserError("variant: a mixture of experts needs its topk")
        tokens, hidden, expert, experts = (count(row, name) for name in ("m", "k", "n", "batch"))
        return [by.moe(tokens, hidden, expert, (experts, int(top_k[1])), WIDTH[by.dtype])]
    if op.removesuffix("_bwd") in ("gemm", "bmm", "grouped_gemm"):
        return _products(by, op, row)
    return [_rowwise(by, op, row)]


def _products(by: Estimator, op: str, row: Row) -> list[Estimate]:
    m, n, k = (count(row, name) for name in "mnk")
    batch = count(row, "batch") if row["batch"].strip() else 1
    width = WIDTH[by.dtype]
    if op.endswith("_bwd"):
        return [by.estimate(Gemm(m, k, n, int(width), batch=batch)), by.estimate(Gemm(k, n, m, int(width), batch=batch))]
    variant = row["variant"].lower()
    adds = ("wgrad" in variant and "acc=true" in variant) or "grad_w" in variant
    made = by.product(Gemm(m, n, k, 1, Part.WEIGHT_GRADIENT if adds else Part.FORWARD, batch), width)
    cast_s = by.cast_s(m, k, width) if variant.startswith("tn fwd") else 0.0
    return [Estimate(made.seconds + cast_s, made.model, made.provenance, made.sigma, made.extrapolated)]


def _attention(by: Estimator, op: str, row: Row) -> list[Estimate]:
    batch, seq, heads, kv_heads, head_dim = (count(row, name) for name in ("batch", "seq", "heads", "kv_heads", "head_dim"))
    values = TE_VALUES.search(row["variant"])
    head_dim = (head_dim + int(values[1])) // 2 if values else head_dim
    causal = number(row["causal"]) > 0
    parts = {"attention_fwd": [Part.FORWARD], "attention_bwd": [Part.INPUT_GRADIENT]}
    parts["attention_fwd_bwd"] = [*parts["attention_fwd"], *parts["attention_bwd"]]
    if op not in parts:
        raise UserError(f"op: {shown(op)} is not known")
    width = int(WIDTH[by.dtype])
    return [by.estimate(Attention(batch, seq, heads, kv_heads, head_dim, causal, width, part)) for part in parts[op]]


def _rowwise(by: Estimator, op: str, row: Row) -> Estimate:
    rows, columns = count(row, "m"), count(row, "n")
    base, back = op.removesuffix("_bwd"), op.endswith("_bwd")
    if base in ONE_KERNEL or base in SEVERAL:
        return _as_told(by, row, eager=base in SEVERAL)
    if base not in ("elementwise", "layernorm", "rmsnorm", "softmax", "swiglu", "rope", "embedding"):
        raise UserError(f"op: {shown(op)} is not known")
    words = row["variant"].lower().removeprefix("torch2.1").split()
    name = (words[0] if words else "add") if base == "elementwise" else base
    if back:
        passes = 0 if name == "add" else BACKWARD_PASSES.get(name, 2)
        kernel = Rowwise(f"{name}_backward", rows, columns, 1, passes * int(WIDTH[by.dtype]))
    else:
        passes = 3 if BINARY.fullmatch(name) else PASSES.get(name, 2)
        half = GATED if name == "swiglu" else name
        # gelu in 16 bits is bound by its arithmetic; in 32 bits it is not
        plain = by.dtype == "fp32" and name == "gelu"
        kernel = Rowwise("gelu32" if plain else half, rows, columns, 1, passes * int(WIDTH[by.dtype]))
    return by.estimate(kernel)


def _as_told(by: Estimator, row: Row, *, eager: bool) -> Estimate:
    """An operator whose traffic is that of the workload's."""
    from ..calibrate.table import probe_of
    from ..calibrate.words import kernel_of

    kernel = kernel_of(probe_of(row))
    if kernel is None:
        raise UserError(f"op: {shown(row['op'])} as {shown(row['variant'])} is no kernel of the workload")
    return replace(by, options=replace(by.options, eager=eager)).estimate(kernel)
