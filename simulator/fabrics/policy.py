"""Collective policy of a cluster: its measured links, the algorithms that its library has and chooses, and uncontended times.

A cluster states the rates of its links, not the fabric. Inside a node, the constants are those of the fabric of the GPU's
generation, or of the PCIe fabric with the nearest rate; only an NVSwitch reduces in the network. Between nodes the constants are
those of the InfiniBand generation with the nearest rate, unless a fabric is named. The launch time on PCIe follows the clock of
the GPU. A named fabric replaces the parts that the fabric describes: the network, the links inside nodes, or both. A fabric in a
user's file keeps its own rates, since these belong to the measurements; a shipped fabric gives its constants, and the rates are
the cluster's. Several NICs of one GPU are pooled.

The file of a fabric may name algorithms (`choices:`); otherwise NCCL's own cost model chooses the algorithm of an all-reduce.
There are exactly two ways to time a collective. `costs.collectives.curves` corrects the closed forms of `theory` by measurements,
for the algorithms of libraries. `unmeasured_algorithms` adds up the rounds of any other algorithm with the constants of the same
links. Payloads cut into pieces and uneven exchanges scale one of these two times by a ratio of two times of the second kind.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

from ..binding.collective_policy import AUTO, Choose, CollectivePolicy, Timing, takes
from ..config import catalog, fabric_files, user_code
from ..config.fabric_files import IDEAL, Fabric, Loader, outline
from ..config.suggestions import meant
from ..costs.collectives import nccl_choice, theory
from ..costs.collectives.curves import DIRECT_MOST_BYTES, Curve, UncontendedTime, uncontended_time
from ..costs.collectives.link_constants import Across, Inside
from ..costs.collectives.nccl_choice import Choice
from ..costs.collectives.theory import Call
from ..engine.task import Array
from ..errors import UserError, did_you_mean, shown
from ..hardware.cluster import Cluster
from ..units import NS_PER_S
from .unmeasured_algorithms import PlacedRounds, pieces_correction_on, placed_by_nodes
from .unmeasured_algorithms import uncontended_time as by_rounds

PCIE = ("pcie3", "pcie4", "pcie5")
NVLINK = {
    "volta": "nvlink2-mesh",
    "ampere": "nvlink3-nvswitch",
    "hopper": "nvlink4-nvswitch",
    "blackwell": "nvlink5-nvswitch",
}
"""The fabric inside nodes of each generation of GPUs."""
XGMI, AMD = "xgmi-mi300", "gfx"
"""The Infinity Fabric, and the prefix of the architectures of GPUs with Infinity Fabric."""
EXPLICIT = "explicit"
"""The shape of graphs whose files state every link."""
SWITCH, JOINED = "nvswitch", "fully-connected"
"""Shapes inside a node: every GPU reaches every other GPU at full rate; every GPU is wired to every other GPU."""
PCIE_CLOCK_GHZ = 1.75
"""GPU clock to which the launch time of a PCIe fabric applies; other GPUs launch in the same number of cycles."""
NETWORKS = ("edr-ib", "hdr-ib", "ndr-ib", "xdr-ib")
BRIDGED_GPUS = 2
"""Number of GPUs that an NVLink bridge joins."""
ONE_WAY = 0.8
"""Share of its nominal rate that PCIe carries with data in one direction only: headers, acknowledgements and credits take the
rest (Neugebauer et al., "Understanding PCIe performance for end host networking", SIGCOMM 2018)."""
shipped: Loader = cache(fabric_files.load)
"""Loader of shipped fabrics, cached."""


@dataclass(frozen=True)
class Links:
    """Link constants, choices and curves from which the times of collectives on a cluster are computed."""

    inside: Inside
    across: Across | None
    """None for a single node."""
    choices: tuple[Choice, ...]
    """Algorithms that the files of the fabrics name; the choices of the network between nodes come first."""
    read_curves: Callable[[], tuple[Curve, ...]]

    @cached_property
    def curves(self) -> tuple[Curve, ...]:
        """The measured curves of both fabrics, read on first use because reading is slow."""
        return self.read_curves()


def links_of(cluster: Cluster, load: Loader | None = None) -> Links | None:
    """The links of a cluster; None if links are taken at their nominal bandwidth and latency, as for an explicit graph, or if the
    cluster of a shape from user code does not state their rates.

    With `load`, this loader finds the fabrics in place of the shipped fabrics.
    """
    is_stated = cluster.nvlink.bytes_per_s and (cluster.nodes == 1 or cluster.rails)
    if cluster.fabric is IDEAL or cluster.shape_name == EXPLICIT or not is_stated:
        return None
    within, between = _fabrics_of(cluster, load or outline)
    if within.inside is None:
        raise LookupError(within.name)
    inside = replace(within.inside, generation=nccl_choice.generation(cluster.gpu.architecture, within.inside.bytes_per_s))

    def read_curves() -> tuple[Curve, ...]:
        within, between = _fabrics_of(cluster, load or shipped)
        return within.curves + (between.curves if between else ())

    across, choices = (between.across, between.choices) if between else (None, ())
    return Links(inside, across, choices + within.choices, read_curves)


def _fabrics_of(cluster: Cluster, load: Loader) -> tuple[Fabric, Fabric | None]:
    """The fabric inside the nodes of a cluster and, with several nodes, the fabric between nodes, at the rates of the cluster. A
    fabric in a user's file keeps its rates; if the file describes both fabrics, its curves and choices are listed once.
    """
    chosen: Fabric | None = cluster.fabric
    own = chosen is not None and bool(chosen.file)
    named = chosen if chosen is None or own else load(chosen.name)
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
    of_gpus = cluster.pcie.bytes_per_s * max(1.0, cluster.gpus_per_node / cluster.rails)  # a NIC has what its GPUs send
    rate = min(cluster.rail_bytes_per_s, of_gpus)
    across = replace(between.across, nic_bytes_per_s=rate, nics=cluster.rails, sharp=sharp)
    return within, replace(between, across=across)


def _within(cluster: Cluster, load: Loader) -> Fabric:
    """The shipped fabric that is most similar to the links inside a node, at the rate of these links."""
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
    """The PCIe fabric with the launch time at the clock of the cluster's GPUs. Where NVLink bridges join pairs, PCIe connects the
    pairs: every second edge of a ring is then a bridge, and a PCIe link carries data in one direction only.
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
    """A fabric with some constants inside its nodes replaced."""
    return replace(fabric, inside=replace(fabric.inside, **changes)) if fabric.inside else fabric


