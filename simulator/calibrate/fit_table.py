"""A profile fitted to a table of measured kernels, written as YAML, as JSON, and as the files of a survey's folder.

fit.csv of a survey holds the constants with their errors, ratios, launches, and the slowdown of GEMMs beside a copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from .. import escape
from ..config import catalog, document, shipped_fits
from ..config.reader import validated
from ..costs.kernels.estimator import Estimator, Options
from ..errors import UserError, did_you_mean
from ..kernels import Rowwise, Shape
from ..measurements.kernel_table import Measured, line, rows_of, split_possible
from ..measurements.kernel_words import Probe, kernel_of, kernels_of
from ..units import US_PER_S
from .fit_profile import GpuProfile, profile
from .survey_folder import FIT, LEFT, PROFILE, RAW, SUGGESTED, facts, in_catalog, rows_in, write, write_facts

COLUMNS = ("what", "dtype", "library", "constant", "value", "error", "rows", "held_out", "judged_by")
CPU = "cpu"


@dataclass(frozen=True, slots=True)
class FittedSurvey:
    """The fit of the rows in a survey's folder."""

    profile: GpuProfile | None
    why_no_profile: str | None = None
    hint: str | None = None
    """What to do if there is no fit."""
    suggested: tuple[str, ...] = ()
    """Options of `trainsim run` that the measured launches suggest."""
    slowdowns: dict[str, float] = field(default_factory=dict)
    """Slowdown factors of GEMMs beside a copy."""
    impossible: tuple[str, ...] = ()
    """Rows that were left out because they are faster than the GPU can be, by file and line."""

    def record(self) -> dict[str, Any]:
        rest = ("why_no_profile", "hint", "suggested", "slowdowns", "impossible")
        return record(self.profile) | {name: getattr(self, name) for name in rest}


def record(made: GpuProfile | None) -> dict[str, Any]:
    """The JSON of a profile without its constants, or of a missing profile."""
    evaluated = made.fits if made else ()
    fits = [
        {"family": one.fit.family, "dtype": one.fit.dtype, "library": one.fit.library, "rows": one.fit.rows}
        | {"held_out": one.held_out, "error": one.error, "sigma": one.fit.sigma}
        | {"scaled": asdict(one.scaled) if one.scaled else None}
        for one in evaluated
    ]
    ratios = [
        {"op": ratio.op, "times": ratio.times, "error": ratio.error, "rows": ratio.large.rows}
        | {"smaller_rows": ratio.smaller_rows, "smaller_error": ratio.large.smaller_sigma if ratio.smaller_rows else None}
        for one in evaluated
        for ratio in one.ratios
    ]
    return {"fits": fits, "ratios": ratios, "missing": list(made.missing) if made else []}


def profile_of(path: Path, gpu: str = "") -> GpuProfile:
    """The profile of a table, for its own GPU or the named GPU. A GPU in a user's file takes all rows."""
    name, own = _rows_on(rows_of(path, gpu), gpu)
    on = shipped_fits.gpu(name)
    rows, impossible = split_possible(own, on, path)
    return replace(profile(rows, on, shipped_fits.shipped()), impossible=impossible)


def _rows_on(rows: Sequence[Measured], gpu: str) -> tuple[str, Sequence[Measured]]:
    """The GPU of a profile, and its rows. `gpu` names the GPU where the table does not, or has several; a GPU in a user's file
    takes all rows."""
    owners = {name: in_catalog(name) for name in dict.fromkeys(row.gpu for row in rows)}
    if gpu and catalog.is_path(gpu):
        if len(owners) > 1:
            message = f"the table holds measurements of {len(owners)} GPUs: {', '.join(owners)}"
            raise UserError(message, hint="give it those of one")
        return gpu, rows
    found, unknown = list(dict.fromkeys(filter(None, owners.values()))), [name for name in owners if owners[name] is None]
    wanted = shipped_fits.gpu(gpu).name if gpu else found[0] if len(found) == 1 else ""
    if not wanted and found:
        raise UserError(f"the table holds measurements of {len(found)} GPUs", hint=f"--gpu takes one of {', '.join(found)}")
    if not wanted:
        name = unknown[0] or "nothing"
        raise UserError(f"the table's GPU, {name!r}, is not in the catalog", hint="--gpu names one that is, or a file of yours")
    if wanted not in found and len(unknown) != 1:
        raise UserError(f"no row is of {wanted!r}", hint=did_you_mean(wanted, found) if found else "")
    owner = wanted if wanted in found else None
    return wanted, [row for row in rows if owners[row.gpu] == owner]


def text(made: GpuProfile, about: str) -> str:
    """A profile as YAML that can be read again, with a header that states its origin and the kernels that were not measured."""
    lines = [about, *(f"Not measured: {one}, as it ships" for one in made.missing)]
    content = shipped_fits.text(made.on.name, [one.fit for one in made.fits], "\n# ".join(map(escape.terminal, lines)))
    validated(shipped_fits.FitsFile, document.parse(content, f"the profile of {made.on.name}"))
    return content


