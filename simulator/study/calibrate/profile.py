"""A profile from a table: the constants of kernel models fitted to somebody's measurements of one GPU.

Products and attention are fitted per dtype and library, what is bound by memory at once. Fitting starts from what the shelf
knows of this GPU, or of the one most like it, and what a few rows do not tell stays there. The error of a fit is that of rows
that it did not see: every fourth size is held out whole. Where there are too few sizes for that it is the error of the fitted
rows themselves, and at least what lending from another GPU costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...costs.attention import AttentionConstants, Heads
from ...costs.gemm import GemmConstants
from ...costs.machine import Array, Machine, machine
from ...costs.rowwise import LOOKUPS, POINTWISE, RowwiseConstants, lookup_s, rowwise_s, work_of
from ...costs.shelf import ANY, FITTED_AS, LENT_SIGMA, SHORT, Constants, Family, Fit, Shelf, choose
from ...errors import UserError
from ...hardware.gpu import PEAK_OF, Gpu
from ...kernels import Gemm, Kernel, Part, Rowwise
from ..kernel import WIDTH
from .kernels import ATTENTION_PRIOR, GEMM_PRIOR, fitted
from .predict import CAST_START, passes_s, products_s
from .table import COLD, Measured
from .words import adds, kernel_of

LEAST_ROWS = 4
"""Fewer rows than that are no fit."""
EVERY = 4
"""One size in so many is held out; of two sizes one in twice as many each."""
LEAST_HELD, LEAST_KEPT = 6, 24
"""Rows to judge by, and to fit."""
SURE = 0.68
"""The share of rows whose error stays below `sigma`."""
LEAST_SIGMA = {"gemm": 0.01, "attention": 0.01, "rowwise": 0.05}
"""What the clock of a GPU varies by itself; and what is bound by memory is not all pointwise."""
ROWWISE_PRIOR = {"launch_us": 1.0, "stream": 1.0}
BACKWARD_SIGMA = 0.7


@dataclass(frozen=True, slots=True)
class Judged:
    """A fit, how it was judged, and how far off it is on average."""

    fit: Fit
    held_out: int
    """Rows that it was judged by and had not seen; 0 if there were too few."""
    error: float
    """Mean relative error of those rows, or of the fitted ones."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What a table tells about a GPU."""

    gpu: str
    fits: tuple[Judged, ...]
    unused: Mapping[str, int]
    """Why rows were left out, and how many."""


@dataclass(frozen=True)
class _Group:
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

    def part(self, which: Array) -> _Group:
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


def profile(rows: Sequence[Measured], gpu: Gpu, shelf: Shelf) -> Profile:
    """The fits that a table of one GPU's kernels gives."""
    unused: dict[str, int] = {}
    fits = []
    for group in _groups(rows, gpu, unused):
        if len(group.rows) < LEAST_ROWS:
            reason = f"fewer than {LEAST_ROWS} rows of {' '.join(filter(None, (group.family, group.dtype, group.library)))}"
            unused[reason] = unused.get(reason, 0) + len(group.rows)
            continue
        fits.append(_judged(group, gpu, shelf))
    if not fits:
        told = "; ".join(f"{count} rows: {reason}" for reason, count in unused.items())
        raise UserError(
            f"nothing to fit in {len(rows)} rows ({told})", hint="a fit takes products, attention or pointwise kernels"
        )
    return Profile(gpu.name, tuple(fits), unused)


def _groups(rows: Iterable[Measured], gpu: Gpu, unused: dict[str, int]) -> Iterator[_Group]:
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
        yield _Group(family, dtype, library, rows_of, kernels, on)


def _key(row: Measured, gpu: Gpu) -> tuple[Family, str, str, Kernel] | str:
    """The fit that a row belongs to and its kernel, or why it belongs to none."""
    probe, kernel = row.probe, kernel_of(row.probe)
    if not row.may_be_fitted:
        return f"the role {row.role!r}"
    if kernel is None:
        return f"no model of {probe.op}"
    if isinstance(kernel, Rowwise):
        fits = kernel.op in LOOKUPS or (work_of(kernel.op) == POINTWISE and not probe.op.endswith("_bwd"))
        return ("rowwise", "", "", kernel) if fits else f"{probe.op}: its ratio to pointwise kernels is the same for all GPUs"
    if PEAK_OF.get(probe.dtype, probe.dtype) not in gpu.peak_flop_per_s:
        return f"{gpu.name} has no peak in {probe.dtype}"
    dtype = FITTED_AS.get(probe.dtype, probe.dtype)
    if WIDTH[dtype] != WIDTH[probe.dtype]:
        return f"{probe.dtype} takes the fit of {dtype}"
    if isinstance(kernel, Gemm):
        return "gemm", dtype, ANY, kernel
    library = probe.variant.lower().replace("-", "_").replace(" ", "_")
    return "attention", dtype, SHORT.get(library, library) or ANY, kernel


# Fitting --------------------------------------------------------------------------------------------------------------------


