"""Fitting: the constants of kernel models to measured times.

Constants are fitted to the logarithm of time by damped Gauss-Newton steps; far outliers count with their absolute error. What
is a share stays one. Each constant has a prior, the value that it starts from: what the measurements do not tell stays there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...costs.attention import AttentionConstants
from ...costs.gemm import GemmConstants
from ...costs.rowwise import RowwiseConstants

Array = NDArray[Any]
C = TypeVar("C", GemmConstants, AttentionConstants, RowwiseConstants)

SHARES = ("compute", "memory", "quantum", "hidden", "split_traffic", "stream")
"""Constants between 0 and 1."""
NORMS = ("norm", "overlap", "cover", "odd")
"""Constants above 1."""
ROUNDS = 30
MOST_TRIALS = 8
OUTLIER = 0.1
"""Where an error stops to count with its square."""
STEP = 2.0**-12
LEAST_GAIN = 2.0**-14
"""Of the cost, below which nothing is left to gain."""

GEMM_PRIOR = {
    "launch_us": 1.0,
    "compute": 0.6,
    "memory": 0.6,
    "ramp": 1.0,
    "hidden": 1.0,
    "quantum": 1.5,
    "norm": 0.7,
    "tile": 1.0,
    "split_us": 1.0,
    "split_traffic": 1.0,
    "power": 1.0,
    "power_us": 1.0,
    "throttle": 1.0,
    "throttle_us": 1.0,
}
"""How far each constant may be believed to lie from its start: a sigma, of its logarithm or log-odds."""
PLAIN_PRIOR = {"reread": 2.0, "split_loss": 2.0}
"""The same of what only products without tensor cores have."""
ATTENTION_PRIOR = {
    "launch_us": 0.7,
    "compute": 0.8,
    "exponential": 0.7,
    "overlap": 1.0,
    "ramp": 1.0,
    "quantum": 1.0,
    "norm": 0.7,
    "memory": 0.15,
    "cover": 0.3,
    "walk": 0.7,
    "walk_products": 0.7,
    "split_us": 1.0,
    "throttle": 0.7,
    "throttle_us": 1.0,
}


def fitted(
    start: C,
    prior: Mapping[str, float],
    predict: Callable[[C, Array], Array],
    measured_s: Array,
    extra: Array | None = None,
    extra_sigma: float = 1.0,
) -> tuple[C, Array]:
    """Constants, and `extra` positive numbers of the caller's, whose predictions come nearest to measured times."""
    names = list(prior)
    more = np.log(np.array([] if extra is None else extra, dtype=np.float64))
    origin = np.concatenate([[_inward(name, getattr(start, name)) for name in names], more])
    sigma = np.concatenate([list(prior.values()), np.full(len(more), extra_sigma)])
    logs = np.log(measured_s)

    def unpacked(x: Array) -> tuple[C, Array]:
        values: Any = {name: _outward(name, value) for name, value in zip(names, x[: len(names)].tolist(), strict=True)}
        return replace(start, **values), np.exp(x[len(names) :])

    def residuals(x: Array) -> Array:
        return np.log(predict(*unpacked(x))) - logs

    return unpacked(_descended(residuals, origin, sigma))


def _inward(name: str, value: float) -> float:
    if name in SHARES:
        return math.log(value / (1 - value))
    return math.log(value - 1) if name in NORMS else math.log(value)


def _outward(name: str, x: float) -> float:
    if name in SHARES:
        return 1 / (1 + math.exp(-x))
    return 1 + math.exp(x) if name in NORMS else math.exp(x)


def _descended(residuals: Callable[[Array], Array], origin: Array, sigma: Array) -> Array:
    x, damping = origin, 2.0**-6
    error = residuals(x)
    cost = _cost(error, (x - origin) / sigma)
    for _ in range(ROUNDS):
        slope = np.stack([(residuals(x + STEP * unit) - error) / STEP for unit in np.eye(len(x))], axis=1)
        weight = 1 / np.sqrt(1 + (error / OUTLIER) ** 2)
        normal = slope.T @ (slope * weight[:, None]) + np.diag(OUTLIER**2 / sigma**2)
        pull = slope.T @ (error * weight) + OUTLIER**2 * (x - origin) / sigma**2
        for _ in range(MOST_TRIALS):
            trial = x + np.clip(np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -pull), -1, 1)
            trial_error = residuals(trial)
            trial_cost = _cost(trial_error, (trial - origin) / sigma)
            if trial_cost < cost:
                break
            damping *= 4
        else:
            return x
        done = cost - trial_cost < cost * LEAST_GAIN
        x, error, cost, damping = trial, trial_error, trial_cost, damping / 8
        if done:
            break
    return x


def _cost(error: Array, prior: Array) -> float:
    return float(2 * OUTLIER**2 * (np.sqrt(1 + (error / OUTLIER) ** 2) - 1).sum() + OUTLIER**2 * (prior**2).sum())
