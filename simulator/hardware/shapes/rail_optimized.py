"""Rail-optimized Clos: the i-th NICs of all nodes of a pod meet in one leaf switch, the i-th rail.

GPUs of the same index talk over one leaf. Others first hand their data over NVLink to the GPU of their node that sits on
the target's rail (NCCL calls this PXN), so that no flow ever changes rails in the fabric. Leaves of one rail in several
pods are joined by the spine. Reference: NVIDIA DGX SuperPOD reference architecture, "rail-optimized, full fat-tree".
"""

from __future__ import annotations

import numpy as np

from ..cluster import Cluster
from ..wiring import Array, Wiring
from ._node import rail_of, route_clos, wire_clos


def _leaf_of_nic(cluster: Cluster) -> Array:
    nic = np.arange(cluster.nodes * cluster.rails)
    pod, rail = nic // cluster.rails // cluster.nodes_per_pod, nic % cluster.rails
    leaf: Array = pod * cluster.rails + rail
    return leaf


def wire(cluster: Cluster) -> Wiring:
    return wire_clos(cluster, _leaf_of_nic(cluster), cluster.pods * cluster.rails)


def route(cluster: Cluster, source: Array, target: Array) -> Array:
    per_node = cluster.gpus_per_node
    same_rail = rail_of(cluster, source) == rail_of(cluster, target)
    relay = np.where(same_rail, source, source // per_node * per_node + target % per_node)
    return route_clos(cluster, source, target, _leaf_of_nic(cluster), cluster.pods * cluster.rails, relay)
