"""Event loop over one heap: the rules of `des.py` without SimPy, on the chains of `contract.py`.

The end of a task of fixed duration is known as soon as its start is. Such tasks never enter the heap: their successors are
updated at once, and the graph between two flows is walked as a longest path. The heap holds events that depend on the present
state, in order of time: starts of tasks that take a part of a resource, starts and ends of flows and of tasks whose speed
changes, and changes of links, caps and speeds. Rates and speeds are set once per instant, after all other events.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np

from .contract import Contracted, Pieces, contract
from .progress import LIMIT, NEVER, Progress, Speeds, begun_ns, bodies_of, speeds_of
from .rates import SharedLinkRates
from .task import CORES, MEMORY, Array, TaskGraph, offsets
from .timeline import Times, deadlock

MOST_UNCONTRACTED = 1_000
"""Largest number of tasks of which contraction takes more time than it saves."""
WAITS, BEGUN, RUNS, ENDED = range(4)
"""States of a task that enters the heap. Its next event is its start, the end of its fixed time, the end of its work, or none."""


def simulate(graph: TaskGraph) -> Times:
    """Start and end of every task, equal to those of `des.simulate`. Raises `Deadlock` if tasks are left."""
    small = contracted(graph)
    return whole_times(graph) if small is None else times_by(small)


def contracted(graph: TaskGraph) -> Contracted | None:
    """The graph of chains, or None where contraction would take longer than it saves, or times might not fit into 64 bits."""
    if len(graph) <= MOST_UNCONTRACTED:
        return None
    columns = graph.stretched_ns(), graph.solo_ns, graph.tail_ns
    return contract(graph) if sum(column.sum(dtype=float) for column in columns) < LIMIT else None


def times_by(small: Contracted) -> Times:
    """The times of all tasks of the graph from which the chains were made."""
    run = _Run(small.graph, small.pieces)
    if not run.run() or max(run.end, default=0) >= LIMIT:
        return whole_times(small.whole)
    return small.times(run.times(), run.speeds.begun_ns())


def with_pieces(graph: TaskGraph, pieces: Pieces) -> tuple[Times, Array] | None:
    """The times of all tasks and the start of every piece; None if tasks are left, or if times might not fit into 64 bits."""
    run = _Run(graph, pieces)
    if not run.run() or max(run.end, default=0) >= LIMIT:
        return None
    return run.times(), run.speeds.begun_ns()


def whole_times(graph: TaskGraph) -> Times:
    """The times of all tasks, without contraction."""
    run = _Run(graph, Pieces.of(graph))
    if not run.run():
        raise deadlock(graph, run.end)
    return run.times()


class _Run:
    """One run: how many conditions each task still waits for, the heap of events, and the log of starts and ends."""

    def __init__(self, graph: TaskGraph, pieces: Pieces) -> None:
        n, sharing = len(graph), graph.sharing
        self.graph = graph
        before, tails_ns = graph.all_preds()
        order = np.argsort(before.idx, kind="stable")
        self.first: list[int] = offsets(np.bincount(before.idx, minlength=n)).tolist()
        """Task -> its first entry in `successor` and `tail_ns`, the time that passes from its end until that one may start."""
        self.successor: list[int] = before.row_of[order].tolist()
        self.tail_ns: list[int] = tails_ns[order].tolist()
        self.waiting: list[int] = before.counts.tolist()
        self.start, self.end, self.state = [0] * n, [-1] * n, [WAITS] * n
        flows, varies = (graph.footprint >= 0) & (graph.work > 0), np.diff(pieces.ptr) > 0
        takes = sharing.group >= 0 if sharing else np.zeros(n, dtype=bool)
        self.fixed_ns: list[int] = graph.stretched_ns().tolist()
        self.is_fixed: list[bool] = (~(flows | varies | takes)).tolist()
        self.takes: list[bool] = takes.tolist()
        self.varies: list[bool] = varies.tolist()
        self.flows: list[bool] = flows.tolist()
        self.heap: list[tuple[int, int]] = []
        """Events as (time, task), or (time, -1 - index of a profile)."""
        for index, profile in enumerate(graph.profiles):
            self.heap += [(since_ns, -1 - index) for since_ns in profile.since_ns[1:]]
        heapify(self.heap)
        self.clocks = _Clocks(n, self.heap)
        self.fluid = _Fluid(graph, self.clocks)
        self.speeds = _Speeds(graph, pieces, self.clocks)

    def times(self) -> Times:
        return Times.of(self.start, self.end, self.graph.tail_ns)

    def run(self) -> bool:
        """Runs the graph; returns whether all tasks have ended."""
        heap, speeds, fluid, state, clocks = self.heap, self.speeds, self.fluid, self.state, self.clocks
        due, alarm, touched, rates = clocks.due, clocks.alarm, speeds.touched, fluid.rates
        self.walk([task for task, count in enumerate(self.waiting) if not count and self.knows_end(task, -1)], -1)
        while heap:
            now, task = heappop(heap)
            if task < 0:
                speeds.change(-1 - task, now)
                fluid.change(-1 - task, now)
            elif state[task] == RUNS:
                if due[task] == now:
                    self.finish(task, now)
                elif alarm[task] == now:
                    alarm[task] = NEVER
                    clocks.set(task, due[task])
            elif self.ends(task, now):
                self.finish(task, now)
            if not heap or heap[0][0] > now:
                if touched:
                    speeds.settle(now)
                if rates.before or rates.touched:
                    fluid.solve(now)
        return -1 not in self.end

    def finish(self, task: int, now: int) -> None:
        """Ends a task that has been on the heap."""
        if self.state[task] == RUNS:
            if self.varies[task]:
                self.speeds.end(task, now)
            else:
                self.fluid.leave(task)
        self.end[task], self.state[task] = now, ENDED
        if self.takes[task]:
            self.speeds.take(task, -1)
        self.walk([task], now)

    def walk(self, ended: list[int], now: int) -> None:
        """Updates the successors of tasks whose end is known, and their successors in turn if that makes their end known too."""
        first, successor, tail_ns = self.first, self.successor, self.tail_ns
        start, end, waiting = self.start, self.end, self.waiting
        for task in ended:  # grows while it is walked
            ended_ns = end[task]
            for at in range(first[task], first[task + 1]):
                following, free_ns = successor[at], ended_ns + tail_ns[at]
                if free_ns > start[following]:
                    start[following] = free_ns
                waiting[following] = left = waiting[following] - 1
                if not left and self.knows_end(following, now):
                    ended.append(following)

    def knows_end(self, task: int, now: int) -> bool:
        """Sets the end of a task whose start is known, or else starts it, if that is now, or puts its first event on the heap."""
        start_ns, fixed_ns = self.start[task], self.fixed_ns[task]
        if self.is_fixed[task]:
            self.end[task] = start_ns + fixed_ns
            return True
        if start_ns == now and (fixed_ns or self.varies[task] or self.flows[task]):
            return self.ends(task, now)
        if not (self.takes[task] or self.varies[task]):
            self.state[task], start_ns = BEGUN, start_ns + fixed_ns
        heappush(self.heap, (start_ns, task))
        return False

    def ends(self, task: int, now: int) -> bool:
        """Whether an event of a task that does not run yet is its end; if not, the next phase of the task begins."""
        state = self.state[task]
        if state == WAITS:
            if self.takes[task]:
                self.speeds.take(task, 1)
            if self.varies[task]:
                self.state[task] = RUNS
                self.speeds.begin(task, now)
                return False
            if self.fixed_ns[task]:
                self.state[task] = BEGUN
                heappush(self.heap, (now + self.fixed_ns[task], task))
                return False
        if state != ENDED and self.flows[task]:
            self.state[task] = RUNS
            self.fluid.join(task, now)
            return False
        return state != ENDED


class _Clocks:
    """The times at which the work of tasks in progress is done at present rates. A clock that is set later than before stays on
    the heap with its earlier time, and is put back when that time has come: most clocks are set several times."""

    def __init__(self, tasks: int, heap: list[tuple[int, int]]) -> None:
        self.heap = heap
        self.due = [NEVER] * tasks
        """Task -> the time at which its work is done at the present rate or speed."""
        self.alarm = [NEVER] * tasks
        """Task -> the earliest time with which it is on the heap."""

    def set(self, task: int, due_ns: int) -> None:
        """Sets the clock of a task."""
        self.due[task] = due_ns
        if due_ns < self.alarm[task]:
            self.alarm[task] = due_ns
            heappush(self.heap, (due_ns, task))


class _Fluid:
    """The flows in progress, and their rates."""

    def __init__(self, graph: TaskGraph, clocks: _Clocks) -> None:
        self.graph, self.clocks = graph, clocks
        self.rates = SharedLinkRates(graph.routes(), graph.capacity())
        self.footprint, self.work, self.cap = graph.footprint.tolist(), graph.work.tolist(), graph.cap.tolist()
        self.followed: list[int] = [-1] * len(graph) if graph.cap_profile is None else graph.cap_profile.tolist()
        self.present = {index: profile.value[0] for index, profile in enumerate(graph.profiles) if not profile.steady}
        self.moving: dict[int, list[int]] = {}
        """Flow in progress -> the work left at a time, that time, and the rate since then."""

    def join(self, task: int, now: int) -> None:
        """Begins a flow."""
        self.moving[task] = [self.work[task], now, 0]
        self.rates.join(task, self.footprint[task], self.present.get(self.followed[task], self.cap[task]))

    def leave(self, task: int) -> None:
        """Ends a flow."""
        del self.moving[task]
        self.rates.leave(task)

    def change(self, index: int, now: int) -> None:
        """Sets the links and the caps that follow a profile to its value at this time."""
        self.present[index] = value = self.graph.profiles[index].at(now)
        for link in np.flatnonzero(self.graph.link_profile == index).tolist():
            self.rates.resize(link, value)
        for task in self.moving:
            if self.followed[task] == index:
                self.rates.leave(task)
                self.rates.join(task, self.footprint[task], value)

    def solve(self, now: int) -> None:
        """Solves the rates for this instant and sets the clock of every flow whose rate changed."""
        for task, rate in self.rates.solve():
            left, since, was = self.moving[task]
            left -= was * (now - since)
            self.moving[task] = [left, now, rate]
            self.clocks.set(task, now - -left // rate if rate else NEVER)


class _Speeds:
    """The tasks in progress whose speed may change, and what tasks take of every rank."""

    def __init__(self, graph: TaskGraph, pieces: Pieces, clocks: _Clocks) -> None:
        self.graph, self.clocks, sharing = graph, clocks, graph.sharing
        self.rank: list[int] = graph.speed.tolist()
        self.body = bodies_of(pieces)
        self.of: dict[int, Progress] = {}
        """Task -> its progress, of all tasks that have begun."""
        self.takes: list[list[int]] = sharing.takes.tolist() if sharing else []
        self.group: list[int] = sharing.group.tolist() if sharing else []
        self.ranks = sharing.ranks.lists() if sharing else []
        self.full = [graph.profiles[index].value[0] for index in graph.speed_profile.tolist()]
        self.taken = [[0, 0] for _ in self.full]
        self.known: dict[tuple[int, int, int], Speeds] = {}
        self.running: list[dict[int, Progress]] = [{} for _ in self.full]
        self.touched: dict[int, None] = {}
        """The ranks whose speeds may change in this instant."""

    def begin(self, task: int, now: int) -> None:
        """Starts a task; `settle` sets its speeds."""
        rank = self.rank[task]
        self.of[task] = self.running[rank][task] = Progress(self.body[task], now)
        self.touched[rank] = None

    def end(self, task: int, now: int) -> None:
        """Ends a task."""
        self.running[self.rank[task]].pop(task).advance(now)

    def take(self, task: int, sign: int) -> None:
        """Takes the parts of a task from its ranks when the task starts (sign 1), and gives them back when it ends (-1)."""
        cores, memory = self.takes[task]
        for rank in self.ranks[self.group[task]]:
            taken = self.taken[rank]
            taken[CORES] += sign * cores
            taken[MEMORY] += sign * memory
            self.touched[rank] = None

    def change(self, index: int, now: int) -> None:
        """Sets the ranks whose speed follows a profile to its value at this time."""
        for rank in np.flatnonzero(self.graph.speed_profile == index).tolist():
            self.full[rank] = self.graph.profiles[index].at(now)
            self.touched[rank] = None

    def settle(self, now: int) -> None:
        """Sets the speeds of this instant, and the clocks of the tasks in progress whose speed changes."""
        for rank in self.touched:
            if not (running := self.running[rank]):
                continue
            state = self.full[rank], *self.taken[rank]
            speeds = self.known.get(state)
            if speeds is None:
                speeds = self.known[state] = speeds_of(state[0], state[1:])
            for task, progress in running.items():
                if speeds != progress.speeds:
                    progress.change(now, speeds)
                    self.clocks.set(task, progress.ends_ns)
        self.touched.clear()

    def begun_ns(self) -> Array:
        """The start of every piece."""
        return begun_ns(self.of[task] for task in sorted(self.of))
