"""NCCL's choice of an algorithm for an all-reduce, by NCCL's own cost model with NCCL's own constants.

NCCL estimates every algorithm with every protocol (LL: words with flags, LL128: lines with flags, Simple: plain pieces) as
latency + bytes / bandwidth, and takes the smallest estimate. The constants are NCCL's assumptions, not measurements; the
constants determine the algorithm, never the simulated time. The payloads at which NCCL switches algorithms follow from the
constants and the links; `Choice` overrides the payloads where measurements show others. The tables and formulas are retyped from
NCCL 2.28.3 (src/graph/tuning.cc, topo.h, search.cc), whose search counts each NIC twice for a tree over two nodes, as each
direction carries one half. CPUs are assumed to be Intel's. Limits per channel, which rarely matter, and the properties that a
network plug-in reports, except its latency, are left out. GPUs of several hosts that one NVLink domain joins, as in a rack, are
one node to NCCL too, which routes its rings through all of these GPUs. Every other collective has one algorithm here: rings for
gathers, scatters and broadcasts, single messages for an all-to-all. (NCCL also considers gathers by NVSwitches, which never win
in NCCL's cost model, and PAT, a tree for gathers and scatters of groups with one rank per node.)
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal

from ...fields import Bytes, Declared, Key, Limits, Text, Whole
from ...units import GB, US_PER_S

PROTOCOLS = ("LL", "LL128", "Simple")
BASE_US = {"tree": (6.8, 14.0, 8.4), "ring": (6.6, 14.0, 8.4)}
"""Latency of a kernel before its first hop in us, by algorithm and protocol."""
HOP_US: Mapping[str, Mapping[str, Sequence[float]]] = {
    "nvlink": {"tree": (0.6, 1.25, 4.0), "ring": (0.6, 1.9, 3.4)},
    "pcie": {"tree": (1.0, 1.9, 4.0), "ring": (1.0, 2.5, 5.7)},
    "network": {"tree": (5.0, 8.5, 14.0), "ring": (2.7, 4.0, 14.0)},
}
SWITCH_US = 25.0
"""Latency of an all-reduce in an NVSwitch, in us. Algorithms that reduce in NVSwitches have the protocol Simple only."""
TREE_NETWORK_US, SHARP_NETWORK_US = 14.0, 18.0
"""Latency over the network where NVSwitches reduce, in us: a hop of a tree, and network switches that also reduce."""
DIRECT_US, DIRECT_PEER_US, DIRECT_NETWORK_US = 3.7, 0.4, 31.0
"""Latency where network switches reduce and no NVSwitch does, in us: to a GPU's rail, per GPU, and over the network."""
POST_US = 1.0
"""Least latency of a step of a ring over several nodes in us, due to the network; three times as much for protocol Simple."""
LL_GB_PER_S = {"volta": (39.0, 39.0, 20.4), "ampere": (87.7, 39.0, 20.4), "hopper": (141.0, 39.0, 20.4)}
"""Largest bandwidth of protocol LL in GB/s, on one node (by generation of the GPUs), two nodes and more nodes (by processors)."""
BLACKWELL_LL = 2.0
"""Bandwidth of protocol LL within a node of Blackwell GPUs, over the bandwidth on Hopper."""
SWITCH_SHARE = {"hopper": 0.85, "blackwell": 0.74}
"""Share of the links' rate that NCCL assumes for reductions in an NVSwitch."""
CHANNELS = 16
COUNTED = {"volta": 0.8, "ampere": 0.8, "hopper": 20.6 / 25, "blackwell": 40.1 / 50}
COUNTED_PCIE = 24 / 31.5
"""Share of the nominal rate of a GPU's links that NCCL assumes."""
TREE_SHARE: Mapping[str, Sequence[float]] = {
    "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    "LL128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9),
    "Simple": (0.9,) * 7 + (0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
}
"""Share of a tree's bandwidth that NCCL assumes, by payload: one entry per doubling from 64 bytes on, and 1 beyond the last."""
FIRST_TREE_BYTES = 64
TIE = 0.1
"""Relative difference of the estimates of ring and tree up to which NCCL's choice is uncertain: the number of trees that NCCL
finds in a machine's links, and the properties that a network plug-in reports, are left out of the estimates."""
PLATEAU_BYTES, PLATEAU, PLATEAU_VOLTA = 64, 1.4, 1.9
"""Bytes per rank and channel from which the latency of a ring over nodes grows, the factor, and the factor up to Volta."""

