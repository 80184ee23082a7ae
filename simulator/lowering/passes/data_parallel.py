"""Data parallelism and the end of a training step: reductions of gradients in buckets, the gradient norm, the optimizer.

Each layer is a bucket, and so are the embedding and the head, and the experts of a layer, whose copies are on other ranks. A
bucket is ready when all kernels that add to its gradients, including norms and biases, have ended for the last microbatch.
Buckets travel on the dp stream in backward order, beside the rest of the backward pass; without overlap one reduction follows
the last backward of the rank. Every optimizer waits for the gradient norm, a barrier of all ranks, except a post-validated
optimizer, which waits only for the reductions of its own rank (Qi et al., arXiv 2401.10241, section 4). Copies of a stage that
a schedule keeps on several pipeline ranks are replicas too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ...frozen import replace
from ...kernels import Part, Rowwise
from ...plan.mesh import REPLICAS
from ...program.operations import COMPUTE, AnyOp, Collective, Communicator, Compute, Purpose, Wait
from ...program.program import END, EXPERTS, LAST, Body, Bucket, Key, Program, Step, bucket_of, first_forward
from ...workload.optimizer import CLIP, Optimizer, Piece
from ...workload.optimizer import NORM as READ_FOR_NORM
from .early_table import COMPUTED, computes_table_first, table_first

DP = Communicator("dp", "dp", ("dp", REPLICAS, "cp"))
EDP = Communicator("edp", "dp", ("edp", REPLICAS))
WORLD = Communicator("world", "dp", ("tp", "cp", "dp", "pp", REPLICAS))
REDUCED, READY, UPDATED = "reduced", "ready", "updated"
LOCAL_NORM, NORM, OPTIMIZER = "local norm", "norm", "optimizer"
"""Phases of the steps in which a rank reads its gradients, waits for the gradient norm, and updates its parameters."""

FP32_BYTES = 4

LAYER: Bucket = (0, "layer")
"""The bucket of a layer, whose replicas are those of everything but experts."""
Buckets = Mapping[int, Mapping[Bucket, int]]
"""Stage -> bucket -> number of its parameters."""


OfParameters = tuple[bool, bool]
"""A pair of values, for parameters outside of experts and for experts: `[op.expert]` is the value for an operation."""


class Replicas(NamedTuple):
    """Number of ranks that hold the same parameters, without copies of stages: `edp` for experts, `dp` for the rest."""

    dp: int
    edp: int = 1

    def several(self, asked: bool) -> OfParameters:
        """Whether an option that needs several ranks is `asked` for and there are several, per kind of parameters."""
        return asked and self.dp > 1, asked and self.edp > 1


@dataclass(frozen=True, slots=True)
class DataParallel:
    """The values of plan, job and framework that the pass needs."""

    replicas: Replicas
    overlaps: bool
    synchronised: bool
    tied_parameters: int
    """Parameters per tensor-parallel rank of an embedding table that the head shares; 0 if the table is not tied."""
    gradient_bytes: int = FP32_BYTES
    """Bytes of a gradient in accumulation."""
    reduced_bytes: int = FP32_BYTES
    """Bytes of a gradient in reduction."""
    update: tuple[Piece, ...] = Optimizer().pieces(2, fused=True)
    """The kernels that update the parameters."""
    clips: bool = False
    """Whether gradients are read for their norm, and scaled."""
    each: bool = False
    """Whether every backward pass reduces gradients, not only the last backward pass of each stage."""
    whole_slots: bool = False
    """Whether every slot is one step."""


def data_parallel(program: Program, plan: DataParallel) -> Program:
    """Adds gradient reductions, the norm and the optimizer to the steps of every rank."""
    experts = any(isinstance(op, Compute) and op.expert for body in program.bodies.values() for op in body.ops)
    copied = experts and len({stage.number for stage in program.stages}) < len(program.stages)
    kinds = ("layer", EXPERTS) if plan.replicas.edp > 1 or copied else ("layer",)
    replicas = {replicas_of(program, stage, (0, kind)) for stage in range(len(program.stages)) for kind in kinds}
    program = program.with_communicators(DP, *sorted(replicas - {DP}, key=lambda group: group.name))
    if plan.synchronised:
        program = program.with_communicators(WORLD)
    embedded, headed = ({s.rank for s in program.stages if getattr(s, end)} for end in ("embedding", "head"))
    ends = Communicator("embedding", "pp", ("pp",), (*embedded, *headed))
    apart = plan.tied_parameters > 0 and embedded != headed
    if apart:
        program = program.with_communicators(ends)
    bodies = dict(program.bodies)
    orders = []
    for rank, steps in enumerate(program.orders):
        buckets = parameters_by_stage(program, rank)
        late: Buckets = buckets
        reduced: list[Key] = []
        tied = ends if apart and rank in embedded | headed else None
        if tied and not plan.whole_slots and all(replica_count(program, stage, plan.replicas) == 1 for stage in buckets):
            steps = table_first(steps, bodies)
        if plan.overlaps:
            late = _unfinished_table(steps, program, buckets) if plan.tied_parameters and not apart else {}
            ready = {stage: {b: n for b, n in of.items() if b not in late.get(stage, ())} for stage, of in buckets.items()}
            steps, reduced = _reduce_as_ready(steps, program, bodies, ready, plan)
        waits = (*(dict(step.outputs)[LAST] for step in steps[-1:]), *reduced)
        tail = [*_late_reductions(rank, late, waits, program, plan)]
        waits = tuple(step.outputs[0][1] for step, _ in tail) or waits
        tail += _end(rank, waits, buckets, tied, plan, early=computes_table_first(steps))
        bodies.update({step.body: body for step, body in tail})
        orders.append((*steps, *(step for step, _ in tail)))
    return replace(program, bodies=bodies, orders=tuple(orders))


def replicas_of(program: Program, stage: int, bucket: Bucket = LAYER) -> Communicator:
    """The communicator of the replicas of a bucket: along dp or edp, and across pipeline ranks that keep copies of the stage."""
    number, group = program.stages[stage].number, EDP if bucket[1] == EXPERTS else DP
    if program.stages[-1].number == len(program.stages) - 1:  # in one direction
        return group
    holders = [s.rank for s in program.stages if s.number == number]
    name = f"copies of stage {number}" if group is DP else f"copies of experts of stage {number}"
    return Communicator(name, "dp", (*group.axes, "pp"), tuple(sorted(holders)))


def replica_count(program: Program, stage: int, replicas: Replicas, bucket: Bucket = LAYER) -> int:
    copies = len(replicas_of(program, stage, bucket).pipeline or (stage,))
    return copies * (replicas.edp if bucket[1] == EXPERTS else replicas.dp)


def parameters_by_stage(program: Program, rank: int, *, frozen: bool = False) -> dict[int, dict[Bucket, int]]:
    """Number of trained parameters per tensor-parallel rank, by stage of a pipeline rank and by bucket; with `frozen`, of all."""
    found: dict[int, dict[Bucket, int]] = {}
    for stage, at in first_forward(program.orders[rank]).items():
        learning, all_of_them = program.bodies[program.orders[rank][at].body].parameters_by_bucket
        found[stage] = dict(all_of_them if frozen else learning)
    return found


def collective_name(bucket: Bucket, moved: str) -> str:
    """The name of the collective that moves the gradients or the parameters of a bucket."""
    layer, what = bucket
    if what == "layer":
        return f"{layer}.{moved}"
    return f"{layer}.{what} {moved}" if layer >= 0 else f"{what} {moved}"


def final_backward(steps: tuple[Step, ...]) -> dict[int, int]:
    """The position of the last backward step of each stage among the steps of a rank, in ascending order."""
    final = {step.stage: i for i, step in enumerate(steps) if step.phase in ("B", "W")}
    return dict(sorted(final.items(), key=lambda item: item[1]))


def _unfinished_table(steps: tuple[Step, ...], program: Program, buckets: Buckets) -> Buckets:
    """The bucket of a tied table whose gradient the head on the same rank completes after the embedding's last backward."""
    final = final_backward(steps)
    ends = {name: s for s in final for name in ("embedding", "head") if getattr(program.stages[s], name)}
    if len(ends) == 2 and final[ends["head"]] > final[ends["embedding"]]:
        table = (-1, "embedding")
        return {ends["embedding"]: {table: buckets[ends["embedding"]][table]}}
    return {}


