"""A cluster too large to draw: a bar for every kind of vertex with a count, and what joins them with counts and rates.

Links stand together in groups, by where they begin; in a heat map each group has the colour of its fullest link, either way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .. import escape
from ..hardware.cluster import Cluster
from ..hardware.measure import WORDS, switches
from ..units import show_rate, show_s
from .heat import HALO_POINTS, Heat
from .palette import CLASSES, KINDS, MARK, between, canvas, colour_of, family
from .places import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[Any]
MUCH = 1.25
"""The utilisation of the fullest link is shown if it is more than this multiple of the mean."""
SPELLED = {"gpu": "GPU", "nic": "NIC", "cpu": "CPU", "pcie": "PCIe switch", "nvswitch": "NVSwitch"}


class Outline:
    """Bars from the bottom up, and what joins them."""

    WIDTH, STEP, TALL = 11.0, 2.1, 0.9
    STRANDS = 24
    """Lines, or arches, that stand for all links between two kinds."""

    def __init__(self, cluster: Cluster, heat: Heat | None) -> None:
        self.cluster, self.heat = cluster, heat
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
        figure, axes = canvas(10.5, 0.58 * self.STEP * len(order) + 0.4 + (self.heat.room_in if self.heat else 0.0))
        self._bars(axes, order, count, bars)
        self._links(axes)
        axes.set_xlim(-0.6, self.WIDTH + 7.0)
        axes.set_ylim(-0.9, self.STEP * (len(order) - 1) + 0.9)
        axes.set_title(title, fontsize=11, loc="left")
        if self.heat:
            self.heat.explain(figure, axes)
        return figure

    def _bars(self, axes: Axes, order: list[str], count: Mapping[str, int], between_nodes: list[str]) -> None:
        from matplotlib.patches import FancyBboxPatch

        for i, kind in enumerate(order):
            y, nodes = self.at[kind], self.cluster.nodes
            what = self._switches(kind, count[kind]) if kind in between_nodes else self._inside(kind, count[kind] // nodes)
            style = "round,pad=0,rounding_size=0.2"
            colour = colour_of(kind, KINDS, i)
            corner = (0, y - self.TALL / 2)
            axes.add_patch(
                FancyBboxPatch(corner, self.WIDTH, self.TALL, boxstyle=style, facecolor=colour, edgecolor="none", zorder=2)
            )
            what = escape.figure(what)
            axes.text(self.WIDTH / 2, y, what, ha="center", va="center_baseline", color="white", fontsize=10, zorder=3)

    def _switches(self, kind: str, drawn: int) -> str:
        """The number of switches to buy, and the number in the graph where spraying pools equal ones."""
        count = switches(self.cluster).get(WORDS.get(kind, kind), drawn)
        text = f"{count:,} {plural(kind, count)}"
        return text if count == drawn else f"{text} ({drawn:,} to sprayed traffic)"

    def _inside(self, kind: str, each: int) -> str:
        nodes = self.cluster.nodes
        return f"{nodes:,} {plural('node', nodes)} x {each} {plural(SPELLED.get(kind, kind), each)}"

    def _links(self, axes: Axes) -> None:
        """What joins each pair of kinds, labelled with how many links there are and what each carries."""
        lanes = 0
        for (a, b), joint in _joined(self.cluster).items():
            low, high = sorted((self.at[a], self.at[b]))
            span, text = round((high - low) / self.STEP), escape.figure(self._label(joint))
            if span < 2:
                self._strands(axes, low, joint, across=span == 1)
                height = (low + high) / 2 + (0 if span else 0.6 * self.TALL)
                axes.text(self.WIDTH + 0.4, height, text, va="center", fontsize=8.5, color="#333333")
                continue
            side = self.WIDTH + 0.12 + 0.12 * lanes
            lanes += 1
            self._line(axes, [self.WIDTH, side, side, self.WIDTH], [low, low, high, high], *self._shades(joint, 1)[0], 2.0)
            axes.text(side + 0.28, low + 0.02, text, va="center", fontsize=8.5, color="#333333")

    def _strands(self, axes: Axes, low: float, joint: Joint, *, across: bool) -> None:
        """A line up to the next bar for each group of links, or an arch over the bar itself where links join its own kind."""
        top, turn, shades = low + self.TALL / 2, np.linspace(0, np.pi, 17), self._shades(joint, self.STRANDS)
        ends = np.linspace(0.8, self.WIDTH - 0.8, len(shades) + (not across))
        for i, (colour, marked) in enumerate(shades):
            if across:
                self._line(axes, [ends[i]] * 2, [top, low + self.STEP - self.TALL / 2], colour, marked, 1.6)
            else:
                middle, half = (ends[i] + ends[i + 1]) / 2, (ends[i + 1] - ends[i]) / 2
                self._line(axes, middle - half * np.cos(turn), top + 0.45 * np.sin(turn), colour, marked, 2.0)

    def _line(self, axes: Axes, x: Any, y: Any, colour: Any, marked: bool, width: float) -> None:
        if marked:
            axes.plot(x, y, color=MARK, linewidth=width + HALO_POINTS, zorder=0.9)
        axes.plot(x, y, color=colour, linewidth=width, zorder=1)

    def _shades(self, joint: Joint, most: int) -> list[tuple[Any, bool]]:
        """The colours of at most so many groups of links, which follow one another by where they begin, and which are marked."""
        if self.heat is None:
            return [(colour_of(joint.name, CLASSES, 0), False)] * most
        ordered = joint.both[np.argsort(joint.begins, kind="stable")]
        groups = np.array_split(ordered, min(most, len(joint.up)))
        used = [self.heat.load[group] for group in groups]
        fullest = np.array([np.nan if np.isnan(of).all() else np.nanmax(of) for of in used])
        return list(zip(self.heat.colours(fullest), [bool(self.heat.is_marked[g].any()) for g in groups], strict=True))

    def _label(self, joint: Joint) -> str:
        wiring, links = self.cluster.wiring, joint.up
        rate = between(show_rate, [float(f(wiring.capacity_bytes_per_s[links])) for f in (np.min, np.max)])
        latency = between(show_s, [float(f(wiring.latency_s[links])) for f in (np.min, np.max)])
        return f"{len(links):,} {family(joint.name)}, {rate}, {latency}{self._used(joint)}"

    def _used(self, joint: Joint) -> str:
        """The mean use of links both ways, and that of the fullest where it is much more."""
        if self.heat is None or np.isnan(self.heat.load[joint.both]).all():
            return ""
        mean, most = (float(f(self.heat.load[joint.both])) for f in (np.nanmean, np.nanmax))
        differs = most > MUCH * mean and f"{most:.0%}" != f"{mean:.0%}"
        return f", {mean:.0%} used" + (f", at most {most:.0%}" if differs else "")


@dataclass(frozen=True)
class Joint:
    """What joins two kinds of vertices."""

    name: str
    """The class of the links."""
    up: Array
    """Links one way, or all between vertices of one kind."""
    both: Array
    """Links both ways."""
    begins: Array
    """For each of these its end among the first kind."""


def _joined(cluster: Cluster) -> dict[tuple[str, str], Joint]:
    """For each pair of kinds what joins them."""
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
        begins = np.concatenate([wiring.source[up], wiring.target[down]])
        name = wiring.link_classes[int(wiring.link_class[up[0]])]
        joined[a, b] = Joint(name, up, np.concatenate([up, down]), begins)
    return joined