def _judged(group: _Group, gpu: Gpu, shelf: Shelf) -> Judged:
    """A fit to all rows, judged by one to some of them."""
    start, prior = _start(group, gpu, shelf)
    held = _held_out(group)
    constants, cast = _fit(group, start, prior)
    if held is None:
        errors = np.abs(_predicted(constants, group, cast) / group.seconds - 1)
        sigma = max(float(np.quantile(errors, SURE)), LENT_SIGMA)
    else:
        unseen = group.part(held)
        c, its_cast = _fit(group.part(~held), start, prior)
        errors = np.abs(_predicted(c, unseen, its_cast) / unseen.seconds - 1)
        sigma = max(float(np.quantile(errors, SURE)), LEAST_SIGMA[group.family])
    source = ", ".join(sorted({row.source.partition(":")[0] or "not stated" for row in group.rows})).replace('"', "'")
    with_cast = (float(cast[0]), float(cast[1])) if len(cast) else None
    about = (sigma, _ranges(group), len(group.rows), source, with_cast)
    fit = Fit(group.family, group.dtype, group.library, constants, *about)
    return Judged(fit, 0 if held is None else int(held.sum()), float(errors.mean()))


def _start(group: _Group, gpu: Gpu, shelf: Shelf) -> tuple[Constants, dict[str, float]]:
    """Where a fit starts, and what of it is free."""
    usual: dict[str, Constants] = {"gemm": GemmConstants(), "attention": AttentionConstants(), "rowwise": RowwiseConstants()}
    library = group.library if group.library in shelf.libraries(group.family) else ""
    chosen = choose(gpu, shelf, group.family, group.dtype, library)
    start = chosen.fit.constants if chosen else usual[group.family]
    if group.family == "gemm":
        accumulates = any(adds(row.probe) for row in group.rows)
        return start, GEMM_PRIOR | ({"accumulate": 1.0} if accumulates else {})
    if group.family == "attention":
        back = any(kernel.part is not Part.FORWARD for kernel in group.kernels)
        return start, ATTENTION_PRIOR | ({"backward": BACKWARD_SIGMA} if back else {})
    looks_up = any(kernel.op in LOOKUPS for kernel in group.kernels)
    return start, ROWWISE_PRIOR | ({"lookup_cycles": 1.0} if looks_up else {})


def _fit(group: _Group, start: Any, prior: Mapping[str, float]) -> tuple[Any, Array]:
    """Constants, and those of the cast that the rows were measured with, if they were."""
    extra = np.array(CAST_START) if group.casts else None
    return fitted(start, prior, lambda c, cast: _predicted(c, group, cast), group.seconds, extra)


def _predicted(c: Any, group: _Group, cast: Array) -> Array:
    """Seconds of the rows of a group."""
    if isinstance(c, GemmConstants):
        sizes = [group.column(name) for name in ("m", "n", "k", "batch")]
        added = np.array([adds(row.probe) for row in group.rows])
        return products_s(c, group.on, sizes, WIDTH[group.rows[0].probe.dtype], added, cast)
    if isinstance(c, AttentionConstants):
        what = Heads(*(group.column(name) for name in ("batch", "seq", "heads", "kv_heads", "head_dim", "causal")))
        forward = np.array([kernel.part is Part.FORWARD for kernel in group.kernels])
        return passes_s(c, group.on, what, forward, ~forward)
    moved = group.column("traffic_bytes")
    elements = group.column("rows") * group.column("columns")
    looked_up = np.array([kernel.op in LOOKUPS for kernel in group.kernels])
    return np.where(looked_up, lookup_s(c, group.on, elements, moved), rowwise_s(c, group.on, moved))


def _ranges(group: _Group) -> dict[str, tuple[float, float]]:
    """Between which sizes the rows lie."""
    columns = {name: group.column(name) for name in _SIZES[group.family]}
    if group.family == "attention":
        columns["lines"] = group.column("batch") * group.column("heads")
    names = {"traffic_bytes": "bytes", "heads": ""}
    return {names.get(n, n): (float(c.min()), float(c.max())) for n, c in columns.items() if names.get(n, n)}


_SIZES: Mapping[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"),
    "attention": ("seq", "head_dim"),
    "rowwise": ("traffic_bytes",),
}
_HELD: Mapping[str, tuple[str, ...]] = {"gemm": ("n", "k"), "attention": ("seq", "heads"), "rowwise": ("traffic_bytes",)}
"""Of which sizes every fourth value is held out."""


def _held_out(group: _Group) -> Array | None:
    """The rows to judge a fit by: all that have one of the held-out sizes. None if too few are left on either side."""
    for names in (_HELD[group.family], *((name,) for name in _HELD[group.family])):
        held, every = np.zeros(len(group.rows), dtype=bool), EVERY * len(names)
        for name in names:
            column = group.column(name)
            held |= np.isin(column, np.unique(column)[every // 2 :: every])
        if held.sum() >= LEAST_HELD and (~held).sum() >= LEAST_KEPT:
            return held
    return None


def ratios(rows: Iterable[Measured], seconds: Callable[[Kernel], float]) -> dict[str, tuple[float, int]]:
    """Measured over predicted time, by operator and dtype: the median, and of how many rows."""
    found: dict[str, list[float]] = {}
    for row in rows:
        kernel = kernel_of(row.probe)
        if kernel is not None and row.may_be_fitted:
            words = filter(None, (row.probe.op, row.probe.variant, row.probe.dtype))
            found.setdefault(" ".join(words), []).append(row.seconds / seconds(kernel))
    return {name: (math.exp(float(np.median(np.log(values)))), len(values)) for name, values in found.items()}
