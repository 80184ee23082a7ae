"""Event loop of the compiled engine: the rules of `des.py` and the levels of `rates.py`, over records of integers, by numba.

The results equal the reference engine to the bit, for graphs whose integers fit into 64 bits and whose speeds do not change while
a task runs; `why_not` gives the reason for a refusal of other graphs. numba is the extra `fast`. `fluid_rates.py` holds the
flows and their rates.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...errors import UserError
from ..heap import simulate as simulate_on_heap
from ..task import SPEED_BITS, UNCAPPED, WEIGHT_BITS, Array, Csr, TaskGraph, distinct
from ..timeline import Times, deadlock
from .fluid_rates import FREE, NEW, NOTHING, UNCHANGED, Fluid, fluid_of, join, leave, resize, solve
from .integer_records import heap, push, records, remove
from .machine_code import INSTALLED, MachineCode, compiled
from .slowed import Slowed, begin, settle, slowed_of, take

NOT_INSTALLED = "numba is not installed"
LIMIT = 1 << 61
"""Upper bound on rooms (unused capacity of links), times, and products of a rate and a weight."""


def why_not(graph: TaskGraph) -> str:
    """The reason why the compiled engine may not run a graph, or an empty string if the engine may."""
    if not INSTALLED:
        return NOT_INSTALLED
    if graph.changing_speed_tasks().any():
        return "the speed of some tasks changes while they run"
    profiles = [graph.profiles[number] for number in distinct(graph.link_profile).tolist()]
    room = max((value for profile in profiles for value in profile.value), default=0) << WEIGHT_BITS
    changing = [value for index in graph.changing_caps for value in graph.profiles[index].value]
    heaviest, lightest = (int(bound(graph.footprint_weight, initial=1 << WEIGHT_BITS)) for bound in (np.max, np.min))
    columns = (graph.cap, graph.work, graph.stretched_ns(), graph.tail_ns)
    cap, work, solo_ns, tail_ns = (int(column.max(initial=0)) for column in columns)
    if graph.sharing:
        speeds = [graph.profiles[number].value[0] for number in distinct(graph.speed_profile).tolist()]
        if not 0 < min(speeds) <= max(speeds) < 1 << 40:
            return "a speed is too low or too high"
        work = max(work, int(graph.solo_ns.max(initial=0)) << SPEED_BITS)
    if (
        max(cap, *changing, 0) > UNCAPPED
        or max(room * heaviest // lightest, heaviest * len(graph.streams), work, solo_ns, tail_ns) >= LIMIT
    ):
        return "its integers do not fit into 64 bits"
    return ""


def why_slow_to_begin() -> str:
    """The reason why every process compiles the engine, which takes some ten seconds, or cannot; empty if machine code is kept on
    disk, or can be."""
    return _run.why_not_kept() if INSTALLED else NOT_INSTALLED


def is_kept() -> bool:
    """Whether machine code is on disk, from where loading takes 0.06 s."""
    return INSTALLED and _run.is_kept


def is_loaded() -> bool:
    """Whether this process has loaded or compiled the engine already, so that it begins at once."""
    return _run.is_loaded


def load() -> None:
    """Loads or compiles the engine in this process, by a run without tasks."""
    if not is_loaded():
        none, rows = np.zeros(0, dtype=np.int64), Csr(np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int64))
        simulate(TaskGraph(none, none, none, none, none, none, rows, rows, rows, none, none, none, ()))


def simulate(graph: TaskGraph) -> Times:
    """Start and end of every task, equal to `des.simulate`. Raises `UserError` for a graph that `why_not` refuses."""
    if reason := why_not(graph):
        install = "pip install 'cluster-training-simulator[fast]', or " if not INSTALLED else ""
        raise UserError(f"the compiled engine does not run this: {reason}", hint=f"{install}use --engine des (or auto)")
    state = _state_of(graph)
    fluid, slowed = fluid_of(graph), slowed_of(graph)
    if not _run(state, fluid, slowed, _changes(graph)):
        return simulate_on_heap(graph)
    tasks = state.tasks[:-1]
    if (tasks["end"] < 0).any():
        raise deadlock(graph, tasks["end"].tolist())
    return Times.of(tasks["start"], tasks["end"], graph.tail_ns)


class State(NamedTuple):
    """The graph as records, and the state of the run. A row gives the start of its own rows in another table; the start of the
    next row's rows is their end.

    A task has rows in `after` (the tasks that wait for the task) and in `streams_of`, a stream in `order`, a footprint in
    `routes`. `clock` is a heap of streams by the time at which the latency of the current task has passed or its last byte has
    moved. `arrivals` is a heap of the tasks with a tail, by the time at which the tail has passed; item i of the heap is task
    `sent[i]`. `caps` holds the present values of the caps that change, by the index of the profile.
    """

    tasks: Array
    after: Array
    streams_of: Array
    streams: Array
    order: Array
    footprints: Array
    routes: Array
    clock: Array
    arrivals: Array
    sent: Array
    ready: Array
    caps: Array


def _state_of(graph: TaskGraph) -> State:
    n, streams = len(graph), len(graph.streams)
    after, streams_of = graph.preds.transposed(n), graph.streams.transposed(n)
    has_tail, sharing = graph.tail_ns > 0, graph.sharing
    is_slowed = sharing.resource >= 0 if sharing else np.zeros(n, dtype=bool)
    caps = np.zeros(len(graph.profiles) + 1, dtype=np.int64)
    for index in graph.changing_caps:
        caps[index] = graph.profiles[index].value[0]
    tasks = records(
        n + 1,
        solo_ns=np.where(is_slowed, graph.solo_ns, graph.stretched_ns()),
        tail_ns=graph.tail_ns,
        item=np.cumsum(has_tail),
        footprint=np.where(graph.work > 0, graph.footprint, NOTHING),
        work=graph.work,
        cap=graph.cap,
        cap_profile=NOTHING if graph.cap_profile is None else graph.cap_profile,
        waiting=graph.preds.counts + streams_of.counts,
        after=after.ptr,
        streams_of=streams_of.ptr,
        is_slowed=is_slowed,
        takes=sharing.group >= 0 if sharing else 0,
        start=-1,
        end=-1,
    )
    return State(
        tasks,
        after.idx.astype(np.int64),
        streams_of.idx.astype(np.int64),
        records(streams + 1, first=graph.streams.ptr, head=graph.streams.ptr, task=NOTHING),
        graph.streams.idx.astype(np.int64),
        graph.footprints.ptr.astype(np.int64),
        records(len(graph.footprint_weight), link=graph.footprints.idx, weight=graph.footprint_weight),
        heap(streams),
        heap(int(has_tail.sum())),
        np.append(NOTHING, np.flatnonzero(has_tail)),
        np.zeros(streams + 1, dtype=np.int64),
        caps,
    )


def _changes(graph: TaskGraph) -> Array:
    """Changes of rooms and caps in order of time, as rows (time, link, new room) or (time, ~index of a profile, new cap)."""
    changes = []
    for link, profile in enumerate(graph.profile_of_link):
        changes += [(since, link, value << WEIGHT_BITS) for since, value in profile.changes]
    for index in graph.changing_caps:
        changes += [(since, ~index, cap) for since, cap in graph.profiles[index].changes]
    return np.array(sorted(changes), dtype=np.int64).reshape(-1, 3)


@MachineCode
def _run(state: State, fluid: Fluid, slowed: Slowed, changes: Array) -> bool:
    """Runs the graph to the end, instant by instant. Returns False if times grow too long for 64 bits."""
    clock, arrivals, ready, changed, now = state.clock, state.arrivals, 0, 0, 0
    for stream in range(len(state.streams) - 1):
        ready = _advance(state, stream, ready)
    while now < LIMIT:
        while ready:
            ready -= 1
            task = state.tasks[state.ready[ready]]
            task.start = now
            stream = state.streams_of[task.streams_of]
            number = state.ready[ready]
            state.streams[stream].task = number
            if task.takes:
                take(slowed, number, 1)
            if task.is_slowed:
                begin(slowed, clock, stream, number, task.solo_ns, now)
            elif task.solo_ns:
                push(clock, stream, now + task.solo_ns)
            else:
                ready = _start_or_finish(state, fluid, slowed, stream, now, ready)
        while clock[0].item and clock[clock[1].item].key == now:
            stream = clock[1].item
            remove(clock, stream)
            ready = _start_or_finish(state, fluid, slowed, stream, now, ready)
        while arrivals[0].item and arrivals[arrivals[1].item].key == now:
            item = arrivals[1].item
            remove(arrivals, item)
            ready = _arrive(state, state.sent[item], ready)
        while changed < len(changes) and changes[changed, 0] == now:
            if changes[changed, 1] < 0:
                _change_cap(state, fluid, ~changes[changed, 1], changes[changed, 2], now)
            else:
                resize(fluid, changes[changed, 1], changes[changed, 2])
            changed += 1
        if not ready:
            settle(slowed, clock, now)
            _solve_rates(state, fluid, now)
            if not clock[0].item and not arrivals[0].item and changed == len(changes):
                return True
            now = min(_next(clock), _next(arrivals))
            if changed < len(changes):
                now = min(now, changes[changed, 0])
    return False


@compiled
def _next(heap: Array) -> int:
    """The lowest key of a heap; `FREE` if the heap is empty."""
    return heap[heap[1].item].key if heap[0].item else FREE


@compiled
def _advance(state: State, stream: int, ready: int) -> int:
    """Moves the next task of a stream to the head of the stream; returns the number of ready tasks."""
    head = state.streams[stream].head
    return _release(state, state.order[head], ready) if head < state.streams[stream + 1].first else ready


@compiled
def _release(state: State, task: int, ready: int) -> int:
    """Removes one condition for which a task waits; returns the number of ready tasks."""
    state.tasks[task].waiting -= 1
    if state.tasks[task].waiting:
        return ready
    state.ready[ready] = task
    return ready + 1


@compiled
def _start_or_finish(state: State, fluid: Fluid, slowed: Slowed, stream: int, now: int, ready: int) -> int:
    """Starts the transfer of a stream's task, or finishes the task; returns the number of ready tasks."""
    number = state.streams[stream].task
    task, flow = state.tasks[number], fluid.flows[stream]
    if flow.end >= 0:
        leave(fluid, stream)
    elif task.footprint >= 0:
        flow.left, flow.since, flow.cap = task.work, now, task.cap
        if task.cap_profile >= 0:
            flow.cap = state.caps[task.cap_profile]
        join(fluid, stream, state.routes[state.footprints[task.footprint] : state.footprints[task.footprint + 1]])
        return ready
    task.end = now
    if task.takes:
        take(slowed, number, -1)
    if task.is_slowed:
        slowed.progress[stream].task = NOTHING
    following = state.tasks[number + 1]
    for i in range(task.streams_of, following.streams_of):
        state.streams[state.streams_of[i]].head += 1
        ready = _advance(state, state.streams_of[i], ready)
    if task.tail_ns:
        push(state.arrivals, task.item, now + task.tail_ns)
        return ready
    return _arrive(state, number, ready)


