"""Collectives on a cluster: its measured links, the algorithms that its library has and takes there, and uncontended times.

A cluster says how fast its links are, not what they are called. Inside a node the fabric of the GPU's generation tells how a
library fares on such links, or the PCIe fabric with the nearest rate, and only an NVSwitch reduces in the network. Between
nodes it is the InfiniBand of the nearest generation, unless a fabric is named. A GPU on PCIe launches at its own clock. A named
fabric counts for what it describes: the network, the links inside, or both. A fabric in a file of the user's own brings its
rates along, for they belong to what was measured; of one that ships, the constants are taken and the cluster's rates are kept.
Several NICs of one GPU are pooled.

The file of a fabric may name algorithms (`choices:`); otherwise an all-reduce takes what NCCL's own cost model chooses.
There are two ways to time a collective, and no third. `costs.collectives.curves` corrects the closed forms of `theory` by what
was measured, for the algorithms that libraries have. `unmeasured_algorithms` adds up the rounds of any other algorithm at the
constants of the same links. Payloads cut into pieces and uneven exchanges scale one of the two by a ratio of the second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

from ..binding.collective_policy import AUTO, Choose, CollectivePolicy, Timing, takes
from ..config import catalog, fabric_files
from ..config.fabric_files import Fabric, Loader
from ..costs.collectives import nccl_choice, theory
from ..costs.collectives.curves import DIRECT_MOST_BYTES, Curve, UncontendedTime, uncontended_time
from ..costs.collectives.link_constants import Across, Inside
from ..costs.collectives.nccl_choice import Choice
from ..costs.collectives.theory import Call
from ..engine.task import Array
from ..errors import UserError, did_you_mean
from ..hardware.cluster import Cluster
from ..units import NS_PER_S
from .unmeasured_algorithms import PlacedRounds, pieces_correction_on, placed_by_nodes
from .unmeasured_algorithms import uncontended_time as by_rounds

IDEAL = "ideal"
"""The fabric of a cluster whose links are taken at their face value."""
PCIE = ("pcie3", "pcie4", "pcie5")
NVLINK = {
    "volta": "nvlink2-mesh",
    "ampere": "nvlink3-nvswitch",
    "hopper": "nvlink4-nvswitch",
    "blackwell": "nvlink5-nvswitch",
}
"""The fabric inside nodes of each generation of GPUs."""
XGMI, AMD = "xgmi-mi300", "gfx"
"""Infinity Fabric, and how the architectures of GPUs that have it begin."""
SWITCH, JOINED = "nvswitch", "fully-connected"
"""Shapes inside a node: any GPU reaches any other at full rate; each is wired to each."""
PCIE_CLOCK_GHZ = 1.75
"""Clock of the GPU that the launch time of a PCIe fabric is meant for; others launch in as many cycles."""
NETWORKS = ("edr-ib", "hdr-ib", "ndr-ib", "xdr-ib")
BRIDGED_GPUS = 2
"""GPUs that an NVLink bridge joins."""
ONE_WAY = 0.8
"""Share of its nominal rate that PCIe carries when data goes one way only: headers, acknowledgements and credits take the rest
(Neugebauer et al., "Understanding PCIe performance for end host networking", SIGCOMM 2018)."""
shipped: Loader = cache(fabric_files.load)
"""Reads a fabric that ships, once."""
outlined: Loader = cache(fabric_files.outline)
"""Reads one without its curves, once."""


@dataclass(frozen=True)
class Links:
    """Links, choices and curves by which collectives on a cluster are timed."""

    inside: Inside
    across: Across | None
    """None for a single node."""
    choices: tuple[Choice, ...]
    """Algorithms that the fabrics' files name, those of the network between nodes first."""
    read_curves: Callable[[], tuple[Curve, ...]]

    @cached_property
    def curves(self) -> tuple[Curve, ...]:
        """The measured curves of both; read on first use, as that takes a while."""
        return self.read_curves()


