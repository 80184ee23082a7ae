"""Leaf-spine: all NICs of the nodes of a pod meet in one leaf switch; leaves are joined by a spine, oversubscribed or not.

With `oversubscription: 4` a leaf has a quarter of the bandwidth above that it has below: cheap, and felt by every
collective that leaves the pod.
"""

from __future__ import annotations

from ..cluster import Cluster
from ..wiring import Switching
from .rail_optimized import clos

OPTIONS = ("nodes_per_pod", "oversubscription", "routing", "spines")


def fabric(cluster: Cluster) -> Switching:
    """A leaf for every pod: a single rail, for all NICs."""
    return clos(cluster, 1)
