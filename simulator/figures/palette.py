"""What pictures of clusters say by colour: kinds of vertices and classes of links."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..hardware.cluster import Cluster
from ..hardware.measure import link_classes
from ..units import show_rate
from .drawing import Drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = {
    "gpu": "#76a85a",
    "nvswitch": "#3f6b35",
    "pcie": "#a7adba",
    "cpu": "#6b7385",
    "nic": "#e3a45c",
    "leaf": "#6f97cf",
    "edge": "#6f97cf",
    "router": "#6f97cf",
    "spine": "#3c5f98",
    "agg": "#5079b8",
    "hub": "#3c5f98",
    "core": "#2c456f",
    "gateway": "#a8453f",
}
CLASSES = {
    "nvlink": "#5c9440",
    "pcie": "#9aa0ac",
    "socket": "#6b7385",
    "nic": "#d98b35",
    "nic pcie": "#9aa0ac",
    "leaf-spine": "#4a74b4",
    "edge-agg": "#5b86c4",
    "agg-core": "#34568c",
    "group": "#5b86c4",
    "global": "#7d57a3",
    "ring": "#2f8f88",
    "torus": "#2f8f88",
    "direct": "#2f8f88",
    "gateway": "#b5766f",
    "wan": "#a8302b",
}
OTHERS = ("#4a74b4", "#d98b35", "#5c9440", "#7d57a3", "#2f8f88", "#a8302b", "#8d6e00", "#6b7385")
"""Colours for kinds and classes without a chosen colour."""
UNLOADED = "#dfe2e8"
MARK = "#1d4ed8"
"""Colour of the mark beside links that stand out."""


def canvas(width_in: float, height_in: float) -> tuple[Figure, Axes]:

    figure = Drawing(figsize=(width_in, height_in), layout="constrained", dpi=140)
    axes = figure.add_subplot()
    axes.set_aspect("equal", adjustable="box")
    axes.axis("off")
    return figure, axes


def colour_of(name: str, known: Mapping[str, str], number: int) -> str:
    """The colour of a kind or a class: its own, or that of the longest known beginning."""
    for beginning in sorted(known, key=len, reverse=True):
        if name.startswith(beginning):
            return known[beginning]
    return OTHERS[number % len(OTHERS)]


def family(name: str) -> str:
    """A class without its direction."""
    return " - ".join(sorted(name.removesuffix(" up").removesuffix(" down").split(">")))


def families(cluster: Cluster) -> list[tuple[str, str]]:
    """For each class, without its direction, its caption and its colour."""
    number = {name: i for i, name in enumerate(cluster.wiring.link_classes)}
    rates: dict[str, list[float]] = {}
    colours: dict[str, str] = {}
    for of in link_classes(cluster.wiring):
        rates.setdefault(family(of.name), []).append(of.bytes_per_s)
        colours.setdefault(family(of.name), colour_of(of.name, CLASSES, number[of.name]))
    return [(f"{name}, {between(show_rate, rates[name])}", colours[name]) for name in rates]


def between(show: Any, values: list[float]) -> str:
    least, most = show(min(values)), show(max(values))
    return least if least == most else f"{least} to {most}"
