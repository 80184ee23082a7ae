"""The engine compiled: the rules of `des.py` and the levels of `fabric.py`, over records of integers, by numba.

Equal to them to the bit, for graphs whose integers fit into 64 bits and whose paces stand still; `why_not` says which do
not. numba is the extra `fast`, and takes a while to import: import this where it is needed.
What flows, and how fast, is in `compiled_fluid.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..errors import UserError
from . import des
from .code_cache import why_not_kept
from .compiled_fluid import FREE, NEW, NOTHING, SETTLED, Fluid, fluid_of, join, leave, resize, solve
from .machine import compiled, heap, numba, put, records, take
from .stuck import deadlock
from .task import UNCAPPED, WEIGHT_BITS, Array, TaskGraph
from .timeline import Times

MOST = 1 << 61
"""What rooms, times and products of a rate and a weight stay below."""


def why_not(graph: TaskGraph) -> str:
    """The reason why this engine may not run a graph, or an empty string if it may."""
    if numba is None:
        return "numba is not installed"
    if graph.restless_tasks.any():
        return "the speed of some tasks changes while they run"
    profiles = [graph.profiles[number] for number in np.unique(graph.link_profile).tolist()]
    room = max((value for profile in profiles for value in profile.value), default=0) << WEIGHT_BITS
    changing = [value for index in graph.changing_caps for value in graph.profiles[index].value]
    heaviest, lightest = (int(bound(graph.foot_weight, initial=1 << WEIGHT_BITS)) for bound in (np.max, np.min))
    columns = (graph.cap, graph.work, graph.settled_ns(), graph.tail_ns)
    cap, work, solo_ns, tail_ns = (int(column.max(initial=0)) for column in columns)
    if (
        max(cap, *changing, 0) > UNCAPPED
        or max(room * heaviest // lightest, heaviest * len(graph.streams), work, solo_ns, tail_ns) >= MOST
    ):
        return "its integers do not fit into 64 bits"
    return ""


def why_slow_to_begin() -> str:
    """The reason why every process compiles this engine, which takes some ten seconds; an empty string if it is kept on disk."""
    return why_not_kept(_run)


def simulate(graph: TaskGraph) -> Times:
    """Start and end of every task, as `des.simulate` gives them. Raises `UserError` for a graph that `why_not` refuses."""
    if reason := why_not(graph):
        install = "pip install 'cluster-training-simulator[fast]', or " if numba is None else ""
        raise UserError(f"the compiled engine does not run this: {reason}", hint=f"{install}use --engine des (or auto)")
    plan = _plan(graph)
    fluid = fluid_of(graph)
    if not _run(plan, fluid, _changes(graph)):
        return des.simulate(graph)
    start, end = (plan.tasks[name][:-1].copy() for name in ("start", "end"))
    if (end < 0).any():
        raise deadlock(graph, end.tolist())
    return Times.with_tails(start, end, graph.tail_ns)


class Plan(NamedTuple):
    """What is to be run, and how far it is. Each row tells where its own rows begin in another table, up to the next one's.

    A task has rows of `after`, the tasks that wait for it, and of `homes`, its streams; a stream of `order`, a footprint of
    `routes`. The clock is a heap of streams by the time at which their task has waited long enough, or moves its last byte.
    Caps have what caps that change are now, by the index of their profile.
    Arrivals are a heap of those tasks that have a tail, by the time at which it has passed: task `sent[i]` is item i of it.
    """

    tasks: Array
    after: Array
    homes: Array
    streams: Array
    order: Array
    feet: Array
    routes: Array
    clock: Array
    arrivals: Array
    sent: Array
    ready: Array
    caps: Array


def _plan(graph: TaskGraph) -> Plan:
    n, streams = len(graph), len(graph.streams)
    after, homes = graph.preds.transposed(n), graph.streams.transposed(n)
    has_tail = graph.tail_ns > 0
    tasks = records(
        n + 1,
        solo_ns=graph.settled_ns(),
        tail_ns=graph.tail_ns,
        item=np.cumsum(has_tail),
        foot=np.where(graph.work > 0, graph.foot, NOTHING),
        work=graph.work,
        cap=graph.cap,
        cap_profile=NOTHING if graph.cap_profile is None else graph.cap_profile,
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
        heap(int(has_tail.sum())),
        np.append(NOTHING, np.flatnonzero(has_tail)),
        np.zeros(streams + 1, dtype=np.int64),
        _caps(graph),
    )


def _caps(graph: TaskGraph) -> Array:
    """What caps that change begin with, by the index of their profile."""
    caps = np.zeros(len(graph.profiles) + 1, dtype=np.int64)
    for index in graph.changing_caps:
        caps[index] = graph.profiles[index].value[0]
    return caps


def _changes(graph: TaskGraph) -> Array:
    """From when on which link has what room, or which cap, its index inverted, is what: a row for each change, in order."""
    restless = np.array([not profile.steady for profile in graph.profiles], dtype=bool)[graph.link_profile]
    changes = [
        (since, link, value << WEIGHT_BITS)
        for link in np.flatnonzero(restless).tolist()
        for profile in [graph.profiles[graph.link_profile[link]]]
        for since, value in zip(profile.since_ns[1:], profile.value[1:], strict=True)
    ]
    for index in graph.changing_caps:
        profile = graph.profiles[index]
        changes += [(since, ~index, cap) for since, cap in zip(profile.since_ns[1:], profile.value[1:], strict=True)]
    return np.array(sorted(changes), dtype=np.int64).reshape(-1, 3)


@compiled
def _run(plan: Plan, fluid: Fluid, changes: Array) -> bool:
    """Runs to the end, instant by instant. False if times grow too long for 64 bits."""
    clock, arrivals, ready, changed, now = plan.clock, plan.arrivals, 0, 0, 0
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
        while arrivals[0].item and arrivals[arrivals[1].item].key == now:
            item = arrivals[1].item
            take(arrivals, item)
            ready = _arrive(plan, plan.sent[item], ready)
        while changed < len(changes) and changes[changed, 0] == now:
            if changes[changed, 1] < 0:
                _recap(plan, fluid, ~changes[changed, 1], changes[changed, 2], now)
            else:
                resize(fluid, changes[changed, 1], changes[changed, 2])
            changed += 1
        if not ready:
            _settle(plan, fluid, now)
            if not clock[0].item and not arrivals[0].item and changed == len(changes):
                return True
            now = min(_next(clock), _next(arrivals))
            if changed < len(changes):
                now = min(now, changes[changed, 0])
    return False


@compiled
def _next(heap: Array) -> int:
    """The lowest key of a heap."""
    return heap[heap[1].item].key if heap[0].item else FREE


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
        leave(fluid, stream)
    elif task.foot >= 0:
        flow.left, flow.since, flow.cap = task.work, now, task.cap
        if task.cap_profile >= 0:
            flow.cap = plan.caps[task.cap_profile]
        join(fluid, stream, plan.routes[plan.feet[task.foot] : plan.feet[task.foot + 1]])
        return ready
    task.end = now
    following = plan.tasks[number + 1]
    for i in range(task.homes, following.homes):
        plan.streams[plan.homes[i]].head += 1
        ready = _advance(plan, plan.homes[i], ready)
    if task.tail_ns:
        put(plan.arrivals, task.item, now + task.tail_ns)
        return ready
    return _arrive(plan, number, ready)


@compiled
def _arrive(plan: Plan, task: int, ready: int) -> int:
    """The tail of a task has passed, and what depends on it may start; returns how many tasks are ready."""
    for i in range(plan.tasks[task].after, plan.tasks[task + 1].after):
        ready = _release(plan, plan.after[i], ready)
    return ready


@compiled
def _recap(plan: Plan, fluid: Fluid, profile: int, cap: int, now: int) -> None:
    """Gives all tasks whose cap has this profile another one; those under way leave and join with what is left of them."""
    plan.caps[profile] = cap
    for stream in range(len(fluid.flows)):
        flow = fluid.flows[stream]
        if flow.end < 0:
            continue
        task = plan.tasks[plan.streams[stream].task]
        if task.cap_profile == profile:
            flow.left -= flow.rate * (now - flow.since)
            leave(fluid, stream)
            flow.since, flow.cap = now, cap
            join(fluid, stream, plan.routes[plan.feet[task.foot] : plan.feet[task.foot + 1]])


@compiled
def _settle(plan: Plan, fluid: Fluid, now: int) -> None:
    """Solves the rates for this instant and sets the clock of every flow whose rate changed."""
    solve(fluid)
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
