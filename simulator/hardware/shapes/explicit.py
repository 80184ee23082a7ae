"""Explicit graph, listed vertex by vertex and link by link in the file of the cluster; traffic takes the shortest route.

`vertices` lists all vertices with their kinds, GPUs in the order of their numbers, and `links` connects them. The shortest
route has the least latency, and of equal latencies the fewest links. Of several shortest routes, hashed routing takes one by
the hash of the flow, and sprayed routing the one of the earliest links, because it cannot divide a flow here. Shortest routes
are computed once for each source and kept.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import UserError
from ...units import ns
from ..cluster import Cluster
from ..numbering import flow_hashes
from ..wiring import Array, Links, Part, Wiring

OPTIONS = ("vertices", "links", "routing")
UNREACHED = (1 << 62, 0)


def wire(cluster: Cluster) -> Wiring:
    graph = cluster.options.explicit_graph
    if graph is None:
        hint = "vertices: [{name: gpu0, kind: gpu}], links: [...]"
        raise UserError(f"{cluster.name} has neither vertices nor links", hint=hint)
    kinds = [kind for _, kind in graph.vertices]
    gpus = kinds.count("gpu")
    if gpus != cluster.gpus:
        message = f"the graph has {gpus} vertices of kind gpu, and {cluster.name} {cluster.nodes} x {cluster.gpus_per_node} GPUs"
        raise UserError(message, hint="nodes times gpus_per_node is the number of GPUs")
    by_kind: dict[str, list[int]] = {"gpu": []}
    for i, kind in enumerate(kinds):
        by_kind.setdefault(kind, []).append(i)
    parts = []
    for kind, those in by_kind.items():
        parts.append(Part(kind, len(those), [graph.vertices[i][0] for i in those].__getitem__))
    number = np.argsort([i for those in by_kind.values() for i in those])
    source, target = (number[np.array(ends, dtype=np.int64)] for ends in zip(*((a, b) for a, b, _ in graph.links), strict=True))
    capacity, latency_s = (np.array([getattr(spec, x) for *_, spec in graph.links]) for x in ("bytes_per_s", "latency_s"))
    return Wiring.of(parts, [Links.between(source, target, capacity, latency_s)])


def route(cluster: Cluster, source: Array, target: Array) -> Array:
    if "paths" not in cluster.memo:
        cluster.memo["paths"] = _Paths(cluster.wiring)
    paths: _Paths = cluster.memo["paths"]
    return paths.route(source, target, flow_hashes(cluster.options.routing, source, target))


def unjoined(gpus: Sequence[str], links: Sequence[tuple[str, str]]) -> Iterator[tuple[int, tuple[str, str]]]:
    """GPUs, by number, that cannot reach the first GPU or that it cannot reach, with the ends of the missing route."""
    import networkx as nx

    graph: nx.DiGraph[str] = nx.DiGraph(links)
    graph.add_nodes_from(gpus)
    reached, reaching = nx.descendants(graph, gpus[0]), nx.ancestors(graph, gpus[0])
    for i, gpu in enumerate(gpus[1:], 1):
        if gpu not in reached or gpu not in reaching:
            yield i, (gpu, gpus[0]) if gpu in reached else (gpus[0], gpu)


@dataclass(frozen=True, eq=False, slots=True)
class _Tree:
    """Shortest routes from one source: for each vertex the last links of all shortest routes, as a range of `links`."""

    hops: Array
    first: Array
    count: Array
    links: Array


class _Paths:
    """Shortest routes by latency in nanoseconds, then by hops."""

    def __init__(self, wiring: Wiring) -> None:
        self.wiring = wiring
        self.source, self.target = wiring.source.tolist(), wiring.target.tolist()
        self.latency_ns = [int(ns(s)) for s in wiring.latency_s.tolist()]
        self.vertices = sum(run.count for run in wiring.vertices)
        self.leaving: list[list[int]] = [[] for _ in range(self.vertices)]
        for link, vertex in enumerate(self.source):
            self.leaving[vertex].append(link)
        self.trees: dict[int, _Tree] = {}

    def route(self, source: Array, target: Array, flow: Array) -> Array:
        """The links of each pair from source to target, padded with -1; the hash of the flow chooses among last links."""
        width, found = 0, []
        for start in np.unique(source).tolist():
            here = np.flatnonzero(source == start)
            ways = self._routes_from(start, target[here], flow[here])
            found.append((here, ways))
            width = max(width, ways.shape[1])
        routes = np.full((len(source), width), -1, dtype=np.int64)
        for here, ways in found:
            routes[here, : ways.shape[1]] = ways
        return routes

    def _routes_from(self, start: int, target: Array, flow: Array) -> Array:
        """The routes from one source, built hop by hop from the targets back."""
        if start not in self.trees:
            self.trees[start] = self._tree(start)
        tree = self.trees[start]
        hops = tree.hops[target]
        if (hops < 0).any():
            lost = self.wiring.vertex_name(int(target[hops < 0][0]))
            raise UserError(f"no way leads from {self.wiring.vertex_name(start)} to {lost}", hint="join them by links")
        ways = np.full((len(target), int(hops.max(initial=0))), -1, dtype=np.int64)
        at = target
        for back in range(ways.shape[1]):
            rows = np.flatnonzero(hops > back)
            last = tree.links[tree.first[at[rows]] + flow[rows] % tree.count[at[rows]]]
            ways[rows, hops[rows] - 1 - back] = last
            at = at.copy()
            at[rows] = self.wiring.source[last]
        return ways

    def _tree(self, start: int) -> _Tree:
        """Dijkstra's algorithm, keeping the last links of all shortest routes, in the order of their numbers."""
        best, queue, done = [UNREACHED] * self.vertices, [(0, 0, start)], [False] * self.vertices
        best[start] = (0, 0)
        while queue:
            *key, vertex = heapq.heappop(queue)
            if done[vertex]:
                continue
            done[vertex] = True
            for link in self.leaving[vertex]:
                ahead, at = (key[0] + self.latency_ns[link], key[1] + 1), self.target[link]
                if ahead < best[at]:
                    best[at] = ahead
                    heapq.heappush(queue, (*ahead, at))
        latency, hops = (np.array(column, dtype=np.int64) for column in zip(*best, strict=True))
        reached = latency < UNREACHED[0]
        tight = reached[self.wiring.source] & (self.wiring.target != start)
        tight &= latency[self.wiring.source] + np.array(self.latency_ns) == latency[self.wiring.target]
        tight &= hops[self.wiring.source] + 1 == hops[self.wiring.target]
        links = np.flatnonzero(tight)
        links = links[np.argsort(self.wiring.target[links], kind="stable")]
        count = np.bincount(self.wiring.target[links], minlength=self.vertices)
        return _Tree(np.where(reached, hops, -1), np.cumsum(count) - count, count, links)
