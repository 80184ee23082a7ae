"""Skeleton: compact form of a task graph, with the program of each rank, its communicators, and the links they cross.

The program of a rank (`Template`) names communicators by slot, never by rank; the tasks of a communicator are FIFO. So a program
is written once per role, and the symmetry of a cluster shows in a graph of ranks, communicators and links. `expand` makes the
tasks of any skeleton: the skeleton of the whole cluster, or the quotient from `fold`, which is a skeleton too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from ..errors import InvariantBroken
from .overlap import overlapping
from .task import Array, Csr, Profile, Sharing, TaskGraph, distinct, offsets
from .template import Template


@dataclass(frozen=True, eq=False, slots=True)
class Tariff:
    """The cost of each charge on each kind of communicator (kinds x charges)."""

    latency_ns: Array
    work: Array
    cap: Array
    pattern: Array
    """The footprint of the communicator that the bytes take, by its number within the communicator."""
    tail_ns: Array
    """Time from the end of the task, when its streams are free, until the successors of the task may start."""
    cap_profile: Array
    """The index, in the profiles of the skeleton, of a cap that changes with time, or -1."""
    cores: Array
    """The part of the processors of a rank that the task takes while it is in progress, in units of 2^-16."""
    memory: Array
    """The part of the bandwidth of a rank's memory that the task takes, likewise."""


@dataclass(frozen=True, eq=False)
class Skeleton:
    """Ranks, communicators and links, with all properties that distinguish ranks, communicators and links."""

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
    """Number of footprints per communicator; footprint = communicator * patterns + pattern."""
    footprints: Csr
    footprint_weight: Array
    link_profile: Array
    single_weight: Array | None = None
    """For each entry of `footprints`, the weight of a single footprint of those folded into the entry; None without folding."""
    variant: Array | None = None
    """Rank -> the row of its durations, in templates that have several; None for the first of every rank."""

    @property
    def ranks(self) -> int:
        return len(self.program)

    @cached_property
    def variants(self) -> Array:
        """Rank -> the row of its durations, in templates that have several."""
        return np.zeros_like(self.program) if self.variant is None else self.variant

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

    @cached_property
    def bases(self) -> tuple[Array, Array]:
        """Rank -> the first task of its own work, and communicator -> its first task, in the order of `expand`."""
        own = offsets(np.array([len(t.own) for t in self.templates], dtype=np.int64)[self.program])
        return own, own[-1] + offsets(turns(self))


@dataclass(frozen=True, eq=False)
class Expansion:
    """The task graph of a skeleton, folded or not, and the mapping from ranks and rows of templates to tasks and back."""

    graph: TaskGraph
    skeleton: Skeleton
    own_base: Array
    turn_base: Array
    stream_rank: Array
    """Stream -> the first rank of the stream."""
    stream_lane: Array
    """Stream -> the lane of that rank's template."""
    class_of: Array
    """Rank before folding -> the rank of the skeleton with the same behaviour; without folding the rank itself."""
    tasks_unfolded: int
    """Number of tasks of the whole cluster: the own tasks of each rank, and each task of a communicator once."""

    def tasks_of(self, rank: int) -> Array:
        """The task of each row of a rank's template; where rows are merged, that of each row of the whole template."""
        merged, tasks = self.template_of(rank).merged, self.begun_by(rank)[1]
        return tasks if merged is None else tasks[merged.of_row]

    def begun_by(self, rank: int) -> tuple[Array, Array]:
        """The rows of a rank's template that begin a task (all rows except those merged into others), and these tasks."""
        template = self.template_of(rank)
        tasks = _tasks(self.skeleton, template, np.array([rank]), self.own_base, self.turn_base)[0]
        return (np.arange(len(template)) if template.merged is None else template.merged.heads), tasks

    def template_of(self, rank: int) -> Template:
        """The template of a rank, with merged rows where there are some."""
        return self.skeleton.templates[int(self.skeleton.program[rank])]

    @cached_property
    def origin(self) -> tuple[Array, Array]:
        """For each task, the lowest participating rank and the row of that rank's template."""
        rank_of, row_of = np.full(len(self.graph), -1), np.full(len(self.graph), -1)
        for rank in range(self.skeleton.ranks - 1, -1, -1):
            rows, tasks = self.begun_by(rank)
            rank_of[tasks], row_of[tasks] = rank, rows
        return rank_of, row_of


