"""All rates of the compiled engine from nothing: what `fabric.fill` gives, and no rate is taken over from the last instant.

`fill` goes from the lowest level to the highest. Here a link waits only for lower ones among its neighbours: no level falls
while flows are taken off, so that of a link is final once none of its flows can get less elsewhere, whatever the rest does.
Start anywhere, go down to a link that waits for none, freeze it, start again. A flow comes off a link only once the link's
level is above its rate; at that level both freeze together, as in `fill`.

What is kept from one instant to the next is who crosses what: the links that several flows share, each with a place close to
the others', and of each flow those that it crosses, and how fast it goes without them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .fast_fluid import FREE, NEW, Fluid, note
from .machine import compiled, records
from .task import Array

RISING = -1
"""In place of the rate of a flow that is still to be solved."""


class Whole(NamedTuple):
    """What it takes to solve all rates at once; nothing of it where that is never done.

    A flow has rows of `crossed`, the places of its shared links, and a limit, the least of its cap and of its other links.
    A link has a level at which all its flows are alike, and a place if it is shared, from 1 on; row 0 has their number. The
    height of a place is its level as far as it is known: it only rises.
    """

    flows: Array
    crossed: Array
    links: Array
    places: Array
    heights: Array


def whole_of(fluid: Fluid, anew: bool) -> Whole:
    """Nothing is shared yet."""
    flows, crossings, links = (len(table) * anew for table in (fluid.flows, fluid.crossings, fluid.links))
    return Whole(
        records(flows, limit=0, rate=RISING, first=0, end=0),
        np.zeros(crossings, dtype=np.int64),
        records(links, alike=0, place=0),
        records((links + 1) * anew, link=0, alike=0, frozen=0),
        np.zeros((links + 1) * anew, dtype=np.int64),
    )


@compiled
def solve_anew(fluid: Fluid, whole: Whole) -> None:
    """Solves the rates of all flows, and notes those that change."""
    _look(fluid, whole)
    places, heights = whole.places, whole.heights
    for place in range(1, places[0].link + 1):
        heights[place], places[place].frozen = places[place].alike, 0
    for place in range(1, places[0].link + 1):
        while not places[place].frozen:
            _freeze(fluid, whole, place)
    for stream in range(len(fluid.flows)):
        flow, solved = fluid.flows[stream], whole.flows[stream]
        rate, solved.rate = solved.limit if solved.rate == RISING else solved.rate, RISING
        if rate != flow.rate and flow.end >= 0:
            note(fluid, stream, flow.rate)
            flow.rate = rate


@compiled
def _look(fluid: Fluid, whole: Whole) -> None:
    """Looks at the links where flows began or ended, whether they are shared now, and tells the flows that this concerns.

    The level of a link is not free, so that it is looked at again when a flow leaves. A place that is new is not frozen.
    """
    due, places = fluid.due, whole.places
    for i in range(1, due[0].item + 1):
        number = due[i].item
        link, kept = fluid.links[number], whole.links[number]
        link.level, kept.alike = 0, due[number].key
        if link.slack and not kept.place:
            places[0].link += 1
            kept.place = places[0].link
            places[kept.place].link, places[kept.place].frozen = number, 0
        elif kept.place and not link.slack:
            _vacate(fluid, whole, kept.place)
            kept.place = 0
        if kept.place:
            places[kept.place].alike = kept.alike
    for i in range(1, due[0].item + 1):
        due[due[i].item].place = 0
        place = whole.links[due[i].item].place
        if not place or not places[place].frozen:
            _tell(fluid, whole, due[i].item)
    due[0].item = 0
    for i in range(1, fluid.scratch[0].changed + 1):
        _see(fluid, whole, fluid.scratch[i].changed)


@compiled
def _vacate(fluid: Fluid, whole: Whole, place: int) -> None:
    """The link at the last place moves to this one."""
    here, last = whole.places[place], whole.places[whole.places[0].link]
    here.link, here.alike, here.frozen = last.link, last.alike, last.frozen
    whole.links[here.link].place = place
    whole.places[0].link -= 1
    _tell(fluid, whole, here.link)


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
    """A flow sees which of its links are shared, and how fast it goes without those."""
    flow, row = fluid.flows[stream], whole.flows[stream]
    row.limit, row.first, row.end = flow.cap, flow.first, flow.first
    for at in range(flow.first, flow.end):
        number = fluid.crossings[at].link
        if fluid.links[number].slack:
            whole.crossed[row.end] = whole.links[number].place
            row.end += 1
        else:
            row.limit = min(row.limit, whole.links[number].alike)


@compiled
def _freeze(fluid: Fluid, whole: Whole, place: int) -> None:
    """Goes down from a link to one that waits for no other, and gives the flows that still rise there its level."""
    lower = place
    while lower:
        place, lower = lower, _lower(fluid, whole, lower)
    level, at = whole.heights[place], fluid.links[whole.places[place].link].first
    while at >= 0:
        crossing = fluid.crossings[at]
        flow, at = whole.flows[crossing.flow], crossing.following
        if flow.rate == RISING:
            flow.rate = level
    whole.places[place].frozen = 1


@compiled
def _lower(fluid: Fluid, whole: Whole, place: int) -> int:
    """Raises a link to its level, and returns 0; or else the place of a lower link that has to be frozen first."""
    link, crossed, heights = fluid.links[whole.places[place].link], whole.crossed, whole.heights
    level = -1
    while level != heights[place]:
        level, room, weight, at = heights[place], link.room, link.slack, link.first
        while at >= 0:
            crossing = fluid.crossings[at]
            flow, at = whole.flows[crossing.flow], crossing.following
            if flow.rate == RISING:
                first, least = flow.first, heights[crossed[flow.first]]
                for i in range(first + 1, flow.end):
                    least = min(least, heights[crossed[i]])
                if min(least, flow.limit) >= level:
                    continue
                if least < flow.limit:
                    while heights[crossed[first]] != least:
                        first += 1
                    lower: int = crossed[first]
                    return lower
                flow.rate = flow.limit
            if flow.rate < level:
                room -= crossing.weight * flow.rate
                weight -= crossing.weight
        if weight < link.slack:
            heights[place] = room // weight if weight else FREE
    return 0
