"""Memory of each pipeline rank by class: parameters, gradients, optimizer state, activations over the step, and the overhead
of the driver, the communication library and the allocator.

Parameters, gradients and optimizer state are counted per parameter: weights in the format of activations, gradients in their own
format, and Adam's fp32 master copy and two moments, each divided among the ranks that share it. Training in fp32 needs no master
copy. Activations, gathered parameters and the buffers of reductions are counted operation by operation: the bytes that each holds
from its start, and the bytes that each frees at its end. The framework gives the overhead (`MemoryOverhead`); limits.md lists the
memory that is not counted.

NCCL keeps buffers for every communicator: for each connection, channel and protocol. A ring or a chain of a tree connects a GPU
with two neighbours at any size of the group, a transfer with its other end. For each connection every channel holds two
allocations in pages of 2 MiB: one for receiving (a buffer for each of the three protocols), and one for sending. Source:
NVIDIA/nccl 2.30 (5067397c), computeBuffSizes in src/init.cc, p2pSendSetup and p2pRecvSetup in src/transport/p2p.cc; the resulting
allocations of 10 and of 2 MiB match NVIDIA/nccl#1685.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod

import numpy as np

from ..engine.timeline import Timeline
from ..plan.plan import Shards
from ..program.labels import Array, Labels
from ..program.program import Body, Collective, Compute, Program, Transfer
from ..program.slot import FORWARD, KINDS, Layout, slots_of
from ..units import KIB, MIB
from ..workload.framework import MemoryOverhead
from .gradients import at_the_end_bytes, copies_bytes

MOMENT_BYTES = 8
MASTER_BYTES = 4
FP32_BYTES = 4
LL_BYTES = 512 * KIB
"""Buffer of the low-latency protocol (LL): 8 lines of 16 bytes for each of 512 threads, in 8 steps."""
LL128_BYTES = 120 * 640 * 8 * 8
"""Buffer of the LL128 protocol (lines of 128 bytes): 120 words of 8 bytes for each of 640 threads, in 8 steps."""
PAGE_BYTES = 2 * MIB
"""Page size for allocations that other processes map (CUDA_IPC_MIN)."""
MOST_NEIGHBOURS = 2


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes that a GPU of one pipeline rank holds; `activations_bytes` is the peak over the step."""

    rank: int
    stages: tuple[int, ...]
    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    context_bytes: int
    """The CUDA context, and memory reserved by the driver."""
    nccl_bytes: int
    """Buffers of the communicators."""
    fragmentation_bytes: int
    """Memory that the allocator reserves and cannot use."""
    working_bytes: int = 0
    """Tensors in use at the peak, beside the activations that are kept."""

    @property
    def static_bytes(self) -> int:
        """All memory except activations."""
        state = self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes
        return state + self.working_bytes + self.overhead_bytes

    @property
    def overhead_bytes(self) -> int:
        """Memory besides tensors."""
        return self.context_bytes + self.nccl_bytes + self.fragmentation_bytes

    @property
    def total_bytes(self) -> int:
        return self.static_bytes + self.activations_bytes


@dataclass(frozen=True, slots=True)
class Terms:
    """The inputs of memory accounting besides the program."""

    parameter_bytes: int
    """Bytes of a parameter between the passes; four where the master copy is the only one."""
    gradient_bytes: int
    element_bytes: int
    shards: Shards
    expert_shards: int
    """Number of ranks that divide the optimizer state of an expert among them."""
    degrees: Mapping[str, int]
    """Degree of each axis of the mesh."""
    overhead: MemoryOverhead
    reserved_bytes: float = 0.0
    """Bytes of a GPU's memory that the driver reserves."""


