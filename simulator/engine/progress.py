"""Progress of tasks whose speed may change: pieces, one after the other, at the speeds that hold from time to time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np

from .contract import Pieces
from .task import FULL_SPEED, LEAST_SPEED, SPEED_BITS, Array

Speeds = tuple[int, int, int, int]
"""The speed of pieces by kind: those that need either of the two resources, `PACED`, and `FIXED`."""
STILL: Speeds = (0, 0, 0, 0)
"""The speeds of a task before its first ones."""
NEVER = 1 << 256
"""The duration of work at no speed, in ns."""
LIMIT = 1 << 61
"""Durations of chains are added in 64 bits if their total is below this number of ns."""


class Body:
    """A sequence of pieces, and a cache of their ends by speed."""

    __slots__ = ("kind", "known", "ns")

    def __init__(self, ns: tuple[int, ...], kind: tuple[int, ...]) -> None:
        self.ns, self.kind = ns, kind
        self.known: dict[Speeds, list[int]] = {}

    def ends(self, speeds: Speeds) -> list[int]:
        """The end of every piece after the start of the first one, at speeds that are not in the cache yet."""
        lasting = [time_of(ns << SPEED_BITS, speeds[kind]) for ns, kind in zip(self.ns, self.kind, strict=True)]
        found = self.known[speeds] = list(accumulate(lasting))
        return found


class Progress:
    """A task in progress whose speed may change: the work left of its present piece at a time, and the speeds since then. It
    stands still until the speeds are set for the first time."""

    __slots__ = ("at", "begun_ns", "body", "ends", "ends_ns", "left", "passed", "piece_ends_ns", "since", "speed", "speeds")

    def __init__(self, body: Body, now: int) -> None:
        self.body, self.begun_ns, self.since = body, now, now
        """The pieces, the start of the first one, and the time since which they run at the present speeds."""
        self.at, self.left = 0, body.ns[0] << SPEED_BITS
        """The present piece, and the work left of it."""
        self.speeds = STILL
        self.ends: list[int] = []
        """The ends of all pieces at the present speeds, counted from the start of the first one."""
        self.speed, self.piece_ends_ns, self.ends_ns = 0, NEVER, NEVER
        """The speed and the end of the present piece, and the end of all pieces, if the speeds stay."""
        self.passed: list[tuple[int, int, int, list[int]]] = []
        """For each change of the present piece: the pieces before and after it, the time from which ends were counted, and the
        ends."""

    def change(self, now: int, speeds: Speeds) -> None:
        """Sets the speeds from a time on."""
        self.advance(now)
        body, at = self.body, self.at
        self.speeds, self.speed = speeds, (speed := speeds[body.kind[at]])
        self.ends = ends = body.known.get(speeds) or body.ends(speeds)
        self.piece_ends_ns = ended = now + (-(-self.left // speed) if speed else NEVER)
        self.ends_ns = ended + ends[-1] - ends[at]

    def advance(self, now: int) -> None:
        """Brings the present piece and the work left of it up to a time."""
        if now < self.piece_ends_ns:
            self.left -= self.speed * (now - self.since)
        elif len(ends := self.ends) > 1:
            at = self.at
            first = self.piece_ends_ns - ends[at]
            present = min(bisect_right(ends, now - first, at), len(ends) - 1)
            if present > at:
                self.passed.append((at, present, first, ends))
                body, self.at = self.body, present
                work, speed = body.ns[present] << SPEED_BITS, self.speeds[body.kind[present]]
                self.left = work - speed * (now - first - ends[present - 1])
        self.since = now


def begun_ns(tasks: Iterable[Progress]) -> Array:
    """The start of every piece of some tasks, one task after the other.

    Pieces between two changes start when the piece before them ends, counted from one time: they are a section of a table of
    ends. All tables are in one column, from which all sections are taken at once.
    """
    tables: dict[int, int] = {}
    columns, size = [np.zeros(1, dtype=np.int64)], 1
    from_ns, first, lengths = [], [], []
    for task in tasks:
        from_ns.append(task.begun_ns)
        first.append(0)
        lengths.append(1)
        for at, present, since_ns, ends in task.passed:
            place = tables.get(id(ends))
            if ends[-1] >= LIMIT:  # possibly because of pieces that ran at other speeds
                columns.append(np.array([since_ns + end for end in ends[at:present]], dtype=np.int64))
                place, since_ns, size = size - at, 0, size + present - at
            elif place is None:
                place = tables[id(ends)] = size
                columns.append(np.array(ends, dtype=np.int64))
                size += len(ends)
            from_ns.append(since_ns)
            first.append(place + at)
            lengths.append(present - at)
    each = np.array(lengths, dtype=np.int64)
    inside = np.arange(each.sum()) - np.repeat(np.append(0, np.cumsum(each))[:-1], each)
    begun: Array = np.concatenate(columns)[np.repeat(np.array(first, dtype=np.int64), each) + inside]
    return begun + np.repeat(np.array(from_ns, dtype=np.int64), each)


def bodies_of(pieces: Pieces) -> dict[int, Body]:
    """The body of every task whose speed may change; equal bodies are shared."""
    bodies: dict[int, Body] = {}
    known: dict[tuple[bytes, bytes], Body] = {}
    ns, kind, ptr = pieces.ns.astype(np.int64).tobytes(), pieces.kind.astype(np.int8).tobytes(), pieces.ptr.tolist()
    for task in np.flatnonzero(np.diff(pieces.ptr)).tolist():
        first, end = ptr[task], ptr[task + 1]
        key = ns[8 * first : 8 * end], kind[first:end]
        if key not in known:
            known[key] = Body(tuple(pieces.ns[first:end].tolist()), tuple(pieces.kind[first:end].tolist()))
        bodies[task] = known[key]
    return bodies


def speeds_of(full: int, taken: Sequence[int]) -> Speeds:
    """The speed of a piece of each kind."""
    cores, memory = taken
    left_cores, left_memory = FULL_SPEED - cores, FULL_SPEED - memory
    return (
        full * (left_cores if left_cores > LEAST_SPEED else LEAST_SPEED) >> SPEED_BITS,
        full * (left_memory if left_memory > LEAST_SPEED else LEAST_SPEED) >> SPEED_BITS,
        full,
        FULL_SPEED,
    )


def time_of(left: int, speed: int) -> int:
    """The time in ns that the remaining work takes at a speed."""
    return -(-left // speed) if speed else NEVER
