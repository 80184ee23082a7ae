"""The links of a cluster as columns: small enough for 100,000 GPUs, complete enough to draw the graph.

A vertex is a number; its kind and its name follow from the number. A link is directed and belongs to a class, such as
`nvlink up`, that tables are made by. `covered` lists, for a link whose flows all cross some other links too, those links:
where they carry less than this one can, it can never bind. A shape gives its part of this: `Inside` a node, or the `Switching`
between nodes.
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
    """Vertices of one kind: of each node, where they are parts of its inside; of the whole, where they are switches."""

    kind: str
    count: int
    name: Callable[[int], str] = field(compare=False)


@dataclass(frozen=True, slots=True)
class Vertices(Part):
    """A run of vertices of one kind, numbered from `first`."""

    first: int


@dataclass(frozen=True, eq=False, slots=True)
class Links:
    """A run of links of one class: both ends, capacity in bytes/s and latency in seconds of each."""

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
    """Pairs (link, one of the links that cover it), two columns."""
    link_class: Array
    """For each link its class, a number; `link_classes[number]` is the name."""
    link_classes: tuple[str, ...]

    @classmethod
    def of(cls, parts: Sequence[Part], runs: Sequence[Links], covered: Sequence[tuple[Array, Array]] = ()) -> Wiring:
        """The wiring of vertices that are numbered part by part."""
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
    """The class of every link, and the names of the classes in the order of their first run."""
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
    """The wiring of one node, and the routes in it as arrays of pairs x hops of local links, padded with -1."""

    parts: tuple[Part, ...]
    runs: tuple[Links, ...]
    between: Callable[[Array, Array], Array]
    """From GPU to GPU."""
    to_nics: tuple[Array, Array] | None = None
    """From each GPU to its NIC, and back; None for a PCIe link of its own each way."""


@dataclass(frozen=True, eq=False, slots=True)
class Switching:
    """Switches, numbered from 0, the links between them, and which of them each NIC is plugged into."""

    switches: tuple[Part, ...]
    port: Array
    runs: tuple[Links, ...] = ()
    between: Callable[[Array, Array, Array], Array] | None = None
    """From switch to switch: links of the fabric, pairs x hops, padded with -1; None where all NICs share one switch. The third
    argument is a hash of each flow where routing is hashed, and 0 elsewhere."""
    gathered: tuple[tuple[Array, Array], ...] = ()
    """Pairs (link, NIC): all that the link carries comes from NICs that are so listed with it."""
    spread: tuple[tuple[Array, Array], ...] = ()
    """Pairs (link, NIC): all that the link carries goes to NICs that are so listed with it."""
    rail: Array | None = None
    """The rail of each NIC. Data for another rail goes first to the GPU of its own node that sits on that rail."""
    site: Array | None = None
    """The site of each NIC. Data for another site leaves by the NIC of the GPU that has it, whatever the rail."""


def both_ways(lower: Array, upper: Array, bytes_per_s: Array | float, latency_s: float, name: str) -> tuple[Links, ...]:
    """Links of one rate up from some vertices to others, and down again."""
    up = Links.between(lower, upper, bytes_per_s, latency_s, f"{name} up")
    return up, Links.between(upper, lower, bytes_per_s, latency_s, f"{name} down")
