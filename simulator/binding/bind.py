"""Binding: a program, a mesh, a cluster and costs become a skeleton, the engine's input of integers only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..bounded_cache import Cache
from ..engine.fold import Folded, folded
from ..engine.merge import merged
from ..engine.skeleton import Skeleton
from ..engine.task import FULL_SPEED, Array, Csr, Profile, offsets
from ..errors import InvariantBroken, UserError
from ..hardware.cluster import Cluster
from ..kernels import KernelCost
from ..plan.mesh import Mesh
from ..program.labels import Labels
from ..program.operations import OFFLOAD
from ..program.program import Program, Role
from ..workload.framework import CommunicationSms
from .collective_policy import CollectivePolicy
from .communicators import Family, Placed, footprints_of, slots_of, tariff_of
from .copies import BlocksDiffer, Copies, FamilyAcross, copies_of
from .gpu_occupancy import Occupancy
from .host_copies import HostFamily
from .launches import Host, with_launches
from .limiting import never_limiting, work_per_ns
from .perturb import DegradedLinks, Perturbation, by_target, profiles_of
from .templates import TRANSFER, Templates
from .uneven_families import UnevenFamily


@dataclass(frozen=True, eq=False)
class Bound:
    """A skeleton, and labels for the rows of its templates. Template r belongs to role r of the program."""

    skeleton: Skeleton
    """Its footprints leave out links that can never limit a flow."""
    every_link: Skeleton
    """The same skeleton with all links in its footprints."""
    labels: tuple[Labels, ...]
    mesh: Mesh
    algorithms: Mapping[tuple[str, int], str]
    """(communicator, charge) -> the algorithm that serves it."""
    families: tuple[Array, ...]
    """The members' GPUs of every group, family by family, in the order of the skeleton's communicators."""
    copies: Copies | None = None
    """The copies, if only some blocks of replicas are bound and the others are copies of one of them."""
    across: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """The communicators with members in every block."""

    @cached_property
    def merged(self) -> Skeleton:
        """The skeleton as it is simulated. Ranks with different loads of experts do not fold: their rows are merged where
        possible."""
        if not any(template.solo_ns.ndim > 1 for template in self.skeleton.templates):
            return self.skeleton
        return merged(self.skeleton, [labels.kept_apart for labels in self.labels])

    def folded(self, within: Callable[[int], None] = lambda tasks: None) -> Folded:
        """One rank of each class of all ranks; `within` may raise for too many tasks."""
        of_bound = folded(self.merged, within)
        return self.copies.all_ranks(of_bound, self.merged, self.across) if self.copies else of_bound

    def gpus_of(self, communicator: int) -> Array:
        """The GPUs of a communicator's members, in the order that its algorithms use."""
        for family in self.families:
            if communicator < len(family):
                members: Array = family[communicator]
                return members
            communicator -= len(family)
        raise InvariantBroken(f"no communicator {communicator}")


@dataclass(frozen=True, eq=False, slots=True)
class Site:
    """The hardware side of a run: a cluster with its times of kernels, its policy of collectives, and its perturbations."""

    cluster: Cluster
    cost: KernelCost
    policy: CollectivePolicy
    perturbations: Sequence[Perturbation] = ()
    host: Host | None = None
    """The cost of launches; None for launches without cost."""
    sms: CommunicationSms | None = None
    """SMs that the framework reserves for communication that slows kernels beside it; None if it does not slow them."""
    sms_times: float = 1.0
    """What arithmetic loses beside communication, over the share of SMs that this holds."""
    routes: Cache | None = None
    """Cached routes of groups on this cluster."""


def bind(program: Program, mesh: Mesh, site: Site, *, gpus: Array | None = None, every_launch: bool = False) -> Bound:
    """The skeleton of a program at a site. Rank r is GPU r, or `gpus[r]`; perturbed ranks are GPUs.

    With `every_launch` no launch is left out, even if nothing can ever wait for it.
    """
    _check_ranks(site)
    return _bind(program, mesh, site, np.arange(mesh.ranks) if gpus is None else gpus, every_launch=every_launch)


