"""Memory of each pipeline rank by class: parameters, gradients, optimizer state, activations over the step, and the overhead
of the driver, the communication library and the allocator.

Parameters, gradients and optimizer state are counted per parameter: weights in the format of activations, gradients in their own
format, and the master copy and the moments of the optimizer, each divided among the ranks that share it. Training in fp32 needs
no master copy, and frozen parameters have neither gradients nor state. Memory that a rank holds throughout is a list of items
(items.py). Activations, gathered parameters and the buffers of reductions are counted operation by operation: the bytes that each
holds from its start, and the bytes that each frees at its end. The framework gives the overhead (`MemoryOverhead`); limits.md
lists the memory that is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..engine.timeline import Timeline
from ..errors import InvariantBroken
from ..frozen import replace
from ..kernels import Part
from ..program.holdings import Holding
from ..program.labels import Array, Labels
from ..program.layout import NUMBER_OF_KIND, Layout
from ..program.operations import COPY_OUT, Collective, Purpose
from ..program.program import Body, Program
from ..program.slot import FORWARD, KINDS
from .items import Item, Terms, end_of_step, host_bytes, nccl_items, passing_items, static_items

LAST_NS = np.iinfo(np.int64).max
"""A time later than all others."""


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes that a GPU of one pipeline rank holds; `activations_bytes` is the peak over the step."""

    rank: int
    stages: tuple[int, ...]
    items: tuple[Item, ...]
    """Memory that is held throughout the step."""
    activations_bytes: int
    host_bytes: int = 0
    """Memory of the host that the GPU uses for offloaded data."""

    @property
    def parameters_bytes(self) -> int:
        return self.bytes_of(Holding.PARAMETERS, Holding.GATHERED)

    @property
    def gradients_bytes(self) -> int:
        return self.bytes_of(Holding.GRADIENTS)

    @property
    def optimizer_bytes(self) -> int:
        return self.bytes_of(Holding.MASTER, Holding.MOMENTS)

    @property
    def context_bytes(self) -> int:
        """The CUDA context, and memory reserved by the driver."""
        return self.bytes_of(Holding.CONTEXT)

    @property
    def nccl_bytes(self) -> int:
        """Buffers of the communicators."""
        return self.bytes_of(Holding.NCCL)

    @property
    def fragmentation_bytes(self) -> int:
        """Memory that the allocator reserves and cannot use."""
        return self.bytes_of(Holding.FRAGMENTATION)

    @property
    def working_bytes(self) -> int:
        """Tensors in use at the peak, beside the activations that are kept; or at the end of the step, if these are larger."""
        return self.bytes_of(Holding.WORKSPACE)

    @property
    def static_bytes(self) -> int:
        """All memory except activations."""
        return self.bytes_of(*Holding)

    @property
    def overhead_bytes(self) -> int:
        """Memory besides tensors."""
        return self.context_bytes + self.nccl_bytes + self.fragmentation_bytes

    @property
    def total_bytes(self) -> int:
        return self.static_bytes + self.activations_bytes

    def bytes_of(self, *kinds: Holding) -> int:
        """Bytes of some classes that are held throughout."""
        return sum(item.size_bytes for item in self.items if item.kind in kinds)


class _Held(NamedTuple):
    """Memory that a rank holds regardless of the order in which it runs the bodies of its stages."""

    items: tuple[Item, ...]
    end_of_step: tuple[int, str]
    host_bytes: int


