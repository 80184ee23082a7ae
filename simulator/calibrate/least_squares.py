"""Fitting: constants to measured times, by damped Gauss-Newton steps.

Constants are fitted to the logarithm of time; far outliers count with their absolute error. Each has a prior, the value that it
starts from: what the measurements do not tell stays there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..costs.kernels.family import Constant, Constants, kinds
from ..costs.kernels.gpu_model import Array

OUTLIER = 0.1
"""Where an error stops to count with its square."""


@dataclass(frozen=True, slots=True)
class Descent:
    """How steps are taken."""

    rounds: int = 30
    trials: int = 8
    """Of a round, each with more damping than the last."""
    damping: float = 2.0**-6
    """At the start."""
    eased: float = 8
    """By how much it is divided after a step."""
    difference: float = 2.0**-12
    """By which a constant is moved to find a slope."""
    least_gain: float = 2.0**-14
    """Of the cost, below which nothing is left to gain."""


def least_squares(residuals: Callable[[Array], Array], origin: Array, sigma: Array, how: Descent = Descent()) -> Array:
    """The point at which residuals are least, and the distance from `origin` in terms of `sigma`."""

    def cost_of(error: Array, x: Array) -> float:
        far = 2 * OUTLIER**2 * (np.sqrt(1 + (error / OUTLIER) ** 2) - 1).sum()
        return float(far + OUTLIER**2 * (((x - origin) / sigma) ** 2).sum())

    x, damping, error = origin, how.damping, residuals(origin)
    cost = cost_of(error, x)
    for _ in range(how.rounds):
        slope = np.stack([(residuals(x + how.difference * unit) - error) / how.difference for unit in np.eye(len(x))], axis=1)
        weight = 1 / np.sqrt(1 + (error / OUTLIER) ** 2)
        normal = slope.T @ (slope * weight[:, None]) + np.diag(OUTLIER**2 / sigma**2)
        pull = slope.T @ (error * weight) + OUTLIER**2 * (x - origin) / sigma**2
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


def fit_constants(
    start: Constants,
    prior: Mapping[str, float],
    predict: Callable[[Any, Array], Array],
    measured_s: Array,
    extra: Array | None = None,
    extra_sigma: float = 1.0,
) -> tuple[Any, Array]:
    """Constants, and `extra` positive numbers of the caller's, whose predictions come nearest to measured times.

    `prior` holds the constants that are free, each with the sigma of its prior on the scale that it is fitted on.
    """
    names, known = list(prior), kinds(start)
    scales = [kind.scale for kind in (known[name] for name in names) if isinstance(kind, Constant)]
    more = np.log(np.array([] if extra is None else extra, dtype=np.float64))
    inward = [scale.inward(getattr(start, name)) for scale, name in zip(scales, names, strict=True)]
    sigma = np.concatenate([list(prior.values()), np.full(len(more), extra_sigma)])
    logs = np.log(measured_s)

    def unpacked(x: Array) -> tuple[Any, Array]:
        values = {name: scale.outward(at) for name, scale, at in zip(names, scales, x[: len(names)].tolist(), strict=True)}
        return replace(start, **values), np.exp(x[len(names) :])

    def residuals(x: Array) -> Array:
        return np.log(predict(*unpacked(x))) - logs

    return unpacked(least_squares(residuals, np.concatenate([inward, more]), sigma))