def bind_first(
    program: Program, mesh: Mesh, site: Site, *, gpus: Array | None = None, within: Callable[[int], None] = lambda gpus: None
) -> Bound:
    """As `bind`, but if all blocks of replicas are copies of each other, only with the ranks of one block and of disturbed
    blocks.

    `within` may raise for too many GPUs to be laid out.
    """
    _check_ranks(site)
    copies = None if gpus is not None else copies_of(program, mesh, site.cluster, site.perturbations)
    if copies:
        within(len(copies.ranks))
        with suppress(BlocksDiffer):  # differences that the description of the cluster does not show
            return _bind(program, mesh, site, copies.ranks, copies)
    within(mesh.ranks)
    return bind(program, mesh, site, gpus=gpus)


def _check_ranks(site: Site) -> None:
    """Raises `UserError` for a perturbed rank that the cluster does not have."""
    gpus = site.cluster.gpus
    for p in site.perturbations:
        if p.rank is not None and not 0 <= p.rank < gpus:
            raise UserError(f"perturb: no rank {p.rank} among {gpus}", hint=f"ranks are 0 to {gpus - 1}")


def _bind(
    program: Program, whole: Mesh, site: Site, gpus: Array, copies: Copies | None = None, *, every_launch: bool = False
) -> Bound:
    cluster, mesh = site.cluster, copies.mesh if copies else whole
    role = roles_of_ranks(program.roles, mesh)
    templates = Templates(program, site.cost, shares=site.sms is not None)
    if copies and templates.matrices:
        raise BlocksDiffer("an uneven exchange is bound rank by rank")
    profiles: list[Profile] = []
    speed = _speeds(gpus, site, profiles)
    of_links = by_target(site.perturbations, "link")
    link_profile, limiting = _links(cluster, of_links, profiles, copies)
    degraded = DegradedLinks(of_links, profiles)
    groups = {name: mesh.groups(c.axes, c.pipeline, c.size, c.stride) for name, c in program.communicators.items()}
    first = offsets(np.array([len(ranks) for ranks in groups.values()]))
    families = _families(program, templates, site, _Ranks(groups, role, gpus, copies), degraded)
    patterns = max((service.pattern + 1 for family in families.values() for service in family.services.values()), default=1)
    begins = dict(zip(groups, first.tolist(), strict=False))
    numbers = [np.concatenate([begins[name] + np.arange(len(groups[name])) for name in names]) for names in families]
    kind, tariff = tariff_of([*families.values()], numbers, len(templates.charges))
    footprints, weight = footprints_of([*families.values()], numbers, patterns, cluster.wiring.links)
    if copies:
        footprints, weight = _chosen(footprints, weight, (links := copies.own_links(footprints.idx)) >= 0, links)
    slots = slots_of(templates.slot_names, groups, first, role)
    skeleton = Skeleton(
        templates.templates, tariff, tuple(profiles), role, speed, slots, kind, patterns, footprints, weight, link_profile,
        variant=variants_of_ranks(program, mesh),
    )  # fmt: skip
    labels, members = templates.labels, _members(families, groups)
    if site.host is not None:
        skeleton, labels = with_launches(skeleton, labels, site.host, every=every_launch)
        members = (*members, gpus[:, None])
    fewer, weight = _chosen(skeleton.footprints, skeleton.footprint_weight, limiting[skeleton.footprints.idx])
    algorithms = {
        (name, charge): service.algorithm
        for names, family in families.items()
        for charge, service in family.services.items()
        for name in names
    }
    across = [numbers[at] for at, family in enumerate(families.values()) if isinstance(family, FamilyAcross)]
    common = np.concatenate([np.zeros(0, dtype=np.int64), *across])
    limiting_only = replace(skeleton, footprints=fewer, footprint_weight=weight)
    return Bound(limiting_only, skeleton, labels, whole, algorithms, members, copies, common)


class _Ranks(NamedTuple):
    """The ranks that are bound."""

    groups: Mapping[str, Array]
    """Communicator -> the members of each group."""
    role: Array
    gpus: Array
    copies: Copies | None


