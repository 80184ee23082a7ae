"""Data parallelism and the end of the step: gradients reduced in buckets, ZeRO-1, tied embeddings, the optimizer.

A bucket is a layer. It is ready when everything that adds to its gradients is done for the last microbatch, norms and biases
too, and travels on the dp stream in backward order, beside the rest of the backward pass; without overlap there is one
reduction after the rank's last backward. With `zero1` gradients are reduce-scattered, each replica updates its share, and the
parameters are gathered again, bucket by bucket in the order in which the next forward pass needs them. Every optimizer waits
for the gradient norm, a gang of all ranks that moves no bytes, unless it is post-validated: then it waits for its own rank's
reductions only (Qi et al., arXiv 2401.10241, section 4). Where a schedule keeps copies of a stage on several pipeline ranks,
they are replicas too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...errors import InvariantBroken
from ...kernels import Split
from ...program.op import AnyOp, Collective, Compute
from ...program.program import END, LAST, PARAMETERS, Body, Communicator, Key, Program, Step
from ..build import op_name
from .optimizer import FP32_BYTES, updating

DP = Communicator("dp", "dp", ("dp", "cp"))
WORLD = Communicator("world", "dp", ("tp", "cp", "ep", "dp", "pp"))
Bucket = tuple[int, str]
"""What is reduced at once: (layer within the stage or -1, what it is)."""
REDUCED, READY, UPDATED = "reduced", "ready", "updated"


@dataclass(frozen=True, slots=True)
class DataParallel:
    """What the pass needs to know of a plan and a job."""

    dp: int
    shards_optimizer: bool
    overlaps: bool
    synchronised: bool
    element_bytes: int
    tied_parameters: int
    """Per tensor-parallel rank, of an embedding that the last stage's head uses too; 0 if it is not tied."""
    gradient_bytes: int = FP32_BYTES
    """Of a gradient as it is accumulated and reduced."""
    fused_optimizer: bool = True


def data(program: Program, how: DataParallel) -> Program:
    """Adds gradient reductions, the optimizer and what surrounds it to every rank's order."""
    homes = {_home(program, stage) for stage in range(len(program.stages))}
    program = program.with_communicators(DP, *sorted(homes - {DP}, key=lambda home: home.name))
    if how.synchronised:
        program = program.with_communicators(WORLD)
    embedded, headed = ({s.rank for s in program.stages if getattr(s, end)} for end in ("embedding", "head"))
    apart = how.tied_parameters > 0 and embedded != headed
    if apart:
        program = program.with_communicators(Communicator("embedding", "pp", ("pp",), (*embedded, *headed)))
    bodies = dict(program.bodies)
    orders = []
    for rank, steps in enumerate(program.orders):
        buckets = {s: bucket_parameters(program, s) for s, stage in enumerate(program.stages) if stage.rank == rank}
        late = _unfinished_table(steps, program) if how.tied_parameters and not apart else None
        reduced: list[Key] = []
        if how.overlaps:
            ready = {s: {b: n for b, n in of.items() if (s, b) != late} for s, of in buckets.items()}
            steps, reduced = _reduce_as_ready(steps, program, bodies, ready, how)
        end = _End(rank, buckets, late, tuple(reduced), apart and rank in embedded | headed)
        tail = list(_tail(end, steps, program, how))
        bodies.update({step.body: body for step, body in tail})
        orders.append((*steps, *(step for step, _ in tail)))
    return replace(program, bodies=bodies, orders=tuple(orders))


def _home(program: Program, stage: int) -> Communicator:
    """The replicas of a stage: those along dp, and those on other pipeline ranks if a schedule keeps copies."""
    holders = program.holders(stage)
    if len(holders) == 1:
        return DP
    return Communicator(f"copies of stage {program.stages[stage].number}", "dp", (*DP.axes, "pp"), holders)


def _replicas(program: Program, stage: int, how: DataParallel) -> int:
    return how.dp * len(program.holders(stage))


def _final(steps: tuple[Step, ...]) -> dict[int, int]:
    """The last backward step of each stage, by its position among a rank's steps, in that order."""
    final = {step.stage: i for i, step in enumerate(steps) if step.phase in ("B", "W")}
    return dict(sorted(final.items(), key=lambda item: item[1]))


def _unfinished_table(steps: tuple[Step, ...], program: Program) -> tuple[int, Bucket] | None:
    """The (stage, bucket) of a table that the head on the same rank still adds to after the embedding's last backward."""
    final = _final(steps)
    ends = {name: s for s in final for name in ("embedding", "head") if getattr(program.stages[s], name)}
    if len(ends) == 2 and final[ends["head"]] > final[ends["embedding"]]:
        return ends["embedding"], (-1, "embedding")
    return None


def _reduce_as_ready(
    steps: tuple[Step, ...],
    program: Program,
    bodies: dict[str, Body],
    ready: dict[int, dict[Bucket, int]],
    how: DataParallel,
) -> tuple[tuple[Step, ...], list[Key]]:
    """The last backward of each stage on this rank exchanged for one that reduces each layer when it is ready."""
    changed = list(steps)
    reduced: list[Key] = []
    for stage, i in _final(steps).items():
        if _replicas(program, stage, how) == 1:
            continue
        step, home = steps[i], _home(program, stage)
        name = f"{step.body}, reducing" + (f" over {home.name}" if home is not DP else "")
        bodies.setdefault(name, _reducing(program.bodies[step.body], ready[stage], home, how))
        outputs: list[tuple[str, Key]] = []
        for op in bodies[name].ops:
            if isinstance(op, Collective) and op.communicator == home.name:
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


