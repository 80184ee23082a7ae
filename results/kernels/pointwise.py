"""Pointwise kernels and what is fitted beside them, for make.py: from rows of eager PyTorch in fp32, one operator each.

What the framework takes around an operator is fitted with the pointwise kernels, forward, and so are blind to backward rows. A
backward pass takes so many times as long as a pointwise kernel of its bytes: per GPU, by its rows that are at least as long as
what the framework takes around them; elsewhere by what is the same for all GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from simulator.calibrate.fit_profile import SIGMA_MOST, ratios_of
from simulator.calibrate.least_squares import fit_constants
from simulator.config import shipped_fits
from simulator.costs.kernels.family import Fit
from simulator.costs.kernels.gpu_model import Machine
from simulator.costs.kernels.gpu_model import machine as machine_of
from simulator.costs.kernels.rowwise import HANDED_ON_US, OPERATOR_US, RowwiseConstants, is_one_by_one, rowwise_s
from simulator.kernels import Rowwise
from simulator.measurements.kernel_words import (
    GEMMS_BACKWARD,
    WIDTH,
    Probe,
    bytes_per_element,
    is_backward,
    name_of,
    rowwise_of,
    table_name,
)
from simulator.units import US_PER_S

POINTWISE = ("add", "addu", "mul", "mulu", "div", "divu", "pow", "relu", "tanh", "gelu")
BINARY = ("add", "mul", "div", "pow")
REDUCTIONS = ("layernorm", "softmax")
"""Operators over rows that PyTorch has as one kernel, and that were measured."""
USUAL_LAUNCH_US = RowwiseConstants().launch_us
TOLD_BELOW_US = 300.0
"""Longest time of the shortest rows that tell what the host takes around an operator, some 15 us."""


def fits(table: pd.DataFrame) -> Iterator[tuple[str, Fit]]:
    """Pointwise kernels of every GPU where some were measured."""
    fit = table[(table.role == "fit") & (table.dtype == "fp32")].assign(op_name=table.variant.str.split().str[-1])
    moved = fit.m * fit.n * WIDTH["fp32"] * np.where(fit.op_name.isin(BINARY), 3, 2)
    for gpu, rows in fit[(fit.op == "elementwise") & fit.op_name.isin(POINTWISE)].groupby("owner"):
        own, time = moved[rows.index].to_numpy(), rows.seconds.to_numpy()
        on = machine_of(shipped_fits.gpu(str(gpu)), "fp32")

        def predict(c: RowwiseConstants, _: Any, on: Machine = on, own: Any = own) -> Any:
            return rowwise_s(c, on, own)

        as_timed, _ = fit_constants(RowwiseConstants(), {"launch_us": 1.0, "stream": 1.0}, predict, time)
        c = replace(as_timed, launch_us=USUAL_LAUNCH_US)
        everything = fit[fit.owner == gpu]
        errors = np.abs(predict(as_timed, None) / time - 1)
        sigma = max(0.05, float(np.quantile(errors, 0.68)))
        about = (sigma, {"bytes": (0.0, float(own.max()))}, len(rows), "sitar-lab/NeuSight@6945927")
        told = rows.time_us.min() < TOLD_BELOW_US
        beside = around(as_timed.launch_us, everything) if told else {}
        ratios = forward(replace(c, launch_us=as_timed.launch_us), on, everything) | backward(c, on, everything, beside)
        yield str(gpu), Fit("rowwise", "", "", c, *about, ratios=ratios, beside=beside)


def around(as_timed_us: float, rows: pd.DataFrame) -> dict[str, float]:
    """What the framework takes around an operator beyond its launch, and around one that launches nothing if some were timed."""
    return {OPERATOR_US: max(0.0, as_timed_us - USUAL_LAUNCH_US), **handed_on(rows)}


def handed_on(rows: pd.DataFrame) -> dict[str, float]:
    """The latter."""
    nothing = [row.time_us for row in rows.itertuples() if is_backward_alone(row) and not kernel(row).traffic_bytes]
    return {HANDED_ON_US: max(0.0, float(np.median(nothing)) - USUAL_LAUNCH_US)} if nothing else {}


def forward(c: RowwiseConstants, on: Machine, rows: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """How many times as long as a pointwise kernel norms and softmax take, where some were measured."""
    own = [row for row in rows.itertuples() if row.op in REDUCTIONS]
    kernels = [Rowwise(row.op, int(row.m), int(row.n), 1, bytes_per_element(row.op, "fp32")) for row in own]
    found = ratios_of(np.array([row.seconds for row in own]), kernels, c, on)
    return {ratio.op: (ratio.times, ratio.error) for ratio in found}


def backward(c: RowwiseConstants, on: Machine, rows: pd.DataFrame, beside: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """The same of backward passes, without what the framework takes around them; of those that are as long as that."""
    own = [row for row in rows.itertuples() if is_backward_alone(row) and kernel(row).traffic_bytes]
    kernels = [kernel(row) for row in own]
    around_s = beside.get(OPERATOR_US, 0.0) / US_PER_S
    alone_s = np.array([row.seconds - around_s for row in own])
    moved = np.array([kernel.traffic_bytes for kernel in kernels], dtype=np.float64)
    long = [i for i, took_s in enumerate(rowwise_s(c, on, moved)) if took_s >= around_s]
    found = ratios_of(alone_s[long], [kernels[i] for i in long], c, on) if long else ()
    return {ratio.op: (ratio.times, ratio.error) for ratio in found if ratio.error <= SIGMA_MOST}


def is_backward_alone(row: Any) -> bool:
    """Whether it is the backward pass of a memory-bound operator that was timed alone."""
    op = table_name(row.op)
    return is_backward(op) and op not in GEMMS_BACKWARD and is_one_by_one(row.dtype, row.variant)


def named(row: Any) -> str:
    """The operator of a row."""
    return name_of(table_name(row.op), row.variant)


def kernel(row: Any) -> Rowwise:
    """What a row of a memory-bound operator timed, as `trainsim validate` and `trainsim calibrate fit` read it."""
    return rowwise_of(Probe(table_name(row.op), row.dtype, int(row.m), int(row.n), variant=row.variant))
