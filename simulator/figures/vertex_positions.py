"""Positions of the vertices of a cluster in a picture: nodes in a row with their insides, switches in layers above.

Lengths are in pitches: the distance between two GPUs of a node. A torus has its nodes on a grid instead of a row, and all
vertices outside nodes are in layers by their distance from the GPUs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..hardware.cluster import Cluster
from ..hardware.measure import WORDS, switches
from ..hardware.shapes._direct import squarish
from ..hardware.wiring import Wiring
from ..isotonic import isotonic

Array = NDArray[np.float64]

GAP = 0.9
"""Gap between nodes, in pitches."""
LAYER, STEEP = 2.6, 0.075
"""Distance between layers of switches: the least, in pitches, and as a fraction of the width."""
MOST_APART = 4.0
"""Largest distance between switches of a layer, in pitches."""
SQUARE, BAR = 0.72, 0.42
"""Side of a vertex, and height of a vertex that is as wide as the vertices that it joins, in pitches."""
BESIDE, CLEAR = 0.36, 0.08
"""By how much a second row of GPUs is moved to the side, and the least distance of a link from GPUs of other rows, in pitches."""
TIERS = ("edge", "agg", "core")
"""Kinds of vertices that captions call switches."""
CUBE = ((0.0, 1.5), (1.5, 1.5), (0.0, 0.0), (1.5, 0.0), (2.5, 2.2), (4.0, 2.2), (2.5, 0.7), (4.0, 0.7))
"""Positions of the GPUs of a cube mesh, one quad behind the other."""


@dataclass
class Positions:
    """Centre, width and height of every vertex; frames of nodes; names and heights of layers."""

    centre: Array
    size: Array
    nodes: Array = field(default_factory=lambda: np.zeros((0, 4)))
    """Left and lower edge, width and height of the frame around the vertices of each node."""
    layers: list[tuple[float, str]] = field(default_factory=list)

    @property
    def extent(self) -> tuple[float, float, float, float]:
        """Left, lower, right and upper edge of the picture."""
        low = np.concatenate([self.centre - self.size / 2, self.nodes[:, :2]]).min(axis=0)
        high = np.concatenate([self.centre + self.size / 2, self.nodes[:, :2] + self.nodes[:, 2:]]).max(axis=0)
        return float(low[0]), float(low[1]), float(high[0]), float(high[1])


def positions(cluster: Cluster) -> Positions:
    """The positions of all vertices of a cluster."""
    wiring, assembly = cluster.wiring, cluster.assembly
    total = sum(run.count for run in wiring.vertices)
    found = Positions(np.zeros((total, 2)), np.full((total, 2), SQUARE))
    if assembly:
        inside, size, width, height = _inside(cluster)
        corner = _corners(cluster, width, height)
        numbers = assembly.vertex.of(np.arange(cluster.nodes), np.arange(assembly.vertex.locals)).reshape(cluster.nodes, -1)
        found.centre[numbers] = corner[:, None, :] + inside[None, :, :]
        found.size[numbers] = size
        frame = np.broadcast_to([width + 0.4, height + 0.4], corner.shape)
        found.nodes = np.concatenate([corner - 0.2, frame], axis=1)
        placed = assembly.vertex.end
    else:
        placed = cluster.gpus
        found.centre[:placed, 0] = np.arange(placed)
    if on_grid(cluster):
        found.centre[placed:] = found.nodes[:, :2] + found.nodes[:, 2:] + np.array([GAP - 0.2, 0.5])
        found.size[placed:] = (SQUARE * 1.5, SQUARE * 0.8)
    else:
        _stack(found, cluster, placed)
    return found


def on_grid(cluster: Cluster) -> bool:
    """Whether nodes are on a grid, each with its router at the upper right corner, so that links run between the nodes."""
    return cluster.shape_name == "torus" and cluster.nodes > 1


def _corners(cluster: Cluster, width: float, height: float) -> Array:
    """The lower left corner of every node: in a row, or on the grid of a torus with its planes beside each other."""
    node = np.arange(cluster.nodes)
    if not on_grid(cluster):
        return np.stack([node * (width + GAP), np.zeros(len(node))], axis=1)
    dims = cluster.options.dims or squarish(cluster.nodes)
    x, y, plane = node % dims[0], node // dims[0] % math.prod(dims[1:2]), node // math.prod(dims[:2])
    across = dims[0] * (width + 2 * GAP) + 2 * GAP
    return np.stack([x * (width + 2 * GAP) + plane * across, y * (height + LAYER)], axis=1).astype(float)


def _inside(cluster: Cluster) -> tuple[Array, Array, float, float]:
    """Centres and sizes of one node's vertices, by local number, and width and height of the node."""
    gpus = _gpus(cluster)
    pitch = gpus[:, 0].max(initial=0) + 1
    rails = cluster.rails if cluster.nodes > 1 else 0
    centre, size, level = [gpus], [np.full((len(gpus), 2), SQUARE)], 0.0
    for part in reversed(cluster.node.parts):
        x = (np.arange(part.count) + 0.5) * pitch / part.count - 0.5
        centre.insert(1, np.stack([x, np.full(part.count, level)], axis=1))
        wide = pitch / part.count - 0.28 if part.kind in ("nvswitch", "cpu", "pcie") else SQUARE
        size.insert(1, np.tile([wide, BAR], (part.count, 1)))
        level += 1.1
    gpus[:, 1] += level
    nics = (np.arange(rails) + 0.5) * pitch / max(1, rails) - 0.5
    centre.append(np.stack([nics, np.full(rails, gpus[:, 1].max() + 1.15)], axis=1))
    size.append(np.tile([min(SQUARE, 0.86 * pitch / max(1, rails)), BAR], (rails, 1)))
    together = np.concatenate(centre) + 0.5
    return together, np.concatenate(size), float(pitch), float(together[:, 1].max() + 0.5)


