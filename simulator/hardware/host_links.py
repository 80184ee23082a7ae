"""Links between GPUs and the memory of their node, which copies of offloaded data cross.

A GPU reaches its CPU through PCIe or through its own link (C2C). Over PCIe a copy crosses the link of the GPU, like the traffic
of its NIC, and then a link from the NIC, where the two routes separate in a PCIe switch. Without NICs, or over C2C, there is one
link from GPU to CPU. A PCIe server has its own CPUs and links. The memory of the node is behind the CPUs: the link to it carries
the bytes that copies write and all bytes that the CPUs read and write, the link back the bytes that copies read. Vertices and
links are numbered after all others of the cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .options import HostMemory, LinkSpec
from .wiring import Array, Links, Part, both_ways


@dataclass(frozen=True, eq=False, slots=True)
class Reach:
    """The part of the way from each GPU to its CPU that existing links of the cluster cover."""

    leave: Array
    """The links from each GPU, GPUs x hops, padded with -1."""
    arrive: Array
    """The links back."""
    end: Array
    """The vertex at which they end."""
    is_cpu: bool
    node: Array


@dataclass(frozen=True, eq=False, slots=True)
class HostLinks:
    """The vertices and links of the hosts, and the links of each GPU for each kind of copy (GPUs x hops)."""

    parts: tuple[Part, ...]
    runs: tuple[Links, ...]
    out: Array
    """The links of a copy to the memory."""
    back: Array
    """The links of a copy from the memory."""
    memory: Array
    """The link that carries the bytes that the CPU of a GPU reads and writes."""


def host_links(host: HostMemory, usual: LinkSpec, reach: Reach, first_vertex: int, first_link: int) -> HostLinks:
    """The links of all hosts, with vertices and links from the given numbers on; `usual` is the PCIe link of a GPU."""
    nodes, leave, arrive, end = int(reach.node[-1]) + 1, reach.leave, reach.arrive, reach.end
    parts: list[Part] = []
    runs: list[Links] = []
    if not reach.is_cpu:
        ends, first, which, sharing = np.unique(end, return_index=True, return_inverse=True, return_counts=True)
        rate = (host.bytes_per_s or usual.bytes_per_s) * sharing
        runs += both_ways(ends, first_vertex + reach.node[first], rate, usual.latency_s, "host")
        leave = np.column_stack([leave, first_link + which])
        arrive = np.column_stack([first_link + len(ends) + which, arrive])
        end = first_vertex + reach.node
        parts.append(Part("cpu", nodes, _named("cpu")))
        first_vertex, first_link = first_vertex + nodes, first_link + 2 * len(ends)
    cpus, first, which = np.unique(end, return_index=True, return_inverse=True)
    node = reach.node[first]
    runs += both_ways(cpus, first_vertex + node, host.memory_bytes_per_s / np.bincount(node)[node], 0.0, "host memory")
    parts.append(Part("memory", nodes, _named("memory")))
    memory = (first_link + which)[:, None]
    out, back = np.column_stack([leave, memory]), np.column_stack([memory + len(cpus), arrive])
    return HostLinks(tuple(parts), tuple(runs), out, back, memory)


def _named(kind: str) -> Callable[[int], str]:
    return lambda i: f"node{i}/{kind}"
