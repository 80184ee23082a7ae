"""Flows of the compiled engine and their rates: the levels of `rates.py` over records of integers.

The number of a flow is the first stream of its task; the stream runs no other task meanwhile. A crossing is a pair of a flow and
a link; the crossings of a link form a doubly linked list.

Where one change moves the rates of most flows, as in a network in which all links share flows with all others, it takes less
time to fill all links anew, level by level, than to follow what the change affects (`_fill`). The rates are the same integers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..task import UNCAPPED, WEIGHT_BITS, Array, TaskGraph, distinct, offsets
from .integer_records import heap, push, records, remove
from .machine_code import compiled

FREE = 2**63 - 1
"""The level of a link that slows no flow."""
NOTHING, NEW, UNCHANGED = -1, -1, -2
"""`NOTHING` replaces an index. `NEW` and `UNCHANGED` replace the rate before this instant, for new and for unchanged flows."""
VISITS_OF_FILLING = 3
"""Filling takes about as long as this many visits per crossing when a change is followed."""
MOST_FILLINGS = 63
"""Largest number of consecutive instants in which links are filled without trying to follow changes first."""


class Fluid(NamedTuple):
    """The flows in progress, by the first stream of each task, and the links that the flows cross.

    `due` is a heap of links whose level may be wrong, by the lowest possible level. `scratch` holds the flows whose rate changed
    (their number is in row 0), and the crossings of the current link with the rate that each flow asks for. When links are
    filled, `capped` is a heap of flows by their caps. `effort` has one row: the number of flows with caps and of crossings, the
    number of crossings visited in this instant, the number of coming instants in which links are filled without following
    changes, that number as last decided, and the number of the present filling.
    """

    flows: Array
    crossings: Array
    links: Array
    due: Array
    scratch: Array
    capped: Array
    effort: Array


def fluid_of(graph: TaskGraph) -> Fluid:
    """The links of a graph, before the first flow starts."""
    streams, links = len(graph.streams), len(graph.link_profile)
    streams_of = graph.streams.transposed(len(graph))
    flowing = np.flatnonzero((graph.footprint >= 0) & (graph.work > 0))
    most = np.zeros(streams, dtype=np.int64)
    np.maximum.at(most, streams_of.idx[streams_of.ptr[flowing]], graph.footprints.counts[graph.footprint[flowing]])
    first = offsets(most)
    room = np.zeros(len(graph.profiles), dtype=np.int64)
    for number in distinct(graph.link_profile).tolist():
        room[number] = graph.profiles[number].value[0] << WEIGHT_BITS
    room = room[graph.link_profile]
    return Fluid(
        records(streams, first=first[:-1], end=NOTHING, cap=0, rate=0, before=UNCHANGED, left=0, since=0, filling=0),
        records(int(first[-1]), flow=np.repeat(np.arange(streams), most), link=0, weight=0, previous=0, following=0),
        records(links, room=room, spare=room, weight=0, slack=0, level=FREE, first=NOTHING, rising=0),
        heap(links),
        records(max(streams, links) + 1, changed=0, crossing=0, asked=0),
        heap(streams),
        records(1, capped=0, crossings=0, visits=0, fillings=0, decided=0, number=0),
    )


@compiled
def note_change(fluid: Fluid, stream: int, before: int) -> None:
    """Notes that the rate of a flow changes in this instant, and the rate before the change."""
    if fluid.flows[stream].before == UNCHANGED:
        fluid.flows[stream].before = before
        fluid.scratch[0].changed += 1
        fluid.scratch[fluid.scratch[0].changed].changed = stream


@compiled
def join(fluid: Fluid, stream: int, route: Array) -> None:
    """Adds a flow and marks the levels of all its links as due."""
    flow = fluid.flows[stream]
    flow.rate, flow.end = flow.cap, flow.first + len(route)
    for i in range(len(route)):
        flow.rate = min(flow.rate, fluid.links[route[i].link].level)
    note_change(fluid, stream, NEW)
    fluid.effort[0].crossings += len(route)
    fluid.effort[0].capped += flow.cap < UNCAPPED
    for i in range(len(route)):
        at = flow.first + i
        crossing, link = fluid.crossings[at], fluid.links[route[i].link]
        crossing.link, crossing.weight = route[i].link, route[i].weight
        crossing.following, crossing.previous = link.first, NOTHING
        if link.first >= 0:
            fluid.crossings[link.first].previous = at
        link.first = at
        link.spare -= crossing.weight * flow.rate
        link.weight += crossing.weight
        link.slack = link.weight if crossing.following >= 0 else 0
        push(fluid.due, crossing.link, link.room // link.weight)


@compiled
def leave(fluid: Fluid, stream: int) -> None:
    """Removes a flow that has moved its last byte; only the links that slowed the flow may then slow other flows less."""
    flow = fluid.flows[stream]
    for at in range(flow.first, flow.end):
        crossing = fluid.crossings[at]
        link = fluid.links[crossing.link]
        if crossing.previous >= 0:
            fluid.crossings[crossing.previous].following = crossing.following
        else:
            link.first = crossing.following
        if crossing.following >= 0:
            fluid.crossings[crossing.following].previous = crossing.previous
        link.spare += crossing.weight * flow.rate
        link.weight -= crossing.weight
        if link.first < 0:
            link.level, link.slack = FREE, 0
            if fluid.due[crossing.link].place:
                remove(fluid.due, crossing.link)
            continue
        link.slack = link.weight if fluid.crossings[link.first].following >= 0 else 0
        if link.level != FREE:
            push(fluid.due, crossing.link, link.room // link.weight)
    fluid.effort[0].crossings -= flow.end - flow.first
    fluid.effort[0].capped -= flow.cap < UNCAPPED
    flow.end = NOTHING


@compiled
def resize(fluid: Fluid, number: int, room: int) -> None:
    link = fluid.links[number]
    link.spare += room - link.room
    link.room = room
    if link.first >= 0:
        push(fluid.due, number, room // link.weight)


@compiled
def solve(fluid: Fluid) -> None:
    """Updates the levels of all links and the rates of all flows."""
    effort = fluid.effort[0]
    if effort.fillings and fluid.due[0].item:
        effort.fillings -= 1
        _fill(fluid)
        return
    effort.visits = 0
    while fluid.due[0].item:
        link = fluid.due[1].item
        remove(fluid.due, link)
        _set_level(fluid, link)
        if effort.visits > VISITS_OF_FILLING * effort.crossings:
            effort.decided = effort.fillings = min(2 * effort.decided + 1, MOST_FILLINGS)
            _fill(fluid)
            return
    if effort.visits:
        effort.decided = 0


@compiled
def _fill(fluid: Fluid) -> None:
    """Sets all levels and rates anew: the rates of all flows rise together, until links are full or flows are at their caps.

    `due` holds links with a lower bound of their level, which grows as more flows are frozen; it is computed again when the link
    is the lowest. All links and flows of the lowest level are frozen together.
    """
    due, capped, links = fluid.due, fluid.capped, fluid.links
    fluid.effort[0].number += 1
    for number in range(len(links)):
        link = links[number]
        link.level, link.spare, link.rising = FREE, link.room, link.weight
        if link.weight:
            push(due, number, link.room // link.weight)
    for at in range(len(fluid.crossings) if fluid.effort[0].capped else 0):
        stream = fluid.crossings[at].flow
        flow = fluid.flows[stream]
        if at == flow.first and flow.end > at and flow.cap < UNCAPPED:
            push(capped, stream, flow.cap)
    while due[0].item or capped[0].item:
        level, full = _lowest(fluid)
        while capped[0].item and capped[capped[1].item].key == level:
            stream = capped[1].item
            remove(capped, stream)
            _rest(fluid, stream, level)
        for i in range(full):
            link = links[fluid.scratch[i].crossing]
            at = link.first
            while link.rising:
                _rest(fluid, fluid.crossings[at].flow, level)
                at = fluid.crossings[at].following


@compiled
def _lowest(fluid: Fluid) -> tuple[int, int]:
    """The lowest level of a link or cap of a flow, and the number of links with this level, which are then in `scratch`."""
    due, n = fluid.due, 0
    level = fluid.capped[fluid.capped[1].item].key if fluid.capped[0].item else FREE
    while due[0].item and due[due[1].item].key <= level:
        number = due[1].item
        link = fluid.links[number]
        reached = link.spare // link.rising if link.rising else FREE
        if not link.rising:
            remove(due, number)
        elif reached > due[number].key:
            push(due, number, reached)
        else:
            remove(due, number)
            level, link.level = reached, reached
            fluid.scratch[n].crossing = number
            n += 1
    return level, n


@compiled
def _rest(fluid: Fluid, stream: int, rate: int) -> None:
    """Freezes a flow at a rate in this filling, unless it is frozen already."""
    flow = fluid.flows[stream]
    if flow.filling == fluid.effort[0].number:
        return
    flow.filling = fluid.effort[0].number
    if flow.rate != rate:
        note_change(fluid, stream, flow.rate)
        flow.rate = rate
    if fluid.capped[stream].place:
        remove(fluid.capped, stream)
    for at in range(flow.first, flow.end):
        link, weight = fluid.links[fluid.crossings[at].link], fluid.crossings[at].weight
        link.spare -= weight * rate
        link.rising -= weight


@compiled
def _set_level(fluid: Fluid, number: int) -> None:
    """Sets the level of a link and the rates of its flows; other links whose equations no longer hold become due."""
    link = fluid.links[number]
    n, at = 0, link.first
    while at >= 0:
        fluid.scratch[n].crossing, fluid.scratch[n].asked = at, fluid.flows[fluid.crossings[at].flow].rate
        n, at = n + 1, fluid.crossings[at].following
    fluid.effort[0].visits += n
    level = _level(fluid, number, n)
    held_elsewhere = n == 1 and fluid.scratch[0].asked <= level and level != link.level
    link.level = FREE if held_elsewhere else level
    for i in range(n):
        stream = fluid.crossings[fluid.scratch[i].crossing].flow
        flow, rate = fluid.flows[stream], min(fluid.scratch[i].asked, level)
        if rate == flow.rate:
            continue
        note_change(fluid, stream, flow.rate)
        fluid.effort[0].visits += flow.end - flow.first
        for at in range(flow.first, flow.end):
            other, weight = fluid.crossings[at].link, fluid.crossings[at].weight
            row = fluid.links[other]
            row.spare -= weight * (rate - flow.rate)
            if (row.spare < row.slack or row.level != FREE) and other != number and not fluid.due[other].place:
                push(fluid.due, other, row.room // row.weight)
        flow.rate = rate


@compiled
def _level(fluid: Fluid, number: int, n: int) -> int:
    """The level of a link on which `n` flows ask for rates; if the level rises, flows that the link slowed so far ask again."""
    link, scratch = fluid.links[number], fluid.scratch
    room, weight, was = link.room, link.weight, link.level
    level: int = room // weight
    rising, more = n, True
    while more:
        more, i = False, 0
        while i < rising:
            at, asked = scratch[i].crossing, scratch[i].asked
            if was <= asked < level:
                asked = _limit_elsewhere(fluid, fluid.crossings[at].flow, number)
                scratch[i].asked = asked
            if asked < level:
                more = True
                rising -= 1
                scratch[i].crossing, scratch[i].asked = scratch[rising].crossing, scratch[rising].asked
                scratch[rising].crossing, scratch[rising].asked = at, asked
                room -= fluid.crossings[at].weight * asked
                weight -= fluid.crossings[at].weight
            else:
                i += 1
        level = room // weight if weight else FREE
    return level


@compiled
def _limit_elsewhere(fluid: Fluid, stream: int, here: int) -> int:
    """The least of the cap of a flow and the levels of the flow's links other than `here`."""
    flow = fluid.flows[stream]
    least: int = flow.cap
    for at in range(flow.first, flow.end):
        if fluid.crossings[at].link != here:
            least = min(least, fluid.links[fluid.crossings[at].link].level)
    return least
