"""A cluster: nodes of GPUs behind an NVSwitch, joined by a fabric of some shape; a read-only graph of vertices and links.

A *node* here is an NVLink domain: eight GPUs in a DGX, a whole rack in an NVL72. GPUs are numbered node by node. The
graph is made from the wiring when somebody asks for it; routes come from the shape, which knows them without a search.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from ..errors import UserError, did_you_mean
from .gpu import Gpu
from .wiring import Array, Wiring

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """One kind of link: bytes/s per direction and seconds of latency."""

    bytes_per_s: float
    latency_s: float


class Shape(Protocol):
    """A topology family: one file in `hardware/shapes/`."""

    def wire(self, cluster: Cluster) -> Wiring:
        """All vertices and links."""

    def route(self, cluster: Cluster, source: Array, target: Array) -> Array:
        """For each pair of GPUs the links on the way, padded with -1: an array of pairs x hops."""


@dataclass(frozen=True)
class Cluster:
    """Everything about the machines that a simulation needs."""

    name: str
    gpu: Gpu
    gpus_per_node: int
    nodes: int
    shape_name: str
    shape: Shape = field(compare=False)
    nvlink: LinkSpec
    """GPU to NVSwitch, per GPU and direction."""
    pcie: LinkSpec
    """GPU to NIC."""
    nic: LinkSpec
    """NIC to its leaf switch."""
    switch_latency_s: float
    """Each further hop between switches."""
    nics_per_node: int
    nodes_per_pod: int
    """Nodes that share their leaf switches."""
    oversubscription: float
    """Bandwidth below a leaf over bandwidth above it: 1 is non-blocking, 4 a quarter of it."""

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def pods(self) -> int:
        return -(-self.nodes // self.nodes_per_pod)

    @property
    def rails(self) -> int:
        """NIC vertices of a node: at most one per GPU, for the several NICs of one GPU are pooled."""
        return min(self.nics_per_node, self.gpus_per_node)

    @property
    def rail_bytes_per_s(self) -> float:
        """What a NIC vertex carries per direction, in bytes/s."""
        return self.nic.bytes_per_s * self.nics_per_node / self.rails

    @cached_property
    def wiring(self) -> Wiring:
        return self.shape.wire(self)

    def route(self, source: Array, target: Array) -> Array:
        """For each pair of GPUs the links on the way, padded with -1."""
        return self.shape.route(self, source, target)

    @cached_property
    def graph(self) -> nx.DiGraph[str]:
        """The topology as a frozen networkx graph: vertices have a `kind`, edges capacity and latency."""
        import networkx as nx

        wiring = self.wiring
        graph: nx.DiGraph[str] = nx.DiGraph(name=self.name)
        for run in wiring.vertices:
            graph.add_nodes_from((run.name(i), {"kind": run.kind}) for i in range(run.count))
        for link in range(wiring.links):
            graph.add_edge(
                wiring.vertex_name(int(wiring.source[link])),
                wiring.vertex_name(int(wiring.target[link])),
                capacity_bytes_per_s=float(wiring.capacity_bytes_per_s[link]),
                latency_s=float(wiring.latency_s[link]),
                link=link,
            )
        frozen: nx.DiGraph[str] = nx.freeze(graph)
        return frozen

    def link_named(self, name: str) -> int:
        """The link called `source>target`."""
        ends = [end.strip() for end in name.split(">")]
        if len(ends) == 2 and self.graph.has_edge(*ends):
            return int(self.graph.edges[ends[0], ends[1]]["link"])
        unknown = next((end for end in ends if end not in self.graph), "")
        known = self.graph.nodes if unknown or len(ends) != 2 else [f"{ends[0]}>{v}" for v in self.graph.successors(ends[0])]
        raise UserError(
            f"no link {name!r} in {self.name}",
            hint=f"{did_you_mean(unknown or name, known)} (`trainsim topology {self.name} --json` lists all)",
        )
