"""Max-min fair rates of flows over links, as pure integer arithmetic without a clock.

Progressive filling raises the rate of all flows together until a link is full or a flow reaches its own cap, freezes the flows
at this level, and continues with the other flows. All links and caps at the minimal level freeze *together*: freezing one link
at a time would let integer division give different rates to equal flows, and break both folding and incremental solving. The
tests implement progressive filling (tests/engine/progressive_filling.py); `SharedLinkRates` gives the same integers and looks
only at the links that a change affects.

`SharedLinkRates` keeps the *level* of each link: the rate at which filling finds the link full, i.e. the room that flows with a
lower rate leave, divided by the weight of the other flows. A link that slows no flow has the level `FREE`. The rate of a flow is
the least of its cap and the levels of its links. These definitions are equations, one per link, and the levels from progressive
filling are the only solution. The proof goes up from the lowest level: no level is below the least room // weight of all links;
on the link with this least value every flow asks for at least the value, so the value is the level of the link; with the flows
of the link frozen, the next lowest level follows in the same way. So the order in which links are set does not matter: once all
equations hold, the rates are the rates of filling. A change costs only the links that the change affects: a link whose equation
no longer holds is set anew, which may unbalance other links, and so on. With the lowest link first, hardly any link is set twice,
and a link that stays `FREE` affects no other link.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from .task import WEIGHT_BITS

Route = Sequence[tuple[int, int]]
"""The links that a flow crosses, each with the weight of the flow in units of 2^-16."""
FREE = 1 << 256
"""The level of a link that slows no flow: above every rate."""


class SharedLinkRates:
    """The flows in progress on a set of links, and their rates. `solve` returns the rates that changed since the last call."""

    def __init__(self, footprints: Sequence[Route], capacity: Sequence[int]) -> None:
        self._footprints = footprints
        self._room = [value << WEIGHT_BITS for value in capacity]
        self._spare = list(self._room)
        """The part of each room that no flow uses. While this part is at least `_slack`, no flow of a free link is above the
        level that the link would have. `_slack` is one quantum for each unit of weight, as integer division may leave a
        remainder, and 0 for a link with a single flow."""
        self._slack = [0] * len(capacity)
        self._weight = [0] * len(capacity)
        self._level = [FREE] * len(capacity)
        self._on_link: list[dict[int, int]] = [{} for _ in capacity]
        self._flows: dict[int, tuple[Route, int]] = {}
        self._rate: dict[int, int] = {}
        self.before: dict[int, int] = {}
        """The rates before the next `solve`, or -1, of the flows that joined or whose rate changed since the last one."""
        self.touched: dict[int, None] = {}
        """The links whose level may change in the next `solve`; without these and `before` it returns nothing."""

    def join(self, flow: int, footprint: int, cap: int) -> None:
        """Adds a flow over a footprint; the next `solve` returns the rate of the flow."""
        route = self._footprints[footprint]
        self._flows[flow] = route, cap
        self._rate[flow] = rate = self._limit_elsewhere(flow, -1)
        self.before[flow] = -1
        for link, weight in route:
            self._on_link[link][flow] = weight
            self._weight[link] += weight
            self._spare[link] -= weight * rate
            self._slack[link] = self._weight[link] if len(self._on_link[link]) > 1 else 0
            if self._spare[link] < self._slack[link] or self._level[link] is not FREE:
                self.touched[link] = None

    def leave(self, flow: int) -> None:
        """Removes a flow that has moved its last byte."""
        rate = self._rate.pop(flow)
        self.before.pop(flow, None)
        for link, weight in self._flows.pop(flow)[0]:
            others = self._on_link[link]
            del others[flow]
            self._weight[link] -= weight
            self._spare[link] += weight * rate
            self._slack[link] = self._weight[link] if len(others) > 1 else 0
            if not others:
                self._level[link] = FREE
            elif self._level[link] is not FREE:
                self.touched[link] = None

    def resize(self, link: int, capacity: int) -> None:
        """Changes the capacity of a link."""
        self._spare[link] += (capacity << WEIGHT_BITS) - self._room[link]
        self._room[link] = capacity << WEIGHT_BITS
        self.touched[link] = None

    def solve(self) -> list[tuple[int, int]]:
        """Updates all rates; returns (flow, rate) for the flows whose rates changed, in order of flow."""
        if self.touched:
            self._settle()
        rates, before = self._rate, self.before
        changed = [(flow, rates[flow]) for flow, was in before.items() if rates[flow] != was]
        before.clear()
        changed.sort()
        return changed

    def _settle(self) -> None:
        """Sets the levels of links, and the rates of their flows, until all equations hold."""
        flows, rates, before = self._flows, self._rate, self.before
        room, spare, slack, level = self._room, self._spare, self._slack, self._level
        waiting = {link: None for link in self.touched if spare[link] < slack[link] or level[link] is not FREE}
        self.touched.clear()
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

    def _set_level(self, link: int) -> list[tuple[int, int]]:
        """Sets the level of a link; returns (flow, rate) of the flows of the link whose rates change.

        Flows are taken from the lowest rate up: each flow with less than the level leaves room, which raises the level for the
        rest. The present rate of a flow that this link slowed so far tells nothing about the flow's other links: once such a
        flow comes below the rising level, the remaining flows are sorted again by the rates that their other links allow.
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
        """The least of the cap of a flow and the levels of the flow's links other than `here`."""
        route, least = self._flows[flow]
        level = self._level
        for link, _ in route:
            if level[link] < least and link != here:
                least = level[link]
        return least
