"""Binding: program, mesh, cluster and costs become a skeleton, where everything is an integer and nothing has a meaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..engine.skeleton import Skeleton
from ..engine.task import FULL_SPEED, RATE_BITS, Array, Csr, Profile
from ..errors import InvariantBroken, UserError
from ..hardware.cluster import Cluster
from ..hardware.wiring import Wiring
from ..kernels import KernelCost
from ..plan.mesh import Mesh
from ..program.labels import Labels
from ..program.program import Program, Role
from ..units import NS_PER_S
from .collective_policy import CollectivePolicy
from .communicators import Ground, lay_groups
from .launches import Host, launched
from .perturb import Degraded, Perturbation, profile
from .templates import Writer


@dataclass(frozen=True, eq=False, slots=True)
class Bound:
    """A skeleton and what its templates' rows stand for. Template r is that of the program's role r."""

    skeleton: Skeleton
    """Its footprints leave out the links that can never bind."""
    every_link: Skeleton
    """The same with all links that its footprints cross."""
    labels: tuple[Labels, ...]
    mesh: Mesh
    algorithms: Mapping[tuple[str, int], str]
    """(communicator, charge) -> the algorithm that serves it."""
    families: tuple[Array, ...]
    """The members' GPUs of every group, family by family, in the order of the skeleton's communicators."""

    def gpus_of(self, communicator: int) -> Array:
        """The GPUs of a communicator's members, in the order of the group."""
        for family in self.families:
            if communicator < len(family):
                members: Array = family[communicator]
                return members
            communicator -= len(family)
        raise InvariantBroken(f"no communicator {communicator}")


@dataclass(frozen=True, eq=False, slots=True)
class Site:
    """Where a program runs: a cluster, what kernels cost there, how collectives are done, and its perturbations."""

    cluster: Cluster
    cost: KernelCost
    policy: CollectivePolicy
    perturbations: Sequence[Perturbation] = ()
    host: Host | None = None
    """What launches cost; None launches for nothing."""


def bind(program: Program, mesh: Mesh, site: Site, *, gpus: Array | None = None, every_launch: bool = False) -> Bound:
    """The skeleton of a program at a site. Rank r is GPU r, or `gpus[r]`; perturbed ranks are GPUs.

    With `every_launch` no launch is left out, whether anything can ever wait for it or not.
    """
    cluster, perturbations = site.cluster, site.perturbations
    gpus = np.arange(mesh.ranks) if gpus is None else gpus
    for p in perturbations:
        if p.rank is not None and not 0 <= p.rank < cluster.gpus:
            raise UserError(f"perturb: no rank {p.rank} among {cluster.gpus}", hint=f"ranks are 0 to {cluster.gpus - 1}")
    written = Writer(program, site.cost).written()
    profiles: list[Profile] = []
    speed = _profiled(np.full(cluster.gpus, FULL_SPEED), _by_target(perturbations, "rank"), profiles)[gpus]
    capacity = np.rint(cluster.wiring.capacity_bytes_per_s / NS_PER_S * (1 << RATE_BITS)).astype(np.int64)
    of_links = _by_target(perturbations, "link")
    link_profile = _profiled(capacity, of_links, profiles)
    ground = Ground(mesh, gpus, cluster, site.policy, Degraded(of_links, profiles))
    role = roles_of_ranks(program.roles, mesh)
    groups = lay_groups(written, program.communicators, role, ground)
    skeleton = Skeleton(
        written.templates,
        groups.tariff,
        tuple(profiles),
        role,
        speed,
        groups.slots,
        groups.kind,
        groups.patterns,
        groups.footprints,
        groups.footprint_weight,
        link_profile,
    )
    labels, families = written.labels, groups.families
    if site.host is not None:
        skeleton, labels = launched(skeleton, labels, site.host, every=every_launch)
        families = (*families, gpus[:, None])
    footprints = skeleton.footprints
    kept = np.flatnonzero(~never_binding(cluster.wiring, link_profile, profiles)[footprints.idx])
    fewer = Csr.from_pairs(footprints.row_of[kept], footprints.idx[kept], len(footprints))
    slim = replace(skeleton, footprints=fewer, footprint_weight=skeleton.footprint_weight[kept])
    return Bound(slim, skeleton, labels, mesh, groups.algorithms, families)


def roles_of_ranks(roles: Sequence[Role], mesh: Mesh) -> Array:
    """Every rank's role: the first that it fits."""
    found = np.full(mesh.ranks, -1)
    for number, role in enumerate(roles):
        wanted = {"pp": (role.pipeline,), **role.coordinates}
        here = np.all([np.isin(mesh.coordinate(axis), of) for axis, of in wanted.items()], axis=0) & (found < 0)
        found[here] = number
    if (found < 0).any():
        raise InvariantBroken(f"rank {int(np.argmin(found))} has no role in the program")
    return found


def _by_target(perturbations: Sequence[Perturbation], kind: str) -> dict[int, list[Perturbation]]:
    targets = dict.fromkeys(getattr(p, kind) for p in perturbations)
    return {at: [p for p in perturbations if getattr(p, kind) == at] for at in targets if at is not None}


def _profiled(base: Array, changes: Mapping[int, Sequence[Perturbation]], profiles: list[Profile]) -> Array:
    """The profile of each entry of `base`, equal ones shared; new profiles are appended to `profiles`."""
    values, index = np.unique(base, return_inverse=True)
    index = index + len(profiles)
    profiles += [Profile.constant(value) for value in values.tolist()]
    for target, perturbations in changes.items():
        changed = profile(int(base[target]), perturbations)
        if changed not in profiles:
            profiles.append(changed)
        index[target] = profiles.index(changed)
    return index


def never_binding(wiring: Wiring, link_profile: Array, profiles: Sequence[Profile]) -> Array:
    """For each link, whether the links that all its flows cross too carry, together and at best, no more than it at worst.

    Such a link cannot slow anybody. Dropping it changes no rate by more than the rounding of one, and takes away
    asymmetries that do not matter. What a degraded link makes of measured times is found on whole routes, before.
    """
    least = np.array([min(p.value) for p in profiles], dtype=np.int64)[link_profile]
    most = np.array([max(p.value) for p in profiles], dtype=np.int64)[link_profile]
    link, covering = wiring.covered.T
    total = np.bincount(link, weights=most[covering].astype(float), minlength=wiring.links)
    covered = np.zeros(wiring.links, dtype=bool)
    covered[link] = True
    never: Array = covered & (total <= least)
    return never
