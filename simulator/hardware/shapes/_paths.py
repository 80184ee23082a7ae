"""Shortest paths over any graph, found once per source and kept: for graphs that nobody knows a formula of."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from ...errors import UserError
from ...units import ns
from ..wiring import Array, Wiring

UNREACHED = (1 << 62, 0)


@dataclass(frozen=True, eq=False, slots=True)
class _Tree:
    """Ways from one source: for each vertex its last links, those of all shortest ways, as a range of `links`."""

    hops: Array
    first: Array
    count: Array
    links: Array


class Paths:
    """Shortest ways by latency in nanoseconds, then by hops."""

    def __init__(self, wiring: Wiring) -> None:
        self.wiring = wiring
        self.source, self.target = wiring.source.tolist(), wiring.target.tolist()
        self.latency_ns = [int(ns(s)) for s in wiring.latency_s.tolist()]
        self.vertices = sum(run.count for run in wiring.vertices)
        self.leaving: list[list[int]] = [[] for _ in range(self.vertices)]
        for link, vertex in enumerate(self.source):
            self.leaving[vertex].append(link)
        self.trees: dict[int, _Tree] = {}

    def route(self, source: Array, target: Array, flow: Array | None) -> Array:
        """The links of each pair in travelling order, padded with -1; of several last links the flow's hash chooses."""
        width, found = 0, []
        for start in np.unique(source).tolist():
            here = np.flatnonzero(source == start)
            ways = self._ways(start, target[here], np.zeros(len(here), dtype=np.int64) if flow is None else flow[here])
            found.append((here, ways))
            width = max(width, ways.shape[1])
        routes = np.full((len(source), width), -1, dtype=np.int64)
        for here, ways in found:
            routes[here, : ways.shape[1]] = ways
        return routes

    def _ways(self, start: int, target: Array, flow: Array) -> Array:
        """Back from the targets, a hop at a time."""
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
        """Dijkstra's algorithm, keeping every last link of the shortest ways, in the order of their numbers."""
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
