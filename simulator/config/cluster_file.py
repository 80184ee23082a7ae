"""A cluster as its file describes it, whether that makes sense, and the cluster made from it with the modules of its shapes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from ..errors import did_you_mean
from ..fields import BytesPerSecond, Contradiction, Declared, Degree, Key, Latency, Length, Limits, Name, Text, specs
from ..hardware.cluster import Cluster
from ..hardware.gpu import Gpu
from ..hardware.options import INLINE, Box, Dragonfly, Drawn, LinkSpec, Options, Routing, Wan
from ..hardware.shapes._direct import squarish
from ..hardware.shapes.dragonfly import too_few_links
from ..hardware.shapes.explicit import unjoined
from ..hardware.shapes.fat_tree import too_few_ports
from ..units import GB, US_PER_S
from . import catalog, grammar
from .shipped_fits import complete

MOST_GPUS = 2**20
MOST_DRAWN = 20_000
PCIE_BYTES_PER_S = 63.0 * GB
"""GPU to NIC where a cluster does not say, PCIe 5.0 x16, unless a GPU's NICs are faster: what leads to them is built for them."""
SOMETIMES = (
    "dims", "node_dims", "radix", "spines", "dragonfly", "box", "wan", "vertices", "links", "routing", "oversubscription",
)  # fmt: skip
"""Fields of a cluster that only some shapes have a use for."""

Dims = Annotated[tuple[Degree, ...], Length(1, 8)]


@dataclass(frozen=True, slots=True)
class HopLatency(Declared):
    """Latency of one hop over each kind of link. The defaults are what hardware alone takes, below what any measured collective
    shows for a step: 0.7 us from GPU to GPU through an NVSwitch (0.77 us per step of a ring on H100, the kernel included), and
    1.8 us from GPU to GPU of two nodes through one switch, as InfiniBand's ping-pong takes 1 to 2 us. A further switch takes
    130 ns (NVIDIA Quantum) to 600 ns (Ethernet).
    """

    nvlink_s: Annotated[Latency, "a link of a GPU inside its node"] = 0.35 / US_PER_S
    pcie_s: Annotated[Latency, "between a GPU and its NIC"] = 0.3 / US_PER_S
    nic_s: Annotated[Latency, "between a NIC and its leaf switch"] = 0.6 / US_PER_S
    switch_s: Annotated[Latency, "each further hop between switches"] = 0.3 / US_PER_S


@dataclass(frozen=True, slots=True)
class WanSites(Declared):
    """Sites, and the link between any two of them."""

    sites: Annotated[tuple[str, ...], Text("sites"), "how many, or the shape of each"]
    bytes_per_s: Annotated[BytesPerSecond, Key("bandwidth"), "between two sites, each way, such as 400 Gbit/s"]
    latency_s: Annotated[Latency, "between two sites, one way, such as 20 ms"]


@dataclass(frozen=True, slots=True)
class Vertex(Declared):
    """A vertex of a graph given by hand."""

    name: Annotated[str, Length(1, 100), "any name without >, such as gpu0"]
    kind: Annotated[str, Length(1, 100), "gpu, or any other word, such as switch"]

    def contradictions(self) -> Iterator[Contradiction]:
        if ">" in self.name:
            yield "name", f": {self.name!r} has a >, which stands between the ends of a link", "a name without >, such as gpu0"


