"""A profile from a table: the constants of kernel models fitted to measurements of one GPU.

GEMMs and attention are fitted per dtype and library, pointwise kernels and look-ups at once; other memory-bound operators are
known by their ratios to those. A fit starts from what is known of this GPU, or of the one most like it,
and a constant that the rows do not determine keeps its start. The error of a fit is that of rows that it did not see: every
fourth size is held out whole. Where there are too few sizes for that it is the error of the fitted rows themselves, and at least
what borrowing from another GPU costs. Where there are too few rows for a fit, what ships is scaled to them: one or two rows give
no more than one factor on every time constant (for attention one in each direction), and at other sizes times are transferred.
Kernels that no row is of are named.

A norm, a softmax, an optimizer step takes so many times as long as a pointwise kernel of the same bytes. Such a ratio is fitted
to rows which are one operator of the framework, so large that they hardly wait for their launch: their median, and as its error
what most of them stay within, each size by the rows of all others. How far off smaller rows are by that ratio is reported beside
it: how often they wait for a launch differs from operator to operator. Rows of several operators say nothing about one kernel; a
run has those operators one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..costs.kernels.estimator import BORROWED_SIGMA, FEW_ROWS, FITTED_AS, SHORT, FitLibrary, SelectedFit, best_fit_for
from ..costs.kernels.family import ANY, Fit, KernelFamily, RatioRows, TimedKernels, families
from ..costs.kernels.gpu_model import Array, Machine, machine
from ..costs.kernels.rowwise import RowwiseConstants, pointwise_s
from ..errors import UserError
from ..hardware.gpu import PEAK_OF, Gpu
from ..kernels import Rowwise, Shape
from ..measurements.attention_libraries import library_of
from ..measurements.kernel_table import IMPOSSIBLE_HINT, ImpossibleRow, Measured
from ..measurements.kernel_words import WIDTH, kernels_of, name_of, turns_of
from ..units import US_PER_S
from .least_squares import fit_constants

RATIO = "ratio"
"""Instead of a library: rows of operators that are known by their ratios to the kernels of a fit."""
EVERY = 4
"""One size in so many is held out; of two sizes one in twice as many each."""
LEAST_HELD, LEAST_KEPT = 6, 24
"""Fewest rows that a fit is evaluated by, and that it is fitted to then."""
SURE = 0.68
"""The share of rows whose error stays below that of a fit or a ratio."""
SIGMA_MOST = 0.5
"""What fits no better than that was not measured as the columns say."""
LEAST_SCALED_SIGMA = 0.15
"""Least error of constants that were scaled: the sizes of a few rows stand for all (assumed: as between GPUs that run the same
kernels)."""
FEW, FEW_ERROR = 3, 0.15
"""Fewer rows than that give no ratio that is surer than this."""
LARGE = 5.0
"""A pointwise kernel of the bytes of a large row takes so many times as long as its launch."""
LEAST_ERROR = 0.05
"""Least error of a ratio, as of every fit to what is bound by memory."""


@dataclass(frozen=True)
class Group:
    """Rows of one fit: kernels of a family in one dtype and of one library."""

    family: KernelFamily
    dtype: str
    library: str
    rows: tuple[Measured, ...]
    timed: TimedKernels


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as long as a pointwise kernel an operator takes."""

    op: str
    times: float
    error: float
    """Relative error that 68% of the rows stay below, each size unseen."""
    large: RatioRows
    """The rows that it was fitted to."""
    smaller_rows: int = 0
    """Too small to be fitted to."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """What was scaled to a few rows, and by how much."""

    of: str
    times: float


@dataclass(frozen=True, slots=True)
class EvaluatedFit:
    """A fit, how it was evaluated, and how far off it is on average."""

    fit: Fit
    held_out: int
    """Rows that the fit was evaluated by and had not seen; 0 if there were too few."""
    error: float
    """Mean relative error of those rows, or of the fitted ones."""
    ratios: tuple[Ratio, ...] = ()
    """Of memory-bound operators to the pointwise kernels that the fit is of."""
    scaled: Scaled | None = None
    """What ships and was scaled, where there were too few rows for a fit."""


@dataclass(frozen=True, slots=True)
class GpuProfile:
    """The fits of a GPU that the rows of a table give."""

    on: Gpu
    rows: Sequence[Measured]
    fits: tuple[EvaluatedFit, ...]
    unused: Mapping[str, int]
    """Why rows were left out, and how many."""
    missing: tuple[str, ...]
    """Kernels that no row is of, and whose constants they keep."""
    impossible: Sequence[ImpossibleRow] = ()
    """Rows of the table that were left out because they are faster than the GPU can be."""


def profile(rows: Sequence[Measured], gpu: Gpu, library: FitLibrary) -> GpuProfile:
    """The fits that a table of one GPU's kernels gives."""
    unused = Counter[str]()
    every = list(groups(rows, gpu, unused))
    fits: list[EvaluatedFit] = []
    rejected: list[Fit] = []
    for group in (group for group in every if group.library != RATIO):
        made = _fitted(group, gpu, library) if len(group.rows) >= FEW_ROWS else _scaled(group, gpu, library)
        if made.fit.sigma <= SIGMA_MOST:
            fits.append(made)
        elif made.scaled:
            unused[f"few rows of {_name(made.fit)}, which no one factor explains"] += len(group.rows)
        else:
            rejected.append(made.fit)
    for group in (group for group in every if group.library == RATIO):
        fits = _with_ratios(fits, group, unused, best_fit_for(gpu, library, group.family.name))
    wrong = {f"{_name(fit)}: no constants come nearer than {fit.sigma:.0%}": fit.rows for fit in rejected}
    if rejected and not fits:
        raise UserError("; ".join(wrong), hint=IMPOSSIBLE_HINT)
    unused.update(wrong)
    if not fits:
        reasons = "; ".join(f"{count} rows: {reason}" for reason, count in unused.items())
        hint = "a fit takes GEMMs, attention or pointwise kernels"
        raise UserError(f"nothing to fit in {len(rows)} rows ({reasons})", hint=hint)
    return GpuProfile(gpu, rows, tuple(fits), unused, _missing([made.fit for made in fits if made.fit.rows], gpu, library))


