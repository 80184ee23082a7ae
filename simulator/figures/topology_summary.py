"""The picture of a cluster too large to draw in full: a bar with a count for every kind of vertex, and the links between kinds.

Links are grouped by their start; in a heat map each group has the colour of its fullest link in either direction.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..hardware.cluster import Cluster
from ..hardware.measure import WORDS, switches
from ..study.cluster_facts import Topology, span
from ..units import show_rate, show_stated_s
from .drawing import Axes, Figure, ink_on, legible, rounded_box
from .topology_colours import CLASSES, HALO_POINTS, KINDS, MARK, HeatMap, canvas, colour_of, without_direction
from .vertex_positions import plural

Array = NDArray[Any]
MUCH = 1.25
"""Ratio to the mean utilisation above which the utilisation of the fullest link is shown separately."""
IN_NODES = {"cpu": "CPU", "pcie": "PCIe switch", "nvswitch": "NVSwitch", "gpu": "GPU", "nic": "NIC"}
"""Kinds of vertices in nodes from the bottom up, with their labels."""
WIDTH, STEP, TALL = 11.0, 2.1, 0.9
BESIDE, BESIDE_WITHOUT_HEAT = 7.0, 5.2
"""Room for the labels of links beside the bars; those of a heat map are longer."""
STRANDS = 24
"""Number of lines, or arches, that represent all links between two kinds."""


@dataclass(frozen=True)
class Joint:
    """The links between two kinds of vertices."""

    name: str
    """The class of the links."""
    up: Array
    """Numbers of the links in one direction, or of all links between vertices of the same kind."""
    both: Array
    """Numbers of the links in both directions, ordered by their start among the first kind."""


@dataclass(frozen=True)
class Summary:
    """Bars from the bottom up, and the links between them."""

    cluster: Cluster
    heat: HeatMap | None

    @cached_property
    def height(self) -> dict[str, float]:
        """Height of the middle of each kind's bar, from the bottom up."""
        kinds = Topology(self.cluster).vertices
        order = [*(kind for kind in IN_NODES if kind in kinds), *(kind for kind in kinds if kind not in IN_NODES)]
        return {kind: level * STEP for level, kind in enumerate(order)}

    def figure(self, title: str) -> Figure:
        figure, axes = canvas(10.5, 0.58 * STEP * len(self.height) + 0.4 + (self.heat.room_in if self.heat else 0.0))
        self._draw_bars(axes)
        self._draw_links(axes)
        axes.set_xlim(-0.6, WIDTH + (BESIDE if self.heat else BESIDE_WITHOUT_HEAT))
        axes.set_ylim(-0.9, STEP * (len(self.height) - 1) + 0.9)
        axes.set_title(title, fontsize=11, loc="left")
        if self.heat:
            self.heat.explain(figure, axes)
        return figure

    def _draw_bars(self, axes: Axes) -> None:
        """Draws the bars. Switches between nodes show the number to buy, and that of the graph where spraying pools equal
        switches."""
        cluster, count, bought = self.cluster, Topology(self.cluster).vertices, switches(self.cluster)
        is_explicit = cluster.shape_name == "explicit"
        in_node = set() if is_explicit else {"gpu", *(part.kind for part in cluster.node.parts), "nic"}
        for i, (kind, y) in enumerate(self.height.items()):
            if kind in in_node:
                each = count[kind] // cluster.nodes
                text = f"{cluster.nodes:,} {plural('node', cluster.nodes)} x {each} {plural(IN_NODES.get(kind, kind), each)}"
            else:
                number = bought.get(WORDS.get(kind, kind), count[kind])
                pooled = "" if number == count[kind] else _pooled(count[kind])
                text = f"{number:,} {plural(kind, number)}{pooled}"
            colour = colour_of(kind, KINDS, i)
            style = {"facecolor": colour, "edgecolor": "none", "zorder": 2}
            axes.add_patch(rounded_box((0, y - TALL / 2), WIDTH, TALL, 0.2, **style))
            text = legible(text)
            axes.text(WIDTH / 2, y, text, ha="center", va="center_baseline", color=ink_on(colour), fontsize=10, zorder=3)

    def _draw_links(self, axes: Axes) -> None:
        """Draws the links of each pair of kinds, labelled with the number of links and the rate of each."""
        lanes = 0
        for (a, b), joint in _joined(self.cluster).items():
            low, high = sorted((self.height[a], self.height[b]))
            distance = round((high - low) / STEP)
            if distance < 2:
                self._draw_strands(axes, low, joint, across=distance == 1)
                x, y = WIDTH + 0.4, (low + high) / 2 + (0 if distance else 0.6 * TALL)
            else:
                side = WIDTH + 0.12 + 0.12 * lanes
                lanes += 1
                _draw_line(axes, [WIDTH, side, side, WIDTH], [low, low, high, high], *self._shades(joint, 1)[0], 2.0)
                x, y = side + 0.28, low + 0.02
            axes.text(x, y, legible(self._label(joint)), va="center", fontsize=8.5, color="#333333")

    def _draw_strands(self, axes: Axes, low: float, joint: Joint, *, across: bool) -> None:
        """Draws a line to the next bar for each group of links, or an arch over the bar for links within a kind."""
        top, turn, shades = low + TALL / 2, np.linspace(0, np.pi, 17), self._shades(joint, STRANDS)
        ends = np.linspace(0.8, WIDTH - 0.8, len(shades) + (not across))
        for i, (colour, marked) in enumerate(shades):
            if across:
                _draw_line(axes, [ends[i]] * 2, [top, low + STEP - TALL / 2], colour, marked, 1.6)
            else:
                middle, half = (ends[i] + ends[i + 1]) / 2, (ends[i + 1] - ends[i]) / 2
                _draw_line(axes, middle - half * np.cos(turn), top + 0.45 * np.sin(turn), colour, marked, 2.0)

    def _shades(self, joint: Joint, most: int) -> list[tuple[Any, bool]]:
        """The colour of each of at most `most` groups of links, in the order of their start, and whether the group is marked."""
        if self.heat is None:
            return [(colour_of(joint.name, CLASSES, 0), False)] * most
        groups = np.array_split(joint.both, min(most, len(joint.up)))
        used = [self.heat.load[group] for group in groups]
        fullest = np.array([np.nan if np.isnan(of).all() else np.nanmax(of) for of in used])
        return list(zip(self.heat.colours(fullest), [bool(self.heat.is_marked[g].any()) for g in groups], strict=True))

    def _label(self, joint: Joint) -> str:
        """Links, their rates and latencies, and the mean utilisation of both directions; with the largest if much larger."""
        wiring, links = self.cluster.wiring, joint.up
        rate, latency = (np.sort(column[links]).tolist() for column in (wiring.capacity_bytes_per_s, wiring.latency_s))
        text = f"{len(links):,} {without_direction(joint.name)}, {span(show_rate, rate)}, {span(show_stated_s, latency)}"
        if self.heat is None or np.isnan(self.heat.load[joint.both]).all():
            return text
        mean, most = (float(f(self.heat.load[joint.both])) for f in (np.nanmean, np.nanmax))
        differs = most > MUCH * mean and f"{most:.0%}" != f"{mean:.0%}"
        return f"{text}, {mean:.0%} used" + (f", at most {most:.0%}" if differs else "")


