"""The bytes that a step puts on the links of a cluster, what every link could have carried, and links that several jobs use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...engine.fold import Partition, refine, verify
from ...engine.skeleton import Skeleton
from ...engine.task import RATE_BITS, WEIGHT_BITS, Array, Profile
from ...hardware.cluster import Cluster
from ...hardware.wiring import Wiring
from ...program.labels import Labels
from ...units import NS_PER_S


@dataclass(frozen=True)
class Traffic:
    """The bytes of a training step on the links of a cluster, whenever they move; of several their mean."""

    cluster: Cluster
    skeleton: Skeleton
    """With every link in its footprints."""
    labels: tuple[Labels, ...]
    iterations: range
    """The numbers of the training steps that are counted."""
    steps: int
    """How many steps they make up."""

    @cached_property
    def bytes(self) -> Array:
        """Of every link, in the order of the cluster's wiring."""
        skeleton, alike = self.skeleton, self.partition.communicator
        carried = np.zeros((len(alike), skeleton.patterns))
        for communicator, program, rows in self.turns(set(first_of(alike).tolist())):
            work = skeleton.tariff.work[skeleton.kind[communicator]][skeleton.templates[program].charge[rows]]
            pattern = skeleton.tariff.pattern[skeleton.kind[communicator]][skeleton.templates[program].charge[rows]]
            np.add.at(carried[communicator], pattern, work / (1 << RATE_BITS))
        of_footprint = carried[first_of(alike)[alike]].ravel()
        each = of_footprint[skeleton.footprints.row_of] * skeleton.footprint_weight / (1 << WEIGHT_BITS)
        return np.bincount(skeleton.footprints.idx, weights=each / self.steps, minlength=self.cluster.wiring.links)

    @cached_property
    def partition(self) -> Partition:
        """Communicators that do the same at the same times, and links that carry the same."""
        partition = refine(self.skeleton)
        verify(self.skeleton, partition)
        return partition

    def capacity(self, begin_ns: int, end_ns: int) -> Array:
        """Bytes/s that every link could carry between two moments, on average: its own rate, or what perturbations leave."""
        skeleton, rate = self.skeleton, self.cluster.wiring.capacity_bytes_per_s
        undisturbed = np.rint(rate / NS_PER_S * (1 << RATE_BITS))
        left = np.array([mean(profile, begin_ns, end_ns) for profile in skeleton.profiles])[skeleton.link_profile]
        capacity: Array = rate * (left / undisturbed)
        return capacity

    def kind_of(self, link: int) -> str:
        """What a link joins: `nic > leaf`."""
        wiring = self.cluster.wiring
        return f"{wiring.vertex_kind(int(wiring.source[link]))} > {wiring.vertex_kind(int(wiring.target[link]))}"

    @cached_property
    def kinds(self) -> tuple[Array, tuple[str, ...]]:
        """The kind of every link, a number, and the names of the kinds in the order of their first links."""
        wiring = self.cluster.wiring
        first = np.array([run.first for run in wiring.vertices])
        source, target = (np.searchsorted(first, ends, side="right") - 1 for ends in (wiring.source, wiring.target))
        _, begin, which = np.unique(source * len(first) + target, return_index=True, return_inverse=True)
        order = np.argsort(begin)
        return np.argsort(order)[which], tuple(self.kind_of(int(begin[i])) for i in order)

    @cached_property
    def _first(self) -> tuple[Array, Array, Array]:
        """Of every communicator in use: its number, and the slot of it at its first member, and that rank."""
        communicator, slot, rank = self.skeleton.members
        number, at = np.unique(communicator, return_index=True)
        return number, slot[at], rank[at]

    @cached_property
    def first_rank(self) -> dict[int, int]:
        number, _, rank = self._first
        return dict(zip(number.tolist(), rank.tolist(), strict=True))

    def turns(self, wanted: set[int] | None = None, *, ever: bool = False) -> Iterator[tuple[int, int, Array]]:
        """(communicator, its first member's program, the rows of that program that are its turns in the counted steps, or
        in all that were simulated)."""
        skeleton = self.skeleton
        rows_of: dict[tuple[int, int], Array] = {}
        for communicator, slot, rank in zip(*(column.tolist() for column in self._first), strict=True):
            if wanted is not None and communicator not in wanted:
                continue
            program = int(skeleton.program[rank])
            if (program, slot) not in rows_of:
                rows = skeleton.templates[program].rows_of(slot)
                counted = np.isin(self.labels[program].iteration[rows], self.iterations)
                rows_of[program, slot] = rows if ever else rows[counted]
            yield communicator, program, rows_of[program, slot]


def first_of(classes: Array) -> Array:
    """The first member of each class. Classes are numbered 0, 1, 2 ..."""
    first: Array = np.unique(classes, return_index=True)[1]
    return first


def mean(of: Profile, begin_ns: int, end_ns: int) -> float:
    """The mean of a profile over an interval; of an empty one, its value there."""
    inside = np.clip([*of.since_ns, np.inf], begin_ns, end_ns)
    lasted_ns = np.diff(inside)
    if end_ns > begin_ns:
        return float(np.dot(lasted_ns, of.value) / (end_ns - begin_ns))
    return float(of.value[int(np.searchsorted(of.since_ns, begin_ns, side="right")) - 1])


def ratio(used: Array, able: Array) -> Array:
    """Of every link its utilisation; none where nothing could have been carried."""
    return np.divide(used, able, out=np.zeros(len(able)), where=able > 0)


@dataclass(frozen=True, slots=True)
class Share:
    """What a job sends over a link in one of its steps."""

    name: str
    bytes: float


@dataclass(frozen=True, slots=True)
class SharedLink:
    """A link that several jobs use."""

    name: str
    capacity_bytes_per_s: float
    """Mean over the time that all jobs run."""
    utilisation: float
    """By all jobs together, step after step."""
    jobs: tuple[Share, ...]


def shared_links(
    wiring: Wiring, capacity_bytes_per_s: Array, users: Sequence[tuple[str, float, Array]], count: int
) -> list[SharedLink]:
    """The fullest of the links that several users share; of each user its name, seconds per step and bytes on every link."""
    rate = sum((carried / step_s for _, step_s, carried in users if step_s), np.zeros(wiring.links))
    used = ratio(rate, capacity_bytes_per_s)
    several = np.sum([carried > 0 for _, _, carried in users], axis=0) > 1
    order = np.argsort(-np.round(used, 12), kind="stable")
    return [
        SharedLink(
            wiring.link_name(link),
            float(capacity_bytes_per_s[link]),
            float(used[link]),
            tuple(Share(name, float(carried[link])) for name, _, carried in users if carried[link] > 0),
        )
        for link in order[several[order]][:count].tolist()
    ]
