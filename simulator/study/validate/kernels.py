"""Kernels: the time of one, in a table of matrix products, attention and memory-bound operators.

What the words of a row mean: `gemm` is (m, k) x (k, n), `batch` times in `bmm` and for each group in `grouped_gemm`;
attention has its own columns, and its `variant` names the library; row-wise operators have m rows of n columns, moved as
often as the eager kernel does, none of them out of the last cache where `cache` says `cold`; `_bwd` is the backward pass, for
products that of both operands. fp32 is fp32, not TF32. FP8
products forward were measured with the cast of their first operand, which is its own kernel here and is added, as is what kernels
lost that are slow by a fault of theirs, what an eager framework took around a linear layer or around an operator that was timed
alone, and the cache of keys and values that inference frameworks write before causal attention, where `variant` is a word of
theirs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from ...costs.attention import Heads
from ...costs.machine import architecture
from ...costs.measured import Estimate, Estimator, Options, together
from ...costs.shelf import (
    CACHE_PASSES,
    CACHE_US,
    FOR_AMPERE,
    HANDED_ON_US,
    LINEAR_US,
    OPERATOR_US,
    PAGED,
    SHORT,
    SPILL_US,
    UNFUSED,
)
from ...errors import UserError, shown
from ...hardware.gpu import Gpu
from ...kernels import Gemm, Part
from ...units import US_PER_S
from .. import catalog
from ..calibrate import table
from ..calibrate.cached import TURNS_QUERIES, cached_s, is_of_frameworks
from ..calibrate.deep_gemm import spilled_s
from ..calibrate.moved import is_elementwise, is_within, name_of, rowwise_of
from ..calibrate.table import DTYPE_WORDS, EAGER, Probe, is_cold
from ..calibrate.words import TOP_K, library_of, mean_width, product_sizes, turns_of
from ..gpus import fit_files, kernel_fits
from ..gpus.eager import is_one_by_one
from ..gpus.kernel import ATTENTION_BOTH, ATTENTIONS, BOTH, PASSES, PRODUCTS, WIDTH, attention_of, plain
from ..gpus.names import named
from ..tables import Row, count, time_us, truth
from .predicted import Own, Predicted, each

UNIT = "us"
READS = ("gpu", "op", "dtype", "m", "n", "k", "batch", "seq", "heads", "kv_heads", "head_dim", "causal", "variant", "cache")
NEEDS = ("gpu", "op", "dtype")

LIBRARIES = (
    (r"unfused|math|eager|naive", UNFUSED),
    (r"fa_?3|flash_?att(entio)?n_?v?3", "fa3"),
    (r"cudnn|torch_flow|trtllm", "torch_flow"),
    (r"fa_?2|flash|triton|flashinfer", "flash_attention"),
)
"""What stands in the name of an attention library that has no fit of its own, and whose it takes."""
ON_HOPPER = {
    "flash_attention": "fa3",
    "flashinfer": "fa3",
    "vllm_flash_attn": "vllm_flash_attn_fa3",
    "vllm_flashinfer": "vllm_flash_attn_fa3",
}
"""What inference frameworks call a backend that takes FlashAttention 3 there, or kernels of its design, by the code of public
collectors (ai-dynamo/aiconfigurator). PyTorch calls FlashAttention 2 so, whose rows say `by=pytorch` here."""
EAGER_LINEAR = re.compile(r"linear|^fwd$")
"""How tables call a linear layer that PyTorch ran, alone or within a model."""
FUSED = ("adam", "cast")
"""Operators that PyTorch has as one kernel, and an eager run too."""


def completed(rows: Sequence[Row], own: Own | None) -> Sequence[Row]:
    """The rows with the GPU that the table leaves out, where one's own is told, and with how their cache was."""
    return table.completed(rows, _mine(own).name if own else "")


def source_key(row: Row) -> str:
    """Rows are judged by GPU and operator."""
    return f"{row['gpu']}+{row['op']}"


def measured(row: Row) -> float | None:
    """Microseconds."""
    return time_us(row)


def predictions(rows: Sequence[Row], own: Own | None) -> list[Predicted | UserError]:
    """The prediction of each row, or why there is none."""
    return each(predictor(own), rows)


