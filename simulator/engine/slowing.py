"""Tasks that others on the same rank slow, in the reference engine: the parts of each rank's resources that are taken, and the
remaining speeds.

Speeds are set once per instant, after all other events, as rates are. Until then a starting task is assumed to run at the speed
that the parts taken at that moment leave; this is corrected in the same instant if they change.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from .task import FULL_SPEED, LEAST_SPEED, SPEED_BITS, Sharing, TaskGraph

LAST = 2
"""SimPy priority of an event after all other events of an instant, which have priority 0 or 1."""


@dataclass(slots=True)
class _Progress:
    """A slowed task in progress: the remaining work at a time, the speed since then, and the time of completion at this speed."""

    left: int
    since: int
    speed: int
    ended: Any
    due: int = -1


class Slowing:
    """The clock of the tasks that others slow."""

    def __init__(self, env: Any, graph: TaskGraph, sharing: Sharing) -> None:
        self.env, self.solo_ns = env, graph.solo_ns.tolist()
        self.resource, self.rank = sharing.resource.tolist(), graph.speed.tolist()
        self.takes, self.group, self.ranks = sharing.takes.tolist(), sharing.group.tolist(), sharing.ranks.lists()
        numbers = graph.speed_profile.tolist()
        self.full: list[int] = [graph.profiles[number].value[0] for number in numbers]
        """Rank -> the speed of its tasks when nothing is taken."""
        self.taken = [[0, 0] for _ in numbers]
        self.running: list[dict[int, _Progress]] = [{} for _ in numbers]
        """Rank -> its slowed tasks in progress."""
        self.touched: dict[int, None] = {}
        for number in sorted(set(numbers)):
            if not graph.profiles[number].steady:
                env.process(self.follow(graph.profiles[number].changes, [r for r, of in enumerate(numbers) if of == number]))

    def follow(self, changes: list[tuple[int, int]], ranks: list[int]) -> Generator[Any, Any, None]:
        """Sets the speed of ranks at each change of their profile."""
        for since_ns, value in changes:
            yield self.env.timeout(since_ns - self.env.now)
            for rank in ranks:
                self.full[rank] = value
                self.mark(rank)

    def begin(self, task: int) -> Any:
        """Starts a slowed task; the returned event fires when its work is done."""
        rank = self.rank[task]
        ended, speed = self.env.event(), self.speed(rank, self.resource[task])
        self.running[rank][task] = progress = _Progress(self.solo_ns[task] << SPEED_BITS, self.env.now, speed, ended)
        self.set_clock(task, progress)
        return ended

    def take(self, task: int, sign: int) -> None:
        """Takes the parts of a task from its ranks when the task starts (sign 1), and gives them back when it ends (-1)."""
        cores, memory = self.takes[task]
        for rank in self.ranks[self.group[task]]:
            self.taken[rank][0] += sign * cores
            self.taken[rank][1] += sign * memory
            self.mark(rank)

    def speed(self, rank: int, resource: int) -> int:
        """The present speed of a rank's tasks that need a resource."""
        left = max(LEAST_SPEED, FULL_SPEED - self.taken[rank][resource])
        return self.full[rank] * left >> SPEED_BITS

    def mark(self, rank: int) -> None:
        """Notes that the speeds of a rank may change in this instant, and schedules `settle` after all its other events."""
        if not self.touched:
            event = self.env.event()
            event._ok, event._value, event.callbacks = True, None, [self.settle]
            self.env.schedule(event, priority=LAST)
        self.touched[rank] = None

    def settle(self, _: Any) -> None:
        """Sets the speeds of this instant, and the clocks of the tasks in progress whose speed changes."""
        now = self.env.now
        for rank in self.touched:
            for task, progress in self.running[rank].items():
                speed = self.speed(rank, self.resource[task])
                if speed != progress.speed:
                    progress.left -= progress.speed * (now - progress.since)
                    progress.since, progress.speed = now, speed
                    self.set_clock(task, progress)
        self.touched.clear()

    def set_clock(self, task: int, progress: _Progress) -> None:
        """Sets the clock of a task to the time at which its work is done at its present speed, if it has any."""
        progress.due = -1
        if progress.speed:
            wait = -(-progress.left // progress.speed)
            progress.due = progress.since + wait
            self.env.timeout(wait, task).callbacks.append(self.expire)

    def expire(self, event: Any) -> None:
        """Ends a task whose clock has expired, unless a change of its speed has set another clock meanwhile."""
        running = self.running[self.rank[event.value]]
        progress = running.get(event.value)
        if progress and progress.due == self.env.now:
            del running[event.value]
            progress.ended.succeed()
