"""A cluster: nodes of GPUs joined by a network of some shape; a read-only graph of vertices and links.

A *node* here is an NVLink domain or a PCIe box: eight GPUs in a DGX, a whole rack in an NVL72. GPUs are numbered node by
node. The graph is made from the wiring when somebody asks for it; routes come from the shape, which knows them without a
search (only graphs that somebody drew by hand are searched).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .. import escape
from ..errors import UserError, did_you_mean, either, nearest
from .gpu import Gpu
from .options import INLINE, LinkSpec, Options
from .wiring import Array, Inside, Wiring

if TYPE_CHECKING:
    import networkx as nx


class Shape(Protocol):
    """A topology family: one file in `hardware/shapes/`."""

    def wire(self, cluster: Cluster) -> Wiring:
        """All vertices and links."""

    def route(self, cluster: Cluster, source: Array, target: Array) -> Array:
        """For each pair of GPUs the links on the way, padded with -1: an array of pairs x hops.

        A shape may have a function `relay` of the same arguments besides: see `Cluster.relay`.
        """


@dataclass(frozen=True)
class Cluster:
    """Everything about the machines that a simulation needs."""

    name: str
    gpu: Gpu
    gpus_per_node: int
    nodes: int
    shape_name: str
    shape: Shape = field(compare=False)
    inside_name: str
    inside: Any = field(compare=False)
    """The shape of a node's inside: a module with `inside(cluster)`."""
    nvlink: LinkSpec
    """Bandwidth of all links of a GPU inside its node, per direction; latency of one link."""
    nvlinks: int | None
    """Number of links of a GPU inside its node, where it matters."""
    pcie: LinkSpec
    """Link from GPU to NIC."""
    nic: LinkSpec
    """Link from NIC to leaf switch."""
    switch_latency_s: float
    """Link between switches."""
    nics_per_node: int
    nodes_per_pod: int
    """Nodes that share their leaf switches."""
    oversubscription: float
    """Bandwidth below a leaf over bandwidth above it: 1 is non-blocking, 4 a quarter of it."""
    options: Options = field(default_factory=Options)
    fabric: str = ""
    """The measured fabric that joins the nodes; nothing for a usual one, `ideal` for links at their nominal rate."""
    sharp: bool = False
    """Whether libraries are set up to let the switches between nodes reduce; a fabric of one's own may say so too."""

    def __repr__(self) -> str:
        size = f"{self.gpus:,} GPUs, {self.nodes:,} nodes of {self.gpus_per_node} {escape.terminal(self.gpu.name)}"
        return f"Cluster({escape.terminal(self.name)}: {size}, {self.shape_name})"

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
        """Bandwidth of a NIC vertex per direction, in bytes/s."""
        return self.nic.bytes_per_s * self.nics_per_node / self.rails

    @cached_property
    def node(self) -> Inside:
        """The wiring of one node."""
        found: Inside = self.inside.inside(self)
        return found

    @cached_property
    def memo(self) -> dict[str, Any]:
        """Values that a shape has computed about this cluster, kept for the next use."""
        return {}

    @cached_property
    def wiring(self) -> Wiring:
        return self.shape.wire(self)

    def route(self, source: Array, target: Array) -> Array:
        """For each pair of GPUs the links on the way, padded with -1."""
        return self.shape.route(self, source, target)

    def relay(self, source: Array, target: Array) -> Array:
        """For each pair of GPUs of different nodes, the one of the source's node through whose NIC the data leaves: the source
        itself, unless the shape has it handed over first.
        """
        found: Array = self.shape.relay(self, source, target) if hasattr(self.shape, "relay") else source
        return found

    def nic_of(self, gpu: Array) -> Array:
        """For each GPU its NIC, numbered node by node: neighbours share one where NICs are fewer than GPUs."""
        node, local = np.divmod(gpu, self.gpus_per_node)
        nic: Array = node * self.rails + local * self.rails // self.gpus_per_node
        return nic

    @cached_property
    def graph(self) -> nx.DiGraph[str]:
        """The topology as a frozen networkx graph: vertices have a `kind`, edges capacity, latency and class."""
        import networkx as nx

        wiring = self.wiring
        graph: nx.DiGraph[str] = nx.DiGraph(name=self.name)
        names = list(self.vertices)
        for run in wiring.vertices:
            graph.add_nodes_from((names[run.first + i], {"kind": run.kind}) for i in range(run.count))
        for link in range(wiring.links):
            graph.add_edge(
                names[int(wiring.source[link])],
                names[int(wiring.target[link])],
                capacity_bytes_per_s=float(wiring.capacity_bytes_per_s[link]),
                latency_s=float(wiring.latency_s[link]),
                link=link,
                link_class=wiring.link_classes[int(wiring.link_class[link])],
            )
        frozen: nx.DiGraph[str] = nx.freeze(graph)
        return frozen

    @cached_property
    def vertices(self) -> dict[str, int]:
        """Every vertex by its name, in the order of their numbers."""
        return {run.name(i): run.first + i for run in self.wiring.vertices for i in range(run.count)}

    def link_named(self, name: str) -> int:
        """The link called `source>target`."""
        ends = [end.strip() for end in name.split(">")]
        if len(ends) == 2 and len(found := self._links(ends[0], ends[1])):
            return int(found[0])
        listed = "" if self.name == INLINE else " (`trainsim topology NAME|FILE --json` lists all)"
        raise UserError(f"no link {name!r} in {self.name}", hint=f"{self._nearest_link(name, ends)}{listed}")

    def _links(self, source: str | None, target: str | None) -> Array:
        """The links with these ends; None stands for any vertex."""
        matches = np.ones(self.wiring.links, dtype=bool)
        for name, column in ((source, self.wiring.source), (target, self.wiring.target)):
            if name is not None:
                matches &= column == self.vertices.get(name, -1)
        return np.flatnonzero(matches)

    def _of(self, vertex: str) -> Array:
        """The links of a vertex: those out of it, then those into it."""
        return np.concatenate([self._links(vertex, None), self._links(None, vertex)])

    def _nearest_link(self, name: str, ends: list[str]) -> str:
        """The link name most similar to an unknown one: a link out of the most similar source, or else one into the target."""
        if name in self.vertices:
            links = self._of(name)
            return f"{name} is a vertex; {self._such_as(links)}" if len(links) else f"{name} has no link"
        meant = [end if end in self.vertices else nearest(end, self.vertices) for end in ends]
        if len(ends) == 2 and any(meant):
            source, target = meant
            near = self._links(source, None) if source else self._links(None, target)
            return did_you_mean(name, [self.wiring.link_name(link) for link in near[:MOST_NEAR].tolist()])
        vertex = nearest(name, self.vertices)
        links = self._of(vertex) if vertex else self._links(None, None)
        return self._such_as(links) if len(links) else "it has none"

    def _such_as(self, links: Array) -> str:
        """The names of the first few links, as examples."""
        return f"write a link source>target, such as {either(map(self.wiring.link_name, links[:MOST_NAMED].tolist()))}"


MOST_NAMED = 4
"""Number of links of a vertex that a hint names."""
MOST_NEAR = 4096
"""Number of links that an unknown name is compared with."""
