"""Timeline of a run: start and end of each task, per class of folded ranks; error for a deadlock, with the blocked streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..errors import Blocked, Deadlock
from .skeleton import Expansion, Skeleton
from .task import Array, TaskGraph

SHOWN = 32
"""The largest number of streams that the message shows; the exception holds all streams."""


@dataclass(frozen=True, eq=False, slots=True)
class Times:
    """Start, end and arrival of every task of a graph, in nanoseconds."""

    start_ns: Array
    end_ns: Array
    arrival_ns: Array
    """The end of the task plus its tail: the time at which successors of the task may start."""

    @classmethod
    def of(cls, start: ArrayLike, end: ArrayLike, tail_ns: Array) -> Times:
        """Times with arrivals computed from ends and tails; without tails the arrivals are the ends."""
        kind = object if np.max(end, initial=0) >= 1 << 62 else np.int64
        start_ns, end_ns = np.array(start, dtype=kind), np.array(end, dtype=kind)
        return cls(start_ns, end_ns, end_ns + tail_ns if tail_ns.any() else end_ns)

    @property
    def makespan_ns(self) -> int:
        """From time zero to the last arrival; 0 for an empty graph."""
        return int(self.arrival_ns.max()) if len(self.arrival_ns) else 0


@dataclass(frozen=True, eq=False)
class Timeline:
    """The times of every rank, stored once per class of ranks that behave alike."""

    times: Times
    expansion: Expansion

    def __repr__(self) -> str:
        expansion = self.expansion
        return f"Timeline({self.ranks:,} ranks, {len(expansion.graph):,} tasks of {expansion.tasks_unfolded:,})"

    @property
    def skeleton(self) -> Skeleton:
        """The skeleton of the simulated ranks."""
        return self.expansion.skeleton

    @property
    def class_of(self) -> Array:
        """For each rank, the simulated rank of the expansion that behaves like the rank."""
        return self.expansion.class_of

    @property
    def ranks(self) -> int:
        return len(self.class_of)

    @property
    def tasks(self) -> int:
        """Number of tasks of the simulated ranks."""
        return len(self.expansion.graph)

    @property
    def tasks_unfolded(self) -> int:
        """Number of tasks of all ranks."""
        return self.expansion.tasks_unfolded

    @property
    def makespan_ns(self) -> int:
        """From time zero to the last arrival."""
        return self.times.makespan_ns

    @property
    def multiplicity(self) -> Array:
        """The number of ranks that each simulated class represents."""
        return np.bincount(self.class_of, minlength=self.skeleton.ranks)

    def tasks_of(self, rank: int) -> Array:
        """The tasks of one rank, in the order of the rows of the rank's template."""
        return self.expansion.tasks_of(int(self.class_of[rank]))

    def rank_times(self, rank: int) -> Times:
        """Start, end and arrival of every row of one rank's template."""
        return self.class_times(int(self.class_of[rank]))

    def class_times(self, which: int) -> Times:
        """Start, end and arrival of every row of the template of a class of ranks, also of rows merged into others."""
        expansion, times = self.expansion, self.times
        tasks, merged = expansion.tasks_of(which), expansion.template_of(which).merged
        start_ns, end_ns, arrival_ns = times.start_ns[tasks], times.end_ns[tasks], times.arrival_ns[tasks]
        if merged is None:
            return Times(start_ns, end_ns, arrival_ns)
        variant = int(expansion.skeleton.variants[which])
        start_ns = start_ns + merged.offsets_ns(variant)
        own = merged.whole.slot < 0
        end_ns = np.where(own, start_ns + merged.whole.durations_ns(variant), end_ns)
        return Times(start_ns, end_ns, np.where(own, end_ns, arrival_ns))


def deadlock(graph: TaskGraph, end: Sequence[int]) -> Deadlock:
    """The error for a run that stopped with tasks left (`end` is -1 for those)."""
    blocked: list[Blocked] = []
    streams = graph.streams.lists()
    position = [{task: i for i, task in enumerate(tasks)} for tasks in streams]
    stream_of: dict[int, list[int]] = {}
    for stream, tasks in enumerate(streams):
        for task in tasks:
            stream_of.setdefault(task, []).append(stream)
    heads = [next((i for i, task in enumerate(tasks) if end[task] < 0), len(tasks)) for tasks in streams]
    for stream, tasks in enumerate(streams):
        done = heads[stream]
        if done == len(tasks):
            continue
        head = tasks[done]
        behind = [streams[s][heads[s]] for s in stream_of[head] if position[s][head] > heads[s]]
        waits_for = [p for p in dict.fromkeys(graph.preds.row(head).tolist()) if end[p] < 0]
        blocked.append(Blocked(stream, done, len(tasks), head, tuple(dict.fromkeys((*waits_for, *behind)))))
    left = sum(1 for at in end if at < 0)
    return Deadlock(
        f"deadlock: {left} of {len(end)} tasks can never start\n{grid(blocked, str, str)}",
        blocked=blocked,
        hint="two streams wait for each other: give both the same order of their common tasks",
    )


def grid(blocked: Sequence[Blocked], stream_name: Callable[[int], str], task_name: Callable[[int], str]) -> str:
    """Text with one line per unfinished stream, and an arrow at each blocked head."""
    names = [stream_name(b.stream) for b in blocked[:SHOWN]]
    width = max((len(name) for name in names), default=0)
    lines = []
    for name, b in zip(names, blocked, strict=False):
        wants = ", ".join(task_name(task) for task in b.waits_for[:4]) or "bytes that never move: its rate is zero"
        more = f" and {len(b.waits_for) - 4} more" if len(b.waits_for) > 4 else ""
        lines.append(f"  stream {name:>{width}}  {b.done:>5}/{b.length} done -> {task_name(b.head)} waits for {wants}{more}")
    if len(blocked) > SHOWN:
        lines.append(f"  ... and {len(blocked) - SHOWN} streams more")
    return "\n".join(lines)
