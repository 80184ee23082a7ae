"""Communicators on the ground: who is in each group, over which links its bytes go, what each of its tasks costs.

All groups of one family are laid out at once, in columns: a cluster of 100,000 GPUs has as many transfers between
neighbours as ranks. A group's algorithm says who sends to whom; the cluster's shape says over which links. What a task
takes alone is computed from that, or measured, and kept as a cap on its rate; what it takes in company is the fluid's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple

import numpy as np

from ..collectives import Edges, Round, windows, wire_fraction
from ..engine.skeleton import Tariff
from ..engine.task import RATE_BITS, UNCAPPED, WEIGHT_BITS, Array, Csr
from ..errors import UserError
from ..hardware.cluster import Cluster
from ..plan.mesh import Mesh
from ..program.program import Communicator
from ..units import NS_PER_S, ns
from .conduct import BARRIER, Conduct
from .degraded import Degraded
from .rings import Plans
from .template import TRANSFER, Written

MOST_WORK = (1 << 63) - 1
MOST_EDGES = 1 << 14
"""As many edges are routed at a time."""
NO_CHARGE = {"cap": UNCAPPED, "cap_profile": -1}
"""What stands in a tariff where nothing is charged; in all other columns 0."""
DIGITS = 12
"""Significant digits in which the speed of groups is compared: alike groups must come out alike."""


@dataclass(frozen=True, eq=False, slots=True)
class Groups:
    """All groups of a program, numbered family by family."""

    slots: Array
    kind: Array
    algorithms: Mapping[tuple[str, int], str]
    """(communicator, charge) -> the name of the algorithm that serves it."""
    families: tuple[Array, ...]
    """The members' GPUs of the groups of each family."""
    patterns: int
    feet: Csr
    foot_weight: Array
    tariff: Tariff


@dataclass(frozen=True, eq=False, slots=True)
class Ground:
    """Where groups are laid: a mesh of ranks on a cluster, how collectives are done there, and the links that can ever bind."""

    mesh: Mesh
    gpus: Array
    """Rank -> its GPU."""
    cluster: Cluster
    conduct: Conduct
    binds: Array
    degraded: Degraded


@dataclass(frozen=True, eq=False, slots=True)
class _Way:
    """What a family's groups do for one kind by one algorithm."""

    algorithm: str
    pattern: int
    wire: Array
    """Per layout the numerator and the denominator of wire bytes per byte of payload."""
    latency_ns: Array
    """Per group."""
    s_per_byte: Array
    """Per group: seconds per byte of payload, alone."""
    mixture: Array
    """Per group: which degraded links it crosses, by the number of their mixture."""


@dataclass(frozen=True, eq=False, slots=True)
class _Family:
    """The groups of one communicator name: members by row, and what the fabric makes of them."""

    name: str
    members: Array
    nodes: Array
    """Per group the nodes of its members."""
    ways: Mapping[int, _Way]
    """Charge -> what is done for it; nothing for barriers and groups of one."""
    layout: Array
    """Per group, which of the family's layouts over nodes it has."""
    entries: tuple[Array, Array, Array, Array]
    """Footprints: group within the family, pattern, link, weight."""


def lay_groups(written: Written, communicators: Mapping[str, Communicator], ground: Ground) -> Groups:
    """Every group of every communicator that the templates use."""
    names = {charge: what for what, charge in written.charges.number.items()}
    families = []
    for name, communicator in communicators.items():
        members = ground.mesh.groups(communicator.axes, communicator.pipeline)
        charges = {charge: names[charge] for charge in sorted(written.charges.used_by.get(name, set()))}
        families.append(_Layer(ground, members, charges).family(name))
    first = np.concatenate([[0], np.cumsum([len(f.members) for f in families])]).astype(np.int64)
    patterns = max((way.pattern + 1 for family in families for way in family.ways.values()), default=1)
    kind_of, tariff = _tariff(families, names, ground)
    feet, weight = _footprints(families, first, patterns, ground.cluster.wiring.links)
    slots = _slots(written, families, first, ground.mesh)
    algorithms = {(family.name, charge): way.algorithm for family in families for charge, way in family.ways.items()}
    gpus = tuple(ground.gpus[family.members] for family in families)
    return Groups(slots, kind_of, algorithms, gpus, patterns, feet, weight, tariff)


