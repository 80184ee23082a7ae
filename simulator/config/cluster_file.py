"""The file of a cluster: parsers of its text fields, checks that its fields are consistent, and the cluster that it describes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from ..errors import UserError, did_you_mean, either, nearest, shown
from ..fields import BytesPerSecond, Contradiction, Declared, Degree, Key, Latency, Length, Limits, Name, Text, keys
from ..hardware.cluster import Cluster
from ..hardware.gpu import Gpu
from ..hardware.options import INLINE, Box, Dragonfly, HostMemory, LinkSpec, Options, Routing, Wan
from ..hardware.shapes._direct import squarish
from ..hardware.shapes.dragonfly import too_few_links
from ..hardware.shapes.fat_tree import too_few_ports
from ..units import BYTES_PER_SECOND, GB, US_PER_S, parse
from . import catalog, explicit_graph, fabric_files
from .explicit_graph import MOST_VERTICES_AND_LINKS, Edge, Vertex
from .fabric_files import IDEAL, Fabric
from .shipped_fits import complete

MOST_GPUS = 2**20
MOST_NICS = 1024
MOST_SITES = 64
PCIE_BYTES_PER_S = 63.0 * GB
"""Default bandwidth from GPU to NIC: PCIe 5.0 x16, or the rate of the NICs if faster, since servers are built for that rate."""
SOMETIMES = (
    "dims", "node_dims", "radix", "spines", "dragonfly", "box", "wan", "vertices", "links", "routing", "oversubscription",
)  # fmt: skip
"""Fields of a cluster that only some shapes use."""

Dims = Annotated[tuple[Degree, ...], Length(1, 8)]
_COUNTED = re.compile(r"\s*(?:([0-9]{1,9})\s*[x×]\s*)?(.+)", re.DOTALL)


class Nics(NamedTuple):
    """The number of NICs of a node, and bytes/s of each NIC per direction."""

    per_node: int
    bytes_per_s: float


class Inside(NamedTuple):
    """How the GPUs of a node are joined, the number of links of a GPU if stated, and bytes/s of each GPU per direction."""

    kind: str
    links: int | None
    bytes_per_s: float


def intra_node(text: Any) -> Inside:
    """ "NVSwitch 450 GB/s", "cube-mesh 6x25 GB/s": the kind of intra-node fabric, and the rate of a GPU over all its links."""
    example = "NVSwitch 450 GB/s"
    kind, _, rate = text_of(text, example).strip().partition(" ")
    plain = catalog.plain(kind)
    if plain != "nvlink" and not is_shape_with(plain, "inside"):
        known = ["NVSwitch", "NVLink", *shapes_with("inside")]
        close = nearest(kind, known)
        kinds = f'write it like "{example}"; the kinds are {either(name for name in known if name != "nvswitch")}'
        hint = f"did you mean {close!r}? {kinds}" if close else kinds
        raise UserError(f"{shown(text)} starts with no known kind of link", hint=hint)
    count, each = _counted(rate, text, example, "links")
    return Inside(plain, count, (count or 1) * each)


def inter_node(text: Any) -> Nics:
    """ "8x400 Gbit/s": the number of NICs of a node, and bytes/s of each NIC per direction."""
    example = "8x400 Gbit/s"
    count, each = _counted(text_of(text, example), text, example, "NICs")
    return Nics(count or 1, each)


def _counted(rate: str, text: Any, example: str, what: str) -> tuple[int | None, float]:
    """The number of links or NICs if the text states it, and bytes/s of each."""
    match = _COUNTED.fullmatch(rate)
    count, each = match.groups() if match else (None, rate)
    if not 1 <= int(count or 1) <= MOST_NICS:
        raise UserError(f"{shown(text)} has {count} {what}", hint=f"1 to {MOST_NICS} of them: {example}")
    try:
        return int(count) if count else None, parse(each, BYTES_PER_SECOND)
    except UserError as error:
        message, hint = error.faults[0].message, error.hint.replace(BYTES_PER_SECOND.hint, f'write it like "{example}"')
        raise UserError(f"{shown(text)}: {message}" if each != text else message, hint=hint) from None


def text_of(value: Any, example: str) -> str:
    """The value itself if it is text; otherwise raises `UserError` with an example of what to write."""
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{shown(value)} is not text", hint=f'write it like "{example}"')
    return value


def shape(name: Any) -> str:
    """The name of a cluster shape, checked against the catalog. `Trust` refuses or imports user code."""
    if not catalog.is_code(name):
        found = catalog.module("shapes", text_of(name, "rail-optimized"))
        if not (hasattr(found, "fabric") or hasattr(found, "inside") or (hasattr(found, "wire") and hasattr(found, "route"))):
            hint = "a shape has fabric(cluster), or wire(cluster) and route(cluster, source, target)"
            raise UserError(f"{shown(name)} is not a shape", hint=hint)
    text: str = name
    return text


def sites(value: Any) -> tuple[str, ...]:
    """The shapes of the sites of a wide-area cluster. A number of sites stands for that many rail-optimized sites."""
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_SITES:
        return ("rail-optimized",) * value
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_SITES:
        raise UserError(
            f"{shown(value)} is neither a number of sites nor a list of shapes", hint="sites: [rail-optimized, leaf-spine]"
        )
    known = [name for name in shapes_with("fabric") if name != "wan"]
    for name in value:
        if catalog.plain(text_of(name, "rail-optimized")) not in known:
            raise UserError(f"{shown(name)} cannot be the shape of a site", hint=did_you_mean(name, known))
    return tuple(value)


def fabric(text: Any) -> Fabric | None:
    """The measured fabric of a name or of the path of a file, or `ideal`. Without a name it is None, the default."""
    if text in (None, ""):
        return None
    known = (IDEAL.name, *catalog.files("fabrics"))
    name = catalog.plain(text) if isinstance(text, str) else None
    if name is not None and catalog.is_path(text):
        try:
            return fabric_files.load(text)
        except UserError as error:
            messages = [f"{fault.where}: {fault.message}" if fault.where else fault.message for fault in error.faults]
            hint = next((fault.hint for fault in error.faults if fault.hint), "`trainsim calibrate links` writes one")
            raise UserError("\n    ".join(messages), hint=hint) from None
    if name not in known:
        raise UserError(f"no fabric {shown(text)}", hint=did_you_mean(str(text), known))
    return IDEAL if name == IDEAL.name else fabric_files.outline(str(name))


def is_shape_with(name: str, part: str) -> bool:
    """Whether the catalog has a shape of this name with a function such as `inside` or `fabric`. No other shape is imported."""
    return name in catalog.files("shapes") and hasattr(catalog.module("shapes", name), part)


def shapes_with(what: str) -> list[str]:
    """The shapes of the catalog that can be the `inside` of a node, that can be a `fabric` of nodes, or that use an option."""
    found = {name: catalog.module("shapes", name) for name in catalog.files("shapes")}
    if what in ("inside", "fabric"):
        return [name for name, module in found.items() if hasattr(module, what)]
    return [name for name, m in found.items() if what in (*m.OPTIONS, *getattr(m, "OPTIONS_INSIDE", ()))]


@dataclass(frozen=True, slots=True)
class HopLatency(Declared):
    """Latency of one hop over each kind of link. The defaults are latencies of the hardware alone, which are below the time per
    step of every measured collective: 0.7 us from GPU to GPU through an NVSwitch (a ring on H100 takes 0.77 us per step, with its
    kernel), and 1.8 us between GPUs of two nodes through one switch (a ping-pong over InfiniBand takes 1 to 2 us). Each further
    switch takes 130 ns (NVIDIA Quantum) to 600 ns (Ethernet).
    """

    nvlink_s: Annotated[Latency, "latency of a GPU's link inside its node"] = 0.35 / US_PER_S
    pcie_s: Annotated[Latency, "latency between a GPU and its NIC"] = 0.3 / US_PER_S
    nic_s: Annotated[Latency, "latency between a NIC and its leaf switch"] = 0.6 / US_PER_S
    switch_s: Annotated[Latency, "latency of each hop from one switch to another"] = 0.3 / US_PER_S


@dataclass(frozen=True, slots=True)
class WanSites(Declared):
    """Sites of a wide-area cluster, and the link between any two sites."""

    sites: Annotated[tuple[str, ...], Text("sites"), "number of sites, or a list with the shape of each site"]
    bytes_per_s: Annotated[BytesPerSecond, Key("bandwidth"), "rate between two sites, per direction, such as 400 Gbit/s"]
    latency_s: Annotated[Latency, "latency between two sites, one way, such as 20 ms"]


LINKS_OF_ONE_GPU = "PCIe 63 GB/s"
"""The links inside a node of a single GPU, which nothing crosses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFile(Declared):
    """Description of a cluster, inline in a scenario or in a file of topologies."""

    name: Annotated[Name, "name of the cluster in results"] = INLINE
    gpu: Annotated[Gpu, "GPU of the cluster: a name such as h100, a path or a mapping"]
    gpus_per_node: Annotated[Degree, "number of GPUs per node (NVLink domain or server), such as 8"]
    nodes: Annotated[Degree, "number of nodes (NVLink domains or servers)"] = 1
    intra_node: Annotated[Inside | None, Text("intra_node"), "kind of the links inside a node, and rate per GPU and direction"]
    inter_node: Annotated[Nics | None, Text("inter_node"), "number of NICs per node and rate of each; left out: one node"] = None
    shape: Annotated[str | None, Text("shape"), "topology of the network between nodes; left out: rail-optimized"] = None
    nodes_per_pod: Annotated[Degree, "number of nodes that share their leaf switches"] = 32
    oversubscription: Annotated[
        float, Limits(ge=1, le=1000), "bandwidth of a leaf switch's links to nodes over that of its uplinks"
    ] = 1.0
    pcie_bytes_per_s: Annotated[
        BytesPerSecond | None,
        "rate from a GPU to its NICs, per direction; left out, 63 GB/s (PCIe 5.0 x16), or the rate of its NICs if that is more",
    ] = None
    latency: Annotated[HopLatency, "latency of one hop over each kind of link"] = field(default_factory=HopLatency)
    fabric: Annotated[
        Any, Text("fabric"), "measured fabric that times collectives; left out, the most similar; ideal: nominal link rates"
    ] = None
    routing: Annotated[
        Literal["spray", "ecmp"], "spray: a flow is spread evenly over all equal routes; ecmp: it takes one of them, by a hash"
    ] = "spray"
    routing_seed: Annotated[int, Limits(ge=0, lt=2**63), "seed of the hashes of ecmp routing"] = 0
    dims: Annotated[Dims | None, "side lengths of a torus of nodes; left out, nearly equal ones"] = None
    node_dims: Annotated[Dims | None, "side lengths of a torus of the GPUs of a node; left out, nearly equal ones"] = None
    radix: Annotated[Degree | None, "number of ports of a fat tree's switches; left out, the least that suffices"] = None
    spines: Annotated[Degree | None, "number of spine switches with ecmp routing; left out, one per uplink of a leaf"] = None
    dragonfly: Annotated[Dragonfly, "ports and groups of a dragonfly's routers"] = field(default_factory=Dragonfly)
    box: Annotated[Box, "inside of a server whose GPUs communicate over PCIe"] = field(default_factory=Box)
    wan: Annotated[WanSites | None, "sites of a wide-area cluster; left out for one site"] = None
    host: Annotated[HostMemory | None, "memory of the CPUs of a node, for offloaded data; left out where it is not known"] = None
    vertices: Annotated[
        tuple[Vertex, ...] | None, Length(0, MOST_VERTICES_AND_LINKS), "vertices of an explicit graph; left out for other shapes"
    ] = None
    links: Annotated[
        tuple[Edge, ...] | None, Length(0, MOST_VERTICES_AND_LINKS), "links of an explicit graph; left out for other shapes"
    ] = None

    comments: ClassVar[Mapping[str, Any]] = {"sources": dict[str, str]}

    @classmethod
    def prepared(cls, data: Any) -> Any:
        """An explicit graph determines itself what is in a node, and a single GPU has no links that could matter."""
        if not isinstance(data, dict):
            return data
        is_explicit = isinstance(data.get("shape"), str) and catalog.plain(data["shape"]) == "explicit"
        is_alone = data.get("gpus_per_node") == 1 and data.get("nodes", 1) == 1
        return {"intra_node": None, **data} if is_explicit else {"intra_node": LINKS_OF_ONE_GPU, **data} if is_alone else data

    @property
    def shape_name(self) -> str:
        """The shape's name in the catalog; by default rail-optimized, or the shape of a single node."""
        if self.shape:
            return catalog.called(self.shape)
        return "rail-optimized" if self.nodes > 1 else self.inside_name

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
            return  # a shape of user code that was not imported: nothing is known about it
        if self.nodes * self.gpus_per_node > MOST_GPUS:
            message = f": {self.nodes} x {self.gpus_per_node} GPUs are more than one simulation takes"
            yield "nodes", message, f"at most {max(1, MOST_GPUS // self.gpus_per_node)}"
        is_explicit = self.shape_name == "explicit"
        if self.nodes > 1 and self.inter_node is None and not is_explicit:
            yield "inter_node", f" is missing: it joins the {self.nodes} nodes", 'write it like "8x400 Gbit/s"'
        if self.intra_node is None and not is_explicit:
            yield "intra_node", " has no value", 'write it like "NVSwitch 450 GB/s"'
        yield from self._out_of_place()
        yield from self._out_of_shape()
        yield from self._hosts()
        if is_explicit:
            yield from self._stated_twice()
            yield from explicit_graph.contradictions(self.vertices or (), self.links or (), self.nodes, self.gpus_per_node)

    def _stated_twice(self) -> Iterator[Contradiction]:
        """Fields that repeat what the links of an explicit graph determine; `fabric: ideal` is redundant but allowed."""
        for name in ("intra_node", "inter_node", "fabric"):
            if (given := getattr(self, name)) is not None and given is not IDEAL:
                hint = "leave it out, or write null where a named cluster has it"
                yield name, ": the links of an explicit graph are simulated at the rates that `links` states", hint

    def _out_of_place(self) -> Iterator[Contradiction]:
        """Fields that only apply to other shapes than the shape of this cluster."""
        shape, inside = catalog.module("shapes", self.shape or self.shape_name), catalog.module("shapes", self.inside_name)
        if not hasattr(shape, "OPTIONS"):
            return
        useful = {*shape.OPTIONS, *getattr(inside, "OPTIONS_INSIDE", ())}
        for site in self.wan.sites if self.wan and "wan" in shape.OPTIONS else ():
            useful |= {*catalog.module("shapes", site).OPTIONS}
        for name in SOMETIMES:
            if name not in useful and getattr(self, name) != keys(ClusterFile)[name].default:
                hint = f"leave it out; {', '.join(shapes_with(name))} has one"
                yield name, f": a cluster of shape {self.shape_name} has none", hint
        if self.spines and self.routing != "ecmp":
            yield "spines", ": sprayed traffic sees them as one", "routing: ecmp, or leave it out"

    def _out_of_shape(self) -> Iterator[Contradiction]:
        """Numbers that are inconsistent with each other in this shape."""
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
            hint = "gpus_per_node: 8, or up to 4 of one quad"
            yield "gpus_per_node", f": a cube mesh has 8 GPUs, not {self.gpus_per_node}", hint
        if self.inside_name == "cube-mesh" and self.intra_node and self.intra_node.links not in (None, 4, 6):
            message = f": a cube mesh has no {self.intra_node.links} NVLinks to a GPU"
            yield "intra_node", message, '"cube-mesh 6x25 GB/s" (V100) or "cube-mesh 4x20 GB/s" (P100)'

    def _hosts(self) -> Iterator[Contradiction]:
        """Faults of links to hosts that the shape does not support, or has already."""
        if not self.host:
            return
        if self.shape_name == "explicit":
            yield "host", ": copies to hosts are not modelled in an explicit graph yet", "leave it out"
        if self.inside_name == "pcie" and self.host.bytes_per_s is not None:
            yield "host.bandwidth", ": the links of a PCIe server lead to its CPUs", "leave it out"
        if self.inside_name == "pcie" and self.host.link == "c2c":
            yield "host.link", ": a PCIe server has no other links to its CPUs", "pcie"
        if self.host.link == "c2c" and self.host.bytes_per_s is None:
            yield "host.bandwidth", " is missing: a separate link needs its own rate", "bandwidth: 450 GB/s"

    def _too_many(self) -> Iterator[Contradiction]:
        """Numbers of nodes, or of GPUs per node, that are larger than the shape can join."""
        shape = catalog.module("shapes", self.shape or self.shape_name)
        if self.nodes > 1 and hasattr(shape, "inside") and not hasattr(shape, "fabric"):
            hint = "join the nodes by a fabric: shape: rail-optimized with inter_node: 8x400 Gbit/s"
            yield "shape", f": {self.shape_name} is a single node, and {self.name} has {self.nodes}", hint

        inside = self.inside_name, self.gpus_per_node, "gpus_per_node", "node_dims"
        for name, points, count, sides in (inside, *((name, nodes, "nodes", "dims") for name, nodes in self._fabrics())):
            given = getattr(self, sides)
            if is_shape_with(name, "too_many") and (wrong := catalog.module("shapes", name).too_many(points, given)):
                yield sides if given else count, f": {wrong[0]}", wrong[1]
        rails = min(self.inter_node.per_node if self.inter_node else 0, self.gpus_per_node)
        for name, nodes in self._fabrics() if rails else ():
            if name == "fat-tree" and self.radix and (wrong := too_few_ports(nodes * rails, self.radix)):
                yield "radix", f": {wrong[0]}", wrong[1]
            if name == "dragonfly" and (wrong := too_few_links(nodes * rails, self.dragonfly)):
                yield "dragonfly", f": {wrong[0]}", wrong[1]

    def _fabrics(self) -> list[tuple[str, int]]:
        """Each shape that joins nodes, with its number of nodes. A WAN has one shape per site."""
        if self.nodes == 1 or self.shape_name != "wan":
            return [(self.shape_name, self.nodes)] if self.nodes > 1 else []
        sites = self.wan.sites if self.wan else ()
        shared = ((catalog.plain(name), (self.nodes + len(sites) - 1 - i) // len(sites)) for i, name in enumerate(sites))
        return [(name, nodes) for name, nodes in shared if nodes]


def cluster(file: ClusterFile) -> Cluster:
    """The cluster of a file, with the modules of its shape and of its intra-node fabric."""
    nics, latency = file.inter_node or Nics(0, 0.0), file.latency
    inside = file.intra_node or Inside("explicit", None, 0.0)
    to_nics = max(PCIE_BYTES_PER_S, nics.per_node * nics.bytes_per_s / file.gpus_per_node)
    usual = inside.bytes_per_s if file.inside_name == "pcie" else to_nics
    return Cluster(
        name=file.name,
        gpu=complete(file.gpu),
        gpus_per_node=file.gpus_per_node,
        nodes=file.nodes,
        shape_name=file.shape_name,
        shape=catalog.module("shapes", file.shape or file.shape_name),
        inside_name=file.inside_name,
        inside=catalog.module("shapes", file.inside_name),
        nvlink=LinkSpec(inside.bytes_per_s, latency.nvlink_s),
        nvlinks=inside.links,
        pcie=LinkSpec(file.pcie_bytes_per_s or usual, latency.pcie_s),
        nic=LinkSpec(nics.bytes_per_s, latency.nic_s),
        switch_latency_s=latency.switch_s,
        nics_per_node=nics.per_node,
        nodes_per_pod=file.nodes_per_pod,
        oversubscription=file.oversubscription,
        options=Options(
            routing=Routing(file.routing == "ecmp", file.routing_seed),
            dims=file.dims or (),
            node_dims=file.node_dims or (),
            radix=file.radix,
            spines=file.spines,
            dragonfly=file.dragonfly,
            box=file.box,
            wan=_wan(file.wan) if file.wan else None,
            explicit_graph=explicit_graph.numbered_graph(file.vertices, file.links) if file.vertices and file.links else None,
        ),
        fabric=file.fabric,
        host=file.host,
    )


def _wan(wan: WanSites) -> Wan:
    shapes = tuple(catalog.module("shapes", name) for name in wan.sites)
    return Wan(tuple(map(catalog.plain, wan.sites)), shapes, LinkSpec(wan.bytes_per_s, wan.latency_s))
