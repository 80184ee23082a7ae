"""Constants of links: the links inside a node, the network between nodes, and constants that are the same on every fabric.

An `Inside` and an `Across` hold the numbers of one fabric (topologies/fabrics); a `Laws` holds the few numbers that all fabrics
share. results/collectives/make.py fits both to measurements and reports the errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from ...fields import NO_KEY, Bytes, BytesPerSecond, Contradiction, Declared, Key, Latency, Limits, Share, Usual, Whole, Written
from ...units import KIB, US_PER_S


@dataclass(frozen=True, slots=True)
class Inside(Declared):
    """Constants of the links inside a node: NVLink or PCIe. Rates are in bytes/s per GPU and direction."""

    name: Annotated[str, NO_KEY, Usual(lambda given: ""), "name of the fabric's file"]
    bytes_per_s: Annotated[BytesPerSecond, Key("rate"), "nominal rate of a GPU's links, per direction"]
    launch_s: Annotated[Latency, "time of a collective before its first byte moves"]
    step_s: Annotated[Latency, "latency of a step from one GPU to the next"]
    efficiency: Annotated[Share, "fraction of the link rate that a ring of many large pieces reaches"]
    fill_s: Annotated[Latency, "time scale of pipeline filling, which adds sqrt(fill x time on the wire) to a collective"]
    pair_efficiency: Annotated[
        float, Limits(gt=0, le=2), "further factor on the efficiency of two GPUs per node, which have fewer routes to each other"
    ] = 1.0
    nvls_efficiency: Annotated[
        float, Limits(ge=0, le=1), "fraction of the link rate that reductions in NVSwitches reach; 0 if switches cannot reduce"
    ] = 0.0
    island: Annotated[
        int, Limits(ge=0, le=1024), "number of GPUs that these links join, such as the two on a bridge; 0 for all of the node"
    ] = 0
    beyond_bytes_per_s: Annotated[BytesPerSecond, "rate between islands, per GPU and direction; 0 without islands"] = 0.0
    beyond_efficiency: Annotated[
        Share, Written(with_field="island"), "fraction of the rate between islands that a ring over the whole node reaches"
    ] = 1.0
    mesh: Annotated[
        int,
        Limits(ge=0, le=1024),
        "number of GPUs that are wired each to each without a switch, so that fewer GPUs use fewer links; 0 with a switch",
    ] = 0
    flags: Annotated[
        float,
        Limits(ge=1, le=100),
        "bytes on the wire per byte of a small message, whose words are sent with flags; 1 without flags",
    ] = 1.0
    flags_bytes: Annotated[
        Bytes, Key("flags_size"), Written(with_field="flags"), "message size at which the overhead of flags has fallen to half"
    ] = 256.0 * KIB
    pair_bytes_per_s: Annotated[BytesPerSecond, "rate of the slowest link of a mesh; 0 where all links are alike"] = 0.0
    to_nics: Annotated[bool, "whether GPUs reach the NICs over these links too, as on PCIe"] = False
    generation: Annotated[str, NO_KEY, "generation of the GPUs in NCCL's cost model; empty: by the link rate"] = ""

    def contradictions(self) -> Iterator[Contradiction]:
        if self.island and not self.beyond_bytes_per_s:
            yield "beyond", " is missing: the rate between islands", 'write it like "31.5 GB/s"'


@dataclass(frozen=True, slots=True)
class Across(Declared):
    """Constants of the network between nodes."""

    name: Annotated[str, NO_KEY, Usual(lambda given: ""), "name of the fabric's file"]
    nic_bytes_per_s: Annotated[BytesPerSecond, "nominal rate of one NIC, per direction"]
    nics: Annotated[float, Whole(), Limits(ge=1, le=2**20), "number of NICs per node"]
    crossing_s: Annotated[Latency, "latency between GPUs of two nodes: NICs, wire, switches, and a proxy thread on each side"]
    efficiency: Annotated[Share, "fraction of the NIC rate that a ring reaches"]
    rendezvous: Annotated[
        float,
        Limits(ge=1, le=100),
        Written(with_field="nics"),
        "factor on the crossing latency of large messages, which begin with a handshake; 1 without handshake",
    ] = 2.0
    rendezvous_bytes: Annotated[
        Bytes,
        Key("rendezvous_size"),
        Written(with_field="nics"),
        "message size at which half of the handshake's latency is added",
    ] = 64.0 * KIB
    plugin_s: Annotated[
        Latency, "latency that the library's network plug-in adds to every crossing, whatever the wire; 0 without plug-in"
    ] = 0.0
    reported_s: Annotated[
        Latency,
        "latency that the network plug-in reports to NCCL, whose cost model adds it to each crossing, twice with protocol Simple",
    ] = 0.0
    alltoall: Annotated[
        Share, "fraction of the rate of rings that an all-to-all reaches, whose many small messages load the plug-in"
    ] = 1.0
    sharp: Annotated[bool, "whether switches of the network reduce (SHARP)"] = False
    adaptive: Annotated[bool, "whether the packets of a flow take several routes, so that flows do not collide"] = False
    nvls: Annotated[bool, "whether the library reduces in NVSwitches in collectives over several nodes"] = True
    crowd: Annotated[
        float,
        Limits(ge=0, le=1),
        "exponent of the slowdown of rings: over N nodes a ring, limited by its slowest hop, gets (N/2)^-crowd of the NICs' rate",
    ] = 0.0
    tree_efficiency: Annotated[
        Share, Written(with_field="nics"), "rate of NICs in trees over more than two nodes, over the rate in rings"
    ] = 0.74
    nvls_tree_efficiency: Annotated[Share, Written(with_field="nics"), "the same where NVSwitches reduce"] = 0.88
    sharp_efficiency: Annotated[
        Share, Written(with_field="nics"), "efficiency of reductions in network switches, over that of rings"
    ] = 0.7
    leaf_nodes: Annotated[
        int, Limits(ge=1, le=2**20), "nodes behind one leaf switch, where no topology is given; beyond it single flows are hashed"
    ] = 4
    collisions: Annotated[
        float, Limits(ge=0, le=1), "exponent of collisions: over N nodes (N / leaf_nodes)^collisions flows share the fullest link"
    ] = 2 / 3
    most_collisions: Annotated[float, Limits(ge=1, le=1000), "largest number of flows that share a link by collisions"] = 3.0
    uncertainty: Annotated[
        float,
        Limits(ge=0, le=2),
        "relative standard error of the rates above where they rest on the log of one cluster, or on none",
    ] = 0.0

    @property
    def hop_s(self) -> float:
        """Latency in seconds between GPUs of two nodes, with the plug-in."""
        return self.crossing_s + self.plugin_s


@dataclass(frozen=True, slots=True)
class Laws:
    """Constants that are the same on every fabric.

    The launches, steps and efficiencies of all-to-all and of direct kernels, `crossing_fill` and `peer_s` are fitted by
    results/collectives/make.py. The others are set by hand to logs of several machines, and make.py reports the errors: `norm`
    to all-reduces over 1, 2, 4 and 8 NICs of a node; `flow_efficiency` to single flows of 36 and 43 GB/s over NICs of 50 GB/s in
    two clusters; `pair_efficiency` to pairs inside a node, which reach 308 GB/s on A100 and 362 GB/s on H100, by straight-line
    fits; `pair_tree_efficiency` to trees over two nodes, which send 8 / 15 of the bytes of a ring at 0.47 of its rate where they
    were forced (8 B200 of a node), and at 0.48 where NCCL's cost model takes them (8 A100 of a node), and 4 / 7 of these bytes at
    0.57 (4 GH200 of a node); `shared_nics` to what is said of all-to-alls with fewer NICs
    than GPUs. What rests on the log of a single cluster stands in the file of its fabric (`Across`), with an uncertainty.
    """

    alltoall_launch: float = 1.41
    """Launch time of all-to-all and point-to-point over the launch time of a ring: these are set up anew at each call."""
    alltoall_step: float = 0.17
    """Time of each further peer of an all-to-all, over the step time of a ring: peers are served in parallel."""
    alltoall_efficiency: float = 1.01
    """Efficiency of an all-to-all over the efficiency of a ring."""
    pair_efficiency: float = 1.15
    """Efficiency of a single pair that sends both ways, over the efficiency of a ring."""
    direct_launch: float = 0.47
    """Launch time of kernels that read their peers' memory, over the launch time of a ring."""
    direct_vllm_launch: float = 1.48
    """Launch time of such kernels of vLLM, over those of TensorRT-LLM."""
    direct_efficiency: float = 1.26
    """Efficiency of kernels that read their peers' memory, over the efficiency of a ring."""
    norm: float = 8.0
    """Exponent of the p-norm that combines the times of two bottlenecks in series; an infinite exponent takes the slower one."""
    crossing_fill: float = 2.0
    """Factor on the latency of crossings that is added to `fill_s`, as crossings also fill the pipeline."""
    peer_s: float = 4.8 / US_PER_S
    """Time of the proxy thread for each further remote peer of an all-to-all, in seconds."""
    flow_efficiency: float = 0.85
    """Rate of a single flow between two NICs, over the rate of many flows."""
    pair_tree_efficiency: float = 0.93
    """Time of rings on NICs over the time of trees, over two nodes: such trees send up and down through the same GPU."""
    shared_nics: float = 0.5
    """Rate of an all-to-all over the rate of a ring where a node has fewer NICs than GPUs in the group."""


LAWS = Laws()
