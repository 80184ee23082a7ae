"""Nodes and fabric put together: every shape that joins nodes by switches says what the fabric is, and this does the rest.

Links come in runs: those inside the nodes, run by run and node by node, then NIC to switch and switch to NIC, then those of
the fabric. So a route is arithmetic: out of the node, up to the switch that the NIC is plugged into, from switch to switch
as the fabric says, down, and into the other node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ...errors import UserError
from ...hashing import mix
from ..wiring import Array, Inside, Links, Part, Vertices, Wiring

if TYPE_CHECKING:
    from ..cluster import Cluster


Route = Callable[["Cluster", Array, Array], Array]


@dataclass(frozen=True, eq=False, slots=True)
class Switching:
    """Switches, numbered from 0, the links between them, and which of them each NIC is plugged into."""

    switches: tuple[Part, ...]
    port: Array
    runs: tuple[Links, ...]
    between: Callable[[Array, Array, Array], Array]
    """From switch to switch, given a hash of each flow: links of the fabric, pairs x hops, padded with -1."""
    gathered: tuple[tuple[Array, Array], ...] = ()
    """Pairs (link, NIC): all that the link carries comes from NICs that are so listed with it."""
    spread: tuple[tuple[Array, Array], ...] = ()
    """Pairs (link, NIC): all that the link carries goes to NICs that are so listed with it."""
    relays: Callable[[Array, Array], Array] | None = None
    """From NIC to NIC, whether the data first goes to the GPU of its node that sits on the target's rail."""


def joined_by(fabric: Callable[[Cluster], Switching] | None) -> tuple[Callable[[Cluster], Wiring], Route, Route]:
    """`wire`, `route` and `relay` of a shape with this fabric; without one it is a single node. Nodes are put together once."""

    def assembly(cluster: Cluster) -> Assembly:
        if cluster.nodes > 1 and fabric is None:
            raise UserError(
                f"shape {cluster.shape_name} is a single node, and {cluster.name} has {cluster.nodes}",
                hint="join the nodes by a fabric: shape: rail-optimized with inter_node: 8x400 Gbit/s",
            )
        if "assembly" not in cluster.memo:
            cluster.memo["assembly"] = Assembly(cluster, fabric(cluster) if fabric and cluster.nodes > 1 else None)
        found: Assembly = cluster.memo["assembly"]
        return found

    return (
        lambda cluster: assembly(cluster).wiring,
        lambda cluster, source, target: assembly(cluster).route(source, target),
        lambda cluster, source, target: assembly(cluster).relay(source, target),
    )


