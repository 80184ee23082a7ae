"""The task graph: columns of integers without meaning, the only thing that an engine is given.

A task takes its `solo_ns`, then moves its `work` over a footprint of links, if it has one, and ends: its streams are free.
What depends on it starts no earlier than `tail_ns` after that. A task starts when it is at the head of every stream that holds
it, its predecessors have ended and their tails have passed. Times are nanoseconds, rates 2^-24 bytes/ns, link
weights and speeds 2^-16, work bytes << 24. Everything was rounded once, before it came here: engines that do the
same arithmetic on the same integers agree to the bit. docs/semantics.md states the rules sentence by sentence.
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
"""A rate counts 2^-24 bytes/ns and work 2^-24 bytes: work / rate is nanoseconds."""
WEIGHT_BITS = 16
"""A link weight counts 2^-16: a footprint of weight 1 << 16 puts each byte of work once on that link."""
SPEED_BITS = 16
"""A speed counts 2^-16: at 1 << 16 a task takes its solo time."""
FULL_SPEED = 1 << SPEED_BITS
UNCAPPED = 1 << 62
"""The rate cap of a task that only its links limit."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A piecewise-constant integer over time: `value[i]` holds from `since_ns[i]` until the next."""

    since_ns: tuple[int, ...]
    value: tuple[int, ...]

    @classmethod
    def constant(cls, value: int) -> Profile:
        return cls((0,), (value,))

    @classmethod
    def of(cls, since_ns: Sequence[int], value: Sequence[int]) -> Profile:
        """A profile without changes to an equal value."""
        kept = [i for i in range(len(value)) if i == 0 or value[i] != value[i - 1]]
        return cls(tuple(since_ns[i] for i in kept), tuple(value[i] for i in kept))

    @property
    def steady(self) -> bool:
        return len(self.value) == 1

    @property
    def changes(self) -> list[tuple[int, int]]:
        """The times at which it takes another value, in ns, and that value."""
        return list(zip(self.since_ns[1:], self.value[1:], strict=True))

    def at(self, now_ns: int) -> int:
        """The value that holds at a time."""
        return self.value[bisect_right(self.since_ns, now_ns) - 1]


@dataclass(frozen=True, eq=False, slots=True)
class Csr:
    """A list of lists of integers in two columns: row i is `idx[ptr[i]:ptr[i + 1]]`."""

    ptr: Array
    idx: Array

    @classmethod
    def from_pairs(cls, rows: Array, values: Array, n_rows: int) -> Csr:
        """Groups `values` by `rows`, keeping their order within a row."""
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
        """For each entry of `idx`, the row that it stands in."""
        return np.repeat(np.arange(len(self)), self.counts)

    def lists(self) -> list[list[int]]:
        flat, ptr = self.idx.tolist(), self.ptr.tolist()
        return [flat[a:b] for a, b in pairwise(ptr)]

    def transposed(self, n_rows: int) -> Csr:
        """The converse relation: for each value, the rows that hold it, in ascending order."""
        return Csr.from_pairs(self.idx, self.row_of, n_rows)


def offsets(counts: Array) -> Array:
    """Where each row starts in a flat column, given the length of each row; one entry more than rows."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)])


@dataclass(frozen=True, eq=False, slots=True)
class TaskGraph:
    """One column entry per task, then the relations between tasks, streams, footprints and links."""

    solo_ns: Array
    """Time before any byte moves: a compute task's duration at full speed, a transfer's latency."""
    tail_ns: Array
    """Time from the end of a task until what depends on it may start, whatever the speeds: a transfer's propagation."""
    speed: Array
    """The index of the speed that stretches `solo_ns`, or -1 for a task that takes its nominal duration."""
    footprint: Array
    """The footprint over which `work` moves, or -1 for none."""
    work: Array
    cap: Array
    """The rate that the task never exceeds, `UNCAPPED` if only links limit it. Where it changes, what it is at time zero."""
    streams: Csr
    """Stream -> its tasks in FIFO order."""
    preds: Csr
    """Task -> the tasks that must end, and their tails pass, before it starts. FIFO order is not repeated here. Repeats do no
    harm."""
    footprints: Csr
    """Footprint -> the links that it crosses."""
    footprint_weight: Array
    """For each entry of `footprints`, the weight of the footprint on that link."""
    link_profile: Array
    """Link -> the index of its capacity in `profiles`."""
    speed_profile: Array
    """Speed -> its index in `profiles`."""
    profiles: tuple[Profile, ...]
    single_weight: Array | None = None
    """For each entry of `footprints`, the weight of one of the footprints that it stands for; None if it is itself one."""
    cap_profile: Array | None = None
    """Task -> the index in `profiles` of its cap where that changes with time, or -1; None if no cap changes."""

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
        """For each task, whether its speed may change while it runs, so that its duration is not known before."""
        restless = np.append(self.changing()[self.speed_profile], False)  # the last entry is for tasks without a speed
        found: Array = restless[self.speed] & (self.solo_ns > 0)
        return found

    @property
    def changing_caps(self) -> dict[int, list[int]]:
        """The index of each profile that caps have -> the tasks whose cap it is."""
        if self.cap_profile is None:
            return {}
        tasks = np.flatnonzero(self.cap_profile >= 0)
        by_profile: dict[int, list[int]] = {}
        for task, profile in zip(tasks.tolist(), self.cap_profile[tasks].tolist(), strict=True):
            by_profile.setdefault(profile, []).append(task)
        return by_profile

    def stretched_ns(self) -> Array:
        """`solo_ns` stretched by the constant speed of each task; 0 for tasks whose speed changes, which are work to be done."""
        speeds = [*(self.profiles[i].value[0] for i in self.speed_profile.tolist()), FULL_SPEED]  # the last: no speed
        speed = np.array(speeds, dtype=np.int64)[self.speed]
        result: Array = np.where(self.changing_speed_tasks(), 0, self.solo_ns)
        slowed = np.flatnonzero((speed != FULL_SPEED) & (result > 0))
        result[slowed] = -(-(self.solo_ns[slowed] << SPEED_BITS) // speed[slowed])
        return result

    def all_preds(self) -> tuple[Csr, Array]:
        """Task -> everything that must end before it: its predecessors, and the task before it on each of its streams; and for
        each entry the tail that has to pass as well, which is 0 for the order of a stream."""
        idx, row = self.streams.idx, self.streams.row_of
        follows = row[1:] == row[:-1]
        after = np.concatenate([self.preds.row_of, idx[1:][follows]])
        earlier = np.concatenate([self.preds.idx, idx[:-1][follows]])
        tail_ns = np.concatenate([self.tail_ns[self.preds.idx], np.zeros(len(after) - len(self.preds.idx), dtype=np.int64)])
        order = np.argsort(after, kind="stable")
        return Csr(offsets(np.bincount(after, minlength=len(self))), earlier[order]), tail_ns[order]