def _families(
    program: Program, templates: Templates, site: Site, ranks_of: _Ranks, degraded: DegradedLinks
) -> dict[tuple[str, ...], Family]:
    """The laid-out groups of all communicators, by the names of the communicators that are laid out together."""
    groups, role, gpus, copies = ranks_of
    families: dict[tuple[str, ...], Family] = {}
    for names in _laid_together(program, templates):
        c, calls = program.communicators[names[0]], templates.calls[names[0]]
        ranks = np.concatenate([groups[name] for name in names])
        sharers = sum(other.library == c.library for other in program.communicators.values()) if c.library else 1
        occupancy = Occupancy(site.sms, site.cluster, c, sharers, site.sms_times)
        if c.axis == OFFLOAD:
            families[names] = HostFamily(ranks, gpus[ranks], calls, occupancy, degraded)
            continue
        on: Placed = {"policy": site.policy, "degraded": degraded, "occupancy": occupancy, "routes": site.routes}
        if matrices := {charge: templates.matrices[charge] for charge in calls if charge in templates.matrices}:
            users = {c: np.flatnonzero(np.isin(role[ranks], templates.users_of(c)).any(axis=1)) for c in calls}
            families[names] = UnevenFamily(ranks, gpus[ranks], calls, matrices, users, **on)
        elif copies and copies.crosses(c):
            families[names] = FamilyAcross(ranks, copies.whole.groups(c.axes, c.pipeline), calls, copies, **on)
        else:
            families[names] = Family(ranks, gpus[ranks], calls, **on)
    return families


def _laid_together(program: Program, templates: Templates) -> list[tuple[str, ...]]:
    """The names of the communicators of each family: a single one, or all communicators of the same transfers."""
    found: dict[object, tuple[str, ...]] = {}
    for name, c in program.communicators.items():
        calls = templates.calls[name]
        transfers = calls and c.size is None and all(kind == TRANSFER for kind, _ in calls.values())
        key = (c.axis, c.axes, c.library, tuple(sorted(calls))) if transfers else name
        found[key] = (*found.get(key, ()), name)
    return [*found.values()]


def _members(families: Mapping[tuple[str, ...], Family], groups: Mapping[str, Array]) -> tuple[Array, ...]:
    """The members' GPUs of every group of each communicator."""
    of: dict[str, Array] = {}
    for names, family in families.items():
        cuts = np.cumsum([len(groups[name]) for name in names])[:-1]
        of |= zip(names, np.split(family.gpus, cuts), strict=True)
    return tuple(of[name] for name in groups)


def _speeds(gpus: Array, site: Site, profiles: list[Profile]) -> Array:
    """The profile of the speed of every rank; new profiles are appended to `profiles`."""
    if not site.perturbations:
        return profiles_of(np.full(len(gpus), FULL_SPEED), {}, profiles)
    return profiles_of(np.full(site.cluster.gpus, FULL_SPEED), by_target(site.perturbations, "rank"), profiles)[gpus]


def _links(
    cluster: Cluster, changes: Mapping[int, Sequence[Perturbation]], profiles: list[Profile], copies: Copies | None
) -> tuple[Array, Array]:
    """The profile of the capacity of every link, and whether it can limit flows; new profiles are appended to `profiles`."""
    if copies:
        capacity, limiting = copies.limiting(changes)
        own = copies.own_links(np.array([*changes], dtype=np.int64)).tolist()
        return profiles_of(capacity, dict(zip(own, changes.values(), strict=True)), profiles), limiting
    link_profile = profiles_of(work_per_ns(cluster.wiring.capacity_bytes_per_s), changes, profiles)
    return link_profile, ~never_limiting(cluster.wiring, link_profile, profiles)


def _chosen(footprints: Csr, weight: Array, chosen: Array, links: Array | None = None) -> tuple[Csr, Array]:
    """The footprints with the chosen links only, which may be renumbered, and their weights."""
    at = np.flatnonzero(chosen)
    return Csr.from_pairs(footprints.row_of[at], (footprints.idx if links is None else links)[at], len(footprints)), weight[at]


def roles_of_ranks(roles: Sequence[Role], mesh: Mesh) -> Array:
    """The role of every rank: the first whose coordinates match."""
    pipeline = mesh.coordinate("pp")
    role_of_rank = np.full(len(pipeline), -1)
    for number, role in enumerate(roles):
        here = (pipeline == role.pipeline) & (role_of_rank < 0)
        for axis, coordinates in role.coordinates.items():
            here &= np.isin(mesh.coordinate(axis), coordinates)
        role_of_rank[here] = number
    if (role_of_rank < 0).any():
        raise InvariantBroken(f"rank {int(np.argmin(role_of_rank))} has no role in the program")
    return role_of_rank


def variants_of_ranks(program: Program, mesh: Mesh) -> Array:
    """The variant of every rank; 0 if all ranks of a role are alike."""
    place = mesh.coordinate("ep")
    variant = np.zeros(len(place), dtype=np.int64)
    for number, coordinates in enumerate(program.variants):
        variant[np.isin(place, coordinates)] = number
    return variant
