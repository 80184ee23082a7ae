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
from ...program.op import AnyOp, Collective, Compute
from ...program.program import END, LAST, PARAMETERS, Body, Communicator, Key, Program, Step
from .buckets import Bucket, bucket_of, bucket_parameters, named
from .gathers import first_forward, gathering, waiting_for_gathers
from .optimizer import FP32_BYTES, updating

DP = Communicator("dp", "dp", ("dp", "cp"))
WORLD = Communicator("world", "dp", ("tp", "cp", "ep", "dp", "pp"))
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
    overlaps_gathers: bool = True
    """Whether a layer's forward pass waits for its own parameters only; else the first one for all of the rank."""


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
        after = [step for step, _ in tail]
        waiting = waiting_for_gathers(steps, after, program, overlaps=how.overlaps_gathers)
        orders.append((*waiting, *after))
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


def _reducing(body: Body, parameters: dict[Bucket, int], home: Communicator, how: DataParallel) -> Body:
    """A backward body in which each bucket is reduced after the last kernel that adds to a gradient of it.

    Kernels of a rank run one after the other: when the last has ended, so have those before it, of earlier slots too.
    """
    last = {bucket_of(op): op.name for op in body.ops if isinstance(op, Compute) and op.adds_gradient}
    if missing := parameters.keys() - last.keys():
        raise InvariantBroken(f"nothing in the last backward pass adds to the gradients of {missing}")

    def change(op: AnyOp) -> Iterator[AnyOp]:
        yield op
        if isinstance(op, Compute) and last.get(bucket_of(op)) == op.name and bucket_of(op) in parameters:
            bucket = bucket_of(op)
            reduction = _reduction(named(bucket, "gradients"), parameters[bucket], home, how)
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
    for stage in first_forward(steps) if how.shards_optimizer else ():
        if _replicas(program, stage, how) > 1:
            body = gathering(end.buckets[stage], _home(program, stage), how.element_bytes)
            outputs = tuple((op.name, (PARAMETERS, stage, op.name)) for op in body.ops)
            yield Step(f"gather parameters of stage {stage}", "gather", stage, after=((UPDATED,),), outputs=outputs), body


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
