"""Two tiers: leaf switches that NICs are plugged into, and spines above them where there are several pods.

Sprayed traffic goes evenly over all spines, so they are one vertex and only a leaf's uplinks together can bind. Hashed
traffic takes one spine per flow: then each spine is a vertex, and two flows may meet on an uplink while others are free.
All leaves are wired alike, those of a pod that is not full as well: what is plugged in below takes no uplink away.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ..wiring import Array, Links, Part
from ._assembly import Switching

if TYPE_CHECKING:
    from ..cluster import Cluster


def clos(
    cluster: Cluster, leaves: int, leaf_of: Callable[[Array], Array], relays: Callable[[Array, Array], Array] | None = None
) -> Switching:
    """Leaves and spines; `leaf_of` says which leaf each NIC is plugged into."""
    nic = np.arange(cluster.nodes * cluster.rails)
    leaf_of_nic = leaf_of(nic)
    leaf_part = Part("leaf", leaves, lambda i: f"leaf{i}")
    if cluster.pods == 1:
        return Switching((leaf_part,), leaf_of_nic, (), _nothing, relays=relays)
    full = int(np.bincount(leaf_of_nic, minlength=leaves).max())
    above = full * cluster.rail_bytes_per_s / cluster.oversubscription
    spines = _spines(cluster, full)
    leaf, spine = np.repeat(np.arange(leaves), spines), leaves + np.tile(np.arange(spines), leaves)
    rate, latency_s = above / spines, cluster.switch_latency_s
    runs = (
        Links.between(leaf, spine, rate, latency_s, "leaf-spine up"),
        Links.between(spine, leaf, rate, latency_s, "leaf-spine down"),
    )

    def between(a: Array, b: Array, flow: Array) -> Array:
        which = flow % spines
        up, down = a * spines + which, leaves * spines + b * spines + which
        return np.where((a != b)[:, None], np.stack([up, down], axis=1), -1)

    hashed = cluster.options.routing.hashed
    parts = (leaf_part, Part("spine", spines, lambda i: f"spine{i}" if hashed else "spine"))
    if spines > 1:
        return Switching(parts, leaf_of_nic, runs, between, relays=relays)
    return Switching(parts, leaf_of_nic, runs, between, ((leaf_of_nic, nic),), ((leaves + leaf_of_nic, nic),), relays)


def _spines(cluster: Cluster, plugged: int) -> int:
    """One that stands for all where traffic is sprayed; else the number given, or one for every uplink of a full leaf."""
    if not cluster.options.routing.hashed:
        return 1
    return cluster.options.spines or max(1, round(plugged / cluster.oversubscription))


def _nothing(a: Array, b: Array, flow: Array) -> Array:
    """All NICs of a rail, or of the pod, are on one leaf."""
    return np.zeros((len(a), 0), dtype=np.int64)
