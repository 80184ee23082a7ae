"""One node: all GPUs behind one NVSwitch, and nothing beyond it."""

from __future__ import annotations

from ...errors import UserError
from ..cluster import Cluster
from ..wiring import Array, Wiring
from ._node import Leaves, route_clos, wire_node


def wire(cluster: Cluster) -> Wiring:
    if cluster.nodes > 1:
        raise UserError(
            f"shape nvswitch is a single node, and {cluster.name} has {cluster.nodes}",
            hint="join the nodes by a fabric: shape: rail-optimized with inter_node: 8x400 Gbit/s",
        )
    return Wiring.of(*wire_node(cluster), [])


def route(cluster: Cluster, source: Array, target: Array) -> Array:
    return route_clos(cluster, source, target, Leaves(0, lambda nic: nic), relay=source)
