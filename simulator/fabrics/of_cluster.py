"""The measured links of a cluster: which fabrics describe it, at the rates of its own links.

A cluster says how fast its links are, not what they are called. Inside a node the fabric of the GPU's generation tells how a
library fares on such links, or the PCIe fabric with the nearest rate, and only an NVSwitch reduces in the network. Between
nodes it is the InfiniBand of the nearest generation, unless a fabric is named. A GPU on PCIe launches at its own clock. A named
fabric counts for what it describes: the network, the links inside, or both. A fabric in a file of the user's own brings its
rates along, for they belong to what was measured; of one that ships, the constants are taken and the cluster's rates are kept.
Several NICs of one GPU are pooled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any

from ..config import catalog, fabric_files
from ..config.fabric_files import Fabric, Loader
from ..costs.collectives import nccl_choice
from ..costs.collectives.curves import Curve
from ..costs.collectives.link_constants import Across, Inside
from ..costs.collectives.nccl_choice import Choice
from ..hardware.cluster import Cluster
from ..units import NS_PER_S

IDEAL = "ideal"
"""The fabric of a cluster whose links are taken at their face value."""
PCIE = ("pcie3", "pcie4", "pcie5")
NVLINK = {
    "volta": "nvlink2-mesh",
    "ampere": "nvlink3-nvswitch",
    "hopper": "nvlink4-nvswitch",
    "blackwell": "nvlink5-nvswitch",
}
"""The fabric inside nodes of each generation of GPUs."""
XGMI, AMD = "xgmi-mi300", "gfx"
"""Infinity Fabric, and how the architectures of GPUs that have it begin."""
SWITCH, JOINED = "nvswitch", "fully-connected"
"""Shapes inside a node: any GPU reaches any other at full rate; each is wired to each."""
PCIE_CLOCK_GHZ = 1.75
"""Clock of the GPU that the launch time of a PCIe fabric is meant for; others launch in as many cycles."""
NETWORKS = ("edr-ib", "hdr-ib", "ndr-ib", "xdr-ib")
BRIDGED_GPUS = 2
"""GPUs that an NVLink bridge joins."""
ONE_WAY = 0.8
"""Share of its nominal rate that PCIe carries when data goes one way only: headers, acknowledgements and credits take the rest
(Neugebauer et al., "Understanding PCIe performance for end host networking", SIGCOMM 2018)."""
shipped: Loader = cache(fabric_files.load)
"""Reads a fabric that ships, once."""
outlined: Loader = cache(fabric_files.outline)
"""Reads one without its curves, once."""


@dataclass(frozen=True)
class Links:
    """Links, choices and curves by which collectives on a cluster are timed."""

    inside: Inside
    across: Across | None
    """None for a single node."""
    choices: tuple[Choice, ...]
    """Algorithms that the fabrics' files name, those of the network between nodes first."""
    read_curves: Callable[[], tuple[Curve, ...]]

    @cached_property
    def curves(self) -> tuple[Curve, ...]:
        """The measured curves of both; read on first use, as that takes a while."""
        return self.read_curves()


def links_of(cluster: Cluster, load: Loader | None = None) -> Links | None:
    """The links of a cluster; None where they are taken at their face value, as those of a graph drawn by hand.

    With `load`, fabrics are found by it, and not among those that ship.
    """
    if cluster.fabric == IDEAL or not cluster.nvlink.bytes_per_s:
        return None
    within, between = _fabrics_of(cluster, load or outlined)
    if within.inside is None:
        raise LookupError(within.name)
    inside = replace(within.inside, generation=nccl_choice.generation(cluster.gpu.architecture, within.inside.bytes_per_s))
    choices = between.choices + within.choices if between else within.choices
    return Links(inside, between.across if between else None, choices, partial(_curves_of, cluster, load or shipped))


def _curves_of(cluster: Cluster, load: Loader) -> tuple[Curve, ...]:
    within, between = _fabrics_of(cluster, load)
    return within.curves + between.curves if between else within.curves