_NONE = np.zeros(0, dtype=np.int64)


def _tasks(skeleton: Skeleton, template: Template, ranks: Array, own_base: Array, turn_base: Array) -> Array:
    """The task of every row (columns) of every given rank (rows); all given ranks run `template`."""
    communicators = skeleton.slots[:, ranks].T[:, np.maximum(template.slot, 0)]
    base = np.where(template.slot < 0, own_base[ranks][:, None], turn_base[communicators])
    tasks: Array = base + template.turn
    return tasks


def task_count(skeleton: Skeleton) -> int:
    """The number of tasks that `expand` makes."""
    return int(skeleton.bases[1][-1])


def expand(skeleton: Skeleton, class_of: Array | None = None, tasks_unfolded: int | None = None) -> Expansion:
    """The task graph of a skeleton: own work first, rank by rank, then the tasks of each communicator in turn.

    For a folded skeleton, `class_of` gives the class of every rank, and `tasks_unfolded` the number of tasks of all ranks.
    """
    of_program = [np.flatnonzero(skeleton.program == p) for p in range(len(skeleton.templates))]
    own_base, turn_base = skeleton.bases
    tasks_of = [
        _tasks(skeleton, template, ranks, own_base, turn_base)
        for template, ranks in zip(skeleton.templates, of_program, strict=True)
    ]
    turns, n = np.diff(turn_base), int(turn_base[-1])
    solo_ns, tail_ns, work, cap, charge = (np.zeros(n, dtype=np.int64) for _ in range(5))
    speed, footprint, changing = (np.full(n, -1) for _ in range(3))
    after, before = [_NONE], [_NONE]
    for template, ranks, tasks in zip(skeleton.templates, of_program, tasks_of, strict=True):
        if not tasks.size:
            continue
        lasting_ns = template.solo_ns if template.solo_ns.ndim == 1 else template.solo_ns[skeleton.variants[ranks]]
        solo_ns[tasks[:, template.own]] = lasting_ns[..., template.own]
        speed[tasks[:, template.own]] = ranks[:, None]
        others = np.flatnonzero(template.slot >= 0)
        charge[tasks[:, others]] = template.charge[others]
        after.append(tasks[:, template.preds.row_of].ravel())
        before.append(tasks[:, template.preds.idx].ravel())
    communicator = np.repeat(np.arange(skeleton.communicators), turns)
    first = int(own_base[-1])
    tariff, at = skeleton.tariff, (skeleton.kind[communicator], charge[first:])
    solo_ns[first:], tail_ns[first:] = tariff.latency_ns[at], tariff.tail_ns[at]
    work[first:], cap[first:] = tariff.work[at], tariff.cap[at]
    changing[first:] = np.where(work[first:] > 0, tariff.cap_profile[at], -1)
    footprint[first:] = np.where(work[first:] > 0, communicator * skeleton.patterns + tariff.pattern[at], -1)
    streams, stream_rank, stream_lane = _streams(skeleton, of_program, tasks_of, turn_base)
    graph = TaskGraph(
        solo_ns,
        tail_ns,
        speed,
        footprint,
        work,
        cap,
        streams,
        Csr.from_pairs(np.concatenate(after), np.concatenate(before), n),
        skeleton.footprints,
        skeleton.footprint_weight,
        skeleton.link_profile,
        skeleton.speed,
        skeleton.profiles,
        skeleton.single_weight,
        changing if (changing >= 0).any() else None,
        _sharing(skeleton, of_program, tasks_of, charge, solo_ns),
    )
    class_of = np.arange(skeleton.ranks) if class_of is None else class_of
    return Expansion(graph, skeleton, own_base, turn_base, stream_rank, stream_lane, class_of, tasks_unfolded or n)


