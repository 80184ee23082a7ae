"""Times of one collective on a cluster, for every requested size, in the table format of nccl-tests.

The collective runs through the same binding and the same engine as the collectives of a training step, one size after another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from types import ModuleType
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike

from ..binding.bind import Bound, Site, bind
from ..binding.collective_policy import AUTO, CollectivePolicy, serving, takes
from ..binding.communicators import ORDER_FREE
from ..binding.exchange_classes import classes_of
from ..binding.stepwise import Counts, stepwise
from ..collectives import Everyone, is_pipelined
from ..config import catalog, load
from ..config.fabric_files import IDEAL
from ..config.suggestions import meant
from ..costs.collectives.theory import FEWEST_AT_A_SWITCH
from ..engine.fold import fold, unfolded
from ..engine.replay import with_fixed_durations
from ..engine.task import Array
from ..engine.timeline import Timeline
from ..errors import OutsideDomain, UserError, described, did_you_mean, either, must_be, shown
from ..escape import Summarised
from ..fabrics.policy import IN_SWITCHES, MEASURED_AS, NCCL, can_reduce, policy_on
from ..fabrics.uneven_alltoall import KIND, Exchange, uneven_policy
from ..hardware.cluster import Cluster
from ..plan.mesh import Mesh
from ..plan.plan import Collectives
from ..program.operations import Collective, Communicator
from ..program.program import Body, Program, Step
from ..simulation import choose_engine, estimated_effort
from ..units import GB, US_PER_S, counted, seconds, show_bytes, show_s
from . import legal_values
from .legal_values import Legal, count, of_type, one_of

GROUP = Communicator("group", "tp", ("tp",))
BUS_FACTOR: Mapping[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "sendrecv": lambda n: 1.0,
}
"""Ratio of bus bandwidth to algorithm bandwidth for n ranks, as nccl-tests defines it."""
KINDS = tuple(BUS_FACTOR)


def _is_algorithm(value: Any) -> bool:
    return isinstance(value, str) or (hasattr(value, "KINDS") and callable(getattr(value, "rounds", None)))


SAMPLE_RANKS = 16
"""Ranks of the group that tests whether an algorithm sends from every rank to every other rank."""
EXCHANGE = "exchange"
"""The collective that nccl-tests calls sendrecv: all ranks send to the next rank at the same time."""
MEASURED = "interpolated"
"""The provenance of a time interpolated between measured times."""
LEGAL = {
    "sizes_bytes": count(2**62),
    "gpus": count(2**24).or_none,
    "nodes": count(2**24).or_none,
    "pieces": count(2**20).or_none,
    "algorithm": Legal(_is_algorithm, "is no algorithm", "auto, such as ring, file.py, or a module with KINDS and rounds"),
    "library": of_type(str, "is not a name", f"such as {NCCL}"),
    "fidelity": one_of(*get_args(Collectives)),
}
"""Legal values of sizes, numbers of GPUs and the other options."""
Listed = list[int] | tuple[int, ...] | range | Array
"""GPUs that are named one by one."""
LISTED = (list, tuple, range, np.ndarray)
DECLARED_BY = {"nvls": "nvls_efficiency under inside:", "sharp": "sharp: true under across:"}
"""The lines of a fabric's file that declare that switches reduce."""


@dataclass(frozen=True, slots=True)
class Timed:
    """One row of the table: a size with its time."""

    size_bytes: int
    time_s: float
    ranks: int
    kind: str
    algorithm: str
    provenance: str
    """Provenance of the time: interpolated, extrapolated or theoretical."""
    uncertainty: float = 0.0
    """Relative standard error of the time; 0 where the error is not known."""

    @property
    def algorithm_gb_per_s(self) -> float:
        return self.size_bytes / self.time_s / GB if self.time_s else 0.0

    @property
    def bus_gb_per_s(self) -> float:
        return self.algorithm_gb_per_s * BUS_FACTOR[self.kind](self.ranks) if self.ranks > 1 else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {
            "size_bytes": self.size_bytes,
            "time_us": self.time_s * US_PER_S,
            "algbw_gb_per_s": self.algorithm_gb_per_s,
            "busbw_gb_per_s": self.bus_gb_per_s,
            "algorithm": self.algorithm,
            "provenance": self.provenance,
            "extrapolated": self.provenance != MEASURED,
        }