def predictor(own: Own | None = None) -> Callable[[Row], Predicted]:
    """Predicts a row from the fits that ship, and those of one's own GPU."""
    mine = _mine(own) if own else None
    found = cache(lambda words: _gpu(words, mine))
    shelves = {mine.name: kernel_fits.shelf_for(mine)} if mine else {}
    shelf = kernel_fits.shelf()
    libraries = tuple(dict.fromkeys(name for each in (shelf, *shelves.values()) for name in each.libraries("attention")))

    @cache
    def estimator(gpu: str, dtype: str, library: str) -> Estimator:
        options, on = Options(library, eager=True, tensor_cores=dtype != "fp32"), found(gpu)
        made = Estimator(on, dtype, shelves.get(on.name, shelf), options)
        made.gpu.peak(made.peak_dtype)
        return made

    def predict(row: Row) -> Predicted:
        op, dtype = plain(row["op"]), plain(row["dtype"])
        if dtype not in WIDTH:
            here = DTYPE_WORDS.get(dtype)
            raise UserError(f"dtype: {shown(row['dtype'])} is not known" + f", here it is {here}" * bool(here))
        on = found(row["gpu"])
        owned = shelves[on.name].own_libraries("attention") if on.name in shelves else ()
        library = _library(row["variant"], libraries, owned, architecture(on).kernels) if op.startswith("attention") else ""
        made = _estimates(estimator(row["gpu"], dtype, library), op, row)
        whole, sigma = together("", made), max(e.sigma for e in made)
        return Predicted(whole.seconds * US_PER_S, sigma, provenance=whole.provenance, extrapolated=whole.extrapolated)

    return predict


def _mine(own: Own) -> Gpu:
    """One's own GPU; one that is not named is that of the profile."""
    name = own.gpu or fit_files.owner_of(own.profile)
    if not own.gpu and catalog.plain(name) not in catalog.files("gpus"):
        raise UserError(f"{shown(own.profile)} holds kernels of {name}, which is in no catalog", hint="--gpu names its file")
    return kernel_fits.gpu(name, own.profile)


def _gpu(words: str, mine: Gpu | None) -> Gpu:
    """The GPU of a row. What nobody else knows is one's own."""
    if mine and catalog.plain(words) == catalog.plain(mine.name):
        return mine
    try:
        name = named(words)
    except UserError:
        if mine:
            return mine
        raise
    return mine if mine and mine.name == name else kernel_fits.gpu(name)


def _library(variant: str, known: tuple[str, ...], owned: tuple[str, ...], kernels: str) -> str:
    """The library of a row's attention: as one's own profile calls it; else by what inference frameworks mean by a word of theirs
    on GPUs of such kernels; nothing if no fit is known to be of it.
    """
    name = library_of(variant)
    short = SHORT.get(name, name)
    if short in owned:
        return short
    library = short if short in known else next((mine for words, mine in LIBRARIES if re.search(words, name)), "")
    if library in owned or not is_of_frameworks(variant):
        return library
    if kernels == "blackwell" and library in FOR_AMPERE:
        return ""
    return ON_HOPPER.get(name, library) if kernels == "hopper" else library


def _estimates(by: Estimator, op: str, row: Row) -> list[Estimate]:
    """The kernels that a row timed together."""
    if op == ATTENTION_BOTH or op in ATTENTIONS:
        return _attention(by, op, row)
    if op == "moe_ffn":
        return [_experts(by, row)]
    if op in PRODUCTS or op in BOTH:
        return _products(by, op, row)
    return [_rowwise(by, op, row)]


def _experts(by: Estimator, row: Row) -> Estimate:
    top_k = TOP_K.search(row["variant"])
    if not top_k:
        raise UserError("variant: a mixture of experts needs its topk, such as topk8")
    tokens, hidden, expert, experts = (count(row, name) for name in ("m", "k", "n", "batch"))
    if not 1 <= int(top_k[1]) <= experts:
        raise UserError(f"variant: {shown(row['variant'])}, and there are {experts} experts")
    return by.moe(tokens, hidden, expert, (experts, int(top_k[1])), WIDTH[by.dtype])


