"""What may stand in a YAML file about a cluster. Other parts of the boundary are software.py and schema.py."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from ...errors import did_you_mean
from ...hardware.options import INLINE, Dragonfly
from ...units import US_PER_S
from .. import catalog
from ..documents.fields import BytesPerSecond, Degree, Latency, Name
from ..documents.strict import Contradiction, Field, Strict, Text
from ..gpus.schema import GpuSchema
from . import grammar

MOST_GPUS = 2**20
MOST_DRAWN = 20_000
SOMETIMES = (
    "dims",
    "node_dims",
    "radix",
    "spines",
    "dragonfly",
    "box",
    "wan",
    "vertices",
    "links",
    "routing",
    "oversubscription",
)
"""Fields of a cluster that only some shapes have a use for."""
SLINGSHOT = Dragonfly()

Dims = Annotated[list[Degree], Field(min_length=1, max_length=8)]


class LatencySchema(Strict):
    """Latency of one hop over each kind of link. The defaults are what hardware alone takes, below what any measured collective
    shows for a step: 0.7 us from GPU to GPU through an NVSwitch (0.77 us per step of a ring on H100, the kernel included), and
    1.8 us from GPU to GPU of two nodes through one switch, as InfiniBand's ping-pong takes 1 to 2 us. A further switch takes
    130 ns (NVIDIA Quantum) to 600 ns (Ethernet).
    """

    nvlink: Latency = 0.35 / US_PER_S
    pcie: Latency = 0.3 / US_PER_S
    nic: Latency = 0.6 / US_PER_S
    switch: Latency = 0.3 / US_PER_S


class BoxSchema(Strict):
    """The inside of a server whose GPUs talk over PCIe."""

    sockets: Annotated[int, Field(ge=1, le=16)] = 2
    gpus_per_switch: Degree | None = None
    socket: BytesPerSecond | None = None
    bridge: BytesPerSecond | None = None


class DragonflySchema(Strict):
    """Ports of a router of a dragonfly."""

    nics_per_router: Degree = SLINGSHOT.nics_per_router
    routers_per_group: Degree = SLINGSHOT.routers_per_group
    global_links: Degree = SLINGSHOT.global_links


class WanSchema(Strict):
    """Sites, and the link between any two of them."""

    sites: Annotated[tuple[str, ...], Text(grammar.sites, "how many, or the shape of each", "[rail-optimized, leaf-spine]")]
    bandwidth: Annotated[BytesPerSecond, Field(description="between two sites, each way, such as 400 Gbit/s")]
    latency: Annotated[Latency, Field(description="between two sites, one way, such as 20 ms")]


class VertexSchema(Strict):
    """A vertex of a graph given by hand."""

    name: Annotated[str, Field(min_length=1, max_length=100, pattern="^[^>]*$", description="any name without >, such as gpu0")]
    kind: Annotated[str, Field(min_length=1, max_length=100, description="gpu, or any other word, such as switch")]


class EdgeSchema(Strict):
    """A link of a graph given by hand, the same both ways unless it is one_way."""

    from_: Annotated[Name, Field(alias="from", description="the name of a vertex")]
    to: Annotated[Name, Field(description="the name of a vertex")]
    capacity: Annotated[BytesPerSecond, Field(description="per direction, such as 50 GB/s")]
    latency: Annotated[Latency, Field(description="such as 1 us")]
    one_way: bool = False


class ClusterSchema(Strict):
    """A cluster; inline, or a file in topologies."""

    name: Name = INLINE
    gpu: Annotated[GpuSchema, Field(description="the name of a GPU, such as h100, a path or a mapping")]
    gpus_per_node: Annotated[Degree, Field(description="GPUs in one NVLink domain, such as 8")]
    nodes: Degree = 1
    intra_node: Annotated[grammar.Inside, Text(grammar.intra_node, "per GPU and direction", "NVSwitch 450 GB/s")] | None
    inter_node: Annotated[grammar.Nics, Text(grammar.inter_node, "the NICs of a node", "8x400 Gbit/s")] | None = None
    shape: Annotated[str, Text(grammar.shape, "how the nodes are joined", "rail-optimized")] | None = None
    nodes_per_pod: Degree = 32
    oversubscription: Annotated[float, Field(ge=1, le=1000, allow_inf_nan=False)] = 1.0
    pcie: Annotated[
        BytesPerSecond | None,
        Field(description="from a GPU to its NICs; left out, 63 GB/s (PCIe 5.0 x16), or the rate of its NICs if that is more"),
    ] = None
    latency: LatencySchema = LatencySchema()
    fabric: Annotated[str, Text(grammar.fabric, "how its links were measured", "ndr-ib")] = ""
    routing: Literal["spray", "ecmp"] = "spray"
    routing_seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    dims: Dims | None = None
    node_dims: Dims | None = None
    radix: Degree | None = None
    spines: Degree | None = None
    dragonfly: DragonflySchema = DragonflySchema()
    box: BoxSchema = BoxSchema()
    wan: WanSchema | None = None
    vertices: Annotated[list[VertexSchema], Field(max_length=MOST_DRAWN)] | None = None
    links: Annotated[list[EdgeSchema], Field(max_length=MOST_DRAWN)] | None = None
    sources: Annotated[dict[str, str], Field(default_factory=dict)]

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
        for name in SOMETIMES:
            if name not in useful and _flat(getattr(self, name)) != _flat(getattr(type(self), name)):
                who = grammar.shapes_with(name)
                yield name, f": a cluster of shape {self.shape_name} has none", f"leave it out; {', '.join(who)} has one"
        if self.spines and self.routing != "ecmp":
            yield "spines", ": sprayed traffic sees them as one", "routing: ecmp, or leave it out"

    def _out_of_shape(self) -> Iterator[Contradiction]:
        """Numbers that do not go together in this shape."""
        for name, dims, points in (("dims", self.dims, self.nodes), ("node_dims", self.node_dims, self.gpus_per_node)):
            if dims and math.prod(dims) != points:
                from ...hardware.shapes._direct import squarish

                near = list(squarish(points, max(2, len(dims))))
                yield name, f": {dims} is a torus of {math.prod(dims)}, not of {points}", f"{name}: {near}"
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
        from ...hardware.shapes import _limits

        inside = self.inside_name, self.gpus_per_node, "gpus_per_node", "node_dims"
        for name, points, field, sides in (inside, *((name, nodes, "nodes", "dims") for name, nodes in self._fabrics())):
            wrong = _limits.of_points(name, points, getattr(self, sides))
            if wrong:
                yield sides if getattr(self, sides) else field, f": {wrong[0]}", wrong[1]
        rails, ports = min(self.inter_node.per_node if self.inter_node else 0, self.gpus_per_node), self.dragonfly
        for name, nodes in self._fabrics() if rails else ():
            found = _limits.of_switches(name, nodes * rails, self.radix, Dragonfly(**dict(ports)))
            if found:
                yield found[0], f": {found[1]}", found[2]

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
            for key, end in (("from", link.from_), ("to", link.to)):
                if self.vertices and end not in known:
                    yield f"links.{i}.{key}", f": no vertex {end!r}", did_you_mean(end, known)
            if link.from_ == link.to:
                yield f"links.{i}", f": {link.to!r} is joined with itself", "leave it out"
            ways = [(link.from_, link.to)] if link.one_way else [(link.from_, link.to), (link.to, link.from_)]
            if joined & {*ways}:
                yield (
                    f"links.{i}",
                    f": {link.from_!r} and {link.to!r} are joined already",
                    "give the link the sum of the capacities",
                )
            joined |= {*ways}

    def _not_joined(self) -> Iterator[Contradiction]:
        """GPUs of a graph given by hand that cannot reach the first, or that it cannot reach."""
        from ...hardware.shapes import _limits

        places = {vertex.name: i for i, vertex in enumerate(self.vertices or ()) if vertex.kind == "gpu"}
        links = self.links or ()
        ways = [(link.from_, link.to) for link in links] + [(link.to, link.from_) for link in links if not link.one_way]
        names = list(places)
        for gpu, (source, target) in _limits.unjoined(names, ways):
            yield f"vertices.{places[names[gpu]]}", f": no way leads from {source!r} to {target!r}", "join them by links"


def _flat(value: Any) -> Any:
    return dict(value) if isinstance(value, Strict) else value
