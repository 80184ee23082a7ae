"""Rail-optimized Clos: the i-th NICs of all nodes of a pod meet in one leaf switch, the i-th rail.

GPUs of the same index talk over one leaf. Others first hand their data over NVLink to the GPU of their node that sits on
the target's rail (NCCL calls this PXN), so that no flow ever changes rails in the fabric. Leaves of one rail in several
pods are joined by the spine. Reference: NVIDIA DGX SuperPOD reference architecture, "rail-optimized, full fat-tree".
"""

from __future__ import annotations

import numpy as np

from ..cluster import Cluster
from ..wiring import Array, Wiring
from ._node import Leaves, rail_of, route_clos, wire_clos


def _leaves(cluster: Cluster) -> Leaves:
    """A leaf for every rail of every pod."""
    rails, in_pod = cluster.rails, cluster.rails * cluster.nodes_per_pod
    return Leaves(cluster.pods * rails, lambda nic: nic // in_pod * rails + nic % rails)


def wire(cluster: Cluster) -> Wiring:
    return wire_clos(cluster, _leaves(cluster))


def route(cluster: Cluster, source: Array, target: Array) -> Array:
    per_node = cluster.gpus_per_node
    same_rail = rail_of(cluster, source) == rail_of(cluster, target)
    relay = np.where(same_rail, source, source // per_node * per_node + target % per_node)
    return route_clos(cluster, source, target, _leaves(cluster), relay)
