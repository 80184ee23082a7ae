"""Bytes of NCCL's buffers on a GPU: those of every communicator, for each connection, channel and protocol.

A ring or a chain of a tree connects a GPU with two neighbours whatever the size of the group, a transfer with its other end. For
each connection every channel holds two allocations in pages of 2 MiB: what is received through (a buffer for each of the three
protocols), and what is sent through. Read in NVIDIA/nccl 2.30 (5067397c): computeBuffSizes in src/init.cc, p2pSendSetup and
p2pRecvSetup in src/transport/p2p.cc; the allocations of 10 and of 2 MiB that follow are those in NVIDIA/nccl#1685.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod

from ..program.op import Collective, Transfer
from ..program.program import Communicator, Program
from ..units import KIB, MIB
from ..workload.framework import MemoryOverhead

LL_BYTES = 512 * KIB
"""Low latency: 8 lines of 16 bytes for each of 512 threads, in 8 steps."""
LL128_BYTES = 120 * 640 * 8 * 8
"""Low latency in lines of 128 bytes: 120 words of 8 bytes for each of 640 threads, in 8 steps."""
PAGE_BYTES = 2 * MIB
"""What memory that other processes map is allocated in (CUDA_IPC_MIN)."""
MOST_NEIGHBOURS = 2


def buffer_bytes(program: Program, rank: int, degrees: Mapping[str, int], overhead: MemoryOverhead) -> int:
    """Bytes of the buffers of all communicators that a pipeline rank uses, on a mesh of these degrees."""
    received = overhead.nccl_buffer_bytes + LL_BYTES + LL128_BYTES
    connection = (ceil(received / PAGE_BYTES) + 1) * PAGE_BYTES
    return connections(program, rank, degrees) * overhead.nccl_channels * connection


def connections(program: Program, rank: int, degrees: Mapping[str, int]) -> int:
    """Neighbours of a pipeline rank's GPU, counted in every group of its collectives and once for all of its transfers."""
    used = dict.fromkeys(step.body for order in program.orders_of(rank) for step in order)
    ops = [op for name in used for op in program.bodies[name].ops]
    of_collectives = [program.communicators[op.communicator] for op in ops if isinstance(op, Collective)]
    groups = dict.fromkeys(_ranks_of(communicator) for communicator in of_collectives)
    in_groups = sum(min(MOST_NEIGHBOURS, _members(*group, degrees) - 1) for group in groups)
    ends = {end for op in ops if isinstance(op, Transfer) for end in program.communicators[op.communicator].pipeline or ()}
    return in_groups + len(ends - {rank})


def _ranks_of(communicator: Communicator) -> tuple[tuple[str, ...], frozenset[int] | None]:
    """What says which ranks a group has: groups of the same ranks share a communicator."""
    return communicator.axes, None if communicator.pipeline is None else frozenset(communicator.pipeline)


def _members(axes: tuple[str, ...], pipeline: frozenset[int] | None, degrees: Mapping[str, int]) -> int:
    """Ranks of a group."""
    if pipeline is None:
        return prod(degrees[axis] for axis in axes)
    return len(pipeline) * prod(degrees[axis] for axis in axes if axis != "pp")
