"""Reference engine: a discrete-event simulation with a SimPy process per stream, which runs its tasks first in, first out.

Every faster engine is an optimisation of this file and is tested to give the same integers. docs/semantics.md states the rules:
a task starts when the task is at the head of all its streams and its predecessors have ended and arrived. First its `solo_ns`
pass, then its work drains at a rate that is solved anew once per instant, after all other events of the instant.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from .rates import SharedLinkRates
from .slowing import LAST, Slowing
from .task import SPEED_BITS, TaskGraph
from .timeline import Times, deadlock

Process = Generator[simpy.Event, Any, None]


def simulate(graph: TaskGraph) -> Times:
    """Runs the graph to its end and returns the start and end of every task. Raises `Deadlock` if tasks are left."""
    return _Run(graph).run()


class _Run:
    """One run: the streams, the number of conditions for which each task still waits, and the log of starts and ends."""

    def __init__(self, graph: TaskGraph) -> None:
        self.graph = graph
        self.env: Any = simpy.Environment()
        n = len(graph)
        self.start, self.end = [-1] * n, [-1] * n
        self.streams = graph.streams.lists()
        self.successors = graph.preds.transposed(n).lists()
        self.solo_ns: list[int] = graph.stretched_ns().tolist()
        self.tail_ns: list[int] = graph.tail_ns.tolist()
        self.waiting: list[int] = graph.preds.counts.tolist()
        self.fluid = _Fluid(self.env, graph, SharedLinkRates([*graph.routes(), ()], graph.capacity()))
        sharing = graph.sharing
        self.slowing = Slowing(self.env, graph, sharing) if sharing else None
        self.slowed: list[bool] = (sharing.resource >= 0).tolist() if sharing else []
        self.takes: list[bool] = (sharing.group >= 0).tolist() if sharing else []
        self.owner = [-1] * n
        for stream, tasks in enumerate(self.streams):
            for task in tasks:
                if self.owner[task] < 0:
                    self.owner[task] = stream
                else:
                    self.waiting[task] += 1
        self.may_start: dict[int, simpy.Event] = {}
        self.has_ended: dict[int, simpy.Event] = {}

    def run(self) -> Times:
        for stream in range(len(self.streams)):
            self.env.process(self.stream(stream))
        self.env.run()
        if -1 in self.end:
            raise deadlock(self.graph, self.end)
        return Times.of(self.start, self.end, self.graph.tail_ns)

    def stream(self, stream: int) -> Process:
        """Runs the tasks of one stream in order. The first stream of a gang runs the task; the others wait for its end."""
        env, owner, waiting, solo_ns = self.env, self.owner, self.waiting, self.solo_ns
        flows, slowing, slowed, takes = self.fluid.flows, self.slowing, self.slowed, self.takes
        for task in self.streams[stream]:
            if owner[task] != stream:
                gang_end = self.has_ended.setdefault(task, env.event())
                self.release(task)
                yield gang_end
                continue
            if waiting[task]:
                self.may_start[task] = env.event()
                yield self.may_start[task]
            self.start[task] = env.now
            if slowing and takes[task]:
                slowing.take(task, 1)
            if slowing and slowed[task]:
                yield slowing.begin(task)
            elif solo_ns[task]:
                yield env.timeout(solo_ns[task])
            if task in flows:
                yield self.fluid.begin(task)
            self.finish(task)

    def finish(self, task: int) -> None:
        """Logs the end of a task and frees its streams; the successors of the task wait for its tail."""
        self.end[task] = self.env.now
        if self.slowing and self.takes[task]:
            self.slowing.take(task, -1)
        if task in self.has_ended:
            self.has_ended.pop(task).succeed()
        if self.tail_ns[task]:
            self.env.timeout(self.tail_ns[task], task).callbacks.append(lambda event: self.arrive(event.value))
        else:
            self.arrive(task)

    def arrive(self, task: int) -> None:
        """Removes, when the tail of a task has passed, one condition from each of its successors."""
        for successor in self.successors[task]:
            self.release(successor)

    def release(self, task: int) -> None:
        """Removes one condition for which a task waits; after the last condition the owning stream may start the task."""
        self.waiting[task] -= 1
        if not self.waiting[task] and task in self.may_start:
            self.may_start.pop(task).succeed()


@dataclass(slots=True)
class _Drain:
    """Work in progress: the remaining work at a time, the rate since then, and the time of completion at this rate."""

    left: int
    since: int
    empty: simpy.Event
    rate: int = 0
    due: int = -1


class _Fluid:
    """Clock for `SharedLinkRates`: drains work whose rate may change, both bytes on links and tasks whose speed changes.

    A task whose speed changes is a flow over the last route, which has no links, so that its rate is its cap: the speed.
    """

    def __init__(self, env: Any, graph: TaskGraph, rates: SharedLinkRates) -> None:
        self.env, self.profiles, self.rates = env, graph.profiles, rates
        flowing = ((graph.footprint >= 0) & (graph.work > 0)).nonzero()[0]
        paced = graph.changing_speed_tasks()
        paced = (paced & (graph.sharing.resource < 0) if graph.sharing else paced).nonzero()[0]
        followed = np.full(len(graph), -1) if graph.cap_profile is None else graph.cap_profile.copy()
        followed[paced] = graph.speed_profile[graph.speed[paced]]
        self.profile_of: list[int] = followed.tolist()
        """Task -> the index of the profile that the cap of the task follows, or -1."""
        self.present = {index: profile.value[0] for index, profile in enumerate(graph.profiles) if not profile.steady}
        self.flows = {t: (int(graph.footprint[t]), int(graph.work[t]), int(graph.cap[t])) for t in flowing.tolist()}
        self.flows |= {t: (-1, int(graph.solo_ns[t]) << SPEED_BITS, 0) for t in paced.tolist()}
        links_of: dict[int, list[int]] = {index: [] for index in self.present}
        for link, index in enumerate(graph.link_profile.tolist()):
            if index in links_of:
                links_of[index].append(link)
        self.drains: dict[int, _Drain] = {}
        self.solve_is_due = False
        for index, links in links_of.items():
            env.process(self.follow(index, links))

    def follow(self, index: int, links: list[int]) -> Process:
        """Sets links, caps and speeds to the new value at each change of their profile, also for flows in progress."""
        for since_ns, value in self.profiles[index].changes:
            yield self.env.timeout(since_ns - self.env.now)
            self.present[index] = value
            for link in links:
                self.rates.resize(link, value)
            for task in self.drains:
                if self.profile_of[task] == index:
                    self.rates.leave(task)
                    self.rates.join(task, self.flows[task][0], value)
            self.solve_after_instant()

    def begin(self, task: int) -> Any:
        """Starts to drain the work of a task; the returned event fires when no work is left."""
        footprint, work, cap = self.flows[task]
        self.rates.join(task, footprint, self.present.get(self.profile_of[task], cap))
        self.drains[task] = _Drain(work, self.env.now, self.env.event())
        self.solve_after_instant()
        return self.drains[task].empty

    def solve_after_instant(self) -> None:
        """Schedules `solve` after all other events of the present instant."""
        if not self.solve_is_due:
            self.solve_is_due = True
            event = simpy.Event(self.env)
            event._ok, event._value, event.callbacks = True, None, [self.solve]
            self.env.schedule(event, priority=LAST)

    def solve(self, _: simpy.Event) -> None:
        """Solves the rates for this instant and sets the clock of every task whose rate changed."""
        self.solve_is_due, now = False, self.env.now
        for task, rate in self.rates.solve():
            drain = self.drains[task]
            drain.left -= drain.rate * (now - drain.since)
            drain.rate, drain.since, drain.due = rate, now, -1
            if rate:
                wait = -(-drain.left // rate)
                drain.due = now + wait
                self.env.timeout(wait, task).callbacks.append(self.expire)

    def expire(self, event: Any) -> None:
        """Ends the flow of a task whose clock has expired, unless a change of its rate has set another clock meanwhile."""
        task = event.value
        if task in self.drains and self.drains[task].due == self.env.now:
            self.rates.leave(task)
            self.solve_after_instant()
            self.drains.pop(task).empty.succeed()
