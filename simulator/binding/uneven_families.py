"""Uneven exchanges of one communicator, each with its own matrix of bytes, on the groups that use the matrix.

Every layer of experts has its own exchanges, and only the groups of the pipeline ranks that hold the layer take part: other
groups need no links. So the groups of each charge form a family, and this module combines the families.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ..bounded_cache import Cache
from ..engine.task import Array
from .collective_policy import CollectivePolicy, Matrix
from .communicators import Costs, Family
from .gpu_occupancy import Occupancy
from .perturb import DegradedLinks


class UnevenFamily(Family):
    """The groups of one communicator whose collectives have matrices of bytes."""

    def __init__(
        self, members: Array, gpus: Array, charges: Mapping[int, tuple[str, int]], matrices: Mapping[int, Matrix],
        users: Mapping[int, Array], *, policy: CollectivePolicy, degraded: DegradedLinks, occupancy: Occupancy,
        routes: Cache | None = None,
    ) -> None:  # fmt: skip
        """`users` are the groups that use each charge, in ascending order. Routes that depend on a matrix are not kept."""
        self.members, self.gpus, self.charges, self.users = members, gpus, dict(charges), users
        none = np.zeros(0, dtype=np.int64)
        self.services, self.entries = {}, [(none,) * 4]
        self.families: dict[int, Family] = {}
        for charge, call in charges.items():
            groups = users[charge]
            served = policy.with_matrix(matrices[charge], gpus[groups[0]]) if charge in matrices else policy
            family = Family(members[groups], gpus[groups], {charge: call}, policy=served, degraded=degraded, occupancy=occupancy)
            if charge in family.services:
                pattern = len(self.families)
                self.families[charge], self.services[charge] = family, family.services[charge]._replace(pattern=pattern)
                for group, _, link, weight in family.entries:
                    self.entries.append((groups[group], np.full(len(link), pattern), link, weight))

    def differences(self) -> Iterator[Array]:
        for charge, family in self.families.items():
            groups = self.users[charge]
            for column in (np.ones(len(groups), dtype=np.int64), *family.differences()):
                whole = np.zeros(len(self.members), dtype=column.dtype)
                whole[groups] = column
                yield whole

    def charges_of(self, group: int) -> list[int]:
        return [charge for charge in sorted(self.services) if group in self.users[charge]]

    def costs_of(self, charge: int, group: int) -> Costs:
        costs = self.families[charge].costs_of(charge, int(np.searchsorted(self.users[charge], group)))
        return costs._replace(pattern=self.services[charge].pattern)
