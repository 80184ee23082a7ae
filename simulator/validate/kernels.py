"""Predictions of kernel times for the rows of a table, each with the other work that the row timed with its kernel.

`measurements/kernel_words.py` explains the words of a row. fp32 means fp32, not TF32. Memory-bound operators read their data from
memory where `cache` is `cold`. Kernels are as slow as in a loop of as many `launches` as a row states, or of twelve. Some rows
timed more than a kernel: FP8 GEMMs include the cast of their first operand and slow steps of DeepGEMM; eager linear layers and
operators include the framework's own work; causal attention of inference frameworks includes writing the cache of keys and values
before the kernel.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from ..config import catalog, shipped_fits
from ..config.catalog import gpu_named
from ..costs.kernels.attention import CACHE_PASSES, CACHE_US, PAGED, Heads
from ..costs.kernels.attention import FAMILY as ATTENTION
from ..costs.kernels.deep_gemm import SPILL_US, spilled_s
from ..costs.kernels.estimator import Estimator, Options, together
from ..costs.kernels.family import BURST, Estimate
from ..costs.kernels.fit_choice import FitLibrary, libraries_of
from ..costs.kernels.gemm import FAMILY as GEMM
from ..costs.kernels.gemm import LINEAR_US
from ..costs.kernels.gpu_model import architecture
from ..costs.kernels.rowwise import FAMILY as ROWWISE
from ..costs.kernels.rowwise import HANDED_ON_US, OPERATOR_US, is_one_by_one
from ..errors import UserError, shown
from ..hardware.gpu import Gpu
from ..kernels import Attention, Gemm, Rowwise
from ..measurements.attention_libraries import (
    cached_s,
    fitted_library,
    is_of_frameworks,
    library_of,
    named_library,
    turns_queries,
)
from ..measurements.csv_tables import Row, time_us
from ..measurements.kernel_table import is_cold, launches_of, probe_of
from ..measurements.kernel_words import EAGER, SIZES, WIDTH, Probe, kernels_in, like, turns_of
from ..units import US_PER_S
from .report import Own, Predicted

UNIT, MEASURED_COLUMN = "us", "time_us"
READS = ("gpu", "op", "dtype", *SIZES, "causal", "variant", "cache", "launches")
NEEDS, SOURCE = ("gpu", "op", "dtype"), ("gpu", "op")
measured = time_us

EAGER_LINEAR = re.compile(r"linear|^fwd$")
"""Variants of a linear layer in eager PyTorch, alone or within a model."""
FUSED = ("adam", "cast")
"""Operators that are a single kernel in PyTorch, in eager runs too."""


def own_gpu(own: Own) -> Gpu:
    """The user's GPU; without a name, the GPU of the profile."""
    name = own.gpu or shipped_fits.load(Path(own.profile))[0]
    if not own.gpu and catalog.plain(name) not in catalog.files("gpus"):
        raise UserError(f"{shown(own.profile)} holds kernels of {name}, which is in no catalog", hint="--gpu names its file")
    return shipped_fits.gpu(name, own.profile)


def predictions(rows: Sequence[Row], own: Gpu | None, shipped: FitLibrary | None = None) -> list[Predicted | UserError]:
    """The prediction of each row with the fits of the catalog (or `shipped`), or with those of the user's GPU, or the error that
    prevents it."""
    own_fits = {own.name: shipped_fits.fits_for(own)} if own else {}
    shipped = shipped or shipped_fits.shipped()
    libraries = [name for fits in (shipped, *own_fits.values()) for name in fits.libraries(ATTENTION.name)]

    @cache
    def gpu_of(written: str) -> Gpu:
        """The GPU of a row. A name that the catalog lacks stands for the user's GPU."""
        if own and catalog.plain(written) == catalog.plain(own.name):
            return own
        try:
            name = gpu_named(written)
        except UserError as error:
            if own:
                return own
            raise UserError(f"{error.faults[0].message}{like(catalog.plain(written), catalog.files('gpus'))}") from None
        return own if own and name == own.name else shipped_fits.gpu(name)

    @cache
    def estimator(gpu: str, dtype: str, library: str) -> Estimator:
        options, on = Options(library, eager=True, tensor_cores=dtype != "fp32"), gpu_of(gpu)
        made = Estimator(on, dtype, own_fits.get(on.name, shipped), options)
        made.gpu.peak(made.peak_dtype)
        return made

    def predict(row: Row) -> Predicted | UserError:
        try:
            probe = probe_of(row)
            kernels, on = kernels_in(probe), gpu_of(row["gpu"])
            owned = libraries_of(own_fits[on.name].profile, ATTENTION.name) if on.name in own_fits else ()
            is_attention = isinstance(kernels[0], Attention)
            library = fitted_library(probe.variant, libraries, owned, architecture(on).kernels) if is_attention else ""
            by = estimator(row["gpu"], probe.dtype, library)
            by = by.with_nothing_cached() if isinstance(kernels[0], Rowwise) and is_cold(row) else by
            by = replace(by, options=replace(by.options, launches=launches_of(row) or BURST))
            made = [TIMED.get(kernel.family, _alone)(by, kernel, probe) for kernel in kernels]
        except UserError as error:
            return error
        whole, sigma = together("", made), max(e.sigma for e in made)
        note = None
        if is_attention and library_of(probe.variant) and not named_library(probe.variant, (*libraries, *owned)):
            note = (
                f"variant: {shown(probe.variant)} names no library of attention that is known; the usual one of {on.name} counts"
            )
        return Predicted(whole.seconds * US_PER_S, sigma, whole.provenance, whole.extrapolated, note=note)

    return list(map(predict, rows))


