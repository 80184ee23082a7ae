"""Fitting: the constants of links to measured times, and a measured series to a handful of knots.

Constants are fitted in logarithms, to the logarithm of time (least_squares.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..costs.collectives import theory
from ..costs.collectives.curves import Knots
from ..costs.collectives.link_constants import LAWS, Across, Inside, Laws
from ..costs.collectives.theory import Call
from .least_squares import Descent, least_squares

Array = NDArray[Any]
Constants = Mapping[str, Inside | Across | Laws]
"""By the name of their fabric, or `laws`."""

MOST_KNOTS = 9
CLOSE_ENOUGH = 0.03
"""No more knots where all are as close as this."""
SPIKE = 0.2
"""How far, in logarithms, a single size may stick out from both neighbours."""
DESCENT = Descent(25, 25, damping=1.0, eased=4, difference=2.0**-13, least_gain=2.0**-16)


@dataclass(frozen=True, slots=True)
class Point:
    """One measured time, and the fabrics that it was measured on."""

    call: Call
    seconds: float
    inside: str
    across: str = ""


@dataclass(frozen=True, slots=True)
class Free:
    """A constant to fit, and how far from its start it may be believed to lie: the sigma of its logarithm."""

    owner: str
    name: str
    sigma: float


def fitted(points: Sequence[Point], start: Constants, free: Sequence[Free]) -> dict[str, Inside | Across | Laws]:
    """The constants with the free ones fitted to the points."""
    origin = np.array([math.log(getattr(start[f.owner], f.name)) for f in free])
    sigma = np.array([f.sigma for f in free])

    def changed(x: Array) -> dict[str, Any]:
        changes: dict[str, dict[str, Any]] = {}
        for f, value in zip(free, x.tolist(), strict=True):
            changes.setdefault(f.owner, {})[f.name] = math.exp(value)
        return {owner: replace(held, **changes.get(owner, {})) for owner, held in start.items()}

    def residuals(x: Array) -> Array:
        """log(theory / measured) of every point."""
        c = changed(x)
        times = [theory.fastest(p.call, c[p.inside], c.get(p.across), c.get("laws", LAWS)) / p.seconds for p in points]
        return np.array(list(map(math.log, times)))

    return changed(least_squares(residuals, origin, sigma, DESCENT))


def knots(series: Mapping[float, Sequence[float]], baseline: Callable[[float], float]) -> tuple[Knots, float]:
    """A handful of knots through a series (size in bytes -> measured seconds), and their median relative error.

    The logarithm of measured over baseline is fitted by straight pieces between few of the sizes; the next piece is broken
    where the error is largest. A single size that sticks out from both its neighbours is a disturbance, and times that fall
    are levelled.
    """
    sizes = sorted(series)
    x = np.log2(np.array(sizes))
    base = np.array([baseline(size) for size in sizes])
    y = _calmed(np.log(np.array([float(np.median(series[size])) for size in sizes]) / base))
    chosen = sorted({0, len(sizes) - 1})
    while True:
        heights = _heights(x, y, chosen)
        error = np.abs(np.interp(x, x[chosen], heights) - y)
        error[chosen] = 0
        if error.max() <= CLOSE_ENOUGH or len(chosen) >= min(MOST_KNOTS, len(sizes)):
            break
        chosen = sorted({*chosen, int(error.argmax())})
    times = np.exp(_levelled(np.log(base[chosen]) + heights))
    found = tuple(zip((sizes[i] for i in chosen), times.tolist(), strict=True))
    line = np.exp(np.interp(x, x[chosen], np.log(times / base[chosen]))) * base
    all_errors = [abs(line[i] / t - 1) for i, size in enumerate(sizes) for t in series[size]]
    return found, float(np.median(all_errors))


def _heights(x: Array, y: Array, chosen: Sequence[int]) -> Array:
    """The heights of the knots that fit best."""
    hats = np.stack([np.interp(x, x[list(chosen)], unit) for unit in np.eye(len(chosen))], axis=1)
    return np.linalg.lstsq(hats, y, rcond=None)[0]


def _calmed(y: Array) -> Array:
    """Values, those that stick out from both neighbours drawn to the nearer of the two."""
    low, high = np.minimum(y[:-2], y[2:]), np.maximum(y[:-2], y[2:])
    calm = y.copy()
    calm[1:-1] = np.where(y[1:-1] > high + SPIKE, high, np.where(y[1:-1] < low - SPIKE, low, y[1:-1]))
    return calm


def _levelled(values: Array) -> Array:
    """The nearest values that never fall: pools of neighbours that do take their mean."""
    pools: list[tuple[float, int]] = []
    for value in values.tolist():
        mean, count = value, 1
        while pools and pools[-1][0] > mean:
            other, more = pools.pop()
            mean, count = (mean * count + other * more) / (count + more), count + more
        pools.append((mean, count))
    return np.repeat([mean for mean, _ in pools], [count for _, count in pools])
