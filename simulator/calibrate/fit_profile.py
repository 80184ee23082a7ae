"""A profile from a table: the constants of kernel models fitted to measurements of one GPU.

GEMMs and attention are fitted per dtype and library, pointwise kernels and look-ups at once; other memory-bound operators are
known by their ratios to those (operator_ratios.py). A fit starts from what is known of this GPU, or of the one most like it,
and a constant that the rows do not determine keeps its start. The error of a fit is that of rows that it did not see: every
fourth size is held out whole. Where there are too few sizes for that it is the error of the fitted rows themselves, and at least
what borrowing from another GPU costs. Where there are too few rows for a fit, what ships is scaled to them: one or two rows give
no more than one factor on every time constant (for attention one in each direction), and at other sizes times are transferred.
Kernels that no row is of are named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..costs.kernels.estimator import BORROWED_SIGMA, FEW_ROWS, FitLibrary, SelectedFit, best_fit_for
from ..costs.kernels.family import Fit
from ..costs.kernels.gpu_model import Array
from ..errors import UserError
from ..hardware.gpu import Gpu
from ..measurements.kernel_table import IMPOSSIBLE_HINT, Measured
from . import operator_ratios
from .least_squares import fit_constants
from .row_groups import RATIO, Group, groups, held_out

SURE = 0.68
"""The share of rows whose error stays below `sigma`."""
SIGMA_MOST = 0.5
"""What fits no better than that was not measured as the columns say."""
LEAST_SCALED_SIGMA = 0.15
"""Of what one factor tells: the sizes of a few rows stand for all (assumed: as between GPUs that run the same kernels)."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """What was scaled to a few rows, and by how much."""

    of: str
    times: float


@dataclass(frozen=True, slots=True)
class EvaluatedFit:
    """A fit, how it was judged, and how far off it is on average."""

    fit: Fit
    held_out: int
    """Rows that it was judged by and had not seen; 0 if there were too few."""
    error: float
    """Mean relative error of those rows, or of the fitted ones."""
    ratios: tuple[operator_ratios.Ratio, ...] = ()
    """Of memory-bound operators to the pointwise kernels that the fit is of."""
    scaled: Scaled | None = None
    """What ships and was scaled, where there were too few rows for a fit."""


@dataclass(frozen=True, slots=True)
class GpuProfile:
    """The fits of a GPU that a table gives."""

    gpu: str
    fits: tuple[EvaluatedFit, ...]
    unused: Mapping[str, int]
    """Why rows were left out, and how many."""
    missing: tuple[str, ...] = ()
    """Kernels that no row is of, and whose constants they keep."""


def profile(rows: Sequence[Measured], gpu: Gpu, library: FitLibrary) -> GpuProfile:
    """The fits that a table of one GPU's kernels gives."""
    unused: dict[str, int] = {}
    every = list(groups(rows, gpu, unused))
    fits: list[EvaluatedFit] = []
    for group in (group for group in every if group.library != RATIO):
        made = _fitted(group, gpu, library) if len(group.rows) >= FEW_ROWS else _scaled(group, gpu, library)
        if made.scaled and made.fit.sigma > SIGMA_MOST:
            reason = f"few rows of {_name(made.fit)}, which no one factor explains"
            unused[reason] = unused.get(reason, 0) + len(group.rows)
            continue
        fits.append(made)
    rejected = [made.fit for made in fits if made.fit.sigma > SIGMA_MOST]
    fits = [made for made in fits if made.fit.sigma <= SIGMA_MOST]
    for group in (group for group in every if group.library == RATIO):
        fits = _with_ratios(fits, group, unused, best_fit_for(gpu, library, group.family.name))
    if rejected and not fits:
        raise UserError("; ".join(map(_no_constants, rejected)), hint=IMPOSSIBLE_HINT)
    unused |= {_no_constants(fit): fit.rows for fit in rejected}
    if not fits:
        reasons = "; ".join(f"{count} rows: {reason}" for reason, count in unused.items())
        hint = "a fit takes GEMMs, attention or pointwise kernels"
        raise UserError(f"nothing to fit in {len(rows)} rows ({reasons})", hint=hint)
    measured = [(one.fit.family, one.fit.dtype) for one in fits if one.fit.rows]
    return GpuProfile(gpu.name, tuple(fits), unused, _missing(measured, gpu, library))


def _with_ratios(fits: list[EvaluatedFit], beside: Group, unused: dict[str, int], shipped: SelectedFit) -> list[EvaluatedFit]:
    """The fits, that to pointwise kernels with the ratios of other operators to those; or to what ships, if none was measured."""
    own = next((judged for judged in fits if judged.fit.family == beside.family.name), None)
    known = (shipped.fit.constants, shipped.sigma, shipped.fit.ranges, 0, source_of(shipped))
    judged, timed = own or EvaluatedFit(Fit(beside.family.name, "", "", *known), 0, 0.0), beside.timed
    found = operator_ratios.ratios_of(timed.seconds, timed.kernels, judged.fit.constants, timed.on, timed.cold)
    ops, sure = [kernel.op for kernel in timed.kernels], []
    for op in dict.fromkeys(ops):
        ratio = next((ratio for ratio in found if ratio.op == op), None)
        if ratio is None:
            unused[f"no large row of {op}"] = ops.count(op)
        elif ratio.error > SIGMA_MOST:
            unused[f"no one ratio comes nearer to {op} than {ratio.error:.0%}"] = ops.count(op)
        else:
            sure.append(ratio)
    if not sure:
        return fits
    pairs = {ratio.op: (ratio.times, ratio.error) for ratio in sure}
    rows = {ratio.op: ratio.large for ratio in sure}
    made = replace(judged, fit=replace(judged.fit, ratios=pairs, ratio_rows=rows), ratios=tuple(sure))
    return [made if one is own else one for one in fits] if own else [*fits, made]