def _products(by: Estimator, op: str, row: Row) -> list[Estimate]:
    told = (count(row, "m"), count(row, "n"), count(row, "k"))
    m, n, k = product_sizes(told, row["variant"])
    batch = count(row, "batch") if row["batch"].strip() else 1
    width = WIDTH[by.dtype]
    if op in BOTH:
        return [by.product(Gemm(*sizes, 1, batch=batch), width) for sizes in ((m, k, n), (k, n, m))]
    variant = row["variant"].lower()
    adds = ("wgrad" in variant and "acc=true" in variant) or "grad_w" in variant or op == "gemm_wgrad"
    part = Part.WEIGHT_GRADIENT if adds else Part.FORWARD
    made = by.product(Gemm(m, n, k, 1, part, batch), width, turns_of(variant))
    return [replace(made, seconds=made.seconds + _beside_s(by, (m, n, k), width, variant))] if op == "gemm" else [made]


def _beside_s(by: Estimator, sizes: tuple[int, int, int], width: float, variant: str) -> float:
    """What was timed with a product forward: the cast of its first operand and, where they are slow, what its kernels lose; of an
    eager linear layer in fp32, what the framework does."""
    if by.dtype == "fp32":
        return by.gpu.site_scalar * by.beside(LINEAR_US) / US_PER_S if EAGER_LINEAR.search(variant) else 0.0
    if width >= WIDTH["bf16"] or not turns_of(variant):
        return 0.0
    spill_us = by.beside(SPILL_US)
    lost_s = by.gpu.site_scalar * float(spilled_s(spill_us, by.machine, *sizes)) if spill_us else 0.0
    return by.cast_s(sizes[0], sizes[2], width) + lost_s


def _attention(by: Estimator, op: str, row: Row) -> list[Estimate]:
    batch, seq, heads, head_dim = (count(row, name) for name in ("batch", "seq", "heads", "head_dim"))
    kv_heads = count(row, "kv_heads") if row["kv_heads"].strip() else heads
    head_dim = mean_width(head_dim, row["variant"])
    causal = truth(row["causal"])
    if causal is None:
        raise UserError(f"causal: {shown(row['causal'])} is neither 0 nor 1")
    parts = [Part.FORWARD, Part.INPUT_GRADIENT] if op == ATTENTION_BOTH else [ATTENTIONS[op]]
    made = [by.estimate(attention_of((batch, seq, heads, kv_heads, head_dim), causal, by.dtype, part)) for part in parts]
    if op != "attention_fwd" or not causal or not is_of_frameworks(row["variant"]):
        return made
    return [_with_cache(by, made[0], row["variant"].strip(), Heads(batch, seq, heads, kv_heads, head_dim))]


def _with_cache(by: Estimator, kernel: Estimate, variant: str, what: Heads) -> Estimate:
    """Attention with the cache that an inference framework writes before it, by what its fit says beside the kernel."""
    fit = by.attention_fit()
    if fit is None or CACHE_PASSES not in fit.beside:
        return kernel
    cache_us, passes = fit.beside[CACHE_US], fit.beside[CACHE_PASSES]
    written_s = cached_s(cache_us, passes, by.machine, what, WIDTH[by.dtype], queries=variant in TURNS_QUERIES)
    paged = fit.beside.get(PAGED, 1.0) if variant == fit.library else 1.0
    return replace(kernel, seconds=paged * kernel.seconds + by.gpu.site_scalar * float(written_s))


def _rowwise(by: Estimator, op: str, row: Row) -> Estimate:
    name, variant = name_of(op, row["variant"]), row["variant"].strip()
    if not is_elementwise(op) and name not in PASSES:
        raise UserError(f"op: {shown(row['op'].strip())} is not known")
    if name == "copy" and not is_within(variant):
        raise UserError(f"op: {shown(row['op'])} as {shown(variant)} is no kernel of the workload")
    kernel = rowwise_of(Probe(op, by.dtype, count(row, "m"), count(row, "n"), variant=variant))
    if kernel is None:
        raise UserError(f"{name} has no backward pass")
    cold = is_cold(row)
    if cold is None:
        raise UserError(f"cache: {shown(row['cache'])} is neither cold nor warm")
    by = by.with_nothing_cached() if cold else by
    fused = name in FUSED or (by.owns(kernel.op) and EAGER not in variant.lower().split())
    made = replace(by, options=replace(by.options, eager=not fused)).estimate(kernel)
    around = OPERATOR_US if kernel.traffic_bytes else HANDED_ON_US
    around_us = by.beside(around, "rowwise") if is_one_by_one(by.dtype, variant) else 0.0
    return replace(made, seconds=made.seconds + by.gpu.site_scalar * around_us / US_PER_S)
