"""Least-squares fits of constants to measured times, by damped Gauss-Newton steps.

Constants are fitted to the logarithm of time; far outliers count with their absolute error. Each constant has a prior around its
start value, so a constant that the measurements do not determine keeps that value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..costs.kernels.family import Constant, Constants, kinds
from ..costs.kernels.gpu_model import Array

OUTLIER = 0.1
"""Error above which the cost of a row grows linearly instead of quadratically."""
SEVERAL_LIBRARIES = 0.05
"""The same for rows of several libraries: half of them differ by more from the others, which is not noise around a mean."""


@dataclass(frozen=True, slots=True)
class Descent:
    """Parameters of the Gauss-Newton steps."""

    rounds: int = 30
    trials: int = 8
    """Largest number of trial steps in a round, each with more damping than the one before."""
    damping: float = 2.0**-6
    """Damping at the start."""
    eased: float = 8
    """Factor by which the damping is divided after a successful step."""
    difference: float = 2.0**-12
    """Step of a constant for its numerical derivative."""
    least_gain: float = 2.0**-14
    """Relative decrease of the cost below which the fit stops."""
    outlier: float = OUTLIER


def least_squares(residuals: Callable[[Array], Array], origin: Array, sigma: Array, how: Descent = Descent()) -> Array:
    """The point with the least cost of residuals and of the distance from `origin` in units of `sigma`."""

    outlier = how.outlier

    def cost_of(error: Array, x: Array) -> float:
        far = 2 * outlier**2 * (np.sqrt(1 + (error / outlier) ** 2) - 1).sum()
        return float(far + outlier**2 * (((x - origin) / sigma) ** 2).sum())

    x, damping, error = origin, how.damping, residuals(origin)
    cost = cost_of(error, x)
    for _ in range(how.rounds):
        slope = np.stack([(residuals(x + how.difference * unit) - error) / how.difference for unit in np.eye(len(x))], axis=1)
        weight = 1 / np.sqrt(1 + (error / outlier) ** 2)
        normal = slope.T @ (slope * weight[:, None]) + np.diag(outlier**2 / sigma**2)
        pull = slope.T @ (error * weight) + outlier**2 * (x - origin) / sigma**2
        for _ in range(how.trials):
            trial = x + np.clip(np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -pull), -1, 1)
            trial_error = residuals(trial)
            trial_cost = cost_of(trial_error, trial)
            if trial_cost < cost:
                break
            damping *= 4
        else:
            return x
        done = cost - trial_cost < cost * how.least_gain
        x, error, cost, damping = trial, trial_error, trial_cost, damping / how.eased
        if done:
            break
    return x


@dataclass(frozen=True, eq=False, slots=True)
class Extra:
    """Positive numbers of the caller, with the sigma of the prior of their logarithms."""

    start: Array
    sigma: float = 1.0


def fit_constants(
    start: Constants,
    prior: Mapping[str, float],
    predict: Callable[[Any, Array], Array],
    measured_s: Array,
    extra: Extra | None = None,
    how: Descent = Descent(),
) -> tuple[Any, Array]:
    """Constants, and `extra` positive numbers of the caller, whose predictions are nearest to measured times.

    `prior` holds the free constants, each with the sigma of its prior on the scale on which the constant is fitted.
    """
    names, known = list(prior), kinds(start)
    scales = [kind.scale for kind in (known[name] for name in names) if isinstance(kind, Constant)]
    more = np.log(np.array([] if extra is None else extra.start, dtype=np.float64))
    inward = [scale.inward(getattr(start, name)) for scale, name in zip(scales, names, strict=True)]
    sigma = np.concatenate([list(prior.values()), np.full(len(more), extra.sigma if extra else 1.0)])
    logs = np.log(measured_s)

    def unpacked(x: Array) -> tuple[Any, Array]:
        values = {name: scale.outward(at) for name, scale, at in zip(names, scales, x[: len(names)].tolist(), strict=True)}
        return replace(start, **values), np.exp(x[len(names) :])

    def residuals(x: Array) -> Array:
        return np.log(predict(*unpacked(x))) - logs

    return unpacked(least_squares(residuals, np.concatenate([inward, more]), sigma, how))
