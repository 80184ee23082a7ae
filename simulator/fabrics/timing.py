"""The uncontended time of a collective on a cluster, in one of two ways.

`costs.curves` corrects the closed forms of `costs.theory` by what was measured, for the algorithms that libraries have.
`by_rounds` adds up the rounds of any other algorithm at the constants of the same links.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from ..binding.collective_policy import PiecesCorrection, Timing
from ..collectives import is_pipelined
from ..config import catalog
from ..costs.collectives import theory
from ..costs.collectives.curves import UncontendedTime, uncontended_time
from ..costs.collectives.theory import Call
from ..engine.task import Array
from ..hardware.cluster import Cluster
from . import unmeasured_algorithms
from .of_cluster import Links

if TYPE_CHECKING:
    from .unmeasured_algorithms import Walk

MEASURED_AS = {"exchange": "sendrecv"}
KNOWN_AS = {"nvls_tree": "nvls", "point_to_point": theory.ALGORITHMS[0]}
"""What the measurements and the theory of some algorithms are called."""


def timing_on(cluster: Cluster, links: Links, measured_as: Callable[[str, str], str]) -> Timing:
    """How long collectives take on a cluster. `measured_as` gives, by kind and algorithm, which of a library's measured series
    an algorithm of that name belongs to.
    """

    @cache
    def timed(kind: str, algorithm: str, ranks: int, nodes: int, payload_bytes: int) -> UncontendedTime | None:
        if algorithm not in theory.ALGORITHMS or kind not in theory.KINDS or not payload_bytes:
            return None
        call = Call(kind, payload_bytes, ranks, nodes, algorithm, placed=True)
        return uncontended_time(call, links.inside, links.across, links.curves)

    walked = _walked_on(cluster)

    def timing(kind: str, algorithm: str, nodes: Array, payload_bytes: int) -> UncontendedTime | None:
        known, over = measured_as(kind, KNOWN_AS.get(algorithm, algorithm)), len(set(nodes.tolist()))
        if known not in theory.ALGORITHMS and payload_bytes:
            walk = walked(kind, algorithm, tuple(nodes.tolist()))
            call = Call(kind, payload_bytes, len(nodes), over, algorithm)
            return unmeasured_algorithms.uncontended_time(call, walk, links.inside, links.across)
        return timed(MEASURED_AS.get(kind, kind), known, len(nodes), over, payload_bytes)

    return timing


def pieces_correction_on(cluster: Cluster, links: Links, pieces: int) -> PiecesCorrection:
    """The correction of known times where pipelined algorithms cut a payload into so many pieces: the modelled ratio of so many
    pieces to infinitely fine pipelining.
    """

    fine, walked = _walked_on(cluster), _walked_on(cluster, pieces)

    def corrected(known: UncontendedTime, kind: str, algorithm: str, nodes: Array, payload_bytes: int) -> UncontendedTime:
        members = tuple(nodes.tolist())
        if not is_pipelined(catalog.module("collectives", algorithm)) or len(nodes) < 2:
            return known
        call = Call(kind, payload_bytes, len(nodes), len(set(members)), algorithm)
        walks = walked(kind, algorithm, members), fine(kind, algorithm, members)
        in_pieces, at_best = (unmeasured_algorithms.uncontended_time(call, walk, links.inside, links.across) for walk in walks)
        if math.isclose(in_pieces.seconds, at_best.seconds):
            return known
        return unmeasured_algorithms.scaled(known, known.seconds * in_pieces.seconds / at_best.seconds, call)

    return corrected


def _walked_on(cluster: Cluster, pieces: int | None = None) -> Callable[[str, str, tuple[int, ...]], Walk]:
    """How algorithms go about a kind of collective on a cluster, worked out once for members in the same nodes."""

    @cache
    def walked(kind: str, algorithm: str, nodes: tuple[int, ...]) -> Walk:

        gpus = unmeasured_algorithms.seats(cluster, np.array(nodes))
        return unmeasured_algorithms.walk(catalog.module("collectives", algorithm), kind, cluster, gpus, pieces)

    return walked