@compiled
def _arrive(state: State, task: int, ready: int) -> int:
    """Releases the successors of a task whose tail has passed; returns the number of ready tasks."""
    for i in range(state.tasks[task].after, state.tasks[task + 1].after):
        ready = _release(state, state.after[i], ready)
    return ready


@compiled
def _change_cap(state: State, fluid: Fluid, profile: int, cap: int, now: int) -> None:
    """Changes the cap of all tasks that follow a profile; flows in progress leave and join again with their remaining work."""
    state.caps[profile] = cap
    for stream in range(len(fluid.flows)):
        flow = fluid.flows[stream]
        if flow.end < 0:
            continue
        task = state.tasks[state.streams[stream].task]
        if task.cap_profile == profile:
            flow.left -= flow.rate * (now - flow.since)
            leave(fluid, stream)
            flow.since, flow.cap = now, cap
            join(fluid, stream, state.routes[state.footprints[task.footprint] : state.footprints[task.footprint + 1]])


@compiled
def _solve_rates(state: State, fluid: Fluid, now: int) -> None:
    """Solves the rates for this instant and sets the clock of every flow whose rate changed."""
    solve(fluid)
    for i in range(1, fluid.scratch[0].changed + 1):
        stream = fluid.scratch[i].changed
        flow = fluid.flows[stream]
        was, flow.before = flow.before, UNCHANGED
        if flow.rate == was:
            continue
        if was != NEW:
            flow.left -= was * (now - flow.since)
        flow.since = now
        if flow.rate:
            push(state.clock, stream, now + (flow.left + flow.rate - 1) // flow.rate)
        elif state.clock[stream].place:
            remove(state.clock, stream)
    fluid.scratch[0].changed = 0
