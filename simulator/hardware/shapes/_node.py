"""What every shape shares: the inside of a node, and the numbering of vertices and links that routes rely on.

Links come in this order, so that a route is arithmetic: GPU to NVSwitch, NVSwitch to GPU, then (with more than one node)
GPU to NIC, NIC to GPU, NIC to leaf, leaf to NIC, leaf to spine, spine to leaf.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..wiring import Array, Links, Vertices, Wiring

if TYPE_CHECKING:
    from ..cluster import Cluster


def rail_of(cluster: Cluster, gpu: Array) -> Array:
    """The NIC vertex of its node that each GPU sends through: neighbours share one where NICs are fewer than GPUs."""
    rail: Array = gpu % cluster.gpus_per_node * cluster.rails // cluster.gpus_per_node
    return rail


def nic_of(cluster: Cluster, gpu: Array) -> Array:
    """The same vertex, numbered among the NICs of all nodes."""
    nic: Array = gpu // cluster.gpus_per_node * cluster.rails + rail_of(cluster, gpu)
    return nic


def wire_node(cluster: Cluster) -> tuple[list[Vertices], list[Links]]:
    """The GPUs and NVSwitches of all nodes, and the links between them."""
    n, per_node = cluster.gpus, cluster.gpus_per_node
    gpu, switch = np.arange(n), n + np.arange(n) // per_node
    vertices = [
        Vertices("gpu", 0, n, lambda i: f"node{i // per_node}/gpu{i % per_node}"),
        Vertices("nvswitch", n, cluster.nodes, lambda i: f"node{i}/nvswitch"),
    ]
    up = Links.between(gpu, switch, cluster.nvlink.bytes_per_s, cluster.nvlink.latency_s)
    down = Links.between(switch, gpu, cluster.nvlink.bytes_per_s, cluster.nvlink.latency_s)
    return vertices, [up, down]


@dataclass(frozen=True, slots=True)
class Leaves:
    """How many leaf switches there are, and which of them each NIC is plugged into."""

    count: int
    of_nic: Callable[[Array], Array]


def wire_clos(cluster: Cluster, leaves: Leaves) -> Wiring:
    """Nodes, NICs, leaf switches and, where there are several pods, one pooled layer of spines above them.

    The spine layer is one vertex: traffic is sprayed evenly over it, so that only a leaf's uplinks together can bind.
    """
    vertices, runs = wire_node(cluster)
    if cluster.nodes == 1:
        return Wiring.of(vertices, runs, [])
    n, nics, per_node = cluster.gpus, cluster.nodes * cluster.rails, cluster.rails
    first_nic = n + cluster.nodes
    first_leaf, spine = first_nic + nics, first_nic + nics + leaves.count
    gpu, nic, leaf = np.arange(n), np.arange(nics), np.arange(leaves.count)
    nic_of_gpu, leaf_of_nic = nic_of(cluster, gpu), leaves.of_nic(nic)
    vertices += [
        Vertices("nic", first_nic, nics, lambda i: f"node{i // per_node}/nic{i % per_node}"),
        Vertices("leaf", first_leaf, leaves.count, lambda i: f"leaf{i}"),
    ]
    pcie, wire_bytes_per_s, wire_s = cluster.pcie, cluster.rail_bytes_per_s, cluster.nic.latency_s
    runs += [
        Links.between(gpu, first_nic + nic_of_gpu, pcie.bytes_per_s, pcie.latency_s),
        Links.between(first_nic + nic_of_gpu, gpu, pcie.bytes_per_s, pcie.latency_s),
        Links.between(first_nic + nic, first_leaf + leaf_of_nic, wire_bytes_per_s, wire_s),
        Links.between(first_leaf + leaf_of_nic, first_nic + nic, wire_bytes_per_s, wire_s),
    ]
    at = First(cluster, leaves.count)
    covered = [(at.gpu_nic + gpu, at.nic_leaf + nic_of_gpu), (at.nic_gpu + gpu, at.leaf_nic + nic_of_gpu)]
    if cluster.pods > 1:
        below = np.bincount(leaf_of_nic, minlength=leaves.count) * wire_bytes_per_s / cluster.oversubscription
        vertices.append(Vertices("spine", spine, 1, lambda _: "spine"))
        above = np.full(leaves.count, spine)
        runs.append(Links.between(first_leaf + leaf, above, below, cluster.switch_latency_s))
        runs.append(Links.between(above, first_leaf + leaf, below, cluster.switch_latency_s))
        covered += [
            (at.leaf_spine + leaf_of_nic, at.nic_leaf + nic),
            (at.spine_leaf + leaf_of_nic, at.leaf_nic + nic),
        ]
    return Wiring.of(vertices, runs, covered)


class First:
    """The number of the first link of each run."""

    def __init__(self, cluster: Cluster, leaves: int) -> None:
        n, nics = cluster.gpus, cluster.nodes * cluster.rails
        self.nvlink_up, self.nvlink_down = 0, n
        self.gpu_nic, self.nic_gpu = 2 * n, 3 * n
        self.nic_leaf, self.leaf_nic = 4 * n, 4 * n + nics
        self.leaf_spine = 4 * n + 2 * nics
        self.spine_leaf = self.leaf_spine + leaves


def route_clos(cluster: Cluster, source: Array, target: Array, leaves: Leaves, relay: Array) -> Array:
    """The links between pairs of GPUs: through the NVSwitch inside a node, else by NIC, leaf and, between pods, spine.

    `relay` is the GPU of the source's node that hands the data to its NIC: the source itself, or another that the data
    reaches over NVLink first.
    """
    at = First(cluster, leaves.count)
    near = source // cluster.gpus_per_node == target // cluster.gpus_per_node
    relayed = ~near & (relay != source)
    out, into = nic_of(cluster, relay), nic_of(cluster, target)
    if cluster.nodes > 1:
        leaf_out, leaf_in = leaves.of_nic(out), leaves.of_nic(into)
        climbs = ~near & (leaf_out != leaf_in)
    else:
        leaf_out = leaf_in = climbs = np.zeros(len(source), dtype=bool)
    hops = [
        (near | relayed, at.nvlink_up + source),
        (near | relayed, at.nvlink_down + np.where(near, target, relay)),
        (~near, at.gpu_nic + relay),
        (~near, at.nic_leaf + out),
        (climbs, at.leaf_spine + leaf_out),
        (climbs, at.spine_leaf + leaf_in),
        (~near, at.leaf_nic + into),
        (~near, at.nic_gpu + target),
    ]
    return np.stack([np.where(taken, link, -1) for taken, link in hops], axis=1)
