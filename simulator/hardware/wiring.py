"""Vertices and links of a cluster as columns: small enough for 100,000 GPUs, complete enough to draw the graph.

A vertex is a number; the kind and the name of a vertex follow from the number. A link is directed and belongs to a class, such
as `nvlink up`; tables group links by class. Where all flows of a link also cross certain other links, `covered` pairs the link
with these others: a link can never be a bottleneck if the covering links carry less than the capacity of the link. A shape
describes a part of the wiring: `Inside` for a node, `Switching` for the network between nodes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Part:
    """Vertices of one kind: the count per node for vertices inside nodes, and the count of the whole cluster for switches."""

    kind: str
    count: int
    name: Callable[[int], str] = field(compare=False)


@dataclass(frozen=True, slots=True)
class Vertices(Part):
    """A run of vertices of one kind, numbered from `first`."""

    first: int


@dataclass(frozen=True, eq=False, slots=True)
class Links:
    """A run of links of one class: both ends of each link, the capacity in bytes/s and the latency in seconds."""

    source: Array
    target: Array
    capacity_bytes_per_s: Array
    latency_s: Array
    name: str = ""
    """Name of the class; by default the kinds of the two ends: `gpu>nvswitch`."""

    @classmethod
    def between(
        cls, source: Array, target: Array, capacity_bytes_per_s: Array | float, latency_s: Array | float, name: str = ""
    ) -> Links:
        n = len(source)
        capacity, latency = (np.broadcast_to(np.asarray(x, dtype=float), (n,)) for x in (capacity_bytes_per_s, latency_s))
        return cls(source, target, capacity, latency, name)


@dataclass(frozen=True, eq=False, slots=True)
class Wiring:
    """All vertices and links of a cluster."""

    vertices: tuple[Vertices, ...]
    source: Array
    target: Array
    capacity_bytes_per_s: Array
    latency_s: Array
    covered: Array
    """Pairs (link, a link that covers the first), as two columns."""
    link_class: Array
    """The class of each link as a number; `link_classes[number]` is the name."""
    link_classes: tuple[str, ...]

    @classmethod
    def of(cls, parts: Sequence[Part], runs: Sequence[Links], covered: Sequence[tuple[Array, Array]] = ()) -> Wiring:
        """The wiring of these parts and runs, with vertices numbered part by part."""
        first = accumulate((part.count for part in parts), initial=0)
        vertices = tuple(Vertices(part.kind, part.count, part.name, at) for part, at in zip(parts, first, strict=False))
        source, target, capacity, latency = (
            np.concatenate([getattr(run, name) for run in runs])
            for name in ("source", "target", "capacity_bytes_per_s", "latency_s")
        )
        pairs = [np.stack(np.broadcast_arrays(*pair), axis=1).reshape(-1, 2) for pair in covered]
        empty = np.zeros((0, 2), dtype=np.int64)
        classes, names = _classes(vertices, [run for run in runs if len(run.source)])
        return cls(vertices, source, target, capacity, latency, np.concatenate([empty, *pairs]), classes, names)

    @property
    def links(self) -> int:
        return len(self.source)

    def _run_of(self, vertex: int) -> Vertices:
        return self.vertices[bisect_right(self.vertices, vertex, key=lambda run: run.first) - 1]

    def vertex_name(self, vertex: int) -> str:
        run = self._run_of(vertex)
        return run.name(vertex - run.first)

    def vertex_kind(self, vertex: int) -> str:
        return self._run_of(vertex).kind

    def link_name(self, link: int) -> str:
        return f"{self.vertex_name(int(self.source[link]))}>{self.vertex_name(int(self.target[link]))}"


def _classes(vertices: Sequence[Vertices], runs: Sequence[Links]) -> tuple[Array, tuple[str, ...]]:
    """The class of every link, and the names of the classes in the order of the first run of each class."""
    first, kinds = np.array([v.first for v in vertices]), [v.kind for v in vertices]
    number: dict[str, int] = {}
    columns = []
    for run in runs:
        if run.name:
            columns.append(np.full(len(run.source), number.setdefault(run.name, len(number)), dtype=np.int16))
            continue
        source, target = (np.searchsorted(first, ends, side="right") - 1 for ends in (run.source, run.target))
        ends, which = np.unique(source * len(kinds) + target, return_inverse=True)
        names = [f"{kinds[e // len(kinds)]}>{kinds[e % len(kinds)]}" for e in ends.tolist()]
        columns.append(np.array([number.setdefault(n, len(number)) for n in names], dtype=np.int16)[which])
    return np.concatenate([np.zeros(0, dtype=np.int16), *columns]), tuple(number)


@dataclass(frozen=True, eq=False, slots=True)
class Inside:
    """The wiring of one node, and the routes inside the node as arrays of local links (pairs x hops), padded with -1."""

    parts: tuple[Part, ...]
    runs: tuple[Links, ...]
    between: Callable[[Array, Array], Array]
    """The links from GPU to GPU."""
    to_nics: tuple[Array, Array] | None = None
    """The links from each GPU to the NIC of the GPU, and back; None if each GPU has its own PCIe link in each direction."""
    to_cpus: tuple[Array, Array, Array] | None = None
    """The links from each GPU to its CPU, and back, and the CPU, counted among the vertices of the node; None without CPUs."""


@dataclass(frozen=True, eq=False, slots=True)
class Switching:
    """Switches, numbered from 0, the links between switches, and the switch of each NIC (`port`)."""

    switches: tuple[Part, ...]
    port: Array
    runs: tuple[Links, ...] = ()
    between: Callable[[Array, Array, Array], Array] | None = None
    """The links of the fabric from switch to switch, pairs x hops, padded with -1; None where all NICs share one switch. The
    third argument is a hash of each flow under hashed routing, and 0 under other routing."""
    gathered: tuple[tuple[Array, Array], ...] = ()
    """Pairs (link, NIC): all data on a link comes from the NICs that are paired with the link."""
    spread: tuple[tuple[Array, Array], ...] = ()
    """Pairs (link, NIC): all data on a link goes to the NICs that are paired with the link."""
    rail: Array | None = None
    """The rail of each NIC. Data for another rail goes first to the GPU on the target's rail in the source's own node."""
    site: Array | None = None
    """The site of each NIC. Data for another site leaves through the NIC of the source GPU, whatever the rail."""


def both_ways(lower: Array, upper: Array, bytes_per_s: Array | float, latency_s: float, name: str) -> tuple[Links, ...]:
    """Links of one rate from the lower to the upper vertices, and links of the same rate back down."""
    up = Links.between(lower, upper, bytes_per_s, latency_s, f"{name} up")
    return up, Links.between(upper, lower, bytes_per_s, latency_s, f"{name} down")
