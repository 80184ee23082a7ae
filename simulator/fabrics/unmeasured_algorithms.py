"""Uncontended times by rounds: what an algorithm that nobody measured takes at the constants of a measured fabric.

t = launch + latencies + y + sqrt(fill x y), the form of costs/collectives/theory.py: each round waits for a step of the fabric,
or a crossing where it leaves a node, and for every further peer that a GPU sends to across at once, as direct all-to-all does; y
adds up what the busiest GPU, the busiest NIC and the busiest node put on the wire, at the rates that the fabric reaches. So
what is compared with a library's ring pays what the ring pays. Where a shape has data handed over inside the node to the GPU
on the target's rail (PXN), it is on that GPU's NIC, and on the links inside on its way there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np

from ..collectives import Round, is_pipelined, joined, windows
from ..costs.collectives import theory
from ..costs.collectives.curves import THEORY_SIGMA_ACROSS, THEORY_SIGMA_INSIDE, UncontendedTime
from ..costs.collectives.link_constants import LAWS, Across, Inside
from ..costs.collectives.theory import Call
from ..engine.task import Array
from ..hardware.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Load:
    """Parts of the payload that the busiest move: a GPU in its node, and in all, a NIC, all NICs of a node, a wire in a node."""

    inside: float
    in_all: float
    over_nic: float
    over_nics: float
    over_wire: float = 0.0
    """Load of the busiest wire over its part of a GPU's rate; 0 where wires are not looked at."""


@dataclass(frozen=True, slots=True)
class PlacedRounds:
    """The rounds of an algorithm on a cluster."""

    rounds: tuple[tuple[int, float, float, int], ...]
    """How often a round comes, the share of its messages that cross between nodes, the largest of these as a part of the payload,
    and to how many peers beyond the first the busiest GPU sends across at once."""
    loads: tuple[Load, ...]
    """Per window of rounds that are under way together."""


def placed_rounds(
    algorithm: ModuleType, kind: str, cluster: Cluster, gpus: Array, pieces: int | None = None, *, wired: bool = False
) -> PlacedRounds:
    """How an algorithm goes about a kind of collective among these GPUs of a cluster; if pipelined, in so many pieces. Where
    GPUs are `wired` to each other without a switch, it waits for the wires on its routes too.
    """
    nodes = gpus // cluster.gpus_per_node
    rounds = algorithm.rounds(kind, nodes)
    pieces = pieces if is_pipelined(algorithm) else 1
    cut = windows(rounds, pieces)
    loads = tuple(_load(together, ticks / (pieces or 1), cluster, gpus, wired=wired) for together, ticks in cut)
    return PlacedRounds(tuple((r.repeats, *_crossing(r, nodes)) for r in rounds), loads)


def gpus_in(cluster: Cluster, nodes: Array) -> Array:
    """GPUs for members of whom only the nodes are known: spread over the GPUs of each node, and so over its NICs."""
    order = np.argsort(nodes, kind="stable")
    _, first, counts = np.unique(nodes[order], return_index=True, return_counts=True)
    place = np.empty(len(nodes), dtype=np.int64)
    place[order] = np.arange(len(nodes)) - np.repeat(first, counts)
    found: Array = nodes * cluster.gpus_per_node + place * cluster.gpus_per_node // np.repeat(counts, counts)[np.argsort(order)]
    return found


def _crossing(r: Round, nodes: Array) -> tuple[float, float, int]:
    """A single round waits for its slowest message; one that repeats goes round, and takes the mean."""
    far = nodes[r.edges.source] != nodes[r.edges.target]
    if not far.any():
        return 0.0, 0.0, 0
    share = r.edges.share
    part = 1.0 if r.repeats == 1 else float(share[far].sum() / share.sum())
    return part, float(r.fraction) * float(share[far].max()), int(np.bincount(r.edges.source[far]).max()) - 1


