"""What an engine returns: when each task started and ended, folded as it was simulated and unfolded only on demand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .skeleton import Expansion
from .task import Array


@dataclass(frozen=True, eq=False, slots=True)
class Times:
    """Start, end and arrival of every task of a graph, in nanoseconds."""

    start_ns: Array
    end_ns: Array
    arrival_ns: Array
    """The end and the tail after it: what depends on the task may start then."""

    @classmethod
    def of(cls, start: Sequence[int], end: Sequence[int], tail_ns: Array) -> Times:
        wide = any(value >= 1 << 62 for value in end)
        kind = object if wide else np.int64
        return cls.with_tails(np.array(start, dtype=kind), np.array(end, dtype=kind), tail_ns)

    @classmethod
    def with_tails(cls, start_ns: Array, end_ns: Array, tail_ns: Array) -> Times:
        """Arrivals are worked out; without tails they are the ends themselves."""
        return cls(start_ns, end_ns, end_ns + tail_ns if tail_ns.any() else end_ns)

    @property
    def makespan_ns(self) -> int:
        """From time zero to the last arrival; 0 for an empty graph."""
        return int(self.arrival_ns.max()) if len(self.arrival_ns) else 0


@dataclass(frozen=True, eq=False, slots=True)
class Timeline:
    """The times of every rank, held once per class of ranks that behave alike.

    `class_of[rank]` is the rank's row in the expansion that was simulated; without folding it is the rank itself.
    """

    times: Times
    expansion: Expansion
    class_of: Array

    def __repr__(self) -> str:
        return f"Timeline({self.ranks:,} ranks, {len(self.expansion.graph):,} tasks of {self.tasks_represented:,})"

    @property
    def ranks(self) -> int:
        return len(self.class_of)

    @property
    def multiplicity(self) -> Array:
        """How many ranks each simulated class stands for."""
        return np.bincount(self.class_of, minlength=self.expansion.ranks)

    @property
    def tasks_represented(self) -> int:
        """The tasks of the whole cluster: each rank's own, and each communicator's task once."""
        return self.expansion.tasks_unfolded

    def tasks_of(self, rank: int) -> Array:
        """The tasks of one rank, in the order of its template's rows."""
        return self.expansion.tasks_of(int(self.class_of[rank]))

    def rank_times(self, rank: int) -> Times:
        """Start, end and arrival of every row of one rank's template."""
        tasks, times = self.tasks_of(rank), self.times
        return Times(times.start_ns[tasks], times.end_ns[tasks], times.arrival_ns[tasks])
