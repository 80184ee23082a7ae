"""Max-min rates from scratch, level by level: slow and obvious, what both ways to keep rates up to date are compared with."""

from __future__ import annotations

from simulator.engine.rates import Route


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
