"""What a collective takes alone on a cluster: the cluster's links as the measured fabrics know them, looked up once per call."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from ...binding.conduct import Cut
from ...collectives import is_pipelined
from ...costs import theory
from ...costs.curves import Alone, Curve, alone
from ...costs.links import Across, Inside
from ...costs.theory import Call
from ...engine.task import Array
from ...hardware.cluster import Cluster
from .. import catalog
from .cluster_links import SWITCH, links_of

if TYPE_CHECKING:
    from .by_rounds import Walk

IDEAL = "ideal"
"""The fabric of a cluster whose links are taken at their face value."""
QUANTUM = ("hdr-ib", "ndr-ib", "xdr-ib")
"""Networks whose switches can add up, for libraries that are set up to use them: NVIDIA Quantum, from SHARPv2 of 2019 on."""
MEASURED_AS = {"exchange": "sendrecv"}
KNOWN_AS = {"nvls_tree": "nvls", "point_to_point": theory.ALGORITHMS[0]}
"""What the measurements and the theory of some algorithms are called."""

Timing = Callable[[str, str, Array, int], Alone | None]
"""By kind, algorithm, the nodes of a group's members and payload bytes; None if nothing is known."""


def timing_on(cluster: Cluster) -> Timing | None:
    """How long collectives take on a cluster; None for an ideal one, and for one whose links somebody drew by hand."""
    if not is_known(cluster):
        return None

    @cache
    def links() -> tuple[Inside, Across | None, tuple[Curve, ...]]:
        return links_of(cluster, cluster.fabric or None)

    @cache
    def timed(kind: str, algorithm: str, ranks: int, nodes: int, payload_bytes: int) -> Alone | None:
        if algorithm not in theory.ALGORITHMS or kind not in theory.KINDS or not payload_bytes:
            return None
        return alone(Call(kind, payload_bytes, ranks, nodes, algorithm, placed=True), *links())

    walked = _walked_on(cluster)

    def timing(kind: str, algorithm: str, nodes: Array, payload_bytes: int) -> Alone | None:
        known, over = KNOWN_AS.get(algorithm, algorithm), len(set(nodes.tolist()))
        if known not in theory.ALGORITHMS and payload_bytes:
            from . import by_rounds

            how = walked(kind, algorithm, tuple(nodes.tolist()))
            call = Call(kind, payload_bytes, len(nodes), over, algorithm)
            return by_rounds.alone(call, how, *links()[:2])
        return timed(MEASURED_AS.get(kind, kind), known, len(nodes), over, payload_bytes)

    return timing


def cut_on(cluster: Cluster, pieces: int | None) -> Cut | None:
    """What so many pieces make of the times on a cluster; None if they are ever finer, and where links are at face value.

    A pipelined algorithm then takes what the rule of rounds makes of so many pieces over ever finer ones.
    """
    if pieces is None or not is_known(cluster):
        return None
    from . import by_rounds

    fine, walked = _walked_on(cluster), _walked_on(cluster, pieces)

    def cut(known: Alone, kind: str, algorithm: str, nodes: Array, payload_bytes: int) -> Alone:
        members = tuple(nodes.tolist())
        if not is_pipelined(catalog.module("collectives", algorithm)) or len(nodes) < 2:
            return known
        inside, across, _ = links_of(cluster, cluster.fabric or None, curves=False)
        call = Call(kind, payload_bytes, len(nodes), len(set(members)), algorithm)
        ways = walked(kind, algorithm, members), fine(kind, algorithm, members)
        in_pieces, at_best = (by_rounds.alone(call, way, inside, across) for way in ways)
        if math.isclose(in_pieces.seconds, at_best.seconds):
            return known
        return by_rounds.like(known, known.seconds * in_pieces.seconds / at_best.seconds, call)

    return cut


def _walked_on(cluster: Cluster, pieces: int | None = None) -> Callable[[str, str, tuple[int, ...]], Walk]:
    """How algorithms go about a kind of collective on a cluster, worked out once for members in the same nodes."""

    @cache
    def walked(kind: str, algorithm: str, nodes: tuple[int, ...]) -> Walk:
        from . import by_rounds

        gpus = by_rounds.seats(cluster, np.array(nodes))
        return by_rounds.walk(catalog.module("collectives", algorithm), kind, cluster, gpus, pieces)

    return walked


def switch_abilities(cluster: Cluster) -> list[str]:
    """In which networks of a cluster the switches add up: inside nodes (nvls), between them (sharp)."""
    if not is_known(cluster):
        return []
    inside, across, _ = links_of(cluster, cluster.fabric or None, curves=False)
    return ["nvls"] * (inside.nvls_efficiency > 0) + ["sharp"] * (across is not None and across.sharp)


def can_add_up(cluster: Cluster, ability: str, ranks: int, nodes: int) -> bool:
    """Whether the switches that so many ranks over so many nodes need can add up if they are asked to, as nvls or as sharp.

    Links at their face value take the network's for granted, and those of any NVSwitch, for however few GPUs.
    """
    if not is_known(cluster):
        return ability == "sharp" or any(run.kind == SWITCH for run in cluster.wiring.vertices)
    inside, across, _ = links_of(cluster, cluster.fabric or None, curves=False)
    if ability == "nvls" or nodes == 1:
        enough = ranks >= theory.FEWEST_AT_A_SWITCH * nodes
        return enough and inside.nvls_efficiency > 0 and (nodes == 1 or across is None or across.nvls)
    return across is not None and (across.sharp or cluster.fabric in QUANTUM)


def is_known(cluster: Cluster) -> bool:
    """Whether fabrics speak of the links of a cluster; else they are taken at their face value."""
    return cluster.fabric != IDEAL and cluster.nvlink.bytes_per_s > 0
