"""A PCIe box: GPUs below PCIe switches or right below the sockets, the sockets joined, NVLink bridges over pairs or none.

What GPUs of different switches say to each other shares the one link from a switch up to its socket; what goes to the other
socket shares the link between the two. A NIC sits beside the first of the GPUs that send through it.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ..cluster import Cluster
from ..wiring import Array, Inside, Links, Part
from ._assembly import hops, joined_by, rail_of
from ._direct import mesh

OPTIONS = ()
OPTIONS_INSIDE = ("box",)


class _Tree:
    """GPUs, hosts (the switches, or the sockets where there are no switches) and sockets, by number."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.box, self.gpus = cluster, cluster.options.box, cluster.gpus_per_node
        per_switch = self.box.gpus_per_switch
        self.switches = -(-self.gpus // per_switch) if per_switch else 0
        self.sockets = min(self.box.sockets, self.switches or self.gpus)
        self.hosts = self.switches or self.sockets
        gpu = np.arange(self.gpus)
        self.host = gpu // per_switch if per_switch else gpu * self.sockets // self.gpus
        self.socket = np.arange(self.hosts) * self.sockets // self.hosts
        self.paired = 2 * (self.gpus // 2) if self.box.bridge_bytes_per_s else 0
        self.nics = cluster.rails if cluster.nodes > 1 else 0
        rail = rail_of(cluster, gpu) if self.nics else gpu
        self.nic_host = self.host[np.searchsorted(rail, np.arange(self.nics))]
        self.rail = rail
        self.across = mesh(self.sockets)

    @cached_property
    def parts(self) -> list[Part]:
        switches = [Part("pcie", self.switches, lambda i: f"pcie{i}")] if self.switches else []
        return [*switches, Part("cpu", self.sockets, lambda i: f"cpu{i}")]

    @cached_property
    def runs(self) -> list[Links]:
        box, link, pcie = self.box, self.cluster.nvlink, self.cluster.pcie
        gpu, switch, pair = np.arange(self.gpus), np.arange(self.switches), np.arange(self.paired)
        at_host, at_cpu = self.gpus, self.gpus + self.switches
        nic, nic_host = at_cpu + self.sockets + np.arange(self.nics), at_host + self.nic_host
        lane, latency_s, between = link.bytes_per_s, pcie.latency_s, Links.between
        socket = self.socket[: self.switches]
        return [
            between(gpu, at_host + self.host, lane, latency_s, "pcie up"),
            between(at_host + self.host, gpu, lane, latency_s, "pcie down"),
            between(at_host + switch, at_cpu + socket, lane, latency_s, "pcie switch up"),
            between(at_cpu + socket, at_host + switch, lane, latency_s, "pcie switch down"),
            between(
                at_cpu + self.across.source, at_cpu + self.across.target, box.socket_bytes_per_s or lane, latency_s, "socket"
            ),
            between(pair, pair ^ 1, box.bridge_bytes_per_s or lane, link.latency_s, "nvlink bridge"),
            between(nic_host, nic, pcie.bytes_per_s, latency_s, "nic pcie up"),
            between(nic, nic_host, pcie.bytes_per_s, latency_s, "nic pcie down"),
        ]

    @cached_property
    def first(self) -> list[int]:
        return [0, *np.cumsum([len(run) for run in self.runs]).tolist()]

    def climb(self, a: Array, b: Array, taken: Array) -> list[tuple[Array, Array]]:
        """From host to host: up to the socket, across, and down."""
        up, down, across = self.first[2], self.first[3], self.first[4]
        other, far = taken & (a != b), self.across.between(self.socket[a], self.socket[b])[:, 0]
        hop = np.full(len(a), bool(self.switches))
        return [(other & hop, up + a), (other & (far >= 0), across + far), (other & hop, down + b)]

    def between(self, a: Array, b: Array) -> Array:
        bridged = (a < self.paired) & (a ^ 1 == b)
        apart = (a != b) & ~bridged
        middle = self.climb(self.host[a], self.host[b], apart)
        return hops((bridged, self.first[5] + a), (apart, self.first[0] + a), *middle, (apart, self.first[1] + b))

    def leave(self, gpu: Array) -> Array:
        nic, always = self.rail[gpu], np.ones(len(gpu), dtype=bool)
        middle = self.climb(self.host[gpu], self.nic_host[nic], always)
        return hops((always, self.first[0] + gpu), *middle, (always, self.first[6] + nic))

    def arrive(self, gpu: Array) -> Array:
        nic, always = self.rail[gpu], np.ones(len(gpu), dtype=bool)
        middle = self.climb(self.nic_host[nic], self.host[gpu], always)
        return hops((always, self.first[7] + nic), *middle, (always, self.first[1] + gpu))


def inside(cluster: Cluster) -> Inside:
    tree = _Tree(cluster)
    return Inside(tuple(tree.parts), tuple(tree.runs), tree.between, tree.leave, tree.arrive)


wire, route, relay = joined_by(None)
