"""Progress of tasks whose speed may change: pieces, one after the other, at the speeds that hold from time to time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from .contract import Pieces
from .task import FULL_SPEED, LEAST_SPEED, SPEED_BITS, Array

Speeds = tuple[int, int, int, int]
"""The speed of a piece of each kind: of the two resources, `PACED` and `FIXED`."""
NEVER = 1 << 256
"""The duration of work at no speed, in ns."""
LIMIT = 1 << 61
"""Durations of chains are added up in 64 bits if the sum of all durations is below this number of ns."""


class Body:
    """Pieces, one after the other, and when they end at speeds that have been met."""

    __slots__ = ("columns", "kind", "known", "ns")

    def __init__(self, ns: tuple[int, ...], kind: tuple[int, ...]) -> None:
        self.ns, self.kind = ns, kind
        self.known: dict[Speeds, list[int]] = {}
        self.columns: dict[Speeds, Array] = {}

    def ends(self, speeds: Speeds) -> list[int]:
        """The end of every piece after the start of the first one, at these speeds."""
        found = self.known.get(speeds)
        if found is None:
            lasting = [time_of(ns << SPEED_BITS, speeds[kind]) for ns, kind in zip(self.ns, self.kind, strict=True)]
            found = self.known[speeds] = list(accumulate(lasting))
        return found

    def starts_ns(self, at: int, present: int, first: int, speeds: Speeds) -> Array:
        """The starts of the pieces behind piece `at`, up to the present one, if ends at these speeds count from `first`."""
        ends = self.ends(speeds)
        if ends[-1] >= LIMIT:
            return np.array([first + end for end in ends[at:present]], dtype=np.int64)
        if speeds not in self.columns:
            self.columns[speeds] = np.array(ends)
        return first + self.columns[speeds][at:present]


class Progress:
    """A task in progress whose speed may change: the work left of its present piece at a time, and the speeds since then."""

    __slots__ = ("at", "begun_ns", "body", "ends_ns", "left", "passed", "piece_ends_ns", "since", "speed", "speeds")

    def __init__(self, body: Body, now: int, speeds: Speeds) -> None:
        self.body, self.begun_ns, self.since, self.speeds = body, now, now, speeds
        """The pieces, the start of the first one, and since when they run at these speeds."""
        self.at = 0
        """The present piece."""
        self.left = body.ns[0] << SPEED_BITS
        self.passed: list[tuple[int, int, int, Speeds]] = []
        """For each change of the present piece: the pieces before and after it, from when ends at these speeds count, the
        speeds."""
        self._set_ends()

    def _set_ends(self) -> None:
        """Sets the speed of the present piece, its end, and that of all pieces, if the speeds stay as they are."""
        body, at = self.body, self.at
        self.speed = speed = self.speeds[body.kind[at]]
        self.piece_ends_ns = ended = self.since + (-(-self.left // speed) if speed else NEVER)
        if len(body.ns) > 1:
            ends = body.ends(self.speeds)
            ended += ends[-1] - ends[at]
        self.ends_ns = ended

    def change(self, now: int, speeds: Speeds) -> None:
        """Goes on at other speeds from a time on."""
        self.advance(now)
        self.speeds = speeds
        self._set_ends()

    def advance(self, now: int) -> None:
        """Brings the present piece and the work left of it up to a time."""
        if now < self.piece_ends_ns:
            self.left -= self.speed * (now - self.since)
        elif len(self.body.ns) > 1:
            at, body, speeds = self.at, self.body, self.speeds
            ends = body.ends(speeds)
            first = self.piece_ends_ns - ends[at]
            present = min(bisect_right(ends, now - first, at), len(ends) - 1)
            if present > at:
                self.passed.append((at, present, first, speeds))
                self.at = present
                self.left = (body.ns[present] << SPEED_BITS) - speeds[body.kind[present]] * (now - first - ends[present - 1])
        self.since = now

    def starts_ns(self) -> list[Array]:
        """The starts of all pieces, in parts."""
        columns = [np.array([self.begun_ns])]
        return columns + [self.body.starts_ns(*change) for change in self.passed]


def bodies_of(pieces: Pieces) -> dict[int, Body]:
    """The body of every task whose speed may change; equal ones once."""
    bodies: dict[int, Body] = {}
    known: dict[tuple[bytes, bytes], Body] = {}
    for task in np.flatnonzero(np.diff(pieces.ptr)).tolist():
        some = slice(*pieces.ptr[task : task + 2].tolist())
        key = pieces.ns[some].tobytes(), pieces.kind[some].tobytes()
        if key not in known:
            known[key] = Body(tuple(pieces.ns[some].tolist()), tuple(pieces.kind[some].tolist()))
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
    """The time in ns that work takes at a speed."""
    return -(-left // speed) if speed else NEVER
