"""A profile from a table: the constants of kernel models fitted to somebody's measurements of one GPU.

Products and attention are fitted per dtype and library, pointwise kernels and look-ups at once; the rest of what is bound by
memory is told by its ratios to those (ratios.py). Fitting starts from what the shelf
knows of this GPU, or of the one most like it, and what a few rows do not tell stays there. The error of a fit is that of rows
that it did not see: every fourth size is held out whole. Where there are too few sizes for that it is the error of the fitted
rows themselves, and at least what lending from another GPU costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...costs.attention import AttentionConstants, Heads
from ...costs.gemm import GemmConstants
from ...costs.machine import Array
from ...costs.rowwise import LOOKUPS, RowwiseConstants, lookup_s, rowwise_s
from ...costs.shelf import LENT_SIGMA, Constants, Fit, Shelf, choose
from ...errors import UserError
from ...hardware.gpu import Gpu
from ...kernels import Part
from ..kernel import WIDTH
from . import ratios
from .doubt import HINT
from .groups import RATIO, Group, groups
from .kernels import ATTENTION_PRIOR, GEMM_PRIOR, fitted
from .predict import CAST_START, passes_s, products_s
from .table import Measured
from .words import adds

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
SIGMA_MOST = 0.5
"""What fits no better than that was not measured as the columns say."""
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
    ratios: tuple[ratios.Ratio, ...] = ()
    """Of memory-bound operators to the pointwise kernels that the fit is of."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What a table tells about a GPU."""

    gpu: str
    fits: tuple[Judged, ...]
    unused: Mapping[str, int]
    """Why rows were left out, and how many."""


def profile(rows: Sequence[Measured], gpu: Gpu, shelf: Shelf) -> Profile:
    """The fits that a table of one GPU's kernels gives."""
    unused: dict[str, int] = {}
    every = list(groups(rows, gpu, unused))
    fits = []
    for group in (group for group in every if group.library != RATIO):
        if len(group.rows) < LEAST_ROWS:
            reason = f"fewer than {LEAST_ROWS} rows of {' '.join(filter(None, (group.family, group.dtype, group.library)))}"
            unused[reason] = unused.get(reason, 0) + len(group.rows)
            continue
        fits.append(_judged(group, gpu, shelf))
    for group in (group for group in every if group.library == RATIO):
        fits = _with_ratios(fits, group, unused)
    if not fits:
        told = "; ".join(f"{count} rows: {reason}" for reason, count in unused.items())
        raise UserError(
            f"nothing to fit in {len(rows)} rows ({told})", hint="a fit takes products, attention or pointwise kernels"
        )
    _doubted(fits)
    return Profile(gpu.name, tuple(fits), unused)


def _with_ratios(fits: list[Judged], beside: Group, unused: dict[str, int]) -> list[Judged]:
    """The fits, that to pointwise kernels with the ratios of other operators to those."""
    place = next((i for i, judged in enumerate(fits) if judged.fit.family == "rowwise"), None)
    if place is None:
        reason = "no pointwise kernels such as add and mul to set others against"
        unused[reason] = len(beside.rows)
        return fits
    judged, ops = fits[place], [kernel.op for kernel in beside.kernels]
    c: Any = judged.fit.constants
    found = ratios.found(beside.rows, beside.kernels, c, beside.on)
    for op in dict.fromkeys(ops):
        if op not in [ratio.op for ratio in found]:
            unused[f"fewer than {ratios.LEAST_ROWS} large rows of {op}"] = ops.count(op)
    pairs = {ratio.op: (ratio.times, ratio.error) for ratio in found}
    told = replace(judged, fit=replace(judged.fit, ratios=pairs), ratios=found)
    return [*fits[:place], told, *fits[place + 1 :]]


def _doubted(fits: Sequence[Judged]) -> None:
    """Refuses fits that tell nothing."""
    bad = [judged.fit for judged in fits if judged.fit.sigma > SIGMA_MOST]
    if bad:
        named = (" ".join(filter(None, (fit.family, fit.dtype, fit.library))) for fit in bad)
        words = [f"{name}: no constants come nearer than {fit.sigma:.0%}" for name, fit in zip(named, bad, strict=True)]
        raise UserError("; ".join(words), hint=HINT)


# Fitting --------------------------------------------------------------------------------------------------------------------


def _judged(group: Group, gpu: Gpu, shelf: Shelf) -> Judged:
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


def _start(group: Group, gpu: Gpu, shelf: Shelf) -> tuple[Constants, dict[str, float]]:
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


def _fit(group: Group, start: Any, prior: Mapping[str, float]) -> tuple[Any, Array]:
    """Constants, and those of the cast that the rows were measured with, if they were."""
    extra = np.array(CAST_START) if group.casts else None
    return fitted(start, prior, lambda c, cast: _predicted(c, group, cast), group.seconds, extra)


def _predicted(c: Any, group: Group, cast: Array) -> Array:
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


def _ranges(group: Group) -> dict[str, tuple[float, float]]:
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


def _held_out(group: Group) -> Array | None:
    """The rows to judge a fit by: all that have one of the held-out sizes. None if too few are left on either side."""
    for names in (_HELD[group.family], *((name,) for name in _HELD[group.family])):
        held, every = np.zeros(len(group.rows), dtype=bool), EVERY * len(names)
        for name in names:
            column = group.column(name)
            held |= np.isin(column, np.unique(column)[every // 2 :: every])
        if held.sum() >= LEAST_HELD and (~held).sum() >= LEAST_KEPT:
            return held
    return None
