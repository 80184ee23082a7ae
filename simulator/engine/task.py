"""Task graph: columns of integers without meaning, the only input of an engine.

A task takes its `solo_ns`, then moves its `work` over its footprint of links, if the task has a footprint. Then the task ends
and its streams are free. A successor starts no earlier than `tail_ns` after that end. A task starts when the task is at the head
of all its streams, its predecessors have ended and their tails have passed. Units: times are nanoseconds, rates 2^-24 bytes/ns,
link weights and speeds 2^-16, work 2^-24 bytes. All values were rounded once, before the graph was built: engines with the same
arithmetic on the same integers agree to the bit. docs/semantics.md states the rules sentence by sentence.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

RATE_BITS = 24
"""The unit of a rate is 2^-24 bytes/ns, the unit of work 2^-24 bytes: work / rate is in nanoseconds."""
WEIGHT_BITS = 16
"""The unit of a link weight is 2^-16: a footprint of weight 1 << 16 puts each byte of work once on the link."""
SPEED_BITS = 16
"""The unit of a speed is 2^-16: at 1 << 16 a task takes its solo time."""
FULL_SPEED = 1 << SPEED_BITS
UNCAPPED = 1 << 62
"""The rate cap of a task whose rate only its links limit."""
CORES, MEMORY = 0, 1
"""The resources of a rank that its tasks share: processors, and the bandwidth of memory."""
BOTH = 2
"""The resource of a row that stands for several rows, which do not all need the same resource (`stretches.py`)."""
LEAST_SPEED = FULL_SPEED // 2
"""The lowest speed of a slowed task, however much of its resource others take."""

NO_END_NS = 1 << 62
"""A time that no run reaches."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A piecewise-constant integer over time: `value[i]` holds from `since_ns[i]` until `since_ns[i + 1]`."""

    since_ns: tuple[int, ...]
    value: tuple[int, ...]

    @classmethod
    def constant(cls, value: int) -> Profile:
        return cls((0,), (value,))

    @classmethod
    def of(cls, since_ns: Sequence[int], value: Sequence[int]) -> Profile:
        """The profile of these values, without changes to an equal value."""
        kept = [i for i in range(len(value)) if i == 0 or value[i] != value[i - 1]]
        return cls(tuple(since_ns[i] for i in kept), tuple(value[i] for i in kept))

    @property
    def steady(self) -> bool:
        return len(self.value) == 1

    @property
    def changes(self) -> list[tuple[int, int]]:
        """Each change of the profile: the time in ns and the new value."""
        return list(zip(self.since_ns[1:], self.value[1:], strict=True))

    def at(self, now_ns: int) -> int:
        """The value at a time."""
        return self.value[bisect_right(self.since_ns, now_ns) - 1]

    def lasting_ns(self, start_ns: Array, solo_ns: Array) -> Array:
        """The time that tasks of these durations at full speed take from these starts, if the profile is their speed."""
        now_ns, left = start_ns.copy(), solo_ns << SPEED_BITS
        for until_ns, speed in zip((*self.since_ns[1:], NO_END_NS), self.value, strict=True):
            room_ns = np.maximum(until_ns - now_ns, 0)
            taken_ns = np.minimum(room_ns, -(-left // speed)) if speed else np.where(left > 0, room_ns, 0)
            now_ns += taken_ns
            left = np.maximum(left - speed * taken_ns, 0)
        return now_ns - start_ns


@dataclass(frozen=True, eq=False, slots=True)
class Csr:
    """A list of lists of integers in two columns: row i is `idx[ptr[i]:ptr[i + 1]]`."""

    ptr: Array
    idx: Array

    @classmethod
    def from_pairs(cls, rows: Array, values: Array, n_rows: int) -> Csr:
        """Groups `values` by `rows` and keeps the order within a row."""
        order = np.argsort(rows, kind="stable")
        return cls(offsets(np.bincount(rows, minlength=n_rows)), values[order])

    @classmethod
    def from_lists(cls, lists: Iterable[Sequence[int]]) -> Csr:
        rows = list(lists)
        flat = [value for row in rows for value in row]
        return cls(offsets(np.array([len(row) for row in rows], dtype=np.int64)), np.array(flat, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def row(self, i: int) -> Array:
        return self.idx[self.ptr[i] : self.ptr[i + 1]]

    @property
    def counts(self) -> Array:
        return np.diff(self.ptr)

    @property
    def row_of(self) -> Array:
        """The row of each entry of `idx`."""
        return np.repeat(np.arange(len(self)), self.counts)

    def lists(self) -> list[list[int]]:
        flat, ptr = self.idx.tolist(), self.ptr.tolist()
        return [flat[a:b] for a, b in pairwise(ptr)]

    def transposed(self, n_rows: int) -> Csr:
        """The inverse relation: for each value, the rows that hold the value, in ascending order."""
        return Csr.from_pairs(self.idx, self.row_of, n_rows)


def distinct(values: Array) -> Array:
    """The distinct values in order: `np.unique`, which imports masked arrays at its first call and takes 10 ms for it."""
    ordered = np.sort(values)
    return ordered[run_starts(ordered)]


def run_starts(values: Array) -> Array:
    """The first place of each run of equal values that follow each other."""
    return np.flatnonzero(np.append(True, values[1:] != values[:-1])[: len(values)])


def longest_run(chosen: Array) -> tuple[int, int] | None:
    """The first of the longest runs of true values: its first place and the place after its last; None if all are false."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], chosen, [False]]).astype(int)))
    if not len(edges):
        return None
    longest = 2 * int(np.argmax(np.diff(edges)[::2]))
    return int(edges[longest]), int(edges[longest + 1])


def offsets(counts: Array) -> Array:
    """The start of each row in a flat column, from the length of each row, and at the end the total length."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)])


@dataclass(frozen=True, eq=False, slots=True)
class Sharing:
    """Tasks that take a part of the resources of ranks while they are in progress, and the tasks that are slowed by them.

    A slowed task runs at the speed of its rank times the part of its resource that is left, in units of 2^-16, rounded down.
    """

    resource: Array
    """Task -> the resource whose shortage slows the task, or -1 for a task that nothing slows."""
    takes: Array
    """Task -> the parts of `CORES` and `MEMORY` that the task takes from each of its ranks, in units of 2^-16 (two columns)."""
    group: Array
    """Task -> its row of `ranks`, or -1 for a task that takes nothing."""
    ranks: Csr
    """Group -> the ranks (entries of `TaskGraph.speed_profile`) from which its tasks take; a rank may be listed several times."""

    @property
    def slowed(self) -> Array:
        """The tasks that others may slow."""
        return np.flatnonzero(self.resource >= 0)


@dataclass(frozen=True, eq=False, slots=True)
class TaskGraph:
    """Columns with one entry per task, and the relations between tasks, streams, footprints and links."""

    solo_ns: Array
    """Time before any byte moves: the duration of a compute task at full speed, or the latency of a transfer."""
    tail_ns: Array
    """Time from the end of a task until its successors may start, at any speed: the propagation time of a transfer."""
    speed: Array
    """The index of the speed that stretches `solo_ns`, or -1 for a task that takes its nominal duration."""
    footprint: Array
    """The footprint over which `work` moves, or -1 for none."""
    work: Array
    cap: Array
    """The largest rate of the task, `UNCAPPED` if only links limit the rate. A cap that changes has its value at time zero."""
    streams: Csr
    """Stream -> its tasks in FIFO order."""
    preds: Csr
    """Task -> the tasks that must end, and whose tails must pass, before the task starts, without the FIFO order of streams.
    Duplicates do no harm."""
    footprints: Csr
    """Footprint -> its links."""
    footprint_weight: Array
    """For each entry of `footprints`, the weight of the footprint on that link."""
    link_profile: Array
    """Link -> the index of its capacity in `profiles`."""
    speed_profile: Array
    """Speed -> its index in `profiles`."""
    profiles: tuple[Profile, ...]
    single_weight: Array | None = None
    """For each entry of `footprints`, the weight of a single footprint of those folded into the entry; None without folding."""
    cap_profile: Array | None = None
    """Task -> the index in `profiles` of a cap that changes with time, or -1; None if no cap changes."""
    sharing: Sharing | None = None
    """None if no task slows another."""

    def __len__(self) -> int:
        return len(self.solo_ns)

    @property
    def profile_of_link(self) -> list[Profile]:
        return [self.profiles[i] for i in self.link_profile.tolist()]

    def capacity(self) -> list[int]:
        """Link -> its capacity at time zero."""
        return [profile.value[0] for profile in self.profile_of_link]

    def routes(self) -> list[list[tuple[int, int]]]:
        """Footprint -> its (link, weight) pairs."""
        flat = list(zip(self.footprints.idx.tolist(), self.footprint_weight.tolist(), strict=True))
        return [flat[a:b] for a, b in pairwise(self.footprints.ptr.tolist())]

    def changing(self) -> Array:
        """For each profile, whether its value changes with time."""
        return np.array([not profile.steady for profile in self.profiles], dtype=bool)

    def changing_speed_tasks(self) -> Array:
        """For each task, whether its speed may change while the task runs, so that its duration is not known in advance."""
        restless = np.append(self.changing()[self.speed_profile], False)  # the last entry is for tasks without a speed
        found: Array = restless[self.speed] & (self.solo_ns > 0)
        return found

    @property
    def changing_caps(self) -> dict[int, list[int]]:
        """Index of each profile that caps follow -> the tasks whose cap follows the profile."""
        if self.cap_profile is None:
            return {}
        tasks = np.flatnonzero(self.cap_profile >= 0)
        by_profile: dict[int, list[int]] = {}
        for task, profile in zip(tasks.tolist(), self.cap_profile[tasks].tolist(), strict=True):
            by_profile.setdefault(profile, []).append(task)
        return by_profile

    def stretched_ns(self) -> Array:
        """`solo_ns` stretched by the constant speed of each task; 0 for tasks whose speed changes, whose `solo_ns` is work."""
        speeds = [*(self.profiles[i].value[0] for i in self.speed_profile.tolist()), FULL_SPEED]  # the last: no speed
        speed = np.array(speeds, dtype=np.int64)[self.speed]
        result: Array = np.where(self.changing_speed_tasks(), 0, self.solo_ns)
        slowed = np.flatnonzero((speed != FULL_SPEED) & (result > 0))
        result[slowed] = -(-(self.solo_ns[slowed] << SPEED_BITS) // speed[slowed])
        return result

    def all_preds(self) -> tuple[Csr, Array]:
        """Task -> all tasks that must end before the task: its predecessors, and the previous task on each of its streams; and
        for each entry the tail in ns that must pass as well, which is 0 for the order of a stream."""
        idx, row = self.streams.idx, self.streams.row_of
        follows = row[1:] == row[:-1]
        after = np.concatenate([self.preds.row_of, idx[1:][follows]])
        earlier = np.concatenate([self.preds.idx, idx[:-1][follows]])
        tail_ns = np.concatenate([self.tail_ns[self.preds.idx], np.zeros(len(after) - len(self.preds.idx), dtype=np.int64)])
        order = np.argsort(after, kind="stable")
        return Csr(offsets(np.bincount(after, minlength=len(self))), earlier[order]), tail_ns[order]