class Account:
    """The memory of the ranks of a program for any order in which they run its bodies. Results are cached."""

    def __init__(self, program: Program, terms: Terms) -> None:
        self.program, self.terms = program, terms
        self.number = {name: at for at, name in enumerate(program.bodies)}
        """The numbers of the bodies."""
        used, working = ([usage(body, working=also) for body in program.bodies.values()] for also in (False, True))
        on_host = [usage(_on_host(body)) for body in program.bodies.values()]
        self.uses = np.array([[*of, (0, 0)] for of in (used, working, on_host)], dtype=np.int64)
        """For tensors, for tensors with working sets, and for the host: by body, the largest number of bytes that it adds and the
        number that it leaves. The last entry is for no body, which adds nothing."""
        self.known: dict[tuple[str, ...], _Held] = {}
        self.throughout: dict[int, tuple[tuple[int, ...], _Held, tuple[Item, ...]]] = {}
        """Rank -> its stages, and the memory that it holds throughout for its stages and its communicators."""

    def memory(self, bodies: Sequence[Array] | None = None, ranks: Iterable[int] | None = None) -> tuple[RankMemory, ...]:
        """The memory of every pipeline rank, or of some, for its largest role; with `bodies`, for roles that run these bodies,
        given by their numbers, instead."""
        program, ranks = self.program, range(self.program.ranks) if ranks is None else list(ranks)
        own = {rank: [at for at, role in enumerate(program.roles) if role.pipeline == rank] for rank in ranks}
        roles = [at for rank in ranks for at in own[rank]]
        orders = [self._order(at) if bodies is None else bodies[at] for at in roles]
        peaks_bytes = dict(zip(roles, self._peaks_bytes(orders), strict=True))
        return tuple(self._of_rank(rank, np.max([peaks_bytes[at] for at in own[rank]], axis=0).tolist()) for rank in ranks)

    def _order(self, role: int) -> Array:
        """The numbers of the bodies that a role runs."""
        return np.array([self.number[step.body] for step in self.program.orders[role]], dtype=np.int64)

    def _peaks_bytes(self, orders: Sequence[Array]) -> Array:
        """The peak bytes of each order of consecutive bodies: of tensors, with working sets, and on the host. Of a pair that runs
        together, the whole forward pass counts first."""
        none, begins = np.array([-1]), np.cumsum([0, *(1 + len(order) for order in orders)])
        run = np.concatenate([part for order in orders for part in (none, order)])
        most_bytes, left_bytes = np.moveaxis(self.uses[:, run], 2, 0)
        before_bytes = np.cumsum(left_bytes, axis=1) - left_bytes
        before_bytes -= np.repeat(before_bytes[:, begins[:-1]], np.diff(begins), axis=1)
        return np.maximum.reduceat(before_bytes + most_bytes, begins[:-1], axis=1).T

    def _of_rank(self, rank: int, peaks_bytes: Sequence[int]) -> RankMemory:
        if rank not in self.throughout:
            self.throughout[rank] = self._held_throughout(rank)
        (stages, held, nccl), (activations, tensors, copied) = self.throughout[rank], peaks_bytes
        found = (*held.items, *nccl, *passing_items(activations, tensors, held.end_of_step, self.terms))
        items = tuple(item for item in found if item.size_bytes)
        return RankMemory(rank, stages, items, activations, held.host_bytes + copied)

    def _held_throughout(self, rank: int) -> tuple[tuple[int, ...], _Held, tuple[Item, ...]]:
        """The stages of a rank, and the memory that it holds throughout."""
        program = self.program
        stages = tuple(number for number, stage in enumerate(program.stages) if stage.rank == rank)
        forward = {step.stage: step.body for step in reversed(program.orders_of(rank)[0]) if step.phase == FORWARD}
        return stages, self._held(tuple(forward[stage] for stage in stages)), tuple(nccl_items(program, rank, self.terms))

    def _held(self, names: tuple[str, ...]) -> _Held:
        """The memory that a rank holds throughout for the stages with these forward bodies."""
        if names not in self.known:
            ops = [op for name in names for op in self.program.bodies[name].ops]
            self.known[names] = _Held(
                tuple(static_items(ops, self.terms)), end_of_step(ops, self.terms), host_bytes(ops, self.terms)
            )
        return self.known[names]


def bodies_of(layout: Layout, sample: Program) -> list[Array]:
    """The numbers of the bodies that every role of a layout runs, slot by slot, taken from a program with a single microbatch."""
    of, splits, directions, begins = layout.slots, layout.shape.splits, len(layout.placements), layout.begins
    number = {name: at for at, name in enumerate(sample.bodies)}
    named = np.full((len(sample.roles), len(KINDS), layout.stages * directions, splits), -1)
    for at, order in enumerate(sample.orders):
        for step in order:
            if step.phase in NUMBER_OF_KIND:
                named[at, NUMBER_OF_KIND[step.phase], step.stage, step.microbatch % splits] = number[step.body]
    parts = [np.arange(begins[role.pipeline], begins[role.pipeline + 1]) for role in sample.roles]
    lengths, row = [len(part) for part in parts], np.concatenate(parts)
    instance = of.microbatch * directions // layout.shape.microbatches * layout.stages + of.stage
    role = np.repeat(np.arange(len(parts)), lengths)
    bodies = named[role, of.kind[row], instance[row], of.microbatch[row] % splits]
    if (bodies < 0).any():
        raise InvariantBroken("the program of a single microbatch lacks a body of the layout")
    return np.split(bodies, np.cumsum(lengths[:-1]))


