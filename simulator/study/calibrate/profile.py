"""A profile from a table: the constants of kernel models fitted to somebody's measurements of one GPU.

Products and attention are fitted per dtype and library, pointwise kernels and look-ups at once; the rest of what is bound by
memory is told by its ratios to those (ratios.py). Fitting starts from what the shelf
knows of this GPU, or of the one most like it, and what a few rows do not tell stays there. The error of a fit is that of rows
that it did not see: every fourth size is held out whole. Where there are too few sizes for that it is the error of the fitted
rows themselves, and at least what lending from another GPU costs. Where there are too few rows for a fit, what ships is scaled
to them as a whole (few.py); what no row is of is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...costs.attention import AttentionConstants
from ...costs.gemm import GemmConstants
from ...costs.machine import Array
from ...costs.moe import LOADED
from ...costs.rowwise import LOOKUPS, RowwiseConstants
from ...costs.shelf import FEW_ROWS, LENT_SIGMA, Constants, Fit, Shelf
from ...errors import UserError
from ...hardware.gpu import Gpu
from . import few, ratios
from .deep_gemm import DEEP_TILES, SPILL_START
from .doubt import HINT
from .groups import RATIO, Group, groups, held_out, ranges_of
from .kernel_words import adds_to_gradient
from .kernels import ATTENTION_PRIOR, GEMM_PRIOR, PLAIN_PRIOR, fitted
from .predict import CAST_START, predicted
from .table import Measured

SURE = 0.68
"""The share of rows whose error stays below `sigma`."""
LEAST_SIGMA = {"gemm": 0.01, "moe": 0.01, "attention": 0.01, "rowwise": 0.05}
"""What the clock of a GPU varies by itself; and what is bound by memory is not all pointwise."""
SIGMA_MOST = 0.5
"""What fits no better than that was not measured as the columns say."""
USUAL: Mapping[str, Constants] = {
    "gemm": GemmConstants(),
    "moe": GemmConstants(),
    "attention": AttentionConstants(),
    "rowwise": RowwiseConstants(),
}
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
    scaled: few.Scaled | None = None
    """What ships and was scaled, where there were too few rows for a fit."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What a table tells about a GPU."""

    gpu: str
    fits: tuple[Judged, ...]
    unused: Mapping[str, int]
    """Why rows were left out, and how many."""
    missing: tuple[str, ...] = ()
    """Kernels that no row is of, and whose constants they keep."""


def profile(rows: Sequence[Measured], gpu: Gpu, shelf: Shelf) -> Profile:
    """The fits that a table of one GPU's kernels gives."""
    unused: dict[str, int] = {}
    every = list(groups(rows, gpu, unused))
    fits: list[Judged] = []
    for group in (group for group in every if group.library != RATIO):
        made = _judged(group, gpu, shelf) if len(group.rows) >= FEW_ROWS else _scaled(group, gpu, shelf)
        if made.scaled and made.fit.sigma > SIGMA_MOST:
            reason = f"few rows of {_name(made.fit)}, which no one factor explains"
            unused[reason] = unused.get(reason, 0) + len(group.rows)
            continue
        fits.append(made)
    doubted = [made.fit for made in fits if made.fit.sigma > SIGMA_MOST]
    fits = [made for made in fits if made.fit.sigma <= SIGMA_MOST]
    for group in (group for group in every if group.library == RATIO):
        fits = _with_ratios(fits, group, unused, (gpu, shelf))
    if doubted and not fits:
        raise UserError("; ".join(map(_doubt, doubted)), hint=HINT)
    unused |= {_doubt(fit): fit.rows for fit in doubted}
    if not fits:
        told = "; ".join(f"{count} rows: {reason}" for reason, count in unused.items())
        raise UserError(
            f"nothing to fit in {len(rows)} rows ({told})", hint="a fit takes products, attention or pointwise kernels"
        )
    measured = [(one.fit.family, one.fit.dtype) for one in fits if one.fit.rows]
    return Profile(gpu.name, tuple(fits), unused, few.missing(measured, gpu, shelf))


def _with_ratios(fits: list[Judged], beside: Group, unused: dict[str, int], ships: tuple[Gpu, Shelf]) -> list[Judged]:
    """The fits, that to pointwise kernels with the ratios of other operators to those; or to what ships, if none was measured."""
    own = next((judged for judged in fits if judged.fit.family == "rowwise"), None)
    judged = own or _as_shipped(*ships)
    c: Any = judged.fit.constants
    found = ratios.found(beside.rows, beside.kernels, c, beside.on, beside.cold)
    ops, told = [kernel.op for kernel in beside.kernels], []
    for op in dict.fromkeys(ops):
        ratio = next((ratio for ratio in found if ratio.op == op), None)
        if ratio is None:
            unused[f"no large row of {op}"] = ops.count(op)
        elif ratio.error > SIGMA_MOST:
            unused[f"no one ratio comes nearer to {op} than {ratio.error:.0%}"] = ops.count(op)
        else:
            told.append(ratio)
    if not told:
        return fits
    pairs = {ratio.op: (ratio.times, ratio.error) for ratio in told}
    rows = {ratio.op: ratio.told for ratio in told}
    made = replace(judged, fit=replace(judged.fit, ratios=pairs, ratio_rows=rows), ratios=tuple(told))
    return [made if one is own else one for one in fits] if own else [*fits, made]