def account(program: Program, terms: Terms, bodies: Sequence[Sequence[str]] | None = None) -> tuple[RankMemory, ...]:
    """The memory of every pipeline rank, for its largest role; with `bodies`, for roles that run these bodies instead."""
    usage = {name: _usage(body) for name, body in program.bodies.items()}
    state_bytes = MOMENT_BYTES + (MASTER_BYTES if terms.parameter_bytes < FP32_BYTES else 0)
    shards, result = terms.shards, []
    for rank in range(program.ranks):
        steps, stages = program.orders_of(rank), tuple(s for s, stage in enumerate(program.stages) if stage.rank == rank)
        forward = {step.stage: program.bodies[step.body].ops for step in reversed(steps[0]) if step.phase == FORWARD}
        ops = [op for stage in stages for op in forward[stage]]
        parameters, of_experts = (
            sum(op.parameters for op in ops if isinstance(op, Compute) and op.expert >= least) for least in (False, True)
        )
        optimized = -(-(parameters - of_experts) // shards.optimizer) + -(-of_experts // terms.expert_shards)
        own = [number for number, role in enumerate(program.roles) if role.pipeline == rank]
        orders = [[s.body for s in order] for order in steps] if bodies is None else [bodies[number] for number in own]
        held, made = -(-parameters // shards.gradients), {"gradient_bytes": terms.gradient_bytes, "element_bytes": terms.element_bytes}
        whole = terms.overhead.whole_gradients
        update = at_the_end_bytes(held, optimized, whole=whole, **made)
        activations, all_tensors = (max(_peak_bytes(usage[name][i] for name in order) for order in orders) for i in (0, 1))
        result.append(
            RankMemory(
                rank,
                stages,
                -(-parameters // shards.parameters) * terms.parameter_bytes + sum(op.kept_bytes for op in ops),
                held * terms.gradient_bytes + copies_bytes(held, whole=whole, **made),
                optimized * state_bytes,
                activations,
                ceil(terms.overhead.context_bytes + terms.reserved_bytes),
                _nccl_bytes(program, rank, terms),
                ceil(all_tensors * terms.overhead.fragmentation_fraction) + (min(all_tensors, update) if whole else 0),
                max(all_tensors, update) - activations,
            )
        )
    return tuple(result)


def bodies_of(layout: Layout, sample: Program) -> list[list[str]]:
    """The bodies that every role of a layout runs, slot by slot, taken from a program with a single microbatch."""
    splits, found = layout.shape.splits, []
    for role, order in zip(sample.roles, sample.orders, strict=True):
        named = {(s.phase, s.stage, s.microbatch % splits): s.body for s in order if s.phase in KINDS}
        slots = [slot for box in layout.orders[role.pipeline] for slot in slots_of(box)]
        found.append([named[slot.kind, layout.instance(slot.stage, slot.microbatch), slot.microbatch % splits] for slot in slots])
    return found


def _usage(body: Body) -> tuple[tuple[int, int], tuple[int, int]]:
    """The largest number of bytes that a body adds to the bytes in use while the body runs, and the number of added bytes after
    its end, which is negative if the body frees bytes that other bodies held; without and with the working sets of operations.
    """
    peak = most = alive = 0
    for op in body.ops:
        alive += op.held_bytes
        peak, most = max(peak, alive), max(most, alive + op.working_bytes)
        alive -= op.freed_bytes
    return (peak, alive), (most, alive)


def _peak_bytes(order: Iterable[tuple[int, int]]) -> int:
    """The peak bytes of consecutive bodies. Of a pair that runs together, the whole forward pass counts first."""
    peak = alive = 0
    for most_bytes, left_bytes in order:
        peak = max(peak, alive + most_bytes)
        alive += left_bytes
    return peak


def over_time(role: int, static_bytes: int, timeline: Timeline, labels: Labels, iterations: range) -> tuple[Array, Array]:
    """Times in nanoseconds, and the bytes that any rank of a role holds from each time on, in the given training steps.

    An operation holds bytes from its start, and frees bytes at its end. The forward pass of a pair that runs together holds all
    its bytes from the start of the pair, without use of the bytes that the backward pass frees meanwhile.
    """
    at = int(np.flatnonzero(timeline.expansion.skeleton.program == role)[0])
    tasks = timeline.expansion.tasks_of(at)
    start, end = timeline.times.start_ns[tasks], timeline.times.end_ns[tasks]
    paired = np.array([step.pair >= 0 and step.phase == FORWARD for step in labels.steps])[labels.step]
    first = np.full(len(labels.steps), np.iinfo(np.int64).max)
    np.minimum.at(first, labels.step[labels.is_compute], start[labels.is_compute])
    begins = np.where(paired, first[labels.step], start)
    change = np.array([[op.held_bytes, -op.freed_bytes] for op in labels.ops])[labels.op].T.ravel()
    ns, row = np.concatenate([begins, end]), np.tile(np.arange(len(tasks)), 2)
    order = np.lexsort((row, ns))
    order = order[change[order] != 0]
    alive = np.cumsum(change[order])
    counted = np.isin(labels.iteration[row[order]], iterations)
    return np.append(0, ns[order][counted]), np.append(static_bytes, static_bytes + alive[counted])


def _nccl_bytes(program: Program, rank: int, terms: Terms) -> int:
    """Bytes of the NCCL buffers of the GPU of a pipeline rank: for the neighbours in every group of its collectives, and once for
    each other end of its transfers.
    """
    used = dict.fromkeys(step.body for order in program.orders_of(rank) for step in order)
    ops = [op for name in used for op in program.bodies[name].ops]
    of_collectives = [program.communicators[op.communicator] for op in ops if isinstance(op, Collective)]
    connections = 0
    # groups of the same ranks share a communicator of the library
    groups = ((c.axes, c.pipeline and frozenset(c.pipeline), c.size, c.stride) for c in of_collectives)
    for axes, pipeline, size, _ in dict.fromkeys(groups):
        degrees = terms.degrees if pipeline is None else {**terms.degrees, "pp": len(pipeline)}
        connections += min(MOST_NEIGHBOURS, (size or prod(degrees[axis] for axis in axes)) - 1)
    ends = {end for op in ops if isinstance(op, Transfer) for end in program.communicators[op.communicator].pipeline or ()}
    received = terms.overhead.nccl_buffer_bytes + LL_BYTES + LL128_BYTES
    allocated = (ceil(received / PAGE_BYTES) + 1) * PAGE_BYTES
    return (connections + len(ends - {rank})) * terms.overhead.nccl_channels * allocated
