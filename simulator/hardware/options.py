"""What only some shapes ask for: how flows choose among spines, the sides of a torus, the inside of a PCIe box, far sites."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

INLINE = "inline"
"""The name of a cluster that stands in a scenario, or was given as a mapping: no command could take it."""


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """One kind of link: bytes/s per direction and seconds of latency."""

    bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class Routing:
    """How a flow chooses among links that lead equally far: `spray` takes all of them evenly, `ecmp` one by its hash."""

    policy: str = "spray"
    seed: int = 0

    @property
    def hashed(self) -> bool:
        return self.policy == "ecmp"


@dataclass(frozen=True, slots=True)
class Box:
    """The inside of a server whose GPUs talk over PCIe."""

    sockets: int = 2
    gpus_per_switch: int | None = None
    """GPUs below one PCIe switch; None if each GPU hangs on its socket directly."""
    socket_bytes_per_s: float | None = None
    """Between two sockets; None for the rate of a GPU's PCIe link."""
    bridge_bytes_per_s: float | None = None
    """NVLink bridge between GPUs 2i and 2i + 1; None if there is none."""


@dataclass(frozen=True, slots=True)
class Dragonfly:
    """Ports of a router, by default those of a Slingshot switch: 64, of which 16 to NICs, 31 in its group, 17 to others."""

    nics_per_router: int = 16
    routers_per_group: int = 32
    global_links: int = 17
    """Of a router, to other groups."""


@dataclass(frozen=True, slots=True)
class Wan:
    """Sites far apart: the shape of each, and the link between any two of them."""

    shape_names: tuple[str, ...]
    shapes: tuple[Any, ...] = field(compare=False)
    link: LinkSpec


@dataclass(frozen=True, slots=True)
class Drawn:
    """A graph given vertex by vertex and link by link: (name, kind), and (source, target, spec) by vertex number."""

    vertices: tuple[tuple[str, str], ...]
    links: tuple[tuple[int, int, LinkSpec], ...]


@dataclass(frozen=True, slots=True)
class Options:
    """All of these; a shape reads those that its `OPTIONS` names."""

    routing: Routing = Routing()
    dims: tuple[int, ...] = ()
    """Sides of a torus of nodes; empty for sides as equal as can be, in two dimensions."""
    node_dims: tuple[int, ...] = ()
    """Sides of a torus of the GPUs of a node."""
    radix: int | None = None
    """Ports of a switch of a fat tree; None for the least power of two that does."""
    spines: int | None = None
    """Spine switches of hashed routing; None for one per uplink of a leaf."""
    dragonfly: Dragonfly = Dragonfly()
    box: Box = Box()
    wan: Wan | None = None
    drawn: Drawn | None = None
