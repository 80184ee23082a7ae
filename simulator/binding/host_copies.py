"""Copies between GPUs and the memory of their node, and updates by CPUs, as communicators of single ranks.

A copy is a flow over the links between a GPU and the memory of its node; if that memory is pageable, a CPU core copies the bytes
too, at its own rate. An update is the flow of all bytes that the CPU reads and writes, over the link to that memory, which the
GPUs of the node share. Each starts after the latency of its links.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..engine.task import WEIGHT_BITS, Array
from ..errors import InvariantBroken
from ..program.operations import COPY_IN, COPY_OUT, PAGEABLE_IN, PAGEABLE_OUT, UPDATE_ON_HOST
from .collective_policy import CollectivePolicy
from .communicators import Family, Service
from .gpu_occupancy import Occupancy
from .perturb import DegradedLinks
from .uncontended import RoundTimes, rounded, rounded_ns

ALGORITHM = "copy"
"""The name of the only algorithm of copies, in the place of an algorithm of collectives."""
PAGEABLE = {PAGEABLE_OUT: COPY_OUT, PAGEABLE_IN: COPY_IN}
"""Kinds of copies by a core, and the kinds that cross the same links."""


class HostFamily(Family):
    """The copies of one direction, or the updates, of all ranks."""

    def __init__(
        self, members: Array, gpus: Array, charges: Mapping[int, tuple[str, int]], occupancy: Occupancy, degraded: DegradedLinks
    ) -> None:
        cluster, self.occupancy = occupancy.cluster, occupancy
        if cluster.hosts is None or cluster.host is None:
            raise InvariantBroken(f"the graph of {cluster.name} has no hosts")
        self.members, self.gpus, self.charges, self.degraded = members, gpus, dict(charges), degraded
        self.policy, self.nodes = CollectivePolicy({}, {}), gpus // cluster.gpus_per_node
        group = np.arange(len(members))
        self.layout = np.zeros_like(group)
        kind = next((kind for kind, _ in charges.values()), COPY_OUT)
        hosts, wiring = cluster.hosts, cluster.wiring
        route = {COPY_OUT: hosts.out, COPY_IN: hosts.back, UPDATE_ON_HOST: hosts.memory}[PAGEABLE.get(kind, kind)][gpus[:, 0]]
        latency_ns = rounded_ns(np.append(wiring.latency_s, 0.0)[route].sum(axis=1))
        fastest = np.append(wiring.capacity_bytes_per_s, np.inf)[route].min(axis=1)
        s_per_byte = rounded(1 / (np.minimum(fastest, cluster.host.core_bytes_per_s) if kind in PAGEABLE else fastest))
        row, hop = np.nonzero(route >= 0)
        link = route[row, hop]
        fraction = degraded.fractions_of_groups(row, link, len(group))
        times = RoundTimes(latency_ns, s_per_byte, latency_ns, s_per_byte)
        service = Service(ALGORITHM, 0, np.array([(1, 1)], dtype=object), ((times,),), group, fraction)
        self.services = dict.fromkeys(charges, service)
        self.entries = [(row, np.zeros_like(row), link, np.full(len(row), 1 << WEIGHT_BITS))]
