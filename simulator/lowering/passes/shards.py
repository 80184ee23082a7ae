"""Sharded state: after a reduction every rank has the sum of its own share of the gradients, and updates its own share.

All-reduces of gradients become reduce-scatters. Where ranks divide the state in groups, an all-reduce of the shares across the
groups follows each reduce-scatter. ZeRO-2, ZeRO-3 and FSDP copy the gradients of a bucket into the buffer of the collective, in
the format of the reduction. One reduce-scatter is in flight: the next copy waits for the previous reduce-scatter, and the next
pass waits for all reductions of this one. With a pipeline FSDP reduces the buckets one after the other when the last backward
pass of a stage has ended, in the order of the forward pass.

Where ranks own whole tensors, all-reduces stay, and only the update is divided (passes/zero1.py). DeepSpeed all-reduces the
gradients of ZeRO-1 and ZeRO-2 in place of a reduce-scatter, and each rank takes its share of the sum (`all_reduced`).

Experts are divided among the ranks of a group that hold copies of them, as by the `efsdp` axis of torchtitan (b5bcd76c,
distributed/parallel_dims.py) and the expert-data-parallel group of DeepSpeed (edaa7221, runtime/zero/stage_1_and_2.py).

References: Rajbhandari et al., arXiv 1910.02054; PyTorch 002a76fb, _fsdp_param_group.py (post_backward), _fsdp_collectives.py
(foreach_reduce) and distributed/pipelining/stage.py (backward_maybe_with_nosync); DeepSpeed 17b3b557, coalesced_collectives.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapreplace
from itertools import zip_longest

from ...frozen import replace
from ...kernels import Part, Rowwise
from ...plan.mesh import REPLICAS
from ...plan.plan import WITH_MASTER_COPY, Sharding
from ...program.holdings import Buffer, Holding
from ...program.operations import COMPUTE, AnyOp, Collective, Communicator, Compute, Purpose
from ...program.program import Body, Bucket, Key, Program, Step, bucket_of, first_forward
from ...program.slot import KINDS
from .data_parallel import FP32_BYTES, LOCAL_NORM, OPTIMIZER, REDUCED, Replicas, parameters_by_stage, replica_count

ACROSS = Communicator("dp replicas", "dp", (REPLICAS,))
"""Ranks with the same share of the state, in all shard groups."""


@dataclass(frozen=True, slots=True)
class ShardedState:
    """The values of plan, job and framework that the passes of sharded state need."""

    sharding: Sharding
    """The sharding in full, as `Plan.full_sharding` gives it."""
    dp: int
    element_bytes: int
    reduced_bytes: int
    """Bytes of a gradient in its reduction."""
    overlaps: bool
    """Whether collectives of forward and backward passes run beside compute."""
    pipelined: bool
    gathers_beside_forward: bool = True
    """Whether parameters gathered after the optimizer are gathered beside the next forward pass."""
    tied: bool = False
    """Whether embedding and head share a table on one rank."""
    edp: int = 1
    """Number of copies of every expert in a shard group."""
    master_bytes: int = FP32_BYTES
    """Bytes of a parameter in the share that FSDP keeps between passes."""
    whole_tensors: bool = False
    """Whether a rank owns whole tensors, and broadcasts them when it has updated them."""
    weights_beside_master: bool = False
    """Whether a rank also keeps parameters in the training dtype, where PyTorch's FSDP keeps only the master copy."""
    in_place_gathers: bool = False
    """Whether passes use gathered parameters where the gather has written them, without a copy."""
    narrow_bytes: float = 0.0
    """Bytes of an element of weights that are gathered in the narrow format of the job; 0 where they are gathered in 16 bits."""

    def gathered_bytes(self, parameters: int, narrow: int) -> int:
        """Bytes of gathered parameters, of which some are weights in the narrow format of the job."""
        spared_bytes = narrow * (self.element_bytes - self.narrow_bytes) if self.narrow_bytes else 0
        return parameters * self.element_bytes - int(spared_bytes)

    @property
    def ranks(self) -> int:
        """Number of data-parallel ranks of a shard group."""
        return min(self.sharding.group or self.dp, self.dp)

    @property
    def replicas(self) -> Replicas:
        """Number of ranks that divide the state of a bucket."""
        return Replicas(self.ranks, self.edp)

    @property
    def keeps_master(self) -> bool:
        """Whether the only copy of parameters between passes is the master copy, also for parameters that a rank holds alone."""
        return self.sharding.kind in WITH_MASTER_COPY and max(self.replicas) > 1 and not self.weights_beside_master

    @property
    def copies(self) -> bool:
        """Whether gradients are copied into the buffers of their collectives."""
        return self.sharding.gathers or self.sharding.reduce == "each"

    def stays(self, bucket: Bucket) -> bool:
        """Whether the forward pass keeps the gathered parameters of a bucket for the backward pass."""
        layer, name = bucket
        return not self.sharding.reshard or name == "head" or (self.tied and layer < 0)

    def group(self, replicas: Communicator) -> Communicator:
        """The part of a group of replicas that divides the state."""
        if self.ranks == self.dp:
            return replicas
        return replace(replicas, name=f"{replicas.name} shards", axes=tuple(axis for axis in replicas.axes if axis != REPLICAS))

    def shards(self, replicas: Communicator) -> int:
        """Number of ranks that divide the state of which `replicas` hold copies."""
        return (self.edp if "edp" in replicas.axes else self.ranks) * len(replicas.pipeline or (0,))


