"""Folding: ranks that must behave alike are simulated once.

A partition of ranks, communicators and links is *stable* when the members of a class are alike and have alike neighbours:
ranks run the same program at the same speed and have the same class of communicator in each slot; communicators have the same
kind, the same classes of members by slot, and cross the same classes of links with the same weights; links have the same
capacity and carry the same weight of every class of footprint. Then the members of a class act at the same times, to the
nanosecond, and one member of each class is enough: the quotient is a skeleton, which `expand` expands like any other skeleton.

`refine` finds the coarsest stable partition by colour refinement with 64-bit hashes. Hashes can collide, so `verify` proves
the result afterwards without hashes. docs/semantics.md, "Folding", gives the proof.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from ..errors import InvariantBroken
from ..hashing import mix
from .mutual_exclusion import have_common_member
from .skeleton import Expansion, Skeleton, expand, task_count
from .task import Array, Csr, offsets, run_starts

MOST_KEYS = 1 << 40
"""Upper bound on the keys of entries, so that a key and the owner of the entry together fit into 63 bits."""


@dataclass(frozen=True, eq=False, slots=True)
class Partition:
    """The class of every rank, communicator and link; classes are numbered in the order of their first members."""

    rank: Array
    communicator: Array
    link: Array

    @property
    def classes(self) -> int:
        return _count(self.rank)


@dataclass(frozen=True, eq=False)
class Folded:
    """One rank of each class of a skeleton, and the class of every rank."""

    skeleton: Skeleton
    """The quotient: a rank for each class."""
    class_of: Array
    count: Callable[[], int]
    """The number of tasks of the whole cluster."""
    have_common_member: Callable[[], Array]
    """Class of links -> whether all communicators that cross one of its links have a member in common."""

    @cached_property
    def tasks_unfolded(self) -> int:
        """Number of tasks of the whole cluster."""
        return self.count()

    def expansion(self) -> Expansion:
        """The tasks of one rank of each class."""
        return expand(self.skeleton, self.class_of, self.tasks_unfolded)


def folded(skeleton: Skeleton, within: Callable[[int], None] = lambda tasks: None) -> Folded:
    """One rank of each class, by `refine`, `verify` and `quotient`; `within` may raise for too many tasks."""
    partition = refine(skeleton)
    verify(skeleton, partition)
    small = quotient(skeleton, partition)
    within(task_count(small))
    return Folded(small, partition.rank, partial(task_count, skeleton), partial(_have_common_member, skeleton, partition))


def fold(skeleton: Skeleton, within: Callable[[int], None] = lambda tasks: None) -> Expansion:
    """The expansion of one rank of each class; `within` may raise for too many tasks."""
    return folded(skeleton, within).expansion()


def unfolded(skeleton: Skeleton, within: Callable[[int], None] = lambda tasks: None) -> Expansion:
    """The expansion of all ranks, without folding."""
    return every_rank(skeleton, within).expansion()


def every_rank(skeleton: Skeleton, within: Callable[[int], None] = lambda tasks: None) -> Folded:
    """All ranks, each a class by itself; `within` may raise for too many tasks."""
    within(task_count(skeleton))
    return Folded(skeleton, np.arange(skeleton.ranks), partial(task_count, skeleton), partial(have_common_member, skeleton))


def refine(skeleton: Skeleton) -> Partition:
    """The coarsest stable partition, by colour refinement; to be trusted only after `verify`.

    The first colour of an element comes from the element alone: the program and speed of a rank, the kind of a communicator, the
    capacity of a link. Then, round by round, the colour of each element takes up the colours of its neighbours: members (by
    slot) and links (by pattern and weight) for a communicator, communicators (by slot) for a rank, crossing footprints for a
    link. Two elements keep a common colour only while all their neighbours match. Colours can only split, so the partition is
    stable when a round leaves the number of classes unchanged. Neighbours are a multiset: their hashes are summed, wrapping at
    64 bits, which needs no sorting and does not depend on the order of the neighbours.
    """
    communicator, slot, member = skeleton.members
    footprint, link = skeleton.footprints.row_of, skeleton.footprints.idx
    weight = (skeleton.footprint_weight // max(1, int(np.gcd.reduce(skeleton.footprint_weight)))).astype(np.uint64)
    footprint_of, pattern = footprint // skeleton.patterns, mix((footprint % skeleton.patterns).astype(np.uint64))
    slot_salt = mix(slot.astype(np.uint64) + np.uint64(1))
    rank = mix((skeleton.program * len(skeleton.profiles) + skeleton.speed).astype(np.uint64))
    rank = mix(rank + skeleton.variants.astype(np.uint64))
    comm, line = (mix(column.astype(np.uint64)) for column in (skeleton.kind, skeleton.link_profile))
    found = (0, 0, 0)
    while True:
        comm = mix(comm)
        comm += _sums(communicator, mix(rank[member] ^ slot_salt), len(comm))
        comm += _sums(footprint_of, mix(mix(line[link] ^ pattern) + weight), len(comm))
        comm = mix(comm)
        rank = mix(rank) + _sums(member, mix(comm[communicator] ^ slot_salt), len(rank))
        line = mix(line) + _sums(link, mix(comm[footprint_of] ^ pattern) * weight, len(line))
        now = (_count(rank), _count(comm), _count(line))
        if now == found:
            return Partition(_labels(rank), _labels(comm), _labels(line))
        found = now


def verify(skeleton: Skeleton, partition: Partition) -> None:
    """Proves that the partition is stable, by comparing every member with the first member of its class, without hashes."""
    rank, comm, link = partition.rank, partition.communicator, partition.link
    slots = np.append(comm, -1)[skeleton.slots]
    communicator, slot, member = skeleton.members
    footprint = skeleton.footprints.row_of
    footprint_of, pattern = footprint // skeleton.patterns, footprint % skeleton.patterns
    carried = _carried(skeleton, partition)
    alike = [
        ("ranks", rank, [skeleton.program, skeleton.speed, skeleton.variants, *slots], None),
        ("communicators' kinds", comm, [skeleton.kind], None),
        ("communicators' members", comm, [slot, rank[member]], communicator),
        ("communicators' links", comm, [pattern, link[skeleton.footprints.idx], skeleton.footprint_weight], footprint_of),
        ("links", link, [skeleton.link_profile], None),
        ("links' loads", link, [carried.footprint, carried.weight], carried.link),
    ]
    for what, classes, columns, owner in alike:
        first = _representatives(classes)[classes]
        if any((c != c[first]).any() for c in columns) if owner is None else not _same_lists(classes, owner, columns):
            raise InvariantBroken(f"fold: {what} of one class differ")


def quotient(skeleton: Skeleton, partition: Partition) -> Skeleton:
    """The skeleton of the classes: the first member represents each class, and each link carries the load of its first member."""
    rank, comm, link = (_representatives(c) for c in (partition.rank, partition.communicator, partition.link))
    carried = _carried(skeleton, partition)
    representative = np.zeros(len(partition.link), dtype=bool)
    representative[link] = True
    seen = representative[carried.link]
    crossed = partition.link[carried.link[seen]]
    order = np.lexsort((crossed, carried.footprint[seen]))
    footprint, crossed = carried.footprint[seen][order], crossed[order]
    counts = np.bincount(carried.footprint[seen], minlength=len(comm) * skeleton.patterns)
    return replace(
        skeleton,
        program=skeleton.program[rank],
        speed=skeleton.speed[rank],
        variant=skeleton.variants[rank],
        slots=np.append(partition.communicator, -1)[skeleton.slots[:, rank]],
        kind=skeleton.kind[comm],
        footprints=Csr(offsets(counts), crossed),
        footprint_weight=carried.weight[seen][order],
        link_profile=skeleton.link_profile[link],
        single_weight=_single_weight(skeleton, partition, comm, footprint * len(link) + crossed),
    )


def _have_common_member(skeleton: Skeleton, partition: Partition) -> Array:
    """Class of links -> whether all communicators that cross a link have a member in common, on every link of the class."""
    found = np.ones(_count(partition.link), dtype=bool)
    found[partition.link[~have_common_member(skeleton)]] = False
    return found


def _single_weight(skeleton: Skeleton, partition: Partition, first: Array, wanted: Array) -> Array:
    """The weight of the first communicator of each class on the fullest link of a class, per entry (footprint, link class)."""
    footprint, links = skeleton.footprints.row_of, _count(partition.link)
    communicator, pattern = footprint // skeleton.patterns, footprint % skeleton.patterns
    mine = first[partition.communicator[communicator]] == communicator
    key = (partition.communicator[communicator] * skeleton.patterns + pattern) * links + partition.link[skeleton.footprints.idx]
    order = np.lexsort((-skeleton.footprint_weight[mine], key[mine]))
    found, at = np.unique(key[mine][order], return_index=True)
    weight: Array = skeleton.footprint_weight[mine][order][at]
    return weight[np.searchsorted(found, wanted)]


@dataclass(frozen=True, eq=False, slots=True)
class _Carried:
    """The load of each link by class of footprint: the sum of the weights of the members of the class on the link."""

    link: Array
    footprint: Array
    weight: Array


def _carried(skeleton: Skeleton, partition: Partition) -> _Carried:
    footprint = skeleton.footprints.row_of
    footprint_class = partition.communicator[footprint // skeleton.patterns] * skeleton.patterns + footprint % skeleton.patterns
    n_footprints = _count(partition.communicator) * skeleton.patterns
    key = skeleton.footprints.idx * n_footprints + footprint_class
    order = np.argsort(key, kind="stable")
    key = key[order]
    begins = run_starts(key)
    weight = np.add.reduceat(skeleton.footprint_weight[order], begins) if len(key) else skeleton.footprint_weight
    return _Carried(key[begins] // n_footprints, key[begins] % n_footprints, weight)


def _same_lists(classes: Array, owner: Array, columns: list[Array]) -> bool:
    """Whether the owners of each class have equal multisets of entries, where an entry is a row of values of the columns."""
    counts = np.bincount(owner, minlength=len(classes))
    begins, first = offsets(counts)[:-1], _representatives(classes)[classes]
    if (counts != counts[first]).any():
        return False
    entry, kinds = _numbered(columns)
    entry = np.sort(owner * kinds + entry, kind="stable") % kinds
    twin = np.repeat(begins[first] - begins, counts) + np.arange(len(owner))
    return bool((entry == entry[twin]).all())


def _numbered(columns: list[Array]) -> tuple[Array, int]:
    """One number for each row of values, equal for equal rows, and an upper bound on the numbers."""
    number, bound = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        least = int(column.min(initial=0))
        span = int(column.max(initial=0)) - least + 1
        if bound * span > MOST_KEYS:
            values, column = np.unique(column, return_inverse=True)
            least, span = 0, len(values)
        number, bound = number * span + (column - least), bound * span
    return number, bound


def _representatives(classes: Array) -> Array:
    """The first member of each class. Classes are numbered 0, 1, 2 ..."""
    first = np.zeros(int(classes.max(initial=-1)) + 1, dtype=np.int64)
    first[classes[::-1]] = np.arange(len(classes))[::-1]
    return first


def _labels(colours: Array) -> Array:
    """Colours as classes, numbered in the order of their first members."""
    _, first, inverse = np.unique(colours, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first))
    labels: Array = rank[inverse]
    return labels


def _count(colours: Array) -> int:
    return len(run_starts(np.sort(colours)))


def _sums(rows: Array, values: Array, n: int) -> Array:
    """Sums of 64-bit values by row, wrapping at 64 bits, and so independent of the order of the values."""
    total = np.zeros(n, dtype=np.uint64)
    np.add.at(total, rows, values)
    return total
