"""The inside of a node, which all nodes have alike: its links by local numbers, repeated for every node by arithmetic.

Local vertices are the GPUs of the node, then its parts (switches, sockets), then its NICs. Local links count through the
runs. NICs are there only where several nodes are joined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..cluster import Cluster
from ..wiring import Array, Inside, Links, Part


def rail_of(cluster: Cluster, gpu: Array) -> Array:
    """The NIC vertex of its node that each GPU sends through: neighbours share one where NICs are fewer than GPUs."""
    rail: Array = cluster.nic_of(gpu) % cluster.rails
    return rail


def with_nics(cluster: Cluster, parts: Sequence[Part], runs: Sequence[Links], between: Callable[[Array, Array], Array]) -> Inside:
    """An inside whose GPUs each have a PCIe link to their NIC, shared or not."""
    at, gpu = sum(map(len, runs)), np.arange(cluster.gpus_per_node)
    if cluster.nodes == 1:
        return Inside(tuple(parts), tuple(runs), between, nowhere, nowhere)
    nic = len(gpu) + sum(part.count for part in parts) + rail_of(cluster, gpu)
    rate, latency_s = cluster.pcie.bytes_per_s, cluster.pcie.latency_s
    up = Links.between(gpu, nic, rate, latency_s, "pcie up")
    down = Links.between(nic, gpu, rate, latency_s, "pcie down")
    return Inside(tuple(parts), (*runs, up, down), between, lambda a: (at + a)[:, None], lambda a: (at + len(gpu) + a)[:, None])


def nowhere(gpu: Array) -> Array:
    """No route: a single node has no NICs."""
    return np.full((len(gpu), 0), -1, dtype=np.int64)


def hops(*taken: tuple[Array, Array]) -> Array:
    """Links where they are taken and -1 elsewhere, side by side: pairs x hops."""
    return np.stack([np.where(here, link, -1) for here, link in taken], axis=1)
