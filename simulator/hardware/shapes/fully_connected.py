"""Fully connected: a link from every node to every other, or from every GPU of a node to every other.

What a node or GPU can send is divided evenly over the others: one that talks to a single neighbour gets only that part.
Four A100 or GH200 in a node are joined like this.
"""

from __future__ import annotations

from ..cluster import Cluster
from ..wiring import Array, Inside, Wiring
from ._assembly import Fabric, assembled
from ._direct import mesh

OPTIONS = ()


def inside(cluster: Cluster) -> Inside:
    return mesh(cluster.gpus_per_node).as_inside(cluster)


def fabric(cluster: Cluster) -> Fabric:
    return mesh(cluster.nodes).as_fabric(cluster, "direct")


def wire(cluster: Cluster) -> Wiring:
    return assembled(cluster, fabric).wiring


def route(cluster: Cluster, source: Array, target: Array) -> Array:
    return assembled(cluster, fabric).route(source, target)