def _name(fit: Fit) -> str:
    return " ".join(filter(None, (fit.family, fit.dtype, fit.library)))


def _missing(measured: Sequence[Fit], gpu: Gpu, library: FitLibrary) -> tuple[str, ...]:
    """Families of kernels, in the dtypes of a profile, that it has no fit for and that ship with one."""
    dtypes = dict.fromkeys(fit.dtype for fit in measured if fit.dtype)
    wanted = [*((family, dtype) for dtype in dtypes for family in ("gemm", "attention")), ("rowwise", "")]
    absent = [pair for pair in wanted if pair not in [(fit.family, fit.dtype) for fit in measured]]
    found = {" ".join(pair).strip(): best_fit_for(gpu, library, *pair) for pair in absent}
    return tuple(f"{name}: {source_of(chosen)}" for name, chosen in found.items() if chosen.provenance != "roofline")


def source_of(chosen: SelectedFit) -> str:
    """Whose constants a GPU has without a profile."""
    if chosen.provenance == "roofline":
        return "the usual constants"
    return " ".join(filter(None, ("that of", chosen.owner, chosen.fit.dtype, chosen.fit.library)))


# Rows that are fitted together ----------------------------------------------------------------------------------------------


def groups(rows: Iterable[Measured], gpu: Gpu, unused: Counter[str]) -> Iterator[Group]:
    """The rows of each fit; what belongs to none is counted."""
    found: dict[tuple[str, str, str], list[tuple[Measured, tuple[Shape, ...]]]] = {}
    for row in rows:
        kernels = kernels_of(row.probe)
        key = _key(row, kernels, gpu)
        if isinstance(key, str):
            unused[key] += 1
        else:
            found.setdefault(key, []).append((row, kernels))
    for (name, dtype, library), pairs in found.items():
        own, kernels_of_rows = zip(*pairs, strict=True)
        family, of_rows = families()[name], own[0].probe.dtype
        on = machine(gpu, "" if family.any_format else PEAK_OF.get(of_rows, of_rows))
        seconds, cold = np.array([row.seconds for row in own]), np.array([row.cold for row in own])
        turns = min(turns_of(row.probe.variant) for row in own)
        timed = TimedKernels(kernels_of_rows, seconds, on, WIDTH[of_rows], cold, turns)
        yield Group(family, dtype, library, own, timed)


