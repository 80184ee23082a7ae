"""Explicit cluster graphs: vertices and links listed in a cluster file, the checks on them, and the numbered graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from ..errors import did_you_mean
from ..fields import BytesPerSecond, Contradiction, Declared, Key, Latency, Length, Name
from ..hardware.options import ExplicitGraph, LinkSpec
from ..hardware.shapes.explicit import unjoined

MOST_VERTICES_AND_LINKS = 20_000
EXAMPLE = "vertices: [{name: gpu0, kind: gpu}, ...], links: [{from: gpu0, to: gpu1, capacity: 50 GB/s, latency: 1 us}, ...]"


@dataclass(frozen=True, slots=True)
class Vertex(Declared):
    """A vertex of an explicit graph: a GPU, a switch or another device."""

    name: Annotated[str, Length(1, 100), "name of the vertex, without >, such as gpu0"]
    kind: Annotated[str, Length(1, 100), "kind of the vertex: gpu, or any other word such as switch"]

    def contradictions(self) -> Iterator[Contradiction]:
        if ">" in self.name:
            yield "name", f": {self.name!r} has a >, which stands between the ends of a link", "a name without >, such as gpu0"


@dataclass(frozen=True, slots=True)
class Edge(Declared):
    """A link of an explicit graph, with the same capacity in both directions unless it is one_way."""

    source: Annotated[Name, Key("from"), "name of the vertex at the start of the link"]
    target: Annotated[Name, Key("to"), "name of the vertex at the end of the link"]
    bytes_per_s: Annotated[BytesPerSecond, Key("capacity"), "bandwidth per direction, such as 50 GB/s"]
    latency_s: Annotated[Latency, "latency of the link, such as 1 us"]
    one_way: Annotated[bool, "whether the link carries data in one direction only"] = False

    @property
    def directions(self) -> list[tuple[str, str]]:
        """Source and target of each direction in which the link carries data."""
        forth, back = (self.source, self.target), (self.target, self.source)
        return [forth] if self.one_way else [forth, back]


def contradictions(vertices: Sequence[Vertex], links: Sequence[Edge], nodes: int, gpus_per_node: int) -> Iterator[Contradiction]:
    """Faults of an explicit graph. Whether all GPUs are connected is only checked for a graph without other faults."""
    found = list(_of_each(vertices, links, nodes, gpus_per_node))
    yield from found or _not_joined(vertices, links)


def _of_each(vertices: Sequence[Vertex], links: Sequence[Edge], nodes: int, gpus_per_node: int) -> Iterator[Contradiction]:
    for name, given in (("vertices", vertices), ("links", links)):
        if not given:
            yield name, " is missing: an explicit graph is given by its vertices and links", EXAMPLE
    names = [vertex.name for vertex in vertices]
    for name in dict.fromkeys(name for i, name in enumerate(names) if name in names[:i]):
        yield "vertices", f": {name!r} is there more than once", "give every vertex a unique name"
    gpus, known = sum(vertex.kind == "gpu" for vertex in vertices), set(names)
    if vertices and gpus != nodes * gpus_per_node:
        message = f": {gpus} of them are of kind gpu, and there are {nodes} nodes of {gpus_per_node} GPUs"
        yield "vertices", message, "nodes times gpus_per_node is the number of GPUs"
    joined: set[tuple[str, str]] = set()
    for i, link in enumerate(links):
        for key, end in (("from", link.source), ("to", link.target)):
            if vertices and end not in known:
                yield f"links.{i}.{key}", f": no vertex {end!r}", did_you_mean(end, known)
        if link.source == link.target:
            yield f"links.{i}", f": {link.target!r} is joined with itself", "leave it out"
        if joined & {*link.directions}:
            message = f": {link.source!r} and {link.target!r} are joined already"
            yield f"links.{i}", message, "give the link the sum of the capacities"
        joined |= {*link.directions}


def _not_joined(vertices: Sequence[Vertex], links: Sequence[Edge]) -> Iterator[Contradiction]:
    """GPUs that cannot reach the first GPU, or that the first GPU cannot reach."""
    places = {vertex.name: i for i, vertex in enumerate(vertices) if vertex.kind == "gpu"}
    names, directions = list(places), [one for link in links for one in link.directions]
    for gpu, (source, target) in unjoined(names, directions):
        yield f"vertices.{places[names[gpu]]}", f": no way leads from {source!r} to {target!r}", "join them by links"


def numbered_graph(vertices: Sequence[Vertex], links: Sequence[Edge]) -> ExplicitGraph:
    """The graph with numbers instead of names for its vertices."""
    number = {vertex.name: i for i, vertex in enumerate(vertices)}
    joined = tuple(
        (number[source], number[target], LinkSpec(link.bytes_per_s, link.latency_s))
        for link in links
        for source, target in link.directions
    )
    return ExplicitGraph(tuple((vertex.name, vertex.kind) for vertex in vertices), joined)
