"""Vertices and links of a cluster as columns: written out only where they are read, complete enough to draw the graph.

A vertex is a number; the kind and the name of a vertex follow from the number. A link is directed and belongs to a class, such
as `nvlink up`; tables group links by class. Where all flows of a link also cross certain other links, `covered` pairs the link
with these others: a link can never be a bottleneck if the covering links carry less than the capacity of the link. A shape
describes a part of the wiring: `Inside` for a node, `Switching` for the network between nodes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
MOST_WRITTEN = 1 << 20
"""Largest number of links of which columns are written out to look up some of them."""


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

    def __len__(self) -> int:
        return len(self.source)

    @classmethod
    def between(
        cls, source: Array, target: Array, capacity_bytes_per_s: Array | float, latency_s: Array | float, name: str = ""
    ) -> Links:
        n = len(source)
        capacity, latency = (np.broadcast_to(np.asarray(x, dtype=float), (n,)) for x in (capacity_bytes_per_s, latency_s))
        return cls(source, target, capacity, latency, name)


@dataclass(frozen=True, eq=False, slots=True)
class NodeLinks:
    """The links of one class inside all nodes, node by node: those of one node, repeated, and written out where they are read."""

    inside: Links
    nodes: int
    numbered: Callable[[Array], Array]
    """The numbers of local vertices in all nodes, node by node."""

    @property
    def source(self) -> Array:
        return self.numbered(self.inside.source)

    @property
    def target(self) -> Array:
        return self.numbered(self.inside.target)

    @property
    def capacity_bytes_per_s(self) -> Array:
        return np.tile(self.inside.capacity_bytes_per_s, self.nodes)

    @property
    def latency_s(self) -> Array:
        return np.tile(self.inside.latency_s, self.nodes)

    @property
    def name(self) -> str:
        return self.inside.name

    def __len__(self) -> int:
        return len(self.inside) * self.nodes


Run = Links | NodeLinks


@dataclass(frozen=True, eq=False)
class Wiring:
    """All vertices and links of a cluster. Columns of all links are written out at their first use."""

    vertices: tuple[Vertices, ...]
    runs: tuple[Run, ...]
    covered_by: Callable[[], Sequence[tuple[Array, Array]]]
    """Pairs (link, a link that covers the first), as two columns each."""

    @classmethod
    def of(
        cls,
        parts: Sequence[Part],
        runs: Sequence[Run],
        covered: Callable[[], Sequence[tuple[Array, Array]]] = lambda: (),
    ) -> Wiring:
        """The wiring of these parts and runs, with vertices numbered part by part."""
        first = accumulate((part.count for part in parts), initial=0)
        vertices = tuple(Vertices(part.kind, part.count, part.name, at) for part, at in zip(parts, first, strict=False))
        return cls(vertices, tuple(runs), covered)

    @cached_property
    def links(self) -> int:
        """Number of links."""
        return sum(len(run) for run in self.runs)

    @cached_property
    def source(self) -> Array:
        """Link -> the vertex where it begins."""
        return np.concatenate([run.source for run in self.runs])

    @cached_property
    def target(self) -> Array:
        """Link -> the vertex where it ends."""
        return np.concatenate([run.target for run in self.runs])

    @cached_property
    def capacity_bytes_per_s(self) -> Array:
        return np.concatenate([run.capacity_bytes_per_s for run in self.runs])

    @cached_property
    def latency_s(self) -> Array:
        return np.concatenate([run.latency_s for run in self.runs])

    @cached_property
    def covered(self) -> Array:
        """Pairs (link, a link that covers the first), as two columns."""
        pairs = [np.stack(np.broadcast_arrays(*pair), axis=1).reshape(-1, 2) for pair in self.covered_by()]
        return np.concatenate([np.zeros((0, 2), dtype=np.int64), *pairs])

    @cached_property
    def _classed(self) -> tuple[Array, tuple[str, ...]]:
        return _classes(self.vertices, [run for run in self.runs if len(run)])

    @property
    def link_class(self) -> Array:
        """The class of each link as a number; `link_classes[number]` is the name."""
        return self._classed[0]

    @property
    def link_classes(self) -> tuple[str, ...]:
        """The names of the classes of links."""
        return self._classed[1]

    def capacities(self, links: Array) -> Array:
        """The capacities in bytes/s of some links, and infinity for no link (-1), without a column of all links."""
        return self._looked_up("capacity_bytes_per_s", links, np.inf)

    def latencies(self, links: Array) -> Array:
        """The latencies in seconds of some links, and 0 for no link (-1), without a column of all links."""
        return self._looked_up("latency_s", links, 0.0)

    def _looked_up(self, column: str, links: Array, absent: float) -> Array:
        if self.links <= MOST_WRITTEN:
            if column not in self._padded:
                self._padded[column] = np.append(getattr(self, column), absent)
            padded: Array = self._padded[column]
            return padded[links]
        begins = np.array([*accumulate((len(run) for run in self.runs[:-1]), initial=0)])
        once = [_once(run.inside if isinstance(run, NodeLinks) else run, column) for run in self.runs]
        values, sizes = np.concatenate([*once, [absent]]), np.array([*map(len, once), 1])
        run = np.searchsorted(begins, links, side="right") - 1  # -1 for no link, which selects the last entries
        place = (links - np.append(begins, -1)[run]) % sizes[run]
        found: Array = values[(np.cumsum(sizes) - sizes)[run] + place]
        return found

    @cached_property
    def _padded(self) -> dict[str, Array]:
        """Columns of all links, with a last entry for no link."""
        return {}

    def _run_of(self, vertex: int) -> Vertices:
        return self.vertices[bisect_right(self.vertices, vertex, key=lambda run: run.first) - 1]

    def vertex_name(self, vertex: int) -> str:
        run = self._run_of(vertex)
        return run.name(vertex - run.first)

    def vertex_kind(self, vertex: int) -> str:
        return self._run_of(vertex).kind

    def link_name(self, link: int) -> str:
        return f"{self.vertex_name(int(self.source[link]))}>{self.vertex_name(int(self.target[link]))}"


def _once(run: Links, column: str) -> Array:
    """A column of a run, shortened to one value where all links share it."""
    whole: Array = getattr(run, column)
    return whole[:1] if whole.strides == (0,) else whole


def _classes(vertices: Sequence[Vertices], runs: Sequence[Run]) -> tuple[Array, tuple[str, ...]]:
    """The class of every link, and the names of the classes in the order of the first run of each class."""
    first, kinds = np.array([v.first for v in vertices]), [v.kind for v in vertices]
    number: dict[str, int] = {}
    columns = []
    for run in runs:
        if run.name:
            columns.append(np.full(len(run), number.setdefault(run.name, len(number)), dtype=np.int16))
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
    pod: int | None = None
    """Number of nodes of a pod, if latencies and capacities between two GPUs of different nodes depend only on the places of the
    GPUs in their nodes and on whether the nodes share a pod; None if they depend on more."""


def both_ways(lower: Array, upper: Array, bytes_per_s: Array | float, latency_s: float, name: str) -> tuple[Links, ...]:
    """Links of one rate from the lower to the upper vertices, and links of the same rate back down."""
    up = Links.between(lower, upper, bytes_per_s, latency_s, f"{name} up")
    return up, Links.between(upper, lower, bytes_per_s, latency_s, f"{name} down")