class Assembly:
    """Numbers of vertices and links in the whole, the wiring, and routes."""

    def __init__(self, cluster: Cluster, fabric: Switching | None) -> None:
        self.cluster, self.fabric, self.node = cluster, fabric, cluster.node
        self.rails = cluster.rails if fabric else 0
        counts = [cluster.gpus_per_node, *(part.count for part in self.node.parts), self.rails]
        self.vertex = _Repeated(counts, cluster.nodes)
        self.link = _Repeated([len(run) for run in self.node.runs], cluster.nodes)
        self.nics = cluster.nodes * self.rails
        self.nic_up = self.link.end
        self.nic_down = self.nic_up + self.nics
        self.first_fabric = self.nic_down + self.nics

    @cached_property
    def wiring(self) -> Wiring:
        cluster, nodes = self.cluster, np.arange(self.cluster.nodes)
        runs = [
            Links.between(
                self.vertex.of(nodes, run.source),
                self.vertex.of(nodes, run.target),
                np.tile(run.capacity_bytes_per_s, len(nodes)),
                np.tile(run.latency_s, len(nodes)),
                run.name,
            )
            for run in self.node.runs
        ]
        if not self.fabric:
            return Wiring.of(self._vertices(), runs, [])
        nic, first = self.vertex.end - self.nics + np.arange(self.nics), self.vertex.end
        rate, latency_s = cluster.rail_bytes_per_s, cluster.nic.latency_s
        runs.append(Links.between(nic, first + self.fabric.port, rate, latency_s, "nic up"))
        runs.append(Links.between(first + self.fabric.port, nic, rate, latency_s, "nic down"))
        for run in self.fabric.runs:
            capacity, latency = run.capacity_bytes_per_s, run.latency_s
            runs.append(Links.between(first + run.source, first + run.target, capacity, latency, run.name))
        covered = [(self.first_fabric + link, self.nic_up + nic) for link, nic in self.fabric.gathered]
        covered += [(self.first_fabric + link, self.nic_down + nic) for link, nic in self.fabric.spread]
        return Wiring.of(self._vertices(), runs, [*self._covered_in_nodes(), *covered])

    def _vertices(self) -> list[Vertices]:
        """GPUs, parts of nodes, NICs and switches."""
        parts = [Part("gpu", self.cluster.gpus_per_node, lambda i: f"gpu{i}"), *self.node.parts]
        if self.fabric:
            parts.append(Part("nic", self.rails, lambda i: f"nic{i}"))
        vertices, first = [], 0
        for part in parts:
            vertices.append(Vertices(part.kind, first, self.cluster.nodes * part.count, _in_node(part)))
            first += self.cluster.nodes * part.count
        for part in self.fabric.switches if self.fabric else ():
            vertices.append(Vertices(part.kind, first, part.count, part.name))
            first += part.count
        return vertices

    def _covered_in_nodes(self) -> list[tuple[Array, Array]]:
        """A link to a NIC carries what the NIC sends, and one from it what it receives."""
        first, nodes = self.vertex.locals - self.rails, np.arange(self.cluster.nodes)
        source, target = (np.concatenate([getattr(run, end) for run in self.node.runs]) for end in ("source", "target"))
        pairs = []
        for ends, covering in ((target, self.nic_up), (source, self.nic_down)):
            local = np.flatnonzero(ends >= first)
            nic = (nodes[:, None] * self.rails + (ends[local] - first)[None, :]).ravel()
            pairs.append((self.link.of(nodes, local), covering + nic))
        return pairs

    def route(self, source: Array, target: Array) -> Array:
        """For each pair of GPUs the links on the way, padded with -1.

        Inside a node as its inside says; else, maybe, first to the GPU of the source's node that relays, then out.
        """
        per_node = self.cluster.gpus_per_node
        node, near = source // per_node, source // per_node == target // per_node
        relay = self.relay(source, target)
        stop = np.where(near, target, relay)
        inside = self.link.at(node, self.node.between(source % per_node, stop % per_node))
        if not self.fabric:
            return inside
        far = np.flatnonzero(~near)
        flow = flow_hash(self.cluster.options.routing.seed, source[far], target[far])
        outside = self._outside(self.fabric, relay[far], target[far], flow)
        hops = inside.shape[1]
        whole = np.full((hops + outside.shape[1], len(source)), -1, dtype=np.int64)  # hop by hop: most of a route is one pass
        whole[:hops], whole[hops:, far] = inside.T, outside.T
        return whole.T

    def relay(self, source: Array, target: Array) -> Array:
        """For each pair of GPUs of different nodes, the one of the source's node that hands the data to its NIC."""
        if not self.fabric or not self.fabric.relays:
            return source
        per_node, nic = self.cluster.gpus_per_node, self._gates[0]
        on_rail = source // per_node * per_node + target % per_node
        return np.where(self.fabric.relays(nic[source], nic[target]), on_rail, source)

    @cached_property
    def _gates(self) -> tuple[Array, Array, Array]:
        """Of every GPU its NIC, and the links there and from there."""
        gpu = np.arange(self.cluster.gpus)
        node, local = np.divmod(gpu, self.cluster.gpus_per_node)
        return self.cluster.nic_of(gpu), self.link.at(node, self.node.leave(local)), self.link.at(node, self.node.arrive(local))

    def _outside(self, fabric: Switching, source: Array, target: Array, flow: Array) -> Array:
        """From GPU to GPU of another node."""
        nic, leave, arrive = self._gates
        out, into = nic[source], nic[target]
        between = fabric.between(fabric.port[out], fabric.port[into], flow)
        columns = [
            leave[source],
            (self.nic_up + out)[:, None],
            np.where(between < 0, -1, between + self.first_fabric),
            (self.nic_down + into)[:, None],
            arrive[target],
        ]
        return np.concatenate(columns, axis=1)


def _in_node(part: Part) -> Callable[[int], str]:
    return lambda i: f"node{i // part.count}/{part.name(i % part.count)}"


class _Repeated:
    """Numbers of things that every node has: kind by kind, within a kind node by node."""

    def __init__(self, counts: list[int], nodes: int) -> None:
        of = np.array(counts, dtype=np.int64)
        local, first = np.concatenate([[0], np.cumsum(of)]), np.concatenate([[0], np.cumsum(of * nodes)])
        self.stride = np.repeat(of, of)
        self.base = np.arange(local[-1]) + np.repeat(first[:-1] - local[:-1], of)
        self.locals, self.end = int(local[-1]), int(first[-1])

    def of(self, nodes: Array, local: Array) -> Array:
        """The numbers of local things in all the nodes, node by node."""
        number: Array = (nodes[:, None] * self.stride[local][None, :] + self.base[local][None, :]).ravel()
        return number

    def at(self, node: Array, local: Array) -> Array:
        """The numbers of rows of local things, each row in its node; -1 stays."""
        return np.where(local < 0, -1, self.base[local] + node[:, None] * self.stride[local])


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


def flow_hash(seed: int, source: Array, target: Array) -> Array:
    """A hash of each flow: the same for the same seed and ends, otherwise as good as random."""
    mixed = mix(np.full(len(source), seed, dtype=np.uint64))
    for end in (source, target):
        mixed = mix(mixed ^ end.astype(np.uint64))
    hashed: Array = (mixed >> np.uint64(1)).astype(np.int64)
    return hashed
