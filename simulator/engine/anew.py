"""Max-min fair rates of all flows from nothing: what `fabric.fill` gives, and no rate is taken over from the last instant.

Every flow begins with what it gets without the links that it shares with others. Then comes the lowest of those links, again
and again: from what its flows ask for by now it gets its level, as in `fabric.Fabric`, and none of them gets more. A level is
never too high: flows may ask for less later on, and leave more to others. So if it is still the lowest, it is final, as no
flow will ask for less than that; and if not, the link waits until it is the lowest again.

What is kept from one instant to the next is who crosses what: the shared links, ordered by the level that they have while all
of their flows are alike, which most of them keep; and of each flow how fast it goes without them. Where all flows of a link
weigh the same, what is left to one is the `whole` that it would get alone less what the others get, to the last digit.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from operator import itemgetter

from .fabric import FREE, Route
from .task import WEIGHT_BITS

NOBODY = -1
AT_ONCE = 32
"""Rates that are compared with the last ones at a time."""

Picker = Callable[[list[int]], tuple[int, ...]]
Shared = tuple[int, int, int, int, int, tuple[int, ...], Picker]
"""A shared link: the level while all of its flows are alike; its number; its flows, by their places, if they are two that weigh
the same; what one flow would get alone, if all weigh the same, or 0; all flows, and what picks theirs of all rates."""
NOT_SHARED: Shared = (FREE, NOBODY, NOBODY, NOBODY, 0, (), tuple)


class Anew:
    """The flows under way on a set of links, as `fabric.Fabric` has them, but solved from nothing every time."""

    def __init__(self, feet: Sequence[Route], capacity: Sequence[int]) -> None:
        self._feet = feet
        self._room = [value << WEIGHT_BITS for value in capacity]
        self._on_link: list[dict[int, int]] = [{} for _ in capacity]
        self._alone = [FREE] * len(capacity)
        """What a link gives to the one flow that it has."""
        self._shared = [NOT_SHARED] * len(capacity)
        self._order: list[Shared] = []
        self._waiting: list[tuple[int, int]] = []
        self._touched: dict[int, None] = {}
        self._place: dict[int, int] = {}
        self._unused: list[int] = []
        self._flow: list[int] = []
        self._route: list[Route] = []
        self._cap: list[int] = []
        self._limit: list[int] = []
        """What each flow gets without the links that it shares; of a place that is unused, nobody's rate."""
        self._rate: list[int] = []

    def join(self, flow: int, foot: int, cap: int) -> None:
        """A flow begins to move over a footprint; its rate comes with the next `solve`."""
        route = self._feet[foot]
        if not self._unused:
            self._unused.append(len(self._flow))
            self._flow.append(flow)
            self._route.append(route)
            for column in (self._cap, self._limit, self._rate):
                column.append(NOBODY)
        self._place[flow] = at = self._unused.pop()
        self._flow[at], self._route[at], self._cap[at], self._limit[at] = flow, route, cap, cap
        for link, weight in route:
            self._on_link[link][at] = weight
            self._touched[link] = None

    def leave(self, flow: int) -> None:
        """A flow has moved its last byte."""
        at = self._place.pop(flow)
        self._unused.append(at)
        self._limit[at] = self._rate[at] = NOBODY
        for link, _ in self._route[at]:
            del self._on_link[link][at]
            self._touched[link] = None

    def resize(self, link: int, capacity: int) -> None:
        """A link changes its capacity."""
        self._room[link] = capacity << WEIGHT_BITS
        self._touched[link] = None

    def solve(self) -> list[tuple[int, int]]:
        """All rates from nothing; returns (flow, rate) for those that changed, by flow."""
        self._look()
        asks, rate, flow = self._filled(), self._rate, self._flow
        changed = []
        for first in range(0, len(asks), AT_ONCE):
            new, old = asks[first : first + AT_ONCE], rate[first : first + AT_ONCE]
            if new != old:
                changed += [(flow[first + i], ask) for i, ask in enumerate(new) if ask != old[i]]
        self._rate = asks
        changed.sort()
        return changed

    def _look(self) -> None:
        """Looks at the links where flows began or ended: whether they are shared, and what they give to one that is alone."""
        order, shared, alone, concerned = self._order, self._shared, self._alone, dict[int, int]()
        for link in self._touched:
            flows, room, was, now, gives = self._on_link[link], self._room[link], shared[link], NOT_SHARED, FREE
            if was is not NOT_SHARED:
                del order[bisect_left(order, was)]
            if len(flows) > 1:
                now = _shared(link, room, flows)
                insort(order, now)
            else:
                for weight in flows.values():
                    gives = room // weight
            shared[link] = now
            if gives is not FREE or alone[link] is not FREE:
                alone[link] = gives
                concerned.update(flows)
        self._touched.clear()
        for at in concerned:
            limit = self._cap[at]
            for link, _ in self._route[at]:
                if alone[link] < limit:
                    limit = alone[link]
            self._limit[at] = limit

    def _filled(self) -> list[int]:
        """The rate at every place: each shared link gets its level, the lowest first."""
        asks, waiting, lowest = self._limit[:], self._waiting, FREE
        for level, link, one, two, whole, flows, picked in self._order:
            if lowest < level:
                self._go_on(asks, level)
                lowest = waiting[0][0] if waiting else FREE
            if one >= 0:
                a, b = asks[one], asks[two]
                if a < level:
                    if b > whole - a:
                        asks[two] = whole - a
                elif b < level:
                    if a > whole - b:
                        asks[one] = whole - b
                else:
                    asks[one] = asks[two] = level
            elif min(now := picked(asks)) < level:
                self._set(asks, link, level, now, level)
                lowest = waiting[0][0] if waiting else FREE
            else:
                for at in flows:
                    asks[at] = level
        self._go_on(asks, FREE)
        return asks

    def _go_on(self, asks: list[int], until: int) -> None:
        """Sets the levels of links that wait, as far as they are below `until`."""
        waiting = self._waiting
        while waiting and waiting[0][0] < until:
            level, link = heappop(waiting)
            following = waiting[0][0] if waiting and waiting[0][0] < until else until
            self._set(asks, link, level, self._shared[link][-1](asks), following)

    def _set(self, asks: list[int], link: int, level: int, now: tuple[int, ...], following: int) -> None:
        """Sets the level of the lowest link, whose flows ask for so much now; or lets it wait if it rises above what follows.

        If one flow is left it need not wait: the others ask for less than any level that is still to be found.
        """
        _, _, _, _, whole, flows, _ = self._shared[link]
        before, rising = 0, len(flows)
        while rising != before:
            below = [ask for ask in now if ask < level]
            before, rising = rising, len(flows) - len(below)
            if not rising:
                return
            if rising != before:
                level = (whole - sum(below)) // rising if whole else self._left(link, now, level)
                if rising == 1:
                    break
                if level > following:
                    heappush(self._waiting, (level, link))
                    return
        for at, ask in zip(flows, now, strict=True):
            if ask > level:
                asks[at] = level

    def _left(self, link: int, now: tuple[int, ...], level: int) -> int:
        """What flows that ask for less than `level` leave to each of the others, by weight."""
        room, load = self._room[link], 0
        for ask, weight in zip(now, self._on_link[link].values(), strict=True):
            if ask < level:
                room -= weight * ask
            else:
                load += weight
        return room // load


def _shared(link: int, room: int, flows: dict[int, int]) -> Shared:
    """A link that some flows share."""
    places, weights = tuple(flows), tuple(flows.values())
    weight = weights[0]
    whole = room // weight if weights.count(weight) == len(weights) else 0
    one, two = places if whole and len(places) == 2 else (NOBODY, NOBODY)
    return room // sum(weights), link, one, two, whole, places, itemgetter(*places)
