"""Communicators on a cluster: the members of each group, the links that its bytes cross, and the costs of its tasks.

All groups of one family are laid out at once, in columns, because a cluster of 100,000 GPUs has as many transfers between
neighbours as ranks. The algorithm of a group gives the messages between ranks, and the cluster's shape their links. The
uncontended time of a task is computed from these, or measured, and caps its rate. Under contention a task is one flow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from types import ModuleType
from typing import NamedTuple, TypedDict

import numpy as np

from ..bounded_cache import Cache
from ..collectives import Round, is_pipelined, wire_fraction
from ..engine.skeleton import Tariff
from ..engine.task import RATE_BITS, UNCAPPED, WEIGHT_BITS, Array, Csr
from ..errors import UserError
from ..units import NS_PER_S
from .collective_policy import BARRIER, CollectivePolicy
from .gpu_occupancy import Occupancy
from .mesh_rings import ClusterRounds
from .perturb import DegradedLinks
from .templates import TRANSFER
from .uncontended import MOST_WORK, RoundTimes, Routed, UncontendedLinks, least_waits_ns, summed, times_ns

NO_CHARGE = {"cap": UNCAPPED, "cap_profile": -1}
"""Entries of a tariff that mean no charge; the other columns are 0."""
MOST_LANES = 16
"""Largest number of parallel rings that are timed."""


class Service(NamedTuple):
    """How the groups of a family carry out one kind of collective by one algorithm."""

    algorithm: str
    pattern: int
    wire: Array
    """Layout -> numerator and denominator of the wire bytes per byte of payload."""
    parts: tuple[tuple[RoundTimes, ...], ...]
    """Layout -> uncontended times of its groups."""
    row: Array
    """Group -> its row in the parts of its layout."""
    fraction: Array
    """Group -> number of the profile of the capacity that perturbations leave to its links, as a fraction (`DegradedLinks`)."""


class Costs(NamedTuple):
    """The costs of one collective of one group, in the columns of `Tariff`."""

    latency_ns: int
    work: int
    """Wire bytes << 24."""
    cap: int
    """Upper limit of the rate, in units of `work` per ns."""
    pattern: int
    tail_ns: int
    cap_profile: int
    cores: int
    memory: int


ORDER_FREE = ("all_reduce", "reduce_scatter", "all_gather")
"""Kinds for which libraries order the members of a group by their position in the cluster, not by rank."""


class Placed(TypedDict):
    """Inputs of the groups of a family besides their members and charges."""

    policy: CollectivePolicy
    degraded: DegradedLinks
    occupancy: Occupancy
    routes: Cache | None
    """Cached routes."""


class Family:
    """The groups of one communicator, a row each: the algorithms for its charges, and the links that they cross.

    Groups with the same layout over nodes have the same edges and are routed together.
    """

    def __init__(
        self, members: Array, gpus: Array, charges: Mapping[int, tuple[str, int]], *, policy: CollectivePolicy,
        degraded: DegradedLinks, occupancy: Occupancy, routes: Cache | None = None,
    ) -> None:  # fmt: skip
        self.routes = routes
        cluster, self.occupancy = occupancy.cluster, occupancy
        if members.shape == gpus.shape and {kind for kind, _ in charges.values()} <= {*ORDER_FREE, BARRIER}:
            order = np.argsort(gpus, axis=1, kind="stable")
            members, gpus = (np.take_along_axis(column, order, axis=1) for column in (members, gpus))
        self.members, self.gpus, self.policy, self.degraded = members, gpus, policy, degraded
        self.nodes = gpus // cluster.gpus_per_node
        near = _neighbours(self.nodes)
        self.examples, self.layout = _distinct_rows(near.T if (near != near[:1]).any() else (), len(members))
        """An example group of each layout, and the layout of each group: which members share a node."""
        moving = sorted((charge, what) for charge, what in charges.items() if what[0] != BARRIER)
        self.charges = dict(moving if gpus.shape[1] > 1 else ())
        self.plans, self.links = ClusterRounds(cluster), UncontendedLinks(cluster)
        self.patterns: dict[tuple[object, ...], int] = {}
        none = np.zeros(0, dtype=np.int64)
        self.entries: list[tuple[Array, Array, Array, Array]] = [(none,) * 4]
        """Footprints: group within the family, pattern, link, weight."""
        self.tried: dict[tuple[str, str], tuple[RoundTimes, ...]] = {}
        done: dict[tuple[str, str], Service] = {}
        self.services: dict[int, Service] = {}
        """Charge -> its service; barriers and groups of one rank have none."""
        others = list(self.nodes[self.examples])
        for charge, (kind, payload_bytes) in self.charges.items():
            uncontended_ns = partial(self._uncontended_ns, kind, payload_bytes)
            key = kind, policy.chosen(kind, self.nodes[self.widest], payload_bytes, uncontended_ns, others)
            if key not in done:
                done[key] = self._service(*key)
            self.services[charge] = done[key]

    @cached_property
    def widest(self) -> int:
        """A group of the layout with most nodes, for which algorithms are chosen."""
        most: int = max(self.examples.tolist(), key=lambda row: len({*self.nodes[row].tolist()}))
        return most

    def _uncontended_ns(self, kind: str, payload_bytes: int, name: str) -> float:
        """Uncontended time of a collective by an algorithm, in the group for which algorithms are chosen."""
        if (kind, name) not in self.tried:
            algorithm = self.policy.algorithms[name]
            plan = self.plans.rounds(algorithm, kind, self.gpus[self.widest])
            self.tried[kind, name], _ = self._round_times(plan, algorithm, kind, np.array([self.widest]))
        return sum(times_ns(self.tried[kind, name], 0, payload_bytes))

    def _service(self, kind: str, name: str) -> Service:
        algorithm = self.policy.algorithms[name]
        plans = [self.plans.rounds(algorithm, kind, self.gpus[row]) for row in self.examples.tolist()]
        key = tuple(_identity(plan) for plan in plans)
        is_new = key not in self.patterns
        pattern = self.patterns.setdefault(key, len(self.patterns))
        row, fraction = (np.zeros(len(self.members), dtype=np.int64) for _ in range(2))
        wire, parts = [], []
        for which, plan in enumerate(plans):
            rows = np.flatnonzero(self.layout == which)
            whole = wire_fraction(plan)
            wire.append((whole.numerator, whole.denominator))
            row[rows] = np.arange(len(rows))
            needs, combined = self._routed_groups(plan, algorithm, kind, rows)
            parts.append(needs)
            fraction[rows] = self.degraded.fractions_of_groups(combined.group, combined.link, len(rows))
            if is_new:
                weight = np.floor(combined.share * (1 << WEIGHT_BITS) + 2.0**-20).astype(np.int64)
                group = rows[combined.group]
                self.entries.append((group, np.full(len(group), pattern), combined.link, np.maximum(weight, 1)))
        return Service(name, pattern, np.array(wire, dtype=object), tuple(parts), row, fraction)

    def _routed_groups(
        self, plan: tuple[Round, ...], algorithm: ModuleType, kind: str, rows: Array
    ) -> tuple[tuple[RoundTimes, ...], Routed]:
        """The uncontended times of the groups in `rows`, and the routes that are their footprints."""
        return self._round_times(plan, algorithm, kind, rows)

    def _round_times(
        self, plan: tuple[Round, ...], algorithm: ModuleType, kind: str, rows: Array
    ) -> tuple[tuple[RoundTimes, ...], Routed]:
        """The uncontended times of the groups in `rows`, and the routes of all their rounds combined."""
        gpus, pieces = self.gpus[rows], self.policy.pieces if is_pipelined(algorithm) else 1
        if self.routes is None:
            return self._routed(plan, algorithm, kind, gpus, pieces)
        key = algorithm.__name__, kind, pieces, gpus.shape, gpus.tobytes()
        return self.routes.of(key, lambda: self._routed(plan, algorithm, kind, gpus, pieces), gpus.size)

    def _routed(
        self, plan: tuple[Round, ...], algorithm: ModuleType, kind: str, gpus: Array, pieces: int | None
    ) -> tuple[tuple[RoundTimes, ...], Routed]:
        lanes: list[list[Round]] = []
        if pieces == 1 and any(r.repeats > 1 for r in plan):
            lanes = [[r for r in lane if r.repeats > 1] for lane in self.plans.lanes(algorithm, kind, gpus[0])]
        return self.links.parts(plan, lanes[:: -(-len(lanes) // MOST_LANES) or 1], pieces, gpus)

    def differences(self) -> Iterator[Array]:
        """The columns in which groups can differ: layouts, profiles of degraded links, and times."""
        yield self.layout
        for service in {id(service): service for service in self.services.values()}.values():
            yield service.fraction
            for layout, parts in enumerate(service.parts):
                here = self.layout == layout
                for values in (values for part in parts for values in part):
                    column = np.zeros(len(here), dtype=values.dtype)
                    column[here] = values[service.row[here]]
                    yield column

    def charges_of(self, group: int) -> list[int]:
        """The charges of a group that cost anything."""
        return sorted(self.services)

    def costs_of(self, charge: int, group: int) -> Costs:
        """The costs of one collective of one group.

        Without contention, latency, tail and cap add up to the measured time, or to the time of its messages on these links if
        that is longer. Of the excess of the measured time over the links' time, latency is the part that the smallest message
        takes as well. The tail of a transfer is the latency of its links; of a measured transfer, whose time is the same on all
        paths, it is the least latency of all groups of the layout. A measured cap falls with degraded links.
        """
        service, layout, (kind, payload_bytes) = self.services[charge], int(self.layout[group]), self.charges[charge]
        numerator, denominator = service.wire[layout]
        work = -(-numerator * (payload_bytes << RATE_BITS) // denominator)
        if work > MOST_WORK:
            raise UserError(f"{kind} of {payload_bytes} bytes is more than one task can carry", hint="use smaller buckets")
        waits_ns, moves_ns = times_ns(service.parts[layout], int(service.row[group]), payload_bytes)
        tail_ns = waits_ns if kind == TRANSFER else 0
        known, least = (
            self.policy.uncontended_time(kind, service.algorithm, self.nodes[group], size) for size in (payload_bytes, 1)
        )
        fraction = 0
        if known and least and known.seconds * NS_PER_S > waits_ns + moves_ns:
            alone_ns = known.seconds * NS_PER_S
            waits_ns = max(waits_ns, int(min(least.seconds * NS_PER_S, alone_ns - moves_ns)))
            moves_ns, fraction = alone_ns - waits_ns, int(service.fraction[group])
            tail_ns = min(tail_ns, least_waits_ns(service.parts[layout]))
        cap, cap_profile = UNCAPPED, -1
        if moves_ns > 0:
            cap, cap_profile = self.degraded.scaled_cap(max(1, min(UNCAPPED, int(work / moves_ns))), fraction)
        lasts_ns = waits_ns - tail_ns + int(moves_ns)
        cores, memory = self.occupancy.parts(kind, service.algorithm, payload_bytes, self.gpus[group], lasts_ns)
        return Costs(waits_ns - tail_ns, work, cap, service.pattern, tail_ns, cap_profile, cores, memory)


def _identity(plan: Sequence[Round]) -> tuple[object, ...]:
    """A key that is equal for plans whose flows cross the same links in the same proportions."""
    whole = wire_fraction(plan)
    by_edges: dict[tuple[bytes, ...], object] = {}
    for r in plan:
        by_edges[r.edges.key] = r.fraction * r.repeats / whole + by_edges.get(r.edges.key, 0)  # type: ignore[operator]
    return tuple(by_edges.items())


def _neighbours(nodes: Array) -> Array:
    """For every group (row) and member, the first member that shares its node; only whether it is another one's than that of the
    member before, if the members of each node follow each other in every group.
    """
    changes: Array = nodes[:, 1:] != nodes[:, :-1]
    order = np.argsort(nodes, axis=1, kind="stable")
    by_node = np.take_along_axis(nodes, order, axis=1)
    begins = np.ones(nodes.shape, dtype=bool)
    begins[:, 1:] = by_node[:, 1:] != by_node[:, :-1]
    if (begins[:, 1:].sum(axis=1) == changes.sum(axis=1)).all():
        return changes
    at = np.maximum.accumulate(np.where(begins, np.arange(nodes.shape[1]), 0), axis=1)
    first = np.empty_like(order)
    np.put_along_axis(first, order, np.take_along_axis(order, at, axis=1), axis=1)
    return first


def _distinct_rows(columns: Iterable[Array], rows: int) -> tuple[Array, Array]:
    """The index of an example of each distinct row of some columns, and for every row the number of its example."""
    first, which = np.zeros(1, dtype=np.int64), np.zeros(rows, dtype=np.int64)
    for column in columns if rows > 1 else ():
        if not (column == column[0]).all():
            values, number = np.unique(column, return_inverse=True)
            _, first, which = np.unique(which * len(values) + number, return_index=True, return_inverse=True)
    return first, which


def tariff_of(families: Sequence[Family], numbers: Sequence[Array], charges: int) -> tuple[Array, Tariff]:
    """The kind of every group, and the cost of each charge for each kind. `numbers` are the groups of each family."""
    kind_of = np.zeros(sum(map(len, numbers)), dtype=np.int64)
    columns: list[dict[int, Costs]] = []
    for family, groups in zip(families, numbers, strict=True):
        first, which = _distinct_rows(family.differences(), len(family.members))
        kind_of[groups] = len(columns) + which
        columns += [{charge: family.costs_of(charge, group) for charge in family.charges_of(group)} for group in first.tolist()]
    shape = (max(1, len(columns)), max(1, charges))
    tariff = Tariff(*(np.full(shape, NO_CHARGE.get(name, 0), dtype=np.int64) for name in Costs._fields))
    for kind, of in enumerate(columns):
        for charge, costs in of.items():
            for name, cost in costs._asdict().items():
                getattr(tariff, name)[kind, charge] = cost
    return kind_of, tariff


def footprints_of(families: Sequence[Family], numbers: Sequence[Array], patterns: int, n_links: int) -> tuple[Csr, Array]:
    """Links and weights of every group and pattern; edges of one group that cross the same link add up."""
    entries: list[tuple[Array, ...]] = [(np.zeros(0, dtype=np.int64),) * 4]
    entries += [
        (groups[group], *rest) for family, groups in zip(families, numbers, strict=True) for group, *rest in family.entries
    ]
    group, pattern, link, weight = (np.concatenate(column) for column in zip(*entries, strict=True))
    footprint, link, weight = summed(group * patterns + pattern, link, weight, n_links)
    return Csr.from_pairs(footprint, link, sum(map(len, numbers)) * patterns), weight


def slots_of(slot_names: Sequence[Sequence[str]], groups: Mapping[str, Array], first: Array, role: Array) -> Array:
    """(slot, rank) -> group, or -1. `slot_names` are the communicators of each role's slots, `role` is every rank's."""
    n_slots = max((len(names) for names in slot_names), default=0)
    slots = np.full((max(1, n_slots), len(role)), -1, dtype=np.int64)
    for (name, members), at in zip(groups.items(), first.tolist(), strict=False):
        slot_of = np.array([names.index(name) if name in names else -1 for names in slot_names])
        rank = members.ravel()
        slot = slot_of[role[rank]]
        group = at + np.repeat(np.arange(len(members)), members.shape[1])
        slots[slot[slot >= 0], rank[slot >= 0]] = group[slot >= 0]
    return slots