def _reduce_as_ready(
    steps: tuple[Step, ...], program: Program, bodies: dict[str, Body], ready: Buckets, plan: DataParallel
) -> tuple[tuple[Step, ...], list[Key]]:
    """The steps of a rank, where the last backward of each stage, or each backward, reduces the buckets as they become ready; and
    the keys of the last reductions.
    """
    changed = list(steps)
    reduced: list[Key] = []
    final = final_backward(steps)
    names_of: dict[str, list[str]] = {}
    for i in [i for i, s in enumerate(steps) if s.phase in ("B", "W")] if plan.each else final.values():
        step, stage = steps[i], steps[i].stage
        reduced_here = {b: n for b, n in ready[stage].items() if replica_count(program, stage, plan.replicas, b) > 1}
        if not reduced_here:
            continue
        groups = {bucket: replicas_of(program, stage, bucket) for bucket in reduced_here}
        over = dict.fromkeys(group.name for group in groups.values() if group.pipeline)
        name = f"{step.body}, reducing" + (f" over {', '.join(over)}" if over else "")
        if name not in bodies:
            bodies[name] = Body(tuple(_reducing(program.bodies[step.body], reduced_here, groups, plan.reduced_bytes)))
        if name not in names_of:
            names_of[name] = [op.name for op in bodies[name].ops if op.purpose is Purpose.REDUCE_GRADIENTS]
        outputs = tuple((op, (REDUCED, stage, number)) for number, op in enumerate(names_of[name]) if i == final[stage])
        reduced += [key for _, key in outputs]
        changed[i] = step._replace(body=name, outputs=(*step.outputs, *outputs))
    return tuple(changed), reduced


