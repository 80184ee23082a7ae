"""The links of a cluster as columns: small enough to make for 100,000 GPUs, complete enough to draw the graph from.

A vertex is a number; its kind and its name follow from the number. A link is directed. `covered_by` lists, for a link
whose flows all cross some other links too, those links: where they carry less than this one can, it can never bind.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Vertices:
    """A run of vertices of one kind, numbered from `first`."""

    kind: str
    first: int
    count: int
    name: Callable[[int], str] = field(compare=False)


@dataclass(frozen=True, eq=False, slots=True)
class Links:
    """A run of links: both ends, capacity in bytes/s and latency in seconds of each."""

    source: Array
    target: Array
    capacity_bytes_per_s: Array
    latency_s: Array

    @classmethod
    def between(cls, source: Array, target: Array, capacity_bytes_per_s: Array | float, latency_s: float) -> Links:
        n = len(source)
        capacity = np.broadcast_to(np.asarray(capacity_bytes_per_s, dtype=float), (n,))
        return cls(source, target, capacity, np.full(n, float(latency_s)))


@dataclass(frozen=True, eq=False, slots=True)
class Wiring:
    """All vertices and links of a cluster."""

    vertices: tuple[Vertices, ...]
    source: Array
    target: Array
    capacity_bytes_per_s: Array
    latency_s: Array
    covered: Array
    """Pairs (link, one of the links that cover it), two columns."""

    @classmethod
    def of(cls, vertices: list[Vertices], runs: list[Links], covered: list[tuple[Array, Array]]) -> Wiring:
        source, target, capacity, latency = (
            np.concatenate([getattr(run, name) for run in runs])
            for name in ("source", "target", "capacity_bytes_per_s", "latency_s")
        )
        pairs = [np.stack(np.broadcast_arrays(*pair), axis=1).reshape(-1, 2) for pair in covered]
        empty = np.zeros((0, 2), dtype=np.int64)
        return cls(tuple(vertices), source, target, capacity, latency, np.concatenate([empty, *pairs]))

    @property
    def links(self) -> int:
        return len(self.source)

    def vertex_name(self, vertex: int) -> str:
        run = self.vertices[bisect_right([v.first for v in self.vertices], vertex) - 1]
        return run.name(vertex - run.first)

    def vertex_kind(self, vertex: int) -> str:
        return self.vertices[bisect_right([v.first for v in self.vertices], vertex) - 1].kind

    def link_name(self, link: int) -> str:
        return f"{self.vertex_name(int(self.source[link]))}>{self.vertex_name(int(self.target[link]))}"
