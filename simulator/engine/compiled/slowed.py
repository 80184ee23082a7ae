"""Slowed tasks of the compiled engine: the rules of `slowing.py` over records of integers.

The number of a slowed task in progress is its first stream, which runs no other task meanwhile; its clock is that of the stream.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..task import CORES, FULL_SPEED, LEAST_SPEED, MEMORY, SPEED_BITS, Array, TaskGraph, distinct
from .integer_records import push, records
from .machine_code import compiled

NOTHING = -1


class Slowed(NamedTuple):
    """Tasks that others slow, and what is taken of every rank.

    A task has its rank, the resource that it needs, the group of ranks that it takes from, and what it takes. Group i takes from
    the ranks in rows `group[i]` to `group[i + 1]` of `member`; rank i runs slowed tasks on the streams in rows `rank[i].first` to
    `rank[i + 1].first` of `stream`. `progress` holds the slowed task in progress of each stream. `touched` lists the ranks whose
    speeds may change in this instant; their number is in row 0.
    """

    tasks: Array
    group: Array
    member: Array
    ranks: Array
    stream: Array
    progress: Array
    touched: Array


def slowed_of(graph: TaskGraph) -> Slowed:
    """The slowed tasks of a graph, before the first task starts."""
    sharing, streams, ranks = graph.sharing, len(graph.streams), len(graph.speed_profile)
    none = np.zeros(0, dtype=np.int64)
    progress = records(streams, task=NOTHING, left=0, since=0, speed=0)
    if sharing is None:
        empty = records(1, first=0, full=0, cores=0, memory=0, touched=0)
        tasks = records(0, rank=NOTHING, resource=NOTHING, group=NOTHING, cores=0, memory=0)
        return Slowed(tasks, none, none, empty, none, progress, np.zeros(1, dtype=np.int64))
    tasks = records(
        len(graph),
        rank=graph.speed,
        resource=sharing.resource,
        group=sharing.group,
        cores=sharing.takes[:, CORES],
        memory=sharing.takes[:, MEMORY],
    )
    streams_of = graph.streams.transposed(len(graph))
    pairs = distinct(graph.speed[sharing.slowed] * streams + streams_of.idx[streams_of.ptr[sharing.slowed]])
    first = np.searchsorted(pairs, np.arange(ranks + 1) * streams)
    rows = records(ranks + 1, first=first, full=0, cores=0, memory=0, touched=0)
    rows["full"][:ranks] = [graph.profiles[number].value[0] for number in graph.speed_profile.tolist()]
    touched = np.zeros(ranks + 1, dtype=np.int64)
    group, member = sharing.ranks.ptr.astype(np.int64), sharing.ranks.idx.astype(np.int64)
    return Slowed(tasks, group, member, rows, pairs % max(1, streams), progress, touched)


@compiled
def begin(slowed: Slowed, clock: Array, stream: int, number: int, solo_ns: int, now: int) -> None:
    """Starts a slowed task on its first stream."""
    task, progress = slowed.tasks[number], slowed.progress[stream]
    progress.task, progress.left, progress.since = number, solo_ns << SPEED_BITS, now
    progress.speed = _speed(slowed, task.rank, task.resource)
    push(clock, stream, now + (progress.left + progress.speed - 1) // progress.speed)


@compiled
def take(slowed: Slowed, number: int, sign: int) -> None:
    """Takes the parts of a task from its ranks when the task starts (sign 1), and gives them back when it ends (-1)."""
    task = slowed.tasks[number]
    for i in range(slowed.group[task.group], slowed.group[task.group + 1]):
        rank = slowed.ranks[slowed.member[i]]
        rank.cores += sign * task.cores
        rank.memory += sign * task.memory
        if not rank.touched:
            rank.touched = 1
            slowed.touched[0] += 1
            slowed.touched[slowed.touched[0]] = slowed.member[i]


@compiled
def settle(slowed: Slowed, clock: Array, now: int) -> None:
    """Sets the speeds of this instant, and the clocks of the tasks in progress whose speed changes."""
    for i in range(1, slowed.touched[0] + 1):
        number = slowed.touched[i]
        slowed.ranks[number].touched = 0
        for at in range(slowed.ranks[number].first, slowed.ranks[number + 1].first):
            stream = slowed.stream[at]
            progress = slowed.progress[stream]
            if progress.task < 0 or slowed.tasks[progress.task].rank != number:
                continue
            speed = _speed(slowed, number, slowed.tasks[progress.task].resource)
            if speed != progress.speed:
                progress.left -= progress.speed * (now - progress.since)
                progress.since, progress.speed = now, speed
                push(clock, stream, now + (progress.left + speed - 1) // speed)
    slowed.touched[0] = 0


@compiled
def _speed(slowed: Slowed, number: int, resource: int) -> int:
    """The present speed of a rank's tasks that need a resource."""
    rank = slowed.ranks[number]
    taken = rank.cores if resource == CORES else rank.memory
    speed: int = rank.full * max(LEAST_SPEED, FULL_SPEED - taken) >> SPEED_BITS
    return speed
