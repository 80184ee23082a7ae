"""A profile fitted to a table: the constants of kernel models for one GPU.

GEMMs and attention are fitted per dtype and library, pointwise kernels and look-ups together; other memory-bound operators have
ratios to pointwise kernels. A fit starts from the known constants of this GPU, or of the most similar one, and a constant that
the rows do not determine keeps its start. The error of a fit is measured on rows outside the fit: every fourth size is held out
entirely. Where there are too few sizes for a held-out set, the error is that of the fitted rows themselves, and at least the
error of transferring from another GPU. Where there are too few rows for a fit, the shipped constants are scaled to the rows: one
or two rows give only one factor on every time constant (for attention one per direction), and at other sizes times are
transferred. Kernels without a row are listed.

A norm, a softmax or an optimizer step takes a constant multiple of the time of a pointwise kernel of the same bytes. Such a ratio
is fitted to rows that are one operator of the framework, and large enough that the launch hardly matters. The ratio is the median
of these rows; its error is the error that 68% of the rows stay below when the ratio is fitted to the other sizes. The error of
smaller rows is reported separately, since the share of launch overhead differs between operators. Rows of several operators say
nothing about one kernel; a run has those operators one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..costs.kernels.family import ANY, Fit, KernelFamily, RatioRows, TimedKernels, families
from ..costs.kernels.fit_choice import BORROWED_SIGMA, FEW_ROWS, FITTED_AS, LIBRARY_ALIASES, FitLibrary, SelectedFit, best_fit_for
from ..costs.kernels.gpu_model import Array, Machine, machine
from ..costs.kernels.rowwise import RowwiseConstants, of_one_id, pointwise_s
from ..errors import UserError
from ..hardware.gpu import PEAK_OF, Gpu
from ..kernels import Rowwise, Shape
from ..measurements.attention_libraries import library_of
from ..measurements.kernel_table import IMPOSSIBLE_HINT, ImpossibleRow, Measured
from ..measurements.kernel_words import WIDTH, kernels_of, name_of, turns_of
from ..measurements.timing_loops import TimingLoop, launches_in, loop_of
from ..units import US_PER_S
from .least_squares import Extra, fit_constants

LAUNCH, GRAPH = "launch", "graph"
"""Operator and variant of rows that time nearly empty kernels launched as a CUDA graph."""
RATIO = "ratio"
"""Key in place of a library: rows of operators that have ratios to the kernels of a fit."""
EVERY = 4
"""One size in this many is held out; with two sizes per kernel, one in twice as many of each."""
LEAST_HELD, LEAST_KEPT = 6, 24
"""Fewest rows in the held-out set, and fewest rows for the fit without them."""
SURE = 0.68
"""Fraction of rows whose error is below the stated error of a fit or a ratio."""
SIGMA_MOST = 0.5
"""Largest error of a ratio or fit: rows with a larger error were not measured as their columns say."""
LEAST_SCALED_SIGMA = 0.15
"""Least relative error of scaled constants: a few rows represent all sizes (assumed equal to the error between GPUs that run the
same kernels)."""
FEW, FEW_ERROR = 3, 0.15
"""With fewer rows than the first number, the error of a ratio is at least the second."""
LARGE = 5.0
"""A row is large if a pointwise kernel of its bytes takes at least this many launch overheads."""
LEAST_ERROR = 0.05
"""Least relative error of a ratio, as of every fit of memory-bound kernels."""


@dataclass(frozen=True)
class Group:
    """The rows of one fit: kernels of one family, dtype and library."""

    family: KernelFamily
    dtype: str
    library: str
    rows: tuple[Measured, ...]
    timed: TimedKernels


@dataclass(frozen=True, slots=True)
class Ratio:
    """Time of an operator relative to a pointwise kernel of the same bytes."""

    op: str
    times: float
    error: float
    """Relative error that 68% of the rows stay below, each size predicted from the other sizes."""
    large: RatioRows
    """The large rows to which the ratio was fitted."""
    smaller_rows: int = 0
    """Number of rows that were too small for the fit."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """The fit whose constants were scaled to a few rows, and the factor."""

    of: str
    times: float


@dataclass(frozen=True, slots=True)
class EvaluatedFit:
    """A fit with its evaluation and its mean error."""

    fit: Fit
    held_out: int
    """Number of held-out rows on which the fit was evaluated; 0 if there were too few."""
    error: float
    """Mean relative error of the held-out rows, or else of the fitted rows."""
    ratios: tuple[Ratio, ...] = ()
    """Ratios of memory-bound operators to the pointwise kernels of the fit."""
    scaled: Scaled | None = None
    """The shipped fit and its factor, where there were too few rows for a fit."""


@dataclass(frozen=True, slots=True)
class GpuProfile:
    """The fits of a GPU to the rows of a table."""

    on: Gpu
    rows: Sequence[Measured]
    fits: tuple[EvaluatedFit, ...]
    unused: Mapping[str, int]
    """Reasons for which rows were left out, with the number of rows."""
    missing: tuple[str, ...]
    """Kernels without a row, and the source of the constants that they keep."""
    impossible: Sequence[ImpossibleRow] = ()
    """Rows of the table that were left out because they are faster than the GPU can be."""


def profile(rows: Sequence[Measured], gpu: Gpu, library: FitLibrary) -> GpuProfile:
    """The profile of a GPU from a table of its kernels."""
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
    fits = _without_marks(fits, rows)
    wrong = {f"{_name(fit)}: no constants come nearer than {fit.sigma:.0%}": fit.rows for fit in rejected}
    if rejected and not fits:
        raise UserError("; ".join(wrong), hint=IMPOSSIBLE_HINT)
    unused.update(wrong)
    if not fits:
        reasons = "; ".join(f"{count} rows: {reason}" for reason, count in unused.items())
        hint = "a fit takes GEMMs, attention or pointwise kernels"
        raise UserError(f"nothing to fit in {len(rows)} rows ({reasons})", hint=hint)
    return GpuProfile(gpu, rows, tuple(fits), unused, _missing([made.fit for made in fits if made.fit.rows], gpu, library))


def _without_marks(fits: list[EvaluatedFit], rows: Sequence[Measured]) -> list[EvaluatedFit]:
    """The fits without the overhead of timing one kernel by itself: the time of a nearly empty kernel between two marks, minus
    that in a graph, if launches in a graph were measured. In a run a kernel follows another, as in a graph."""
    in_graph = [row.seconds * US_PER_S for row in rows if row.probe.op == LAUNCH and row.probe.variant == GRAPH]
    alone = [made.fit.constants.launch_us for made in fits if made.fit.family == "rowwise" and made.fit.rows]
    if not in_graph or not alone:
        return fits
    least, marks = in_graph[0], max(0.0, alone[0] - in_graph[0])

    def shorter(made: EvaluatedFit) -> EvaluatedFit:
        launch = max(least, made.fit.constants.launch_us - marks)
        return replace(made, fit=replace(made.fit, constants=replace(made.fit.constants, launch_us=launch)))

    return [shorter(made) if made.fit.rows else made for made in fits]


def _name(fit: Fit) -> str:
    return " ".join(filter(None, (fit.family, fit.dtype, fit.library)))


def _missing(measured: Sequence[Fit], gpu: Gpu, library: FitLibrary) -> tuple[str, ...]:
    """Families of kernels, in the dtypes of a profile, that have a shipped fit and no fit in the profile."""
    dtypes = dict.fromkeys(fit.dtype for fit in measured if fit.dtype)
    wanted = [*((family, dtype) for dtype in dtypes for family in ("gemm", "attention")), ("rowwise", "")]
    absent = [pair for pair in wanted if pair not in [(fit.family, fit.dtype) for fit in measured]]
    found = {" ".join(pair).strip(): best_fit_for(gpu, library, *pair) for pair in absent}
    return tuple(f"{name}: {source_of(chosen)}" for name, chosen in found.items() if chosen.provenance != "roofline")


def source_of(chosen: SelectedFit) -> str:
    """The source of the constants that a GPU has without a profile."""
    if chosen.provenance == "roofline":
        return "the usual constants"
    return " ".join(filter(None, ("that of", chosen.owner, chosen.fit.dtype, chosen.fit.library)))


# Rows that are fitted together ----------------------------------------------------------------------------------------------


def groups(rows: Iterable[Measured], gpu: Gpu, unused: Counter[str]) -> Iterator[Group]:
    """The rows of each fit; rows that belong to no fit are counted in `unused`."""
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
        on = machine(gpu, "" if family.any_format else of_rows)
        seconds, cold = np.array([row.seconds for row in own]), np.array([row.cold for row in own])
        turns = min(turns_of(row.probe.variant) for row in own)
        loops = np.array([row.launches or launches_in(_loop(row), held[0], gpu.cache_bytes) for row, held in pairs])
        timed = TimedKernels(kernels_of_rows, seconds, on, WIDTH[of_rows], cold, turns, loops)
        yield Group(family, dtype, library, own, timed)


def _key(row: Measured, kernels: tuple[Shape, ...], gpu: Gpu) -> tuple[str, str, str] | str:
    """The family, dtype and library of the fit of a row, or the reason why the row belongs to no fit."""
    probe = row.probe
    if not row.may_be_fitted:
        return f"the role {row.role!r}"
    if not _loop(row).filled:
        return f"{probe.op}: unfilled operands"
    if not kernels:
        name = name_of(probe.op, probe.variant)
        return f"no model of {probe.op}" + f" {name}" * (name not in probe.op)
    family = families()[kernels[0].family]
    if family.any_format:
        if row.is_eager:
            return f"{probe.op}: several operators, which run separately in a step"
        if of_one_id(probe.op, probe.dtype, probe.variant):
            return f"{probe.op}: ids that were all the same"
        return family.name, "", "" if family.is_fitted(kernels[0]) else RATIO
    if PEAK_OF.get(probe.dtype, probe.dtype) not in gpu.peak_flop_per_s:
        return f"{gpu.name} has no peak in {probe.dtype}"
    dtype = FITTED_AS.get(probe.dtype, probe.dtype)
    if WIDTH[dtype] != WIDTH[probe.dtype]:
        return f"{probe.dtype} takes the fit of {dtype}"
    library = library_of(probe.variant) if family.names_libraries else ""
    return family.name, dtype, LIBRARY_ALIASES.get(library, library) or ANY


def _loop(row: Measured) -> TimingLoop:
    return loop_of(row.source, row.probe.dtype)


def _held_out(group: Group) -> Array | None:
    """The rows for the evaluation of a fit: all rows with a held-out size. None if too few rows are left in either set."""
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
    """A fit to all rows, evaluated by a fit without the held-out rows."""
    start, timed, held = _shipped(group, gpu, library).fit.constants, group.timed, _held_out(group)
    free = group.family.free(timed, start)

    def fit(some: Any) -> tuple[Any, Array]:
        extra = group.family.extra_start(some, start)
        return fit_constants(start, free, lambda c, beside: group.family.seconds(c, some, beside), some.seconds, Extra(extra))

    constants, extra = fit(timed)
    if held is None:
        errors, least = _errors(group.family, timed, constants, extra), BORROWED_SIGMA
    else:
        errors, least = _errors(group.family, timed.part(held), *fit(timed.part(~held))), group.family.least_sigma
    sigma = max(float(np.quantile(errors, SURE)), least)
    return EvaluatedFit(_fit(group, constants, sigma, extra), 0 if held is None else int(held.sum()), float(errors.mean()))


def _scaled(group: Group, gpu: Gpu, library: FitLibrary) -> EvaluatedFit:
    """Shipped or transferred constants, scaled to rows that are too few for a fit."""
    chosen = _shipped(group, gpu, library)
    extra = group.family.extra_of(chosen.fit, group.timed)
    constants, times = group.family.scaled_to(chosen.fit.constants, group.timed, extra)
    errors = _errors(group.family, group.timed, constants, extra)
    sigma = max(LEAST_SCALED_SIGMA, chosen.sigma, float(np.quantile(errors, SURE)))
    made, of = _fit(group, constants, sigma, extra), source_of(chosen)
    made = replace(made, source=f"{made.source}: {times:.3g} times {of}", transferred_ranges=chosen.fit.ranges)
    return EvaluatedFit(made, 0, float(errors.mean()), scaled=Scaled(of, times))


def _shipped(group: Group, gpu: Gpu, library: FitLibrary) -> SelectedFit:
    """The fit for a group's kernels without a profile, for its library if the library was measured."""
    named = group.library if group.library in library.libraries(group.family.name) else ""
    return best_fit_for(gpu, library, group.family.name, group.dtype, named)


