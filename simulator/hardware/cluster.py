"""Cluster: nodes of GPUs joined by a network of some shape, as a read-only graph of vertices and links.

A *node* is an NVLink domain or a PCIe box: eight GPUs in a DGX, a whole rack in an NVL72. GPUs are numbered node by node. The
graph is built from the wiring at the first use. Routes are computed without a search, except in explicit graphs.

Links are numbered in runs: the links inside the nodes, run by run and node by node, then the links from NIC to switch, from
switch to NIC, and of the fabric. So a route is computed by arithmetic: out of the node, up to the leaf switch of the NIC, from
switch to switch as the fabric defines, down, and into the other node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .. import escape
from ..errors import UserError, did_you_mean, either, nearest
from ..units import counted
from .gpu import Gpu
from .host_links import HostLinks, Reach, host_links
from .numbering import Repeated, flow_hashes
from .options import INLINE, HostMemory, LinkSpec, Options
from .wiring import Array, Inside, Links, NodeLinks, Part, Run, Switching, Wiring, both_ways

if TYPE_CHECKING:
    import networkx as nx

MOST_NAMED, MOST_NEAR = 4, 4096
"""Largest number of links of a vertex that a hint names, and of links that an unknown name is compared with."""


class OwnWiring(Protocol):
    """A topology family that has `wire` and `route`, because its nodes are not joined by a `fabric(cluster)` of switches."""

    def wire(self, cluster: Cluster) -> Wiring:
        """All vertices and links."""

    def route(self, cluster: Cluster, source: Array, target: Array) -> Array:
        """The links on the route of each pair of GPUs, padded with -1: an array of pairs x hops."""


@dataclass(frozen=True)
class Cluster:
    """The machines of a simulation: GPU, nodes, network shape, and the rates and latencies of the links."""

    name: str
    gpu: Gpu
    gpus_per_node: int
    nodes: int
    shape_name: str
    shape: Any = field(compare=False)
    """The module of a topology family, a file in `hardware/shapes/`, with `fabric(cluster)` or as an `OwnWiring`."""
    inside_name: str
    inside: Any = field(compare=False)
    """The module that wires the inside of a node by `inside(cluster)`."""
    nvlink: LinkSpec
    """Bandwidth of all links of a GPU inside its node, per direction; latency of one link."""
    nvlinks: int | None
    """Number of links of a GPU inside its node; None where the cluster does not give the number."""
    pcie: LinkSpec
    """Link from GPU to NIC."""
    nic: LinkSpec
    """Link from NIC to leaf switch."""
    switch_latency_s: float
    """Latency of a link between switches, in seconds."""
    nics_per_node: int
    nodes_per_pod: int
    """Number of nodes that share their leaf switches."""
    oversubscription: float
    """Bandwidth below a leaf switch divided by the bandwidth above the switch: 1 is non-blocking, 4 leaves a quarter above."""
    options: Options = field(default_factory=Options)
    fabric: Any = None
    """The fabric (`config.fabric_files`) whose measured links these resemble; None for the most similar one."""
    sharp: bool = False
    """Whether libraries let the switches between nodes reduce; the measured fabric may say so too."""
    host: HostMemory | None = None
    """Memory of the CPUs of a node; None where it is not known."""
    joins_hosts: bool = False
    """Whether the graph contains the hosts, which only copies of offloaded data reach."""

    def __post_init__(self) -> None:
        if isinstance(self.fabric, str):
            hint = f'sim.cluster("dgx-h100", fabric={self.fabric!r}) looks the name up'
            raise UserError(f"fabric: {self.fabric!r} is a name, and a cluster holds the fabric itself", hint=hint)

    def __repr__(self) -> str:
        name, gpu = escape.terminal(self.name), escape.terminal(self.gpu.name)
        size = f"{counted(self.gpus, 'GPU')}, {counted(self.nodes, 'node')} of {self.gpus_per_node} {gpu}"
        return f"Cluster({name}: {size}, {self.shape_name})"

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def rails(self) -> int:
        """Number of NIC vertices of a node: at most one per GPU, because several NICs of one GPU are pooled."""
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
    def assembly(self) -> Assembly | None:
        """Nodes and fabric combined; None for a shape that has its own `wire`."""
        if hasattr(self.shape, "wire"):
            return None
        if self.nodes > 1 and not hasattr(self.shape, "fabric"):
            raise UserError(
                f"shape {self.shape_name} is a single node, and {self.name} has {self.nodes}",
                hint="join the nodes by a fabric: shape: rail-optimized with inter_node: 8x400 Gbit/s",
            )
        return Assembly(self)

    @cached_property
    def wiring(self) -> Wiring:
        own: OwnWiring = self.shape
        return self.assembly.wiring() if self.assembly else own.wire(self)

    @property
    def hosts(self) -> HostLinks | None:
        """The links between GPUs and the memory of their node, where the graph contains the hosts."""
        return self.assembly.hosts if self.assembly else None

    def route(self, source: Array, target: Array) -> Array:
        """The links on the route of each pair of GPUs, padded with -1."""
        own: OwnWiring = self.shape
        return self.assembly.route(source, target) if self.assembly else own.route(self, source, target)

    def relay(self, source: Array, target: Array) -> Array:
        """For each pair of GPUs of different nodes, the GPU of the source's node through whose NIC the data leaves: the source
        itself, unless the shape hands the data over to another GPU of the node first.
        """
        return self.assembly.relay(source, target) if self.assembly else source

    def nic_of(self, gpu: Array) -> Array:
        """The NIC of each GPU, numbered node by node: neighbouring GPUs share a NIC where a node has fewer NICs than GPUs."""
        node, local = np.divmod(gpu, self.gpus_per_node)
        nic: Array = node * self.rails + local * self.rails // self.gpus_per_node
        return nic

    @cached_property
    def graph(self) -> nx.DiGraph[str]:
        """The topology as a frozen networkx graph: each vertex with a `kind`, each link with capacity, latency and class."""
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
        """The number of every vertex by name, in ascending order."""
        return {run.name(i): run.first + i for run in self.wiring.vertices for i in range(run.count)}

    def link_named(self, name: str) -> int:
        """The number of the link with the name `source>target`."""
        ends = [end.strip() for end in name.split(">")]
        if len(ends) == 2 and self.assembly and (near := self.assembly.link_in_node(*ends)) is not None:
            return near  # a large cluster has millions of other names
        if len(ends) == 2 and len(found := self._links(ends[0], ends[1])):
            return int(found[0])
        listed = "" if self.name == INLINE else " (`trainsim topology NAME|FILE --json` lists all)"
        raise UserError(f"no link {name!r} in {self.name}", hint=f"{self._nearest_link(name, ends)}{listed}")

    def _links(self, source: str | None, target: str | None) -> Array:
        """The numbers of the links with these ends; None stands for any vertex."""
        matches = np.ones(self.wiring.links, dtype=bool)
        for name, column in ((source, self.wiring.source), (target, self.wiring.target)):
            if name is not None:
                matches &= column == self.vertices.get(name, -1)
        return np.flatnonzero(matches)

    def _of(self, vertex: str) -> Array:
        """The numbers of the links of a vertex, outgoing links first."""
        return np.concatenate([self._links(vertex, None), self._links(None, vertex)])

    def _nearest_link(self, name: str, ends: list[str]) -> str:
        """A hint for an unknown link name: similar links out of the most similar source, or into the most similar target."""
        if name in self.vertices:
            links = self._of(name)
            return f"{name} is a vertex; {self._such_as(links)}" if len(links) else f"{name} has no link"
        known = [end if end in self.vertices else nearest(end, self.vertices) for end in ends]
        if len(ends) == 2 and any(known):
            source, target = known
            near = self._links(source, None) if source else self._links(None, target)
            return did_you_mean(name, [self.wiring.link_name(link) for link in near[:MOST_NEAR].tolist()])
        vertex = nearest(name, self.vertices)
        links = self._of(vertex) if vertex else self._links(None, None)
        return self._such_as(links) if len(links) else "it has none"

    def _such_as(self, links: Array) -> str:
        """A hint with the names of the first few links as examples."""
        return f"write a link source>target, such as {either(map(self.wiring.link_name, links[:MOST_NAMED].tolist()))}"


class Assembly:
    """Nodes and fabric combined: the numbers of vertices and links in the whole cluster, the wiring, and the routes."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.rails = cluster, cluster.rails if cluster.nodes > 1 else 0
        node, gpu = cluster.node, np.arange(cluster.gpus_per_node)
        self.fabric: Switching | None = cluster.shape.fabric(cluster) if self.rails else None
        self.parts = [Part("gpu", len(gpu), lambda i: f"gpu{i}"), *node.parts]
        self.between, self.runs, at = node.between, node.runs, sum(len(run.source) for run in node.runs)
        self.to_nics = node.to_nics or (at + gpu[:, None], at + len(gpu) + gpu[:, None])
        if self.fabric and not node.to_nics:
            nic = sum(part.count for part in self.parts) + cluster.nic_of(gpu)
            self.runs += both_ways(gpu, nic, cluster.pcie.bytes_per_s, cluster.pcie.latency_s, "pcie")
        if self.fabric:
            self.parts.append(Part("nic", self.rails, lambda i: f"nic{i}"))
        self.vertex = Repeated([part.count for part in self.parts], cluster.nodes)
        self.link = Repeated([len(run.source) for run in self.runs], cluster.nodes)
        self.nics = cluster.nodes * self.rails
        self.nic_up = self.link.end
        self.nic_down = self.nic_up + self.nics
        self.first_fabric = self.nic_down + self.nics

    @property
    def pod(self) -> int | None:
        """As in `Switching`."""
        return self.fabric.pod if self.fabric else None

    @property
    def links_of_node(self) -> int:
        """Number of links inside a node and between its NICs and switches."""
        return self.link.locals + 2 * self.rails

    def of_node(self, node: int) -> Array:
        """The links inside a node, and from and to its NICs."""
        nic = node * self.rails + np.arange(self.rails)
        local = np.arange(self.link.locals)
        return np.concatenate([self.link.of(np.array([node]), local), self.nic_up + nic, self.nic_down + nic])

    def in_node(self, links: Array) -> tuple[Array, Array]:
        """The node of each link and its number among the links `of_node`; -1 for links of the fabric."""
        node, local = self.link.where(np.minimum(links, self.nic_up - 1))
        nic, rail = np.divmod(links - self.nic_up, self.rails)
        up, of_nic = nic < self.cluster.nodes, links >= self.nic_up
        node = np.where(of_nic, nic % self.cluster.nodes, node)
        local = np.where(of_nic, self.link.locals + np.where(up, 0, self.rails) + rail, local)
        return np.where(links < self.first_fabric, node, -1), local

    def link_in_node(self, source: str, target: str) -> int | None:
        """The number of the first link between two vertices of one node, by their names; None if there is none."""
        node = source.partition("/")[0]
        number = int(found) if (found := node.removeprefix("node")).isdecimal() else self.cluster.nodes
        if number >= self.cluster.nodes:
            return None
        vertices = [f"node{number}/{part.name(i)}" for part in self.parts for i in range(part.count)]
        first, last = (vertices.index(end) if end in vertices else -1 for end in (source, target))
        sources, targets = (np.concatenate([getattr(run, end) for run in self.runs]) for end in ("source", "target"))
        between = np.flatnonzero((sources == first) & (targets == last))
        return int(self.link.of(np.array([number]), between[:1])[0]) if len(between) else None

    def wiring(self) -> Wiring:
        cluster, nodes = self.cluster, np.arange(self.cluster.nodes)
        parts = [Part(part.kind, len(nodes) * part.count, _in_node(part)) for part in self.parts]
        runs: list[Run] = [NodeLinks(run, len(nodes), partial(self.vertex.of, nodes)) for run in self.runs]
        if not self.fabric:
            return self._with_hosts(parts, runs)
        first = self.vertex.end
        nic, port = first - self.nics + np.arange(self.nics), first + self.fabric.port
        runs += both_ways(nic, port, cluster.rail_bytes_per_s, cluster.nic.latency_s, "nic")
        for run in self.fabric.runs:
            capacity, latency = run.capacity_bytes_per_s, run.latency_s
            runs.append(Links(first + run.source, first + run.target, capacity, latency, run.name))
        return self._with_hosts([*parts, *self.fabric.switches], runs)

    def _with_hosts(self, parts: list[Part], runs: list[Run]) -> Wiring:
        hosts = self.hosts
        more = (hosts.parts, hosts.runs) if hosts else ((), ())
        return Wiring.of([*parts, *more[0]], [*runs, *more[1]], self._covered)

    def _covered(self) -> list[tuple[Array, Array]]:
        """Links of which all flows cross other links too, each with such a link."""
        if not self.fabric:
            return []
        covered = [(self.first_fabric + link, self.nic_up + nic) for link, nic in self.fabric.gathered]
        covered += [(self.first_fabric + link, self.nic_down + nic) for link, nic in self.fabric.spread]
        # copies to the host also cross the links to NICs, so the rates of NICs do not cover these links
        return covered if self.cluster.joins_hosts else [*self._covered_in_nodes(), *covered]

    @cached_property
    def hosts(self) -> HostLinks | None:
        """The links between GPUs and the memory of their node, where the graph contains the hosts."""
        cluster, fabric = self.cluster, self.fabric
        if not cluster.host or not cluster.joins_hosts:
            return None
        node, local = np.divmod(np.arange(cluster.gpus), cluster.gpus_per_node)
        leave = arrive = np.zeros((cluster.gpus_per_node, 0), dtype=np.int64)
        end, to_cpus = np.arange(cluster.gpus_per_node), cluster.node.to_cpus
        if to_cpus:
            leave, arrive, end = to_cpus
        elif fabric and cluster.host.link == "pcie":
            (leave, arrive), end = self.to_nics, self.vertex.locals - self.rails + cluster.nic_of(end)
        near = self.link.at(node, leave[local]), self.link.at(node, arrive[local])
        reach = Reach(*near, self.vertex.at(node, end[local, None])[:, 0], bool(to_cpus), node)
        switches = sum(part.count for part in fabric.switches) if fabric else 0
        links = self.first_fabric + (sum(len(run.source) for run in fabric.runs) if fabric else 0)
        return host_links(cluster.host, cluster.pcie, reach, self.vertex.end + switches, links)

    def _covered_in_nodes(self) -> list[tuple[Array, Array]]:
        """Links to a NIC with the covering link on which the NIC sends; links from a NIC with the link on which it receives."""
        first, nodes = self.vertex.locals - self.rails, np.arange(self.cluster.nodes)
        source, target = (np.concatenate([getattr(run, end) for run in self.runs]) for end in ("source", "target"))
        pairs = []
        for ends, covering in ((target, self.nic_up), (source, self.nic_down)):
            local = np.flatnonzero(ends >= first)
            nic = (nodes[:, None] * self.rails + (ends[local] - first)[None, :]).ravel()
            pairs.append((self.link.of(nodes, local), covering + nic))
        return pairs

    def route(self, source: Array, target: Array) -> Array:
        """The links on the route of each pair of GPUs, padded with -1.

        A route inside a node follows the wiring of the node. A route to another node may pass a relaying GPU of its own node.
        """
        per_node = self.cluster.gpus_per_node
        node, near = source // per_node, source // per_node == target // per_node
        relay = self.relay(source, target)
        stop = np.where(near, target, relay)
        inside = self.link.at(node, self.between(source % per_node, stop % per_node))
        if not self.fabric:
            return inside
        far = np.flatnonzero(~near)
        flow = flow_hashes(self.cluster.options.routing, source[far], target[far])
        outside = self._outside(self.fabric, relay[far], target[far], flow)
        width = inside.shape[1]
        whole = np.full((width + outside.shape[1], len(source)), -1, dtype=np.int64)  # a row per hop, which is faster to fill
        whole[:width], whole[width:, far] = inside.T, outside.T
        return whole.T

    def relay(self, source: Array, target: Array) -> Array:
        """For each pair of GPUs of different nodes, the GPU of the source's node that hands the data to its own NIC."""
        if not self.fabric or self.fabric.rail is None:
            return source
        per_node, rail, site = self.cluster.gpus_per_node, self.fabric.rail, self.fabric.site
        out, into = self.cluster.nic_of(source), self.cluster.nic_of(target)
        handed_over = rail[out] != rail[into]
        if site is not None:
            handed_over &= site[out] == site[into]
        return np.where(handed_over, source // per_node * per_node + target % per_node, source)

    def _outside(self, fabric: Switching, source: Array, target: Array, flow: Array) -> Array:
        """The links on the routes between GPUs of different nodes."""
        (out_of, source_local), (into, target_local) = (np.divmod(gpu, self.cluster.gpus_per_node) for gpu in (source, target))
        leave, arrive = self.to_nics
        out_nic, into_nic = self.cluster.nic_of(source), self.cluster.nic_of(target)
        columns = [self.link.at(out_of, leave[source_local]), (self.nic_up + out_nic)[:, None]]
        if fabric.between:
            between = fabric.between(fabric.port[out_nic], fabric.port[into_nic], flow)
            columns.append(np.where(between < 0, -1, between + self.first_fabric))
        columns += [(self.nic_down + into_nic)[:, None], self.link.at(into, arrive[target_local])]
        return np.concatenate(columns, axis=1)


def _in_node(part: Part) -> Callable[[int], str]:
    return lambda i: f"node{i // part.count}/{part.name(i % part.count)}"


def hops(*taken: tuple[Array, Array]) -> Array:
    """The number of each link where the link is taken, and -1 elsewhere: an array of pairs x hops."""
    return np.stack([np.where(here, link, -1) for here, link in taken], axis=1)
