"""Max-min fair rates of flows over links: pure, in integers, without a clock.

Progressive filling: raise the rate of all flows together until a link is full or a flow reaches its own cap, freeze what
is there, go on with the rest. Every link and cap at the minimal level freezes *together*: freezing one at a time would
let integer division give twins different rates, and break both folding and incremental solving. The tests do just that
(tests/engine/progressive_filling.py); `SharedLinkRates` gives the same integers and looks only at what a change reaches.

`SharedLinkRates` keeps the *level* of each link: the rate at which filling finds the link full, which is the room that flows
with a lower rate leave, divided by the weight of the others. A link that slows no flow has the level `FREE`. A flow's rate is the
least of its cap and the levels of its links. Together these are equations, one per link, and the levels that filling finds are
their only solution. The proof goes up from the lowest level: no level is below the least room // weight of all links; on the
link where that least value stands every flow asks for as much or more, so this is its level; freeze its flows, and the next
lowest level follows in the same way. It does not matter, then, in which order links are set: once all equations hold, the rates
are those of filling. So a change costs only the links that it reaches: those whose own equation no longer holds are set anew,
which may put others out of balance, and so on. Taken lowest first, hardly any link is set twice, and a link that stays `FREE`
passes nothing on.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from .task import WEIGHT_BITS

Route = Sequence[tuple[int, int]]
"""The links that a flow crosses, each with its weight in 2^-16."""
FREE = 1 << 256
"""The level of a link that slows no flow: above every rate."""


class SharedLinkRates:
    """The flows under way on a set of links, and their rates. `solve` returns the rates that changed since last time."""

    def __init__(self, footprints: Sequence[Route], capacity: Sequence[int]) -> None:
        self._footprints = footprints
        self._room = [value << WEIGHT_BITS for value in capacity]
        self._spare = list(self._room)
        """The part of each room that no flow uses. While that is `_slack` or more, no flow of a free link is above the level
        that the link would have. `_slack` is one quantum for each unit of weight, as integer division may leave a remainder,
        and 0 for a link with a single flow."""
        self._slack = [0] * len(capacity)
        self._weight = [0] * len(capacity)
        self._level = [FREE] * len(capacity)
        self._on_link: list[dict[int, int]] = [{} for _ in capacity]
        self._flows: dict[int, tuple[Route, int]] = {}
        self._rate: dict[int, int] = {}
        self._before: dict[int, int] = {}
        self._touched: dict[int, None] = {}

    def join(self, flow: int, footprint: int, cap: int) -> None:
        """A flow begins to move over a footprint; its rate comes with the next `solve`."""
        route = self._footprints[footprint]
        self._flows[flow] = route, cap
        self._rate[flow] = rate = self._limit_elsewhere(flow, -1)
        self._before[flow] = -1
        for link, weight in route:
            self._on_link[link][flow] = weight
            self._weight[link] += weight
            self._spare[link] -= weight * rate
            self._slack[link] = self._weight[link] if len(self._on_link[link]) > 1 else 0
            self._touched[link] = None

    def leave(self, flow: int) -> None:
        """A flow has moved its last byte."""
        rate = self._rate.pop(flow)
        self._before.pop(flow, None)
        for link, weight in self._flows.pop(flow)[0]:
            others = self._on_link[link]
            del others[flow]
            self._weight[link] -= weight
            self._spare[link] += weight * rate
            self._slack[link] = self._weight[link] if len(others) > 1 else 0
            if not others:
                self._level[link] = FREE
            elif self._level[link] is not FREE:
                self._touched[link] = None

    def resize(self, link: int, capacity: int) -> None:
        """A link changes its capacity."""
        self._spare[link] += (capacity << WEIGHT_BITS) - self._room[link]
        self._room[link] = capacity << WEIGHT_BITS
        self._touched[link] = None

    def solve(self) -> list[tuple[int, int]]:
        """Brings all rates up to date; returns (flow, rate) for those that changed, by flow."""
        flows, rates, before, waiting = self._flows, self._rate, self._before, self._touched
        room, spare, slack, level = self._room, self._spare, self._slack, self._level
        due = [(room[link] // (self._weight[link] or 1), link) for link in waiting]
        heapify(due)
        while due:
            link = heappop(due)[1]
            if spare[link] < slack[link] or level[link] is not FREE:
                for flow, rate in self._set_level(link):
                    was = rates[flow]
                    before.setdefault(flow, was)
                    rates[flow] = rate
                    less = was - rate
                    for other, weight in flows[flow][0]:
                        spare[other] = left = spare[other] + weight * less
                        if (left < slack[other] or level[other] is not FREE) and other not in waiting:
                            waiting[other] = None
                            heappush(due, (room[other] // self._weight[other], other))
            del waiting[link]
        changed = [(flow, rates[flow]) for flow, was in before.items() if rates[flow] != was]
        before.clear()
        changed.sort()
        return changed

    def _set_level(self, link: int) -> list[tuple[int, int]]:
        """Sets the level of a link; returns (flow, rate) of its flows whose rates this changes.

        Flows are taken from the lowest rate up: each that gets less than the level leaves room, which raises the level for the
        rest. The present rate of a flow that this link slowed so far says nothing about its other links: once such a flow comes
        below the rising level, the rest are sorted again by what their other links allow.
        """
        rates, weights = self._rate, self._on_link[link]
        room, load, was = self._room[link], self._weight[link], self._level[link]
        asks = sorted([(rates[flow], flow) for flow in weights])
        level = room // load if load else FREE
        at, again = 0, len(asks)  # flows before `at` are below the level; from `again` on they ask for what other links allow
        while at < len(asks) and asks[at][0] < level:
            asked, flow = asks[at]
            if asked >= was:
                asks[at:] = sorted([(self._limit_elsewhere(flow, link), flow) for _, flow in asks[at:]])
                again, was = at, FREE
            else:
                room -= weights[flow] * asked
                load -= weights[flow]
                level = room // load if load else FREE
                at += 1
        self._level[link] = level
        changed = [(flow, level) for _, flow in asks[at:] if rates[flow] != level]
        if again < at:
            changed += [(flow, asked) for asked, flow in asks[again:at] if rates[flow] != asked]
        return changed

    def _limit_elsewhere(self, flow: int, here: int) -> int:
        """The least of a flow's cap and the levels of its links other than `here`."""
        route, least = self._flows[flow]
        level = self._level
        for link, _ in route:
            if level[link] < least and link != here:
                least = level[link]
        return least