def _errors(family: KernelFamily, timed: TimedKernels, constants: Any, extra: Array) -> Array:
    """Relative errors of predicted times of rows with some constants."""
    return np.abs(family.seconds(constants, timed, extra) / timed.seconds - 1)


def _fit(group: Group, constants: Any, sigma: float, extra: Array) -> Fit:
    """A fit with the range of sizes of its rows, and its values beside the constants."""
    rows = [group.family.sizes(row[0]) for row in group.timed.rows]
    sizes = {name: (float(min(row[name] for row in rows)), float(max(row[name] for row in rows))) for name in rows[0]}
    source = ", ".join(sorted({row.source.partition(":")[0] or "not stated" for row in group.rows})).replace('"', "'")
    about = {"rows": len(group.rows), "source": source, **group.family.about(group.timed, extra)}
    return Fit(group.family.name, group.dtype, group.library, constants, sigma, sizes, **about)


# Ratios of operators ---------------------------------------------------------------------------------------------------------


def _with_ratios(fits: list[EvaluatedFit], group: Group, unused: Counter[str], shipped: SelectedFit) -> list[EvaluatedFit]:
    """The fits, with ratios added to the fit of pointwise kernels, or to the shipped fit if no pointwise kernel was measured."""
    own = next((made for made in fits if made.fit.family == group.family.name), None)
    known = (shipped.fit.constants, shipped.sigma, shipped.fit.ranges, 0, source_of(shipped))
    made, timed = own or EvaluatedFit(Fit(group.family.name, "", "", *known), 0, 0.0), group.timed
    found = {ratio.op: ratio for ratio in ratios_of(timed.seconds, timed.kernels, made.fit.constants, timed.machine, timed.cold)}
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
    """The ratios of measured times to those of pointwise kernels with some constants. Operators that move no bytes are compared
    with the launch overhead."""
    moved = np.array([float(kernel.traffic_bytes) for kernel in kernels])
    ops, cold = np.array([kernel.op for kernel in kernels]), np.broadcast_to(cold, moved.shape)
    large = (moved == 0) | (pointwise_s(c, on, moved, cold) >= LARGE * c.launch_us / US_PER_S)

    def ratio(op: str) -> Ratio:
        """The median ratio, and the errors of each size's rows by the median of the other sizes, or of all rows if there is one
        size."""
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