def links_of(cluster: Cluster, load: Loader | None = None) -> Links | None:
    """The links of a cluster; None where they are taken at their face value, as those of a graph drawn by hand.

    With `load`, fabrics are found by it, and not among those that ship.
    """
    if cluster.fabric == IDEAL or not cluster.nvlink.bytes_per_s:
        return None
    within, between = _fabrics_of(cluster, load or outlined)
    if within.inside is None:
        raise LookupError(within.name)
    inside = replace(within.inside, generation=nccl_choice.generation(cluster.gpu.architecture, within.inside.bytes_per_s))

    def read_curves() -> tuple[Curve, ...]:
        within, between = _fabrics_of(cluster, load or shipped)
        return within.curves + (between.curves if between else ())

    across, choices = (between.across, between.choices) if between else (None, ())
    return Links(inside, across, choices + within.choices, read_curves)


def _fabrics_of(cluster: Cluster, load: Loader) -> tuple[Fabric, Fabric | None]:
    """The fabric inside the nodes of a cluster and that between them, if there are several, at the rates of the cluster. What
    stands in a file of the user's own keeps its rates; if it describes both, its curves and choices are listed once.
    """
    own = catalog.is_path(cluster.fabric)
    named = (fabric_files.load if own else load)(cluster.fabric) if cluster.fabric else None
    if named and named.inside:
        within = named if own else _changed(named, bytes_per_s=cluster.nvlink.bytes_per_s)
    else:
        within = _within(cluster, load)
    if cluster.nodes == 1:
        return within, None
    if named and named.across and own:
        return within, replace(named, curves=(), choices=()) if named.inside else named
    between = named if named and named.across else load(_nearest(NETWORKS, cluster.rail_bytes_per_s, load))
    if between.across is None:
        raise LookupError(between.name)
    sharp = between.across.sharp or cluster.sharp
    across = replace(between.across, nic_bytes_per_s=cluster.rail_bytes_per_s, nics=cluster.rails, sharp=sharp)
    return within, replace(between, across=across)


def _within(cluster: Cluster, load: Loader) -> Fabric:
    """The fabric that ships and is most like the links inside a node, at their rate."""
    rate, architecture = cluster.nvlink.bytes_per_s, cluster.gpu.architecture
    if cluster.inside_name.startswith("pcie"):
        return _without_reductions(_pcie(cluster, load))
    found = load(XGMI if architecture.startswith(AMD) else NVLINK[nccl_choice.generation(architecture, rate)])
    found = _changed(found, bytes_per_s=rate)
    if cluster.inside_name == SWITCH:
        return _changed(found, mesh=0, pair_bytes_per_s=0.0)
    if cluster.inside_name == JOINED:
        found = _changed(found, mesh=cluster.gpus_per_node, pair_bytes_per_s=0.0)
    return _without_reductions(found)


def _pcie(cluster: Cluster, load: Loader) -> Fabric:
    """PCIe as GPUs of the cluster's clock launch on it; where NVLink bridges join pairs, that between the pairs: every second
    edge of a ring is then a bridge, and a PCIe link carries one way only.
    """
    rate, bridge_bytes_per_s = cluster.nvlink.bytes_per_s, cluster.options.box.bridge_bytes_per_s
    found = load(_nearest(PCIE, rate, load))
    if found.inside and cluster.gpu.clock_hz:
        found = _changed(found, launch_s=found.inside.launch_s * PCIE_CLOCK_GHZ / (cluster.gpu.clock_hz / NS_PER_S))
    bridge = load(NVLINK["hopper" if found.name == PCIE[-1] else "ampere"]).inside
    if bridge is None or not bridge_bytes_per_s:
        return _changed(found, bytes_per_s=rate)
    like_nvlink = {name: getattr(bridge, name) for name in ("efficiency", "pair_efficiency", "fill_s")}
    beyond = {"beyond_bytes_per_s": rate, "beyond_efficiency": ONE_WAY}
    return _changed(found, bytes_per_s=bridge_bytes_per_s, island=BRIDGED_GPUS, **like_nvlink, **beyond)


