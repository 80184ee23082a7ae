"""What an engine returns: when each task started and ended, folded as it was simulated and unfolded only on demand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .expand import Expansion
from .task import Array


@dataclass(frozen=True, eq=False, slots=True)
class Times:
    """Start and end of every task of a graph, in nanoseconds."""

    start_ns: Array
    end_ns: Array

    @classmethod
    def of(cls, start: Sequence[int], end: Sequence[int]) -> Times:
        wide = any(value >= 1 << 62 for value in end)
        kind = object if wide else np.int64
        return cls(np.array(start, dtype=kind), np.array(end, dtype=kind))

    @property
    def makespan_ns(self) -> int:
        """From time zero to the last end; 0 for an empty graph."""
        return int(self.end_ns.max()) if len(self.end_ns) else 0


@dataclass(frozen=True, eq=False, slots=True)
class Timeline:
    """The times of every rank, held once per class of ranks that behave alike.

    `class_of[rank]` is the rank's row in the expansion that was simulated; without folding it is the rank itself.
    """

    times: Times
    expansion: Expansion
    class_of: Array

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
        """Start and end of every row of one rank's template."""
        tasks = self.tasks_of(rank)
        return Times(self.times.start_ns[tasks], self.times.end_ns[tasks])
