"""Backward passes of memory-bound operators against what was measured, for make.py: in sample, sizes held out, a GPU left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pointwise

from simulator.config import shipped_fits
from simulator.costs.kernels.family import Fit
from simulator.costs.kernels.fit_choice import FitLibrary
from simulator.costs.kernels.gpu_model import Machine
from simulator.costs.kernels.gpu_model import machine as machine_of
from simulator.costs.kernels.rowwise import HANDED_ON_US, OPERATOR_US, RowwiseConstants, ratio_s, speed_of
from simulator.units import US_PER_S

PRODUCTS = ("gemm", "bmm")
"""Their backward rows, and those of models, are no fit's: all are held out."""
Ratios = Mapping[str, tuple[float, float]]
HEAD = (
    "GPU", "operator", "rows", "ratio", "its error, %", "in sample", "sizes held out", "same for all", "measured", "predicted",
)  # fmt: skip


@dataclass(frozen=True)
class Passes:
    """The rows of one operator's backward pass on one GPU."""

    gpu: str
    name: str
    fit: Fit
    rows: pd.DataFrame
    """With what `trainsim validate` says of each, in microseconds, and that of its forward pass where that was measured too."""

    @property
    def constants(self) -> RowwiseConstants:
        assert isinstance(self.fit.constants, RowwiseConstants)
        return self.fit.constants

    @property
    def on(self) -> Machine:
        return machine_of(shipped_fits.gpu(self.gpu), "fp32")

    @property
    def ratio(self) -> tuple[float, float] | None:
        """How many times as long as a pointwise kernel it takes, and the error of that, if its own rows tell."""
        return self.fit.ratios.get(self.op)

    @property
    def op(self) -> str:
        """The kernel that the rows timed, as its ratio knows it."""
        (op,) = {self.name if self.name in PRODUCTS else pointwise.kernel(row).op for row in self.rows.itertuples()}
        return op

    def took_us(self, rows: pd.DataFrame, ratios: Ratios, beside: Mapping[str, float]) -> Any:
        """Predicted by the ratio of some rows, or that of all GPUs where those tell none."""
        op = self.op
        times = ratios[op][0] if op in ratios else speed_of(op, eager=True, element_bytes=4).slowdown
        moved = np.array([float(pointwise.kernel(row).traffic_bytes) for row in rows.itertuples()])
        around_us = np.where(moved > 0, beside[OPERATOR_US], beside.get(HANDED_ON_US, 0.0))
        return around_us + US_PER_S * ratio_s(self.constants, self.on, moved, times)

    @property
    def held_out(self) -> Any:
        """Errors of every size by the rows of all others."""
        errors = []
        for _, some in self.rows.groupby(["m", "n"]):
            rest = self.rows.drop(some.index)
            beside = dict(self.fit.beside) | pointwise.handed_on(rest)
            ratios = pointwise.backward(self.constants, self.on, rest, beside) if len(rest) else {}
            errors += list(self.took_us(some, ratios, beside) / some.time_us - 1)
        return np.array(errors)

    @property
    def left_out(self) -> Any:
        """Errors by what is the same for all GPUs."""
        return (self.took_us(self.rows, {}, self.fit.beside) / self.rows.time_us - 1).to_numpy()

    @property
    def errors(self) -> Any:
        return (self.rows.predicted / self.rows.time_us - 1).to_numpy()

    def over_forward(self) -> tuple[float, float]:
        """Backward over forward time, measured and predicted: the medians over sizes of which both were timed."""
        both = self.rows[self.rows.forward_us.notna()]
        return float((both.time_us / both.forward_us).median()), float((both.predicted / both.forward_predicted).median())


def passes(table: pd.DataFrame, predicted_us: Any, fit_library: FitLibrary) -> Iterator[Passes]:
    """Every backward pass that was measured. `predicted_us` is by the index of the table."""
    timed = table[(table.role == "fit") & table.source.str.contains(":label/")].assign(predicted=predicted_us)
    timed["name"] = [pointwise.named(row) for row in timed.itertuples()]
    back = timed.op.str.endswith("_bwd")
    key = ["owner", "source", "name", "m", "n", "k", "batch"]
    timed["k"] = timed.k.fillna(1.0)
    forward = timed[~back].groupby(key)[["time_us", "predicted"]].median()
    forward = forward.rename(columns={"time_us": "forward_us", "predicted": "forward_predicted"})
    for (gpu, name), rows in timed[back].join(forward, on=key).groupby(["owner", "name"]):
        of = ("gemm", "fp32") if name in PRODUCTS else ("rowwise", "")
        (fit,) = (fit for fit in fit_library.fits[str(gpu)] if (fit.family, fit.dtype) == of)
        yield Passes(str(gpu), str(name), fit, rows)


def section(found: list[Passes]) -> Iterator[tuple[str, ...]]:
    """A row of the report for each, and one for all of a GPU."""
    for one in found:
        ratio = (f"{one.ratio[0]:.2f}", f"{100 * one.ratio[1]:.0f}") if one.ratio else ("", "")
        kept = one.name not in PRODUCTS
        percents = (_percents(one.errors), *(_percents(errors) for errors in ((one.held_out, one.left_out) if kept else ())))
        percents = percents if kept else ("", *percents, "")
        yield one.gpu, one.name, str(len(one.rows)), *ratio, *percents, *(f"{times:.2f}" for times in one.over_forward())
    for gpu in dict.fromkeys(one.gpu for one in found):
        own = [one for one in found if one.gpu == gpu and one.name not in PRODUCTS]
        kinds = ("errors", "held_out", "left_out")
        every = [np.concatenate([getattr(one, kind) for one in own]) for kind in kinds]
        yield gpu, "all but products", str(len(every[0])), "", "", *map(_percents, every), "", ""


def _percents(errors: Any) -> str:
    sizes = 100 * np.abs(errors)
    return f"{np.median(sizes):.1f} / {np.quantile(sizes, 0.9):.1f}"
