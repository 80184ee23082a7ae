"""What a collective library does on a cluster: the algorithms it has there, the one it takes, and its uncontended times.

The file of a fabric may lay down algorithms (`choices:`); otherwise an all-reduce takes what NCCL's own cost model chooses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..binding.collective_policy import AUTO, Choose, CollectivePolicy, takes
from ..config import catalog
from ..costs.collectives import nccl_choice, theory
from ..costs.collectives.curves import DIRECT_MOST_BYTES
from ..costs.collectives.theory import Call
from ..engine.task import Array
from ..errors import UserError, did_you_mean
from ..hardware.cluster import Cluster
from .of_cluster import SWITCH, Links, links_of
from .timing import pieces_correction_on, timing_on


@dataclass(frozen=True, slots=True)
class Library:
    """A library of collectives, by its all-reduces; everything else it does as NCCL does."""

    series: str = "auto"
    """The measured series that its own choices belong to: `plain` where switches cannot reduce the type of the data."""
    direct_most_bytes: int = 0
    """Up to this payload, kernels of its own read the memory of their peers within a node."""


NCCL = "nccl"
LIBRARIES: Mapping[str, Library] = {
    NCCL: Library(),
    "nccl-plain": Library(series="plain"),
    "trtllm": Library(direct_most_bytes=DIRECT_MOST_BYTES),
    "vllm": Library(direct_most_bytes=DIRECT_MOST_BYTES),
}
HAS = {
    "all_reduce": ("ring", "tree"),
    "reduce_scatter": ("ring",),
    "all_gather": ("ring",),
    "alltoall": ("direct",),
    "broadcast": ("ring",),
    "sendrecv": ("point_to_point",),
    "exchange": ("point_to_point",),
}
"""What `auto` chooses from everywhere: what NCCL has."""
IN_SWITCHES = {"nvls": ("nvls", "nvls_tree"), "sharp": ("sharp",)}
"""What NCCL has for all-reduces where switches reduce, inside nodes and between them."""
AT_FACE_VALUE = {
    **dict.fromkeys(("all_reduce", "reduce_scatter", "all_gather"), ("hierarchical_pipelined",)),
    "broadcast": ("tree",),
}
"""What `auto` has besides on links at their face value, where it takes the fastest: a library made for them."""
QUANTUM = ("hdr-ib", "ndr-ib", "xdr-ib")
"""Networks whose switches can reduce, for libraries that are set up to use them: NVIDIA Quantum, from SHARPv2 of 2019 on."""


def policy_on(cluster: Cluster, algorithm: str = AUTO, pieces: int | None = None, library: str = NCCL) -> CollectivePolicy:
    """How collectives are done on a cluster: by the algorithm named, or as its library would; in so many pieces."""
    known, wanted = catalog.files("collectives"), catalog.written("collectives", algorithm)
    if wanted not in (AUTO, *known):
        raise UserError(f"no algorithm {algorithm!r}", hint=did_you_mean(algorithm, [AUTO, *known]))
    if library not in LIBRARIES:
        raise UserError(f"no library {library!r}", hint=did_you_mean(library, LIBRARIES))
    links, how = links_of(cluster), LIBRARIES[library]
    choices = {kind: [*names, *_more(links, how).get(kind, ())] for kind, names in HAS.items()}
    for line in links.choices if links else ():
        choices[line.kind].append(line.algorithm)
    used = {wanted, *(name for names in choices.values() for name in names)} - {AUTO}
    modules = {name: catalog.module("collectives", name) for name in sorted(used)}
    if links is None:
        return CollectivePolicy(modules, choices, wanted, pieces=pieces)

    def measured_as(kind: str, name: str) -> str:
        return how.series if (wanted, how.series, kind) == (AUTO, "plain", "all_reduce") and name in theory.PLAIN else name

    return CollectivePolicy(
        modules,
        choices,
        wanted,
        timing_on(cluster, links, measured_as),
        _configured_on(cluster, links),
        _choice_of(how, links),
        pieces,
        pieces_correction_on(cluster, links, pieces) if pieces else None,
    )


def _more(links: Links | None, library: Library) -> Mapping[str, tuple[str, ...]]:
    """What `auto` has besides, by kind of collective."""
    if links is None:
        return AT_FACE_VALUE
    switches = [] if library.series == "plain" else reducing_networks(links)
    own = ("direct",) if library.direct_most_bytes else ()
    return {"all_reduce": (*own, *(name for network in switches for name in IN_SWITCHES[network]))}


def _configured_on(cluster: Cluster, links: Links) -> Choose | None:
    """What is laid down for the groups of a cluster; None if nothing is."""

    def configured(kind: str, nodes: Array, payload_bytes: int) -> str | None:
        over = len(set(nodes.tolist()))
        able = (line for line in links.choices if _can_serve(line.algorithm, cluster, kind, nodes, over))
        return nccl_choice.configured_algorithm(able, kind, payload_bytes, over)

    return configured if links.choices else None


def _can_serve(name: str, cluster: Cluster, kind: str, nodes: Array, over: int) -> bool:
    """Whether an algorithm can serve such a group on a cluster, whose switches may have to reduce for that."""
    if not takes(catalog.module("collectives", name), kind, nodes):
        return False
    needs = next((network for network, names in IN_SWITCHES.items() if name in names), None)
    return needs is None or (can_reduce(cluster, needs, len(nodes), over) and (over > 1 or needs != "sharp"))


def _choice_of(library: Library, links: Links) -> Choose:
    """What a library takes on measured links."""

    def choice(kind: str, nodes: Array, payload_bytes: int) -> str | None:
        if kind != "all_reduce":
            return None
        over = len(set(nodes.tolist()))
        if over == 1 and payload_bytes <= library.direct_most_bytes:
            return "direct"
        name = theory.taken(Call(kind, payload_bytes, len(nodes), over, library.series), links.inside, links.across)
        return "nvls_tree" if name == "nvls" and over > 1 else name

    return choice


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
