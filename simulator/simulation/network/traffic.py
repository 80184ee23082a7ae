"""Bytes of a training step on the links of a cluster, and capacities of the links."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...engine.fold import Partition, refine, verify
from ...engine.skeleton import Skeleton
from ...engine.task import RATE_BITS, WEIGHT_BITS, Array, Profile
from ...hardware.cluster import Cluster
from ...program.labels import Labels
from ...units import NS_PER_S


@dataclass(frozen=True)
class Traffic:
    """The bytes of a training step on the links of a cluster, or the mean of several steps."""

    cluster: Cluster
    skeleton: Skeleton
    """The skeleton whose footprints contain every link."""
    labels: tuple[Labels, ...]
    iterations: range
    """The numbers of the iterations that are counted."""
    steps: int
    """Number of steps that these iterations make up."""

    @cached_property
    def bytes(self) -> Array:
        """Bytes per step on every link, in the order of the cluster's wiring."""
        skeleton, alike = self.skeleton, self.partition.communicator
        carried = np.zeros((len(alike), skeleton.patterns))
        for communicator, rank, rows in self.turns(set(first_of(alike).tolist())):
            pattern, _, work = self.charges(communicator, rank, rows)
            np.add.at(carried[communicator], pattern, work / (1 << RATE_BITS))
        of_footprint = carried[first_of(alike)[alike]].ravel()
        each = of_footprint[skeleton.footprints.row_of] * skeleton.footprint_weight / (1 << WEIGHT_BITS)
        return np.bincount(skeleton.footprints.idx, weights=each / self.steps, minlength=self.cluster.wiring.links)

    @cached_property
    def partition(self) -> Partition:
        """Classes of communicators with the same turns at the same times, and of links with the same traffic."""
        partition = refine(self.skeleton)
        verify(self.skeleton, partition)
        return partition

    def capacity(self, begin_ns: int, end_ns: int) -> Array:
        """Mean capacity of every link between two times, in bytes/s, with perturbations."""
        skeleton, rate = self.skeleton, self.cluster.wiring.capacity_bytes_per_s
        undisturbed = np.rint(rate / NS_PER_S * (1 << RATE_BITS))
        left = np.array([mean(profile, begin_ns, end_ns) for profile in skeleton.profiles])[skeleton.link_profile]
        capacity: Array = rate * (left / undisturbed)
        return capacity

    @cached_property
    def kinds(self) -> tuple[Array, tuple[str, ...]]:
        """The number of the kind of every link, and the names of the kinds (`nic > leaf`) in the order of their first links."""
        wiring = self.cluster.wiring
        first = np.array([run.first for run in wiring.vertices])
        source, target = (np.searchsorted(first, ends, side="right") - 1 for ends in (wiring.source, wiring.target))
        _, begin, which = np.unique(source * len(first) + target, return_index=True, return_inverse=True)
        order = np.argsort(begin)
        ends = ((int(wiring.source[i]), int(wiring.target[i])) for i in begin[order])
        return np.argsort(order)[which], tuple(f"{wiring.vertex_kind(a)} > {wiring.vertex_kind(b)}" for a, b in ends)

    @cached_property
    def _first_members(self) -> list[tuple[int, int, int]]:
        """For every communicator in use its number, its slot at its first member, and the rank of that member."""
        communicator, slot, rank = self.skeleton.members
        number, at = np.unique(communicator, return_index=True)
        return list(zip(number.tolist(), slot[at].tolist(), rank[at].tolist(), strict=True))

    def turns(self, wanted: set[int], *, all_steps: bool = False) -> Iterator[tuple[int, int, Array]]:
        """For the wanted communicators: number, first member, and the rows of its program that are turns of the communicator, in
        the counted steps or in all simulated steps."""
        rows_of: dict[tuple[int, int], Array] = {}
        for communicator, slot, rank in self._first_members:
            program = int(self.skeleton.program[rank])
            if communicator in wanted:
                if (program, slot) not in rows_of:
                    rows = self.skeleton.templates[program].rows_of(slot)
                    rows_of[program, slot] = (
                        rows if all_steps else rows[np.isin(self.labels[program].iteration[rows], self.iterations)]
                    )
                yield communicator, rank, rows_of[program, slot]

    def charges(self, communicator: int, rank: int, rows: Array) -> tuple[Array, Array, Array]:
        """The pattern on the links, the latency in nanoseconds and the work of turns (rows of a member's program)."""
        tariff, kind = self.skeleton.tariff, self.skeleton.kind[communicator]
        charge = self.skeleton.templates[int(self.skeleton.program[rank])].charge[rows]
        return tariff.pattern[kind, charge], tariff.latency_ns[kind, charge], tariff.work[kind, charge]


def first_of(classes: Array) -> Array:
    """The first member of each class. Classes are numbered 0, 1, 2 ..."""
    first: Array = np.unique(classes, return_index=True)[1]
    return first


def mean(profile: Profile, begin_ns: int, end_ns: int) -> float:
    """The mean of a profile over an interval, or its value there if the interval is empty."""
    inside = np.clip([*profile.since_ns, np.inf], begin_ns, end_ns)
    lasted_ns = np.diff(inside)
    if end_ns > begin_ns:
        return float(np.dot(lasted_ns, profile.value) / (end_ns - begin_ns))
    return float(profile.value[int(np.searchsorted(profile.since_ns, begin_ns, side="right")) - 1])


def ratio(carried: Array, capacity: Array) -> Array:
    """The utilisation of every link; 0 where the capacity is 0."""
    return np.divide(carried, capacity, out=np.zeros(len(capacity)), where=capacity > 0)
