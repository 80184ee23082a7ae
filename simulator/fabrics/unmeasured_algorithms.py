"""Uncontended times of algorithms without measurements, computed from their rounds with the constants of a measured fabric.

t = launch + latencies + y + sqrt(fill x y), the form of costs/collectives/theory.py: each round waits for a step of the fabric,
or for a crossing where the round leaves a node, and for every further peer in other nodes that a GPU sends to at once, as in a
direct all-to-all; y adds up the time on the wire of the busiest GPU, NIC and node in every window of rounds, at the rates that
the fabric reaches. A library's ring and an algorithm by rounds therefore have comparable costs. Where a shape hands data over
inside the node to the GPU on the target's rail (PXN), the data loads the NIC of this GPU, and the links inside the node to it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from functools import cache
from types import ModuleType

import numpy as np

from ..binding.collective_policy import PiecesCorrection
from ..collectives import Round, is_pipelined, joined, windows
from ..config import catalog
from ..costs.collectives import theory
from ..costs.collectives.curves import UncontendedTime, theory_sigma
from ..costs.collectives.link_constants import LAWS, Across, Inside
from ..costs.collectives.theory import Call
from ..engine.task import Array
from ..hardware.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Load:
    """Parts of the payload that the busiest GPU moves inside its node and in total, and the busiest NIC, node and wire move."""

    inside: float
    in_all: float
    over_nic: float
    over_nics: float
    over_wire: float = 0.0
    """Load of the busiest wire over the wire's fraction of a GPU's rate; 0 where wires are not considered."""


@dataclass(frozen=True, slots=True)
class PlacedRounds:
    """The rounds of an algorithm with their messages placed on the GPUs of a cluster."""

    rounds: tuple[tuple[int, float, float, int], ...]
    """Per round: repeats, the share of messages that cross between nodes, the largest crossing message as a part of the payload,
    and the number of peers beyond the first in other nodes that the busiest GPU sends to at once."""
    loads: tuple[Load, ...]
    """Loads of each window of rounds that are active together."""

    def of_payload(self, times: float) -> PlacedRounds:
        """The same messages as parts of a payload that is `times` times as large."""
        rounds = tuple((repeats, part, message / times, peers) for repeats, part, message, peers in self.rounds)
        return PlacedRounds(rounds, tuple(Load(*(part / times for part in astuple(load))) for load in self.loads))


def placed_rounds(
    algorithm: ModuleType, kind: str, cluster: Cluster, gpus: Array, pieces: int | None = None, *, wired: bool = False
) -> PlacedRounds:
    """The rounds of an algorithm for a kind of collective among these GPUs of a cluster; a pipelined algorithm uses `pieces`
    pieces. Where GPUs are `wired` to each other without a switch, the loads include the wires on the routes.
    """
    nodes = gpus // cluster.gpus_per_node
    rounds = algorithm.rounds(kind, nodes)
    pieces = pieces if is_pipelined(algorithm) else 1
    cut = windows(rounds, pieces)
    loads = tuple(_load(together, ticks / (pieces or 1), cluster, gpus, wired=wired) for together, ticks in cut)
    return PlacedRounds(tuple((r.repeats, *_crossing(r, nodes)) for r in rounds), loads)


def placed_by_nodes(
    algorithm: str, kind: str, cluster: Cluster, members: tuple[int, ...], pieces: int | None = None
) -> PlacedRounds:
    """The rounds of an algorithm of the catalog for a kind of collective among members of which only the nodes are known: the
    members are spread evenly over the GPUs of each node, and thus over its NICs.
    """
    nodes = np.array(members)
    order = np.argsort(nodes, kind="stable")
    _, first, counts = np.unique(nodes[order], return_index=True, return_counts=True)
    place = np.empty(len(nodes), dtype=np.int64)
    place[order] = np.arange(len(nodes)) - np.repeat(first, counts)
    gpus = nodes * cluster.gpus_per_node + place * cluster.gpus_per_node // np.repeat(counts, counts)[np.argsort(order)]
    return placed_rounds(catalog.module("collectives", algorithm), kind, cluster, gpus, pieces)


def _crossing(r: Round, nodes: Array) -> tuple[float, float, int]:
    """Share of crossing messages, largest crossing message and further peers of a round. A single round waits for its slowest
    message, so the share is 1 with any crossing; the messages of a round that repeats take turns, so the share is the mean."""
    far = nodes[r.edges.source] != nodes[r.edges.target]
    if not far.any():
        return 0.0, 0.0, 0
    share = r.edges.share
    part = 1.0 if r.repeats == 1 else float(share[far].sum() / share.sum())
    return part, float(r.fraction) * float(share[far].max()), int(np.bincount(r.edges.source[far]).max()) - 1


def _load(rounds: Sequence[Round], times: float, cluster: Cluster, gpus: Array, *, wired: bool) -> Load:
    """Loads of the busiest GPU, NIC, node and wire in either direction, for rounds that are active together `times` times."""
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
    """Load of messages inside nodes on the busiest wire of their routes, over the wire's fraction of a GPU's rate."""
    links = cluster.route(source, target)
    used = links >= 0
    carried = np.bincount(links[used], np.broadcast_to(share[:, None], links.shape)[used], cluster.wiring.links)
    return float((carried / cluster.wiring.capacity_bytes_per_s).max(initial=0.0)) * cluster.nvlink.bytes_per_s


def uncontended_time(call: Call, placed: PlacedRounds, inside: Inside, across: Across | None) -> UncontendedTime:
    """The uncontended time of a call from its placed rounds; the provenance is always `theoretical`."""
    latency_s = crossings = 0.0
    for repeats, part, message, more_peers in placed.rounds:
        latency_s += repeats * ((1 - part) * inside.step_s + more_peers * LAWS.peer_s)
        if across is not None and part:
            latency_s += repeats * part * across.hop_s * theory.handshake(across, call.payload_bytes * message)
            crossings += repeats * part
    on_wire_s = wire_s(call, placed, inside, across)
    deep_s = LAWS.crossing_fill * min(2.0, crossings) * across.hop_s if across is not None else 0.0
    seconds = inside.launch_s + latency_s + on_wire_s + math.sqrt((inside.fill_s + deep_s) * on_wire_s)
    return UncontendedTime(seconds, "theoretical", "its rounds on these links", theory_sigma(call, inside, across))


def scaled(known: UncontendedTime, seconds: float, call: Call, inside: Inside, across: Across | None) -> UncontendedTime:
    """A known time replaced by `seconds` from the model of this module: the provenance is at best `extrapolated`."""
    if known.provenance == "theoretical":
        return replace(known, seconds=seconds)
    uncertainty = math.hypot(known.uncertainty, theory_sigma(call, inside, across) / 2)
    return replace(known, seconds=seconds, provenance="extrapolated", uncertainty=uncertainty)


def pieces_correction_on(cluster: Cluster, inside: Inside, across: Across | None, pieces: int) -> PiecesCorrection:
    """The correction of known times where pipelined algorithms cut a payload into `pieces` pieces: the modelled ratio of this
    number of pieces to infinitely fine pipelining.
    """

    @cache
    def placed(kind: str, algorithm: str, members: tuple[int, ...], cut: int | None) -> PlacedRounds:
        return placed_by_nodes(algorithm, kind, cluster, members, cut)

    def corrected(known: UncontendedTime, kind: str, algorithm: str, nodes: Array, payload_bytes: int) -> UncontendedTime:
        if not is_pipelined(catalog.module("collectives", algorithm)) or len(nodes) < 2:
            return known
        members = tuple(nodes.tolist())
        call = Call(kind, payload_bytes, len(members), len(set(members)), algorithm)
        by_cut = (placed(kind, algorithm, members, cut) for cut in (pieces, None))
        cut_s, fine_s = (uncontended_time(call, rounds, inside, across).seconds for rounds in by_cut)
        return known if math.isclose(cut_s, fine_s) else scaled(known, known.seconds * cut_s / fine_s, call, inside, across)

    return corrected


def wire_s(call: Call, placed: PlacedRounds, inside: Inside, across: Across | None) -> float:
    """Seconds of a call on the wire, summed over windows: the p-norm of the times of the busiest GPU and NICs, as in `theory`."""
    ranks, size, total_s = call.per_node, call.payload_bytes, 0.0
    for load in placed.loads:
        carried = load.in_all if theory.carries_out(inside, ranks) else load.inside
        slow = max(carried / theory.rate(inside, ranks), load.over_wire / inside.bytes_per_s)
        on_gpu = slow * size / theory.reached(call, inside)
        on_gpu *= theory.flagged(inside, size, ranks)
        if across is not None and load.over_nics:
            most = max(load.over_nic, load.over_nics / min(across.nics, math.ceil(ranks)))
            share = theory.share_of_exchange(across, ranks) if call.kind == "alltoall" else 1.0
            on_gpu = theory.bottleneck_s(on_gpu, most * size / (across.nic_bytes_per_s * across.efficiency * share))
        total_s += on_gpu
    return total_s
