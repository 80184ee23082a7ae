"""ZeRO-1 and ZeRO-2: the replicas of a stage divide the optimizer, and with ZeRO-2 the gradients, but not the parameters.

Gradients are reduce-scattered, each replica updates its share of the parameters, and the parameters are gathered again, bucket
by bucket in the order of use in the next forward pass. ZeRO-2 reduces gradients after every backward pass. With overlap the
forward pass waits for each bucket at its first use, as in Megatron-LM with --overlap-param-gather; without overlap the first
forward pass of a rank waits for all buckets. Reference: Rajbhandari et al., arXiv 1910.02054.

InternEvo assigns whole tensors instead, the largest first, each to the rank with the fewest parameters so far. Gradients are
all-reduced; after the update every owner broadcasts its tensors in one piece, owner by owner, and no rank goes on before the last
(InternLM/InternEvo c628a8c, internlm/solver/optimizer/hybrid_zero_optim.py: _partition_param_list, broadcast_params).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ...frozen import replace
from ...kernels import Part
from ...program.operations import Collective, Communicator, Compute, Purpose
from ...program.program import PARAMETERS, Body, Bucket, Key, Program, Step, bucket_of, first_forward
from .data_parallel import OPTIMIZER, collective_name, parameters_by_stage, replica_count, replicas_of
from .shards import ShardedState, sharded, tensors_of_owners


def zero1(program: Program, state: ShardedState) -> Program:
    """Divides gradients and optimizer of a data-parallel program, and gathers the updated parameters of each stage.

    With overlap the forward pass of a layer waits only for the parameters of the layer; else the first pass waits for all.
    """
    program = sharded(program, state)
    bodies, orders = dict(program.bodies), []
    uses: dict[str, dict[Bucket, str]] = {}
    for rank, steps in enumerate(program.orders):
        buckets = parameters_by_stage(program, rank)
        update = next(step for step in steps if step.phase == OPTIMIZER)
        gathers = []
        if state.whole_tensors:
            gathers = [*_broadcasts(program, rank, update, state, bodies)]
        first = {} if state.whole_tensors else first_forward(steps)
        for stage in first:
            shared = {b: n for b, n in buckets[stage].items() if replica_count(program, stage, state.replicas, b) > 1}
            if shared:
                groups = {bucket: state.group(replicas_of(program, stage, bucket)) for bucket in shared}
                narrow = program.bodies[steps[first[stage]].body].narrow_parameters_by_bucket
                sizes = {bucket: state.gathered_bytes(n, narrow.get(bucket, 0)) for bucket, n in shared.items()}
                step, body = _gather(groups, stage, sizes, update)
                gathers.append(step)
                bodies[step.body] = body
        orders.append((*_waiting(steps, gathers, program, uses, overlaps=state.gathers_beside_forward), *gathers))
    return replace(program, bodies=bodies, orders=tuple(orders))


def _key(stage: int, bucket: Bucket) -> Key:
    return (PARAMETERS, stage, *bucket)


def _gather(groups: Mapping[Bucket, Communicator], stage: int, sizes: Mapping[Bucket, int], update: Step) -> tuple[Step, Body]:
    """The step after the update that gathers the parameters of a stage, bucket by bucket in the order of the forward pass, given
    the bytes of each bucket."""
    gathers = {
        bucket: Collective(
            name=collective_name(bucket, PARAMETERS),
            streams=(groups[bucket].name,),
            layer=bucket[0],
            purpose=Purpose.GATHER_PARAMETERS,
            part=Part.OPTIMIZER,
            communicator=groups[bucket].name,
            kind="all_gather",
            payload_bytes=size_bytes,
        )
        for bucket, size_bytes in sizes.items()
    }
    updated = tuple(key for _, key in update.outputs)
    outputs = tuple((op.name, _key(stage, bucket)) for bucket, op in gathers.items())
    step = Step(f"gather parameters of stage {stage}", "gather", stage, after=updated, outputs=outputs)
    return step, Body(tuple(gathers.values()))


def _broadcasts(program: Program, rank: int, update: Step, state: ShardedState, bodies: dict[str, Body]) -> Iterator[Step]:
    """The step after the update in which the owners of a rank's parameters broadcast them, one after the other."""
    owned, stage = tensors_of_owners(program, rank, state), program.orders[rank][0].stage
    if not owned:
        return
    group = state.group(replicas_of(program, stage))
    broadcast = Collective(
        name="",
        streams=(group.name,),
        purpose=Purpose.GATHER_PARAMETERS,
        part=Part.OPTIMIZER,
        communicator=group.name,
        kind="broadcast",
        payload_bytes=0,
    )
    ops = [
        replace(broadcast, name=f"broadcast {i} parameters", payload_bytes=parameters * state.element_bytes)
        for i, parameters in enumerate(owned)
    ]
    after, key = tuple(key for _, key in update.outputs), (PARAMETERS, stage, -1, "all")
    step = Step(f"broadcast parameters of rank {rank}", "gather", stage, after=after, outputs=((ops[-1].name, key),))
    bodies[step.body] = Body(tuple(ops))
    yield step


def _waiting(
    steps: tuple[Step, ...], gathers: Iterable[Step], program: Program, known: dict[str, dict[Bucket, str]], *, overlaps: bool
) -> Iterable[Step]:
    """The steps of a rank, where the first forward pass of each stage waits for the gathers of the previous training step.

    The pass waits for each bucket at its first use; without overlap the first pass of the rank waits for all buckets. `known`
    caches the first uses of a body, because many stages call the same body.
    """
    changed = list(steps)
    if not overlaps:
        everything = tuple(key for gather in gathers for _, key in gather.outputs)
        changed[0] = steps[0]._replace(after=(*steps[0].after, *everything))
        return changed
    first = first_forward(steps)
    for gather in gathers:
        step, gathered = steps[first[gather.stage]], {key for _, key in gather.outputs}
        if step.body not in known:
            known[step.body] = _first_use(program.bodies[step.body])
        uses = ((name, _key(gather.stage, bucket)) for bucket, name in known[step.body].items())
        waits = tuple((name, key) for name, key in uses if key in gathered)
        changed[first[gather.stage]] = step._replace(waits=(*step.waits, *waits))
    return changed


def _first_use(body: Body) -> dict[Bucket, str]:
    """For each bucket, the op of a forward body that waits for the bucket: the first of a layer, or the reader of a table."""
    first: dict[Bucket, str] = {}
    entered: dict[int, str] = {}
    for op in body.ops:
        name = entered.setdefault(op.layer, op.name) if op.layer >= 0 else op.name
        if isinstance(op, Compute) and op.parameters:
            first.setdefault(bucket_of(op), name)
    return first
