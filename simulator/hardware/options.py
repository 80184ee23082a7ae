"""Options of single shapes: routing, sides of a torus, the inside of a PCIe box, sites of a wide-area network."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from ..fields import Bytes, BytesPerSecond, Declared, Degree, Key, Limits
from ..units import GB

INLINE = "inline"
"""The name of an inline cluster, written in a scenario or given as a mapping, to which commands cannot refer."""
USUAL_CORE_BYTES_PER_S = 12.0 * GB
"""Assumed of all servers: one core of an AMD EPYC of 2023 copies pieces of 1 MiB between its cache and 2 GiB of memory at 12 to
13 GB/s (measured here, memcpy of glibc, quiet runs)."""


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """One kind of link: bytes/s per direction and seconds of latency."""

    bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class Routing:
    """Choice among links of equal distance to the target: `spray` spreads a flow evenly, `ecmp` picks one link by a hash."""

    hashed: bool = False
    seed: int = 0

    @property
    def policy(self) -> str:
        return "ecmp" if self.hashed else "spray"


@dataclass(frozen=True, slots=True)
class Box(Declared):
    """Inside of a server whose GPUs communicate over PCIe."""

    sockets: Annotated[int, Limits(ge=1, le=16), "number of CPU sockets of a node"] = 2
    gpus_per_switch: Annotated[Degree | None, "number of GPUs per PCIe switch; left out if GPUs are attached to sockets"] = None
    socket_bytes_per_s: Annotated[BytesPerSecond | None, "rate between two sockets; left out: that of a GPU's PCIe link"] = None
    bridge_bytes_per_s: Annotated[
        BytesPerSecond | None, "rate of the NVLink bridge of GPUs 2i and 2i + 1; left out without bridges"
    ] = None


@dataclass(frozen=True, slots=True)
class HostMemory(Declared):
    """Memory of a node's CPUs, and the link from every GPU to them. Only offloaded data uses it."""

    memory_bytes_per_s: Annotated[
        BytesPerSecond, Key("memory_bandwidth"), "rate of the memory of a node, reads and writes together, such as 614 GB/s"
    ]
    link: Annotated[
        Literal["pcie", "c2c"], "pcie: a GPU reaches its CPU through the PCIe link to its NIC; c2c: through its own link"
    ] = "pcie"
    bytes_per_s: Annotated[
        BytesPerSecond | None, Key("bandwidth"), "rate from a GPU to its CPU, per direction; left out, that of `pcie`"
    ] = None
    memory_bytes: Annotated[Bytes | None, "memory of a node, such as 2 TB; left out, it is never too small"] = None
    core_bytes_per_s: Annotated[
        BytesPerSecond, Key("core_bandwidth"), "rate at which one core copies to or from memory; no pageable copy is faster"
    ] = USUAL_CORE_BYTES_PER_S


@dataclass(frozen=True, slots=True)
class Dragonfly(Declared):
    """Ports of a dragonfly router. The defaults describe a Slingshot switch with 64 ports: 16 to NICs, 31 to routers of its group
    and 17 to other groups.
    """

    nics_per_router: Annotated[Degree, "number of a router's ports to NICs"] = 16
    routers_per_group: Annotated[Degree, "number of routers in a group, each linked to every other"] = 32
    global_links: Annotated[Degree, "number of a router's ports to other groups"] = 17


@dataclass(frozen=True, slots=True)
class Wan:
    """Distant sites: the shape of each site, and the link between any two sites."""

    shape_names: tuple[str, ...]
    shapes: tuple[Any, ...] = field(compare=False)
    link: LinkSpec


@dataclass(frozen=True, slots=True)
class ExplicitGraph:
    """A graph of listed vertices (name, kind) and links (source, target, spec), with both ends as vertex numbers."""

    vertices: tuple[tuple[str, str], ...]
    links: tuple[tuple[int, int, LinkSpec], ...]


@dataclass(frozen=True, slots=True)
class Options:
    """The options of all shapes; a shape reads the options that its `OPTIONS` names."""

    routing: Routing = Routing()
    dims: tuple[int, ...] = ()
    """Sides of a torus of nodes; empty for sides as equal as can be, in two dimensions."""
    node_dims: tuple[int, ...] = ()
    """Sides of a torus of the GPUs of a node."""
    radix: int | None = None
    """Ports of a switch of a fat tree; None for the least power of two that suffices."""
    spines: int | None = None
    """Number of spine switches under hashed routing; None for one per uplink of a leaf."""
    dragonfly: Dragonfly = Dragonfly()
    box: Box = Box()
    wan: Wan | None = None
    explicit_graph: ExplicitGraph | None = None
