"""Collectives with nothing around them: on a fabric without hosts of their own troubles, through binding and the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType

import simulator as sim
from simulator.binding.bind import Site, bind
from simulator.binding.collective_policy import CollectivePolicy
from simulator.collectives import Round
from simulator.engine import des
from simulator.engine.fold import fold
from simulator.engine.replay import with_fixed_durations
from simulator.hardware.cluster import Cluster, LinkSpec
from simulator.kernels import Kernel
from simulator.plan.mesh import Mesh
from simulator.program.operations import Collective, Communicator
from simulator.program.program import Body, Program, Step
from simulator.units import seconds

GB = 10**9
US = 1e-6
BANDWIDTH = 100 * GB
"""Bytes/s of the ideal fabric, per rank and direction."""
LATENCY = 4 * US
"""Seconds per message on the ideal fabric."""


def steps(rounds: Sequence[Round]) -> int:
    """Messages that follow one another."""
    return sum(r.repeats for r in rounds)


def one_node(ranks: int) -> Cluster:
    """All ranks behind one switch."""
    shape = {"gpu": "h100", "gpus_per_node": ranks, "nodes": 1, "intra_node": "NVSwitch 450 GB/s", "shape": "nvswitch"}
    return replace(sim.cluster(shape), nvlink=LinkSpec(BANDWIDTH, LATENCY / 2))


def many_nodes(nodes: int, per_node: int, nic_latency_s: float = LATENCY, nic_bytes_per_s: float = BANDWIDTH / 4) -> Cluster:
    """Nodes with a NIC per rank, on one rail switch per NIC; hosts cost nothing. A message between nodes has `nic_latency_s`."""
    shape = {
        "gpu": "h100", "gpus_per_node": per_node, "nodes": nodes, "intra_node": "NVSwitch 450 GB/s",
        "inter_node": f"{per_node}x400 Gbit/s", "shape": "rail-optimized", "nodes_per_pod": nodes,
    }  # fmt: skip
    return replace(
        sim.cluster(shape),
        nvlink=LinkSpec(BANDWIDTH, LATENCY / 2),
        pcie=LinkSpec(1000 * GB, 0.0),
        nic=LinkSpec(nic_bytes_per_s, nic_latency_s / 2),
    )


def makespan_s(algorithm: ModuleType, kind: str, cluster: Cluster, streams: Sequence[Sequence[int]]) -> float:
    """When the last is done of some collectives over all GPUs of a cluster.

    Each stream is a list of payloads in bytes, moved one after the other; streams run beside one another, each with a
    communicator of its own.
    """
    communicators = {name: Communicator(name, "dp", ("dp",)) for name in map(str, range(len(streams)))}
    ops = [
        Collective(name=f"{s}/{i}", streams=(s,), after=(), communicator=s, kind=kind, payload_bytes=size)
        for s, sizes in zip(communicators, streams, strict=True)
        for i, size in enumerate(sizes)
    ]
    program = Program((), {"body": Body(tuple(ops))}, ((Step("body", "collective"),),), communicators)
    site = Site(cluster, no_kernels, CollectivePolicy({"it": algorithm}, {}, "it"))
    bound = bind(program, Mesh.of({"dp": cluster.gpus}, "dp"), site)
    return seconds(des.simulate(with_fixed_durations(fold(bound.skeleton).graph)).makespan_ns)


def uncontended_s(algorithm: ModuleType, kind: str, payload_bytes: int, cluster: Cluster) -> float:
    """What one collective over all GPUs of a cluster takes."""
    return makespan_s(algorithm, kind, cluster, [[payload_bytes]])


def no_kernels(kernel: Kernel) -> int:
    return 0