def _changed(fabric: Fabric, **changes: Any) -> Fabric:
    """A fabric with other constants inside its nodes."""
    return replace(fabric, inside=replace(fabric.inside, **changes)) if fabric.inside else fabric


def _without_reductions(fabric: Fabric) -> Fabric:
    """The same links from GPU to GPU: no switch reduces on the way, so the library does what is left to it."""
    curves = tuple(curve for curve in fabric.curves if (curve.kind, curve.algorithm) != ("all_reduce", "auto"))
    return replace(_changed(fabric, nvls_efficiency=0.0), curves=curves)


def _nearest(names: Sequence[str], bytes_per_s: float, load: Loader) -> str:
    def distance(name: str) -> float:
        fabric = load(name)
        rate = fabric.inside.bytes_per_s if fabric.inside else fabric.across.nic_bytes_per_s if fabric.across else 1.0
        return abs(math.log(rate / bytes_per_s))

    return min(names, key=distance)


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
    **dict.fromkeys(("trtllm", "vllm"), Library(direct_most_bytes=DIRECT_MOST_BYTES)),
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
"""Names of some kinds in the measurements and the theory."""
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
    timing = _timing_on(cluster, links, does.series if wanted == AUTO else "auto")
    correction = pieces_correction_on(cluster, links.inside, links.across, pieces) if pieces else None
    return CollectivePolicy(modules, choices, wanted, timing, _choice_on(cluster, links, does), pieces, correction)


def call_of(kind: str, algorithm: str, nodes: Array, payload_bytes: int, *, placed: bool = False) -> Call:
    """The call of a collective whose members sit in these nodes."""
    return Call(kind, payload_bytes, len(nodes), len(set(nodes.tolist())), algorithm, placed)


def _choice_on(cluster: Cluster, links: Links, library: Library) -> Choose:
    """The algorithm that the fabric's file names, else the library's choice, else the first that every library has."""

    def choice(kind: str, nodes: Array, payload_bytes: int) -> str | None:
        call = call_of(kind, library.series, nodes, payload_bytes)
        covering = (line.algorithm for line in links.choices if line.covers(kind, payload_bytes, call.nodes))
        if name := next((name for name in covering if _can_serve(name, cluster, nodes, call)), None):
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
        return theory.adds_up(Call("all_reduce", 0, ranks, nodes), links.inside, across)
    return across is not None and (across.sharp or cluster.fabric in QUANTUM)


def _timing_on(cluster: Cluster, links: Links, library_series: str) -> Timing:
    """How long collectives take on a cluster. `library_series` is the measured series in which the library chose by itself."""

    @cache
    def placed(kind: str, algorithm: str, members: tuple[int, ...]) -> PlacedRounds:
        return placed_by_nodes(algorithm, kind, cluster, members)

    @cache
    def measured(call: Call) -> UncontendedTime:
        return uncontended_time(call, links.inside, links.across, links.curves)

    def timing(kind: str, algorithm: str, nodes: Array, payload_bytes: int) -> UncontendedTime | None:
        if not payload_bytes:
            return None
        series = theory.KNOWN_AS.get(algorithm, algorithm)
        if library_series == "plain" and kind == "all_reduce" and series in theory.PLAIN:
            series = library_series
        if series not in theory.ALGORITHMS:
            call, rounds = call_of(kind, algorithm, nodes, payload_bytes), placed(kind, algorithm, tuple(nodes.tolist()))
            return by_rounds(call, rounds, links.inside, links.across)
        kind = MEASURED_AS.get(kind, kind)
        return measured(call_of(kind, series, nodes, payload_bytes, placed=True)) if kind in theory.KINDS else None

    return timing