def _key(row: Measured, kernels: tuple[Shape, ...], gpu: Gpu) -> tuple[str, str, str] | str:
    """The family, dtype and library of the fit that a row belongs to, or why it belongs to none."""
    probe = row.probe
    if not row.may_be_fitted:
        return f"the role {row.role!r}"
    if not kernels:
        name = name_of(probe.op, probe.variant)
        return f"no model of {probe.op}" + f" {name}" * (name not in probe.op)
    family = families()[kernels[0].family]
    if family.any_format:
        if row.is_eager:
            return f"{probe.op}: several operators, which a run has one by one"
        return family.name, "", "" if family.is_fitted(kernels[0]) else RATIO
    if PEAK_OF.get(probe.dtype, probe.dtype) not in gpu.peak_flop_per_s:
        return f"{gpu.name} has no peak in {probe.dtype}"
    dtype = FITTED_AS.get(probe.dtype, probe.dtype)
    if WIDTH[dtype] != WIDTH[probe.dtype]:
        return f"{probe.dtype} takes the fit of {dtype}"
    library = library_of(probe.variant) if family.names_libraries else ""
    return family.name, dtype, SHORT.get(library, library) or ANY


def _held_out(group: Group) -> Array | None:
    """The rows to evaluate a fit by: all that have one of the held-out sizes. None if too few are left on either side."""
    sizes = group.family.held_out
    for names in (sizes, *((name,) for name in sizes)):
        held, every = np.zeros(len(group.rows), dtype=bool), EVERY * len(names)
        for name in names:
            column = group.timed.first(name)
            held |= np.isin(column, np.unique(column)[every // 2 :: every])
        if held.sum() >= LEAST_HELD and (~held).sum() >= LEAST_KEPT:
            return held
    return None


# Fitting --------------------------------------------------------------------------------------------------------------------


def _fitted(group: Group, gpu: Gpu, library: FitLibrary) -> EvaluatedFit:
    """A fit to all rows, evaluated by one to some of them."""
    start, timed, held = _shipped(group, gpu, library).fit.constants, group.timed, _held_out(group)
    free = group.family.free(timed, start)

    def fit(some: Any) -> tuple[Any, Array]:
        extra = group.family.extra_start(some, start)
        return fit_constants(start, free, lambda c, beside: group.family.seconds(c, some, beside), some.seconds, extra)

    constants, extra = fit(timed)
    if held is None:
        errors, least = _errors(group.family, timed, constants, extra), BORROWED_SIGMA
    else:
        errors, least = _errors(group.family, timed.part(held), *fit(timed.part(~held))), group.family.least_sigma
    sigma = max(float(np.quantile(errors, SURE)), least)
    return EvaluatedFit(_fit(group, constants, sigma, extra), 0 if held is None else int(held.sum()), float(errors.mean()))


def _scaled(group: Group, gpu: Gpu, library: FitLibrary) -> EvaluatedFit:
    """What ships, or would be borrowed, scaled to rows that are too few for a fit."""
    chosen = _shipped(group, gpu, library)
    extra = group.family.extra_of(chosen.fit, group.timed)
    constants, times = group.family.scaled_to(chosen.fit.constants, group.timed, extra)
    errors = _errors(group.family, group.timed, constants, extra)
    sigma = max(LEAST_SCALED_SIGMA, chosen.sigma, float(np.quantile(errors, SURE)))
    made, of = _fit(group, constants, sigma, extra), source_of(chosen)
    made = replace(made, source=f"{made.source}: {times:.3g} times {of}", transferred_ranges=chosen.fit.ranges)
    return EvaluatedFit(made, 0, float(errors.mean()), scaled=Scaled(of, times))


def _shipped(group: Group, gpu: Gpu, library: FitLibrary) -> SelectedFit:
    """The fit for a group's kernels without a profile, of its library if anybody measured that."""
    named = group.library if group.library in library.libraries(group.family.name) else ""
    return best_fit_for(gpu, library, group.family.name, group.dtype, named)


def _errors(family: KernelFamily, timed: TimedKernels, constants: Any, extra: Array) -> Array:
    """Relative errors of rows by some constants."""
    return np.abs(family.seconds(constants, timed, extra) / timed.seconds - 1)


def _fit(group: Group, constants: Any, sigma: float, extra: Array) -> Fit:
    """A fit with the sizes between which its rows lie, and what is known beside its constants."""
    rows = [group.family.sizes(row[0]) for row in group.timed.rows]
    sizes = {name: (float(min(row[name] for row in rows)), float(max(row[name] for row in rows))) for name in rows[0]}
    source = ", ".join(sorted({row.source.partition(":")[0] or "not stated" for row in group.rows})).replace('"', "'")
    about = {"rows": len(group.rows), "source": source, **group.family.about(group.timed, extra)}
    return Fit(group.family.name, group.dtype, group.library, constants, sigma, sizes, **about)


# Ratios of operators ---------------------------------------------------------------------------------------------------------


def _with_ratios(fits: list[EvaluatedFit], group: Group, unused: Counter[str], shipped: SelectedFit) -> list[EvaluatedFit]:
    """The fits, that to pointwise kernels with the ratios of other operators to those; or to what ships, if none was measured."""
    own = next((made for made in fits if made.fit.family == group.family.name), None)
    known = (shipped.fit.constants, shipped.sigma, shipped.fit.ranges, 0, source_of(shipped))
    made, timed = own or EvaluatedFit(Fit(group.family.name, "", "", *known), 0, 0.0), group.timed
    found = {ratio.op: ratio for ratio in ratios_of(timed.seconds, timed.kernels, made.fit.constants, timed.on, timed.cold)}
    for op, rows in Counter(kernel.op for kernel in timed.kernels).items():
        if op not in found:
            unused[f"no large row of {op}"] = rows
        elif found[op].error > SIGMA_MOST:
            unused[f"no one ratio comes nearer to {op} than {found.pop(op).error:.0%}"] = rows
    if not found:
        return fits
    pairs = {op: (ratio.times, ratio.error) for op, ratio in found.items()}
    fit = replace(made.fit, ratios=pairs, ratio_rows={op: ratio.large for op, ratio in found.items()})
    with_ratios = replace(made, fit=fit, ratios=tuple(found.values()))
    return [with_ratios if one is own else one for one in fits] if own else [*fits, with_ratios]


def ratios_of(
    seconds: Array, kernels: Sequence[Rowwise], c: RowwiseConstants, on: Machine, cold: ArrayLike = False
) -> tuple[Ratio, ...]:
    """The ratios of measured times to those of pointwise kernels by some constants; of operators with large rows, or that move
    nothing: they stand to a launch."""
    moved = np.array([float(kernel.traffic_bytes) for kernel in kernels])
    ops, cold = np.array([kernel.op for kernel in kernels]), np.broadcast_to(cold, moved.shape)
    large = (moved == 0) | (pointwise_s(c, on, moved, cold) >= LARGE * c.launch_us / US_PER_S)

    def ratio(op: str) -> Ratio:
        """The median, and how far off the rows of each size are by those of all others, or by all if there is one size only."""
        own, small = large & (ops == op), ~large & (ops == op)
        sizes, times = moved[own], seconds[own] / pointwise_s(c, on, moved[own], cold[own])
        all_times = float(np.median(times))
        others = [times[sizes != size] for size in sizes]
        unseen = np.array([float(np.median(some)) if len(some) else all_times for some in others])
        errors = np.abs(pointwise_s(c, on, sizes, cold[own], unseen) / seconds[own] - 1)
        smaller = np.abs(pointwise_s(c, on, moved[small], cold[small], all_times) / seconds[small] - 1)
        least = LEAST_ERROR if len(times) >= FEW else FEW_ERROR
        off = float(np.quantile(smaller, SURE)) if len(smaller) else 0.0
        known = RatioRows((float(sizes.min()), float(sizes.max())), len(times), off)
        return Ratio(op, all_times, max(least, float(np.quantile(errors, SURE))), known, len(smaller))

    return tuple(ratio(str(op)) for op in dict.fromkeys(ops.tolist()) if (large & (ops == op)).any())
