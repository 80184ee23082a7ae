"""A survey of one GPU: where it writes, what it measures, and what is made of the rows.

`raw.csv` has a row for every kernel, as measured; `machine.json` says on what; `fit.csv` has the constants of the kernel
models that these rows give, with their errors, and how every other operator stands to what the models say of it;
`profile.yaml` is the same for the simulator to read, if the GPU is in the catalog.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ... import escape
from ...errors import UserError, did_you_mean
from ...files import atomic, make_folder, read_bounded
from ...hardware.gpu import Gpu
from .. import catalog
from ..documents import source
from ..documents.reader import validated
from ..gpus import fit_files, kernel_fits
from ..gpus.names import named
from ..scenarios import api
from . import grid, told
from .doubt import Impossible, believable
from .harness import Outcome, kept
from .profile import Profile, profile
from .table import Measured, Probe, content, line, rows_of, rows_on

FOLDER = Path("results") / "calibration"
RAW, MACHINE, FIT, PROFILE = "raw.csv", "machine.json", "fit.csv", "profile.yaml"
DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
LEFT, SUGGESTED = "left", "suggested"
"""In machine.json: how many kernels wait for more time, and options of a run that the measurements suggest."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a table tells about a GPU."""

    profile: Profile
    gpu: Gpu
    rows: tuple[Measured, ...]
    impossible: tuple[Impossible, ...]
    """Rows that were left out because nothing is as fast."""


@dataclass(frozen=True, slots=True)
class Written:
    """What became of the rows of a folder."""

    profile: Profile | None
    why_not: str = ""
    """Why there is no profile; empty if there is."""
    hint: str = ""
    """What to do about that."""
    suggested: tuple[str, ...] = ()
    """Options of a run."""
    slowdowns: dict[str, float] = field(default_factory=dict)
    """What a copy beside them costs products."""
    impossible: tuple[str, ...] = ()
    """Rows that were left out because nothing is as fast, by file and line."""


def wanted(model: str | None, dtypes: Sequence[str], ops: Sequence[str]) -> list[Probe]:
    """The kernels of a model, or of the grid; of some operators, if any are named."""
    for dtype in dtypes:
        if dtype not in grid.DTYPES:
            raise UserError(f"kernels are not timed in {dtype!r}", hint=did_you_mean(dtype, grid.DTYPES))
    probes = grid.default(dtypes) if model is None else grid.of_model(api.model(model), dtypes)
    return grid.only(probes, ops)


def possible(probes: Sequence[Probe], device: str) -> list[Probe]:
    """Those that a device is asked to do."""
    return grid.for_cpu(probes) if device == "cpu" else list(probes)


def rows_in(where: Path) -> int:
    """How many rows a folder holds."""
    path = where / RAW
    return max(0, content(path).count(b"\n") - 1)


def folder(out: str | None, gpu: str, date: str, root: Path = FOLDER) -> Path:
    """Where a survey writes: the named folder; else the newest of this GPU as long as it is not complete; else a new one."""
    if out:
        return Path(out)
    name = plain(gpu)
    held = root.iterdir() if root.is_dir() else ()
    days = sorted(path.name[len(name) + 1 :] for path in held if path.is_dir() and path.name.startswith(f"{name}-"))
    days = [day for day in days if DATE.fullmatch(day)]
    newest = root / f"{name}-{days[-1]}" if days else None
    return newest if newest and _facts(newest).get(LEFT) != 0 else root / f"{name}-{date}"


def plain(gpu: str) -> str:
    """A GPU's name for a folder: that of the catalog, if it is there."""
    try:
        return named(gpu)
    except UserError:
        return catalog.plain(gpu).replace(" ", "-").replace("/", "-")


def begin(where: Path, gpu: str, facts: dict[str, Any], date: str) -> None:
    """Writes what the machine is; the days of measuring are added up. A folder of another GPU is refused."""
    kept(make_folder(where) / RAW, gpu)
    before = _facts(where).get("measured", [])
    days = [*before, date] if isinstance(before, list) else [date]
    _note(where, {**facts, "measured": list(dict.fromkeys(days))})


def _facts(where: Path) -> dict[str, Any]:
    """What stands in machine.json; nothing if somebody wrote something else there."""
    with suppress(UserError, ValueError):
        found = json.loads(read_bounded(where / MACHINE, catalog.MOST_BYTES, "a description of a machine"))
        return found if isinstance(found, dict) else {}
    return {}


def _note(where: Path, facts: dict[str, Any]) -> None:
    with atomic(where / MACHINE) as temporary:
        temporary.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def profile_of(path: Path, gpu: str = "") -> Told:
    """The profile that a table gives, of which GPU, and its rows on that one. A GPU in a file of its own takes all rows."""
    name, own = _own(rows_of(path, gpu), gpu)
    on = kernel_fits.gpu(gpu or name)
    rows, impossible = believable(own, on, path)
    return Told(profile(rows, on, kernel_fits.shelf()), on, tuple(rows), tuple(impossible))