def _load(rounds: Sequence[Round], times: float, cluster: Cluster, gpus: Array, *, wired: bool) -> Load:
    """Loads on the busiest in either direction, by the routes of messages that are all under way together so many times."""
    edges = joined([(r.edges, float(r.fraction * r.repeats)) for r in rounds])
    source, target, per_node = gpus[edges.source], gpus[edges.target], cluster.gpus_per_node
    far = np.flatnonzero(source // per_node != target // per_node)
    gate = source.copy()
    gate[far] = cluster.relay(source[far], target[far])
    handed, near = np.flatnonzero(gate != source), np.flatnonzero(source // per_node == target // per_node)

    def busiest(*hops: tuple[Array, Array, Array]) -> float:
        out, into, share = (np.concatenate(column) for column in zip(*hops, strict=True))
        return times * max(float(np.bincount(end, share, 1).max()) for end in (out, into))

    crossing = gate[far], target[far], edges.share[far]
    inside = (source[near], target[near], edges.share[near]), (source[handed], gate[handed], edges.share[handed])
    on_wires = tuple(np.concatenate(column) for column in zip(*inside, strict=True))
    return Load(
        busiest(*inside),
        busiest(*inside, crossing),
        busiest((cluster.nic_of(gate[far]), cluster.nic_of(target[far]), edges.share[far])),
        busiest((gate[far] // per_node, target[far] // per_node, edges.share[far])),
        times * _over_wire(cluster, *on_wires) if wired else 0.0,
    )


def _over_wire(cluster: Cluster, source: Array, target: Array, share: Array) -> float:
    """Load of messages inside nodes on the busiest wire of their routes, over its part of a GPU's rate."""
    links = cluster.route(source, target)
    used = links >= 0
    carried = np.bincount(links[used], np.broadcast_to(share[:, None], links.shape)[used], cluster.wiring.links)
    return float((carried / cluster.wiring.capacity_bytes_per_s).max(initial=0.0)) * cluster.nvlink.bytes_per_s


def uncontended_time(call: Call, placed: PlacedRounds, inside: Inside, across: Across | None) -> UncontendedTime:
    """The time of a call whose rounds were placed; always `theoretical`."""
    latency_s = crossings = 0.0
    for repeats, part, message, more_peers in placed.rounds:
        latency_s += repeats * ((1 - part) * inside.step_s + more_peers * LAWS.peer_s)
        if across is not None and part:
            latency_s += repeats * part * across.crossing_s * across.handshake(call.payload_bytes * message)
            crossings += repeats * part
    on_wire_s = wire_s(call, placed, inside, across)
    deep_s = LAWS.crossing_fill * min(2.0, crossings) * across.crossing_s if across is not None else 0.0
    seconds = inside.launch_s + latency_s + on_wire_s + math.sqrt((inside.fill_s + deep_s) * on_wire_s)
    sigma = THEORY_SIGMA_ACROSS if call.nodes > 1 else THEORY_SIGMA_INSIDE
    return UncontendedTime(seconds, "theoretical", "its rounds on these links", sigma)


def scaled(known: UncontendedTime, seconds: float, call: Call) -> UncontendedTime:
    """A known time changed by this rule: at best extrapolated."""
    if known.provenance == "theoretical":
        return replace(known, seconds=seconds)
    scale = THEORY_SIGMA_ACROSS if call.nodes > 1 else THEORY_SIGMA_INSIDE
    return replace(known, seconds=seconds, provenance="extrapolated", uncertainty=math.hypot(known.uncertainty, scale / 2))


def wire_s(call: Call, placed: PlacedRounds, inside: Inside, across: Across | None) -> float:
    """The time of a call on the wire: of the busiest, window by window."""
    return sum(_wire_s(call, load, inside, across) for load in placed.loads)


def _wire_s(call: Call, load: Load, inside: Inside, across: Across | None) -> float:
    """The time of one window: the p-norm of what GPUs and nodes need, as in the theory."""
    carried = load.in_all if inside.carries_out(call.per_node) else load.inside
    slow = max(carried / inside.rate(call.per_node), load.over_wire / inside.bytes_per_s)
    on_gpu = slow * call.payload_bytes / theory.reached(call, inside)
    on_gpu *= inside.flagged(call.payload_bytes, call.per_node)
    if across is None or not load.over_nics:
        return on_gpu
    nics = min(across.nics, math.ceil(call.per_node))
    most = max(load.over_nic, load.over_nics / nics)
    on_nics = most * call.payload_bytes / (across.nic_bytes_per_s * across.efficiency)
    return theory.bottleneck_s(on_gpu, on_nics)
