"""Leaf-spine: all NICs of the nodes of a pod meet in one leaf switch; leaves are joined by a spine, oversubscribed or not.

With `oversubscription: 4` a leaf has a quarter of the bandwidth above that it has below: cheap, and felt by every
collective that leaves the pod.
"""

from __future__ import annotations

from ..cluster import Cluster
from ..wiring import Array, Wiring
from ._node import Leaves, route_clos, wire_clos


def _leaves(cluster: Cluster) -> Leaves:
    """A leaf for every pod."""
    return Leaves(cluster.pods, lambda nic: nic // (cluster.rails * cluster.nodes_per_pod))


def wire(cluster: Cluster) -> Wiring:
    return wire_clos(cluster, _leaves(cluster))


def route(cluster: Cluster, source: Array, target: Array) -> Array:
    return route_clos(cluster, source, target, _leaves(cluster), relay=source)
