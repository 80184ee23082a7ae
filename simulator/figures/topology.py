"""A picture of a cluster: its nodes in a row, what is in them, and the fabric in layers above; links by class, or by load.

    draw(cluster)                       # links coloured by class
    draw(cluster, {link: 0.7, ...})     # a heat map: utilisation by link number or by name, each direction beside the other

Beyond 32 nodes the picture is a summary: one node stands for all, and each layer is a bar with a count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..hardware.cluster import Cluster
from ..hardware.measure import link_classes
from ..units import show_rate, show_s
from .places import BAR, SQUARE, Places, inside_places, places

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[Any]

MOST_NODES, MOST_VERTICES = 32, 1600
"""That are drawn one by one."""
WIDEST_IN, TALLEST_IN = 16.0, 11.0
PITCH_IN = 0.42
"""Distance of two GPUs where there is room."""
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
"""For kinds and classes of shapes that nobody chose colours for."""
UNLOADED = "#dfe2e8"


def draw(cluster: Cluster, link_load: Mapping[int, float] | Mapping[str, float] | None = None, *, title: str | None = None) -> Figure:
    """A matplotlib figure. `link_load` has the utilisation, 0 to 1, of links by number or by name `source>target`."""
    vertices = sum(run.count for run in cluster.wiring.vertices)
    if cluster.nodes > MOST_NODES or vertices > MOST_VERTICES:
        return _summary(cluster, link_load, title)
    at = places(cluster)
    left, low, right, high = at.extent
    arch = _arch(cluster, at)
    margin = 3.2 if at.layers else 0.8
    width, height = right - left + margin + 0.8, high - low + arch + 1.2
    inch = min(PITCH_IN, WIDEST_IN / width, TALLEST_IN / height)
    figure, axes = _canvas(max(5.5, width * inch), max(2.2, height * inch) + 0.9)
    slack = max(0.0, (5.5 / inch - width) / 2)
    axes.set_xlim(left - margin - slack, right + 0.8 + slack)
    axes.set_ylim(low - 0.8, high + arch + 0.4)
    points = 72 * inch
    load = _loads(cluster, link_load)
    _paint_boxes(axes, at, points)
    _paint_links(axes, cluster, at, load, points)
    _paint_vertices(axes, cluster, at, points)
    for y, name in at.layers:
        axes.text(left - 0.5, y, name, ha="right", va="center", fontsize=9, color="#444444")
    axes.set_title(title or _title(cluster), fontsize=11, loc="left")
    _legend(figure, axes, cluster, load)
    return figure


def _canvas(width_in: float, height_in: float) -> tuple[Figure, Axes]:
    from .drawing import Drawing

    figure = Drawing(figsize=(width_in, height_in), layout="constrained", dpi=140)
    axes = figure.add_subplot()
    axes.set_aspect("equal", adjustable="box")
    axes.axis("off")
    return figure, axes


def _title(cluster: Cluster) -> str:
    nodes = "1 node" if cluster.nodes == 1 else f"{cluster.nodes:,} nodes"
    shape = cluster.inside_name if cluster.nodes == 1 else cluster.shape_name
    return f"{cluster.name}: {nodes} of {cluster.gpus_per_node} {cluster.gpu.name}, {shape}"


def _loads(cluster: Cluster, link_load: Mapping[int, float] | Mapping[str, float] | None) -> Array | None:
    """The utilisation of every link; not a number where none is given."""
    if link_load is None:
        return None
    load = np.full(cluster.wiring.links, np.nan)
    for link, value in link_load.items():
        load[cluster.link_named(link) if isinstance(link, str) else link] = value
    return load


def _paint_boxes(axes: Axes, at: Places, points: float) -> None:
    from matplotlib.patches import FancyBboxPatch

    for box in at.boxes:
        style = "round,pad=0,rounding_size=0.25"
        corner = (box.left, box.low)
        axes.add_patch(
            FancyBboxPatch(corner, box.width, box.height, boxstyle=style, facecolor="#f6f7f9", edgecolor="#c9ced8", linewidth=0.8, zorder=0)
        )
        size = min(9.0, 0.75 * box.width * points / len(box.label) / 0.6)
        axes.text(box.left + box.width / 2, box.low - 0.12, box.label, ha="center", va="top", fontsize=size, color="#555555")


def _paint_vertices(axes: Axes, cluster: Cluster, at: Places, points: float) -> None:
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import FancyBboxPatch

    for i, run in enumerate(cluster.wiring.vertices):
        colour = _colour(run.kind, KINDS, i)
        patches = []
        for number in range(run.first, run.first + run.count):
            (x, y), (w, h) = at.centre[number], at.size[number]
            patches.append(FancyBboxPatch((x - w / 2, y - h / 2), w, h, boxstyle="round,pad=0,rounding_size=0.12"))
            _name(axes, run.kind, run.name(number - run.first), (x, y, w, h), points)
        axes.add_collection(PatchCollection(patches, facecolor=colour, edgecolor="white", linewidth=0.5, zorder=3))


def _name(axes: Axes, kind: str, name: str, at: tuple[float, float, float, float], points: float) -> None:
    """What stands on a vertex, if it fits: GPUs and NICs by their index, others by their name."""
    x, y, w, h = at
    last = name.split("/")[-1]
    text = last.removeprefix(kind) if kind in ("gpu", "nic") and last.removeprefix(kind) else last
    size = min(8.5, 0.62 * h * points, 0.92 * w * points / len(text) / 0.6)
    if size >= 4.5:
        axes.text(x, y, text, ha="center", va="center_baseline", fontsize=size, color="white", zorder=4)


def _colour(name: str, known: Mapping[str, str], number: int) -> str:
    """The colour of a kind or a class: its own, or that of the longest known beginning."""
    for beginning in sorted(known, key=len, reverse=True):
        if name.startswith(beginning):
            return known[beginning]
    if name.startswith("nic "):
        return known["pcie"]
    return OTHERS[number % len(OTHERS)]


def _family(name: str) -> str:
    """A class without its direction."""
    return name.removesuffix(" up").removesuffix(" down")


def _is_arched(cluster: Cluster, at: Places) -> Array:
    """Links between vertices of one layer of switches, which would run through those in between."""
    wiring = cluster.wiring
    step = at.centre[wiring.target] - at.centre[wiring.source]
    level = np.abs(step[:, 1]) < 0.01
    upright = np.abs(step[:, 0]) < 0.01
    kinds = np.searchsorted([run.first for run in wiring.vertices], [wiring.source, wiring.target], side="right")
    above = np.array([run.kind not in ("nic", "cpu", "gpu") or run.kind == "gpu" and not at.boxes for run in wiring.vertices])
    arched: Array = (kinds[0] == kinds[1]) & (level | upright) & above[kinds[0] - 1]
    return arched & (np.abs(step).max(axis=1) > _spacing(cluster, at))


def _spacing(cluster: Cluster, at: Places) -> float:
    """Up to this length a link of one layer joins neighbours, and is straight."""
    if cluster.shape_name == "torus" and len(at.boxes) > 1:
        corner = np.array([(box.left, box.low) for box in at.boxes])
        return 1.05 * float(max(at.boxes[0].width + 1.8, np.diff(np.unique(corner[:, 1])).min(initial=0.0)))
    return 1.05 * float(min((b.left - a.left for a, b in zip(at.boxes, at.boxes[1:], strict=False)), default=1.0))


def _arch(cluster: Cluster, at: Places) -> float:
    """Room that arches need above the topmost layer."""
    arched = _is_arched(cluster, at)
    if not arched.any():
        return 0.0
    wiring = cluster.wiring
    step = np.abs(at.centre[wiring.target[arched]] - at.centre[wiring.source[arched]]).max(axis=1)
    return 0.55 * _rise(float(step.max()))


def _rise(length: float) -> float:
    return min(0.5 * length, 1.4 * math.sqrt(length) + 0.6)


def _segments(cluster: Cluster, at: Places, shift: float) -> list[Array]:
    """The line of every link; with a shift the two directions run beside each other."""
    wiring, arched = cluster.wiring, _is_arched(cluster, at)
    start, end = _ends(cluster, at)
    along = end - start
    length = np.maximum(np.hypot(*along.T), 1e-9)[:, None]
    beside = shift * np.stack([along[:, 1], -along[:, 0]], axis=1) / length
    start, end = start + beside, end + beside
    t = np.linspace(0, 1, 17)[:, None]
    segments = []
    for link in range(wiring.links):
        if not arched[link]:
            segments.append(np.stack([start[link], end[link]]))
            continue
        rise = _rise(float(length[link, 0])) + (shift if along[link, 0] > 0 else -shift)
        bend = (start[link] + end[link]) / 2 + (np.array([0, rise]) if abs(along[link, 0]) > 0.01 else np.array([-rise / 2, 0]))
        segments.append((1 - t) ** 2 * start[link] + 2 * t * (1 - t) * bend + t**2 * end[link])
    return segments


def _ends(cluster: Cluster, at: Places) -> tuple[Array, Array]:
    """Where links begin and end: at the middle of a vertex, and on a wide one as near to the other end as it reaches."""
    wiring = cluster.wiring
    source, target = at.centre[wiring.source].copy(), at.centre[wiring.target].copy()
    same_layer = np.abs(source[:, 1] - target[:, 1]) < 0.01
    for here, there, who in ((source, target, wiring.source), (target, source, wiring.target)):
        reach = np.maximum(at.size[who, 0] / 2 - 0.3, 0)
        reach = np.where((at.size[who, 0] > 2.2 * SQUARE) & ~same_layer, reach, 0)
        here[:, 0] = np.clip(there[:, 0], here[:, 0] - reach, here[:, 0] + reach)
    return source, target


def _paint_links(axes: Axes, cluster: Cluster, at: Places, load: Array | None, points: float) -> None:
    from matplotlib import colormaps
    from matplotlib.collections import LineCollection

    wiring = cluster.wiring
    crowd = max(0.35, min(1.3, 26 / math.sqrt(wiring.links + 1)))
    usual = float(np.median(wiring.capacity_bytes_per_s))
    width = crowd * np.clip(np.sqrt(wiring.capacity_bytes_per_s / usual), 0.7, 2.6)
    segments = _segments(cluster, at, 0.0 if load is None else min(0.1, 1.6 / points))
    if load is None:
        named = [_colour(name, CLASSES, i) for i, name in enumerate(wiring.link_classes)]
        once = np.flatnonzero((wiring.source < wiring.target) | ~_has_twin(wiring.source, wiring.target))
        colours = [named[int(wiring.link_class[link])] for link in once]
        axes.add_collection(
            LineCollection([segments[i] for i in once], colors=colours, linewidths=width[once], alpha=0.85, zorder=1, capstyle="round")
        )
        return
    idle = np.isnan(load)
    order = np.argsort(np.where(idle, -1.0, load), kind="stable")
    heat = colormaps["YlOrRd"](0.12 + 0.88 * np.clip(np.nan_to_num(load), 0, 1))
    colours = [UNLOADED if idle[link] else tuple(heat[link]) for link in order]
    wide = np.where(idle, 0.6, 1.0 + 0.8 * np.nan_to_num(load)) * width * 1.3
    axes.add_collection(LineCollection([segments[i] for i in order], colors=colours, linewidths=wide[order], zorder=1))


def _has_twin(source: Array, target: Array) -> Array:
    """Whether a link has one the other way."""
    most = int(max(source.max(initial=0), target.max(initial=0))) + 1
    return np.isin(source * most + target, target * most + source)


def _legend(figure: Figure, axes: Axes, cluster: Cluster, load: Array | None) -> None:
    from matplotlib.lines import Line2D

    if load is not None:
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import LinearSegmentedColormap, Normalize
        from matplotlib import colormaps

        heat = LinearSegmentedColormap.from_list("heat", colormaps["YlOrRd"](np.linspace(0.12, 1.0, 64)))
        bar = figure.colorbar(
            ScalarMappable(Normalize(0, 100), heat), ax=axes, location="bottom", shrink=0.35, aspect=40, pad=0.02, label="utilisation of a link (%)"
        )
        bar.outline.set_visible(False)
        return
    handles = [Line2D([], [], color=colour, linewidth=2.2, label=label) for label, colour in _families(cluster)]
    columns = min(len(handles), max(1, int(figure.get_figwidth() / 2.6)))
    figure.legend(handles=handles, loc="outside lower left", ncols=columns, frameon=False, fontsize=8, handlelength=1.6)


def _families(cluster: Cluster) -> list[tuple[str, str]]:
    """For each class without its direction: what to say of it, and its colour."""
    number = {name: i for i, name in enumerate(cluster.wiring.link_classes)}
    rates: dict[str, list[float]] = {}
    colours: dict[str, str] = {}
    for of in link_classes(cluster.wiring):
        rates.setdefault(_family(of.name), []).append(of.bytes_per_s)
        colours.setdefault(_family(of.name), _colour(of.name, CLASSES, number[of.name]))
    return [(f"{name}, {_between(show_rate, rates[name])}", colours[name]) for name in rates]


def _between(show: Any, values: list[float]) -> str:
    least, most = show(min(values)), show(max(values))
    return least if least == most else f"{least} to {most}"


def _summary(cluster: Cluster, link_load: Mapping[int, float] | Mapping[str, float] | None, title: str | None) -> Figure:
    """One node for all, and a bar for each layer of switches; lines between them for all links of a class."""
    return _Summary(cluster, _loads(cluster, link_load)).figure(title or _title(cluster))


class _Summary:
    """Bars from the bottom up, and what joins them."""

    WIDTH, STEP, TALL = 11.0, 2.1, 0.9

    def __init__(self, cluster: Cluster, load: Array | None) -> None:
        self.cluster, self.load = cluster, load
        self.at: dict[str, float] = {}

    def figure(self, title: str) -> Figure:
        kinds = [run.kind for run in self.cluster.wiring.vertices]
        count = {kind: sum(r.count for r in self.cluster.wiring.vertices if r.kind == kind) for kind in dict.fromkeys(kinds)}
        in_node = {"gpu", *(part.kind for part in self.cluster.node.parts), "nic"} if self.cluster.shape_name != "explicit" else set()
        bars = [kind for kind in count if kind not in in_node]
        low = ["cpu", "pcie", "nvswitch", "gpu", "nic"]
        order = [kind for kind in low if kind in count] + [k for k in count if k not in low]
        for level, kind in enumerate(order):
            self.at[kind] = level * self.STEP
        figure, axes = _canvas(10.5, 0.62 * self.STEP * len(order) + 1.0)
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
            what = f"{count[kind]:,} {kind}" if kind in switches else f"{nodes:,} nodes x {each} {kind}"
            style = "round,pad=0,rounding_size=0.2"
            colour = _colour(kind, KINDS, i)
            corner = (0, y - self.TALL / 2)
            axes.add_patch(FancyBboxPatch(corner, self.WIDTH, self.TALL, boxstyle=style, facecolor=colour, edgecolor="none", zorder=2))
            axes.text(self.WIDTH / 2, y, what, ha="center", va="center_baseline", color="white", fontsize=10, zorder=3)

    def _links(self, axes: Axes) -> None:
        """A line per pair of kinds, labelled with how many links there are and what each carries."""
        joined = _joined(self.cluster)
        lanes: dict[int, int] = {}
        for (a, b), (name, links) in joined.items():
            low, high = sorted((self.at[a], self.at[b]))
            colour = self._shade(links, name)
            span = round((high - low) / self.STEP)
            lane = lanes.get(span, 0)
            lanes[span] = lane + (span != 1)
            text = self._label(name, links)
            if span == 1:
                for x in np.linspace(0.8, self.WIDTH - 0.8, 24):
                    axes.plot([x, x], [low + self.TALL / 2, high - self.TALL / 2], color=colour, linewidth=1.6, zorder=1)
                axes.text(self.WIDTH + 0.4, (low + high) / 2, text, va="center", fontsize=8.5, color="#333333")
                continue
            side = -0.0 + self.WIDTH + 0.12 + 0.12 * lane
            if span == 0:
                axes.text(self.WIDTH + 0.4, low, text, va="center", fontsize=8.5, color=colour)
                continue
            axes.plot([self.WIDTH, side, side, self.WIDTH], [low, low, high, high], color=colour, linewidth=2.0, zorder=1)
            axes.text(side + 0.28, low + 0.02, text, va="center", fontsize=8.5, color="#333333")

    def _shade(self, links: Array, name: str) -> Any:
        if self.load is None:
            return _colour(name, CLASSES, 0)
        from matplotlib import colormaps

        used = self.load[links]
        return UNLOADED if np.isnan(used).all() else colormaps["YlOrRd"](0.12 + 0.88 * min(1.0, float(np.nanmean(used))))

    def _label(self, name: str, links: Array) -> str:
        wiring = self.cluster.wiring
        rate = _between(show_rate, [float(f(wiring.capacity_bytes_per_s[links])) for f in (np.min, np.max)])
        latency = _between(show_s, [float(f(wiring.latency_s[links])) for f in (np.min, np.max)])
        used = "" if self.load is None or np.isnan(self.load[links]).all() else f", {np.nanmean(self.load[links]):.0%} used"
        return f"{len(links):,} {_family(name)}, {rate}, {latency}{used}"


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


__all__ = ["BAR", "draw", "inside_places"]