def _reducing(
    body: Body, parameters: Mapping[Bucket, int], groups: Mapping[Bucket, Communicator], reduced_bytes: int
) -> Iterator[AnyOp]:
    """A backward body in which the reduction of each bucket follows the last kernel that adds to a gradient of the bucket.

    Kernels of a rank run one after the other: the end of the last kernel implies the end of all earlier kernels and slots. A
    bucket of norms outside of layers, complete since the input gradients, follows the first kernel of the weight gradients.
    """
    kernels = [op for op in body.ops if isinstance(op, Compute)]
    last = dict.fromkeys(parameters, kernels[0].name) | {bucket_of(op): op.name for op in kernels if op.adds_gradient}
    ready: dict[str, list[Bucket]] = {}
    for bucket in parameters:
        ready.setdefault(last[bucket], []).append(bucket)
    for op in body.ops:
        yield op
        for bucket in ready.get(op.name, ()):
            reduction = _reduction(collective_name(bucket, "gradients"), parameters[bucket] * reduced_bytes, groups[bucket])
            yield replace(reduction, after=(op.name,), detached=True, layer=bucket[0])


def _reduction(name: str, payload_bytes: int, group: Communicator, purpose: Purpose = Purpose.REDUCE_GRADIENTS) -> Collective:
    return Collective(
        name=name,
        streams=(group.name,),
        purpose=purpose,
        part=Part.OPTIMIZER,
        communicator=group.name,
        kind="all_reduce",
        payload_bytes=payload_bytes,
    )


def _late_reductions(
    rank: int, late: Buckets, waits: tuple[Key, ...], program: Program, plan: DataParallel
) -> Iterator[tuple[Step, Body]]:
    """Reductions of the buckets that were not reduced as they became ready, in one collective per group of replicas."""
    parameters: dict[Communicator, int] = {}
    for stage, buckets in late.items():
        for bucket, number in buckets.items():
            if replica_count(program, stage, plan.replicas, bucket) > 1:
                group = replicas_of(program, stage, bucket)
                parameters[group] = parameters.get(group, 0) + number
    for group in sorted(parameters, key=lambda group: group.name):
        step = Step(f"reduce {group.name} {rank}", "reduce", after=waits, outputs=((END, (REDUCED, rank, group.name)),))
        yield step, Body((_reduction("gradients", parameters[group] * plan.reduced_bytes, group),))


def _end(
    rank: int, waits: tuple[Key, ...], buckets: Buckets, tied: Communicator | None, plan: DataParallel, *, early: bool
) -> Iterator[tuple[Step, Body]]:
    """The steps of a rank after the reduction of its gradients: the sum of a tied table, the norm, the optimizer."""
    if tied:
        # The whole table at once: the two ranks divide their shares of the optimizer differently.
        table_bytes = plan.tied_parameters * plan.gradient_bytes
        sync = _reduction("tied embedding", table_bytes, tied, Purpose.REDUCE_TIED_TABLE)
        summed = (REDUCED, "embedding")
        after = (COMPUTED,) if early else waits
        yield Step("reduce embedding", "reduce", after=after, outputs=((END, summed),)), Body((sync,))
        waits = (*waits, summed) if early else (summed,)
    parameters = sum(sum(of.values()) for of in buckets.values())
    if plan.clips:
        read = _elementwise((READ_FOR_NORM,), parameters, plan, Purpose.CLIP)
        yield Step(f"local norm {rank}", LOCAL_NORM, after=waits, outputs=((END, (READY, "locally")),)), read
        waits = ((READY, "locally"),)
    if plan.synchronised:
        norm = replace(_reduction(NORM, 0, WORLD, Purpose.NORM), kind="barrier")
        yield Step(NORM, NORM, after=waits, outputs=((END, (READY,)),)), Body((norm,))
        waits = ((READY,),)
    scale = _elementwise((CLIP,), parameters, plan, Purpose.CLIP).ops if plan.clips else ()
    update = Body((*scale, *_elementwise(plan.update, parameters, plan, Purpose.UPDATE).ops))
    yield Step(f"optimizer {rank}", OPTIMIZER, after=waits, outputs=((END, (UPDATED,)),)), update


def _elementwise(pieces: tuple[Piece, ...], parameters: int, plan: DataParallel, purpose: Purpose) -> Body:
    """Kernels over all parameters of a rank; none for a rank without parameters."""
    kernels = tuple(
        Compute(
            name=name,
            streams=(COMPUTE,),
            purpose=purpose,
            part=Part.OPTIMIZER,
            kernel=Rowwise(name, parameters, 1, FP32_BYTES, moved + gradients * plan.gradient_bytes),
        )
        for name, moved, gradients in pieces
    )
    return Body(kernels if parameters else (Wait(name=pieces[0].name, streams=(COMPUTE,), part=Part.OPTIMIZER),))
