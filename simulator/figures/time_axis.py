"""Axes of times: the unit that suits what is shown, and round ticks, as many as have room."""

from __future__ import annotations

import math

from ..units import MS_PER_S, US_PER_S
from .drawing import Axis, MaxNLocator

MOST_TICKS = 10
LETTER = 0.62
"""Width of a digit as a fraction of the font size, about."""
BESIDE = 2.5
"""Free space beside a label, as a multiple of the font size."""
STEPS = (1, 2, 2.5, 5, 10)
MOST_DIGITS = 12
TOLERANCE = 1e-6


def unit_of(longest_s: float) -> tuple[int, str]:
    """Units per second, and the name of the unit, for times up to the longest: s, ms or us."""
    return next(((per_s, unit) for per_s, unit in ((1, "s"), (MS_PER_S, "ms")) if longest_s * per_s >= 1), (US_PER_S, "us"))


def set_ticks(axis: Axis, span: tuple[float, float], room: float, factor: float = 1.0, font: float = 10.0) -> None:
    """Puts ticks on an axis that shows a span in `room` points: round numbers, which are `factor` times the numbers of the
    axis."""
    low, high = (end * factor for end in span)
    if not high > low:
        return
    for count in range(MOST_TICKS, 0, -1):
        at = [
            tick
            for tick in MaxNLocator(count, steps=STEPS, min_n_ticks=1).tick_values(low, high)
            if low <= tick <= high * (1 + TOLERANCE)
        ]
        labels = _labels(at)
        wide = font * (LETTER * max(map(len, labels), default=0) + BESIDE)
        if wide * len(at) <= room:
            break
    axis.set_ticks([min(tick, high) / factor for tick in at], labels=labels, fontsize=font)


def _labels(ticks: list[float]) -> list[str]:
    """Equally spaced ticks as text, with as many decimals as the space between them needs."""
    step = ticks[1] - ticks[0] if len(ticks) > 1 else abs(ticks[0]) if ticks else 0.0
    digits = next((digits for digits in range(MOST_DIGITS) if math.isclose(round(step, digits), step, rel_tol=TOLERANCE)), 0)
    return [f"{tick + 0.0:,.{digits}f}" for tick in ticks]