MOST_KEPT = 1 << 14
"""Largest number of cached estimates: fits need those of their rows repeatedly."""
GENERATIONS = ("volta", "ampere", "hopper", "blackwell")
"""GPU generations with separate constants in NCCL; AMD GPUs, whose library has other constants, are treated as Ampere."""
FIRST_ARCHITECTURES, LEAST_RATES = (80, 90, 100), (200 * GB, 400 * GB, 800 * GB)
"""First architecture, and least rate of NVLink in bytes/s, of all generations but the oldest."""


@dataclass(frozen=True, slots=True)
class Choice(Declared):
    """One entry of `choices:` in a fabric's file: the algorithm of a kind of collective, up to a payload and number of nodes."""

    kind: Annotated[Literal["all_reduce", "reduce_scatter", "all_gather", "broadcast", "alltoall"], "kind of collective"]
    algorithm: Annotated[str, Text("collective"), "algorithm that the library takes"]
    bytes_up_to: Annotated[Bytes, Key("size_up_to"), "largest payload; left out, no limit"] = math.inf
    nodes_up_to: Annotated[float, Whole(), Limits(ge=1, le=2**20), "largest number of nodes; left out, no limit"] = math.inf

    def covers(self, kind: str, payload_bytes: float, nodes: int) -> bool:
        """Whether this entry names the algorithm for a collective of this kind, payload and number of nodes."""
        return self.kind == kind and payload_bytes <= self.bytes_up_to and nodes <= self.nodes_up_to


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks of a collective and the links between these ranks as NCCL sees them."""

    ranks: int
    nodes: int
    generation: str
    """volta, ampere, hopper or blackwell."""
    link: str
    """nvlink or pcie."""
    inside_bytes_per_s: float
    """Nominal rate of a GPU's links inside the node."""
    nics_bytes_per_s: float
    """Rate of all NICs that the ranks of a node use together."""
    reported_us: float = 0.0
    """Latency in us that the network plug-in reports: part of every crossing, twice with protocol Simple, which also flushes."""


@lru_cache(maxsize=MOST_KEPT)
def generation(architecture: str, link_bytes_per_s: float) -> str:
    """The generation whose NCCL constants apply to an architecture such as sm_90, or without an architecture to a link rate."""
    number = re.match(r"sm_?(\d{1,9})", architecture)
    if number:
        return GENERATIONS[bisect_right(FIRST_ARCHITECTURES, int(number[1]))]
    return "ampere" if architecture else GENERATIONS[bisect_right(LEAST_RATES, link_bytes_per_s)]


def chosen(payload_bytes: float, group: Group, among: Iterable[str]) -> str:
    """The algorithm with the smallest estimate for an all-reduce, among the given algorithms."""
    return min(among, key=lambda name: nccl_estimate_s(name, payload_bytes, group))


def is_tie(payload_bytes: float, group: Group) -> bool:
    """Whether the estimates of ring and tree are so close that effects outside this cost model may decide."""
    ring, tree = (nccl_estimate_s(name, payload_bytes, group) for name in ("ring", "tree"))
    return max(ring, tree) <= min(ring, tree) * (1 + TIE)


@lru_cache(maxsize=MOST_KEPT)
def nccl_estimate_s(algorithm: str, payload_bytes: float, group: Group) -> float:
    """NCCL's own estimate of the time of an algorithm with its fastest protocol; infinite for an algorithm without protocols."""
    protocols = estimates(algorithm, payload_bytes, group)
    return min(
        (us / US_PER_S + payload_bytes / bytes_per_s for us, bytes_per_s in protocols if bytes_per_s > 0), default=math.inf
    )