def _reducing(body: Body, parameters: dict[Bucket, int], home: Communicator, how: DataParallel) -> Body:
    """A backward body in which each bucket is reduced after the last kernel that adds to a gradient of it.

    Kernels of a rank run one after the other: when the last has ended, so have those before it, of earlier slots too.
    """
    last = {_bucket(op): op.name for op in body.ops if isinstance(op, Compute) and op.adds_gradient}
    if missing := parameters.keys() - last.keys():
        raise InvariantBroken(f"nothing in the last backward pass adds to the gradients of {missing}")

    def change(op: AnyOp) -> Iterator[AnyOp]:
        yield op
        if isinstance(op, Compute) and last.get(_bucket(op)) == op.name and _bucket(op) in parameters:
            bucket = _bucket(op)
            reduction = _reduction(_named(bucket, "gradients"), parameters[bucket], home, how)
            yield replace(reduction, after=(op.name,), detached=True, layer=op.layer)

    return body.mapped(change)


def _reduction(name: str, parameters: int, home: Communicator, how: DataParallel) -> Collective:
    return Collective(
        name=name,
        streams=(home.name,),
        communicator=home.name,
        kind="reduce_scatter" if how.shards_optimizer else "all_reduce",
        payload_bytes=parameters * how.gradient_bytes,
    )


@dataclass(frozen=True, slots=True)
class _End:
    """What is known of a rank when its last backward is over."""

    rank: int
    buckets: dict[int, dict[Bucket, int]]
    """Parameters of its stages by bucket."""
    late: tuple[int, Bucket] | None
    """A bucket that could not be reduced as it became ready."""
    reduced: tuple[Key, ...]
    tied: bool
    """Whether it shares its embedding with another rank."""


def _tail(end: _End, steps: tuple[Step, ...], program: Program, how: DataParallel) -> Iterator[tuple[Step, Body]]:
    """What a rank does after its last backward: late reductions, the norm, the optimizer, gathered parameters."""
    waits: tuple[Key, ...] = (*(dict(step.outputs)[LAST] for step in steps[-1:]), *end.reduced)
    late = list(_late_reductions(end, waits, program, how))
    yield from late
    waits = tuple(step.outputs[0][1] for step, _ in late) or waits
    if end.tied:
        yield _tied_reduction(waits, program, how)
        waits = ((REDUCED, "embedding"),)
    if how.synchronised:
        norm = Collective(name="norm", streams=(WORLD.name,), communicator=WORLD.name, kind="barrier", payload_bytes=0)
        yield Step("norm", "norm", after=waits, outputs=((END, (READY,)),)), Body((norm,))
        waits = ((READY,),)
    update = Body(updating(_updated_parameters(end, program, how), how.gradient_bytes, fused=how.fused_optimizer))
    yield Step(f"optimizer {end.rank}", "optimizer", after=waits, outputs=((END, (UPDATED,)),)), update
    for stage, buckets in end.buckets.items():
        if how.shards_optimizer and _replicas(program, stage, how) > 1:
            name = f"gather parameters of stage {stage}"
            outputs = ((END, (PARAMETERS, stage)),)
            yield Step(name, "gather", stage, after=((UPDATED,),), outputs=outputs), _gathering(buckets, program, stage, how)


def _late_reductions(end: _End, waits: tuple[Key, ...], program: Program, how: DataParallel) -> Iterator[tuple[Step, Body]]:
    """Without overlap everything, in one collective per set of replicas; else the bucket that was not ready."""
    late: dict[Communicator, int] = {}
    for stage, buckets in end.buckets.items():
        wanted = sum(n for bucket, n in buckets.items() if not how.overlaps or (stage, bucket) == end.late)
        if wanted and _replicas(program, stage, how) > 1:
            home = _home(program, stage)
            late[home] = late.get(home, 0) + wanted
    for home, parameters in sorted(late.items(), key=lambda item: item[0].name):
        step = Step(f"reduce {home.name} {end.rank}", "reduce", after=waits, outputs=((END, (REDUCED, end.rank, home.name)),))
        yield step, Body((_reduction("gradients", parameters, home, how),))


def _tied_reduction(waits: tuple[Key, ...], program: Program, how: DataParallel) -> tuple[Step, Body]:
    """The whole table's gradient, once: its owners' shares of the optimizer are cut elsewhere on the two ranks."""
    sync = Collective(
        name="tied embedding",
        streams=("embedding",),
        communicator="embedding",
        kind="all_reduce",
        payload_bytes=how.tied_parameters * how.gradient_bytes,
    )
    return Step("reduce embedding", "reduce", after=waits, outputs=((END, (REDUCED, "embedding")),)), Body((sync,))


def _updated_parameters(end: _End, program: Program, how: DataParallel) -> int:
    """Parameters that a rank's optimizer updates: all of its own, or its share of them."""
    owned = [(sum(buckets.values()), _replicas(program, stage, how)) for stage, buckets in end.buckets.items()]
    if not how.shards_optimizer:
        return sum(parameters for parameters, _ in owned)
    shares = {replicas: sum(n for n, r in owned if r == replicas) for _, replicas in owned}
    return sum(-(-parameters // replicas) for replicas, parameters in shares.items())


def _gathering(buckets: dict[Bucket, int], program: Program, stage: int, how: DataParallel) -> Body:
    home = _home(program, stage)
    return Body(
        tuple(
            Collective(
                name=_named(bucket, "parameters"),
                streams=(home.name,),
                layer=bucket[0],
                communicator=home.name,
                kind="all_gather",
                payload_bytes=parameters * how.element_bytes,
            )
            for bucket, parameters in buckets.items()
        )
    )