@dataclass(frozen=True, repr=False)
class CollectiveTable(Summarised):
    """The times of a collective by size, in the columns of nccl-tests."""

    kind: str
    cluster: str
    gpus: int
    nodes: int
    fidelity: str
    rows: tuple[Timed, ...]
    exchange: Exchange | None = None
    most_on_node: int = 0
    """Number of GPUs on the node with most, where nodes have different numbers of them; else 0."""

    @property
    def heading(self) -> list[tuple[str, str]]:
        """The collective and the GPUs of the table."""
        each = f"up to {self.most_on_node}" if self.most_on_node else f"{self.gpus // self.nodes}"
        where = f", {each} on each of {self.nodes:,} nodes" if self.nodes > 1 else " on one node"
        spreading = f"{counted(self.gpus, 'GPU')}{where}"
        heading = [("collective", self.kind), ("on", f"{spreading} of {self.cluster}")]
        if self.exchange:
            sent, received = (f"{a:,.0f} to {b:,.0f} B" if a < b else f"{b:,.0f} B" for a, b in self.exchange.spans)
            heading += [("each sends", f"{sent} to others"), ("and receives", received)]
        return heading

    @property
    def summary(self) -> list[tuple[str, str]]:
        rates = [
            (show_bytes(row.size_bytes), f"{show_s(row.time_s)}, busbw {row.bus_gb_per_s:.2f} GB/s, {row.algorithm}")
            for row in self.rows
        ]
        return [*self.heading, *rates]

    def as_dict(self) -> dict[str, Any]:
        """The content of `trainsim collective --json`."""
        head = {name: getattr(self, name) for name in ("kind", "cluster", "gpus", "nodes", "fidelity")}
        if self.exchange:
            (_, most_sent), (_, most_received) = self.exchange.spans
            head |= {"most_sent_bytes": most_sent, "most_received_bytes": most_received}
        return {**head, "rows": [row.as_dict() for row in self.rows]}


def kind_named(kind: str) -> str:
    """The kind of collective that a name means, in any case, with dashes or underscores. Raises `UserError` if there is none."""
    known = meant(kind, KINDS)
    if known is None:
        raise UserError(f"no collective {shown(kind)}", hint=did_you_mean(str(kind), KINDS))
    return known


