"""How far the errors of what a step is made of may move the step."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

from .kernel_costs import OpCost

SPREADS = 2.0
"""Standard errors on each side of a band."""
ONCE = ("dp", "pp")
"""Axes whose collectives are not part of the work of a stage that others wait for."""


def band_s(
    step_s: float,
    kernels: Iterable[OpCost],
    collectives: Iterable[OpCost],
    exposed_s: Mapping[str, float],
    pipeline_ranks: int,
    bubble_fraction: float,
) -> tuple[float, float]:
    """The step time with the errors of its kernels and of those collectives that it waits for.

    A rank's mean time of kernels is taken to shift the step by as much, those of one model all together, models
    independently. The time that an axis is exposed has the mean error of the axis's collectives, weighted by their time alone.
    What a stage takes longer, others wait longer for: the bubble grows with it.
    """
    stretched = 1 / (1 - bubble_fraction)
    errors_s: dict[str, float] = defaultdict(float)
    for cost in kernels:
        errors_s[cost.model] += stretched * cost.seconds * cost.sigma / pipeline_ranks
    alone_s: dict[str, float] = defaultdict(float)
    wrong_s: dict[str, float] = defaultdict(float)
    for cost in collectives:
        alone_s[cost.axis] += cost.seconds
        wrong_s[cost.axis] += cost.seconds * cost.sigma
    waits = [
        exposed_s.get(axis, 0.0) * (1.0 if axis in ONCE else stretched) * wrong_s[axis] / alone_s[axis]
        for axis in alone_s
        if alone_s[axis]
    ]
    spread = SPREADS * math.hypot(*errors_s.values(), *waits)
    return max(0.0, step_s - spread), step_s + spread