def _fabrics_of(cluster: Cluster, load: Loader) -> tuple[Fabric, Fabric | None]:
    """The fabric inside the nodes of a cluster and that between them, if there are several, at the rates of the cluster. What
    stands in a file of the user's own keeps its rates; if it describes both, its curves and choices are listed once.
    """
    own = catalog.is_path(cluster.fabric)
    named = (fabric_files.load if own else load)(cluster.fabric) if cluster.fabric else None
    if named and named.inside:
        within = named if own else _changed(named, bytes_per_s=cluster.nvlink.bytes_per_s)
    else:
        within = _within(cluster, load)
    if cluster.nodes == 1:
        return within, None
    if named and named.across and own:
        return within, replace(named, curves=(), choices=()) if named.inside else named
    between = named if named and named.across else load(_nearest(NETWORKS, cluster.rail_bytes_per_s, load))
    if between.across is None:
        raise LookupError(between.name)
    sharp = between.across.sharp or cluster.sharp
    across = replace(between.across, nic_bytes_per_s=cluster.rail_bytes_per_s, nics=cluster.rails, sharp=sharp)
    return within, replace(between, across=across)


def _within(cluster: Cluster, load: Loader) -> Fabric:
    """The fabric that ships and is most like the links inside a node, at their rate."""
    rate, architecture = cluster.nvlink.bytes_per_s, cluster.gpu.architecture
    if cluster.inside_name.startswith("pcie"):
        return _without_reductions(_pcie(cluster, load))
    found = load(XGMI if architecture.startswith(AMD) else NVLINK[nccl_choice.generation(architecture, rate)])
    found = _changed(found, bytes_per_s=rate)
    if cluster.inside_name == SWITCH:
        return _changed(found, mesh=0, pair_bytes_per_s=0.0)
    if cluster.inside_name == JOINED:
        found = _changed(found, mesh=cluster.gpus_per_node, pair_bytes_per_s=0.0)
    return _without_reductions(found)


def _pcie(cluster: Cluster, load: Loader) -> Fabric:
    """PCIe as GPUs of the cluster's clock launch on it; where NVLink bridges join pairs, that between the pairs: every second
    edge of a ring is then a bridge, and a PCIe link carries one way only.
    """
    rate, bridge_bytes_per_s = cluster.nvlink.bytes_per_s, cluster.options.box.bridge_bytes_per_s
    found = load(_nearest(PCIE, rate, load))
    if found.inside and cluster.gpu.clock_hz:
        found = _changed(found, launch_s=found.inside.launch_s * PCIE_CLOCK_GHZ / (cluster.gpu.clock_hz / NS_PER_S))
    bridge = load(NVLINK["hopper" if found.name == PCIE[-1] else "ampere"]).inside
    if bridge is None or not bridge_bytes_per_s:
        return _changed(found, bytes_per_s=rate)
    like_nvlink = {name: getattr(bridge, name) for name in ("efficiency", "pair_efficiency", "fill_s")}
    beyond = {"beyond_bytes_per_s": rate, "beyond_efficiency": ONE_WAY}
    return _changed(found, bytes_per_s=bridge_bytes_per_s, island=BRIDGED_GPUS, **like_nvlink, **beyond)


def _changed(fabric: Fabric, **changes: Any) -> Fabric:
    """A fabric with other constants inside its nodes."""
    return replace(fabric, inside=replace(fabric.inside, **changes)) if fabric.inside else fabric


def _without_reductions(fabric: Fabric) -> Fabric:
    """The same links from GPU to GPU: no switch reduces on the way, so the library does what is left to it."""
    curves = tuple(curve for curve in fabric.curves if (curve.kind, curve.algorithm) != ("all_reduce", "auto"))
    return replace(_changed(fabric, nvls_efficiency=0.0), curves=curves)


def _nearest(names: Sequence[str], bytes_per_s: float, load: Loader) -> str:
    def distance(name: str) -> float:
        fabric = load(name)
        rate = fabric.inside.bytes_per_s if fabric.inside else fabric.across.nic_bytes_per_s if fabric.across else 1.0
        return abs(math.log(rate / bytes_per_s))

    return min(names, key=distance)
