"""Max-min fair rates of flows over links: pure, in integers, without a clock.

Progressive filling: raise the rate of all flows together until a link is full or a flow reaches its own cap, freeze what
is there, go on with the rest. Every link and cap at the minimal level freezes *together*: freezing one at a time would
let integer division give twins different rates, and break both folding and incremental solving. `Fabric` solves again
only what is connected, through links and flows, to what changed since the last solve.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .task import WEIGHT_BITS

Route = Sequence[tuple[int, int]]
"""The links that a flow crosses, each with its weight in 2^-16."""


def fill(flows: dict[int, tuple[Route, int]], room: dict[int, int]) -> dict[int, int]:
    """The max-min rates of `flows` (route and cap each), given the `room` of each link: capacity << 16."""
    load = dict.fromkeys(room, 0)
    for route, _ in flows.values():
        for link, weight in route:
            load[link] += weight
    rates: dict[int, int] = {}
    rising = dict(flows)
    while rising:
        level = min(cap for _, cap in rising.values())
        levels = {link: room[link] // weight for link, weight in load.items() if weight}
        if levels:
            level = min(level, *levels.values())
        full = {link for link, at in levels.items() if at == level}
        frozen = [f for f, (route, cap) in rising.items() if cap == level or any(link in full for link, _ in route)]
        for flow in frozen:
            rates[flow] = level
            for link, weight in rising.pop(flow)[0]:
                room[link] -= weight * level
                load[link] -= weight
    return rates


class Fabric:
    """The flows under way on a set of links, and their rates. `solve` returns the rates that changed since last time."""

    def __init__(self, feet: Sequence[Route], capacity: Sequence[int]) -> None:
        self._feet = feet
        self._capacity = list(capacity)
        self._flows: dict[int, tuple[Route, int]] = {}
        self._on_link: dict[int, dict[int, None]] = {}
        self._rate: dict[int, int] = {}
        self._touched: dict[int, None] = {}
        self._unbound: dict[int, None] = {}

    def join(self, flow: int, foot: int, cap: int) -> None:
        """A flow begins to move over a footprint; its rate comes with the next `solve`."""
        route = self._feet[foot]
        self._flows[flow] = (route, cap)
        for link, _ in route:
            self._on_link.setdefault(link, {})[flow] = None
            self._touched[link] = None
        if not route:
            self._unbound[flow] = None

    def leave(self, flow: int) -> None:
        """A flow has moved its last byte."""
        for link, _ in self._flows.pop(flow)[0]:
            del self._on_link[link][flow]
            self._touched[link] = None
        self._rate.pop(flow, None)
        self._unbound.pop(flow, None)

    def resize(self, link: int, capacity: int) -> None:
        """A link changes its capacity."""
        self._capacity[link] = capacity
        self._touched[link] = None

    def solve(self) -> list[tuple[int, int]]:
        """Brings all rates up to date; returns (flow, rate) for those that changed, by flow."""
        flows, links = self._coupled(self._touched)
        flows |= {flow: self._flows[flow] for flow in self._unbound}
        self._touched, self._unbound = {}, {}
        fresh = fill(flows, {link: self._capacity[link] << WEIGHT_BITS for link in links})
        changed = sorted((flow, rate) for flow, rate in fresh.items() if self._rate.get(flow) != rate)
        self._rate.update(changed)
        return changed

    def _coupled(self, seeds: Iterable[int]) -> tuple[dict[int, tuple[Route, int]], dict[int, None]]:
        """The flows and links that touch the seed links through any chain of shared links."""
        flows: dict[int, tuple[Route, int]] = {}
        links: dict[int, None] = {}
        stack = list(seeds)
        while stack:
            link = stack.pop()
            if link in links or not self._on_link.get(link):
                continue
            links[link] = None
            for flow in self._on_link[link]:
                if flow not in flows:
                    flows[flow] = self._flows[flow]
                    stack.extend(other for other, _ in self._flows[flow][0] if other not in links)
        return flows, links
