"""The fabrics that a described cluster is made of: by the rates of its links, which are kept, or by name.

A cluster says how fast its links are, not what they are called. Inside a node the fabric with the nearest rate tells how a
library fares on such links, and only an NVSwitch adds up; between nodes it is the InfiniBand of the nearest generation, unless
a fabric is named. A GPU on PCIe launches at its own clock. One that is named counts for what it describes: the network, the
links inside, or both. One in a file of one's own brings its rates along, for they belong to what was measured; of one that
ships the cluster's rates are kept. NICs that a GPU has several of are pooled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from ...costs import tuner
from ...costs.curves import Curve
from ...costs.links import Across, Inside
from ...hardware.cluster import Cluster
from ...units import NS_PER_S
from .. import catalog
from . import fabrics
from .fabrics import Fabric

PCIE = ("pcie3", "pcie4", "pcie5")
NVLINK = ("nvlink2-mesh", "nvlink3-nvswitch", "nvlink4-nvswitch", "nvlink5-nvswitch")
XGMI = ("xgmi-mi300",)
AMD = "gfx"
"""How the architectures of GPUs with Infinity Fabric begin."""
SWITCH, JOINED = "nvswitch", "fully-connected"
"""Shapes inside a node: any GPU reaches any other at full rate; each is wired to each."""
PCIE_CLOCK_GHZ = 1.75
"""Of the GPU that the launch time of a PCIe fabric is meant for; others launch in as many cycles."""
NETWORKS = ("edr-ib", "hdr-ib", "ndr-ib", "xdr-ib")


@cache
def shipped(name: str) -> Fabric:
    """A fabric that ships, read once."""
    return fabrics.load(name)


@cache
def outlined(name: str) -> Fabric:
    """A fabric that ships, read once, without its curves."""
    return fabrics.outline(name)


def links_of(
    cluster: Cluster, name: str | None = None, *, curves: bool = True
) -> tuple[Inside, Across | None, tuple[Curve, ...]]:
    """What `alone` takes for a cluster: the links of its nodes, the network between them, and the curves that speak of both.

    `name` is that of a fabric, or the path of its file. Without `curves` these are not read, which takes a while.
    """
    within, between, own = fabrics_of(cluster, name, curves=curves)
    inside = _inside(cluster, within, keep=within is own)
    inside = replace(inside, generation=tuner.generation(cluster.gpu.architecture, inside.bytes_per_s))
    if between is None:
        return inside, None, within.curves
    across = _across(cluster, between, keep=between is own)
    return inside, across, within.curves if within is between else within.curves + between.curves


def fabrics_of(cluster: Cluster, name: str | None = None, *, curves: bool = True) -> tuple[Fabric, Fabric | None, Fabric | None]:
    """The fabric inside the nodes of a cluster; that between them, if there are several; and the one of these that stands in
    a file of its own, which may be both.
    """
    get, own = shipped if curves else outlined, catalog.is_path(name or "")
    named = None if not name else fabrics.load(name) if own else get(name)
    within = named if named and named.inside else _within(cluster, curves=curves)
    between = None
    if cluster.nodes > 1:
        between = named if named and named.across else get(_nearest(NETWORKS, cluster.rail_bytes_per_s))
    return within, between, named if own else None


def _within(cluster: Cluster, *, curves: bool) -> Fabric:
    """The fabric that ships and is most like the links inside a node."""
    own = XGMI if cluster.gpu.architecture.startswith(AMD) else NVLINK
    names = PCIE if cluster.inside_name.startswith("pcie") else own
    found = (shipped if curves else outlined)(_nearest(names, cluster.nvlink.bytes_per_s))
    if cluster.inside_name == SWITCH:
        return _wired(found, 0)
    if cluster.inside_name == JOINED:
        found = _wired(found, cluster.gpus_per_node)
    if names is PCIE and cluster.gpu.clock_hz:
        found = clocked(found, cluster.gpu.clock_hz / NS_PER_S)
    return without_switch(found)


def _wired(fabric: Fabric, mesh: int) -> Fabric:
    """The same links as wires from each of so many GPUs to each; 0: through a switch."""
    return replace(fabric, inside=replace(fabric.inside, mesh=mesh, pair_bytes_per_s=0.0)) if fabric.inside else fabric


def clocked(fabric: Fabric, ghz: float) -> Fabric:
    """PCIe under a GPU of such a clock, which sets how long it takes to launch."""
    inside = fabric.inside
    return replace(fabric, inside=replace(inside, launch_s=inside.launch_s * PCIE_CLOCK_GHZ / ghz)) if inside else fabric


def without_switch(fabric: Fabric) -> Fabric:
    """The same links from GPU to GPU: nothing adds up on the way, so the library does what is left to it."""
    curves = tuple(curve for curve in fabric.curves if (curve.kind, curve.algorithm) != ("all_reduce", "auto"))
    return replace(fabric, inside=replace(fabric.inside, nvls_efficiency=0.0) if fabric.inside else None, curves=curves)


def _inside(cluster: Cluster, fabric: Fabric, *, keep: bool) -> Inside:
    if fabric.inside is None:
        raise LookupError(fabric.name)
    return fabric.inside if keep else replace(fabric.inside, bytes_per_s=cluster.nvlink.bytes_per_s)


def _across(cluster: Cluster, fabric: Fabric, *, keep: bool) -> Across:
    if fabric.across is None:
        raise LookupError(fabric.name)
    across = fabric.across
    return across if keep else replace(across, nic_bytes_per_s=cluster.rail_bytes_per_s, nics=cluster.rails)


def _nearest(names: Sequence[str], bytes_per_s: float) -> str:
    def misses(name: str) -> float:
        fabric = outlined(name)
        rate = fabric.inside.bytes_per_s if fabric.inside else fabric.across.nic_bytes_per_s if fabric.across else 1.0
        return abs(math.log(rate / bytes_per_s))

    return min(names, key=misses)