def collective(
    kind: str, cluster: Cluster, sizes_bytes: Iterable[int] = (), *, gpus: int | Listed | None = None,
    nodes: int | None = None, algorithm: Any = AUTO, fidelity: str = "fluid", pieces: int | None = None, library: str = NCCL,
    matrix: ArrayLike | None = None, long: bool = False, expect: estimated_effort.Expect = estimated_effort.no_progress,
) -> CollectiveTable:  # fmt: skip
    """Times a collective without contention, for every size, on `gpus` GPUs of a cluster, spread evenly over `nodes` nodes.

    `gpus` may also be a list or an array of GPU numbers in the order of the ranks; then `nodes` is not given. `auto` takes the
    algorithm that the library would; an algorithm of one's own is `file.py`, `module:name`, or a module or an object with KINDS
    and rounds. Pipelined algorithms cut the payload into `pieces` pieces, or infinitely fine. An alltoall takes a `matrix` in
    place of sizes: entry (i, j) is the number of bytes that rank i sends to rank j. The result then has one row, whose size is
    the mean number of bytes that a rank holds.
    Work that is estimated to take longer than 30 s or more than 4 GiB is refused, unless `long` allows it.
    """
    must_be(cluster, Cluster, "cluster", "a cluster", 'sim.cluster("dgx-h100", nodes=8)')
    kind = kind_named(kind)
    options = {"pieces": pieces, "algorithm": algorithm, "library": library, "fidelity": fidelity, "nodes": nodes}
    legal_values.check("a collective", {"gpus": None if isinstance(gpus, LISTED) else gpus, **options}, LEGAL)
    gpus = _named(gpus, cluster, nodes) if isinstance(gpus, LISTED) else gpus
    gpus = np.sort(gpus) if isinstance(gpus, np.ndarray) and kind in ORDER_FREE else gpus  # as groups are bound
    sizes_bytes = tuple(must_be(sizes_bytes, Iterable, "sizes_bytes", "sizes", "[2**20, 2**30]"))
    for size in sizes_bytes:
        legal_values.check("a collective", {"sizes_bytes": size}, LEGAL)
    exchange = None if matrix is None else _exchange(kind, sizes_bytes, matrix, cluster, gpus)
    if not isinstance(gpus, np.ndarray):
        gpus = spread(cluster, exchange.ranks if exchange else gpus, nodes)
    policy = even = policy_on(cluster, algorithm, pieces, library)
    if exchange:
        sizes_bytes, policy = (exchange.payload_bytes,), uneven_policy(exchange, policy, cluster, gpus)
    on_nodes, bound_as = gpus // cluster.gpus_per_node, EXCHANGE if kind == "sendrecv" else kind
    limits, needed = estimated_effort.Limits(long=long, expect=expect), estimated_effort.Effort()
    if len(gpus) > 1:
        names = _algorithms_taken(policy, cluster, bound_as, on_nodes, sizes_bytes)
        needed = _effort([even.algorithms[name] for name in names], cluster, bound_as, gpus, by_messages=fidelity == "stepwise")
    limits.check(needed, f"{kind} over {len(gpus):,} GPUs", "fewer GPUs, or another algorithm")
    site = Site(cluster, lambda kernel: 0, policy)  # there are no kernels
    bound = _bound(bound_as, site, sizes_bytes, gpus)
    timeline = _run(bound, site, fidelity, limits.must_send).rank_times(0)
    columns = bound.labels[0].payload_bytes, bound.skeleton.templates[0].charge, timeline.arrival_ns - timeline.start_ns
    rows = []
    for size, charge, ns in zip(*(column.tolist() for column in columns), strict=True):
        name = bound.algorithms.get((GROUP.name, charge), "")
        known = policy.uncontended_time(kind, name, on_nodes, size) if name else None
        provenance = known.provenance if known and fidelity != "stepwise" else "theoretical"
        rows.append(Timed(size, seconds(ns), len(gpus), kind, name, provenance, known.uncertainty if known else 0.0))
    counts = Counter(on_nodes.tolist()).values()
    most = max(counts) if len(set(counts)) > 1 else 0
    return CollectiveTable(kind, cluster.name, len(gpus), len(counts), fidelity, tuple(rows), exchange, most)