def _gpus(cluster: Cluster) -> Array:
    """Positions of the GPUs of a node: in rows above the vertices that join them, or arranged so that links do not overlap."""
    n, kind = cluster.gpus_per_node, cluster.inside_name
    number = np.arange(n)
    if kind == "cube-mesh":
        return np.array(CUBE[:n])
    if kind in ("ring", "fully-connected") and n > 2:
        angle, radius = math.pi / 2 + math.pi / n - 2 * math.pi * number / n, max(1.0, 0.22 * n)
        around = radius * np.stack([np.cos(angle), np.sin(angle)], axis=1)
        return np.asarray(around - around.min(axis=0))
    if kind == "torus":
        side = (cluster.options.node_dims or squarish(n))[0]
        return np.stack([number % side * 1.3 + number // side % 2 * 0.4, number // side * 1.3], axis=1)
    most = 8 if cluster.nodes <= 4 or kind == "pcie" else 4
    columns = n if n <= most else math.ceil(n / math.ceil(n / max(most, math.ceil(math.sqrt(3 * n)) if n > 16 else most)))
    rows, row = math.ceil(n / columns), number // columns
    beside = BESIDE if rows < 3 else SQUARE / 2 + CLEAR  # so that no link runs behind a GPU of a lower row
    return np.stack([number % columns * max(1.0, rows * beside) + beside * row, row * 1.0], axis=1).astype(float)


def _stack(found: Positions, cluster: Cluster, placed: int) -> None:
    """Places the layers above: kind by kind by distance from below, each vertex above the middle of the vertices below it."""
    wiring, bought = cluster.wiring, switches(cluster)
    distance = _distances(wiring, placed)
    runs: dict[str, list[int]] = {}
    for run in wiring.vertices:
        if run.first >= placed and run.count:
            runs.setdefault(run.kind, []).extend(range(run.first, run.first + run.count))
    kinds = sorted(runs, key=lambda kind: (int(distance[runs[kind]].min()), kind == "gateway"))
    left, _, right, top = found.extent
    rise, below = max(LAYER, STEEP * (right - left)), np.arange(placed)
    for kind in kinds:
        members, span = np.array(runs[kind]), right - left
        top += rise
        down = np.isin(wiring.source, below) & np.isin(wiring.target, members)
        member, x = np.searchsorted(members, wiring.target[down]), found.centre[wiring.source[down], 0]
        joined = np.maximum(np.bincount(member, minlength=len(members)), 1)
        middle = np.round(np.bincount(member, weights=x, minlength=len(members)) / joined, 6)
        order, apart = np.argsort(middle, kind="stable"), max(0.9, min(MOST_APART, span / len(members)))
        found.centre[members[order]] = np.stack([_spread(middle[order], apart), np.full(len(members), top)], axis=1)
        found.size[members] = (0.7 * span if len(members) == 1 else 0.8 * apart, SQUARE)
        count = bought.get(WORDS.get(kind, kind), len(members))  # may exceed the graph's, where spraying pools switches
        pooled = f"{count:,} {plural(kind, count)}, as {len(members):,}"
        found.layers.append((top, plural(kind, count) if count == len(members) else pooled))
        below = np.concatenate([below, members])


def plural(kind: str, count: int) -> str:
    """A kind of vertex in the plural: `leaf`, `leaves`, `core switches`."""
    named = f"{WORDS.get(kind, kind)} switch" if kind in TIERS else kind
    if count == 1:
        return named
    return "leaves" if kind == "leaf" else f"{named}{'es' if named.endswith(('s', 'ch')) else 's'}"


def _spread(wanted: Array, apart: float) -> Array:
    """Increasing places, nearest to the wanted places and at least `apart` from each other."""
    steps = apart * np.arange(len(wanted))
    return isotonic(wanted - steps) + steps


def _distances(wiring: Wiring, placed: int) -> NDArray[np.int64]:
    """Number of links from each vertex down to the nearest vertex that is placed already."""
    vertices = sum(run.count for run in wiring.vertices)
    distance = np.where(np.arange(vertices) < placed, 0, vertices)
    for _ in range(vertices):
        shorter = distance.copy()
        np.minimum.at(shorter, wiring.target, distance[wiring.source] + 1)
        if (shorter == distance).all():
            break
        distance = shorter
    return distance
