"""Rail-optimized Clos (NVIDIA SuperPOD): NIC i of every node of a pod connects to leaf switch i, which forms rail i.

GPUs of the same index communicate over one leaf. Others first send their data over NVLink to the GPU of their node that is on
the target's rail (NCCL calls this PXN), so that no flow ever changes rails in the fabric. The spine connects the leaves of one
rail in several pods. Reference: NVIDIA DGX SuperPOD reference architecture, "rail-optimized, full fat-tree".

Sprayed traffic is spread evenly over all spines, so they are one vertex, and only the sum of the uplinks of a leaf limits it.
Hashed traffic takes one spine per flow: then each spine is a vertex, and two flows may share an uplink while others are free.
All leaves have equally many uplinks, also those of a pod that is not full.
"""

from __future__ import annotations

import numpy as np

from ..cluster import Cluster
from ..wiring import Array, Part, Switching, both_ways

OPTIONS = ("nodes_per_pod", "oversubscription", "routing", "spines")


def fabric(cluster: Cluster) -> Switching:
    """A leaf for every rail of every pod."""
    return clos(cluster, cluster.rails)


def clos(cluster: Cluster, rails: int) -> Switching:
    """Two tiers: as many leaf switches in a pod as there are rails, and spines above them where there are several pods."""
    nic, hashed = np.arange(cluster.nodes * cluster.rails), cluster.options.routing.hashed
    pod, rail = nic // (cluster.rails * cluster.nodes_per_pod), nic % rails
    leaf_of, leaves = pod * rails + rail, (int(pod[-1]) + 1) * rails
    parts = [Part("leaf", leaves, lambda i: f"leaf{i}")]
    if leaves == rails:
        return Switching(tuple(parts), leaf_of, rail=rail, pod=cluster.nodes_per_pod)
    plugged = int(np.bincount(leaf_of).max())
    uplinks = cluster.options.spines or max(1, round(plugged / cluster.oversubscription))
    spines = uplinks if hashed else 1
    parts.append(Part("spine", spines, lambda i: f"spine{i}" if hashed else "spine"))
    leaf, spine = np.divmod(np.arange(leaves * spines), spines)
    rate = plugged * cluster.rail_bytes_per_s / cluster.oversubscription / spines
    runs = both_ways(leaf, leaves + spine, rate, cluster.switch_latency_s, "leaf-spine")

    def between(a: Array, b: Array, flow: Array) -> Array:
        spine = flow % spines
        up, down = a * spines + spine, leaves * spines + b * spines + spine
        return np.where((a != b)[:, None], np.stack([up, down], axis=1), -1)

    if spines > 1:
        return Switching(tuple(parts), leaf_of, runs, between, rail=rail)
    covers = ((leaf_of, nic),), ((leaves + leaf_of, nic),)
    return Switching(tuple(parts), leaf_of, runs, between, *covers, rail, pod=cluster.nodes_per_pod)
