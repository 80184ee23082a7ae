"""All rates of the compiled engine from nothing: what `fabric.fill` gives, and no rate is taken over from the last instant.

Every flow begins with what it gets without the links that it shares with others. Then comes the lowest of those links, again
and again: from what its flows ask for by now it gets its level, as in `fabric.Fabric`, and none of them gets more. A level is
never too high: flows may ask for less later on, and leave more to others. So if it is still the lowest, it is final, as no
flow will ask for less than that; and if not, the link waits until it is the lowest again.

What is kept from one instant to the next is who crosses what: the shared links, ordered by the level that they have while all
of their flows are alike, which most of them keep; and of each flow how fast it goes without them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .compiled_fluid import FREE, NEW, Fluid, note
from .machine import compiled, put, records, take
from .task import Array

UNKNOWN = -1
"""In place of a rate."""


class Whole(NamedTuple):
    """What it takes to solve all rates at once.

    A flow has a limit, the least of its cap and of what the links give that it has for itself, and the rate that it was given
    last. What it asks for is the least of its limit and of the levels found so far. The order of the shared links is in one
    half of its rows, up to a level that is free; row 0 tells after which row that begins. A solve writes the other half.

    While rates are solved like this, the level of a link in `fluid` is the one at which its flows are alike: that of its place
    in the order, inverted for a link that has one flow, and free for one that has none, or no place yet.
    """

    flows: Array
    asked: Array
    order: Array


def whole_of(fluid: Fluid) -> Whole:
    """Nothing is shared yet."""
    flows, links = len(fluid.flows), len(fluid.links)
    return Whole(
        records(flows, limit=0, given=UNKNOWN),
        np.zeros(flows, dtype=np.int64),
        records(2 * links + 3, level=FREE, link=0),
    )


@compiled
def solve_anew(fluid: Fluid, whole: Whole) -> None:
    """Solves the rates of all flows, and notes those that change."""
    _look(fluid, whole)
    _fill(fluid, whole)
    for stream in range(len(whole.asked)):
        flow, rate = whole.flows[stream], whole.asked[stream]
        whole.asked[stream] = flow.limit
        if rate != flow.given:
            flow.given = rate
            if fluid.flows[stream].end >= 0 and rate != fluid.flows[stream].rate:
                note(fluid, stream, fluid.flows[stream].rate)
                fluid.flows[stream].rate = rate


@compiled
def _look(fluid: Fluid, whole: Whole) -> None:
    """Looks at the links where flows began or ended, whether they are shared now, and tells the flows that this concerns."""
    due = fluid.due
    for i in range(1, due[0].item + 1):
        number = due[i].item
        link = fluid.links[number]
        was, link.level = link.level, FREE if link.slack else ~due[number].key
        if min(was, link.level) < 0:
            _tell(fluid, whole, number)
    for i in range(1, fluid.scratch[0].changed + 1):
        stream = fluid.scratch[i].changed
        whole.flows[stream].given = UNKNOWN
        _see(fluid, whole, stream)


@compiled
def _tell(fluid: Fluid, whole: Whole, number: int) -> None:
    """The flows of a link see what has become of it; new ones look by themselves."""
    at = fluid.links[number].first
    while at >= 0:
        stream, at = fluid.crossings[at].flow, fluid.crossings[at].following
        if fluid.flows[stream].before != NEW:
            _see(fluid, whole, stream)


@compiled
def _see(fluid: Fluid, whole: Whole, stream: int) -> None:
    """A flow sees how fast it goes without the links that it shares."""
    flow = fluid.flows[stream]
    limit = flow.cap
    for at in range(flow.first, flow.end):
        level = fluid.links[fluid.crossings[at].link].level
        if level < 0:
            limit = min(limit, ~level)
    whole.flows[stream].limit = limit
    whole.asked[stream] = limit


@compiled
def _fill(fluid: Fluid, whole: Whole) -> None:
    """Gives every shared link its level, the lowest first: those in order, and those due, as they have no place yet or wait."""
    order, due, links, crossings, asked = whole.order, fluid.due, fluid.links, fluid.crossings, whole.asked
    at, end = order[0].link + 1, len(order) // 2 - order[0].link + 1
    order[0].link = end - 1
    next_due = due[due[1].item].key if due[0].item else FREE
    while min(order[at].level, next_due) < FREE:
        if order[at].level <= next_due:
            number, lowest = order[at].link, order[at].level
            at += 1
            listed = stays = links[number].level == lowest
        else:
            number, lowest = due[1].item, next_due
            take(due, number)
            next_due = due[due[1].item].key if due[0].item else FREE
            listed, stays = links[number].level == FREE, links[number].level >= 0
        if listed:
            links[number].level = lowest
            order[end].link, order[end].level = number, lowest
            end += 1
        if stays:
            level = _level(fluid, whole, number, lowest, min(order[at].level, next_due))
            if level < 0:
                put(due, number, ~level)
                next_due = min(next_due, ~level)
            else:
                i = links[number].first
                while i >= 0:
                    stream, i = crossings[i].flow, crossings[i].following
                    asked[stream] = min(asked[stream], level)
    order[end].level = FREE


@compiled
def _level(fluid: Fluid, whole: Whole, number: int, lowest: int, following: int) -> int:
    """The level of the lowest link: at least `lowest`. Inverted if it is above the one that follows, and may still rise.

    It may not if one flow is left: the others ask for less than any level that is still to be found, and so leave it the rest.
    """
    link, crossings, asked = fluid.links[number], fluid.crossings, whole.asked
    level: int = lowest
    rising, more = -1, True
    while more:
        before, rising = rising, 0
        room, weight, at = link.room, link.slack, link.first
        while at >= 0:
            asks = asked[crossings[at].flow]
            if asks < level:
                room -= crossings[at].weight * asks
                weight -= crossings[at].weight
            else:
                rising += 1
            at = crossings[at].following
        more = weight < link.slack and rising != before
        if more:
            level = room // weight if weight else FREE
            if level == FREE or rising == 1:
                return level
            if level > following:
                return ~level
    return level
