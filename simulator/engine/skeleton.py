"""The skeleton: which rank runs which program, in which communicators, over which links. Small where tasks are many.

A rank's program (`Template`) names communicators by slot, never by rank; a communicator's tasks are FIFO. So a program is
written once per role, and the symmetry of a cluster shows in a graph of ranks, communicators and links. `expand` makes
tasks from any skeleton: the whole cluster's, or the quotient that `fold` returns, which is a skeleton too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .task import Array, Csr, Profile


@dataclass(frozen=True, eq=False)
class Template:
    """The program of a rank: rows on FIFO lanes. A row is the rank's own work or one turn of a communicator."""

    slot: Array
    """The slot of the communicator whose next task this row is, or -1 for the rank's own work."""
    solo_ns: Array
    """Duration of own work at full speed; unused for communicators."""
    charge: Array
    """The charge of a communicator's task: a column of the tariff; unused for own work."""
    preds: Csr
    """Row -> rows of this template that must end before it."""
    lanes: Csr
    """Lane -> its rows in FIFO order. A row may stand on several lanes."""

    def __len__(self) -> int:
        return len(self.slot)

    @cached_property
    def turn(self) -> Array:
        """For each row, how many earlier rows have the same slot: its place in the communicator's (or own) sequence."""
        order = np.argsort(self.slot, kind="stable")
        ordered = self.slot[order]
        starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if len(order) else order
        turn = np.empty(len(self), dtype=np.int64)
        turn[order] = np.arange(len(self)) - np.repeat(starts, np.diff(np.append(starts, len(self))))
        return turn

    @cached_property
    def own(self) -> Array:
        """The rows that are the rank's own work."""
        return np.flatnonzero(self.slot < 0)

    def rows_of(self, slot: int) -> Array:
        return np.flatnonzero(self.slot == slot)

    def private(self, slot: int) -> bool:
        """Whether the lanes that hold this slot hold nothing else, so that the FIFO order of its communicator implies theirs."""
        lanes = sorted(set(self.lanes.row_of[self.slot[self.lanes.idx] == slot].tolist()))
        return all(bool((self.slot[self.lanes.row(lane)] == slot).all()) for lane in lanes)


@dataclass(frozen=True, eq=False, slots=True)
class Tariff:
    """The cost of each charge on each kind of communicator (kinds x charges)."""

    latency_ns: Array
    work: Array
    cap: Array
    pattern: Array
    """The one of the communicator's footprints that the bytes take."""
    tail_ns: Array
    """From the end of the task, when its streams are free, until what depends on it may start."""
    cap_profile: Array
    """The index in the skeleton's profiles of a cap that changes with time, or -1."""


@dataclass(frozen=True, eq=False)
class Skeleton:
    """Ranks, communicators and links, with everything that distinguishes them."""

    templates: tuple[Template, ...]
    tariff: Tariff
    profiles: tuple[Profile, ...]
    program: Array
    """Rank -> its template."""
    speed: Array
    """Rank -> the profile of its speed."""
    slots: Array
    """(slot, rank) -> communicator, or -1."""
    kind: Array
    """Communicator -> its row of the tariff."""
    patterns: int
    """Footprints per communicator; footprint = communicator * patterns + pattern."""
    footprints: Csr
    footprint_weight: Array
    link_profile: Array
    single_weight: Array | None = None
    """For each entry of `footprints`, the weight of one of the footprints that it stands for; None if it is itself one."""

    @property
    def ranks(self) -> int:
        return len(self.program)

    @property
    def communicators(self) -> int:
        return len(self.kind)

    @cached_property
    def members(self) -> tuple[Array, Array, Array]:
        """Every membership as (communicator, slot, rank), sorted by communicator, slot and rank."""
        slot, rank = np.nonzero(self.slots >= 0)
        communicator = self.slots[slot, rank]
        order = np.argsort(communicator, kind="stable")
        return communicator[order], slot[order], rank[order]
