"""Data parallelism and the end of the step: gradients reduced in buckets, ZeRO-1, tied embeddings, the optimizer.

A bucket is a layer. It is ready when the layer's weight gradients of the last microbatch are there, and travels on the dp
stream in backward order, beside the rest of the backward pass; without overlap there is one reduction after the rank's
last backward. With `zero1` gradients are reduce-scattered, each replica updates its share, and the parameters are gathered
again. Every optimizer waits for the gradient norm: a gang of all ranks that moves no bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...kernels import Part, Rowwise, Split
from ...program.op import COMPUTE, AnyOp, Collective, Compute
from ...program.program import END, LAST, PARAMETERS, Body, Communicator, Key, Program, Step
from ..build import op_name

DP = Communicator("dp", "dp", ("dp", "cp"))
WORLD = Communicator("world", "dp", ("tp", "cp", "ep", "dp", "pp"))
GRADIENT_BYTES = 4
"""Gradients are accumulated and reduced in fp32."""
ADAM_BYTES = 30
"""Traffic of an Adam step per parameter: read the gradient, read and write the fp32 master and both moments (28 bytes),
write the half-precision weight (2)."""
Bucket = tuple[int, str]
"""What is reduced at once: (layer within the stage or -1, what it is)."""
REDUCED, READY, UPDATED = "reduced", "ready", "updated"


@dataclass(frozen=True, slots=True)
class DataParallel:
    """What the pass needs to know of a plan and a job."""

    dp: int
    shards_optimizer: bool
    overlaps: bool
    element_bytes: int
    tied_parameters: int
    """Per tensor-parallel rank, of an embedding that the last stage's head uses too; 0 if it is not tied."""


def data(program: Program, how: DataParallel) -> Program:
    """Adds gradient reductions, the optimizer and what surrounds it to every rank's order."""
    program = program.with_communicators(DP, WORLD)
    ends = {stage.rank for stage in program.stages if stage.embedding or stage.head}
    tied = how.tied_parameters > 0 and len(ends) > 1
    if tied:
        first, last = program.stages[0].rank, program.stages[-1].rank
        program = program.with_communicators(Communicator("embedding", "pp", ("pp",), (first, last)))
    bodies = dict(program.bodies)
    orders = []
    for rank, steps in enumerate(program.orders):
        reduced: list[Key] = []
        if how.dp > 1 and how.overlaps:
            steps, reduced = _reduce_as_ready(steps, program, bodies, how)
        tail = list(_tail(rank, steps, reduced, program, how, tied and rank in ends))
        bodies.update({step.body: body for step, body in tail})
        orders.append((*steps, *(step for step, _ in tail)))
    return replace(program, bodies=bodies, orders=tuple(orders))


def _reduce_as_ready(
    steps: tuple[Step, ...], program: Program, bodies: dict[str, Body], how: DataParallel
) -> tuple[tuple[Step, ...], list[Key]]:
    """The last backward of each stage on this rank exchanged for one that reduces each layer when it is ready."""
    final = {step.stage: i for i, step in enumerate(steps) if step.phase in ("B", "W")}
    changed = list(steps)
    reduced: list[Key] = []
    for stage, i in sorted(final.items(), key=lambda item: item[1]):
        step, parameters = steps[i], bucket_parameters(program, stage)
        name = f"{step.body}, reducing"
        bodies.setdefault(name, _reducing(program.bodies[step.body], parameters, how))
        outputs: list[tuple[str, Key]] = []
        for op in bodies[name].ops:
            if isinstance(op, Collective) and op.communicator == DP.name:
                outputs.append((op.name, (REDUCED, stage, op.name)))
        reduced += [key for _, key in outputs]
        changed[i] = replace(step, body=name, outputs=(*step.outputs, *outputs))
    return tuple(changed), reduced


def bucket_parameters(program: Program, stage: int) -> dict[Bucket, int]:
    """Parameters per tensor-parallel rank of each bucket of a stage: one per layer, embedding and head apart."""
    body = next(s.body for s in program.orders[program.stages[stage].rank] if s.phase == "F" and s.stage == stage)
    buckets: dict[Bucket, int] = {}
    for op in program.bodies[body].ops:
        if isinstance(op, Compute) and op.parameters:
            buckets[_bucket(op)] = buckets.get(_bucket(op), 0) + op.parameters
    return buckets


