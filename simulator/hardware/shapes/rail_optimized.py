"""Rail-optimized Clos: the i-th NICs of all nodes of a pod meet in one leaf switch, the i-th rail.

GPUs of the same index talk over one leaf. Others first hand their data over NVLink to the GPU of their node that sits on
the target's rail (NCCL calls this PXN), so that no flow ever changes rails in the fabric. Leaves of one rail in several
pods are joined by the spine. Reference: NVIDIA DGX SuperPOD reference architecture, "rail-optimized, full fat-tree".
"""

from __future__ import annotations

from ..cluster import Cluster
from ..wiring import Array
from ._assembly import Switching, joined_by
from ._clos import clos

OPTIONS = ("nodes_per_pod", "oversubscription", "routing", "spines")


def fabric(cluster: Cluster) -> Switching:
    """A leaf for every rail of every pod."""
    rails, in_pod = cluster.rails, cluster.rails * cluster.nodes_per_pod

    def other_rail(out: Array, into: Array) -> Array:
        other: Array = out % rails != into % rails
        return other

    return clos(cluster, cluster.pods * rails, lambda nic: nic // in_pod * rails + nic % rails, other_rail)


wire, route, relay = joined_by(fabric)