def _as_shipped(gpu: Gpu, shelf: Shelf) -> Judged:
    """Pointwise kernels of which nobody gave rows: what ships, which is none of this machine's."""
    chosen = few.shipped(gpu, shelf, "rowwise", "")
    c = chosen.fit.constants if chosen else RowwiseConstants()
    sigma, ranges = (chosen.sigma, chosen.fit.ranges) if chosen else (few.UNKNOWN_SIGMA, {})
    return Judged(Fit("rowwise", "", "", c, sigma, ranges, 0, few.words_of(chosen)), 0, 0.0)


def _doubt(fit: Fit) -> str:
    """Why a fit tells nothing."""
    return f"{_name(fit)}: no constants come nearer than {fit.sigma:.0%}"


def _name(fit: Fit) -> str:
    return " ".join(filter(None, (fit.family, fit.dtype, fit.library)))


# Fitting --------------------------------------------------------------------------------------------------------------------


def _judged(group: Group, gpu: Gpu, shelf: Shelf) -> Judged:
    """A fit to all rows, judged by one to some of them."""
    start, prior = _start(group, gpu, shelf)
    held = held_out(group)
    constants, cast = _fit(group, start, prior)
    if held is None:
        errors = np.abs(predicted(constants, group, cast) / group.seconds - 1)
        sigma = max(float(np.quantile(errors, SURE)), LENT_SIGMA)
    else:
        unseen = group.part(held)
        c, its_cast = _fit(group.part(~held), start, prior)
        errors = np.abs(predicted(c, unseen, its_cast) / unseen.seconds - 1)
        sigma = max(float(np.quantile(errors, SURE)), LEAST_SIGMA[group.family])
    fit = Fit(group.family, group.dtype, group.library, constants, sigma, ranges_of(group), **_about(group, cast))
    return Judged(fit, 0 if held is None else int(held.sum()), float(errors.mean()))


def _scaled(group: Group, gpu: Gpu, shelf: Shelf) -> Judged:
    """What ships, or would be lent, scaled to rows that are too few for a fit."""
    chosen = few.shipped(gpu, shelf, group.family, group.dtype, group.library)
    start = chosen.fit.constants if chosen else USUAL[group.family]
    held = chosen.fit if group.casts and chosen and chosen.fit.cast else None
    cast = np.array([*(held.cast or ()), *(held.beside[name] for name in SPILL_START if name in held.beside)] if held else [])
    only_back = group.backward & ~group.forward & (group.family == "attention")
    made = few.scaled(start, few.words_of(chosen), group.seconds, predicted(start, group, cast), only_back)
    errors = np.abs(predicted(made.constants, group, cast) / group.seconds - 1)
    known, lent_ranges = (chosen.sigma, chosen.fit.ranges) if chosen else (few.UNKNOWN_SIGMA, {})
    sigma = max(few.LEAST_SIGMA, known, float(np.quantile(errors, SURE)))
    about = _about(group, cast)
    about["source"] = f"{about['source']}: {made.times:.3g} times {made.of}"
    fit = Fit(group.family, group.dtype, group.library, made.constants, sigma, ranges_of(group), **about, lent_ranges=lent_ranges)
    return Judged(fit, 0, float(errors.mean()), scaled=made)


def _about(group: Group, cast: Array) -> dict[str, Any]:
    """What is known of a fit beside its constants."""
    source = ", ".join(sorted({row.source.partition(":")[0] or "not stated" for row in group.rows})).replace('"', "'")
    with_cast = (float(cast[0]), float(cast[1])) if len(cast) else None
    beside = dict(zip(SPILL_START, cast[2:].tolist(), strict=False))
    is_gemm = group.family == "gemm"
    back = group.backward if group.family == "attention" else [is_gemm and adds_to_gradient(row.probe) for row in group.rows]
    return {"rows": len(group.rows), "source": source, "cast": with_cast, "backward_rows": int(sum(back)), "beside": beside}


def _start(group: Group, gpu: Gpu, shelf: Shelf) -> tuple[Constants, dict[str, float]]:
    """Where a fit starts, and what of it is free."""
    chosen = few.shipped(gpu, shelf, group.family, group.dtype, group.library)
    start = chosen.fit.constants if chosen else USUAL[group.family]
    if group.family == "gemm":
        accumulates = any(adds_to_gradient(row.probe) for row in group.rows)
        reads_again = isinstance(start, GemmConstants) and start.reread > 0
        return start, GEMM_PRIOR | ({"accumulate": 1.0} if accumulates else {}) | (PLAIN_PRIOR if reads_again else {})
    if group.family == "moe":
        odd = isinstance(start, GemmConstants) and start.odd > 1 and bool((group.column("n") % LOADED).any())
        return start, GEMM_PRIOR | ({"odd": 1.0} if odd else {})
    if group.family == "attention":
        return start, ATTENTION_PRIOR | ({"backward": BACKWARD_SIGMA} if group.backward.any() else {})
    looks_up = any(kernel.op in LOOKUPS for kernel in group.kernels)
    return start, ROWWISE_PRIOR | ({"lookup_cycles": 1.0} if looks_up else {})


def _fit(group: Group, start: Any, prior: Mapping[str, float]) -> tuple[Any, Array]:
    """Constants, and those of what the rows were measured with: a cast, and slow steps of DeepGEMM."""
    slow = SPILL_START.values() if getattr(start, "tiles", "") == DEEP_TILES else ()
    extra = np.array([*CAST_START, *slow]) if group.casts else None
    return fitted(start, prior, lambda c, beside: predicted(c, group, beside), group.seconds, extra)