def _bucket(op: Compute) -> Bucket:
    if op.layer >= 0:
        return op.layer, "layer"
    return op.layer, "embedding" if op.split is Split.LOOKUP else "head"


def _named(bucket: Bucket, purpose: str) -> str:
    layer, what = bucket
    return op_name(layer, purpose if layer >= 0 else f"{what} {purpose}")


def _reducing(body: Body, parameters: dict[Bucket, int], how: DataParallel) -> Body:
    """A backward body in which each bucket is reduced after the last weight gradient that belongs to it."""
    last = {_bucket(op): op.name for op in body.ops if isinstance(op, Compute) and op.part is Part.WEIGHT_GRADIENT}

    def change(op: AnyOp) -> Iterator[AnyOp]:
        yield op
        if isinstance(op, Compute) and last.get(_bucket(op)) == op.name:
            bucket = _bucket(op)
            yield _reduction(_named(bucket, "gradients"), parameters[bucket], how, after=(op.name,), layer=op.layer)

    return body.mapped(change)


def _reduction(name: str, parameters: int, how: DataParallel, after: tuple[str, ...] | None, layer: int = -1) -> Collective:
    return Collective(
        name=name,
        streams=(DP.name,),
        after=after,
        detached=after is not None,
        layer=layer,
        communicator=DP.name,
        kind="reduce_scatter" if how.shards_optimizer else "all_reduce",
        payload_bytes=parameters * GRADIENT_BYTES,
    )


def _tail(
    rank: int, steps: tuple[Step, ...], reduced: list[Key], program: Program, how: DataParallel, tied: bool
) -> Iterator[tuple[Step, Body]]:
    """What a rank does after its last backward: late reductions, the norm, the optimizer, gathered parameters."""
    mine = [(s, bucket_parameters(program, s)) for s, stage in enumerate(program.stages) if stage.rank == rank]
    parameters = sum(sum(buckets.values()) for _, buckets in mine)
    done = tuple(dict(step.outputs)[LAST] for step in steps[-1:])
    waits: tuple[Key, ...] = (*done, *reduced)
    if how.dp > 1 and not how.overlaps:
        body = Body((_reduction("gradients", parameters, how, after=None),))
        yield Step(f"reduce {rank}", "reduce", after=waits, outputs=((END, (REDUCED, rank)),)), body
        waits = ((REDUCED, rank),)
    if tied:
        share = how.dp if how.shards_optimizer else 1
        sync = Collective(
            name="tied embedding",
            streams=("embedding",),
            communicator="embedding",
            kind="all_reduce",
            payload_bytes=-(-how.tied_parameters // share) * GRADIENT_BYTES,
        )
        yield Step("reduce embedding", "reduce", after=waits, outputs=((END, (REDUCED, "embedding")),)), Body((sync,))
        waits = ((REDUCED, "embedding"),)
    norm = Collective(name="norm", streams=(WORLD.name,), communicator=WORLD.name, kind="barrier", payload_bytes=0)
    yield Step("norm", "norm", after=waits, outputs=((END, (READY,)),)), Body((norm,))
    owned = -(-parameters // how.dp) if how.shards_optimizer else parameters
    adam = Compute(
        name="adam",
        streams=(COMPUTE,),
        part=Part.OPTIMIZER,
        kernel=Rowwise("adam", owned, 1, GRADIENT_BYTES, ADAM_BYTES),
    )
    yield Step(f"optimizer {rank}", "optimizer", after=((READY,),), outputs=((END, (UPDATED,)),)), Body((adam,))
    if how.dp > 1 and how.shards_optimizer:
        for stage, buckets in mine:
            name = f"gather parameters of stage {stage}"
            outputs = ((END, (PARAMETERS, stage)),)
            yield Step(name, "gather", stage, after=((UPDATED,),), outputs=outputs), _gathering(buckets, how)


def _gathering(buckets: dict[Bucket, int], how: DataParallel) -> Body:
    return Body(
        tuple(
            Collective(
                name=_named(bucket, "parameters"),
                streams=(DP.name,),
                layer=bucket[0],
                communicator=DP.name,
                kind="all_gather",
                payload_bytes=parameters * how.element_bytes,
            )
            for bucket, parameters in buckets.items()
        )
    )