def fit_survey(where: Path, left: int | None = None) -> FittedSurvey:
    """Fits the rows of a folder and writes its files. `left` is the number of kernels not measured yet, if known."""
    if not rows_in(where):
        return FittedSurvey(None, "nothing was measured")
    rows, lines = rows_of(where / RAW), list[list[str]]()
    found, why_not, hint, suggested = None, None, None, tuple(_suggestions(rows))
    try:
        found = profile_of(where / RAW)
        lines = [*_constants(found), *_measured_over_predicted(found)]
        comment = "".join(f"\n# The launches beside them suggest {option}" for option in suggested)
        about = f"Kernels of {found.on.name}: constants fitted to {RAW} beside this file by trainsim calibrate gpu{comment}"
        content = text(found, about)
    except UserError as error:
        found, why_not, hint = None, error.faults[0].message, error.faults[0].hint
        if in_catalog(rows[0].gpu) is None:
            hint += f"; then: trainsim calibrate fit {where / RAW} --gpu FILE.yaml --out {where / PROFILE}"
    write(where / FIT, "".join(map(line, [COLUMNS, *lines, *_scalars(rows)])))
    if found:
        write(where / PROFILE, content)
    write_facts(where, {**facts(where), LEFT: left, SUGGESTED: list(suggested)})
    slowdowns = {_name(row.probe): row.seconds / row.alone_s for row in rows if row.probe.op == "overlap" and row.alone_s}
    impossible = tuple(f"{where / RAW}:{one.row.line}: {one.row.probe}: {one.why}" for one in (found.impossible if found else ()))
    return FittedSurvey(found, why_not, hint or None, suggested, slowdowns, impossible)


def _constants(made: GpuProfile) -> Iterable[list[str]]:
    """The fitted constants, and ratios, with the error of their fit."""
    for one in made.fits:
        fit, by = one.fit, "held-out sizes" if one.held_out else "its own rows"
        for name, value in asdict(fit.constants).items() if fit.rows else ():
            words = [fit.family, fit.dtype, fit.library, name, shipped_fits.flow(value), f"{one.error:.4f}"]
            yield [*words, str(fit.rows), str(one.held_out), by]
        for ratio in one.ratios:
            words = ["times a pointwise kernel", "", "", ratio.op, f"{ratio.times:.4g}", f"{ratio.error:.4f}"]
            yield [*words, str(ratio.large.rows), "0", "median of large rows"]


def _measured_over_predicted(made: GpuProfile) -> Iterable[list[str]]:
    """Measured over predicted times with these constants for every operator and dtype: the median, and the number of rows. A row
    of several operators is compared with the sum of its operators."""
    library = shipped_fits.overlaid(made.on, [one.fit for one in made.fits])
    for dtype in dict.fromkeys(row.probe.dtype for row in made.rows):
        by = Estimator(made.on, dtype, library, Options(tensor_cores=dtype != "fp32"))
        found: dict[str, list[float]] = {}
        try:
            for row in made.rows:
                kernels = kernels_of(row.probe) if row.probe.dtype == dtype and row.may_be_fitted else ()
                if kernels:
                    name = " ".join(filter(None, (row.probe.op, row.probe.variant, dtype)))
                    found.setdefault(name, []).append(row.seconds / sum(_seconds(kernel, row, by) for kernel in kernels))
        except UserError:
            continue
        for name, times in found.items():
            middle = math.exp(float(np.median(np.log(times))))
            yield ["measured over predicted", dtype, "", name, f"{middle:.4g}", "", str(len(times)), "0", "median"]


def _seconds(kernel: Shape, row: Measured, by: Estimator) -> float:
    """The predicted time of a kernel of a row, in seconds."""
    by = by.with_nothing_cached() if row.cold and isinstance(kernel, Rowwise) else by
    return replace(by, options=replace(by.options, eager=row.is_eager)).estimate(kernel).seconds


def _scalars(rows: Sequence[Measured]) -> Iterable[list[str]]:
    """Rows that are no kernel of the workload: launches, copies to the host, and slowdowns of GEMMs beside a copy."""
    for row in rows:
        probe, tail = row.probe, [f"{(row.high_s - row.low_s) / row.seconds / 2:.4f}", "1", "0", "spread of the runs"]
        time_us = f"{row.seconds * US_PER_S:.4g}"
        if probe.op == "launch":
            yield ["launch", "", "", f"{probe.variant}_us", time_us, *tail]
        elif probe.op == "copy" and kernel_of(probe) is None:
            yield ["copy_us", probe.dtype, "", f"{probe.variant} n={probe.n}", time_us, *tail]
        elif probe.op == "overlap" and row.alone_s:
            yield ["slowdown", probe.dtype, "", _name(probe), f"{row.seconds / row.alone_s:.4g}", *tail]


def _suggestions(rows: Iterable[Measured]) -> Iterable[str]:
    """Options that the measured launches suggest: the host's time per kernel of a training step, where a step was timed; else
    that of PyTorch's lightest operator, which is several times less. A CPU launches nothing."""
    seen = {row.probe.variant: row.seconds for row in rows if row.probe.op == "launch" and row.gpu != CPU}
    for seconds in [seen[how] for how in ("step", "eager") if how in seen][:1]:
        yield f"--set framework.host.kernel={seconds * US_PER_S:.3g}us"


def _name(probe: Probe) -> str:
    return f"{probe.variant} m={probe.m} n={probe.n} k={probe.k}"
