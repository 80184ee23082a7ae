"""The engine compiled: the rules of `des.py` and the levels of `fabric.py`, over records of integers, by numba.

Equal to them to the bit, for graphs whose integers fit into 64 bits and whose paces stand still; `why_not` says which do
not. numba is the extra `fast`, and takes a while to import: import this where it is needed.

A flow lives where the first stream of its task is, as that runs nothing else meanwhile. It crosses links; the crossings
of a link are a list, each with its neighbours.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..errors import UserError
from . import des
from .machine import compiled, heap, numba, put, records, take
from .stuck import stuck
from .task import UNCAPPED, WEIGHT_BITS, Array, TaskGraph, offsets
from .timeline import Times

FREE, MOST = 2**63 - 1, 1 << 61
"""The level of a link that slows no flow; what rooms, times and products of a rate and a weight stay below."""
NOTHING, NEW, SETTLED = -1, -1, -2
"""In place of an index; in place of the rate before this instant, of a flow that had none, or still has it."""


def why_not(graph: TaskGraph) -> str:
    """The reason why this engine may not run a graph, or an empty string if it may."""
    if numba is None:
        return "numba is not installed"
    if graph.restless_tasks.any():
        return "the speed of some tasks changes while they run"
    room = max((value for profile in graph.profile_of_link for value in profile.value), default=0) << WEIGHT_BITS
    heaviest, lightest = (int(bound(graph.foot_weight, initial=1 << WEIGHT_BITS)) for bound in (np.max, np.min))
    cap, work, solo_ns = (int(column.max(initial=0)) for column in (graph.cap, graph.work, graph.settled_ns()))
    if cap > UNCAPPED or max(room * heaviest // lightest, heaviest * len(graph.streams), work, solo_ns) >= MOST:
        return "its integers do not fit into 64 bits"
    return ""


def simulate(graph: TaskGraph) -> Times:
    """Start and end of every task, as `des.simulate` gives them. Raises `UserError` for a graph that `why_not` refuses."""
    if reason := why_not(graph):
        raise UserError(f"the compiled engine does not run this: {reason}", hint="use des; numba is the extra 'fast'")
    changes = sorted(
        (since, link, value << WEIGHT_BITS)
        for link, profile in enumerate(graph.profile_of_link)
        for since, value in zip(profile.since_ns[1:], profile.value[1:], strict=True)
    )
    plan = _plan(graph)
    if not _run(plan, _fluid(graph), np.array(changes, dtype=np.int64).reshape(-1, 3)):
        return des.simulate(graph)
    start, end = (plan.tasks[name][:-1].copy() for name in ("start", "end"))
    if (end < 0).any():
        raise stuck(graph, end.tolist())
    return Times(start, end)


class Plan(NamedTuple):
    """What is to be run, and how far it is. Each row tells where its own rows begin in another table, up to the next one's.

    A task has rows of `after`, the tasks that wait for it, and of `homes`, its streams; a stream of `order`, a footprint of
    `routes`. The clock is a heap of streams by the time at which their task has waited long enough, or moves its last byte.
    """

    tasks: Array
    after: Array
    homes: Array
    streams: Array
    order: Array
    feet: Array
    routes: Array
    clock: Array
    ready: Array


class Fluid(NamedTuple):
    """What flows, by the first stream of each task, and over which links.

    A heap of links is due, as their level may be wrong, by the lowest that it can be. Scratch are the flows whose rate
    changed, their number in front, and the crossings of the link that is looked at, with what each asks for.
    """

    flows: Array
    crossings: Array
    links: Array
    due: Array
    scratch: Array


def _plan(graph: TaskGraph) -> Plan:
    n, streams = len(graph), len(graph.streams)
    after, homes = graph.preds.transposed(n), graph.streams.transposed(n)
    tasks = records(
        n + 1,
        solo_ns=graph.settled_ns(),
        foot=np.where(graph.work > 0, graph.foot, NOTHING),
        work=graph.work,
        cap=graph.cap,
        waiting=graph.preds.counts + homes.counts,
        after=after.ptr,
        homes=homes.ptr,
        start=-1,
        end=-1,
    )
    return Plan(
        tasks,
        after.idx.astype(np.int64),
        homes.idx.astype(np.int64),
        records(streams + 1, first=graph.streams.ptr, head=graph.streams.ptr, task=NOTHING),
        graph.streams.idx.astype(np.int64),
        graph.feet.ptr.astype(np.int64),
        records(len(graph.foot_weight), link=graph.feet.idx, weight=graph.foot_weight),
        heap(streams),
        np.zeros(streams + 1, dtype=np.int64),
    )


def _fluid(graph: TaskGraph) -> Fluid:
    streams, links = len(graph.streams), len(graph.link_profile)
    homes = graph.streams.transposed(len(graph))
    moves = np.flatnonzero((graph.foot >= 0) & (graph.work > 0))
    most = np.zeros(streams, dtype=np.int64)
    np.maximum.at(most, homes.idx[homes.ptr[moves]], graph.feet.counts[graph.foot[moves]])
    first = offsets(most)
    room = np.array([profile.value[0] << WEIGHT_BITS for profile in graph.profile_of_link], dtype=np.int64)
    return Fluid(
        records(streams, first=first[:-1], end=NOTHING, cap=0, rate=0, before=SETTLED, left=0, since=0),
        records(int(first[-1]), flow=np.repeat(np.arange(streams), most), link=0, weight=0, previous=0, following=0),
        records(links, room=room, spare=room, weight=0, slack=0, level=FREE, first=NOTHING),
        heap(links),
        records(streams + 1, changed=0, crossing=0, asked=0),
    )


@compiled
def _run(plan: Plan, fluid: Fluid, changes: Array) -> bool:
    """Runs to the end, instant by instant. False if times grow too long for 64 bits."""
    clock, ready, changed, now = plan.clock, 0, 0, 0
    for stream in range(len(plan.streams) - 1):
        ready = _advance(plan, stream, ready)
    while now < MOST:
        while ready:
            ready -= 1
            task = plan.tasks[plan.ready[ready]]
            task.start = now
            stream = plan.homes[task.homes]
            plan.streams[stream].task = plan.ready[ready]
            if task.solo_ns:
                put(clock, stream, now + task.solo_ns)
            else:
                ready = _go_on(plan, fluid, stream, now, ready)
        while clock[0].item and clock[clock[1].item].key == now:
            stream = clock[1].item
            take(clock, stream)
            ready = _go_on(plan, fluid, stream, now, ready)
        while changed < len(changes) and changes[changed, 0] == now:
            _resize(fluid, changes[changed, 1], changes[changed, 2])
            changed += 1
        if not ready:
            _settle(plan, fluid, now)
            if not clock[0].item and changed == len(changes):
                return True
            now = clock[clock[1].item].key if clock[0].item else FREE
            if changed < len(changes):
                now = min(now, changes[changed, 0])
    return False


@compiled
def _advance(plan: Plan, stream: int, ready: int) -> int:
    """The next task of a stream comes to its head; returns how many tasks are ready."""
    head = plan.streams[stream].head
    return _release(plan, plan.order[head], ready) if head < plan.streams[stream + 1].first else ready


@compiled
def _release(plan: Plan, task: int, ready: int) -> int:
    """One thing less that a task waits for; returns how many tasks are ready."""
    plan.tasks[task].waiting -= 1
    if plan.tasks[task].waiting:
        return ready
    plan.ready[ready] = task
    return ready + 1


@compiled
def _go_on(plan: Plan, fluid: Fluid, stream: int, now: int, ready: int) -> int:
    """The task of a stream begins to move its bytes, or has done all; returns how many tasks are ready."""
    number = plan.streams[stream].task
    task, flow = plan.tasks[number], fluid.flows[stream]
    if flow.end >= 0:
        _leave(fluid, stream)
    elif task.foot >= 0:
        flow.left, flow.since, flow.cap = task.work, now, task.cap
        _join(fluid, stream, plan.routes[plan.feet[task.foot] : plan.feet[task.foot + 1]])
        return ready
    task.end = now
    following = plan.tasks[number + 1]
    for i in range(task.homes, following.homes):
        plan.streams[plan.homes[i]].head += 1
        ready = _advance(plan, plan.homes[i], ready)
    for i in range(task.after, following.after):
        ready = _release(plan, plan.after[i], ready)
    return ready


@compiled
def _settle(plan: Plan, fluid: Fluid, now: int) -> None:
    """Solves the rates for this instant and sets the clock of every flow whose rate changed."""
    while fluid.due[0].item:
        link = fluid.due[1].item
        take(fluid.due, link)
        _set_level(fluid, link)
    for i in range(1, fluid.scratch[0].changed + 1):
        stream = fluid.scratch[i].changed
        flow = fluid.flows[stream]
        was, flow.before = flow.before, SETTLED
        if flow.rate == was:
            continue
        if was != NEW:
            flow.left -= was * (now - flow.since)
        flow.since = now
        if flow.rate:
            put(plan.clock, stream, now + (flow.left + flow.rate - 1) // flow.rate)
        elif plan.clock[stream].place:
            take(plan.clock, stream)
    fluid.scratch[0].changed = 0


@compiled
def _note(fluid: Fluid, stream: int, before: int) -> None:
    """Notes that the rate of a flow changes in this instant, and from what."""
    if fluid.flows[stream].before == SETTLED:
        fluid.flows[stream].before = before
        fluid.scratch[0].changed += 1
        fluid.scratch[fluid.scratch[0].changed].changed = stream


@compiled
def _join(fluid: Fluid, stream: int, route: Array) -> None:
    """A flow begins to move; all its links will get their levels."""
    flow = fluid.flows[stream]
    flow.rate, flow.end = flow.cap, flow.first + len(route)
    for i in range(len(route)):
        flow.rate = min(flow.rate, fluid.links[route[i].link].level)
    _note(fluid, stream, NEW)
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
        put(fluid.due, crossing.link, link.room // link.weight)


@compiled
def _leave(fluid: Fluid, stream: int) -> None:
    """A flow has moved its last byte; only links that slowed it may slow others less."""
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
                take(fluid.due, crossing.link)
            continue
        link.slack = link.weight if fluid.crossings[link.first].following >= 0 else 0
        if link.level != FREE:
            put(fluid.due, crossing.link, link.room // link.weight)
    flow.end = NOTHING


@compiled
def _resize(fluid: Fluid, number: int, room: int) -> None:
    link = fluid.links[number]
    link.spare += room - link.room
    link.room = room
    if link.first >= 0:
        put(fluid.due, number, room // link.weight)


@compiled
def _set_level(fluid: Fluid, number: int) -> None:
    """Sets the level of a link and the rates of its flows, and marks the other links that this concerns."""
    link = fluid.links[number]
    n, at = 0, link.first
    while at >= 0:
        fluid.scratch[n].crossing, fluid.scratch[n].asked = at, fluid.flows[fluid.crossings[at].flow].rate
        n, at = n + 1, fluid.crossings[at].following
    level = _level(fluid, number, n)
    held_elsewhere = n == 1 and fluid.scratch[0].asked <= level and level != link.level
    link.level = FREE if held_elsewhere else level
    for i in range(n):
        stream = fluid.crossings[fluid.scratch[i].crossing].flow
        flow, rate = fluid.flows[stream], min(fluid.scratch[i].asked, level)
        if rate == flow.rate:
            continue
        _note(fluid, stream, flow.rate)
        for at in range(flow.first, flow.end):
            other, weight = fluid.crossings[at].link, fluid.crossings[at].weight
            row = fluid.links[other]
            row.spare -= weight * (rate - flow.rate)
            if (row.spare < row.slack or row.level != FREE) and other != number and not fluid.due[other].place:
                put(fluid.due, other, row.room // row.weight)
        flow.rate = rate


@compiled
def _level(fluid: Fluid, number: int, n: int) -> int:
    """The level of a link on which `n` flows ask for rates. Those that it slowed so far are asked again if it rises."""
    link, scratch = fluid.links[number], fluid.scratch
    room, weight, was = link.room, link.weight, link.level
    level: int = room // weight
    rising, more = n, True
    while more:
        more, i = False, 0
        while i < rising:
            at, asked = scratch[i].crossing, scratch[i].asked
            if was <= asked < level:
                asked = _elsewhere(fluid, fluid.crossings[at].flow, number)
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
def _elsewhere(fluid: Fluid, stream: int, here: int) -> int:
    """The least of a flow's cap and the levels of its links, but for one."""
    flow = fluid.flows[stream]
    least: int = flow.cap
    for at in range(flow.first, flow.end):
        if fluid.crossings[at].link != here:
            least = min(least, fluid.links[fluid.crossings[at].link].level)
    return least
