"""The front of step time against memory, cost or GPUs, among all plans that a search simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..units import GIB
from .drawing import Annotation, Axes, Drawing, Figure, legible, withStroke
from .shown_ranks import evenly
from .time_axis import unit_of

COLOUR, OTHERS = "#31557f", "#9a9a9a"
WIDE_IN, TALL_IN = 7.5, 4.5
LABELS = {"memory": "memory of the fullest GPU, GiB", "cost": "GPU-hours of a step", "gpus": "GPUs"}
SCALES = {"memory": GIB, "cost": 1.0, "gpus": 1.0}
MOST_NAMED = 8
"""Largest number of plans of the front that are named: its ends, and others evenly spaced between them."""


class Point(NamedTuple):
    """A simulated plan: its step time in seconds, the second quantity of the front, and its text."""

    step_time_s: float
    other: float
    text: str


def pareto(points: Sequence[Point], front: Sequence[Point], against: str, title: str = "") -> Figure:
    """A matplotlib figure of simulated plans and of the front, from its fastest plan on."""
    figure = Drawing(figsize=(WIDE_IN, TALL_IN), layout="constrained", dpi=140)
    axes, scale = figure.subplots(), SCALES[against]
    per_s, unit = unit_of(max((p.step_time_s for p in points), default=0.0))
    others, times = [p.other / scale for p in front], [p.step_time_s * per_s for p in front]
    at = [p.other / scale for p in points], [p.step_time_s * per_s for p in points]
    axes.plot(*at, "o", color=OTHERS, markersize=4, zorder=2, label="other simulated plans")
    style: dict[str, Any] = {"color": COLOUR, "linewidth": 1.6, "markersize": 6, "zorder": 3}
    axes.step(others[::-1], times[::-1], "o-", where="post", label="front: none is better in both", **style)
    named = evenly(range(len(front)), min(len(front), MOST_NAMED))
    left = [f"and {len(front) - MOST_NAMED} plans between them"] if len(front) > MOST_NAMED else []
    lines = [legible(f"{place + 1} {front[place].text}") for place in named]
    axes.set_title("\n".join([*lines, *left]), fontsize=7, loc="left")
    found = f"step time against {LABELS[against].partition(',')[0]}, {len(front)} of {len(points)} simulated plans on the front"
    figure.suptitle(legible(f"{title}: {found}" if title else found), fontsize=9, x=0.01, ha="left")
    axes.legend(frameon=False, fontsize=8)
    axes.set_xlabel(LABELS[against])
    axes.set_ylabel(f"step time, {unit}")
    axes.grid(alpha=0.25)
    axes.margins(y=0.1)
    _number(figure, axes, {place + 1: (others[place], times[place]) for place in named})
    return figure


def _number(figure: Figure, axes: Axes, places: Mapping[int, tuple[float, float]]) -> None:
    """Writes the number of each plan beside its point. A number that would overlap another one is written after it."""
    figure.draw_without_rendering()  # lays out the axes, which gives the positions of points
    labels: list[Annotation] = []
    for number, place in places.items():
        label = axes.annotate(str(number), place, (4, 5), textcoords="offset points", fontsize=8, color=COLOUR, zorder=4)
        label.set_path_effects([withStroke(linewidth=2.5, foreground="white")])
        hidden = [one for one in labels if one.get_window_extent().overlaps(label.get_window_extent())]
        if hidden:
            label.remove()
            hidden[0].set_text(f"{hidden[0].get_text()}, {number}")
        else:
            labels.append(label)