def _own(rows: list[Measured], gpu: str) -> tuple[str, list[Measured]]:
    """The GPU of a table, or the named one, and its rows."""
    if not (gpu and catalog.is_path(gpu)):
        return rows_on(rows, kernel_fits.gpu(gpu).name if gpu else "", named)
    found = dict.fromkeys(row.gpu for row in rows)
    if len(found) > 1:
        raise UserError(f"the table holds measurements of {len(found)} GPUs: {', '.join(found)}", hint="give it those of one")
    return gpu, rows


def text(made: Profile, about: str) -> str:
    """A profile as YAML that can be read again; above it, what it does not speak of."""
    lines = [about, *(f"Not measured: {one}, as it ships" for one in made.missing)]
    content = fit_files.text(made.gpu, [judged.fit for judged in made.fits], "\n# ".join(map(escape.terminal, lines)))
    validated(fit_files.FitsFile, source.parse(content, f"the profile of {made.gpu}"))
    return content


def fits(made: Profile) -> list[dict[str, Any]]:
    """The fits of a profile, without their constants."""
    return [
        {
            "family": judged.fit.family,
            "dtype": judged.fit.dtype,
            "library": judged.fit.library,
            "rows": judged.fit.rows,
            "held_out": judged.held_out,
            "error": judged.error,
            "sigma": judged.fit.sigma,
            "scaled": {"of": judged.scaled.of, "times": judged.scaled.times} if judged.scaled else None,
        }
        for judged in made.fits
    ]


def ratios(made: Profile) -> list[dict[str, Any]]:
    """How many times as long as pointwise kernels other memory-bound operators take."""
    return [
        {
            "op": ratio.op,
            "times": ratio.times,
            "error": ratio.error,
            "rows": ratio.rows,
            "smaller_rows": ratio.smaller_rows,
            "smaller_error": ratio.told.smaller_sigma if ratio.smaller_rows else None,
        }
        for judged in made.fits
        for ratio in judged.ratios
    ]


def record(outcome: Outcome, written: Written) -> dict[str, Any]:
    """How a survey went, as JSON has it."""
    made = written.profile
    return {
        "measured": outcome.measured,
        "kept": outcome.kept,
        "left": outcome.left,
        "refused": outcome.refused,
        "fits": fits(made) if made else [],
        "ratios": ratios(made) if made else [],
        "missing": list(made.missing) if made else [],
        "why_no_profile": written.why_not or None,
        "hint": written.hint or None,
        "suggested": list(written.suggested),
        "slowdowns": written.slowdowns,
        "impossible": list(written.impossible),
    }


def finish(where: Path, left: int | None = None) -> Written:
    """Writes what the rows of a folder tell, as far as they do, and how many kernels are `left`, if that is known."""
    if not rows_in(where):
        return Written(None, "nothing was measured")
    rows, found = rows_of(where / RAW), None
    why_not, hint, lines = "", "", list(told.scalars(rows))
    suggested = tuple(told.suggestions(rows))
    try:
        found = profile_of(where / RAW)
        lines = [*told.constants(found.profile), *told.ratios(found.profile, found.gpu, found.rows), *lines]
        comment = "".join(f"\n# The launches beside them suggest {option}" for option in suggested)
        about = f"Kernels of {found.gpu.name}: constants fitted to {RAW} beside this file by trainsim calibrate gpu{comment}"
        content = text(found.profile, about)
    except UserError as error:
        found, why_not, hint = None, error.faults[0].message, _next(where, rows[0].gpu, error.faults[0].hint)
    with atomic(where / FIT) as temporary:
        temporary.write_text(line(told.COLUMNS) + "".join(map(line, lines)), encoding="utf-8")
    if found:
        with atomic(where / PROFILE) as temporary:
            temporary.write_text(content, encoding="utf-8")
    _note(where, {**_facts(where), LEFT: left, SUGGESTED: list(suggested)})
    named_rows = tuple(f"{where / RAW}:{one.row.line}: {one.row.probe}: {one.why}" for one in (found.impossible if found else ()))
    return Written(found.profile if found else None, why_not, hint, suggested, told.slowdowns(rows), named_rows)


def _next(where: Path, gpu: str, hint: str) -> str:
    """What to do where there is no profile: of a GPU that the catalog lacks, the command that makes one."""
    try:
        named(gpu)
    except UserError:
        return f"{hint}; then: trainsim calibrate fit {where / RAW} --gpu FILE.yaml --out {where / PROFILE}"
    return hint