def estimates(algorithm: str, payload_bytes: float, g: Group) -> list[tuple[float, float]]:
    """NCCL's latency in us and bandwidth in bytes/s of an algorithm, by protocol; a bandwidth of 0 for unavailable protocols."""
    is_far, is_blackwell, nvlink = g.nodes > 1, g.generation == "blackwell", g.link == "nvlink"
    hops, doublings = g.ranks // g.nodes - 1, g.nodes.bit_length() - 1  # hops inside a node; log2 of the nodes
    nics, both_ways = (g.nics_bytes_per_s, g.nics_bytes_per_s * 2) if is_far else (math.inf, math.inf)
    counted = g.inside_bytes_per_s * (COUNTED[g.generation] if nvlink else COUNTED_PCIE)
    of_ring = g.ranks / (2 * (g.ranks - 1))  # algorithm bandwidth of an all-reduce over its bus bandwidth
    # Rate that NCCL assumes for an NVSwitch that reduces, both directions together.
    at_switch = 2 * counted * SWITCH_SHARE.get(g.generation, 0.0) * (CHANNELS - 1) / CHANNELS
    flushed_us = 2 * g.reported_us
    if algorithm == "nvls":  # over several nodes it becomes nvls_tree
        outside = both_ways if g.nodes == 2 else nics
        return [(SWITCH_US + 2 * doublings * (TREE_NETWORK_US + flushed_us), min(at_switch, outside) * of_ring)]
    if algorithm == "sharp":  # network switches reduce, together with an NVSwitch if there is one
        if is_far and at_switch:
            return [(SWITCH_US + SHARP_NETWORK_US + flushed_us, min(at_switch, nics) * of_ring)]
        latency_us = 2 * (min(1, hops) * DIRECT_US + hops * DIRECT_PEER_US) + DIRECT_NETWORK_US + flushed_us
        return [(latency_us, min(counted, both_ways) / 2)] if is_far else []
    words = LL_GB_PER_S["hopper" if is_blackwell else g.generation][min(g.nodes, 3) - 1]
    words *= (BLACKWELL_LL if is_blackwell and not is_far else 1.0) * GB
    near = HOP_US[g.link][algorithm]
    net = HOP_US["network"]["tree" if g.ranks == g.nodes else algorithm]  # with one rank per node, nothing hides the latency
    far = (net[0] + g.reported_us, net[1] + g.reported_us, net[2] + flushed_us)
    found = []
    if algorithm == "ring":
        bus, steps, crossings = min(counted, nics), 2 * (g.ranks - 1), 2 * (g.nodes - 1)
        rates = (min(words, bus / 2), bus * 0.92 * nvlink, bus)
        for protocol, base_us, near_us, far_us, rate in zip(PROTOCOLS, BASE_US["ring"], near, far, rates, strict=True):
            simple = protocol == "Simple"
            post_us = POST_US * (3 if simple else 1) * is_far
            latency_us = base_us + (steps - crossings) * max(near_us, post_us) + crossings * far_us
            if simple and is_far and payload_bytes >= PLATEAU_BYTES * CHANNELS * g.ranks:
                latency_us *= PLATEAU_VOLTA if g.generation == "volta" else PLATEAU
            found.append((latency_us, rate * of_ring))
        return found
    bus = 0.92 * min(counted, both_ways if g.nodes == 2 else nics)
    rates = (min(bus / 3.8, words), bus * (120 / 128 if is_far else 7 / 9) * nvlink, bus)
    octave = int(payload_bytes // FIRST_TREE_BYTES).bit_length() - 1
    for protocol, base_us, near_us, far_us, rate in zip(PROTOCOLS, BASE_US["tree"], near, far, rates, strict=True):
        shares = TREE_SHARE[protocol]
        share = shares[octave] if 0 <= octave < len(shares) else 1.0
        found.append((base_us + 2 * (hops * near_us + doublings * far_us), rate / 2 * share))
    return found