def _alone(by: Estimator, kernel: Any, probe: Probe) -> Estimate:
    """The time of a kernel without other work. Formats narrower than a byte have their true width."""
    return by.estimate(replace(kernel, element_bytes=WIDTH[probe.dtype]))


def _gemm(by: Estimator, kernel: Gemm, probe: Probe) -> Estimate:
    in_turns = replace(by, options=replace(by.options, turns=turns_of(probe.variant)))
    made = _alone(in_turns, kernel, probe)
    return replace(made, seconds=made.seconds + _beside_s(by, kernel, probe)) if probe.op == "gemm" else made


def _beside_s(by: Estimator, kernel: Gemm, probe: Probe) -> float:
    """Seconds of other work timed with a forward GEMM: in FP8 the cast of its first operand and the slow steps of some kernels,
    in fp32 the work of the framework around an eager linear layer."""
    if by.dtype == "fp32":
        is_linear = EAGER_LINEAR.search(probe.variant.lower())
        return by.gpu.site_scalar * by.beside(LINEAR_US) / US_PER_S if is_linear else 0.0
    if WIDTH[by.dtype] >= WIDTH["bf16"] or not turns_of(probe.variant):
        return 0.0
    spill_us = by.beside(SPILL_US)
    lost_s = by.gpu.site_scalar * float(spilled_s(spill_us, by.machine, kernel.m, kernel.n, kernel.k)) if spill_us else 0.0
    return GEMM.cast_s(by, kernel.m, kernel.k, WIDTH[by.dtype]) + lost_s


def _attention(by: Estimator, kernel: Attention, probe: Probe) -> Estimate:
    """The time of attention, with the write of the key-value cache before it in inference frameworks, by its fit."""
    made = by.estimate(kernel)
    writes_cache = probe.op == "attention_fwd" and kernel.causal and is_of_frameworks(probe.variant)
    chosen = ATTENTION.in_sixteen_bits(by, by.selected(ATTENTION.name)) if writes_cache else None
    if not chosen or not by.runs_kernels_of(chosen) or CACHE_PASSES not in chosen.fit.beside:
        return made
    fit = chosen.fit
    what = Heads(kernel.batch, kernel.seq, kernel.heads, kernel.kv_heads, kernel.head_dim)
    cache_us, passes = fit.beside[CACHE_US], fit.beside[CACHE_PASSES]
    written_s = cached_s(cache_us, passes, by.machine, what, WIDTH[by.dtype], queries=turns_queries(probe.variant))
    paged = fit.beside.get(PAGED, 1.0) if probe.variant == fit.library else 1.0
    return replace(made, seconds=paged * made.seconds + by.gpu.site_scalar * float(written_s))


def _rowwise(by: Estimator, kernel: Rowwise, probe: Probe) -> Estimate:
    """The time of a memory-bound operator, with the overhead of an eager framework where the operator was timed separately."""
    fused = kernel.op in FUSED or (ROWWISE.owns(by, kernel.op) and EAGER not in probe.variant.lower().split())
    made = replace(by, options=replace(by.options, eager=not fused)).estimate(kernel)
    around = OPERATOR_US if kernel.traffic_bytes else HANDED_ON_US
    around_us = by.beside(around, "rowwise") if is_one_by_one(by.dtype, probe.variant) else 0.0
    return replace(made, seconds=made.seconds + by.gpu.site_scalar * around_us / US_PER_S)


TIMED: Mapping[str, Callable[[Estimator, Any, Probe], Estimate]] = {
    GEMM.name: _gemm, ATTENTION.name: _attention, ROWWISE.name: _rowwise,
}  # fmt: skip
"""Estimates by family of a kernel with the other work in its row. Kernels of other families are timed alone."""
