"""The fabrics that ship and that a described cluster is made of: by the rates of its links, which are kept.

A cluster says how fast its links are, not what they are called. Inside a node the fabric with the nearest rate tells how a
library fares on such links, and only an NVSwitch adds up; between nodes it is the InfiniBand of the nearest generation,
unless a network is named. NICs that a GPU has several of are pooled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from ..costs.curves import Curve
from ..costs.links import Across, Inside
from ..hardware.cluster import Cluster
from . import fabrics
from .describe import without_switch
from .fabrics import Fabric

PCIE = ("pcie3", "pcie4", "pcie5")
NVLINK = ("nvlink2-mesh", "nvlink3-nvswitch", "nvlink4-nvswitch", "nvlink5-nvswitch")
SWITCH = "nvswitch"
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
    cluster: Cluster, network: str | None = None, *, curves: bool = True
) -> tuple[Inside, Across | None, tuple[Curve, ...]]:
    """What `alone` takes for a cluster: the links of its nodes, the network between them, and the curves that speak of both.

    Without `curves` these are not read, which takes a while.
    """
    get = shipped if curves else outlined
    within = get(_nearest(PCIE if cluster.inside_name.startswith("pcie") else NVLINK, cluster.nvlink.bytes_per_s))
    within = within if cluster.inside_name == SWITCH else without_switch(within)
    inside = within.inside
    if inside is None:
        raise LookupError(within.name)
    inside = replace(inside, bytes_per_s=cluster.nvlink.bytes_per_s)
    if cluster.nodes < 2:
        return inside, None, within.curves
    between = get(network or _nearest(NETWORKS, cluster.rail_bytes_per_s))
    across = between.across
    if across is None:
        raise LookupError(between.name)
    across = replace(across, nic_bytes_per_s=cluster.rail_bytes_per_s, nics=cluster.rails)
    return inside, across, within.curves + between.curves


def _nearest(names: Sequence[str], bytes_per_s: float) -> str:
    def misses(name: str) -> float:
        fabric = outlined(name)
        rate = fabric.inside.bytes_per_s if fabric.inside else fabric.across.nic_bytes_per_s if fabric.across else 1.0
        return abs(math.log(rate / bytes_per_s))

    return min(names, key=misses)
