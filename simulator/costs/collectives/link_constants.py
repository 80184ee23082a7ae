"""Constants of links: a node's own links, the network between nodes, and the laws that both obey.

The numbers of an `Inside` and an `Across` are those of one fabric (topologies/fabrics); a `Laws` holds the few that are the
same everywhere. results/collectives/make.py fits both to measurements, and tells how well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from ...fields import NO_KEY, Bytes, BytesPerSecond, Contradiction, Declared, Key, Latency, Limits, Share, Usual, Whole, Written
from ...units import KIB, US_PER_S


@dataclass(frozen=True, slots=True)
class Inside(Declared):
    """The links of one node: NVLink, or PCIe. Rates are bytes/s per GPU and direction."""

    name: Annotated[str, NO_KEY, Usual(lambda given: "")]
    bytes_per_s: Annotated[BytesPerSecond, Key("rate"), "of a GPU, per direction"]
    launch_s: Annotated[Latency, "of any collective, before its first byte moves"]
    step_s: Annotated[Latency, "from one GPU to the next"]
    efficiency: Annotated[Share, "of the rate, in a ring of many large pieces"]
    fill_s: Annotated[Latency, "how slowly the rate is reached: t has a term sqrt(fill x time on the wire)"]
    pair_efficiency: Annotated[
        float, Limits(gt=0, le=2), "further factor for two GPUs: they have fewer ways to each other than a switch has ports"
    ] = 1.0
    nvls_efficiency: Annotated[float, Limits(ge=0, le=1), "of the rate, when the switch adds up; 0 if it cannot"] = 0.0
    island: Annotated[
        int, Limits(ge=0, le=1024), "GPUs with these links to one another, such as the two on a bridge; 0 for all of the node"
    ] = 0
    beyond_bytes_per_s: Annotated[BytesPerSecond, "the rate between islands"] = 0.0
    beyond_efficiency: Annotated[Share, Written(with_field="island"), "of that rate, in a ring over all of the node"] = 1.0
    mesh: Annotated[
        int,
        Limits(ge=0, le=1024),
        "GPUs that are wired each to each without a switch: fewer of them have fewer links to use; 0 with a switch",
    ] = 0
    flags: Annotated[
        float, Limits(ge=1, le=100), "how much longer a small message is on the wire, where every word travels with a flag"
    ] = 1.0
    flags_bytes: Annotated[Bytes, Key("flags_size"), Written(with_field="flags"), "where half of that is gone"] = 256.0 * KIB
    pair_bytes_per_s: Annotated[BytesPerSecond, "the thinnest of the wires of a mesh; left out where they are alike"] = 0.0
    to_nics: Annotated[bool, "whether the NICs are reached over these links too, as on PCIe"] = False
    generation: Annotated[str, NO_KEY, "of the GPUs, as NCCL's cost model tells them apart; empty: by the rate of the links"] = ""

    def contradictions(self) -> Iterator[Contradiction]:
        if self.island and not self.beyond_bytes_per_s:
            yield "beyond", " is missing: the rate between islands", 'write it like "31.5 GB/s"'


@dataclass(frozen=True, slots=True)
class Across(Declared):
    """The network between nodes."""

    name: Annotated[str, NO_KEY, Usual(lambda given: "")]
    nic_bytes_per_s: Annotated[BytesPerSecond, "one NIC, per direction"]
    nics: Annotated[float, Whole(), Limits(ge=1, le=2**20), "NICs of a node"]
    crossing_s: Annotated[Latency, "from a GPU to one of the next node: NIC, wire, switches, a proxy thread on both sides"]
    efficiency: Annotated[Share, "of the NIC's rate"]
    rendezvous: Annotated[
        float,
        Limits(ge=1, le=100),
        Written(with_field="nics"),
        "how much longer a crossing takes when the message is large: a handshake comes first",
    ] = 2.0
    rendezvous_bytes: Annotated[
        Bytes, Key("rendezvous_size"), Written(with_field="nics"), "where that is half the way to be so"
    ] = 64.0 * KIB
    sharp: Annotated[bool, "whether the switches add up"] = False
    adaptive: Annotated[bool, "whether packets of one flow take many ways, so that flows do not collide"] = False
    nvls: Annotated[bool, "whether the library lets the NVSwitches of the nodes add up on the way"] = True


@dataclass(frozen=True, slots=True)
class Laws:
    """Constants that are the same on every fabric.

    The launches, steps and efficiencies of all-to-all and of direct kernels, `crossing_fill` and `peer_s` are fitted by
    results/collectives/make.py. The others are set by hand to what published logs of NCCL on InfiniBand NDR say as a whole,
    and make.py tells how close they come: `norm` to all-reduces that reach 49, 98, 196 and 345 GB/s with 1, 2, 4 and 8 NICs
    of 50 GB/s in use on each of ten nodes; `crowd` to rings at 345, 323 and 291 GB/s on 2, 8 and 46 nodes, where trees and
    switches that add up do not slow down; `sharp_efficiency` to switches at 533 to 548; `flow_efficiency` and the three of
    collisions to single flows of 36 and 43 GB/s on 2 to 4 nodes, 26 on 8 and 14.6 on 16 to 64; `pair_efficiency` to pairs
    inside a node, which reach 308 GB/s on A100 and 362 on H100, in straight lines.

    Trees over two nodes reach 335 GB/s of B200, 0.47 of what their bytes over the NICs would allow (`pair_tree_efficiency`); the
    curves of A100 and p5 agree. Over more nodes logs disagree: 193 GB/s on 8 and 46 nodes of B200 are 0.46 and 0.51 of what their
    bytes would allow, 234.8 and 485 on three NVLink domains of GB200 (NVIDIA/nccl#1801) 0.86; `tree_efficiency` is the geometric
    mean of the two logs, a third off either. `nvls_tree_efficiency` stands midway between two logs, 9% from each: 307 GB/s on 8
    nodes of B200, and 345 on ten of H100, where NCCL's cost model says nvls_tree.
    """

    alltoall_launch: float = 1.41
    """All-to-all and point-to-point are set up anew each time: their launch, over that of a ring."""
    alltoall_step: float = 0.17
    """Peers are served side by side: what one more costs, over a ring's step."""
    alltoall_efficiency: float = 1.01
    """Efficiency of an all-to-all over that of a ring."""
    pair_efficiency: float = 1.15
    """Efficiency of a single pair that sends both ways, over that of a ring."""
    direct_launch: float = 0.54
    """Kernels that read their peers' memory: their launch, and their rate, over those of a ring."""
    direct_efficiency: float = 1.26
    norm: float = 8.0
    """Two bottlenecks in a row: the p-norm of their times. Infinite would be the slower of the two alone."""
    crossing_fill: float = 2.0
    """Crossings fill the pipe too: their latency, times this, adds to `fill_s`."""
    crowd: float = 0.04
    """The slowest hop limits a ring: over N nodes it gets (N/2)^-crowd of the NICs' rate."""
    peer_s: float = 4.8 / US_PER_S
    """Time that each further remote peer of an all-to-all costs the proxy thread."""
    flow_efficiency: float = 0.85
    """Rate of a single flow between two NICs, over that of many."""
    leaf_nodes: float = 4.0
    """Nodes behind one switch. Further away single flows are hashed onto the same links:"""
    collisions: float = 2 / 3
    """N/leaf_nodes to this power share the fullest link,"""
    most_collisions: float = 3.0
    """but no more than so many."""
    pair_tree_efficiency: float = 0.47
    """Share of the NICs' rate in rings that trees over two nodes reach, which send up and down at once through the same GPU."""
    tree_efficiency: float = 0.65
    """Share that trees over more nodes reach, over that of rings."""
    nvls_tree_efficiency: float = 0.81
    """Share that such trees reach where NVSwitches add up and a node has more than one neighbour in its tree."""
    sharp_efficiency: float = 0.7
    """Share that switches that add up reach, over that of rings."""


LAWS = Laws()
