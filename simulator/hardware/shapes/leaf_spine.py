"""Leaf-spine: all NICs of the nodes of a pod meet in one leaf switch; leaves are joined by a spine, oversubscribed or not.

With `oversubscription: 4` a leaf has a quarter of the bandwidth above that it has below: cheap, and felt by every
collective that leaves the pod.
"""

from __future__ import annotations

import numpy as np

from ..cluster import Cluster
from ..wiring import Array, Wiring
from ._node import route_clos, wire_clos


def _leaf_of_nic(cluster: Cluster) -> Array:
    leaf: Array = np.arange(cluster.nodes * cluster.rails) // (cluster.rails * cluster.nodes_per_pod)
    return leaf


def wire(cluster: Cluster) -> Wiring:
    return wire_clos(cluster, _leaf_of_nic(cluster), cluster.pods)


def route(cluster: Cluster, source: Array, target: Array) -> Array:
    return route_clos(cluster, source, target, _leaf_of_nic(cluster), cluster.pods, relay=source)
