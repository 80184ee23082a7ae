"""The report of a fit, as lines of fit.csv: constants with their errors, ratios, launches, and GEMMs beside a copy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace

import numpy as np

from ..config import shipped_fits
from ..config.fit_files import number
from ..costs.kernels.estimator import Estimator, Options
from ..errors import UserError
from ..hardware.gpu import Gpu
from ..kernels import Rowwise, Shape
from ..measurements.kernel_table import Measured
from ..measurements.kernel_words import Probe, kernel_of, kernels_of
from ..units import US_PER_S
from .fit_profile import Profile

COLUMNS = ("what", "dtype", "library", "constant", "value", "error", "rows", "held_out", "judged_by")
CPU = "cpu"


def constants(made: Profile) -> Iterable[list[str]]:
    """The constants that were fitted, and ratios, with the error of the fit that they belong to."""
    for judged in made.fits:
        fit = judged.fit
        by = "held-out sizes" if judged.held_out else "its own rows"
        for name, value in asdict(fit.constants).items() if fit.rows else ():
            words = [fit.family, fit.dtype, fit.library, name, number(value), f"{judged.error:.4f}"]
            yield [*words, str(fit.rows), str(judged.held_out), by]
        for ratio in judged.ratios:
            words = ["times a pointwise kernel", "", "", ratio.op, f"{ratio.times:.4g}", f"{ratio.error:.4f}"]
            yield [*words, str(ratio.rows), "0", "median of large rows"]


def ratios(made: Profile, on: Gpu, rows: Sequence[Measured]) -> Iterable[list[str]]:
    """Measured over predicted times with these constants, of every operator and dtype: the median, and of how many rows. A row of
    several operators is compared with those."""
    library = shipped_fits.overlaid(on, made.gpu, [judged.fit for judged in made.fits])
    by_dtype: dict[str, list[Measured]] = {}
    for row in rows:
        by_dtype.setdefault(row.probe.dtype, []).append(row)
    for dtype, some in by_dtype.items():
        by = Estimator(on, dtype, library, Options(tensor_cores=dtype != "fp32"))
        found: dict[str, list[float]] = {}
        try:
            for row in some:
                kernels = kernels_of(row.probe)
                if kernels and row.may_be_fitted:
                    name = " ".join(filter(None, (row.probe.op, row.probe.variant, row.probe.dtype)))
                    found.setdefault(name, []).append(row.seconds / sum(_seconds(kernel, row, by) for kernel in kernels))
        except UserError:
            continue
        for name, ratios in found.items():
            middle = math.exp(float(np.median(np.log(ratios))))
            yield ["measured over predicted", dtype, "", name, f"{middle:.4g}", "", str(len(ratios)), "0", "median"]


def _seconds(kernel: Shape, row: Measured, by: Estimator) -> float:
    """The predicted time of a kernel of a row."""
    by = by.with_nothing_cached() if row.cold and isinstance(kernel, Rowwise) else by
    return replace(by, options=replace(by.options, eager=row.is_eager)).estimate(kernel).seconds


def scalars(rows: Sequence[Measured]) -> Iterable[list[str]]:
    """Rows of no kernel of the workload: launches, copies to the host, and GEMMs beside a copy over the same uncontended."""
    for row in rows:
        probe, tail = row.probe, [f"{(row.high_s - row.low_s) / row.seconds / 2:.4f}", "1", "0", "spread of the runs"]
        time_us = f"{row.seconds * US_PER_S:.4g}"
        if probe.op == "launch":
            yield ["launch", "", "", f"{probe.variant}_us", time_us, *tail]
        elif probe.op == "copy" and kernel_of(probe) is None:
            yield ["copy_us", probe.dtype, "", f"{probe.variant} n={probe.n}", time_us, *tail]
        elif probe.op == "overlap" and row.alone_s:
            yield ["slowdown", probe.dtype, "", _name(probe), f"{row.seconds / row.alone_s:.4g}", *tail]


def slowdowns(rows: Iterable[Measured]) -> dict[str, float]:
    """How many times as long as uncontended a GEMM takes beside a copy."""
    return {_name(row.probe): row.seconds / row.alone_s for row in rows if row.probe.op == "overlap" and row.alone_s}


def suggestions(rows: Iterable[Measured]) -> Iterable[str]:
    """Options of a run that launches suggest: what PyTorch takes for one after another. A CPU launches nothing."""
    for row in rows:
        if row.probe.op == "launch" and row.probe.variant == "eager" and row.gpu != CPU:
            yield f"--set framework.host.kernel={row.seconds * US_PER_S:.3g}us"


def _name(probe: Probe) -> str:
    return f"{probe.variant} m={probe.m} n={probe.n} k={probe.k}"
