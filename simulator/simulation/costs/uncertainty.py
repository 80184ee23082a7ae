"""How far to trust a step time: how its kernels and collectives are known, and how far their errors may move the step."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import get_args

from ...costs.collectives.curves import Provenance as OfCollectives
from ...costs.kernels.family import Provenance as OfKernels
from .kernel_costs import OpCost

STANDARD_ERRORS = 2.0
"""On each side of the interval of a step time."""
NOT_STRETCHED = ("dp", "pp")
"""Axes whose collectives are not part of the work of a stage that others wait for."""
BEST = ("measured", "interpolated")
"""Provenances that go without saying."""
EXTRAPOLATED = "extrapolated"
LEAST_SHOWN = 0.01


def kernel_provenance(costs: Iterable[OpCost]) -> dict[str, float]:
    """Shares of the kernels' time by provenance, and, of any provenance, of sizes beyond the measured ones."""
    costs = list(costs)
    return {**_shares(costs, get_args(OfKernels)), EXTRAPOLATED: _share(costs, [c for c in costs if c.extrapolated])}


def collective_provenance(costs: Iterable[OpCost]) -> dict[str, float]:
    """Shares of the collectives' uncontended time by provenance."""
    return _shares(list(costs), get_args(OfCollectives))


def _shares(costs: list[OpCost], names: Iterable[str]) -> dict[str, float]:
    return {name: _share(costs, [c for c in costs if c.provenance == name]) for name in names}


def _share(costs: list[OpCost], some: list[OpCost]) -> float:
    return sum(c.seconds for c in some) / (sum(c.seconds for c in costs) or 1.0)


def provenance_lines(kernels: Mapping[str, float], collectives: Mapping[str, float]) -> list[tuple[str, str]]:
    """A line of a summary, if some times are not known as well as times can be."""
    listed = []
    for what, shares in (("kernels", kernels), ("collectives", collectives)):
        if any(share for name, share in shares.items() if name not in BEST):
            listed += [f"{what} {', '.join(f'{_percent(share)} {name}' for name, share in shares.items() if share)}"]
    return [("provenance", "; ".join(listed))] if listed else []


def _percent(share: float) -> str:
    """Whole percents; neither 0% nor 100% where it is not exactly that."""
    return "<1%" if share < LEAST_SHOWN else ">99%" if 1 - LEAST_SHOWN < share < 1 else f"{share:.0%}"


def step_interval_s(
    step_s: float,
    kernels: Iterable[OpCost],
    collectives: Iterable[OpCost],
    exposed_s: Mapping[str, float],
    pipeline_ranks: int,
    bubble_fraction: float,
) -> tuple[float, float]:
    """The step time with the errors of its kernels and of those collectives that it waits for.

    A rank's mean time of kernels is taken to shift the step by as much, those of one model all together, models
    independently. The time that an axis is exposed has the mean error of the axis's collectives, weighted by their uncontended
    time. What a stage takes longer, others wait longer for: the bubble grows with it.
    """
    stretched = 1 / (1 - bubble_fraction)
    errors_s: dict[str, float] = defaultdict(float)
    for cost in kernels:
        errors_s[cost.model] += stretched * cost.seconds * cost.sigma / pipeline_ranks
    uncontended_s: dict[str, float] = defaultdict(float)
    wrong_s: dict[str, float] = defaultdict(float)
    for cost in collectives:
        uncontended_s[cost.axis] += cost.seconds
        wrong_s[cost.axis] += cost.seconds * cost.sigma
    waits = [
        exposed_s.get(axis, 0.0) * (1.0 if axis in NOT_STRETCHED else stretched) * wrong_s[axis] / uncontended_s[axis]
        for axis in uncontended_s
        if uncontended_s[axis]
    ]
    spread = STANDARD_ERRORS * math.hypot(*errors_s.values(), *waits)
    return max(0.0, step_s - spread), step_s + spread