def _pooled(groups: int) -> str:
    """How the graph has switches that are alike for traffic that is sprayed over them."""
    return f" ({'one group' if groups == 1 else f'{groups:,} groups'} for traffic that is sprayed over them)"


def _draw_line(axes: Axes, x: Any, y: Any, colour: Any, marked: bool, width: float) -> None:
    if marked:
        axes.plot(x, y, color=MARK, linewidth=width + HALO_POINTS, zorder=0.9)
    axes.plot(x, y, color=colour, linewidth=width, zorder=1)


def _joined(cluster: Cluster) -> dict[tuple[str, str], Joint]:
    """The links of each pair of kinds."""
    wiring = cluster.wiring
    first = np.array([run.first for run in wiring.vertices])
    kinds = [run.kind for run in wiring.vertices]
    source, target = (np.searchsorted(first, ends, side="right") - 1 for ends in (wiring.source, wiring.target))
    found: dict[tuple[str, str], list[Array]] = {}
    for pair in np.unique(source * len(kinds) + target).tolist():
        a, b = kinds[pair // len(kinds)], kinds[pair % len(kinds)]
        found.setdefault((a, b), []).append(np.flatnonzero(source * len(kinds) + target == pair))
    links = {ends: np.concatenate(parts) for ends, parts in found.items()}
    joined: dict[tuple[str, str], Joint] = {}
    for (a, b), up in links.items():
        if (b, a) in joined:
            continue
        down = links.get((b, a), up[:0]) if a != b else up[:0]
        both, begins = np.concatenate([up, down]), np.concatenate([wiring.source[up], wiring.target[down]])
        name = wiring.link_classes[int(wiring.link_class[up[0]])]
        joined[a, b] = Joint(name, up, both[np.argsort(begins, kind="stable")])
    return joined
