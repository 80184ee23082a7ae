"""A session of measuring one GPU: where it writes, what it measures, and what is made of the rows.

`raw.csv` has a row for every kernel, as measured; `machine.json` says on what; `fit.csv` has the constants of the kernel
models that these rows give, with their errors, and how every other operator stands to what the models say of it;
`profile.yaml` is the same for the simulator to read, if the GPU is in the catalog.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...costs.measured import Estimator, Options
from ...errors import UserError, did_you_mean
from ...files import atomic
from ...hardware.gpu import Gpu
from ...units import US_PER_S
from .. import api, catalog, kernel_fits
from ..kernel_fits import number
from ..measured_gpus import named
from . import grid
from .harness import Outcome, kept
from .profile import Profile, profile, ratios
from .table import Measured, Probe, line, rows_of, rows_on
from .words import kernel_of

FOLDER = Path("results") / "calibration"
RAW, MACHINE, FIT, PROFILE = "raw.csv", "machine.json", "fit.csv", "profile.yaml"
FIT_COLUMNS = ("what", "dtype", "library", "constant", "value", "error", "rows", "held_out", "judged_by")


@dataclass(frozen=True, slots=True)
class Written:
    """What became of the rows of a folder."""

    profile: Profile | None
    why_not: str
    """Why there is no profile; empty if there is."""


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
    return max(0, path.read_bytes().count(b"\n") - 1) if path.exists() else 0


def folder(out: str | None, gpu: str, date: str) -> Path:
    """Where a session writes: a folder for each GPU and day, unless another is named."""
    return Path(out) if out else FOLDER / f"{plain(gpu)}-{date}"


def plain(gpu: str) -> str:
    """A GPU's name for a folder: that of the catalog, if it is there."""
    try:
        return named(gpu)
    except UserError:
        return catalog.plain(gpu).replace(" ", "-").replace("/", "-")


def begin(where: Path, gpu: str, facts: dict[str, Any], date: str) -> None:
    """Writes what the machine is; the days of measuring are added up. A folder of another GPU is refused."""
    kept(where / RAW, gpu)
    path = where / MACHINE
    days: list[str] = []
    if path.exists():
        with suppress(ValueError, AttributeError):  # somebody wrote something else there
            days = list(json.loads(path.read_text(encoding="utf-8")).get("measured", []))
    with atomic(path) as temporary:
        content = {**facts, "measured": list(dict.fromkeys([*days, date]))}
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def profile_of(path: Path, gpu: str = "") -> tuple[Profile, Gpu, list[Measured]]:
    """The profile that a table gives, of which GPU, and its rows on that one. A GPU in a file of its own takes all rows."""
    rows = rows_of(path)
    given = kernel_fits.gpu(gpu) if gpu else None
    if given and catalog.is_path(gpu):
        found = dict.fromkeys(row.gpu for row in rows)
        if len(found) > 1:
            raise UserError(f"the table holds measurements of {len(found)} GPUs: {', '.join(found)}", hint="give it those of one")
        return profile(rows, given, kernel_fits.shelf()), given, rows
    name, own = rows_on(rows, given.name if given else "", named)
    on = given or kernel_fits.gpu(name)
    return profile(own, on, kernel_fits.shelf()), on, own


def text(made: Profile, about: str) -> str:
    """A profile as YAML."""
    return kernel_fits.text(made.gpu, [judged.fit for judged in made.fits], about)


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
        }
        for judged in made.fits
    ]


def record(outcome: Outcome, written: Written) -> dict[str, Any]:
    """How a session went, as JSON has it."""
    counts = {"measured": outcome.measured, "kept": outcome.kept, "left": outcome.left, "refused": outcome.refused}
    made = fits(written.profile) if written.profile else []
    return {**counts, "fits": made, "why_no_profile": written.why_not or None}


def finish(where: Path) -> Written:
    """Writes what the rows of a folder tell, as far as they do."""
    if not rows_in(where):
        return Written(None, "nothing was measured")
    rows = rows_of(where / RAW)
    made, why_not, lines = None, "", list(_scalars(rows))
    try:
        made, on, own = profile_of(where / RAW)
        lines = [*constants(made), *_ratios(made, on, own), *lines]
    except UserError as error:
        why_not = error.faults[0].message
    with atomic(where / FIT) as temporary:
        temporary.write_text(line(FIT_COLUMNS) + "".join(map(line, lines)), encoding="utf-8")
    if made:
        with atomic(where / PROFILE) as temporary:
            about = f"Kernels of {made.gpu}: constants fitted to {RAW} beside this file by trainsim calibrate gpu"
            temporary.write_text(text(made, about), encoding="utf-8")
    return Written(made, why_not)


def constants(made: Profile) -> Iterable[list[str]]:
    """The fitted constants, with the error of the fit that they belong to."""
    for judged in made.fits:
        fit = judged.fit
        by = "held-out sizes" if judged.held_out else "its own rows"
        for name, value in asdict(fit.constants).items():
            words = [fit.family, fit.dtype, fit.library, name, number(value), f"{judged.error:.4f}"]
            yield [*words, str(fit.rows), str(judged.held_out), by]


def _ratios(made: Profile, on: Gpu, rows: Sequence[Measured]) -> Iterable[list[str]]:
    """How every operator stands to the models with these constants."""
    shelf = kernel_fits.overlaid(on, made.gpu, [judged.fit for judged in made.fits])
    by_dtype: dict[str, list[Measured]] = {}
    for row in rows:
        by_dtype.setdefault(row.probe.dtype, []).append(row)
    for dtype, some in by_dtype.items():
        try:
            estimator = Estimator(on, dtype, shelf, Options(tensor_cores=dtype != "fp32"))
            found = ratios(some, lambda kernel, by=estimator: by.estimate(kernel).seconds)  # type: ignore[misc]
        except UserError:
            continue
        for name, (ratio, count) in found.items():
            yield ["measured over predicted", dtype, "", name, f"{ratio:.4g}", "", str(count), "0", "median"]


def _scalars(rows: Sequence[Measured]) -> Iterable[list[str]]:
    """What is no kernel of the workload: launches, and products beside a copy over the same products alone."""
    alone = {_sizes(row.probe): row for row in rows if (row.probe.op, row.probe.variant) == ("gemm", "fwd")}
    for row in rows:
        probe, tail = row.probe, [f"{(row.high_s - row.low_s) / row.seconds / 2:.4f}", "1", "0", "spread of the runs"]
        time_us, beside = f"{row.seconds * US_PER_S:.4g}", alone.get(_sizes(probe))
        if probe.op == "launch":
            yield ["launch", "", "", f"{probe.variant}_us", time_us, *tail]
        elif probe.op == "copy" and kernel_of(probe) is None:
            yield ["copy_us", probe.dtype, "", f"{probe.variant} n={probe.n}", time_us, *tail]
        elif probe.op == "overlap" and beside is not None:
            name = f"{probe.variant} m={probe.m} n={probe.n} k={probe.k}"
            yield ["slowdown", probe.dtype, "", name, f"{row.seconds / beside.seconds:.4g}", *tail]


def _sizes(probe: Probe) -> tuple[str, int, int, int]:
    return probe.dtype, probe.m, probe.n, probe.k
