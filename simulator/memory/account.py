"""The memory of each pipeline rank by class: parameters, gradients, optimizer state, activations over the step, and what the
driver, the communication library and the allocator take besides.

Weights and gradients are counted per parameter: weights in the format of activations, gradients in theirs, and Adam's fp32 master
copy and two moments, which ZeRO-1 divides among the replicas. Training in fp32 needs no master copy. Activations are what
operators keep for their backward pass, from the start of F to the end of B (or W). What is taken besides is the framework's to
say (`MemoryOverhead`); what is not counted is in limits.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from ..engine.timeline import Timeline
from ..kernels import Part
from ..program.labels import Array, Labels
from ..program.op import Compute
from ..program.program import Program
from ..program.slot import Layout, slots_of
from ..workload.framework import MemoryOverhead
from .nccl import buffer_bytes

MOMENT_BYTES = 8
MASTER_BYTES = 4
FP32_BYTES = 4

Slots = Sequence[Sequence[tuple[str, int]]]
"""(F, B, I or W; instance of a stage) of every slot of each pipeline rank, in its order."""


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes that a GPU of one pipeline rank holds; `activations_bytes` at their peak."""

    rank: int
    stages: tuple[int, ...]
    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    context_bytes: int
    """The CUDA context, and what the driver keeps for itself."""
    nccl_bytes: int
    """Buffers of the communicators."""
    fragmentation_bytes: int
    """What the allocator reserves and cannot use."""

    @property
    def static_bytes(self) -> int:
        """All but activations."""
        state = self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes
        return state + self.overhead_bytes

    @property
    def overhead_bytes(self) -> int:
        """What is taken besides tensors."""
        return self.context_bytes + self.nccl_bytes + self.fragmentation_bytes

    @property
    def total_bytes(self) -> int:
        return self.static_bytes + self.activations_bytes


@dataclass(frozen=True, slots=True)
class Terms:
    """What memory depends on besides the program."""

    element_bytes: int
    gradient_bytes: int
    optimizer_shards: int
    degrees: Mapping[str, int]
    """Of the mesh, by axis."""
    overhead: MemoryOverhead
    reserved_bytes: float = 0.0
    """What the driver keeps of a GPU's memory."""


def account(program: Program, terms: Terms, slots: Slots | None = None) -> tuple[RankMemory, ...]:
    """The memory of every pipeline rank; with `slots`, of a rank that runs those instead of the program's own."""
    held = {stage: _per_stage(program, stage) for stage in range(len(program.stages))}
    state_bytes = MOMENT_BYTES + (MASTER_BYTES if terms.element_bytes < FP32_BYTES else 0)
    result = []
    for rank in range(program.ranks):
        stages = tuple(s for s, stage in enumerate(program.stages) if stage.rank == rank)
        parameters = sum(held[stage][0] for stage in stages)
        order = [(step.phase, step.stage) for step in program.orders[rank]] if slots is None else slots[rank]
        activations = max((alive for _, _, alive in _alive(order, held)), default=0)
        result.append(
            RankMemory(
                rank,
                stages,
                parameters * terms.element_bytes,
                parameters * terms.gradient_bytes,
                -(-parameters // terms.optimizer_shards) * state_bytes,
                activations,
                ceil(terms.overhead.context_bytes + terms.reserved_bytes),
                buffer_bytes(program, rank, terms.degrees, terms.overhead),
                ceil(activations * terms.overhead.fragmentation_fraction),
            )
        )
    return tuple(result)


def slots_in(layout: Layout) -> Slots:
    """The slots of a layout."""
    return [
        [(slot.kind, layout.instance(slot.stage, slot.microbatch)) for box in order for slot in slots_of(box)]
        for order in layout.orders
    ]


def _per_stage(program: Program, stage: int) -> tuple[int, int]:
    """Parameters of a stage on one rank, and the bytes that one microbatch keeps there."""
    step = next(s for s in program.orders[program.stages[stage].rank] if s.phase == "F" and s.stage == stage)
    ops = [op for op in program.bodies[step.body].ops if isinstance(op, Compute) and op.part is Part.FORWARD]
    return sum(op.parameters for op in ops), sum(op.held_bytes for op in ops)


def _alive(order: Iterable[tuple[str, int]], held: Mapping[int, tuple[int, int]]) -> Iterator[tuple[int, bool, int]]:
    """(index of a slot, whether at its start, bytes of activations from then on): up at each F, down at B or W."""
    alive = 0
    for i, (kind, stage) in enumerate(order):
        if kind == "F":
            alive += held[stage][1]
            yield i, True, alive
        elif kind in ("B", "W"):
            alive -= held[stage][1]
            yield i, False, alive


def activation_steps(program: Program, rank: int) -> list[tuple[int, bool, int]]:
    """(index of a step of the rank, whether at its start, bytes alive from then on): up at each F, down at B or W."""
    held = {number: _per_stage(program, number) for number, stage in enumerate(program.stages) if stage.rank == rank}
    return list(_alive([(step.phase, step.stage) for step in program.orders[rank]], held))


def over_time(
    program: Program, rank: int, static_bytes: int, timeline: Timeline, labels: Labels, iterations: range
) -> tuple[Array, Array]:
    """Nanoseconds and the bytes that any rank of this pipeline coordinate holds from then on, in some training steps."""
    at = int(np.flatnonzero(timeline.expansion.skeleton.program == rank)[0])
    tasks = timeline.expansion.tasks_of(at)
    start, end = timeline.times.start_ns[tasks], timeline.times.end_ns[tasks]
    ns, held = [0], [static_bytes]
    for step, begins, alive in activation_steps(program, rank):
        if labels.steps[step].iteration not in iterations:
            continue
        rows = np.flatnonzero((labels.step == step) & ~labels.is_launch)
        ns.append(int(start[rows].min()) if begins else int(end[rows].max()))
        held.append(static_bytes + alive)
    return np.array(ns), np.array(held)
