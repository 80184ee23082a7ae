"""Max-min fair rates of all flows at once, in columns: what `fabric.fill` gives, where thousands of flows change together.

`fill` goes from the lowest level to the highest, one by one. Here every link goes ahead that waits for no other: if none of
its flows asks for less elsewhere, its level is final, whatever the rest does, since levels only rise while flows are taken
off. So there are as many rounds as links wait for one another in a row, and not as many as there are levels. A flow comes
off a link only once the link's level is above its rate; at that level both freeze together, as in `fill`. Integers of 64
bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .fabric import Route
from .task import WEIGHT_BITS, Array

FREE = (1 << 63) - 1
"""The level of a link that slows no flow."""


class Anew:
    """The flows under way on a set of links, as `fabric.Fabric` has them, but solved from nothing every time."""

    def __init__(self, feet: Sequence[Route], capacity: Sequence[int]) -> None:
        widest = max(map(len, feet), default=0)
        self._link = np.full((len(feet), widest), len(capacity), dtype=np.int64)
        self._weight = np.zeros((len(feet), widest), dtype=np.int64)
        for row, route in enumerate(feet):
            for column, (link, weight) in enumerate(route):
                self._link[row, column], self._weight[row, column] = link, weight
        self._room = np.array([*(value << WEIGHT_BITS for value in capacity), 0], dtype=np.int64)
        self._foot: dict[int, int] = {}
        self._cap: dict[int, int] = {}
        self._rate: dict[int, int] = {}

    def join(self, flow: int, foot: int, cap: int) -> None:
        """A flow begins to move over a footprint; its rate comes with the next `solve`."""
        self._foot[flow], self._cap[flow], self._rate[flow] = foot, cap, -1

    def leave(self, flow: int) -> None:
        """A flow has moved its last byte."""
        del self._foot[flow], self._cap[flow], self._rate[flow]

    def resize(self, link: int, capacity: int) -> None:
        """A link changes its capacity."""
        self._room[link] = capacity << WEIGHT_BITS

    def solve(self) -> list[tuple[int, int]]:
        """All rates from nothing; returns (flow, rate) for those that changed, by flow."""
        foot, cap, before = (
            np.fromiter(column.values(), np.int64, len(column)) for column in (self._foot, self._cap, self._rate)
        )
        rate = rates_of(self._link[foot], self._weight[foot], cap, self._room)
        which, flows = np.flatnonzero(rate != before), list(self._foot)
        changed = sorted((flows[i], new) for i, new in zip(which.tolist(), rate[which].tolist(), strict=True))
        self._rate.update(changed)
        return changed


def rates_of(link: Array, weight: Array, cap: Array, room: Array) -> Array:
    """The rate of each flow: a row of links and weights for each, padded with the last link and zero, and its own cap."""
    used = np.zeros(len(room), dtype=bool)
    used[link] = True
    room, link = room[used], (np.cumsum(used) - 1)[link]
    load = np.zeros(len(room), dtype=np.int64)
    np.add.at(load, link, weight)
    rate, row = np.full(len(cap), -1), np.arange(len(cap))
    here = weight > 0  # which crossings still count at their link
    while len(row):
        level = np.where(load > 0, room // np.maximum(load, 1), FREE)
        at = level[link]
        asks = np.where(rate[row] < 0, np.minimum(at.min(axis=1, initial=FREE), cap[row]), rate[row])
        less = here & (asks[:, None] < at)
        waits = np.zeros(len(room), dtype=bool)
        waits[link[less]] = True
        settled = (asks == cap[row]) | (here & (asks[:, None] == at) & ~waits[link]).any(axis=1)
        rate[row[settled]] = asks[settled]
        off = less & (rate[row] >= 0)[:, None]
        np.subtract.at(load, link[off], weight[off])
        np.subtract.at(room, link[off], (weight * asks[:, None])[off])
        here &= ~off & waits[link]
        left = (rate[row] < 0) | here.any(axis=1)
        row, link, weight, here = row[left], link[left], weight[left], here[left]
    return rate