def _no_constants(fit: Fit) -> str:
    """Why a fit tells nothing."""
    return f"{_name(fit)}: no constants come nearer than {fit.sigma:.0%}"


def _name(fit: Fit) -> str:
    return " ".join(filter(None, (fit.family, fit.dtype, fit.library)))


def source_of(chosen: SelectedFit) -> str:
    """Whose constants a GPU has without a profile."""
    if chosen.provenance == "roofline":
        return "the usual constants"
    return " ".join(filter(None, ("that of", chosen.owner, chosen.fit.dtype, chosen.fit.library)))


def _missing(measured: Sequence[tuple[str, str]], gpu: Gpu, library: FitLibrary) -> tuple[str, ...]:
    """Families of kernels, in the dtypes of a profile, that it has no fit for and that ship with one."""
    dtypes = dict.fromkeys(dtype for _, dtype in measured if dtype)
    wanted = [(family, dtype) for dtype in dtypes for family in ("gemm", "attention")]
    absent = [pair for pair in (*wanted, ("rowwise", "")) if pair not in measured]
    found = [(family, dtype, best_fit_for(gpu, library, family, dtype)) for family, dtype in absent]
    known = [one for one in found if one[2].provenance != "roofline"]
    return tuple(f"{' '.join(filter(None, (family, dtype)))}: {source_of(chosen)}" for family, dtype, chosen in known)


# Fitting --------------------------------------------------------------------------------------------------------------------


def _fitted(group: Group, gpu: Gpu, library: FitLibrary) -> EvaluatedFit:
    """A fit to all rows, judged by one to some of them."""
    start, timed, held = _shipped(group, gpu, library).fit.constants, group.timed, held_out(group)
    free = group.family.free(timed, start)

    def fit(some: Any) -> tuple[Any, Array]:
        extra = group.family.extra_start(some, start)
        return fit_constants(start, free, lambda c, beside: group.family.seconds(c, some, beside), some.seconds, extra)

    constants, extra = fit(timed)
    if held is None:
        errors = _errors(group, constants, extra)
        sigma = max(float(np.quantile(errors, SURE)), BORROWED_SIGMA)
    else:
        unseen = replace(group, timed=timed.part(held))
        errors = _errors(unseen, *fit(timed.part(~held)))
        sigma = max(float(np.quantile(errors, SURE)), group.family.least_sigma)
    return EvaluatedFit(_fit(group, constants, sigma, extra), 0 if held is None else int(held.sum()), float(errors.mean()))


def _scaled(group: Group, gpu: Gpu, library: FitLibrary) -> EvaluatedFit:
    """What ships, or would be borrowed, scaled to rows that are too few for a fit."""
    chosen = _shipped(group, gpu, library)
    extra = group.family.extra_of(chosen.fit, group.timed)
    constants, times = group.family.scaled_to(chosen.fit.constants, group.timed, extra)
    errors = _errors(group, constants, extra)
    sigma = max(LEAST_SCALED_SIGMA, chosen.sigma, float(np.quantile(errors, SURE)))
    made, of = _fit(group, constants, sigma, extra), source_of(chosen)
    made = replace(made, source=f"{made.source}: {times:.3g} times {of}", transferred_ranges=chosen.fit.ranges)
    return EvaluatedFit(made, 0, float(errors.mean()), scaled=Scaled(of, times))


def _shipped(group: Group, gpu: Gpu, library: FitLibrary) -> SelectedFit:
    """The fit for a group's kernels without a profile, of its library if anybody measured that."""
    named = group.library if group.library in library.libraries(group.family.name) else ""
    return best_fit_for(gpu, library, group.family.name, group.dtype, named)


def _errors(group: Group, constants: Any, extra: Array) -> Array:
    """Relative errors of the rows of a group."""
    return np.abs(group.family.seconds(constants, group.timed, extra) / group.timed.seconds - 1)


def _fit(group: Group, constants: Any, sigma: float, extra: Array) -> Fit:
    """A fit with the sizes between which its rows lie, and what is known beside its constants."""
    rows = [group.family.sizes(row[0]) for row in group.timed.rows]
    sizes = {name: (float(min(row[name] for row in rows)), float(max(row[name] for row in rows))) for name in rows[0]}
    source = ", ".join(sorted({row.source.partition(":")[0] or "not stated" for row in group.rows})).replace('"', "'")
    about = {"rows": len(group.rows), "source": source, **group.family.about(group.timed, extra)}
    return Fit(group.family.name, group.dtype, group.library, constants, sigma, sizes, **about)
