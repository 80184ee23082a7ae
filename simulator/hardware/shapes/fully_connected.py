"""Fully connected: a link from every node to every other, or from every GPU of a node to every other.

What a node or GPU can send is divided evenly over the others: one that talks to a single neighbour gets only that part.
Four A100 or GH200 in a node are joined like this.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..cluster import Cluster
from ..wiring import Inside, Switching
from ._direct import mesh, too_meshed

OPTIONS = ()


def inside(cluster: Cluster) -> Inside:
    return mesh(cluster.gpus_per_node).as_inside(cluster)


def fabric(cluster: Cluster) -> Switching:
    return mesh(cluster.nodes).as_fabric(cluster, "direct")


def too_many(points: int, dims: Sequence[int] | None) -> tuple[str, str] | None:
    return too_meshed(points)
