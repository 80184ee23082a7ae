"""Rows sorted into what is fitted together: a family of kernels in one dtype and of one library; the rest is counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...costs.machine import Array, Machine, machine
from ...costs.rowwise import LOOKUPS, POINTWISE, work_of
from ...costs.shelf import ANY, FITTED_AS, SHORT, Family
from ...hardware.gpu import PEAK_OF, Gpu
from ...kernels import Gemm, Kernel, Rowwise
from ..kernel import WIDTH
from .table import COLD, Measured
from .words import kernel_of

RATIO = "ratio"
"""Instead of a library: rows that are no fit of their own, and told by their ratios to one."""


@dataclass(frozen=True)
class Group:
    """Rows of one fit, with their kernels."""

    family: Family
    dtype: str
    library: str
    rows: tuple[Measured, ...]
    kernels: tuple[Any, ...]
    on: Machine

    @property
    def seconds(self) -> Array:
        return np.array([row.seconds for row in self.rows])

    def part(self, which: Array) -> Group:
        """Some of the rows."""
        chosen = [int(i) for i in np.flatnonzero(which)]
        return replace(self, rows=tuple(self.rows[i] for i in chosen), kernels=tuple(self.kernels[i] for i in chosen))

    @property
    def casts(self) -> bool:
        """Whether products were measured with the cast of their first operand, as inference libraries are in FP8."""
        narrow = self.family == "gemm" and WIDTH[self.rows[0].probe.dtype] < WIDTH["bf16"]
        return narrow and all(row.probe.variant.lower().startswith("tn fwd") for row in self.rows)

    def column(self, name: str) -> Array:
        return np.array([float(getattr(kernel, name)) for kernel in self.kernels])


def groups(rows: Iterable[Measured], gpu: Gpu, unused: dict[str, int]) -> Iterator[Group]:
    """The rows of each fit; what belongs to none is counted."""
    found: dict[tuple[Family, str, str], list[tuple[Measured, Kernel]]] = {}
    for row in rows:
        key = _key(row, gpu)
        if isinstance(key, str):
            unused[key] = unused.get(key, 0) + 1
        else:
            found.setdefault(key[:3], []).append((row, key[3]))
    for (family, dtype, library), pairs in found.items():
        on = machine(gpu, "" if family == "rowwise" else PEAK_OF.get(pairs[0][0].probe.dtype, pairs[0][0].probe.dtype))
        if family == "rowwise" and all(row.source.startswith(COLD) for row, _ in pairs):
            on = replace(on, cache_bytes=0.0)
        rows_of, kernels = zip(*pairs, strict=True)
        yield Group(family, dtype, library, rows_of, kernels, on)


def _key(row: Measured, gpu: Gpu) -> tuple[Family, str, str, Kernel] | str:
    """The fit that a row belongs to and its kernel, or why it belongs to none."""
    probe, kernel = row.probe, kernel_of(row.probe)
    if not row.may_be_fitted:
        return f"the role {row.role!r}"
    if kernel is None:
        return f"no model of {probe.op}"
    if isinstance(kernel, Rowwise):
        fits = kernel.op in LOOKUPS or (work_of(kernel.op) == POINTWISE and not probe.op.endswith("_bwd"))
        if row.is_eager:
            return f"{probe.op}: several operators, which a run has one by one"
        return "rowwise", "", "" if fits else RATIO, kernel
    if PEAK_OF.get(probe.dtype, probe.dtype) not in gpu.peak_flop_per_s:
        return f"{gpu.name} has no peak in {probe.dtype}"
    dtype = FITTED_AS.get(probe.dtype, probe.dtype)
    if WIDTH[dtype] != WIDTH[probe.dtype]:
        return f"{probe.dtype} takes the fit of {dtype}"
    if isinstance(kernel, Gemm):
        return "gemm", dtype, ANY, kernel
    library = probe.variant.lower().replace("-", "_").replace(" ", "_")
    return "attention", dtype, SHORT.get(library, library) or ANY, kernel
