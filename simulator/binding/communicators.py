"""Communicators on a cluster: the members of each group, the links that its bytes cross, and the costs of its tasks.

All groups of one family are laid out at once, in columns: a cluster of 100,000 GPUs has as many transfers between
neighbours as ranks. A group's algorithm says who sends to whom; the cluster's shape says over which links. What a task
takes uncontended is computed from that, or measured, and kept as a cap on its rate; under contention it is one flow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple

import numpy as np

from ..collectives import Round, wire_fraction
from ..engine.skeleton import Tariff
from ..engine.task import RATE_BITS, UNCAPPED, WEIGHT_BITS, Array, Csr
from ..errors import UserError
from ..hardware.cluster import Cluster
from ..plan.mesh import Mesh
from ..program.program import Communicator
from ..units import NS_PER_S
from .collective_policy import BARRIER, CollectivePolicy
from .mesh_rings import Plans
from .perturb import Degraded
from .templates import TRANSFER, Written
from .uncontended import MOST_WORK, Part, Routed, UncontendedLinks, latency_ns, summed, wire_ns

NO_CHARGE = {"cap": UNCAPPED, "cap_profile": -1}
"""What stands in a tariff where nothing is charged; in all other columns 0."""
MOST_LANES = 16
"""The most rings side by side that are timed."""


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
    footprints: Csr
    footprint_weight: Array
    tariff: Tariff


@dataclass(frozen=True, eq=False, slots=True)
class Ground:
    """Where groups are laid: a mesh of ranks on a cluster, and how collectives are done there."""

    mesh: Mesh
    gpus: Array
    """Rank -> its GPU."""
    cluster: Cluster
    policy: CollectivePolicy
    degraded: Degraded


@dataclass(frozen=True, eq=False, slots=True)
class _Service:
    """What the groups of a family do for one kind of collective by one algorithm."""

    algorithm: str
    pattern: int
    wire: Array
    """Per layout the numerator and the denominator of wire bytes per byte of payload."""
    parts: tuple[tuple[Part, ...], ...]
    """Per layout what its groups take uncontended."""
    row: Array
    """Per group its row in the parts of its layout."""
    mixture: Array
    """Per group: which degraded links it crosses, by the number of their mixture."""


@dataclass(frozen=True, eq=False, slots=True)
class _Family:
    """The groups of one communicator name: members by row, and what the fabric makes of them."""

    name: str
    members: Array
    nodes: Array
    """Per group the nodes of its members."""
    ways: Mapping[int, _Service]
    """Charge -> how it is served; nothing for barriers and groups of one."""
    layout: Array
    """Per group, which of the family's layouts over nodes it has."""
    entries: tuple[Array, Array, Array, Array]
    """Footprints: group within the family, pattern, link, weight."""


def lay_groups(written: Written, communicators: Mapping[str, Communicator], role: Array, ground: Ground) -> Groups:
    """Every group of every communicator that the templates use. `role` is every rank's."""
    names = {charge: what for what, charge in written.charges.number.items()}
    families = []
    for name, communicator in communicators.items():
        members = ground.mesh.groups(communicator.axes, communicator.pipeline)
        charges = {charge: names[charge] for charge in sorted(written.charges.used_by.get(name, set()))}
        families.append(_Layer(ground, members, charges).family(name))
    first = np.concatenate([[0], np.cumsum([len(f.members) for f in families])]).astype(np.int64)
    patterns = max((way.pattern + 1 for family in families for way in family.ways.values()), default=1)
    kind_of, tariff = _tariff(families, names, ground)
    footprints, weight = _footprints(families, first, patterns, ground.cluster.wiring.links)
    slots = _slots(written, families, first, role)
    algorithms = {(family.name, charge): way.algorithm for family in families for charge, way in family.ways.items()}
    gpus = tuple(ground.gpus[family.members] for family in families)
    return Groups(slots, kind_of, algorithms, gpus, patterns, footprints, weight, tariff)


