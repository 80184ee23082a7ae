"""Timeline of a run of stretches: the rows of a rank, and the tasks of all ranks, are made on demand."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from . import heap
from .fold import Folded
from .skeleton import Expansion, Skeleton, task_count
from .stretches import Stretched
from .task import Array
from .timeline import Timeline, Times


class StretchedTimeline(Timeline):
    """The times of every rank, stored once per stretch and class of ranks that behave alike."""

    def __init__(self, folded: Folded, stretched: Stretched, of_stretches: Times, begun_ns: Array) -> None:
        self.folded, self.stretched, self.of_stretches, self.begun_ns = folded, stretched, of_stretches, begun_ns
        """The ranks, their stretches, the times of all tasks of the stretches, and the start of every piece."""
        self.known: dict[int, Times] = {}
        """Class of ranks -> the times of its rows, once asked for."""

    def __repr__(self) -> str:
        return f"Timeline({self.ranks:,} ranks, {self.skeleton.ranks:,} classes)"

    @property
    def skeleton(self) -> Skeleton:
        """The skeleton of the simulated ranks."""
        return self.folded.skeleton

    @property
    def class_of(self) -> Array:
        """For each rank, the simulated rank that behaves like the rank."""
        return self.folded.class_of

    @cached_property
    def tasks(self) -> int:
        """Number of tasks of the simulated ranks, of which the stretches are made."""
        return task_count(self.skeleton)

    @property
    def tasks_unfolded(self) -> int:
        """Number of tasks of all ranks."""
        return self.folded.tasks_unfolded

    @property
    def makespan_ns(self) -> int:
        """From time zero to the last arrival."""
        return self.of_stretches.makespan_ns

    @cached_property
    def expansion(self) -> Expansion:
        """The tasks of all rows."""
        return self.folded.expansion()

    @cached_property
    def times(self) -> Times:
        """The times of all tasks."""
        columns = [np.zeros(len(self.expansion.graph), dtype=np.int64) for _ in range(3)]
        for which in range(self.skeleton.ranks):
            tasks, rows = self.expansion.tasks_of(which), self.class_times(which)
            for column, of_rows in zip(columns, (rows.start_ns, rows.end_ns, rows.arrival_ns), strict=True):
                column[tasks] = of_rows
        return Times(*columns)

    def longer_ns(self, calls: Callable[[int], Array]) -> Array:
        """For every class, the time in ns by which others slow its rows; `calls(which)` gives how often each row of a class
        counts, which is the same for all rows of a stretch."""
        times, graph = self.of_stretches, self.stretched.graph
        found = np.zeros(self.skeleton.ranks, dtype=np.int64)
        for which in range(self.skeleton.ranks) if graph.sharing else ():
            stretches, tasks = self.stretched.stretches_of(which), self.stretched.tasks[which]
            own_ns, chosen = stretches.template.durations_ns(0), stretches.closed
            if not (speed := self.skeleton.profiles[int(self.skeleton.speed[which])]).steady:  # each row is a stretch by itself
                own_ns, chosen = speed.lasting_ns(times.start_ns[tasks], own_ns), stretches.template.slot < 0
            longer_ns = times.end_ns[tasks] - times.start_ns[tasks] - own_ns
            found[which] = (longer_ns * calls(which)[stretches.heads])[chosen].sum()
        return found

    def class_times(self, which: int) -> Times:
        """Start, end and arrival of every row of the template of a class of ranks."""
        if which not in self.known:
            self.known[which] = self.stretched.rows(which, self.of_stretches, self.begun_ns)
        return self.known[which]


def run(folded: Folded, stretched: Stretched) -> StretchedTimeline | None:
    """The timeline of a run; None if tasks are left, or if times might not fit into 64 bits."""
    found = heap.with_pieces(stretched.graph, stretched.pieces)
    return None if found is None else StretchedTimeline(folded, stretched, *found)
