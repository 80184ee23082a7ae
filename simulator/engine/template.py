"""Template: the program of a rank without its communicators and neighbours, which all ranks of a role share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .task import Array, Csr, run_starts


@dataclass(frozen=True, eq=False, slots=True)
class Merged:
    """The rows of which the rows of a template were merged."""

    whole: Template
    of_row: Array
    """Row of the whole template -> the merged row that contains it."""
    heads: Array
    """Merged row -> its first row in the whole template."""
    order: Array
    """The rows of the whole template, merged row by merged row."""

    def offsets_ns(self, variant: int) -> Array:
        """For each row of the whole template, the time in ns from the start of its merged row to its own start."""
        offsets_ns = np.empty(len(self.order), dtype=np.int64)
        offsets_ns[self.order] = np.append(0, np.cumsum(self.whole.durations_ns(variant)[self.order]))[:-1]
        begins_ns: Array = offsets_ns - offsets_ns[self.heads][self.of_row]
        return begins_ns


@dataclass(frozen=True, eq=False)
class Template:
    """The program of a rank: rows on FIFO lanes. A row is own work of the rank or one turn of a communicator."""

    slot: Array
    """The slot of the communicator whose next task the row is, or -1 for own work of the rank."""
    solo_ns: Array
    """Duration of own work at full speed, in ns; unused for communicators. If ranks differ in it, one row for each variant."""
    charge: Array
    """The charge of a communicator's task: a column of the tariff; unused for own work."""
    preds: Csr
    """Row -> rows of this template that must end before the row starts."""
    lanes: Csr
    """Lane -> its rows in FIFO order. A row may be on several lanes."""
    resource: Array | None = None
    """Row -> the resource whose shortage slows it, or -1; None if nothing slows any row."""
    merged: Merged | None = None
    """The rows that were merged into these; None if none were."""

    def __len__(self) -> int:
        return len(self.slot)

    @property
    def whole(self) -> Template:
        """The template before rows were merged."""
        return self if self.merged is None else self.merged.whole

    @cached_property
    def turn(self) -> Array:
        """For each row, the number of earlier rows with the same slot: the index of the row among all rows of its slot."""
        order = np.argsort(self.slot, kind="stable")
        starts = run_starts(self.slot[order])
        turn = np.empty(len(self), dtype=np.int64)
        turn[order] = np.arange(len(self)) - np.repeat(starts, np.diff(np.append(starts, len(self))))
        return turn

    @cached_property
    def edges(self) -> tuple[Array, Array, Array]:
        """Edges between rows: the row waited for, the waiting row, and the lane whose order implies it, or -1 for a
        predecessor."""
        on, row_of = self.lanes.idx, self.lanes.row_of
        follows = row_of[1:] == row_of[:-1]
        src = np.concatenate([on[:-1][follows], self.preds.idx])
        dst = np.concatenate([on[1:][follows], self.preds.row_of])
        return src, dst, np.concatenate([row_of[1:][follows], np.full(len(self.preds.idx), -1)])

    def durations_ns(self, variant: int) -> Array:
        """The duration of each row for one variant."""
        of: Array = self.solo_ns if self.solo_ns.ndim == 1 else self.solo_ns[variant]
        return of

    @property
    def longest_ns(self) -> Array:
        """The longest duration of each row over all variants."""
        return self.solo_ns if self.solo_ns.ndim == 1 else self.solo_ns.max(axis=0)

    @property
    def shortest_ns(self) -> Array:
        """The shortest duration of each row over all variants."""
        return self.solo_ns if self.solo_ns.ndim == 1 else self.solo_ns.min(axis=0)

    @cached_property
    def main(self) -> int:
        """The lane with most own work."""
        own = self.lanes.row_of[self.slot[self.lanes.idx] < 0]
        return int(np.argmax(np.bincount(own, minlength=len(self.lanes) or 1)))

    @cached_property
    def own(self) -> Array:
        """The rows of own work of the rank."""
        return np.flatnonzero(self.slot < 0)

    @cached_property
    def turns(self) -> Array:
        """The rows that are turns of communicators."""
        return np.flatnonzero(self.slot >= 0)

    def rows_of(self, slot: int) -> Array:
        return np.flatnonzero(self.slot == slot)

    @cached_property
    def mixed(self) -> Array:
        """Lane -> whether it holds rows of several slots, or own work and rows of a slot."""
        slot, lane = self.slot[self.lanes.idx], self.lanes.row_of
        mixed = np.zeros(len(self.lanes), dtype=bool)
        mixed[lane[1:][(slot[1:] != slot[:-1]) & (lane[1:] == lane[:-1])]] = True
        return mixed

    def private(self, slots: int) -> Array:
        """Slot -> whether its lanes hold no other rows, so that the FIFO order of the communicator implies the lane order."""
        private, others = np.ones(slots, dtype=bool), self.slot[self.lanes.idx][self.mixed[self.lanes.row_of]]
        private[others[others >= 0]] = False
        return private