class _Layer:
    """Lays the groups of one family, layout by layout. Groups of the same layout over nodes have the same edges."""

    def __init__(self, ground: Ground, members: Array, charges: Mapping[int, tuple[str, int]]) -> None:
        self.ground, self.members = ground, members
        self.charges = {c: what for c, what in charges.items() if what[0] != BARRIER} if members.shape[1] > 1 else {}
        self.nodes = ground.gpus[members] // ground.cluster.gpus_per_node
        changes = self.nodes[:, 1:] != self.nodes[:, :-1]
        self.examples, self.layout = _distinct(changes.T, len(members))
        self.plans = Plans(ground.cluster)
        self.uncontended = UncontendedLinks(ground.cluster)
        self.patterns: dict[tuple[object, ...], int] = {}
        self.judged: dict[tuple[str, str], tuple[Part, ...]] = {}
        self.entries: list[tuple[Array, Array, Array, Array]] = []

    def family(self, name: str) -> _Family:
        widest = max(self.examples.tolist(), key=lambda row: len(set(self.nodes[row].tolist())))
        done: dict[tuple[str, str], _Service] = {}
        ways: dict[int, _Service] = {}
        for charge, (kind, payload_bytes) in self.charges.items():
            algorithm = self._chosen(kind, payload_bytes, widest)
            if (algorithm, kind) not in done:
                done[algorithm, kind] = self._service(algorithm, kind)
            ways[charge] = done[algorithm, kind]
        none = np.zeros(0, dtype=np.int64)
        columns = zip(*self.entries, strict=True) if self.entries else ([none],) * 4
        group, pattern, link, weight = (np.concatenate(column) for column in columns)
        return _Family(name, self.members, self.nodes, ways, self.layout, (group, pattern, link, weight))

    def _chosen(self, kind: str, payload_bytes: int, example: int) -> str:
        """What the library takes, else the fastest of the candidates, judged by one group of the widest layout."""
        policy, nodes = self.ground.policy, self.nodes[example]
        able = policy.candidates(kind, nodes)
        if len(able) == 1:
            return next(iter(able))
        taken = policy.automatic_choice(kind, nodes, payload_bytes)
        if taken in able:
            return taken

        def uncontended_ns(name: str) -> float:
            if (name, kind) not in self.judged:
                plan = self.plans.rounds(able[name], kind, self.ground.gpus[self.members[example]])
                self.judged[name, kind], _ = self._needs(plan, able[name], kind, np.array([example]))
            parts = self.judged[name, kind]
            return latency_ns(parts, 0, payload_bytes) + wire_ns(parts, 0, payload_bytes)

        return min(able, key=uncontended_ns)

    def _service(self, name: str, kind: str) -> _Service:
        algorithm = self.ground.policy.algorithms[name]
        plans = [self.plans.rounds(algorithm, kind, self.ground.gpus[self.members[row]]) for row in self.examples.tolist()]
        key = tuple(_identity(plan) for plan in plans)
        is_new = key not in self.patterns
        pattern = self.patterns.setdefault(key, len(self.patterns))
        row, mixture = (np.zeros(len(self.members), dtype=np.int64) for _ in range(2))
        wire, parts = [], []
        for which, plan in enumerate(plans):
            rows = np.flatnonzero(self.layout == which)
            whole = wire_fraction(plan)
            wire.append((whole.numerator, whole.denominator))
            row[rows] = np.arange(len(rows))
            needs, together = self._needs(plan, algorithm, kind, rows)
            parts.append(needs)
            mixture[rows] = self.ground.degraded.crossed(together.group, together.link, len(rows))
            if is_new:
                self._add(rows, pattern, together)
        return _Service(name, pattern, np.array(wire, dtype=object), tuple(parts), row, mixture)

    def _needs(self, plan: tuple[Round, ...], algorithm: ModuleType, kind: str, rows: Array) -> tuple[tuple[Part, ...], Routed]:
        """What the groups in `rows` take uncontended, and all their rounds together on the links."""
        gpus = self.ground.gpus[self.members[rows]]
        pieces, lanes = self.ground.policy.pieces_of(algorithm), []
        if pieces == 1 and any(r.repeats > 1 for r in plan):
            lanes = [[r for r in lane if r.repeats > 1] for lane in self.plans.lanes(algorithm, kind, gpus[0])]
        return self.uncontended.parts(plan, lanes[:: -(-len(lanes) // MOST_LANES) or 1], pieces, gpus)

    def _add(self, rows: Array, pattern: int, routed: Routed) -> None:
        weight = np.floor(routed.share * (1 << WEIGHT_BITS) + 2.0**-20).astype(np.int64)
        group = rows[routed.group]
        self.entries.append((group, np.full(len(group), pattern), routed.link, np.maximum(weight, 1)))


def _identity(plan: Sequence[Round]) -> tuple[object, ...]:
    """Equal for plans whose fluids cross the same links in the same proportions."""
    whole = wire_fraction(plan)
    by_edges: dict[tuple[bytes, ...], object] = {}
    for r in plan:
        by_edges[r.edges.key] = r.fraction * r.repeats / whole + by_edges.get(r.edges.key, 0)  # type: ignore[operator]
    return tuple(by_edges.items())


def _distinct(columns: Iterable[Array], rows: int) -> tuple[Array, Array]:
    """An example of each distinct row of some columns, and which of them every row is."""
    first, which = np.zeros(1, dtype=np.int64), np.zeros(rows, dtype=np.int64)
    for column in columns if rows > 1 else ():
        if not (column == column[0]).all():
            values, number = np.unique(column, return_inverse=True)
            _, first, which = np.unique(which * len(values) + number, return_index=True, return_inverse=True)
    return first, which


def _tariff(families: list[_Family], names: Mapping[int, tuple[str, int]], ground: Ground) -> tuple[Array, Tariff]:
    """The kind of every group, and what each charge costs on each kind."""
    kind_of: list[Array] = []
    columns: list[dict[int, _Charged]] = []
    for family in families:
        charges = sorted(family.ways)
        ways = {id(way): way for way in family.ways.values()}.values()
        columns_of = [family.layout, *(column for way in ways for column in (way.mixture, *_distinguishing(family, way)))]
        first, which = _distinct(columns_of, len(family.members))
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


def _distinguishing(family: _Family, way: _Service) -> Iterator[Array]:
    """The columns in which groups of one layout can differ."""
    for layout, parts in enumerate(way.parts):
        here = family.layout == layout
        for values in (values for part in parts for values in part.columns):
            column = np.zeros(len(here), dtype=values.dtype)
            column[here] = values[way.row[here]]
            yield column


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
    way, (kind, payload_bytes), policy = family.ways[charge], what, ground.policy
    numerator, denominator = way.wire[int(family.layout[group])]
    work = -(-numerator * (payload_bytes << RATE_BITS) // denominator)
    if work > MOST_WORK:
        raise UserError(f"{kind} of {payload_bytes} bytes is more than one task can carry", hint="use smaller buckets")
    parts, row = way.parts[int(family.layout[group])], int(way.row[group])
    waits_ns, moves_ns = latency_ns(parts, row, payload_bytes), wire_ns(parts, row, payload_bytes)
    tail_ns = waits_ns if kind == TRANSFER else 0
    known = policy.uncontended_time(kind, way.algorithm, family.nodes[group], payload_bytes)
    least = policy.uncontended_time(kind, way.algorithm, family.nodes[group], 1)
    mixture = 0
    if known and least and known.seconds * NS_PER_S > waits_ns + moves_ns:
        alone_ns = known.seconds * NS_PER_S
        waits_ns = max(waits_ns, int(min(least.seconds * NS_PER_S, alone_ns - moves_ns)))
        moves_ns, mixture = alone_ns - waits_ns, int(way.mixture[group])
    cap, cap_profile = UNCAPPED, -1
    if moves_ns > 0:
        cap, cap_profile = ground.degraded.capped(max(1, min(UNCAPPED, int(work / moves_ns))), mixture)
    return _Charged(waits_ns - tail_ns, work, cap, way.pattern, tail_ns, cap_profile)


def _footprints(families: list[_Family], first: Array, patterns: int, n_links: int) -> tuple[Csr, Array]:
    """Links and weights of every group and pattern; edges of one group that cross the same link add up."""
    pairs = zip(families, first.tolist(), strict=False)
    footprint = np.concatenate([(family.entries[0] + at) * patterns + family.entries[1] for family, at in pairs])
    link, weight = (np.concatenate([f.entries[i] for f in families]) for i in (2, 3))
    footprint, link, weight = summed(footprint, link, weight, n_links)
    return Csr.from_pairs(footprint, link, int(first[-1]) * patterns), weight


def _slots(written: Written, families: list[_Family], first: Array, role: Array) -> Array:
    """(slot, rank) -> group, or -1."""
    n_slots = max((len(names) for names in written.slot_names), default=0)
    slots = np.full((max(1, n_slots), len(role)), -1, dtype=np.int64)
    for family, at in zip(families, first.tolist(), strict=False):
        slot_of = np.array([names.index(family.name) if family.name in names else -1 for names in written.slot_names])
        rank = family.members.ravel()
        slot = slot_of[role[rank]]
        group = at + np.repeat(np.arange(len(family.members)), family.members.shape[1])
        slots[slot[slot >= 0], rank[slot >= 0]] = group[slot >= 0]
    return slots
