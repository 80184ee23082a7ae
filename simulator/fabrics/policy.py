"""Collective libraries on a cluster: the algorithms they have there, the ones they take, and the uncontended times.

The file of a fabric may name algorithms (`choices:`); otherwise an all-reduce takes what NCCL's own cost model chooses.
There are two ways to time a collective, and no third. `costs.collectives.curves` corrects the closed forms of `theory` by what
was measured, for the algorithms that libraries have. `unmeasured_algorithms` adds up the rounds of any other algorithm at the
constants of the same links. Payloads cut into pieces and uneven exchanges scale one of the two by a ratio of the second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from ..binding.collective_policy import AUTO, Choose, CollectivePolicy, PiecesCorrection, Timing, takes
from ..collectives import is_pipelined
from ..config import catalog
from ..costs.collectives import nccl_choice, theory
from ..costs.collectives.curves import DIRECT_MOST_BYTES, UncontendedTime, uncontended_time
from ..costs.collectives.theory import Call
from ..engine.task import Array
from ..errors import UserError, did_you_mean
from ..hardware.cluster import Cluster
from . import unmeasured_algorithms
from .of_cluster import SWITCH, Links, links_of

if TYPE_CHECKING:
    from .unmeasured_algorithms import PlacedRounds


@dataclass(frozen=True, slots=True)
class Library:
    """A library of collectives, by its all-reduces; everything else it does as NCCL does."""

    series: str = "auto"
    """The measured series that its own choices belong to: `plain` where switches cannot reduce the type of the data."""
    direct_most_bytes: int = 0
    """Up to this payload, kernels of its own read the memory of their peers within a node."""

    def more(self, links: Links) -> Mapping[str, tuple[str, ...]]:
        """Algorithms that `auto` has besides on measured links, by kind of collective."""
        switches = [] if self.series == "plain" else reducing_networks(links)
        own = ("direct",) if self.direct_most_bytes else ()
        return {"all_reduce": (*own, *(name for network in switches for name in IN_SWITCHES[network]))}


NCCL = "nccl"
LIBRARIES: Mapping[str, Library] = {
    NCCL: Library(),
    "nccl-plain": Library(series="plain"),
    "trtllm": Library(direct_most_bytes=DIRECT_MOST_BYTES),
    "vllm": Library(direct_most_bytes=DIRECT_MOST_BYTES),
}
COMMON_ALGORITHMS = {
    "all_reduce": ("ring", "tree"),
    "reduce_scatter": ("ring",),
    "all_gather": ("ring",),
    "alltoall": ("direct",),
    "broadcast": ("ring",),
    "sendrecv": ("point_to_point",),
    "exchange": ("point_to_point",),
}
"""Algorithms that `auto` chooses from everywhere: those of NCCL."""
IN_SWITCHES = {"nvls": ("nvls", "nvls_tree"), "sharp": ("sharp",)}
"""Algorithms of NCCL for all-reduces where switches reduce, inside nodes and between them."""
AT_FACE_VALUE = {
    **dict.fromkeys(("all_reduce", "reduce_scatter", "all_gather"), ("hierarchical_pipelined",)),
    "broadcast": ("tree",),
}
"""Algorithms that `auto` has besides on links at their face value, where it takes the fastest: a library made for them."""
MEASURED_AS = {"exchange": "sendrecv"}
KNOWN_AS = {"nvls_tree": "nvls", "point_to_point": theory.ALGORITHMS[0]}
"""Names of some kinds and algorithms in the measurements and the theory."""
QUANTUM = ("hdr-ib", "ndr-ib", "xdr-ib")
"""Networks whose switches can reduce, for libraries that are set up to use them: NVIDIA Quantum, from SHARPv2 of 2019 on."""


def policy_on(cluster: Cluster, algorithm: str = AUTO, pieces: int | None = None, library: str = NCCL) -> CollectivePolicy:
    """How collectives are done on a cluster: by the algorithm named, or as its library would; in so many pieces."""
    known, wanted = catalog.files("collectives"), catalog.written("collectives", algorithm)
    if wanted not in (AUTO, *known):
        raise UserError(f"no algorithm {algorithm!r}", hint=did_you_mean(algorithm, [AUTO, *known]))
    if library not in LIBRARIES:
        raise UserError(f"no library {library!r}", hint=did_you_mean(library, LIBRARIES))
    links, does = links_of(cluster), LIBRARIES[library]
    own = does.more(links) if links else AT_FACE_VALUE
    choices = {kind: [*names, *own.get(kind, ())] for kind, names in COMMON_ALGORITHMS.items()}
    for line in links.choices if links else ():
        choices[line.kind].append(line.algorithm)
    used = {wanted, *(name for names in choices.values() for name in names)} - {AUTO}
    modules = {name: catalog.module("collectives", name) for name in sorted(used)}
    if links is None:
        return CollectivePolicy(modules, choices, wanted, pieces=pieces)

    def measured_as(kind: str, name: str) -> str:
        return does.series if (wanted, does.series, kind) == (AUTO, "plain", "all_reduce") and name in theory.PLAIN else name

    return CollectivePolicy(
        modules,
        choices,
        wanted,
        _timing_on(cluster, links, measured_as),
        _choice_on(cluster, links, does),
        pieces,
        _pieces_correction_on(cluster, links, pieces) if pieces else None,
    )


def call_of(kind: str, algorithm: str, nodes: Array, payload_bytes: int, *, placed: bool = False) -> Call:
    """The call of a collective whose members sit in these nodes."""
    return Call(kind, payload_bytes, len(nodes), len(set(nodes.tolist())), algorithm, placed)


def _choice_on(cluster: Cluster, links: Links, library: Library) -> Choose:
    """The algorithm that the fabric's file names, else the library's choice, else the first that every library has."""

    def choice(kind: str, nodes: Array, payload_bytes: int) -> str | None:
        call = call_of(kind, library.series, nodes, payload_bytes)
        able = (line for line in links.choices if _can_serve(line.algorithm, cluster, nodes, call))
        if name := nccl_choice.configured_algorithm(able, kind, payload_bytes, call.nodes):
            return name
        if kind != "all_reduce":
            return COMMON_ALGORITHMS[kind][0]
        if call.nodes == 1 and payload_bytes <= library.direct_most_bytes:
            return "direct"
        name = theory.taken(call, links.inside, links.across)
        return "nvls_tree" if name == "nvls" and call.nodes > 1 else name

    return choice


def _can_serve(name: str, cluster: Cluster, nodes: Array, call: Call) -> bool:
    """Whether an algorithm can serve such a group on a cluster, whose switches may have to reduce for that."""
    if not takes(catalog.module("collectives", name), call.kind, nodes):
        return False
    needs = next((network for network, names in IN_SWITCHES.items() if name in names), None)
    return needs is None or (can_reduce(cluster, needs, call.ranks, call.nodes) and (call.nodes > 1 or needs != "sharp"))


def reducing_networks(links: Links | None) -> list[str]:
    """In which networks of a cluster libraries let the switches reduce: inside nodes (nvls), between them (sharp)."""
    if links is None:
        return []
    return ["nvls"] * (links.inside.nvls_efficiency > 0) + ["sharp"] * (links.across is not None and links.across.sharp)


def can_reduce(cluster: Cluster, network: str, ranks: int, nodes: int) -> bool:
    """Whether the switches that so many ranks over so many nodes need can reduce if they are asked to, as nvls or as sharp.

    Links at their face value take the network's for granted, and those of any NVSwitch, for however few GPUs.
    """
    links = links_of(cluster)
    if links is None:
        return network == "sharp" or any(run.kind == SWITCH for run in cluster.wiring.vertices)
    across = links.across
    if network == "nvls" or nodes == 1:
        enough = ranks >= theory.FEWEST_AT_A_SWITCH * nodes
        return enough and links.inside.nvls_efficiency > 0 and (nodes == 1 or across is None or across.nvls)
    return across is not None and (across.sharp or cluster.fabric in QUANTUM)


# Uncontended times ----------------------------------------------------------------------------------------------------------


def _timing_on(cluster: Cluster, links: Links, measured_as: Callable[[str, str], str]) -> Timing:
    """How long collectives take on a cluster. `measured_as` gives, by kind and algorithm, which of a library's measured series
    an algorithm of that name belongs to.
    """
    placed = _placed_on(cluster)

    @cache
    def measured(call: Call) -> UncontendedTime:
        return uncontended_time(call, links.inside, links.across, links.curves)

    def timing(kind: str, algorithm: str, nodes: Array, payload_bytes: int) -> UncontendedTime | None:
        series = measured_as(kind, KNOWN_AS.get(algorithm, algorithm))
        if not payload_bytes:
            return None
        if series not in theory.ALGORITHMS:
            call, rounds = call_of(kind, algorithm, nodes, payload_bytes), placed(kind, algorithm, tuple(nodes.tolist()))
            return unmeasured_algorithms.uncontended_time(call, rounds, links.inside, links.across)
        kind = MEASURED_AS.get(kind, kind)
        return measured(call_of(kind, series, nodes, payload_bytes, placed=True)) if kind in theory.KINDS else None

    return timing


def _pieces_correction_on(cluster: Cluster, links: Links, pieces: int) -> PiecesCorrection:
    """The correction of known times where pipelined algorithms cut a payload into so many pieces: the modelled ratio of so many
    pieces to infinitely fine pipelining.
    """
    fine, placed = _placed_on(cluster), _placed_on(cluster, pieces)

    def corrected(known: UncontendedTime, kind: str, algorithm: str, nodes: Array, payload_bytes: int) -> UncontendedTime:
        if not is_pipelined(catalog.module("collectives", algorithm)) or len(nodes) < 2:
            return known
        call, members = call_of(kind, algorithm, nodes, payload_bytes), tuple(nodes.tolist())
        pieces_s, fine_s = (
            unmeasured_algorithms.uncontended_time(call, rounds, links.inside, links.across).seconds
            for rounds in (placed(kind, algorithm, members), fine(kind, algorithm, members))
        )
        if math.isclose(pieces_s, fine_s):
            return known
        return unmeasured_algorithms.scaled(known, known.seconds * pieces_s / fine_s, call)

    return corrected


def _placed_on(cluster: Cluster, pieces: int | None = None) -> Callable[[str, str, tuple[int, ...]], PlacedRounds]:
    """How algorithms go about a kind of collective on a cluster, worked out once for members in the same nodes."""

    @cache
    def placed(kind: str, algorithm: str, nodes: tuple[int, ...]) -> PlacedRounds:
        gpus = unmeasured_algorithms.gpus_in(cluster, np.array(nodes))
        return unmeasured_algorithms.placed_rounds(catalog.module("collectives", algorithm), kind, cluster, gpus, pieces)

    return placed