def usage(body: Body, *, working: bool = False) -> tuple[int, int]:
    """The largest number of bytes that a body adds to the bytes in use while the body runs, and the number of added bytes after
    its end, which is negative if the body frees bytes that other bodies held; if `working`, with the working sets of operations.
    """
    peak = alive = 0
    for op in body.ops:
        alive += op.held_bytes
        peak = max(peak, alive + (op.working_bytes if working else 0))
        alive -= op.freed_bytes
    return peak, alive


def _on_host(body: Body) -> Body:
    """The copies of activations of a body, with the bytes that they hold and free in the memory of the host."""
    copies = (op for op in body.ops if isinstance(op, Collective) and op.purpose is Purpose.OFFLOAD)
    held = ((op, op.payload_bytes if op.kind == COPY_OUT else 0) for op in copies if op.part is not Part.OPTIMIZER)
    return Body(tuple(replace(op, held_bytes=size, freed_bytes=op.payload_bytes - size) for op, size in held))


def over_time(
    role: int, static_bytes: Array, changes: Array, timeline: Timeline, labels: Labels, iterations: range
) -> tuple[Array, Array]:
    """Times in nanoseconds, and the bytes that any rank of a role holds from each time on, in the given training steps.

    `changes` are the bytes that each row takes at its start and adds at its end (negative if it frees bytes), for one class or
    several; `static_bytes` are held throughout. Bytes are taken and freed in the order of the account, since the host allocates
    in the order in which it launches and does not wait for the GPU: what runs beside compute takes and frees its bytes between
    the kernels before and after it in that order. Of a pair that runs together, the whole forward pass counts at the start of
    the pair.
    """
    at = int(np.flatnonzero(timeline.expansion.skeleton.program == role)[0])
    times = timeline.class_times(at)
    order, begins = _launch_order(labels, times.start_ns)
    ns = np.stack([np.where(begins < LAST_NS, begins, times_ns) for times_ns in (times.start_ns, times.end_ns)], axis=1)[order]
    on_compute = (labels.is_compute | labels.is_wait)[order, None]
    latest = np.minimum.accumulate(np.where(on_compute, ns, LAST_NS).ravel()[::-1])[::-1]
    ns, change = np.maximum.accumulate(np.minimum(ns.ravel(), latest)), changes[order].reshape(2 * len(order), -1)
    alive, counted = np.cumsum(change, axis=0), np.repeat(np.isin(labels.iteration[order], iterations), 2) & change.any(axis=1)
    return np.append(0, ns[counted]), np.vstack([static_bytes, static_bytes + alive[counted]])


def _launch_order(labels: Labels, start_ns: Array) -> tuple[Array, Array]:
    """The rows in the order of the account, where the forward pass of a pair is before the backward pass; and for each row the
    start of its pair if it belongs to the forward pass of one, or else `LAST_NS`."""
    of_pair: dict[tuple[int, int], int] = {}
    keys = ((one.iteration, one.pair) for one in labels.steps)
    pair = np.array([of_pair.setdefault(key, len(of_pair)) if key[1] >= 0 else -1 for key in keys])[labels.step]
    rows = np.arange(len(pair))
    first, begins = (np.full(len(of_pair) + 1, LAST_NS) for _ in range(2))
    np.minimum.at(first, pair, rows)
    np.minimum.at(begins, pair, np.where(labels.is_compute, start_ns, LAST_NS))
    forward = labels.in_phase(FORWARD)
    order = np.lexsort((rows, ~forward, np.where(pair >= 0, first[pair], rows)))
    return order, np.where((pair >= 0) & forward, begins[pair], LAST_NS)


def all_changes(labels: Labels) -> Array:
    """The bytes of all classes together that each row takes at its start and adds at its end: an array of (rows, 2, 1)."""
    changes: Array = np.array([[[op.held_bytes], [-op.freed_bytes]] for op in labels.ops])[labels.op]
    return changes
