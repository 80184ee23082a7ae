"""Leaf switches that a ring over nodes leaves: where flows are hashed, those that leave a leaf may meet on its uplinks."""

from __future__ import annotations

import numpy as np

from .cluster import Cluster
from .wiring import Array


def leaves_left(cluster: Cluster, nodes: Array) -> int:
    """The number of leaf switches that messages leave for others, if every node sends to the next: first GPU to first GPU.

    0 where all of them sit at one switch, so that no uplink is crossed.
    """
    first = np.unique(nodes) * cluster.gpus_per_node
    if len(first) < 2:
        return 0
    route = cluster.route(first, np.roll(first, -1))
    between = (route >= 0) & _between_switches(cluster)[route]
    crosses = between.any(axis=1)
    uplink = route[crosses, between[crosses].argmax(axis=1)]
    return len(np.unique(cluster.wiring.source[uplink]))


def _between_switches(cluster: Cluster) -> Array:
    """Per link, whether it joins two switches of the network."""
    wiring, inside = cluster.wiring, {"gpu", "nic", *(part.kind for part in cluster.node.parts)}
    is_switch = np.zeros(sum(run.count for run in wiring.vertices), dtype=bool)
    for run in wiring.vertices:
        is_switch[run.first : run.first + run.count] = run.kind not in inside
    joins: Array = is_switch[wiring.source] & is_switch[wiring.target]
    return joins