def _sharing(skeleton: Skeleton, of_program: list[Array], tasks_of: list[Array], charge: Array, solo_ns: Array) -> Sharing | None:
    """The tasks that slow others on the same rank, and the tasks that they slow; None if no task can ever slow another."""
    tariff, slots = skeleton.tariff, skeleton.slots
    taken = np.stack([tariff.cores, tariff.memory], axis=2)
    charges = np.any(taken > 0, axis=0)
    resource, group = np.full(len(charge), -1), np.full(len(charge), -1)
    groups, ranks_of_groups = [_NONE], [_NONE]
    for template, ranks, tasks in zip(skeleton.templates, of_program, tasks_of, strict=True):
        if not len(ranks) or template.resource is None:
            continue
        takes = charges[template.charge] & (template.slot >= 0)[:, None]
        slowed, slowing = overlapping(
            template.preds, template.lanes, np.where(template.longest_ns > 0, template.resource, -1), takes
        )
        resource[tasks[:, slowed]] = template.resource[slowed]
        group[tasks[:, slowing]] = slots[template.slot[slowing]][:, ranks].T
        for slot in distinct(template.slot[slowing]).tolist():
            groups.append(slots[slot, ranks])
            ranks_of_groups.append(ranks)
    resource[solo_ns == 0] = -1
    taking = np.flatnonzero(group >= 0)
    takes = np.zeros((len(charge), 2), dtype=np.int64)
    takes[taking] = taken[skeleton.kind[group[taking]], charge[taking]]
    group[~takes.any(axis=1)] = -1
    if not takes.any():
        return None
    members = Csr.from_pairs(np.concatenate(groups), np.concatenate(ranks_of_groups), skeleton.communicators)
    return Sharing(resource, takes, group, members)


def turns(skeleton: Skeleton) -> Array:
    """The number of tasks of each communicator. All members of a communicator must take the same turns at the same charges."""
    charges = [[t.charge[t.slot == s] for s in range(len(skeleton.slots))] for t in skeleton.templates]
    length_of = np.array([[len(of_slot) for of_slot in of_template] for of_template in charges], dtype=np.int64)
    without = ((length_of[skeleton.program].T > 0) & (skeleton.slots < 0)).nonzero()
    if len(without[0]):
        raise InvariantBroken(f"rank {without[1][0]} has no communicator in slot {without[0][0]}, which its program uses")
    number: dict[bytes, int] = {}
    keys = [[of_slot.astype(np.int64).tobytes() for of_slot in of_template] for of_template in charges]
    sequence_of = np.array([[number.setdefault(key, len(number)) for key in row] for row in keys], dtype=np.int64)
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


def _streams(skeleton: Skeleton, of_program: list[Array], tasks_of: list[Array], turn_base: Array) -> tuple[Csr, Array, Array]:
    """One stream per rank and lane, and one stream per communicator whose lanes hold no other tasks at any member.

    A lane of a rank often holds the tasks of one communicator only. Each member then has a FIFO queue with the same tasks in the
    same order, and all these queues impose the same order. If this holds for every member (the communicator is *private*), one
    stream replaces the queues, so that a gang of a thousand ranks occupies one stream and not a thousand. The stream is counted
    as the lane of the first member. A lane with own work or with tasks of several communicators keeps its queue, and a
    communicator with such a lane at any member keeps all its queues, because these queues order tasks of different kinds.
    """
    communicator, slot, rank = skeleton.members
    private_slot = np.array([template.private(len(skeleton.slots)) for template in skeleton.templates], dtype=bool)
    private = np.ones(skeleton.communicators, dtype=bool)
    private[communicator[~private_slot[skeleton.program[rank], slot]]] = False
    tasks_in, ranks_in, lanes_in, lengths = [], [], [], []
    for template, ranks, tasks in zip(skeleton.templates, of_program, tasks_of, strict=True):
        if not tasks.size:
            continue
        rows, lane, count = template.lanes.idx, template.lanes.row_of, template.lanes.counts
        used = np.flatnonzero(count)
        kept = np.zeros((len(ranks), len(count)), dtype=bool)
        kept[:, used] = True
        slots = template.slot[rows[template.lanes.ptr[used]]]
        alike = (slots >= 0) & ~template.mixed[used]
        kept[:, used[alike]] = ~private[skeleton.slots[:, ranks].T[:, slots[alike]]]
        at, lane_at = np.nonzero(kept)
        tasks_in.append(tasks[:, rows][kept[:, lane]])
        ranks_in.append(ranks[at])
        lanes_in.append(lane_at)
        lengths.append(count[lane_at])
    counts = np.diff(turn_base)
    with_stream = np.flatnonzero(private & (counts > 0))
    tasks_in.append(turn_base[0] + np.flatnonzero(np.repeat(private, counts)))
    lengths.append(counts[with_stream])
    first = np.searchsorted(communicator, with_stream)
    ranks_in.append(rank[first])
    lane_of = np.zeros((len(skeleton.templates), len(skeleton.slots)), dtype=np.int64)  # the first lane on which each slot stands
    for p, template in enumerate(skeleton.templates):
        on = template.slot[template.lanes.idx]
        lane_of[p, on[on >= 0][::-1]] = template.lanes.row_of[on >= 0][::-1]
    lanes_in.append(lane_of[skeleton.program[rank[first]], slot[first]])
    rank_of_stream, lane_of_stream = np.concatenate(ranks_in), np.concatenate(lanes_in)
    return Csr(offsets(np.concatenate(lengths)), np.concatenate(tasks_in)), rank_of_stream, lane_of_stream


