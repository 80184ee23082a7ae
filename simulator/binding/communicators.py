"""Communicators on the ground: who is in each group, over which links its bytes go, what each of its tasks costs.

All groups of one family are laid out at once, in columns: a cluster of 100,000 GPUs has as many transfers between
neighbours as ranks. A group's algorithm says who sends to whom; the cluster's shape says over which links.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from ..engine.skeleton import Tariff
from ..engine.task import RATE_BITS, UNCAPPED, WEIGHT_BITS, Array, Csr
from ..errors import UserError
from ..hardware.cluster import Cluster
from ..plan.mesh import Mesh
from ..program.program import Communicator
from ..units import ns
from .template import Written

MOST_WORK = (1 << 63) - 1


@dataclass(frozen=True, eq=False, slots=True)
class Groups:
    """All groups of a program, numbered family by family."""

    slots: Array
    kind: Array
    feet: Csr
    foot_weight: Array
    tariff: Tariff


@dataclass(frozen=True, eq=False, slots=True)
class Ground:
    """Where groups are laid: a mesh of ranks on a cluster, an algorithm per kind, and the links that can ever bind."""

    mesh: Mesh
    cluster: Cluster
    algorithms: Mapping[str, ModuleType]
    binds: Array


@dataclass(frozen=True, eq=False, slots=True)
class _Family:
    """The groups of one communicator name: members by row, and what the fabric makes of them."""

    name: str
    members: Array
    algorithm: ModuleType | None
    hop_s: Array
    """Latencies of a group's edges, weighted by share and summed: once around a ring."""
    foot: Array
    """Entries (group within the family, link) ..."""
    link: Array
    weight: Array


def lay_groups(written: Written, communicators: Mapping[str, Communicator], ground: Ground) -> Groups:
    """Every group of every communicator that the templates use."""
    families = []
    for name, communicator in communicators.items():
        members = ground.mesh.groups(communicator.axes, communicator.pipeline)
        charges = written.charges.used_by.get(name, set())
        kinds = {kind for (kind, _), charge in written.charges.number.items() if charge in charges}
        families.append(_family(name, members, kinds, ground))
    first = np.concatenate([[0], np.cumsum([len(f.members) for f in families])]).astype(np.int64)
    kind_of, tariff = _tariff(families, written)
    feet, weight = _footprints(families, first, ground.cluster.wiring.links)
    return Groups(_slots(written, families, first, ground.mesh), kind_of, feet, weight, tariff)


def _family(name: str, members: Array, kinds: set[str], ground: Ground) -> _Family:
    """Routes of all groups of a family. Groups of the same layout over nodes have the same edges."""
    cluster, latency_s = ground.cluster, ground.cluster.wiring.latency_s
    moving = sorted(kinds - {"barrier"})
    none = np.zeros(0, dtype=np.int64)
    if not moving or members.shape[1] < 2:
        return _Family(name, members, None, np.zeros(len(members)), none, none, none)
    algorithm = ground.algorithms[moving[0]]
    if any(ground.algorithms[kind] is not algorithm for kind in moving):
        raise UserError(f"{name} mixes kinds that need different algorithms: {', '.join(moving)}")
    nodes = members // cluster.gpus_per_node
    hop_s = np.zeros(len(members))
    entries: list[tuple[Array, Array, Array]] = []
    _, first, layout = np.unique(nodes[:, 1:] != nodes[:, :-1], axis=0, return_index=True, return_inverse=True)
    for which, example in enumerate(first.tolist()):
        rows = np.flatnonzero(layout.ravel() == which)
        edges = algorithm.edges(nodes[example])
        source, target = members[rows][:, edges.source].ravel(), members[rows][:, edges.target].ravel()
        route = cluster.route(source, target)
        share = np.tile(edges.share, len(rows))
        group = np.repeat(rows, len(edges.source))
        edge_s = np.where(route >= 0, latency_s[route], 0.0).sum(axis=1)
        hop_s += np.bincount(group, weights=share * edge_s, minlength=len(members))
        bound = (route >= 0) & ground.binds[route]
        edge = bound.nonzero()[0]
        entries.append((group[edge], route[bound], np.rint(share[edge] * (1 << WEIGHT_BITS)).astype(np.int64)))
    foot, link, weight = (np.concatenate(column) for column in zip(*entries, strict=True))
    return _Family(name, members, algorithm, hop_s, foot, link, weight)


def _tariff(families: list[_Family], written: Written) -> tuple[Array, Tariff]:
    """The kind of every group, and what each charge costs on each kind: latency and wire bytes."""
    number: dict[tuple[str, int, int], int] = {}
    rows: list[tuple[_Family, int]] = []
    of_group: list[Array] = []
    for family in families:
        hop_ns = np.array([ns(s) for s in np.unique(family.hop_s).tolist()], dtype=np.int64)
        kinds = []
        for at in hop_ns.tolist():
            algorithm = family.algorithm.__name__ if family.algorithm else ""
            key = (algorithm, family.members.shape[1], at)
            if key not in number:
                number[key] = len(number)
                rows.append((family, at))
            kinds.append(number[key])
        of_group.append(np.array(kinds, dtype=np.int64)[np.unique(family.hop_s, return_inverse=True)[1]])
    shape = (len(number), max(1, len(written.charges.number)))
    latency_ns, work = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    used = {key: set[int]() for key in range(len(number))}
    for family, kinds_of in zip(families, of_group, strict=True):
        for kind in np.unique(kinds_of).tolist():
            used[kind] |= written.charges.used_by.get(family.name, set())
    names = {charge: what for what, charge in written.charges.number.items()}
    for kind, (family, hop) in enumerate(rows):
        for charge in sorted(used[kind]):
            latency_ns[kind, charge], work[kind, charge] = _charge(family, hop, *names[charge])
    zeros = np.zeros(shape, dtype=np.int64)
    return np.concatenate(of_group), Tariff(latency_ns, work, np.full(shape, UNCAPPED), zeros, zeros)


def _charge(family: _Family, hop_ns: int, kind: str, payload_bytes: int) -> tuple[int, int]:
    """Latency in nanoseconds and work (wire bytes << 24) of one collective on one kind of group."""
    if family.algorithm is None:
        return 0, 0
    n = family.members.shape[1]
    edges_around = n if n > 2 or kind != "sendrecv" else 1
    latency_ns = family.algorithm.steps(kind, n) * hop_ns // edges_around
    wire = family.algorithm.wire_fraction(kind, n) * payload_bytes * (1 << RATE_BITS)
    work = -(-wire.numerator // wire.denominator)
    if work > MOST_WORK:
        raise UserError(f"{kind} of {payload_bytes} bytes is more than one task can carry", hint="use smaller buckets")
    return latency_ns, work


def _footprints(families: list[_Family], first: Array, n_links: int) -> tuple[Csr, Array]:
    """Links and weights of every group; edges of one group that cross the same link add up."""
    foot = np.concatenate([f.foot + at for f, at in zip(families, first.tolist(), strict=False)])
    link = np.concatenate([f.link for f in families])
    weight = np.concatenate([f.weight for f in families])
    key = foot * n_links + link
    order = np.argsort(key, kind="stable")
    key = key[order]
    begins = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]])) if len(key) else key
    summed = np.add.reduceat(weight[order], begins) if len(key) else weight
    return Csr.from_pairs(key[begins] // n_links, key[begins] % n_links, int(first[-1])), summed


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
