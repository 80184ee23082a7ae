"""The memory of each pipeline rank by class: parameters, gradients, optimizer state, and activations over the step.

Weights and gradients are counted per parameter: weights in the format of activations, gradients in theirs, and Adam's fp32 master
copy and two moments, which ZeRO-1 divides among the replicas. Training in fp32 needs no master copy. Activations are what
operators keep for their backward pass, from the start of F to the end of B (or W); what is not counted is in limits.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..engine.timeline import Timeline
from ..kernels import Part
from ..program.labels import Array, Labels
from ..program.op import Compute
from ..program.program import Program

MOMENT_BYTES = 8
MASTER_BYTES = 4
FP32_BYTES = 4


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes that one pipeline rank holds; `activations_bytes` at their peak."""

    rank: int
    stages: tuple[int, ...]
    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int

    @property
    def static_bytes(self) -> int:
        return self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes

    @property
    def total_bytes(self) -> int:
        return self.static_bytes + self.activations_bytes


def account(
    program: Program, *, element_bytes: int, optimizer_shards: int, gradient_bytes: int = FP32_BYTES
) -> tuple[RankMemory, ...]:
    """The memory of every pipeline rank. The peak of activations follows from the order of the rank's slots alone."""
    held = [_per_stage(program, stage) for stage in range(len(program.stages))]
    state_bytes = MOMENT_BYTES + (MASTER_BYTES if element_bytes < FP32_BYTES else 0)
    result = []
    for rank in range(program.ranks):
        stages = tuple(s for s, stage in enumerate(program.stages) if stage.rank == rank)
        parameters = sum(held[stage][0] for stage in stages)
        curve = activation_steps(program, rank)
        result.append(
            RankMemory(
                rank,
                stages,
                parameters * element_bytes,
                parameters * gradient_bytes,
                -(-parameters // optimizer_shards) * state_bytes,
                max((alive for _, _, alive in curve), default=0),
            )
        )
    return tuple(result)


def _per_stage(program: Program, stage: int) -> tuple[int, int]:
    """Parameters of a stage on one rank, and the bytes that one microbatch keeps there."""
    step = next(s for s in program.orders[program.stages[stage].rank] if s.phase == "F" and s.stage == stage)
    ops = [op for op in program.bodies[step.body].ops if isinstance(op, Compute) and op.part is Part.FORWARD]
    return sum(op.parameters for op in ops), sum(op.saved_bytes for op in ops)


def activation_steps(program: Program, rank: int) -> list[tuple[int, bool, int]]:
    """(index of a step of the rank, whether at its start, bytes alive from then on): up at each F, down at B or W."""
    kept = {stage: _per_stage(program, stage)[1] for stage, s in enumerate(program.stages) if s.rank == rank}
    alive, curve = 0, []
    for i, step in enumerate(program.orders[rank]):
        if step.phase == "F":
            alive += kept[step.stage]
            curve.append((i, True, alive))
        elif step.phase in ("B", "W"):
            alive -= kept[step.stage]
            curve.append((i, False, alive))
    return curve


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