def join_skeletons(parts: Sequence[Skeleton]) -> Skeleton:
    """One skeleton from several on the same links; the parts are independent of each other except for shared links."""
    links = parts[0].link_profile
    for part in parts[1:]:
        if [part.profiles[i] for i in part.link_profile] != [parts[0].profiles[i] for i in links]:
            raise InvariantBroken("joined skeletons must have the same links")
    ranks, groups, programs, profiles = (
        offsets(np.array(lengths))[:-1]
        for lengths in (
            [p.ranks for p in parts],
            [p.communicators for p in parts],
            [len(p.templates) for p in parts],
            [len(p.profiles) for p in parts],
        )
    )
    kinds = offsets(np.array([len(p.tariff.work) for p in parts]))[:-1]
    patterns = max(p.patterns for p in parts)
    footprints, weights = zip(*(_footprints(p, patterns) for p in parts), strict=True)
    return Skeleton(
        tuple(template for part in parts for template in part.templates),
        _tariff([p.tariff for p in parts], profiles.tolist()),
        tuple(profile for part in parts for profile in part.profiles),
        np.concatenate([p.program + at for p, at in zip(parts, programs, strict=True)]),
        np.concatenate([p.speed + at for p, at in zip(parts, profiles, strict=True)]),
        _slots(parts, groups, int(sum(p.ranks for p in parts)), ranks),
        np.concatenate([p.kind + at for p, at in zip(parts, kinds, strict=True)]),
        patterns,
        Csr(offsets(np.concatenate([np.diff(csr.ptr) for csr in footprints])), np.concatenate([csr.idx for csr in footprints])),
        np.concatenate(weights),
        links,
        variant=np.concatenate([p.variants for p in parts]),
    )


def _footprints(part: Skeleton, patterns: int) -> tuple[Csr, Array]:
    """The footprints of a part, renumbered for `patterns` footprints per communicator, the maximum over all parts."""
    row = part.footprints.row_of
    wider = row // part.patterns * patterns + row % part.patterns
    return Csr.from_pairs(wider, part.footprints.idx, part.communicators * patterns), part.footprint_weight


def _tariff(tariffs: Sequence[Tariff], profiles: Sequence[int]) -> Tariff:
    """The tariffs with kinds as stacked rows and shared columns of charges. The profiles of each part begin at `profiles`."""
    width = max(t.work.shape[1] for t in tariffs)
    moved = [np.where(t.cap_profile >= 0, t.cap_profile + at, -1) for t, at in zip(tariffs, profiles, strict=True)]
    tariffs = [replace(t, cap_profile=profile) for t, profile in zip(tariffs, moved, strict=True)]
    columns = []
    for name in (column.name for column in fields(Tariff)):
        tables = [getattr(t, name) for t in tariffs]
        columns.append(np.concatenate([np.pad(t, ((0, 0), (0, width - t.shape[1]))) for t in tables]))
    return Tariff(*columns)


def _slots(parts: Sequence[Skeleton], groups: Array, ranks: int, first: Array) -> Array:
    slots = np.full((max(len(p.slots) for p in parts), ranks), -1, dtype=np.int64)
    for part, group, at in zip(parts, groups.tolist(), first.tolist(), strict=True):
        block = slots[: len(part.slots), at : at + part.ranks]
        block[...] = np.where(part.slots >= 0, part.slots + group, -1)
    return slots
