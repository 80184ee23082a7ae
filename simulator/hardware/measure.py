"""Properties of a topology: classes of links, routes between GPUs, bisection bandwidth, diameter.

The bisection bandwidth is the maximum flow from the GPUs of the first half of the nodes to the GPUs of the other half (in a
single node: from half of the GPUs to the others) or back, whichever is less, exact by the max-flow min-cut theorem. A torus is
cut across each of its sides and the least flow counts, so that the order of the sides has no influence. In a large graph the flow
is computed among the switches alone, with each NIC at the rate at which the GPUs of its node can feed the NIC. The bisection
bandwidth is a property of the cables: hashed routing may reach less.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product
from typing import Any

import numpy as np

from .cluster import Assembly, Cluster
from .options import Routing
from .wiring import Array, Links, Wiring

MOST_CUT, MOST_CUT_AMONG_SWITCHES = 3_000, 40_000
"""Largest numbers of links for which a maximum flow is computed in the whole graph, and among the switches."""
MOST_SOURCES = 16
Rates = Mapping[int, float]
"""The most bytes/s that may begin or end at a vertex, by vertex."""
WORDS = {"agg": "aggregation"}
"""Kinds of switches, by the short names of their vertices."""


@dataclass(frozen=True, slots=True)
class LinkClass:
    """Links of one class and one rate."""

    name: str
    count: int
    bytes_per_s: float
    latency_s: float
    ends: tuple[str, ...]
    """The kinds of vertices that the links join, such as `gpu > nvswitch`."""


@dataclass(frozen=True, slots=True)
class RouteClass:
    """Routes from GPU 0 over equal sequences of link classes: number of target GPUs, lowest and highest rate and latency."""

    classes: tuple[str, ...]
    inside: bool
    gpus: int
    example: int
    hops: tuple[int, int]
    latency_s: tuple[float, float]
    bytes_per_s: tuple[float, float]
    """Bandwidth of the slowest link on the route."""


@dataclass(frozen=True, slots=True)
class Bisection:
    """Bisection bandwidth in bytes/s, or None where no value was found, and the method of computation."""

    bytes_per_s: float | None
    method: str


@dataclass(frozen=True, slots=True)
class Diameter:
    """Number of links on the longest shortest route between GPUs, and the number of GPUs from which routes were searched."""

    hops: int
    sources: int
    exact: bool


def link_classes(wiring: Wiring) -> list[LinkClass]:
    """Number of links by class, rate and latency, with the kinds of vertices that they join, in the order of the wiring."""
    columns = np.stack([wiring.link_class, wiring.capacity_bytes_per_s, wiring.latency_s], axis=1)
    found, first, which, counts = np.unique(columns, axis=0, return_index=True, return_inverse=True, return_counts=True)
    begins = np.array([run.first for run in wiring.vertices])
    source, target = (np.searchsorted(begins, ends, side="right") - 1 for ends in (wiring.source, wiring.target))
    ends_of: dict[int, list[str]] = {}
    for row, a, b in np.unique(np.stack([which.ravel(), source, target], axis=1), axis=0).tolist():
        ends_of.setdefault(row, []).append(f"{wiring.vertices[a].kind} > {wiring.vertices[b].kind}")
    rows = [(found[i], int(counts[i]), tuple(dict.fromkeys(ends_of[i]))) for i in np.argsort(first).tolist()]
    return [LinkClass(wiring.link_classes[int(c)], n, float(rate), float(delay_s), ends) for (c, rate, delay_s), n, ends in rows]


def switches(cluster: Cluster) -> dict[str, int]:
    """Number of physical switches between the nodes by kind; under sprayed traffic the graph pools switches that look alike.

    The number of spines is the number of uplinks of a full leaf, unless given. A single node and an explicit graph have none.
    """
    shape: Any = cluster.shape
    if cluster.nodes == 1 or not hasattr(shape, "fabric"):
        return {}
    apart = replace(cluster, options=replace(cluster.options, routing=Routing(hashed=True)))
    counts: dict[str, int] = {}
    for part in shape.fabric(apart).switches:
        kind = WORDS.get(part.kind, part.kind)
        counts[kind] = counts.get(kind, 0) + part.count
    return counts


def route_classes(cluster: Cluster) -> list[RouteClass]:
    """The classes of routes from GPU 0 to the other GPUs, routes inside the node and with few hops first."""
    target = np.arange(1, cluster.gpus)
    if not len(target):
        return []
    route, wiring = cluster.route(np.zeros_like(target), target), cluster.wiring
    taken = route >= 0
    latency = np.where(taken, wiring.latency_s[route], 0.0).sum(axis=1)
    rate = np.where(taken, wiring.capacity_bytes_per_s[route], np.inf).min(axis=1)
    hops, which, sequences = taken.sum(axis=1), *_sequences(np.where(taken, wiring.link_class[route], -1))
    rows, in_node = [], target < cluster.gpus_per_node
    for (kind, sequence), inside in product(enumerate(sequences), (True, False)):
        here = np.flatnonzero((which == kind) & (in_node == inside))
        if not len(here):
            continue
        low, high = (tuple(f(x[here]).item() for x in (hops, latency, rate)) for f in (np.min, np.max))
        names, example = tuple(wiring.link_classes[c] for c in sequence), int(target[here[0]])
        rows.append(RouteClass(names, inside, len(here), example, *zip(low, high, strict=True)))
    return sorted(rows, key=lambda route_class: (not route_class.inside, route_class.hops, route_class.example))


def _sequences(classes: Array) -> tuple[Array, list[tuple[int, ...]]]:
    """The index of the sequence of classes of each row, without repetitions and padding, and the sequences."""
    distinct, of_row = np.unique(classes, axis=0, return_inverse=True)
    number: dict[tuple[int, ...], int] = {}
    plain = [tuple(c for c, _ in groupby(c for c in row if c >= 0)) for row in distinct.tolist()]
    return np.array([number.setdefault(row, len(number)) for row in plain])[of_row.ravel()], list(number)


def diameter(cluster: Cluster) -> Diameter:
    """The diameter, by breadth-first search from every GPU, or from `MOST_SOURCES` GPUs spread evenly over the cluster."""
    wiring, count = cluster.wiring, min(cluster.gpus, MOST_SOURCES)
    order = np.argsort(wiring.source, kind="stable")
    vertices = sum(run.count for run in wiring.vertices)
    ends = np.cumsum(np.bincount(wiring.source, minlength=vertices))
    sources = np.unique(np.linspace(0, cluster.gpus - 1, count).round().astype(np.int64))
    farthest = max(_eccentricity(cluster.gpus, s, wiring.target[order], ends) for s in sources.tolist())
    return Diameter(farthest, len(sources), len(sources) == cluster.gpus)


def _eccentricity(gpus: int, source: int, target: Array, ends: Array) -> int:
    """Number of hops from a GPU to the farthest other GPU."""
    begins, hops = np.concatenate([[0], ends[:-1]]), np.full(len(ends), -1)
    hops[source], front, step = 0, np.array([source]), 0
    while len(front):
        step += 1
        counts = ends[front] - begins[front]
        links = np.repeat(begins[front] - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts) + np.arange(counts.sum())
        front = np.unique(target[links])
        front = front[hops[front] < 0]
        hops[front] = step
    return int(hops[:gpus].max())


def bisection(cluster: Cluster) -> Bisection:
    """Bisection bandwidth between the halves of the nodes, or of a single node: the least over all cuts of the shape."""
    if cluster.gpus == 1:
        return Bisection(None, "a single GPU has no halves")
    halves = _halves(cluster)
    if cluster.wiring.links <= MOST_CUT:
        gpus = np.arange(cluster.gpus)
        in_half = [half if cluster.nodes == 1 else np.repeat(half, cluster.gpus_per_node) for half in halves]
        sides = [(_unlimited(gpus[half]), _unlimited(gpus[~half])) for half in in_half]
        return Bisection(_least_flow([cluster.wiring], sides), "maximal flow through the whole graph")
    assembly = replace(cluster, options=replace(cluster.options, routing=Routing())).assembly
    fabric = assembly and assembly.fabric
    if not assembly or not fabric:
        return Bisection(None, f"not found: {cluster.wiring.links:,} links are too many for a maximal flow")
    if sum(len(run.source) for run in fabric.runs) > MOST_CUT_AMONG_SWITCHES:
        return Bisection(None, "not found: too many links between switches for a maximal flow")
    fed = np.tile(np.minimum(_fed(assembly), cluster.rail_bytes_per_s), cluster.nodes)
    nics = [np.repeat(half, assembly.rails) for half in halves]
    sides = [(_rates(fabric.port[first], fed[first]), _rates(fabric.port[~first], fed[~first])) for first in nics]
    return Bisection(_least_flow(fabric.runs, sides), "maximal flow among the switches, NICs at their rates")


def _halves(cluster: Cluster) -> list[Array]:
    """The nodes (in a single node: the GPUs) on one side of each cut of the shape; by default the first half."""
    shape, points = (cluster.inside, cluster.gpus_per_node) if cluster.nodes == 1 else (cluster.shape, cluster.nodes)
    cuts: list[Array] = shape.halves(cluster) if hasattr(shape, "halves") else [np.arange(points) < points // 2]
    return cuts


def _least_flow(runs: Sequence[Wiring | Links], sides: Iterable[tuple[Rates, Rates]]) -> float:
    """The least of the maximum flows across some cuts, of which the rates on either side are given, in both directions."""
    return min(_max_flow(runs, *ends) for first, second in sides for ends in ((first, second), (second, first)))


def _max_flow(runs: Iterable[Wiring | Links], sources: Rates, targets: Rates) -> float:
    """The maximum flow over links in bytes/s, rates rounded to whole bytes/s, within the rate of each source and target."""
    import networkx as nx

    graph: nx.DiGraph[int] = nx.DiGraph()
    for run in runs:
        capacities = np.rint(run.capacity_bytes_per_s).astype(int).tolist()
        for source, target, capacity in zip(run.source.tolist(), run.target.tolist(), capacities, strict=True):
            graph.add_edge(source, target, capacity=capacity)
    graph.add_edges_from((-1, source, {"capacity": rate}) for source, rate in sources.items())
    graph.add_edges_from((target, -2, {"capacity": rate}) for target, rate in targets.items())
    return float(nx.maximum_flow_value(graph, -1, -2))


def _unlimited(vertices: Array) -> dict[int, float]:
    return dict.fromkeys(vertices.tolist(), math.inf)


def _rates(ports: Array, bytes_per_s: Array) -> dict[int, float]:
    """The total rate in bytes/s of the NICs at each switch, by switch."""
    plugged = np.bincount(ports, weights=bytes_per_s)
    return {switch: round(plugged[switch]) for switch in np.flatnonzero(plugged).tolist()}


def _fed(assembly: Assembly) -> Array:
    """The rate in bytes/s at which the GPUs of a node can send to each NIC of the node."""
    gpus, nics = np.arange(assembly.cluster.gpus_per_node), assembly.vertex.locals - assembly.rails + np.arange(assembly.rails)
    if assembly.cluster.inside_name == "nvswitch":
        ends, rates = (np.concatenate([getattr(run, x) for run in assembly.runs]) for x in ("target", "capacity_bytes_per_s"))
        arriving: Array = np.bincount(ends, np.rint(rates))[nics]
        return arriving
    return np.array([_max_flow(assembly.runs, _unlimited(gpus), {nic: math.inf}) for nic in nics.tolist()])
