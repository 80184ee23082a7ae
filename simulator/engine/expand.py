"""Expansion: a skeleton becomes a task graph, column by column, for one rank or for a hundred thousand ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..errors import InvariantBroken
from .skeleton import Skeleton, Template
from .task import Array, Csr, TaskGraph, offsets


@dataclass(frozen=True, eq=False)
class Expansion:
    """The task graph of a skeleton, and the way back: which rank and row each task stands for."""

    graph: TaskGraph
    skeleton: Skeleton
    own_base: Array
    turn_base: Array
    stream_rank: Array
    """Stream -> the first rank that it belongs to."""
    stream_lane: Array
    """Stream -> the lane of that rank's template."""
    tasks_unfolded: int

    @property
    def ranks(self) -> int:
        return self.skeleton.ranks

    def tasks_of(self, rank: int) -> Array:
        """The task of each row of a rank's template."""
        template = self.skeleton.templates[int(self.skeleton.program[rank])]
        tasks: Array = _tasks(self.skeleton, template, np.array([rank]), self.own_base, self.turn_base)[0]
        return tasks

    @cached_property
    def origin(self) -> tuple[Array, Array]:
        """For each task, the lowest rank that takes part in it and the row of that rank's template."""
        rank_of, row_of = np.full(len(self.graph), -1), np.full(len(self.graph), -1)
        for rank in range(self.ranks - 1, -1, -1):
            tasks = self.tasks_of(rank)
            rank_of[tasks], row_of[tasks] = rank, np.arange(len(tasks))
        return rank_of, row_of


def _tasks(skeleton: Skeleton, template: Template, ranks: Array, own_base: Array, turn_base: Array) -> Array:
    """The task ids of every row (columns) of every given rank (rows), all of which run `template`."""
    communicators = skeleton.slots[np.maximum(template.slot, 0)][:, ranks].T
    base = np.where(template.slot < 0, own_base[ranks][:, None], turn_base[communicators])
    tasks: Array = base + template.turn
    return tasks


def expand(skeleton: Skeleton, tasks_unfolded: int | None = None) -> Expansion:
    """The task graph of a skeleton: own work first, rank by rank, then every communicator's tasks in turn."""
    of_program = [np.flatnonzero(skeleton.program == p) for p in range(len(skeleton.templates))]
    turns = _turns(skeleton)
    own = np.array([len(t.own) for t in skeleton.templates], dtype=np.int64)[skeleton.program]
    own_base = offsets(own)
    turn_base = own_base[-1] + offsets(turns)
    n = int(turn_base[-1])
    solo_ns, speed = np.zeros(n, dtype=np.int64), np.full(n, -1, dtype=np.int64)
    charge = np.zeros(n, dtype=np.int64)
    after, before = [], []
    for template, ranks in zip(skeleton.templates, of_program, strict=True):
        if not len(ranks) or not len(template):
            continue
        tasks = _tasks(skeleton, template, ranks, own_base, turn_base)
        solo_ns[tasks[:, template.own]] = template.solo_ns[template.own]
        speed[tasks[:, template.own]] = ranks[:, None]
        others = np.flatnonzero(template.slot >= 0)
        charge[tasks[:, others]] = template.charge[others]
        after.append(tasks[:, template.preds.row_of].ravel())
        before.append(tasks[:, template.preds.idx].ravel())
    communicator = np.repeat(np.arange(skeleton.communicators), turns)
    first = int(own_base[-1])
    tariff, kind = skeleton.tariff, skeleton.kind[communicator]
    footprint, work, cap = np.full(n, -1, dtype=np.int64), np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    tail_ns = np.zeros(n, dtype=np.int64)
    solo_ns[first:] = tariff.latency_ns[kind, charge[first:]]
    tail_ns[first:] = tariff.tail_ns[kind, charge[first:]]
    work[first:] = tariff.work[kind, charge[first:]]
    cap[first:] = tariff.cap[kind, charge[first:]]
    changing = np.full(n, -1)
    changing[first:] = np.where(work[first:] > 0, tariff.cap_profile[kind, charge[first:]], -1)
    footprint[first:] = np.where(work[first:] > 0, communicator * skeleton.patterns + tariff.pattern[kind, charge[first:]], -1)
    streams, stream_rank, stream_lane = _streams(skeleton, of_program, own_base, turn_base)
    graph = TaskGraph(
        solo_ns,
        tail_ns,
        speed,
        footprint,
        work,
        cap,
        streams,
        Csr.from_pairs(_joined(after), _joined(before), n),
        skeleton.footprints,
        skeleton.footprint_weight,
        skeleton.link_profile,
        skeleton.speed,
        skeleton.profiles,
        skeleton.single_weight,
        changing if (changing >= 0).any() else None,
    )
    return Expansion(graph, skeleton, own_base, turn_base, stream_rank, stream_lane, tasks_unfolded or n)


