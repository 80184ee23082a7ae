"""Fat tree of three levels, from switches of k ports each: edge, aggregation and core.

A pod is k/2 edge switches with k/2 NICs each, below k/2 aggregation switches; (k/2)^2 core switches join up to k pods, so
that k^3/4 NICs can all talk at once. NICs are plugged in one after the other; switches have all their uplinks from the start.
Sprayed traffic sees one aggregation switch per pod and one core that stand for all; hashed traffic takes one of each. Without a
`radix`, k is the least power of two that does. Reference: Al-Fares et al., "A scalable, commodity data center network
architecture", SIGCOMM 2008.
"""

from __future__ import annotations

import numpy as np

from ...errors import UserError
from ..cluster import Cluster
from ..wiring import Array, Links, Part
from ._assembly import Switching, hops, joined_by

OPTIONS = ("radix", "oversubscription", "routing")


def fabric(cluster: Cluster) -> Switching:
    return _Tree(cluster).fabric


def smallest_radix(nics: int) -> int:
    """The least even number of ports of a switch that a fat tree of so many NICs can be built from."""
    return next(k for k in range(4, 2 * nics + 6, 2) if k**3 // 4 >= nics)


def too_few_ports(nics: int, radix: int) -> tuple[str, str] | None:
    """What is wrong with switches of so many ports for a tree of so many NICs, and which are the nearest that do."""
    fewest = smallest_radix(nics)
    if radix >= fewest and radix % 2 == 0:
        return None
    return f"no fat tree of {nics} NICs has switches of {radix} ports", f"radix: {max(fewest, radix + radix % 2)}"


class _Tree:
    """Edges are numbered through the pods, then aggregation switches through the pods, then cores."""

    def __init__(self, cluster: Cluster) -> None:
        nics, fewest = cluster.nodes * cluster.rails, smallest_radix(cluster.nodes * cluster.rails)
        radix = cluster.options.radix or 1 << (fewest - 1).bit_length()
        wrong = too_few_ports(nics, radix)
        if wrong:
            raise UserError(f"radix: {wrong[0]}", hint=wrong[1])
        hashed, half = cluster.options.routing.hashed, radix // 2
        self.cluster, self.half, self.nic = cluster, half, np.arange(nics)
        self.edges = -(-nics // half)
        self.pods = -(-self.edges // half)
        self.edge_of = self.nic // half
        self.pod_of = np.arange(self.edges) // half
        self.aggs = max(1, round(half / cluster.oversubscription)) if hashed else 1
        self.cores_per_agg = half if hashed else 1
        self.first_agg = self.edges
        self.first_core = self.edges + self.pods * self.aggs
        self.cores = self.aggs * self.cores_per_agg

    @property
    def fabric(self) -> Switching:
        kinds = [Part("edge", self.edges, lambda i: f"edge{i}")]
        if self.edges == 1:
            return Switching(tuple(kinds), self.edge_of, (), self.between)
        single = not self.cluster.options.routing.hashed
        kinds.append(Part("agg", self.pods * self.aggs, lambda i: _agg_name(i, self.aggs, single)))
        if self.pods > 1:
            kinds.append(Part("core", self.cores, lambda i: "core" if single else f"core{i}"))
        pod, edges, pods = self.pod_of[self.edge_of], self.edges, self.pods
        gathered, spread = [(self.edge_of, self.nic)], [(edges + self.edge_of, self.nic)]
        if pods > 1:
            gathered.append((2 * edges + pod, self.nic))
            spread.append((2 * edges + pods + pod, self.nic))
        covers = (tuple(gathered), tuple(spread)) if single else ((), ())
        return Switching(tuple(kinds), self.edge_of, tuple(self.runs()), self.between, *covers)

    def runs(self) -> list[Links]:
        cluster, latency_s = self.cluster, self.cluster.switch_latency_s
        above = self.half * cluster.rail_bytes_per_s / cluster.oversubscription
        edge, agg = np.repeat(np.arange(self.edges), self.aggs), np.tile(np.arange(self.aggs), self.edges)
        over, rate = self.first_agg + self.pod_of[edge] * self.aggs + agg, above / self.aggs
        runs = [
            Links.between(edge, over, rate, latency_s, "edge-agg up"),
            Links.between(over, edge, rate, latency_s, "edge-agg down"),
        ]
        if self.pods > 1:
            which = np.repeat(np.arange(self.pods * self.aggs), self.cores_per_agg)
            core = self.first_core + np.tile(np.arange(self.cores), self.pods)
            rate = above * self.half / self.cores
            runs.append(Links.between(self.first_agg + which, core, rate, latency_s, "agg-core up"))
            runs.append(Links.between(core, self.first_agg + which, rate, latency_s, "agg-core down"))
        return runs

    def between(self, a: Array, b: Array, flow: Array) -> Array:
        up = self.edges * self.aggs
        over, pod_a, pod_b = flow % self.aggs, self.pod_of[a], self.pod_of[b]
        core = over * self.cores_per_agg + flow // self.aggs % self.cores_per_agg
        top, far = 2 * up, pod_a != pod_b
        return hops(
            (a != b, a * self.aggs + over),
            (far, top + pod_a * self.cores + core),
            (far, top + (self.pods + pod_b) * self.cores + core),
            (a != b, up + b * self.aggs + over),
        )


def _agg_name(i: int, per_pod: int, single: bool) -> str:
    return f"pod{i}/agg" if single else f"pod{i // per_pod}/agg{i % per_pod}"


wire, route, relay = joined_by(fabric)
