"""ZeRO-3 and FSDP: ranks divide the parameters too, and every pass gathers them, unit by unit, right before they are needed.

A unit is a layer without its experts, the experts of a layer, the embedding, or the head with the last norm; sharded_units.py
makes other units of layers. The gather of a unit runs beside compute, on the communicator that also reduces gradients. A copy
from the buffer of the gather into the parameters precedes the first operation of the unit. In the forward pass the gather of unit
i + 1 waits for the copy of unit i - 1, in the backward pass for the copy of the unit before it; `prefetch` says how many units
ahead, and `in_flight` makes it wait until an earlier unit is released as well. The forward pass releases all units but the head,
which the backward pass needs next. Without `reshard` it releases none, and with a pipeline a stage gathers its units in the first
forward pass of a step and keeps them. Gathers of a pass wait for the pass before, and those of a pair of passes that run side by
side for the pair before.

Megatron-FSDP uses parameters where the gather has written them: nothing is copied, and the gather of a unit waits until the unit
before the one before it has ended, in forward passes too, so that two units are in place (Megatron-LM core_v0.14.0,
megatron/core/distributed/fsdp/src/megatron_fsdp/param_and_grad_buffer.py, fetch_bucket and all_gather_params).

Experts are gathered from the ranks that hold copies of them (edp). Their gather follows that of their layer, which torchtitan
prefetches together, and takes turns with it, since PyTorch issues all gathers on one stream.

If FSDP divides only a part of the model, for example everything except experts that exist once, a rank holds the master copy of
the other part alone. Nothing is gathered then, but every pass casts a unit to the training format and copies it, as after a
gather. One kernel stands for the casts and copies of the tensors of a unit. Megatron-FSDP keeps the training format too, also of
what a rank holds alone, and casts nothing (Megatron-LM d98e8a6, param_and_grad_buffer.py, model_weight_buffer).

References: PyTorch 002a76fb, _fsdp_param_group.py (unshard, wait_for_unshard, _backward_prefetch) and _fsdp_state.py
(_root_pre_forward), and since 2025 also wait_for_unshard for a group of one rank, which copies what `all_gather_inputs` casts;
torchtitan 018740b7, models/llama3/infra/parallelize.py (apply_fsdp), and 05a6cb38, models/llama4/infra/parallelize.py, for
experts; DeepSpeed 0031ae39, zero/partition_parameters.py (AllGatherCoalescedHandle). ZeRO-3 is
assumed to gather in the order of FSDP.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from ...frozen import replace
from ...kernels import Gemm, Part, Rowwise
from ...program.holdings import Buffer, Holding
from ...program.operations import COMPUTE, AnyOp, Collective, Communicator, Compute, Purpose
from ...program.program import END, EXPERTS, LAST, PARAMETERS, Body, Bucket, Key, Program, Step, bucket_of, first_forward
from ...program.slot import BACKWARD, FORWARD, INPUT_GRADIENT
from .data_parallel import OPTIMIZER, collective_name, parameters_by_stage, replica_count, replicas_of
from .shards import ShardedState, sharded

UPDATED: Key = (PARAMETERS, "updated")
"""The key of the shares that the optimizer of a rank has updated."""
WITHOUT_PARAMETERS = (Purpose.REDUCE_GRADIENTS, Purpose.COPY, Purpose.OFFLOAD)
"""Purposes of operations of a layer that do not read its parameters."""


@dataclass(frozen=True, slots=True)
class _Unit:
    """Parameters that are gathered together, and the positions of the first and the last operation that needs them in a body."""

    bucket: Bucket
    parameters: int
    first: int
    last: int
    size_bytes: int
    """Bytes of the gathered parameters."""
    learns: bool = True
    """Whether all of them are trained, so that a rank that holds them alone holds only the master copy."""


def zero3(program: Program, state: ShardedState) -> Program:
    """Divides parameters, gradients and optimizer of a data-parallel program, and gathers parameters in every pass."""
    program = sharded(program, state)
    groups = (of for rank in range(len(program.orders)) for of in _groups(program, rank, state).values())
    used = [group for of in groups for group in of.values() if group]
    # groups that are only gathered have no communicator yet: frozen layers with adapters
    program = program.with_communicators(*(group for group in dict.fromkeys(used) if group.name not in program.communicators))
    bodies = dict(program.bodies)
    orders = tuple(tuple(_gathering(steps, rank, program, state, bodies)) for rank, steps in enumerate(program.orders))
    return replace(program, bodies=bodies, orders=orders)


def _groups(program: Program, rank: int, state: ShardedState) -> dict[int, dict[Bucket, Communicator | None]]:
    """The ranks that divide each bucket of the stages of a rank, if there are several; None if the rank alone holds the master
    copy of a bucket."""

    def group(stage: int, bucket: Bucket) -> Communicator | None:
        several = replica_count(program, stage, state.replicas, bucket) > 1
        return state.group(replicas_of(program, stage, bucket)) if several else None

    stages = parameters_by_stage(program, rank, frozen=True).items()
    found = {stage: {bucket: group(stage, bucket) for bucket in of} for stage, of in stages}
    return {stage: {b: over for b, over in of.items() if over or state.keeps_master} for stage, of in found.items()}


def _gathering(
    steps: tuple[Step, ...], rank: int, program: Program, state: ShardedState, bodies: dict[str, Body]
) -> Iterator[Step]:
    """The steps of a rank, in which each pass gathers the units that it needs and that earlier passes have not left."""
    buckets, groups = parameters_by_stage(program, rank, frozen=True), _groups(program, rank, state)
    learning = parameters_by_stage(program, rank)
    first = first_forward(steps)
    present: dict[int, AbstractSet[Bucket]] = {stage: frozenset() for stage in buckets}
    before: tuple[Key, ...] = ()
    ended: tuple[Key, ...] = ()
    for i, step in enumerate(steps):
        beside = step.pair >= 0 and step.pair == steps[i - 1].pair
        before = before if beside else ended
        if step.phase == OPTIMIZER:
            step = step._replace(outputs=(*step.outputs, (END, UPDATED)))
        if groups.get(step.stage) and step.phase in (FORWARD, BACKWARD, INPUT_GRADIENT):
            body, stays = program.bodies[step.body], frozenset(filter(state.stays, buckets[step.stage]))
            forward = program.bodies[steps[first[step.stage]].body]
            units = _units(body, forward, buckets[step.stage], learning[step.stage], state)
            missing = {
                unit.bucket: groups[step.stage][unit.bucket]
                for unit in units
                if unit.bucket in groups[step.stage] and unit.bucket not in present[step.stage]
            }
            present[step.stage] = stays if step.phase == FORWARD or state.pipelined else frozenset()
            if missing:
                over = " and ".join(dict.fromkeys(group.name for group in missing.values() if group)) or "no group"
                # a body lacks all of its units, or all except those that stay: the number of missing units distinguishes the two
                name = f"{step.body}, gathering {len(missing)} units over {over}"
                if name not in bodies:
                    bodies[name] = _with_gathers(body, units, missing, stays, state, forward=step.phase == FORWARD)
                after = (*step.after, *before, *((UPDATED,) if i == first[step.stage] else ()))
                waits = tuple((body.ops[0].name, key) for key in after)
                step = step._replace(body=name, after=after, waits=(*step.waits, *waits))
        last = tuple(key for name, key in step.outputs if name == LAST)
        ended = (*ended, *last) if beside else last or ended
        yield step


def _units(
    body: Body, forward: Body, parameters: Mapping[Bucket, int], learning: Mapping[Bucket, int], state: ShardedState
) -> list[_Unit]:
    """The units that a body needs, in the order of their first use; `learning` are the numbers of trained parameters.

    The projection to the vocabulary belongs to the head also where the embedding holds its table.
    """
    kernels = (op for op in forward.ops if isinstance(op, Compute) and op.layer < 0)
    outside = {op.operator: bucket_of(op) for op in kernels if op.parameters or isinstance(op.kernel, Gemm)}
    positions: dict[Bucket, list[int]] = {}
    for at, op in enumerate(body.ops):
        bucket = bucket_of(op) if op.layer >= 0 else outside.get(op.operator)
        if bucket is not None and bucket in parameters and op.purpose not in WITHOUT_PARAMETERS:
            positions.setdefault(bucket, []).append(at)
    narrow = forward.narrow_parameters_by_bucket
    return [
        _Unit(
            bucket,
            parameters[bucket],
            at[0],
            at[-1],
            state.gathered_bytes(parameters[bucket], narrow.get(bucket, 0)),
            learning.get(bucket) == parameters[bucket],
        )
        for bucket, at in positions.items()
    ]


def _with_gathers(
    body: Body,
    units: Sequence[_Unit],
    missing: Mapping[Bucket, Communicator | None],
    stays: AbstractSet[Bucket],
    state: ShardedState,
    *,
    forward: bool,
) -> Body:
    """A body that gathers the missing units, each as far ahead as the sharding allows, and releases those that do not stay."""
    added: dict[int, list[AnyOp]] = {}
    freed: dict[int, int] = {}
    waiting: dict[int, tuple[str, ...]] = {}
    chain = chain_before(body)
    copies: dict[int, str] = {}
    before: Collective | None = None
    for k, unit in enumerate(units):
        if unit.bucket not in missing:
            continue
        group = missing[unit.bucket]
        # units that stay count throughout the step: their buffers are freed before the activations of a pass are complete
        passing_bytes = 0 if unit.bucket in stays else unit.size_bytes
        freed[unit.last] = passing_bytes
        if group:
            at, after = _begin(k, units, body, chain, copies, state, forward=forward)
            after += (before.name,) if before and before.communicator != group.name else ()
            before = _gather(unit, group, after if state.overlaps else None, passing_bytes, state)
            if state.in_place_gathers:
                before = replace(before, kept_bytes=unit.size_bytes - passing_bytes)
                waiting[unit.first] = (*chain[unit.first], before.name)
            added.setdefault(at if state.overlaps else unit.first, []).append(before)
        if not (group and state.in_place_gathers):
            copy = _copy(unit, (*chain[unit.first], *((before.name,) if group and before else ())), state, gathered=bool(group))
            held = Buffer(Holding.GATHERED, passing_bytes, passing_bytes if group else 0)
            copies[k] = copy.name
            copy = replace(copy, kept_bytes=unit.size_bytes - passing_bytes).holding(held)
            added.setdefault(unit.first, []).append(copy)
    ops: list[AnyOp] = []
    for at, op in enumerate(body.ops):
        ops += added.get(at, ())
        if at in waiting:
            op = replace(op, after=(*(waiting[at] if op.after is None else op.after), waiting[at][-1]))
        ops.append(op.holding(Buffer(Holding.GATHERED, freed_bytes=freed[at])) if at in freed else op)
    return Body(tuple(ops))


def _gather(
    unit: _Unit, group: Communicator, after: tuple[str, ...] | None, buffer_bytes: int, state: ShardedState
) -> Collective:
    """The gather of a unit into a buffer."""
    return Collective(
        name=collective_name(unit.bucket, PARAMETERS),
        streams=(group.name,),
        after=after,
        detached=state.overlaps,
        layer=unit.bucket[0],
        purpose=Purpose.GATHER_PARAMETERS,
        part=Part.OPTIMIZER,
        communicator=group.name,
        kind="all_gather",
        payload_bytes=unit.size_bytes,
    ).holding(Buffer(Holding.GATHERED, buffer_bytes))


def _copy(unit: _Unit, after: tuple[str, ...], state: ShardedState, *, gathered: bool) -> Compute:
    """The copy of a unit into its parameters: from the gathered buffer, or else from the master copy, which is cast first."""
    width = state.element_bytes
    cast_bytes = 0 if gathered or not unit.learns or state.master_bytes == width else state.master_bytes + width
    copied_bytes = 2 * (unit.size_bytes / unit.parameters if gathered else width)
    return Compute(
        name=f"{collective_name(unit.bucket, PARAMETERS)} copy",
        streams=(COMPUTE,),
        after=after,
        layer=unit.bucket[0],
        purpose=Purpose.COPY,
        part=Part.OPTIMIZER,
        kernel=Rowwise("copy", unit.parameters, 1, width, cast_bytes + copied_bytes),
    )


def chain_before(body: Body) -> list[tuple[str, ...]]:
    """For each position of a body, the last operation of the chain before it, if there is one."""
    last: tuple[str, ...] = ()
    before = []
    for op in body.ops:
        before.append(last)
        last = last if op.detached else (op.name,)
    return before


def _begin(
    k: int, units: Sequence[_Unit], body: Body, chain: Sequence[tuple[str, ...]], copies: Mapping[int, str], state: ShardedState,
    *, forward: bool,
) -> tuple[int, tuple[str, ...]]:  # fmt: skip
    """The position of the gather of the k-th unit in a body, and the operations that the gather waits for.

    The experts of a layer are gathered right after their layer, and count as one unit with it.
    """
    layers = [n for n, unit in enumerate(units) if unit.bucket[1] != EXPERTS]
    number, sharding = sum(n <= k for n in layers) - 1, state.sharding
    forward = forward and not state.in_place_gathers
    ahead = number - sharding.prefetch - (forward and sharding.prefetch > 0)
    at = 0
    after: tuple[str, ...] = ()
    if ahead >= 0:
        n = k if not sharding.prefetch else layers[ahead + 1] - 1 if forward else layers[ahead]
        at = units[n].first
        after = (copies[n],) if n in copies else chain[at]
    released = number - (sharding.in_flight or len(units))
    if released >= 0 and units[layers[released]].last < units[k].first:
        last = units[layers[released]].last
        at, after = max(at, last + 1), (*after, body.ops[last].name)
    return at, after
