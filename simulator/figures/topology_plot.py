"""A picture of a cluster: its nodes in a row, what is in them, and the fabric in layers above; links by class, or by load.

    topology_plot(cluster)                     # links coloured by class
    topology_plot(cluster, {link: 0.7, ...})   # a heat map: utilisation by link number or name, each direction beside the other
    topology_plot(cluster, load)               # the same, an array with the utilisation of every link
    topology_plot(cluster, load, marked={"waited for 1 s": links})   # some of them on a broader line, and named below

Colours of a heat map go from 0 to the first of 1, 2, 5, 10, 20, 50 and 100% that no link exceeds.
Beyond 32 nodes, or 32 GPUs in each of several, the picture is a summary: one node stands for all, and each layer is a bar
with a count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from textwrap import fill
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import must_be
from ..hardware.cluster import Cluster
from ..hardware.measure import link_classes
from ..study.cluster_facts import span
from ..units import show_rate
from .drawing import Axes, Figure, Line2D, LineCollection, PatchCollection, ink_on, legible, rounded_box
from .topology_colours import CLASSES, HALO_POINTS, KINDS, MARK, HeatMap, Load, canvas, colour_of, without_direction
from .topology_summary import Summary
from .vertex_positions import SQUARE, Positions, on_grid, positions

Array = NDArray[Any]

MOST_NODES, MOST_VERTICES = 32, 1600
"""Most nodes, and most vertices, that are drawn individually."""
MOST_IN_NODE = 32
"""Most GPUs of a node that are drawn individually in a cluster of several: the links of several racks hide each other."""
WIDEST_IN, TALLEST_IN = 16.0, 11.0
TOLERANCE = 1e-9
LETTER_IN = 0.09
"""Width of a letter of the title in inches, at most."""
MOST_RATES, WIDEST_LINE, NARROWEST = 3, 2.4, 0.4
"""Most rates of a class of links that have a line each in the legend; width of the quickest line in points, and of the slowest as
a fraction of it."""
PITCH_IN = 0.42
"""Distance between two GPUs if there is enough space, in inches."""


def topology_plot(
    cluster: Cluster, link_load: Load | None = None, *, title: str | None = None, marked: Mapping[str, Array] | None = None
) -> Figure:
    """A matplotlib figure; with `link_load`, the utilisation of links from 0 to 1, a heat map.

    `marked`: caption -> numbers of links that are highlighted.
    """
    must_be(cluster, Cluster, "cluster", "a cluster", 'topology_plot(sim.cluster("dgx-h100"))')
    title = legible(title or _title(cluster))
    heat = None if link_load is None else HeatMap.of(cluster, link_load, marked)
    vertices = sum(run.count for run in cluster.wiring.vertices)
    racks = cluster.nodes > 1 and cluster.gpus_per_node > MOST_IN_NODE
    if cluster.nodes > MOST_NODES or vertices > MOST_VERTICES or racks:
        return Summary(cluster, heat).figure(title)
    at = positions(cluster)
    left, low, right, high = at.extent
    arched = _is_arched(cluster, at)
    arch = _arch(cluster, at, arched)
    margin = 3.2 if at.layers else 0.8
    width, height = right - left + margin + 0.8, high - low + arch + 1.2
    inch = min(PITCH_IN, WIDEST_IN / width, TALLEST_IN / height)
    figure, axes = canvas(max(5.5, width * inch), max(1.2, height * inch) + (heat.room_in if heat else 0.0) + 0.7)
    slack = max(0.0, (5.5 / inch - width) / 2)
    axes.set_xlim(left - margin - slack, right + 0.8 + slack)
    axes.set_ylim(low - 0.8, high + arch + 0.4)
    points = 72 * inch
    _draw_nodes(axes, at, points)
    if heat is None:
        _draw_links(axes, cluster, _segments(cluster, at, arched, 0.0))
    else:
        _draw_heat(axes, cluster, _segments(cluster, at, arched, min(0.1, 1.6 / points)), heat)
    _draw_vertices(axes, cluster, at, points)
    for y, name in at.layers:
        axes.text(left - 0.5, y, legible(name), ha="right", va="center", fontsize=9, color="#444444")
    title = fill(title, int(figure.get_figwidth() / LETTER_IN))
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")  # a title of axes with a fixed aspect may have no room above them
    heat.explain(figure, axes) if heat else _draw_legend(figure, cluster)
    return figure


def _title(cluster: Cluster) -> str:
    nodes = "1 node" if cluster.nodes == 1 else f"{cluster.nodes:,} nodes"
    shape = cluster.inside_name if cluster.nodes == 1 else cluster.shape_name
    return f"{cluster.name}: {nodes} of {cluster.gpus_per_node} {cluster.gpu.name}, {shape}"


def _draw_nodes(axes: Axes, at: Positions, points: float) -> None:
    """Draws the frame around the vertices of each node, with the number of the node below."""
    labels = [f"node {i}" for i in range(len(at.nodes))]
    frames = at.nodes.tolist()
    size = min([9.0, *(0.75 * frame[2] * points / len(label) / 0.6 for frame, label in zip(frames, labels, strict=True))])
    style = {"facecolor": "#f6f7f9", "edgecolor": "#c9ced8", "linewidth": 0.8, "zorder": 0}
    for (left, low, width, height), label in zip(frames, labels, strict=True):
        axes.add_patch(rounded_box((left, low), width, height, 0.25, **style))
        axes.text(left + width / 2, low - 0.12, label, ha="center", va="top", fontsize=size, color="#555555")


def _draw_vertices(axes: Axes, cluster: Cluster, at: Positions, points: float) -> None:
    """Draws every vertex, with its label if the label fits: the index of a GPU or NIC, the name of any other vertex."""
    for i, run in enumerate(cluster.wiring.vertices):
        patches, colour = [], colour_of(run.kind, KINDS, i)
        for number in range(run.first, run.first + run.count):
            (x, y), (w, h) = at.centre[number], at.size[number]
            patches.append(rounded_box((x - w / 2, y - h / 2), w, h, 0.12))
            last = run.name(number - run.first).split("/")[-1]
            text = (last.removeprefix(run.kind) if run.kind in ("gpu", "nic") else "") or last
            size = min(8.5, 0.62 * h * points, 0.92 * w * points / len(text) / 0.6)
            if size >= 4.5:
                style = {"ha": "center", "va": "center_baseline", "fontsize": size, "color": ink_on(colour), "zorder": 4}
                axes.text(x, y, legible(text), **style)
        axes.add_collection(PatchCollection(patches, facecolor=colour, edgecolor="white", linewidth=0.5, zorder=3))


def _is_arched(cluster: Cluster, at: Positions) -> Array:
    """Whether each link joins vertices of one layer of switches, and a straight line would cross the vertices in between."""
    wiring = cluster.wiring
    step = at.centre[wiring.target] - at.centre[wiring.source]
    level = np.abs(step[:, 1]) < 0.01
    upright = np.abs(step[:, 0]) < 0.01
    kinds = np.searchsorted([run.first for run in wiring.vertices], [wiring.source, wiring.target], side="right")
    above = np.array(
        [run.kind not in ("nic", "cpu", "gpu") or (run.kind == "gpu" and not len(at.nodes)) for run in wiring.vertices]
    )
    arched: Array = (kinds[0] == kinds[1]) & (level | upright) & above[kinds[0] - 1]
    arched &= np.abs(step).max(axis=1) > _spacing(cluster, at)
    return arched


def _spacing(cluster: Cluster, at: Positions) -> float:
    """Largest length of a link between neighbours in one layer; such links are straight."""
    left, low, width = at.nodes[:, 0], at.nodes[:, 1], at.nodes[:, 2]
    if on_grid(cluster):
        return 1.05 * float(max(width[0] + 1.8, np.diff(np.unique(low)).min(initial=0.0)))
    return 1.05 * float(np.diff(left).min() if len(left) > 1 else 1.0)


def _arch(cluster: Cluster, at: Positions, arched: Array) -> float:
    """Space that arches need above the topmost layer."""
    if not arched.any():
        return 0.0
    step = np.abs(at.centre[cluster.wiring.target[arched]] - at.centre[cluster.wiring.source[arched]]).max(axis=1)
    return 0.55 * _rise(cluster, float(step.max()))


def _rise(cluster: Cluster, length: float) -> float:
    """Height of the middle of an arch; on a grid limited so that arches stay between the rows."""
    return 1.5 if on_grid(cluster) else min(0.5 * length, 1.4 * math.sqrt(length) + 0.6)


def _segments(cluster: Cluster, at: Positions, arched: Array, shift: float) -> list[Array]:
    """The line of every link; with a shift the two directions run beside each other."""
    start, end = _ends(cluster, at)
    along = end - start
    length = np.maximum(np.hypot(*along.T), TOLERANCE)[:, None]
    beside = shift * np.stack([along[:, 1], -along[:, 0]], axis=1) / length
    start, end = start + beside, end + beside
    t = np.linspace(0, 1, 17)[:, None]
    segments = []
    for link in range(cluster.wiring.links):
        if not arched[link]:
            segments.append(np.stack([start[link], end[link]]))
            continue
        rise = _rise(cluster, float(length[link, 0])) + (shift if along[link, 0] > 0 else -shift)
        bend = (start[link] + end[link]) / 2 + (np.array([0, rise]) if abs(along[link, 0]) > 0.01 else np.array([-rise / 2, 0]))
        segments.append((1 - t) ** 2 * start[link] + 2 * t * (1 - t) * bend + t**2 * end[link])
    return segments


def _ends(cluster: Cluster, at: Positions) -> tuple[Array, Array]:
    """Start and end points of links: the middle of a vertex, or on a wide vertex the point nearest to the other end."""
    wiring = cluster.wiring
    source, target = at.centre[wiring.source].copy(), at.centre[wiring.target].copy()
    same_layer = np.abs(source[:, 1] - target[:, 1]) < 0.01
    for here, there, who in ((source, target, wiring.source), (target, source, wiring.target)):
        reach = np.maximum(at.size[who, 0] / 2 - 0.3, 0)
        reach = np.where((at.size[who, 0] > 2.2 * SQUARE) & ~same_layer, reach, 0)
        here[:, 0] = np.clip(there[:, 0], here[:, 0] - reach, here[:, 0] + reach)
    return source, target


def _widths(cluster: Cluster) -> Array:
    """Line width of every link in points, by its capacity."""
    capacity = cluster.wiring.capacity_bytes_per_s
    crowd = max(0.35, min(1.3, 26 / math.sqrt(cluster.wiring.links + 1)))
    widths: Array = crowd * np.clip(np.sqrt(capacity / float(np.median(capacity))), 0.7, 2.6)
    return widths


def _draw_links(axes: Axes, cluster: Cluster, segments: list[Array]) -> None:
    """Draws links coloured by class, one of the two directions."""
    wiring = cluster.wiring
    named = [colour_of(name, CLASSES, i) for i, name in enumerate(wiring.link_classes)]
    count = sum(run.count for run in wiring.vertices)
    has_twin = np.isin(wiring.source * count + wiring.target, wiring.target * count + wiring.source)
    once = np.flatnonzero((wiring.source < wiring.target) | ~has_twin)
    colours = [named[int(wiring.link_class[link])] for link in once]
    style: dict[str, Any] = {"linewidths": _widths(cluster)[once], "alpha": 0.85, "zorder": 1, "capstyle": "round"}
    axes.add_collection(LineCollection([segments[i] for i in once], colors=colours, **style))


def _draw_heat(axes: Axes, cluster: Cluster, segments: list[Array], heat: HeatMap) -> None:
    """Draws links coloured by utilisation, the busiest on top, and above them the marked links."""
    idle = np.isnan(heat.load)
    order = np.argsort(np.where(idle, -1.0, heat.load), kind="stable")
    wide = np.where(idle, 0.6, 1.0 + 0.8 * np.clip(np.nan_to_num(heat.load), 0, 1)) * _widths(cluster) * 1.3
    rest, marked = order[~heat.is_marked[order]], order[heat.is_marked[order]]
    for links, mark, halo, zorder in ((rest, None, 0.0, 1.0), (marked, MARK, HALO_POINTS, 1.1), (marked, None, 0.0, 1.2)):
        colours, lines = mark or heat.colours(heat.load[links]), [segments[i] for i in links]
        axes.add_collection(LineCollection(lines, colors=colours, linewidths=wide[links] + halo, zorder=zorder))


def _draw_legend(figure: Figure, cluster: Cluster) -> None:
    """Draws the colour of each class of links, without its direction, and the rates of the class: a line each for a few rates, as
    wide beside one another as in the picture."""
    number = {name: i for i, name in enumerate(cluster.wiring.link_classes)}
    rates: dict[str, list[float]] = {}
    colours: dict[str, str] = {}
    for of in link_classes(cluster.wiring):
        name = without_direction(of.name)
        rates.setdefault(name, []).append(of.bytes_per_s)
        colours.setdefault(name, colour_of(of.name, CLASSES, number[of.name]))
    handles = []
    for name, values in rates.items():
        several, most = sorted({*values}), max(values)
        for shown in [[rate] for rate in reversed(several)] if len(several) <= MOST_RATES else [several]:
            wide, label = WIDEST_LINE * max(NARROWEST, math.sqrt(shown[-1] / most)), f"{name}, {span(show_rate, shown)}"
            handles.append(Line2D([], [], color=colours[name], linewidth=wide, label=legible(label)))
    columns = min(len(handles), max(1, int(figure.get_figwidth() / 2.6)))
    figure.legend(handles=handles, loc="outside lower left", ncols=columns, frameon=False, fontsize=8, handlelength=1.6)
