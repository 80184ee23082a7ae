"""Rows sorted into what is fitted together: a family of kernels in one dtype and of one library; the rest is counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...costs.machine import Array, Machine, machine
from ...costs.rowwise import LOOKUPS, POINTWISE, work_of
from ...costs.shelf import ANY, FITTED_AS, SHORT, Family
from ...hardware.gpu import PEAK_OF, Gpu
from ...kernels import Gemm, Kernel, Rowwise
from ..gpus.operator_names import ATTENTION_BOTH, TABLE_BACKWARD, WIDTH, Experts
from .attention_libraries import library_of
from .kernel_words import kernel_of, name_of, turns_of
from .table import Measured

RATIO = "ratio"
"""Instead of a library: rows that are no fit of their own, and told by their ratios to one."""

SIZES: Mapping[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"),
    "moe": ("m", "n", "k"),
    "attention": ("seq", "head_dim"),
    "rowwise": ("traffic_bytes",),
}
HELD: Mapping[str, tuple[str, ...]] = {
    "gemm": ("n", "k"),
    "moe": ("n", "k"),
    "attention": ("seq", "heads"),
    "rowwise": ("traffic_bytes",),
}
"""Of which sizes every fourth value is held out."""
EVERY = 4
"""One size in so many is held out; of two sizes one in twice as many each."""
LEAST_HELD, LEAST_KEPT = 6, 24
"""Rows to judge by, and to fit."""


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

    @property
    def backward(self) -> Array:
        """Which rows timed a backward pass: of attention, or of a product with regard to both operands."""
        return np.array([row.probe.op.endswith(TABLE_BACKWARD) for row in self.rows])

    @property
    def forward(self) -> Array:
        """Which rows timed a forward pass, alone or with the other."""
        both: Array = np.array([row.probe.op == ATTENTION_BOTH for row in self.rows])
        return both | ~self.backward

    @property
    def cold(self) -> Array:
        """Which rows were measured with a cold cache."""
        return np.array([row.cold for row in self.rows])

    def part(self, which: Array) -> Group:
        """Some of the rows."""
        chosen = [int(i) for i in np.flatnonzero(which)]
        return replace(self, rows=tuple(self.rows[i] for i in chosen), kernels=tuple(self.kernels[i] for i in chosen))

    @property
    def casts(self) -> bool:
        """Whether products were measured with the cast of their first operand, as inference libraries are in FP8."""
        narrow = self.family == "gemm" and WIDTH[self.rows[0].probe.dtype] < WIDTH["bf16"]
        return narrow and all(turns_of(row.probe.variant) for row in self.rows)

    def column(self, name: str) -> Array:
        return np.array([float(getattr(kernel, name)) for kernel in self.kernels])


def groups(rows: Iterable[Measured], gpu: Gpu, unused: dict[str, int]) -> Iterator[Group]:
    """The rows of each fit; what belongs to none is counted."""
    found: dict[tuple[Family, str, str], list[tuple[Measured, Kernel | Experts]]] = {}
    for row in rows:
        key = _key(row, gpu)
        if isinstance(key, str):
            unused[key] = unused.get(key, 0) + 1
        else:
            found.setdefault(key[:3], []).append((row, key[3]))
    for (family, dtype, library), pairs in found.items():
        on = machine(gpu, "" if family == "rowwise" else PEAK_OF.get(pairs[0][0].probe.dtype, pairs[0][0].probe.dtype))
        rows_of, kernels = zip(*pairs, strict=True)
        yield Group(family, dtype, library, rows_of, kernels, on)


def _key(row: Measured, gpu: Gpu) -> tuple[Family, str, str, Kernel | Experts] | str:
    """The fit that a row belongs to and its kernel, or why it belongs to none."""
    probe, kernel = row.probe, kernel_of(row.probe)
    if not row.may_be_fitted:
        return f"the role {row.role!r}"
    if kernel is None:
        told = name_of(probe.op, probe.variant)
        return f"no model of {probe.op}" + f" {told}" * (told not in probe.op)
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
    if isinstance(kernel, Gemm | Experts):
        return "gemm" if isinstance(kernel, Gemm) else "moe", dtype, ANY, kernel
    library = library_of(probe.variant)
    return "attention", dtype, SHORT.get(library, library) or ANY, kernel


def ranges_of(group: Group) -> dict[str, tuple[float, float]]:
    """Between which sizes the rows lie."""
    columns = {name: group.column(name) for name in SIZES[group.family]}
    if group.family == "gemm":
        columns["batch"] = group.column("batch")
    if group.family == "attention":
        columns["lines"] = group.column("batch") * group.column("heads")
    names = {"traffic_bytes": "bytes", "heads": ""}
    return {names.get(n, n): (float(c.min()), float(c.max())) for n, c in columns.items() if names.get(n, n)}


def held_out(group: Group) -> Array | None:
    """The rows to judge a fit by: all that have one of the held-out sizes. None if too few are left on either side."""
    for names in (HELD[group.family], *((name,) for name in HELD[group.family])):
        held, every = np.zeros(len(group.rows), dtype=bool), EVERY * len(names)
        for name in names:
            column = group.column(name)
            held |= np.isin(column, np.unique(column)[every // 2 :: every])
        if held.sum() >= LEAST_HELD and (~held).sum() >= LEAST_KEPT:
            return held
    return None
