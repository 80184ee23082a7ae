"""One node: all GPUs behind one NVSwitch, and nothing beyond it. As the inside of nodes it is what a DGX or an NVL72 is."""

from __future__ import annotations

import numpy as np

from ..cluster import Cluster
from ..wiring import Inside, Links, Part
from ._assembly import hops, joined_by, with_nics

OPTIONS = ()


def inside(cluster: Cluster) -> Inside:
    """Every GPU has a link up to the NVSwitch and one down. Several switches of one layer are one, for they act as one."""
    n, link = cluster.gpus_per_node, cluster.nvlink
    gpu, switch = np.arange(n), np.full(n, n)
    up = Links.between(gpu, switch, link.bytes_per_s, link.latency_s, "nvlink up")
    down = Links.between(switch, gpu, link.bytes_per_s, link.latency_s, "nvlink down")
    return with_nics(
        cluster, [Part("nvswitch", 1, lambda _: "nvswitch")], [up, down], lambda a, b: hops((a != b, a), (a != b, n + b))
    )


wire, route, relay = joined_by(None)