def sharded(program: Program, state: ShardedState) -> Program:
    """The program in which replicas divide gradients and optimizer; the gather of updated parameters is not yet included."""
    if state.ranks < state.dp:
        reducing = (op for body in program.bodies.values() for op in _reductions(body))
        replicas = [program.communicators[name] for name in dict.fromkeys(op.communicator for op in reducing)]
        groups = [state.group(of) for of in replicas if state.whole_tensors or state.shards(of) > 1]
        program = program.with_communicators(*groups, *(() if state.whole_tensors else (ACROSS,)))
    if not state.whole_tensors:
        program = program.with_bodies(lambda body: _reduced(body, program, state))
    bodies, orders = dict(program.bodies), []
    for rank, steps in enumerate(program.orders):
        for name in (step.body for step in steps if step.phase in (LOCAL_NORM, OPTIMIZER)):
            bodies[name] = _shared_update(program, rank, bodies[name], state)
        orders.append(_finishing(steps, bodies) if state.sharding.reduce == "each" else steps)
    return replace(program, bodies=bodies, orders=tuple(orders))


def all_reduced(program: Program) -> Program:
    """The program in which an all-reduce of as many bytes takes the place of every reduce-scatter of gradients."""

    def changed(body: Body) -> Iterator[AnyOp]:
        for op in body.ops:
            if isinstance(op, Collective) and op.purpose is Purpose.REDUCE_GRADIENTS and op.kind == "reduce_scatter":
                op = replace(op, kind="all_reduce")
            yield op

    return program.with_bodies(changed)


def tensors_of_owners(program: Program, rank: int, state: ShardedState) -> list[int]:
    """Number of parameters of each owner among the replicas of a rank, if owners have whole tensors; without owners of none."""
    order = program.orders[rank]
    ops = [op for at in first_forward(order).values() for op in program.bodies[order[at].body].ops]
    owned = [0] * (state.ranks if state.ranks > 1 else 0)
    for parameters in sorted((op.parameters for op in ops if isinstance(op, Compute) and not op.frozen), reverse=True):
        if parameters and owned:
            heapreplace(owned, owned[0] + parameters)
    return [parameters for parameters in sorted(owned, reverse=True) if parameters]


def _reductions(body: Body) -> list[Collective]:
    """The reductions of gradients in a body."""
    return [op for op in body.ops if isinstance(op, Collective) and op.purpose is Purpose.REDUCE_GRADIENTS]


