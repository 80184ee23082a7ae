"""A cluster too large to draw: a bar for every kind of vertex with a count, and what joins them with counts and rates.

Links stand together in groups, by where they begin; in a heat map each group has the colour of its mean use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..hardware.cluster import Cluster
from ..units import show_rate, show_s
from .palette import CLASSES, KINDS, between, canvas, colour_of, family, heat
from .places import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[Any]


class Outline:
    """Bars from the bottom up, and what joins them."""

    WIDTH, STEP, TALL = 11.0, 2.1, 0.9
    STRANDS = 24
    """Lines, or arches, that stand for all links between two kinds."""

    def __init__(self, cluster: Cluster, load: Array | None) -> None:
        self.cluster, self.load = cluster, load
        self.at: dict[str, float] = {}

    def figure(self, title: str) -> Figure:
        kinds = [run.kind for run in self.cluster.wiring.vertices]
        count = {kind: sum(r.count for r in self.cluster.wiring.vertices if r.kind == kind) for kind in dict.fromkeys(kinds)}
        in_node = (
            {"gpu", *(part.kind for part in self.cluster.node.parts), "nic"} if self.cluster.shape_name != "explicit" else set()
        )
        bars = [kind for kind in count if kind not in in_node]
        low = ["cpu", "pcie", "nvswitch", "gpu", "nic"]
        order = [kind for kind in low if kind in count] + [k for k in count if k not in low]
        for level, kind in enumerate(order):
            self.at[kind] = level * self.STEP
        figure, axes = canvas(10.5, 0.58 * self.STEP * len(order) + 0.4)
        self._bars(axes, order, count, bars)
        self._links(axes)
        axes.set_xlim(-0.6, self.WIDTH + 6.5)
        axes.set_ylim(-0.9, self.STEP * (len(order) - 1) + 1.5)
        axes.set_title(title, fontsize=11, loc="left")
        return figure

    def _bars(self, axes: Axes, order: list[str], count: Mapping[str, int], switches: list[str]) -> None:
        from matplotlib.patches import FancyBboxPatch

        for i, kind in enumerate(order):
            y, nodes = self.at[kind], self.cluster.nodes
            each = count[kind] // nodes
            what = f"{count[kind]:,} {plural(kind, count[kind])}" if kind in switches else f"{nodes:,} nodes x {each} {kind}"
            style = "round,pad=0,rounding_size=0.2"
            colour = colour_of(kind, KINDS, i)
            corner = (0, y - self.TALL / 2)
            axes.add_patch(
                FancyBboxPatch(corner, self.WIDTH, self.TALL, boxstyle=style, facecolor=colour, edgecolor="none", zorder=2)
            )
            axes.text(self.WIDTH / 2, y, what, ha="center", va="center_baseline", color="white", fontsize=10, zorder=3)

    def _links(self, axes: Axes) -> None:
        """What joins each pair of kinds, labelled with how many links there are and what each carries."""
        lanes = 0
        for (a, b), (name, links) in _joined(self.cluster).items():
            low, high = sorted((self.at[a], self.at[b]))
            span, text = round((high - low) / self.STEP), self._label(name, links)
            if span < 2:
                self._strands(axes, low, self._shades(links, name, self.STRANDS), across=span == 1)
                height = (low + high) / 2 + (0 if span else 0.6 * self.TALL)
                axes.text(self.WIDTH + 0.4, height, text, va="center", fontsize=8.5, color="#333333")
                continue
            side, colour = self.WIDTH + 0.12 + 0.12 * lanes, self._shades(links, name, 1)[0]
            lanes += 1
            axes.plot([self.WIDTH, side, side, self.WIDTH], [low, low, high, high], color=colour, linewidth=2.0, zorder=1)
            axes.text(side + 0.28, low + 0.02, text, va="center", fontsize=8.5, color="#333333")

    def _strands(self, axes: Axes, low: float, colours: Sequence[Any], *, across: bool) -> None:
        """A line up to the next bar for each group of links, or an arch over the bar itself where links join its own kind."""
        top, turn = low + self.TALL / 2, np.linspace(0, np.pi, 17)
        ends = np.linspace(0.8, self.WIDTH - 0.8, len(colours) + (not across))
        for i, colour in enumerate(colours):
            if across:
                axes.plot([ends[i]] * 2, [top, low + self.STEP - self.TALL / 2], color=colour, linewidth=1.6, zorder=1)
            else:
                middle, half = (ends[i] + ends[i + 1]) / 2, (ends[i + 1] - ends[i]) / 2
                axes.plot(middle - half * np.cos(turn), top + 0.45 * np.sin(turn), color=colour, linewidth=2.0, zorder=1)

    def _shades(self, links: Array, name: str, most: int) -> list[Any]:
        """The colours of at most so many groups of links, which follow one another by where links begin."""
        if self.load is None:
            return [colour_of(name, CLASSES, 0)] * most
        ordered = links[np.argsort(self.cluster.wiring.source[links], kind="stable")]
        used = [self.load[group] for group in np.array_split(ordered, min(most, len(links)))]
        return heat(np.array([np.nan if np.isnan(of).all() else np.nanmean(of) for of in used]))

    def _label(self, name: str, links: Array) -> str:
        wiring = self.cluster.wiring
        rate = between(show_rate, [float(f(wiring.capacity_bytes_per_s[links])) for f in (np.min, np.max)])
        latency = between(show_s, [float(f(wiring.latency_s[links])) for f in (np.min, np.max)])
        used = "" if self.load is None or np.isnan(self.load[links]).all() else f", {np.nanmean(self.load[links]):.0%} used"
        return f"{len(links):,} {family(name)}, {rate}, {latency}{used}"


def _joined(cluster: Cluster) -> dict[tuple[str, str], tuple[str, Array]]:
    """For each pair of kinds, one direction: the class and the links."""
    wiring = cluster.wiring
    first = np.array([run.first for run in wiring.vertices])
    kinds = [run.kind for run in wiring.vertices]
    source, target = (np.searchsorted(first, ends, side="right") - 1 for ends in (wiring.source, wiring.target))
    found: dict[tuple[str, str], list[Array]] = {}
    for pair in np.unique(source * len(kinds) + target).tolist():
        a, b = kinds[pair // len(kinds)], kinds[pair % len(kinds)]
        if (b, a) not in found or a == b:
            found.setdefault((a, b), []).append(np.flatnonzero(source * len(kinds) + target == pair))
    joined = {ends: np.concatenate(parts) for ends, parts in found.items()}
    return {ends: (wiring.link_classes[int(wiring.link_class[links[0]])], links) for ends, links in joined.items()}
