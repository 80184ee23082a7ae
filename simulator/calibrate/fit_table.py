"""A profile fitted to a table of measured kernels: as YAML, as JSON, and as the files of a survey's folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import escape
from ..config import catalog, fit_files, shipped_fits, yaml_source
from ..config.gpu_names import named
from ..config.reader import validated
from ..errors import UserError, did_you_mean
from ..files import atomic
from ..hardware.gpu import Gpu
from ..measurements.impossible_rows import ImpossibleRow, split_possible
from ..measurements.kernel_table import Measured, line, rows_of
from . import fit_report
from .fit_profile import Profile, profile
from .survey_folder import FIT, LEFT, PROFILE, RAW, SUGGESTED, facts, rows_in, write_facts


@dataclass(frozen=True, slots=True)
class FittedTable:
    """The profile of a table, its GPU, and the rows that it was fitted to."""

    profile: Profile
    gpu: Gpu
    rows: tuple[Measured, ...]
    impossible: tuple[ImpossibleRow, ...]
    """Rows that were left out because they are faster than the GPU can be."""

    def record(self) -> dict[str, Any]:
        """The JSON of it."""
        unused = {"unused": dict(self.profile.unused), "missing": self.profile.missing}
        return {"fits": fits(self.profile), "ratios": ratios(self.profile), **unused, "impossible": len(self.impossible)}


@dataclass(frozen=True, slots=True)
class FittedSurvey:
    """What was made of the rows of a survey's folder."""

    profile: Profile | None
    why_not: str = ""
    """Why there is no profile; empty if there is one."""
    hint: str = ""
    """What to do about that."""
    suggested: tuple[str, ...] = ()
    """Options of a run that the launches suggest."""
    slowdowns: dict[str, float] = field(default_factory=dict)
    """How many times as long products take beside a copy."""
    impossible: tuple[str, ...] = ()
    """Rows that were left out because they are faster than the GPU can be, by file and line."""

    def record(self) -> dict[str, Any]:
        """The JSON of it."""
        return {
            "fits": fits(self.profile) if self.profile else [],
            "ratios": ratios(self.profile) if self.profile else [],
            "missing": list(self.profile.missing) if self.profile else [],
            "why_no_profile": self.why_not or None,
            "hint": self.hint or None,
            "suggested": list(self.suggested),
            "slowdowns": self.slowdowns,
            "impossible": list(self.impossible),
        }


def profile_of(path: Path, gpu: str = "") -> FittedTable:
    """The profile of a table, of its GPU or of the named one. A GPU in a file of its own takes all rows."""
    name, own = _rows_on(rows_of(path, gpu), gpu)
    on = shipped_fits.gpu(gpu or name)
    rows, impossible = split_possible(own, on, path)
    return FittedTable(profile(rows, on, shipped_fits.shipped()), on, tuple(rows), tuple(impossible))


def _rows_on(rows: Sequence[Measured], gpu: str) -> tuple[str, Sequence[Measured]]:
    """The GPU that a profile is of, and its rows. `gpu` names it where the table does not, or has several; one in a file of its
    own takes all rows."""
    owners = {name: _in_catalog(name) for name in dict.fromkeys(row.gpu for row in rows)}
    if gpu and catalog.is_path(gpu):
        if len(owners) > 1:
            raise UserError(
                f"the table holds measurements of {len(owners)} GPUs: {', '.join(owners)}", hint="give it those of one"
            )
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


def _in_catalog(gpu: str) -> str | None:
    """The catalog's name of a GPU; None if it lacks it."""
    try:
        return named(gpu)
    except UserError:
        return None


def text(made: Profile, about: str) -> str:
    """A profile as YAML that can be read again, headed by what it is and by what was not measured."""
    lines = [about, *(f"Not measured: {one}, as it ships" for one in made.missing)]
    content = fit_files.text(made.gpu, [judged.fit for judged in made.fits], "\n# ".join(map(escape.terminal, lines)))
    validated(fit_files.FitsFile, yaml_source.parse(content, f"the profile of {made.gpu}"))
    return content


def fits(made: Profile) -> list[dict[str, Any]]:
    """The fits of a profile as JSON, without their constants."""
    return [
        {"family": judged.fit.family, "dtype": judged.fit.dtype, "library": judged.fit.library, "rows": judged.fit.rows}
        | {"held_out": judged.held_out, "error": judged.error, "sigma": judged.fit.sigma}
        | {"scaled": {"of": judged.scaled.of, "times": judged.scaled.times} if judged.scaled else None}
        for judged in made.fits
    ]


def ratios(made: Profile) -> list[dict[str, Any]]:
    """Ratios of other memory-bound operators to pointwise kernels, as JSON."""
    return [
        {name: getattr(ratio, name) for name in ("op", "times", "error", "rows", "smaller_rows")}
        | {"smaller_error": ratio.large.smaller_sigma if ratio.smaller_rows else None}
        for judged in made.fits
        for ratio in judged.ratios
    ]


def fit_survey(where: Path, left: int | None = None) -> FittedSurvey:
    """Fits the rows of a folder and writes its files. `left` kernels wait for more time, if that is known."""
    if not rows_in(where):
        return FittedSurvey(None, "nothing was measured")
    rows, lines, found = rows_of(where / RAW), list[list[str]](), None
    suggested, why_not, hint = tuple(fit_report.suggestions(rows)), "", ""
    try:
        found = profile_of(where / RAW)
        lines = [*fit_report.constants(found.profile), *fit_report.ratios(found.profile, found.gpu, found.rows)]
        comment = "".join(f"\n# The launches beside them suggest {option}" for option in suggested)
        about = f"Kernels of {found.gpu.name}: constants fitted to {RAW} beside this file by trainsim calibrate gpu{comment}"
        content = text(found.profile, about)
    except UserError as error:
        found, why_not, hint = None, error.faults[0].message, error.faults[0].hint
        if _in_catalog(rows[0].gpu) is None:
            hint += f"; then: trainsim calibrate fit {where / RAW} --gpu FILE.yaml --out {where / PROFILE}"
    with atomic(where / FIT) as temporary:
        temporary.write_text(line(fit_report.COLUMNS) + "".join(map(line, [*lines, *fit_report.scalars(rows)])), encoding="utf-8")
    if found:
        with atomic(where / PROFILE) as temporary:
            temporary.write_text(content, encoding="utf-8")
    write_facts(where, {**facts(where), LEFT: left, SUGGESTED: list(suggested)})
    impossible = tuple(f"{where / RAW}:{one.row.line}: {one.row.probe}: {one.why}" for one in (found.impossible if found else ()))
    return FittedSurvey(found.profile if found else None, why_not, hint, suggested, fit_report.slowdowns(rows), impossible)