def _shared_update(program: Program, rank: int, body: Body, state: ShardedState) -> Body:
    """The kernels of the optimizer over the share of one rank."""
    owned: dict[int, int] = {}
    for stage, of in parameters_by_stage(program, rank).items():
        for bucket, parameters in of.items():
            shards = replica_count(program, stage, state.replicas, bucket)
            owned[shards] = owned.get(shards, 0) + parameters
    # buckets with equally many shards are divided together, and the remainder is rounded up once
    share = sum(-(-parameters // shards) for shards, parameters in owned.items())
    share = max(tensors_of_owners(program, rank, state), default=share) if state.whole_tensors else share
    if not share:
        return body
    kernels = [(op, op.kernel) for op in body.ops if isinstance(op, Compute)]
    return Body(tuple(replace(op, kernel=replace(kernel, rows=share)) for op, kernel in kernels if isinstance(kernel, Rowwise)))


def _finishing(steps: tuple[Step, ...], bodies: Mapping[str, Body]) -> tuple[Step, ...]:
    """The steps of a rank, where the pass after a backward pass waits for the last reduction of the backward pass."""
    changed: list[Step] = []
    reduced: tuple[Key, ...] = ()
    for step in steps:
        step = step._replace(after=(*step.after, *reduced)) if step.phase in KINDS else step
        last = [op.name for op in _reductions(bodies[step.body]) if step.phase in KINDS]
        reduced = ((REDUCED, step.stage, step.microbatch, step.phase),) if last else ()
        changed.append(step._replace(outputs=(*step.outputs, *zip(last[-1:], reduced, strict=True))))
    return tuple(changed)


def _reduced(body: Body, program: Program, state: ShardedState) -> Iterator[AnyOp]:
    """A body with its reductions written out: copies, reduce-scatters, and all-reduces across groups."""
    reductions = _reductions(body)
    written: dict[str, list[AnyOp]] = {}
    in_flight: tuple[str, ...] = ()
    for op in reductions:
        written[op.name] = list(_reduction(op, program.communicators[op.communicator], state, in_flight))
        in_flight = tuple(new.name for new in written[op.name] if isinstance(new, Collective) and new.kind == "reduce_scatter")
    at_end = state.sharding.gathers and state.pipelined
    beside = state.overlaps and not at_end
    if state.copies and not beside:
        written = {name: [replace(op, after=None, detached=False) for op in ops] for name, ops in written.items()}
    buffers = _buffers(body, reductions, written, state, beside=beside) if state.copies and not at_end else {}
    kept = (new for op in body.ops for new in (() if at_end and op.name in written else written.get(op.name, (op,))))
    late = (new for name in reversed(written) for new in written[name]) if at_end else ()
    for op in (*kept, *late):
        yield op.holding(*buffers[op.name]) if op.name in buffers else op


def _reduction(
    op: Collective, replicas: Communicator, state: ShardedState, in_flight: tuple[str, ...]
) -> Iterator[Compute | Collective]:
    """The operations that replace the all-reduce of one bucket; the last one keeps its name. A shard group of one rank scatters
    nothing."""
    group, after, shards = state.group(replicas), op.after, state.shards(replicas)
    whole = group is replicas
    if state.copies:
        parameters = op.payload_bytes // state.reduced_bytes
        copy = Compute(
            name=f"{op.name} copy",
            streams=(COMPUTE,),
            after=after and (*after, *in_flight),
            detached=op.detached,
            layer=op.layer,
            purpose=Purpose.COPY,
            part=Part.OPTIMIZER,
            kernel=Rowwise("copy", parameters, 1, state.reduced_bytes, state.element_bytes + state.reduced_bytes),
        )
        yield copy
        after = after and (copy.name,)
    scatter = replace(
        op,
        name=op.name if whole else f"{op.name} shares",
        streams=(group.name,),
        communicator=group.name,
        kind="reduce_scatter",
        after=after,
    )
    if whole or shards > 1:
        yield scatter
        after = after and (scatter.name,)
    if not whole:
        share = -(-op.payload_bytes // shards)
        yield replace(op, streams=(ACROSS.name,), communicator=ACROSS.name, after=after, payload_bytes=share)


def _buffers(
    body: Body, reductions: Sequence[Collective], written: Mapping[str, Sequence[AnyOp]], state: ShardedState, *, beside: bool
) -> dict[str, list[Buffer]]:
    """Buffers that operations take and free, by name: those of reductions, and gradients until they are in a buffer.

    The first kernel that adds to the gradients of a bucket takes their bytes, unless all gradients of the model are kept. The
    buffer of a reduce-scatter beside compute is free when the next bucket is ready, since the next copy waits for the collective.
    Buffers at the end of a step, when its activations are gone, are not counted.
    """
    first: dict[Bucket, str] = {}
    bucket: dict[str, Bucket] = {}
    for op in body.ops:
        if isinstance(op, Compute) and op.adds_gradient:
            bucket[op.name] = bucket_of(op)
            first.setdefault(bucket_of(op), op.name)
    buffers: dict[str, list[Buffer]] = {}

    def held(holding: Holding, size_bytes: int, name: str, until: str) -> None:
        buffers.setdefault(name, []).append(Buffer(holding, held_bytes=size_bytes))
        buffers.setdefault(until, []).append(Buffer(holding, freed_bytes=size_bytes))

    for op, following in zip_longest(reductions, reductions[1:]):
        copy, scatter = written[op.name][:2]
        until = following.after[0] if beside and following and following.after else scatter.name
        held(Holding.COMMUNICATION, op.payload_bytes, copy.name, until)
        if state.sharding.reduce == "each" and op.after:
            gradients_bytes = op.payload_bytes // state.reduced_bytes * state.element_bytes
            held(Holding.GRADIENTS, gradients_bytes, first[bucket[op.after[0]]], copy.name)
    return buffers