def spread(cluster: Cluster, gpus: int | None = None, nodes: int | None = None) -> Array:
    """The first GPUs of each of `nodes` nodes, `gpus` in total. By default as few nodes as hold the GPUs."""
    per_node = cluster.gpus_per_node
    wanted = gpus or (nodes or cluster.nodes) * per_node
    used = nodes or -(-wanted // per_node)
    if used > cluster.nodes:
        hint = f"nodes: {used} in the cluster, or fewer GPUs"
        raise OutsideDomain(f"{wanted} GPUs over {used} nodes, and {cluster.name} has {cluster.nodes}", hint=hint)
    if wanted % used or wanted // used > per_node:
        legal = max(used, min(wanted // used, per_node) * used)
        reason = f"{wanted} GPUs do not spread evenly over {counted(used, 'node')} of {per_node} GPUs"
        able = [n for n in range(-(-wanted // per_node), wanted + 1) if wanted % n == 0]
        over = counted(min(able, key=lambda n: abs(n - used)), "node")
        hint = f"nearest legal: gpus {legal}, nodes {used}; {wanted} GPUs do over {over}"
        raise OutsideDomain(reason, nearest={"gpus": legal, "nodes": used}, hint=hint)
    chosen: Array = (np.arange(used)[:, None] * per_node + np.arange(wanted // used)).ravel()
    return chosen


def _named(gpus: Listed, cluster: Cluster, nodes: int | None) -> Array:
    """The GPUs that were named one by one, after a check that each is in the cluster and was named once."""
    if nodes is not None:
        raise UserError(f"nodes: {nodes}, and a list of GPUs already determines the nodes", hint="leave nodes out")
    hint = f"a list such as [0, 1]: {cluster.name} has GPUs 0 to {cluster.gpus - 1:,}"
    if isinstance(gpus, np.ndarray) and gpus.ndim != 1:
        raise UserError(f"gpus: an array of {gpus.ndim} dimensions is not a list of GPUs", hint=hint)
    listed: list[Any] = gpus.tolist() if isinstance(gpus, np.ndarray) else list(gpus)
    if not listed:
        raise UserError("gpus: no GPU is named", hint=hint)
    wrong = [one for one in listed if not isinstance(one, Integral) or isinstance(one, bool) or not 0 <= int(one) < cluster.gpus]
    if wrong:
        raise UserError(f"gpus: {described(wrong[0])} is not a GPU of {cluster.name}", hint=hint)
    twice = [one for one, times in Counter(listed).items() if times > 1]
    if twice:
        raise UserError(f"gpus: {twice[0]} is named twice", hint="name each GPU once")
    return np.array(listed, dtype=np.int64)


def _exchange(kind: str, sizes_bytes: Sequence[int], matrix: ArrayLike, cluster: Cluster, gpus: int | Array | None) -> Exchange:
    """The exchange of a matrix, on the given GPUs, whose number must be that of the ranks, or on some GPUs of the cluster."""
    if kind != KIND:
        raise UserError(f"{kind} takes no matrix of bytes", hint=f"only {KIND} does")
    if len(sizes_bytes):
        raise UserError("a matrix already determines the size of the exchange", hint="leave the sizes out")
    exchange = Exchange.of(matrix)
    given = len(gpus) if isinstance(gpus, np.ndarray) else gpus
    if exchange.ranks > cluster.gpus or given not in (None, exchange.ranks):
        reason = f"a matrix of {exchange.ranks} ranks for {given or cluster.gpus} GPUs of {cluster.name}"
        raise UserError(reason, hint="row i holds what rank i has for every rank")
    return exchange


def _algorithms_taken(
    policy: CollectivePolicy, cluster: Cluster, kind: str, nodes: Array, sizes_bytes: Sequence[int]
) -> list[str]:
    """The algorithms for these sizes, or all candidates where the fastest algorithm by its messages is selected. Raises
    `UserError` for a requested algorithm that cannot run, or for pieces that no algorithm supports."""
    if policy.algorithm != AUTO:
        if not serving({policy.algorithm: policy.algorithms[policy.algorithm]}, kind, nodes):
            raise _cannot_serve(policy.algorithm, policy.algorithms[policy.algorithm], kind, nodes)
        _check_switches(policy.algorithm, cluster, len(nodes), len(set(nodes.tolist())))
    able = policy.candidates(kind, nodes)
    chosen = {policy.automatic_choice(kind, nodes, size) for size in sizes_bytes} if len(able) > 1 else {None}
    taken = list(able) if None in chosen else [name for name in able if name in chosen]
    if policy.pieces is not None and not any(is_pipelined(able[name]) for name in taken):
        cutting = [name for name, module in serving(_every_algorithm(), kind, nodes).items() if is_pipelined(module)]
        hint = f"leave them out, or take {either(cutting)}" if cutting else "leave them out"
        raise UserError(f"pieces: {policy.pieces} of them, and {', '.join(taken)} cuts no payload into pieces", hint=hint)
    return taken


def _every_algorithm() -> dict[str, ModuleType]:
    return {name: catalog.module("collectives", name) for name in catalog.files("collectives")}


def _cannot_serve(name: str, algorithm: ModuleType, kind: str, nodes: Array) -> OutsideDomain:
    """The error for an algorithm that does not support a kind of collective on a group over these nodes."""
    every = {name: algorithm, **_every_algorithm()}
    has_kind = kind in every[name].KINDS
    counts = [n for n in range(2, 2 * len(nodes)) if has_kind and takes(every[name], kind, np.zeros(n, dtype=np.int64))]
    near = min(counts, key=lambda n: abs(n - len(nodes)), default=0)
    reason = f"{name} does no {MEASURED_AS.get(kind, kind)}" + (f" over {len(nodes)} ranks" if has_kind else "")
    hint = f"these do: {', '.join(sorted(serving(every, kind, nodes)))}" + (f"; {name} does with --gpus {near}" if near else "")
    return OutsideDomain(reason, nearest={"gpus": near} if near else None, hint=hint)


def _check_switches(name: str, cluster: Cluster, ranks: int, nodes: int) -> None:
    """Raises `OutsideDomain` if an algorithm needs switches that reduce, and the cluster is not known to have such switches, or
    not for this number of GPUs."""
    needed = next((network for network, names in IN_SWITCHES.items() if name in names), None)
    if needed is None or can_reduce(cluster, needed, ranks, nodes):
        return
    most = cluster.gpus_per_node * nodes
    if can_reduce(cluster, needed, most, nodes):
        least, who = FEWEST_AT_A_SWITCH * nodes, "within one node sharp is nvls, which" if name == "sharp" else name
        reason = f"{who} needs {FEWEST_AT_A_SWITCH} GPUs of a node at least: with fewer a library does not reduce in the switch"
        raise OutsideDomain(reason, nearest={"gpus": least}, hint=f"--gpus {least}, or take ring or tree")
    needed, over = needed if nodes > 1 else "nvls", f"{nodes} node{'s' * (nodes > 1)}"
    grown = [replace(found, nodes=max(nodes, found.nodes)) for found in map(load.cluster, catalog.files("clusters"))]
    able = ", ".join(found.name for found in grown if can_reduce(found, needed, found.gpus_per_node * nodes, nodes))
    bare = ", or take fabric: ideal" if can_reduce(replace(cluster, fabric=IDEAL), needed, most, nodes) else ""
    raise OutsideDomain(
        f"{name} needs switches that reduce, and {cluster.name} is not known to have them for {over}",
        hint=f"those of {able} do; or say so in a fabric of your own ({DECLARED_BY[needed]}){bare}",
    )


def _effort(
    algorithms: Sequence[ModuleType], cluster: Cluster, kind: str, gpus: Array, *, by_messages: bool
) -> estimated_effort.Effort:
    """The estimated effort of a collective: the routes of the cluster, and the messages of the possible algorithms, which are
    routed by classes where they can be, unless each is simulated."""
    ranks, nodes = len(gpus), np.arange(SAMPLE_RANKS)
    needed, classes = estimated_effort.of_routes(cluster, ranks), None if by_messages else classes_of(cluster, gpus)
    for algorithm in algorithms:
        rounds = algorithm.rounds(kind, nodes) if serving({"it": algorithm}, kind, nodes) else ()
        everywhere = sum(len(each.edges.source) for each in rounds) >= SAMPLE_RANKS * (SAMPLE_RANKS - 1)
        if classes and everywhere and all(isinstance(each.edges, Everyone) for each in rounds):
            needed += estimated_effort.of_messages(classes.messages)
        elif everywhere:
            needed += estimated_effort.of_exchange(ranks, in_rounds=len(rounds) > 1)
        else:
            needed += estimated_effort.of_collective(ranks)
    return needed


def _bound(kind: str, site: Site, sizes_bytes: Sequence[int], gpus: Array) -> Bound:
    """A program of one collective after another, bound to its cluster."""
    ops = [
        Collective(name=f"{i}", streams=(GROUP.name,), communicator=GROUP.name, kind=kind, payload_bytes=size)
        for i, size in enumerate(sizes_bytes)
    ]
    program = Program((), {"all": Body(tuple(ops))}, ((Step("all", "collective", iteration=0),),), {GROUP.name: GROUP})
    return bind(program, Mesh.of({"tp": len(gpus)}, "tp"), site, gpus=gpus)


def _run(bound: Bound, site: Site, fidelity: str, check_counts: Callable[[Counts], None]) -> Timeline:
    """The timeline of a program on its cluster. `check_counts` receives the numbers of stepwise messages, and may refuse."""
    folded = (unfolded if fidelity == "stepwise" else fold)(bound.skeleton)
    messages = stepwise(bound, site, folded, check_counts) if fidelity == "stepwise" else None
    graph = with_fixed_durations(messages.graph if messages else folded.graph, every=fidelity == "closed")
    times, _, _ = choose_engine.run(graph)
    return Timeline(messages.times(times) if messages else times, folded)
