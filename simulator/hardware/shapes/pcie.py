"""PCIe server: GPUs connect to PCIe switches or directly to CPU sockets, optionally with NVLink bridges between pairs.

Traffic between GPUs of different switches shares the single link from a switch up to its socket; traffic to the other socket
shares the link between the sockets. A NIC is attached to the PCIe switch or socket of the first GPU that sends through it.
"""

from __future__ import annotations

import numpy as np

from ..cluster import Cluster, hops
from ..wiring import Array, Inside, Links, Part, both_ways
from ._direct import mesh

OPTIONS = ()
OPTIONS_INSIDE = ("box",)


def inside(cluster: Cluster) -> Inside:
    """The links of a box. `hosts` are its PCIe switches, or its sockets where there are no switches."""
    box, gpus, gpu = cluster.options.box, cluster.gpus_per_node, np.arange(cluster.gpus_per_node)
    switches = -(-gpus // box.gpus_per_switch) if box.gpus_per_switch else 0
    sockets = min(box.sockets, switches or gpus)
    hosts, across = switches or sockets, mesh(sockets)
    host = gpu // box.gpus_per_switch if box.gpus_per_switch else gpu * sockets // gpus
    socket = np.arange(hosts) * sockets // hosts
    pair = np.arange(2 * (gpus // 2) if box.bridge_bytes_per_s else 0)
    nic_of = cluster.nic_of(gpu) if cluster.nodes > 1 else gpu[:0]
    nic = np.unique(nic_of)
    nic_host = host[np.searchsorted(nic_of, nic)]

    lane, link, latency_s = cluster.nvlink.bytes_per_s, cluster.nvlink, cluster.pcie.latency_s
    at_host, at_cpu, at_nic = gpus, gpus + switches, gpus + switches + sockets
    between_cpus = at_cpu + across.source, at_cpu + across.target
    switch = np.arange(switches)
    runs = (
        *both_ways(gpu, at_host + host, lane, latency_s, "pcie"),
        *both_ways(at_host + switch, at_cpu + socket[:switches], lane, latency_s, "pcie switch"),
        Links.between(*between_cpus, box.socket_bytes_per_s or lane, latency_s, "socket"),
        Links.between(pair, pair ^ 1, box.bridge_bytes_per_s or lane, link.latency_s, "nvlink bridge"),
        *both_ways(at_host + nic_host, at_nic + nic, cluster.pcie.bytes_per_s, latency_s, "nic pcie"),
    )
    first = np.cumsum([0, *(len(run.source) for run in runs[:-1])]).tolist()
    up, down, switch_up, switch_down, first_across, bridge, nic_up, nic_down = first

    def climb(a: Array, b: Array, taken: Array) -> list[tuple[Array, Array]]:
        """The hops from one host to another: up to the socket, across, and down."""
        other, far = taken & (a != b), across.between(socket[a], socket[b])[:, 0]
        hop = other & bool(switches)
        return [(hop, switch_up + a), (other & (far >= 0), first_across + far), (hop, switch_down + b)]

    def between(a: Array, b: Array) -> Array:
        bridged = (a < len(pair)) & (a ^ 1 == b)
        apart = (a != b) & ~bridged
        return hops((bridged, bridge + a), (apart, up + a), *climb(host[a], host[b], apart), (apart, down + b))

    cpus = Part("cpu", sockets, lambda i: f"cpu{i}")
    parts = (Part("pcie", switches, lambda i: f"pcie{i}"), cpus) if switches else (cpus,)
    always, below = np.ones(gpus, dtype=bool), np.full(gpus, bool(switches))
    to_cpus = (
        hops((always, up + gpu), (below, switch_up + host)),
        hops((below, switch_down + host), (always, down + gpu)),
        at_cpu + socket[host],
    )
    if not len(nic):
        return Inside(parts, runs, between, to_cpus=to_cpus)
    beside = nic_host[nic_of]
    leave = hops((always, up + gpu), *climb(host, beside, always), (always, nic_up + nic_of))
    arrive = hops((always, nic_down + nic_of), *climb(beside, host, always), (always, down + gpu))
    return Inside(parts, runs, between, (leave, arrive), to_cpus)
