"""The parts of a GPU that the collectives of a communicator take from the kernels beside them."""

from __future__ import annotations

from dataclasses import dataclass

from ..costs.collectives import nccl_choice
from ..costs.collectives.occupancy import COPY_ENGINES, Place, memory_traffic_bytes, sms
from ..engine.task import FULL_SPEED, Array, distinct
from ..hardware.cluster import Cluster
from ..program.operations import OFFLOAD, UPDATE_ON_HOST, Communicator
from ..units import GB, NS_PER_S
from ..workload.framework import CommunicationSms

LINK_BYTES_PER_S = {"volta": 25 * GB, "ampere": 25 * GB, "hopper": 25 * GB, "blackwell": 50 * GB}
"""Nominal rate of one NVLink per direction, for clusters that do not give the number of links."""
TP = "tp"


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The parts of a GPU that a communicator's collectives take, on a cluster with a framework; nothing without `given`."""

    given: CommunicationSms | None
    cluster: Cluster
    communicator: Communicator
    sharers: int
    """Number of communicators of the same library whose collectives run side by side in the same SMs."""
    times: float = 1.0
    """What arithmetic loses, over the share of SMs that a collective holds."""

    def parts(self, kind: str, algorithm: str, payload_bytes: int, gpus: Array, lasts_ns: int) -> tuple[int, int]:
        """The parts of the processors and of the bandwidth of memory that a collective takes from its ranks, in 2^-16.

        `lasts_ns` is its uncontended time.
        """
        if self.given is None or kind == UPDATE_ON_HOST or not lasts_ns:
            return 0, 0
        copies = self.communicator.axis == OFFLOAD or (self.communicator.axis == TP and kind == "exchange")
        library = COPY_ENGINES if copies else self.communicator.library
        call = kind, algorithm, payload_bytes, self._place(gpus), library
        gpu = self.cluster.gpu
        rate = memory_traffic_bytes(*call) / lasts_ns * NS_PER_S
        taken = self.times * sms(*call, self.given) / self.sharers / gpu.sms, rate / gpu.memory_bytes_per_s
        cores, memory = (int(min(1.0, part) * FULL_SPEED) for part in taken)
        return cores, memory

    def _place(self, gpus: Array) -> Place:
        cluster = self.cluster
        nodes = distinct(gpus // cluster.gpus_per_node)
        generation = nccl_choice.generation(cluster.gpu.architecture, cluster.nvlink.bytes_per_s)
        links = cluster.nvlinks or round(cluster.nvlink.bytes_per_s / LINK_BYTES_PER_S[generation])
        nvlinks = 0 if cluster.inside_name.startswith("pcie") else links
        across = len(nodes) > 1 and cluster.rails > 0
        paths = -(-len(distinct(cluster.nic_of(gpus))) // len(nodes)) if across else 1
        rate = cluster.rail_bytes_per_s if across else cluster.nvlink.bytes_per_s
        return Place(len(gpus), len(nodes), generation, nvlinks, paths, rate)