@dataclass(frozen=True, slots=True)
class Edge(Declared):
    """A link of a graph given by hand, the same both ways unless it is one_way."""

    source: Annotated[Name, Key("from"), "the name of a vertex"]
    target: Annotated[Name, Key("to"), "the name of a vertex"]
    bytes_per_s: Annotated[BytesPerSecond, Key("capacity"), "per direction, such as 50 GB/s"]
    latency_s: Annotated[Latency, "such as 1 us"]
    one_way: Annotated[bool, "whether nothing goes back over it"] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFile(Declared):
    """A cluster; inline, or a file in topologies."""

    name: Annotated[Name, "what results call it"] = INLINE
    gpu: Annotated[Gpu, "the name of a GPU, such as h100, a path or a mapping"]
    gpus_per_node: Annotated[Degree, "GPUs in one NVLink domain, such as 8"]
    nodes: Annotated[Degree, "NVLink domains or servers"] = 1
    intra_node: Annotated[grammar.Inside | None, Text("intra_node"), "links of a GPU inside its node, per direction"]
    inter_node: Annotated[grammar.Nics | None, Text("inter_node"), "the NICs of a node"] = None
    shape: Annotated[str | None, Text("shape"), "how the nodes are joined"] = None
    nodes_per_pod: Annotated[Degree, "nodes that share their leaf switches"] = 32
    oversubscription: Annotated[float, Limits(ge=1, le=1000), "bandwidth below a leaf switch over that above it"] = 1.0
    pcie_bytes_per_s: Annotated[
        BytesPerSecond | None,
        "from a GPU to its NICs; left out, 63 GB/s (PCIe 5.0 x16), or the rate of its NICs if that is more",
    ] = None
    latency: Annotated[HopLatency, "of one hop over each kind of link"] = field(default_factory=HopLatency)
    fabric: Annotated[str, Text("fabric"), "measured links like these; ideal for none; left out, the most alike"] = ""
    routing: Annotated[Literal["spray", "ecmp"], "spray: a flow takes all equal ways evenly; ecmp: one of them, by its hash"] = (
        "spray"
    )
    routing_seed: Annotated[int, Limits(ge=0, lt=2**63), "of the hashes of ecmp"] = 0
    dims: Annotated[Dims | None, "sides of a torus of nodes"] = None
    node_dims: Annotated[Dims | None, "sides of a torus of the GPUs of a node"] = None
    radix: Annotated[Degree | None, "ports of a switch of a fat tree"] = None
    spines: Annotated[Degree | None, "spine switches of hashed routing"] = None
    dragonfly: Annotated[Dragonfly, "ports of a router of a dragonfly"] = field(default_factory=Dragonfly)
    box: Annotated[Box, "inside of a server whose GPUs talk over PCIe"] = field(default_factory=Box)
    wan: Annotated[WanSites | None, "sites far apart"] = None
    vertices: Annotated[tuple[Vertex, ...] | None, Length(0, MOST_DRAWN), "of a graph given by hand"] = None
    links: Annotated[tuple[Edge, ...] | None, Length(0, MOST_DRAWN), "of a graph given by hand"] = None

    comments: ClassVar[Mapping[str, Any]] = {"sources": dict[str, str]}

    @classmethod
    def prepared(cls, data: Any) -> Any:
        """A graph given by hand says itself what is in a node."""
        drawn = isinstance(data, dict) and isinstance(data.get("shape"), str) and catalog.plain(data["shape"]) == "explicit"
        return {"intra_node": None, **data} if drawn else data

    @property
    def shape_name(self) -> str:
        """The shape as it is called in the catalog; without one, rails, or what the single node is."""
        return catalog.plain(self.shape) if self.shape else "rail-optimized" if self.nodes > 1 else self.inside_name

    @property
    def inside_name(self) -> str:
        """The shape of a node's inside. "NVLink" leaves it to the shape of a single node, and is a switch elsewhere."""
        kind = self.intra_node.kind if self.intra_node else "explicit"
        if kind != "nvlink":
            return kind
        of_node = self.shape and self.nodes == 1 and hasattr(catalog.module("shapes", self.shape), "inside")
        return catalog.plain(str(self.shape)) if of_node else "nvswitch"

    def contradictions(self) -> Iterator[Contradiction]:
        if catalog.is_code(self.shape):
            return  # which was not imported: nothing is known of such a shape
        if self.nodes * self.gpus_per_node > MOST_GPUS:
            message = f": {self.nodes} x {self.gpus_per_node} GPUs are more than one simulation takes"
            yield "nodes", message, f"at most {max(1, MOST_GPUS // self.gpus_per_node)}"
        drawn = self.shape_name == "explicit"
        if self.nodes > 1 and self.inter_node is None and not drawn:
            yield "inter_node", f" is missing: it joins the {self.nodes} nodes", 'write it like "8x400 Gbit/s"'
        if self.intra_node is None and not drawn:
            yield "intra_node", " has no value", 'write it like "NVSwitch 450 GB/s"'
        yield from self._out_of_place()
        yield from self._out_of_shape()
        if drawn:
            found = list(self._of_the_drawn())
            yield from found or self._not_joined()

    def _out_of_place(self) -> Iterator[Contradiction]:
        """Fields that say something about another shape than this one."""
        shape, inside = catalog.module("shapes", self.shape or self.shape_name), catalog.module("shapes", self.inside_name)
        if not hasattr(shape, "OPTIONS"):
            return
        useful = {*shape.OPTIONS, *getattr(inside, "OPTIONS_INSIDE", ())}
        for site in self.wan.sites if self.wan and "wan" in shape.OPTIONS else ():
            useful |= {*catalog.module("shapes", site).OPTIONS}
        usual = {spec.name: spec.default for spec in specs(ClusterFile)}
        for name in SOMETIMES:
            if name not in useful and getattr(self, name) != usual[name]:
                who = grammar.shapes_with(name)
                yield name, f": a cluster of shape {self.shape_name} has none", f"leave it out; {', '.join(who)} has one"
        if self.spines and self.routing != "ecmp":
            yield "spines", ": sprayed traffic sees them as one", "routing: ecmp, or leave it out"

    def _out_of_shape(self) -> Iterator[Contradiction]:
        """Numbers that do not go together in this shape."""
        for name, dims, points in (("dims", self.dims, self.nodes), ("node_dims", self.node_dims, self.gpus_per_node)):
            if dims and math.prod(dims) != points:
                near = list(squarish(points, max(2, len(dims))))
                yield name, f": {list(dims)} is a torus of {math.prod(dims)}, not of {points}", f"{name}: {near}"
        yield from self._too_many()
        if self.shape_name == "wan" and self.wan is None:
            yield "wan", " is missing: it says what the sites are", 'wan: {sites: 2, bandwidth: "400 Gbit/s", latency: "20 ms"}'
        if self.wan and len(self.wan.sites) > self.nodes:
            yield "wan", f".sites: {len(self.wan.sites)} sites cannot share {self.nodes} nodes", f"at most {self.nodes} sites"
        if self.inside_name == "cube-mesh" and self.gpus_per_node != 8 and self.gpus_per_node > 4:
            yield (
                "gpus_per_node",
                f": a cube mesh has 8 GPUs, not {self.gpus_per_node}",
                "gpus_per_node: 8, or up to 4 of one quad",
            )
        if self.inside_name == "cube-mesh" and self.intra_node and self.intra_node.links not in (None, 4, 6):
            message = f": a cube mesh has no {self.intra_node.links} NVLinks to a GPU"
            yield "intra_node", message, '"cube-mesh 6x25 GB/s" (V100) or "cube-mesh 4x20 GB/s" (P100)'

    def _too_many(self) -> Iterator[Contradiction]:
        """More nodes, or GPUs of a node, than a shape can join."""
        shape = catalog.module("shapes", self.shape or self.shape_name)
        if self.nodes > 1 and hasattr(shape, "inside") and not hasattr(shape, "fabric"):
            hint = "join the nodes by a fabric: shape: rail-optimized with inter_node: 8x400 Gbit/s"
            yield "shape", f": {self.shape_name} is a single node, and {self.name} has {self.nodes}", hint

        inside = self.inside_name, self.gpus_per_node, "gpus_per_node", "node_dims"
        for name, points, count, sides in (inside, *((name, nodes, "nodes", "dims") for name, nodes in self._fabrics())):
            wrong = grammar.is_shape_with(name, "too_many") and catalog.module("shapes", name).too_many(
                points, getattr(self, sides)
            )
            if wrong:
                yield sides if getattr(self, sides) else count, f": {wrong[0]}", wrong[1]
        rails = min(self.inter_node.per_node if self.inter_node else 0, self.gpus_per_node)
        for name, nodes in self._fabrics() if rails else ():
            if name == "fat-tree" and self.radix and (wrong := too_few_ports(nodes * rails, self.radix)):
                yield "radix", f": {wrong[0]}", wrong[1]
            if name == "dragonfly" and (wrong := too_few_links(nodes * rails, self.dragonfly)):
                yield "dragonfly", f": {wrong[0]}", wrong[1]

    def _fabrics(self) -> list[tuple[str, int]]:
        """What joins nodes, and how many: of a WAN, at each site."""
        if self.nodes == 1 or (self.shape_name == "wan" and self.wan is None):
            return []
        if self.wan is None or self.shape_name != "wan":
            return [(self.shape_name, self.nodes)]
        sites = len(self.wan.sites)
        return [(catalog.plain(name), (self.nodes + sites - 1 - i) // sites) for i, name in enumerate(self.wan.sites)]

    def _of_the_drawn(self) -> Iterator[Contradiction]:
        """What is wrong with a graph given by hand."""
        for name in ("vertices", "links"):
            if not getattr(self, name):
                yield name, " is missing: an explicit graph is given by its vertices and links", grammar.DRAWN
        names = [vertex.name for vertex in self.vertices or ()]
        for name in dict.fromkeys(name for i, name in enumerate(names) if name in names[:i]):
            yield "vertices", f": {name!r} is there more than once", "give every vertex a name of its own"
        gpus, known = sum(vertex.kind == "gpu" for vertex in self.vertices or ()), set(names)
        if self.vertices and gpus != self.nodes * self.gpus_per_node:
            message = f": {gpus} of them are of kind gpu, and there are {self.nodes} nodes of {self.gpus_per_node} GPUs"
            yield "vertices", message, "nodes times gpus_per_node is the number of GPUs"
        joined: set[tuple[str, str]] = set()
        for i, link in enumerate(self.links or ()):
            for key, end in (("from", link.source), ("to", link.target)):
                if self.vertices and end not in known:
                    yield f"links.{i}.{key}", f": no vertex {end!r}", did_you_mean(end, known)
            if link.source == link.target:
                yield f"links.{i}", f": {link.target!r} is joined with itself", "leave it out"
            ways = [(link.source, link.target)] if link.one_way else [(link.source, link.target), (link.target, link.source)]
            if joined & {*ways}:
                yield (
                    f"links.{i}",
                    f": {link.source!r} and {link.target!r} are joined already",
                    "give the link the sum of the capacities",
                )
            joined |= {*ways}

    def _not_joined(self) -> Iterator[Contradiction]:
        """GPUs of a graph given by hand that cannot reach the first, or that it cannot reach."""

        places = {vertex.name: i for i, vertex in enumerate(self.vertices or ()) if vertex.kind == "gpu"}
        links = self.links or ()
        ways = [(link.source, link.target) for link in links] + [(link.target, link.source) for link in links if not link.one_way]
        names = list(places)
        for gpu, (source, target) in unjoined(names, ways):
            yield f"vertices.{places[names[gpu]]}", f": no way leads from {source!r} to {target!r}", "join them by links"


def cluster(schema: ClusterFile) -> Cluster:
    """A cluster, the modules of its shape and of its nodes' inside found."""
    nics, latency = schema.inter_node or grammar.Nics(0, 0.0), schema.latency
    inside = schema.intra_node or grammar.Inside("explicit", None, 0.0)
    to_nics = max(PCIE_BYTES_PER_S, nics.per_node * nics.bytes_per_s / schema.gpus_per_node)
    usual = inside.bytes_per_s if schema.inside_name == "pcie" else to_nics
    return Cluster(
        name=schema.name,
        gpu=complete(schema.gpu),
        gpus_per_node=schema.gpus_per_node,
        nodes=schema.nodes,
        shape_name=schema.shape_name,
        shape=catalog.module("shapes", schema.shape or schema.shape_name),
        inside_name=schema.inside_name,
        inside=catalog.module("shapes", schema.inside_name),
        nvlink=LinkSpec(inside.bytes_per_s, latency.nvlink_s),
        nvlinks=inside.links,
        pcie=LinkSpec(schema.pcie_bytes_per_s or usual, latency.pcie_s),
        nic=LinkSpec(nics.bytes_per_s, latency.nic_s),
        switch_latency_s=latency.switch_s,
        nics_per_node=nics.per_node,
        nodes_per_pod=schema.nodes_per_pod,
        oversubscription=schema.oversubscription,
        options=_options(schema),
        fabric=schema.fabric,
    )


def _options(schema: ClusterFile) -> Options:
    return Options(
        routing=Routing(schema.routing == "ecmp", schema.routing_seed),
        dims=schema.dims or (),
        node_dims=schema.node_dims or (),
        radix=schema.radix,
        spines=schema.spines,
        dragonfly=schema.dragonfly,
        box=schema.box,
        wan=_wan(schema),
        drawn=_drawn(schema),
    )


def _wan(schema: ClusterFile) -> Wan | None:
    wan = schema.wan
    if wan is None:
        return None
    shapes = tuple(catalog.module("shapes", name) for name in wan.sites)
    return Wan(tuple(map(catalog.plain, wan.sites)), shapes, LinkSpec(wan.bytes_per_s, wan.latency_s))


def _drawn(schema: ClusterFile) -> Drawn | None:
    if schema.vertices is None or schema.links is None:
        return None
    number = {vertex.name: i for i, vertex in enumerate(schema.vertices)}
    links = []
    for link in schema.links:
        a, b, spec = number[link.source], number[link.target], LinkSpec(link.bytes_per_s, link.latency_s)
        links += [(a, b, spec)] if link.one_way else [(a, b, spec), (b, a, spec)]
    return Drawn(tuple((vertex.name, vertex.kind) for vertex in schema.vertices), tuple(links))