def _joined(parts: list[Array]) -> Array:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _turns(skeleton: Skeleton) -> Array:
    """How many tasks each communicator has. All its members must take the same turns at the same charges."""
    n_slots = len(skeleton.slots)
    needed = np.array([[(t.slot == s).any() for s in range(n_slots)] for t in skeleton.templates], dtype=bool)
    lacking = (needed[skeleton.program].T & (skeleton.slots < 0)).nonzero()
    if len(lacking[0]):
        raise InvariantBroken(f"rank {lacking[1][0]} has no communicator in slot {lacking[0][0]}, which its program uses")
    sequences: dict[bytes, int] = {}
    sequence_of = np.zeros((len(skeleton.templates), n_slots), dtype=np.int64)
    for p, template in enumerate(skeleton.templates):
        for s in range(n_slots):
            key = template.charge[template.rows_of(s)].astype(np.int64).tobytes()
            sequence_of[p, s] = sequences.setdefault(key, len(sequences))
    length_of = np.array([[len(t.rows_of(s)) for s in range(n_slots)] for t in skeleton.templates], dtype=np.int64)
    communicator, slot, rank = skeleton.members
    sequence = sequence_of[skeleton.program[rank], slot]
    first = np.zeros(skeleton.communicators, dtype=np.int64)
    first[communicator[::-1]] = sequence[::-1]
    odd = np.flatnonzero(sequence != first[communicator])
    if len(odd):
        raise InvariantBroken(f"members of communicator {communicator[odd[0]]} do not take the same turns")
    turns = np.zeros(skeleton.communicators, dtype=np.int64)
    turns[communicator] = length_of[skeleton.program[rank], slot]
    return turns


def _streams(skeleton: Skeleton, of_program: list[Array], own_base: Array, turn_base: Array) -> tuple[Csr, Array, Array]:
    """One stream per rank and lane, and one per communicator whose lanes carry nothing else at any of its members.

    A lane of a rank often holds nothing but one communicator's tasks. The same tasks stand, in the same order, on such a lane of
    every member: as many FIFO queues of equal content, which all say the same. Where that is so at each member (the communicator
    is *private*) one stream replaces them, so that a gang of a thousand ranks occupies one stream and not a thousand. It stands
    for the lane of the communicator's first member. A lane that holds own work or several communicators' tasks, or a
    communicator with such a lane at any member, keeps its queues: they order tasks against others.
    """
    communicator, slot, rank = skeleton.members
    private_slot = np.array([[t.private(s) for s in range(len(skeleton.slots))] for t in skeleton.templates], dtype=bool)
    private = np.ones(skeleton.communicators, dtype=bool)
    private[communicator[~private_slot[skeleton.program[rank], slot]]] = False
    tasks_in, ranks_in, lanes_in, lengths = [], [], [], []
    for template, ranks in zip(skeleton.templates, of_program, strict=True):
        if not len(ranks) or not len(template):
            continue
        tasks = _tasks(skeleton, template, ranks, own_base, turn_base)
        for lane in range(len(template.lanes)):
            rows = template.lanes.row(lane)
            if not len(rows):
                continue
            slots = template.slot[rows]
            kept = ranks
            if slots[0] >= 0 and (slots == slots[0]).all():
                kept = ranks[~private[skeleton.slots[slots[0], ranks]]]
            tasks_in.append(tasks[np.searchsorted(ranks, kept)][:, rows].ravel())
            ranks_in.append(kept)
            lanes_in.append(np.full(len(kept), lane))
            lengths.append(np.full(len(kept), len(rows)))
    counts = np.diff(turn_base)
    alone = np.flatnonzero(private & (counts > 0))
    tasks_in.append(np.repeat(turn_base[alone] - offsets(counts[alone])[:-1], counts[alone]) + np.arange(counts[alone].sum()))
    lengths.append(counts[alone])
    first = np.searchsorted(communicator, alone)
    ranks_in.append(rank[first])
    lanes_in.append(_lane_of(skeleton, rank[first], slot[first]))
    return Csr(offsets(_joined(lengths)), _joined(tasks_in)), _joined(ranks_in), _joined(lanes_in)


def _lane_of(skeleton: Skeleton, ranks: Array, slots: Array) -> Array:
    """The first lane on which each slot stands in the template of each rank."""
    table = np.zeros((len(skeleton.templates), len(skeleton.slots)), dtype=np.int64)
    for p, template in enumerate(skeleton.templates):
        on = template.slot[template.lanes.idx]
        lane = template.lanes.row_of[on >= 0]
        table[p, on[on >= 0][::-1]] = lane[::-1]
    lanes: Array = table[skeleton.program[ranks], slots]
    return lanes
