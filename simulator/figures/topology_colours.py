"""Colours in pictures of clusters: kinds of vertices and classes of links, or the utilisation of links.

The scale of a heat map starts at 0 and ends at the first of 1, 2, 5, 10, 20, 50 and 100% that no link exceeds; links that limit
the step can be marked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..hardware.cluster import Cluster
from ..simulation.network.link_use import Network
from ..units import counted, show_s
from .drawing import Axes, Drawing, Figure, Line2D, LinearSegmentedColormap, MaxNLocator, Normalize, ScalarMappable, legible

Array = NDArray[Any]
Load = Mapping[int, float] | Mapping[str, float] | Array
"""Utilisation, 0 to 1, of links by number or by name `source>target`, or of all links in the order of the wiring."""
KINDS = {
    "gpu": "#76a85a",
    "nvswitch": "#3f6b35",
    "pcie": "#a7adba",
    "cpu": "#6b7385",
    "nic": "#e3a45c",
    **dict.fromkeys(("leaf", "edge", "router"), "#6f97cf"),
    "agg": "#5079b8",
    **dict.fromkeys(("spine", "hub"), "#3c5f98"),
    "core": "#2c456f",
    "gateway": "#a8453f",
}
CLASSES = {
    "nvlink": "#5c9440",
    **dict.fromkeys(("pcie", "nic pcie"), "#9aa0ac"),
    "socket": "#6b7385",
    "nic": "#d98b35",
    "leaf-spine": "#4a74b4",
    **dict.fromkeys(("edge-agg", "group"), "#5b86c4"),
    "agg-core": "#34568c",
    "global": "#7d57a3",
    **dict.fromkeys(("ring", "torus", "direct"), "#2f8f88"),
    "gateway": "#b5766f",
    "wan": "#a8302b",
}
OTHERS = ("#4a74b4", "#d98b35", "#5c9440", "#7d57a3", "#2f8f88", "#a8302b", "#8d6e00", "#6b7385")
"""Colours of kinds and classes without an assigned colour."""
HEAT_STOPS = ("#d3e0f2", "#a9bfe3", "#7f9ed0", "#567dba", "#345f9c", "#1d4274", "#0b2648")
"""Pale to dark blue in about equal steps of lightness."""
HEAT = LinearSegmentedColormap.from_list("heat", HEAT_STOPS)
"""The colour map of utilisation: pale to dark blue, in one direction of lightness, also to colour-blind readers."""
UNLOADED, MARK = "#dfe2e8", "#c2410c"
"""Colours of links without a utilisation, and of the mark beside selected links."""
HALO_POINTS = 2.6
"""Extra width, in points, of the line under a marked link."""
SCALES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Utilisations at which the scale of a heat map can end: the first that no link exceeds."""
TICKS = 5
NAMED, NEARLY = 3, 0.9
"""Number of groups of links that the legend names, and the fraction of the longest wait from which links are marked."""


def longest_waits(network: Network) -> dict[str, Array]:
    """Caption -> the links with nearly the longest waits: the first groups separately, and the others together."""
    longest = network.waited_links(network.cluster.wiring.links)
    near = [one for one in longest if one.waited_s >= NEARLY * longest[0].waited_s]
    marked: dict[str, Array] = {}
    for one in near[:NAMED]:
        alike = f" and {one.alike - 1:,} alike" if one.alike > 1 else ""
        marked[f"{one.name}{alike}, {show_s(one.waited_s)}"] = network.links_like(network.cluster.link_named(one.name))
    if others := [network.links_like(network.cluster.link_named(one.name)) for one in near[NAMED:]]:
        links = np.concatenate(others)
        marked[f"{counted(len(links), 'other link')}, {show_s(near[-1].waited_s)} or more"] = links
    return marked


def canvas(width_in: float, height_in: float) -> tuple[Figure, Axes]:
    figure = Drawing(figsize=(width_in, height_in), layout="constrained", dpi=140)
    axes = figure.add_subplot()
    axes.set_aspect("equal", adjustable="box")
    axes.axis("off")
    return figure, axes


def colour_of(name: str, known: Mapping[str, str], number: int) -> str:
    """The colour of a kind or a class: the assigned colour of the longest prefix of its name, otherwise a colour by number."""
    beginnings = [beginning for beginning in known if name.startswith(beginning)]
    return known[max(beginnings, key=len)] if beginnings else OTHERS[number % len(OTHERS)]


def without_direction(link_class: str) -> str:
    """The name of a class of links that is common to both directions."""
    return " - ".join(sorted(link_class.removesuffix(" up").removesuffix(" down").split(">")))


@dataclass(frozen=True)
class HeatMap:
    """The utilisation of every link, and the links to mark."""

    load: Array
    """Utilisation of each link; NaN where none is given."""
    marked: Mapping[str, Array] = field(default_factory=dict)
    """Numbers of the marked links, by caption."""

    @classmethod
    def of(cls, cluster: Cluster, link_load: Load, marked: Mapping[str, Array] | None) -> HeatMap:
        """The heat map for the utilisations of some or all links of a cluster."""
        if isinstance(link_load, np.ndarray):
            return cls(link_load.astype(float), marked or {})
        load = np.full(cluster.wiring.links, np.nan)
        for link, value in link_load.items():
            load[cluster.link_named(link) if isinstance(link, str) else link] = value
        return cls(load, marked or {})

    @cached_property
    def is_marked(self) -> Array:
        """Whether each link is marked."""
        return np.isin(np.arange(len(self.load)), np.concatenate([[], *self.marked.values()]))

    @property
    def room_in(self) -> float:
        """Height of the legend below the picture, in inches."""
        return 0.35 + (0.2 + 0.16 * len(self.marked) if self.marked else 0.0)

    @cached_property
    def full(self) -> float:
        """The utilisation at which the scale ends."""
        most = float(np.nanmax(self.load, initial=0.0))
        return next((end for end in SCALES if most <= end), SCALES[-1])

    def scaled(self, load: Array) -> Array:
        """Utilisations as fractions of the scale; 0 where there is none."""
        fractions: Array = np.clip(np.nan_to_num(load) / self.full, 0, 1)
        return fractions

    def colours(self, load: Array) -> list[Any]:
        """The colours of some utilisations; pale grey where there is none."""
        hot = HEAT(self.scaled(load))
        return [UNLOADED if np.isnan(value) else tuple(colour) for value, colour in zip(load.tolist(), hot, strict=True)]

    def explain(self, figure: Figure, axes: Axes) -> None:
        """Draws a bar with the colours of the scale, and below it the captions of marked links."""
        bar = figure.colorbar(
            ScalarMappable(Normalize(0, 100 * self.full), HEAT),
            ax=axes,
            location="bottom",
            shrink=0.35,
            aspect=40,
            pad=0.02,
            ticks=MaxNLocator(TICKS),
            format="{x:g}",
            label=f"utilisation of a link (%), at most {float(np.nanmax(self.load, initial=0.0)):.0%}",
        )
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=8)
        bar.ax.xaxis.label.set_fontsize(9)
        if self.marked:
            handles = [Line2D([], [], color=MARK, linewidth=HALO_POINTS, label=legible(label)) for label in self.marked]
            title = "waited for longest (mean over ranks)"
            figure.legend(handles=handles, loc="outside lower center", frameon=False, fontsize=8, title=title, title_fontsize=8)
