"""The links that limit a flow over time: full links on which no other flow has a higher rate.

Where no link is full, because a measured rate caps the flow, its fullest links at that time count instead. Equally full links
limit together: a ring fills its links in both directions. Max-min rates are solved once more from the times of a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from ...engine.rates import SharedLinkRates
from ...engine.replay import with_fixed_durations
from ...engine.task import WEIGHT_BITS, Array, TaskGraph
from ...engine.timeline import Times

TOLERANCE = 1e-3
"""Relative difference in load up to which links count as equally full, because weights are rounded to 2^-16."""
LEAVES, JOINS, RESIZES, RECAPS = range(4)


class Limit(NamedTuple):
    """The links that limit flows over a footprint."""

    footprint: int
    links: tuple[int, ...]
    """The limiting links of the footprint."""
    full: bool
    """Whether these links are full and give no flow a higher rate; else the flow runs at its cap, and they are the fullest."""


Change = tuple[int, int, Limit]
"""A flow, the time in nanoseconds from which a limit applies, and the limit."""


@dataclass(frozen=True, eq=False, slots=True)
class FlowLimits:
    """Intervals of flows with their limits, sorted by flow and time; they cover all time in which bytes of a flow move."""

    flow: Array
    from_ns: Array
    until_ns: Array
    limit: Array
    """Index in `limits`."""
    limits: tuple[Limit, ...]


def limits_of_flows(graph: TaskGraph, times: Times, flows: Array, *, uncontended: bool = False) -> FlowLimits:
    """The limits of the given flows while they move; with `uncontended`, as if each flow had its links to itself."""
    moves_ns = np.minimum(times.start_ns + graph.solo_ns, times.end_ns)
    shares = with_fixed_durations(graph, every=uncontended).footprint >= 0
    changes = [(flow, int(moves_ns[flow]), limit) for flow, limit in _uncontended(graph, flows[~shares[flows]], each=uncontended)]
    first_ns, last_ns = moves_ns[flows].min(initial=times.makespan_ns), times.end_ns[flows].max(initial=0)
    meanwhile = (times.end_ns > first_ns) & (moves_ns < last_ns)  # flows outside this interval do not matter
    moving = np.flatnonzero(shares & (moves_ns < times.end_ns) & meanwhile)
    changes += _Replay(graph, set(flows[shares[flows]].tolist())).changes(moving, moves_ns, times.end_ns)
    changes.sort(key=itemgetter(0, 1))
    number: dict[Limit, int] = {}
    limit = np.array([number.setdefault(limit, len(number)) for _, _, limit in changes], dtype=np.int64)
    flow, from_ns = (np.array([change[i] for change in changes], dtype=np.int64) for i in (0, 1))
    until_ns = np.where(np.append(flow[1:] == flow[:-1], False), np.append(from_ns[1:], 0), times.end_ns[flow])
    return FlowLimits(flow, from_ns, until_ns, limit, tuple(number))


def _uncontended(graph: TaskGraph, flows: Array, *, each: bool) -> Iterator[tuple[int, Limit]]:
    """The limits of flows that share no links, or of all flows as if they shared none (`each`): the links with the highest load
    relative to capacity, full unless the cap of the flow is lower. A link that is slow for a while counts as it is at its best.
    """
    capacity = np.array([max(1, *profile.value) for profile in graph.profiles], dtype=np.int64)[graph.link_profile]
    weight = graph.single_weight if each and graph.single_weight is not None else graph.footprint_weight
    load = weight / capacity[graph.footprints.idx]
    most = np.zeros(len(graph.footprints))
    np.maximum.at(most, graph.footprints.row_of, load)
    fullest = load >= (1 - TOLERANCE) * most[graph.footprints.row_of]
    links_of: dict[int, tuple[int, ...]] = {}
    full = graph.cap[flows] * most[graph.footprint[flows]] >= (1 - TOLERANCE) * (1 << WEIGHT_BITS)
    for flow, footprint, fills in zip(flows.tolist(), graph.footprint[flows].tolist(), full.tolist(), strict=True):
        if footprint not in links_of:
            entries = slice(graph.footprints.ptr[footprint], graph.footprints.ptr[footprint + 1])
            links_of[footprint] = tuple(graph.footprints.idx[entries][fullest[entries]].tolist())
        yield flow, Limit(footprint, links_of[footprint], fills)


class _Replay:
    """Replays flows that share links, from one start or end of a flow to the next, and finds the limits of watched flows."""

    def __init__(self, graph: TaskGraph, watched: set[int]) -> None:
        self.graph, self.watched = graph, watched
        self.profiles = graph.profile_of_link if watched else []
        capacity = [profile.value[0] for profile in self.profiles]
        self.routes = graph.routes() if watched else []
        self.fabric = SharedLinkRates(self.routes, capacity)
        self.capped = graph.changing_caps if watched else {}
        self.cap: list[int] = graph.cap.tolist()
        self.room = [value << WEIGHT_BITS for value in capacity]
        self.load = [0] * len(capacity)
        self.on_link: list[dict[int, int]] = [{} for _ in capacity]
        self.rate: dict[int, int] = {}

    def changes(self, flows: Array, moves_ns: Array, end_ns: Array) -> Iterator[Change]:
        """Every change of the limit of a watched flow; `flows` are all flows that move meanwhile."""
        if not self.watched:
            return
        events = [(at, JOINS, flow, 0) for at, flow in zip(moves_ns[flows].tolist(), flows.tolist(), strict=True)]
        events += [(at, LEAVES, flow, 0) for at, flow in zip(end_ns[flows].tolist(), flows.tolist(), strict=True)]
        changing = [(RESIZES, link, profile) for link, profile in enumerate(self.profiles)]
        changing += [(RECAPS, index, self.graph.profiles[index]) for index in self.capped]
        for event, index, profile in changing:
            steps = zip(profile.since_ns[1:], profile.value[1:], strict=True)
            events += [(since_ns, event, index, value) for since_ns, value in steps]
        limit_of: dict[int, Limit] = {}
        for now, together in groupby(sorted(events), key=itemgetter(0)):
            changed = dict.fromkeys(link for _, *event in together for link in self._apply(*event))
            for flow, rate in self.fabric.solve():
                self.rate[flow] = rate
                changed.update((link, None) for link, _ in self.routes[int(self.graph.footprint[flow])])
            for link in changed:
                self.load[link] = sum(self.rate[flow] * weight for flow, weight in self.on_link[link].items())
            for flow in dict.fromkeys(flow for link in changed for flow in self.on_link[link] if flow in self.watched):
                limit = self._limit(flow)
                if limit_of.get(flow) != limit:
                    limit_of[flow] = limit
                    yield flow, now, limit

    def _apply(self, event: int, index: int, value: int) -> Sequence[int]:
        """Applies an event: a flow leaves or joins, or a capacity or a cap changes. Returns the links that are affected."""
        if event == RECAPS:
            for flow in self.capped[index]:
                self.cap[flow] = value
                if flow in self.rate:
                    self.fabric.leave(flow)
                    self.fabric.join(flow, int(self.graph.footprint[flow]), value)
            return []
        if event == RESIZES:
            self.fabric.resize(index, value)
            self.room[index] = value << WEIGHT_BITS
            return [index]
        footprint = int(self.graph.footprint[index])
        route = self.routes[footprint]
        if event == JOINS:
            self.fabric.join(index, footprint, self.cap[index])
            self.rate[index] = 0
            for link, weight in route:
                self.on_link[link][index] = weight
        else:
            self.fabric.leave(index)
            del self.rate[index]
            for link, _ in route:
                del self.on_link[link][index]
        return [link for link, _ in route]

    def _limit(self, flow: int) -> Limit:
        """The current limit of a flow."""
        load, room, rate, footprint = self.load, self.room, self.rate, int(self.graph.footprint[flow])
        links = [link for link, _ in self.routes[footprint]]
        enough = rate[flow] / (1 - TOLERANCE)
        full = [link for link in links if load[link] >= (1 - TOLERANCE) * room[link]]
        limiting = [link for link in full if all(rate[other] <= enough for other in self.on_link[link])]
        if limiting:
            return Limit(footprint, tuple(limiting), True)
        fullest = (1 - TOLERANCE) * max(load[link] / room[link] for link in links)
        return Limit(footprint, tuple(link for link in links if load[link] >= fullest * room[link]), False)