@dataclass(frozen=True, eq=False, slots=True)
class _Routed:
    """A set of edges on the ground, for all groups of one layout: what does not depend on how much they carry."""

    group: Array
    link: Array
    share: Array
    longest_s: Array
    """Per group: the latency of the longest edge, and the mean over its edges, weighted by share."""
    mean_s: Array


_NONE = np.zeros(0, dtype=np.int64)
_SILENT = _Routed(_NONE, _NONE, np.zeros(0), np.zeros(0), np.zeros(0))
"""Where nobody has anything for anybody."""


class _Layer:
    """Lays the groups of one family, layout by layout. Groups of the same layout over nodes have the same edges."""

    def __init__(self, ground: Ground, members: Array, charges: Mapping[int, tuple[str, int]]) -> None:
        self.ground, self.members = ground, members
        self.charges = {c: what for c, what in charges.items() if what[0] != BARRIER} if members.shape[1] > 1 else {}
        self.nodes = ground.gpus[members] // ground.cluster.gpus_per_node
        changes = self.nodes[:, 1:] != self.nodes[:, :-1]
        self.examples, self.layout = _distinct(changes.T, len(members))
        self.plans = Plans(ground.cluster)
        self.capacity = ground.cluster.wiring.capacity_bytes_per_s
        self.patterns: dict[tuple[object, ...], int] = {}
        self.judged: dict[tuple[str, str], tuple[float, float]] = {}
        self.entries: list[tuple[Array, Array, Array, Array]] = []

    def family(self, name: str) -> _Family:
        widest = max(self.examples.tolist(), key=lambda row: len(set(self.nodes[row].tolist())))
        done: dict[tuple[str, str], _Way] = {}
        ways: dict[int, _Way] = {}
        for charge, (kind, payload_bytes) in self.charges.items():
            algorithm = self._chosen(kind, payload_bytes, widest)
            if (algorithm, kind) not in done:
                done[algorithm, kind] = self._way(algorithm, kind)
            ways[charge] = done[algorithm, kind]
        none = np.zeros(0, dtype=np.int64)
        columns = zip(*self.entries, strict=True) if self.entries else ([none],) * 4
        group, pattern, link, weight = (np.concatenate(column) for column in columns)
        return _Family(name, self.members, self.nodes, ways, self.layout, (group, pattern, link, weight))

    def _chosen(self, kind: str, payload_bytes: int, example: int) -> str:
        """What the library takes, else the fastest of the candidates, judged by one group of the widest layout."""
        conduct, nodes = self.ground.conduct, self.nodes[example]
        able = conduct.candidates(kind, nodes)
        if len(able) == 1:
            return next(iter(able))
        taken = conduct.taken(kind, nodes, payload_bytes)
        if taken in able:
            return taken

        def alone_s(name: str) -> float:
            if (name, kind) not in self.judged:
                plan = self.plans.rounds(able[name], kind, self.ground.gpus[self.members[example]])
                latency_s, s_per_byte, _ = self._timed(plan, able[name], np.array([example]))
                self.judged[name, kind] = float(latency_s[0]), float(s_per_byte[0])
            latency, per_byte = self.judged[name, kind]
            return latency + per_byte * payload_bytes

        return min(able, key=alone_s)

    def _way(self, name: str, kind: str) -> _Way:
        algorithm = self.ground.conduct.algorithms[name]
        plans = [self.plans.rounds(algorithm, kind, self.ground.gpus[self.members[row]]) for row in self.examples.tolist()]
        key = tuple(_identity(plan) for plan in plans)
        is_new = key not in self.patterns
        pattern = self.patterns.setdefault(key, len(self.patterns))
        latency_s, s_per_byte = np.zeros(len(self.members)), np.zeros(len(self.members))
        mixture, wire = np.zeros(len(self.members), dtype=np.int64), []
        for which, plan in enumerate(plans):
            rows = np.flatnonzero(self.layout == which)
            whole = wire_fraction(plan)
            wire.append((whole.numerator, whole.denominator))
            latency_s[rows], s_per_byte[rows], together = self._timed(plan, algorithm, rows)
            mixture[rows] = self.ground.degraded.crossed(together.group, together.link, len(rows))
            if is_new:
                self._add(rows, pattern, together)
        return _Way(name, pattern, np.array(wire, dtype=object), _rounded_ns(latency_s), _rounded(s_per_byte), mixture)

    def _timed(self, plan: tuple[Round, ...], algorithm: ModuleType, rows: Array) -> tuple[Array, Array, _Routed]:
        """Latency and seconds per byte of the groups in `rows`, alone, and all their rounds together on the ground."""
        count, pieces = len(rows), self.ground.conduct.pieces_of(algorithm)
        routed = {r.edges.key: self._routed(r.edges, rows) for r in plan}
        latency_s = sum((_round_latency_s(r, routed[r.edges.key]) for r in plan), np.zeros(count))
        s_per_byte = np.zeros(count)
        for window, ticks in windows(plan, pieces):
            s_per_byte += self._busiest_s(self._together(window, routed), count) * (float(wire_fraction(window)) * ticks)
        return latency_s, s_per_byte / (pieces or 1), self._together(plan, routed)

    def _routed(self, edges: Edges, rows: Array) -> _Routed:
        """The edges of all groups in `rows`, as entries per group (counted within `rows`) and link."""
        cluster, n, count = self.ground.cluster, len(edges.source), len(rows)
        members = self.ground.gpus[self.members[rows]]
        source, target = (members[:, end].ravel() for end in (edges.source, edges.target))
        edge_s, latency_s = np.empty(count * n), np.append(cluster.wiring.latency_s, 0.0)
        entries: list[tuple[Array, Array, Array]] = []
        for begin in range(0, count * n, MOST_EDGES):
            some = slice(begin, begin + MOST_EDGES)
            route = cluster.route(source[some], target[some])
            edge_s[some] = latency_s[route].sum(axis=1)
            edge, crosses = np.arange(begin, begin + len(route)), route >= 0
            group, share = (np.broadcast_to(of[:, None], route.shape)[crosses] for of in (edge // n, edges.share[edge % n]))
            entries.append(_summed(group, route[crosses], share, cluster.wiring.links))
        if len(entries) == 1:
            summed = entries[0]
        else:
            group, link, share = (np.concatenate(column) for column in zip(*entries, strict=True))
            summed = _summed(group, link, share, cluster.wiring.links)
        by_group = edge_s.reshape(count, n)
        mean_s = by_group @ (edges.share / edges.share.sum())
        return _Routed(*summed, by_group.max(axis=1), mean_s)

    def _together(self, rounds: Sequence[Round], routed: Mapping[tuple[bytes, ...], _Routed]) -> _Routed:
        """Several rounds as one, with their parts of what they carry as factors on shares; its latencies mean nothing."""
        parts = [routed[r.edges.key] for r in rounds]
        if not parts:
            return _SILENT
        if len({id(part) for part in parts}) == 1:
            return parts[0]
        whole = wire_fraction(rounds)
        group, link = (np.concatenate([getattr(part, name) for part in parts]) for name in ("group", "link"))
        factors = [float(r.fraction * r.repeats / whole) for r in rounds]
        share = np.concatenate([part.share * factor for part, factor in zip(parts, factors, strict=True)])
        return _Routed(*_summed(group, link, share, len(self.capacity)), parts[0].longest_s, parts[0].mean_s)

    def _busiest_s(self, routed: _Routed, count: int) -> Array:
        """Per group, seconds that its busiest link takes for one byte on every edge of share 1."""
        busiest = np.zeros(count)
        np.maximum.at(busiest, routed.group, routed.share / self.capacity[routed.link])
        return busiest

    def _add(self, rows: Array, pattern: int, routed: _Routed) -> None:
        kept = self.ground.binds[routed.link]
        weight = np.floor(routed.share[kept] * (1 << WEIGHT_BITS) + 2.0**-20).astype(np.int64)
        group = rows[routed.group[kept]]
        self.entries.append((group, np.full(len(group), pattern), routed.link[kept], np.maximum(weight, 1)))


def _identity(plan: Sequence[Round]) -> tuple[object, ...]:
    """Equal for plans whose fluids cross the same links in the same proportions."""
    whole = wire_fraction(plan)
    by_edges: dict[tuple[bytes, ...], object] = {}
    for r in plan:
        by_edges[r.edges.key] = r.fraction * r.repeats / whole + by_edges.get(r.edges.key, 0)  # type: ignore[operator]
    return tuple(by_edges.items())


def _round_latency_s(r: Round, routed: _Routed) -> Array:
    """A single round waits for its slowest message; one that repeats goes round, and takes the mean."""
    return routed.longest_s if r.repeats == 1 else routed.mean_s * r.repeats


def _distinct(columns: Iterable[Array], rows: int) -> tuple[Array, Array]:
    """An example of each distinct row of some columns, and which of them every row is."""
    first, which = np.zeros(1, dtype=np.int64), np.zeros(rows, dtype=np.int64)
    for column in columns if rows > 1 else ():
        if not (column == column[0]).all():
            values, number = np.unique(column, return_inverse=True)
            _, first, which = np.unique(which * len(values) + number, return_index=True, return_inverse=True)
    return first, which


def _rounded(values: Array) -> Array:
    """Floats to so many significant digits that alike groups come out equal."""
    exponent = np.floor(np.log10(np.where(values > 0, values, 1.0)))
    scale = np.power(10.0, DIGITS - 1 - exponent)
    rounded: Array = np.rint(values * scale) / scale
    return rounded


def _rounded_ns(seconds: Array) -> Array:
    values, which = np.unique(_rounded(seconds), return_inverse=True)
    return np.array([ns(s) for s in values.tolist()], dtype=np.int64)[which]


def _tariff(families: list[_Family], names: Mapping[int, tuple[str, int]], ground: Ground) -> tuple[Array, Tariff]:
    """The kind of every group, and what each charge costs on each kind."""
    kind_of: list[Array] = []
    columns: list[dict[int, _Charged]] = []
    for family in families:
        charges = sorted(family.ways)
        ways = {id(way): way for way in family.ways.values()}.values()
        told = [family.layout, *(column for way in ways for column in (way.latency_ns, way.s_per_byte, way.mixture))]
        first, which = _distinct(told, len(family.members))
        kind_of.append(len(columns) + which)
        for group in first.tolist():
            columns.append({charge: _charge(family, charge, group, names[charge], ground) for charge in charges})
    shape = (max(1, len(columns)), max(1, len(names)))
    tariff = Tariff(*(np.full(shape, NO_CHARGE.get(name, 0), dtype=np.int64) for name in _Charged._fields))
    for kind, of in enumerate(columns):
        for charge, costs in of.items():
            for name, cost in costs._asdict().items():
                getattr(tariff, name)[kind, charge] = cost
    return np.concatenate(kind_of), tariff


class _Charged(NamedTuple):
    """What one collective of one group costs, as `Tariff` has it."""

    latency_ns: int
    work: int
    """Wire bytes << 24."""
    cap: int
    """The most of that per ns."""
    pattern: int
    tail_ns: int
    cap_profile: int


def _charge(family: _Family, charge: int, group: int, what: tuple[str, int], ground: Ground) -> _Charged:
    """The costs of one collective of one group.

    Latency, tail and cap make it last, alone, what was measured, or what its messages need on these links if that is more. Of
    what was measured beyond the links' own need, the part that the smallest message takes too is latency. Of the latency of a
    transfer, the propagation of its links is the tail. A cap that was measured falls with the links that are degraded.
    """
    way, (kind, payload_bytes), conduct = family.ways[charge], what, ground.conduct
    numerator, denominator = way.wire[int(family.layout[group])]
    work = -(-numerator * (payload_bytes << RATE_BITS) // denominator)
    if work > MOST_WORK:
        raise UserError(f"{kind} of {payload_bytes} bytes is more than one task can carry", hint="use smaller buckets")
    latency_ns, wire_ns = int(way.latency_ns[group]), float(way.s_per_byte[group]) * payload_bytes * NS_PER_S
    known = conduct.alone(kind, way.algorithm, family.nodes[group], payload_bytes)
    least = conduct.alone(kind, way.algorithm, family.nodes[group], 1)
    mixture = 0
    if known and least and known.seconds * NS_PER_S > latency_ns + wire_ns:
        alone_ns = known.seconds * NS_PER_S
        latency_ns = max(latency_ns, int(min(least.seconds * NS_PER_S, alone_ns - wire_ns)))
        wire_ns, mixture = alone_ns - latency_ns, int(way.mixture[group])
    cap, cap_profile = UNCAPPED, -1
    if wire_ns > 0:
        cap, cap_profile = ground.degraded.capped(max(1, min(UNCAPPED, int(work / wire_ns))), mixture)
    tail_ns = int(way.latency_ns[group]) if kind == TRANSFER else 0
    return _Charged(latency_ns - tail_ns, work, cap, way.pattern, tail_ns, cap_profile)


def _footprints(families: list[_Family], first: Array, patterns: int, n_links: int) -> tuple[Csr, Array]:
    """Links and weights of every group and pattern; edges of one group that cross the same link add up."""
    pairs = zip(families, first.tolist(), strict=False)
    foot = np.concatenate([(family.entries[0] + at) * patterns + family.entries[1] for family, at in pairs])
    link, weight = (np.concatenate([f.entries[i] for f in families]) for i in (2, 3))
    foot, link, weight = _summed(foot, link, weight, n_links)
    return Csr.from_pairs(foot, link, int(first[-1]) * patterns), weight


def _summed(row: Array, link: Array, value: Array, n_links: int) -> tuple[Array, Array, Array]:
    """Entries sorted by row and link, those of one row and link added up. Values are positive."""
    key = row * n_links + link
    first = int(key.min(initial=MOST_WORK))
    if len(key) and int(key.max()) - first < len(key):
        total = np.bincount(key - first, weights=value)
        found = np.flatnonzero(total)
        return (found + first) // n_links, (found + first) % n_links, total[found].astype(value.dtype)
    order = np.argsort(key, kind="stable")
    key = key[order]
    begins = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]])) if len(key) else key
    summed = np.add.reduceat(value[order], begins) if len(key) else value
    return key[begins] // n_links, key[begins] % n_links, summed


def _slots(written: Written, families: list[_Family], first: Array, mesh: Mesh) -> Array:
    """(slot, rank) -> group, or -1."""
    pipeline = mesh.coordinate("pp")
    n_slots = max((len(names) for names in written.slot_names), default=0)
    slots = np.full((max(1, n_slots), mesh.ranks), -1, dtype=np.int64)
    for family, at in zip(families, first.tolist(), strict=False):
        slot_of = np.array([names.index(family.name) if family.name in names else -1 for names in written.slot_names])
        rank = family.members.ravel()
        slot = slot_of[pipeline[rank]]
        group = at + np.repeat(np.arange(len(family.members)), family.members.shape[1])
        slots[slot[slot >= 0], rank[slot >= 0]] = group[slot >= 0]
    return slots