def _without_reductions(fabric: Fabric) -> Fabric:
    """The same fabric without reductions in switches, and without the series of all-reduces in which a library chose."""
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
    """The all-reduces of a library of collectives; all other collectives are the same as in NCCL."""

    series: str = "auto"
    """The measured series of the library's own choices: `plain` where switches cannot reduce the data type."""
    direct: str = "direct"
    """The measured series of kernels that read the memory of peers within a node."""
    direct_most_bytes: int = 0
    """Largest payload in bytes for the library's own kernels, which read the memory of peers within a node; 0 without these."""

    def more(self, links: Links) -> Mapping[str, tuple[str, ...]]:
        """Algorithms that `auto` has on measured links in addition to the common algorithms, by kind of collective."""
        switches = [] if self.series == "plain" else reducing_networks(links)
        own = ("direct",) if self.direct_most_bytes else ()
        return {"all_reduce": (*own, *(name for network in switches for name in IN_SWITCHES[network]))}


NCCL = "nccl"
LIBRARIES: Mapping[str, Library] = {
    NCCL: Library(),
    "nccl-plain": Library(series="plain"),
    "trtllm": Library(direct_most_bytes=DIRECT_MOST_BYTES),
    "vllm": Library(direct="direct_vllm", direct_most_bytes=DIRECT_MOST_BYTES),
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
"""Algorithms of NCCL, from which `auto` chooses on every cluster, by kind of collective."""
IN_SWITCHES = {"nvls": ("nvls", "nvls_tree"), "sharp": ("sharp",)}
"""Algorithms of NCCL for all-reduces where switches reduce inside nodes (nvls) and between nodes (sharp)."""
AT_FACE_VALUE = {
    **dict.fromkeys(("all_reduce", "reduce_scatter", "all_gather"), ("hierarchical_pipelined",)),
    "broadcast": ("tree",),
}
"""Further algorithms of `auto` on links at nominal rates, where `auto` takes the fastest, like a library tuned for the links."""
MEASURED_AS = {"exchange": "sendrecv"}
"""Kinds of collectives that have another name in the measurements and the theory."""
QUANTUM = ("hdr-ib", "ndr-ib", "xdr-ib")
"""Networks whose switches can reduce, for libraries that are set up to use them: NVIDIA Quantum, from SHARPv2 of 2019 on."""


def policy_on(cluster: Cluster, algorithm: Any = AUTO, pieces: int | None = None, library: str = NCCL) -> CollectivePolicy:
    """The collective policy of a cluster: with the named algorithm, that of a user or the library's choices, and with `pieces`
    pieces. The code of a user's algorithm (`file.py`, `module:name`, or an object) is trusted."""
    wanted = _wanted(algorithm)
    if catalog.plain(library) not in LIBRARIES:
        raise UserError(f"no library {shown(library)}", hint=did_you_mean(library, LIBRARIES))
    links, does = links_of(cluster), LIBRARIES[catalog.plain(library)]
    own = does.more(links) if links else AT_FACE_VALUE
    choices = {kind: [*names, *own.get(kind, ())] for kind, names in COMMON_ALGORITHMS.items()}
    for line in links.choices if links else ():
        choices[line.kind].append(line.algorithm)
    used = {wanted, *(name for names in choices.values() for name in names)} - {AUTO}
    modules = {name: catalog.module("collectives", name) for name in sorted(used)}
    if links is None:
        return CollectivePolicy(modules, choices, wanted, pieces=pieces)
    timing = _timing_on(cluster, links, does.series if wanted == AUTO else "auto", does.direct)
    correction = pieces_correction_on(cluster, links.inside, links.across, pieces) if pieces else None
    return CollectivePolicy(modules, choices, wanted, timing, _choice_on(cluster, links, does), pieces, correction)


def _wanted(algorithm: Any) -> str:
    """The name of an algorithm of the catalog or `auto`; for an algorithm of a user a name with its code."""
    known = [AUTO, *catalog.files("collectives")]
    if isinstance(algorithm, str) and not catalog.is_code(algorithm):
        if (wanted := meant(algorithm.strip(), known)) is None:
            raise UserError(f"no algorithm {shown(algorithm)}", hint=did_you_mean(algorithm, known))
        return wanted
    code = user_code.imported(algorithm) if isinstance(algorithm, str) else user_code.given(algorithm, known)
    if missing := [name for name in ("KINDS", "rounds") if not hasattr(code.found, name)]:
        raise UserError(
            f"{code} has no {missing[0]}", hint="an algorithm has KINDS and rounds(kind, nodes), as simulator/collectives/ring.py"
        )
    return code


def call_of(kind: str, algorithm: str, nodes: Array, payload_bytes: int, *, placed: bool = False) -> Call:
    """The call of a collective, given the node of each member."""
    counts = Counter(nodes.tolist())
    fewest, most = min(counts.values(), default=0), max(counts.values(), default=0)
    uneven = (fewest, most) if fewest < most else ()
    return Call(kind, payload_bytes, len(nodes), len(counts), algorithm, placed, *uneven)


def _choice_on(cluster: Cluster, links: Links, library: Library) -> Choose:
    """The choice of an algorithm: from the fabric's file, else the library's choice, else the first common algorithm."""

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
    """Whether an algorithm can serve a call on a cluster, including whether the switches reduce if the algorithm needs this."""
    if not takes(catalog.module("collectives", name), call.kind, nodes):
        return False
    needs = next((network for network, names in IN_SWITCHES.items() if name in names), None)
    return needs is None or (can_reduce(cluster, needs, call.ranks, call.nodes) and (call.nodes > 1 or needs != "sharp"))


def reducing_networks(links: Links | None) -> list[str]:
    """The networks of a cluster in whose switches libraries reduce: inside nodes (nvls), between nodes (sharp)."""
    if links is None:
        return []
    return ["nvls"] * (links.inside.nvls_efficiency > 0) + ["sharp"] * (links.across is not None and links.across.sharp)


def can_reduce(cluster: Cluster, network: str, ranks: int, nodes: int) -> bool:
    """Whether the switches that a group of `ranks` ranks over `nodes` nodes needs can reduce for algorithm nvls or sharp.

    On links at nominal rates, network switches and NVSwitches are assumed to reduce for any number of GPUs.
    """
    links = links_of(cluster)
    if links is None:
        return network == "sharp" or any(run.kind == SWITCH for run in cluster.wiring.vertices)
    across = links.across
    if network == "nvls" or nodes == 1:
        return theory.adds_up(Call("all_reduce", 0, ranks, nodes), links.inside, across)
    return across is not None and (across.sharp or (cluster.fabric and cluster.fabric.label) in QUANTUM)


def _timing_on(cluster: Cluster, links: Links, library_series: str, direct_series: str) -> Timing:
    """The times of collectives on a cluster. `library_series` is the measured series in which the library chose the algorithm,
    `direct_series` that of its own kernels."""

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
        if series == "direct" and kind == "all_reduce":
            series = direct_series
        far = series in theory.DIRECT and kind == "all_reduce" and len(set(nodes.tolist())) > 1
        if series not in theory.ALGORITHMS or far:  # no library has kernels that read the memory of another node
            call, rounds = call_of(kind, algorithm, nodes, payload_bytes), placed(kind, algorithm, tuple(nodes.tolist()))
            return by_rounds(call, rounds, links.inside, links.across)
        kind = MEASURED_AS.get(kind, kind)
        return measured(call_of(kind, series, nodes, payload_bytes, placed=True)) if kind in theory.KINDS else None

    return timing
