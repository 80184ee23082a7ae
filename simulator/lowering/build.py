"""The pipeline before any other parallelism: stages, bodies of unsplit operators, and steps in the order of the schedule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from ..frozen import replace
from ..kernels import Part
from ..plan.plan import Plan
from ..plan.stage_layers import stage_layers
from ..program.layout import Layout
from ..program.operations import COMPUTE, Compute, Wait
from ..program.program import ACTIVATION, END, GRADIENT, LAST, LOSS, Body, Key, Program, Stage, Step
from ..program.slot import BACKWARD, FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Slot, slots_of
from ..workload.blocks.dense import BlockOp
from ..workload.blocks.prediction import further_tokens
from ..workload.framework import Framework
from ..workload.job import Job
from ..workload.learning import learning, packed
from ..workload.model import Model
from .attention_inputs import making
from .chunked_head import chunks_head
from .kept_inputs import keep_inputs
from .kernels_of_framework import framework_kernels
from .passes.vocabulary import kernels_of_stage

PARTS = {
    FORWARD: (Part.FORWARD,),
    BACKWARD: (Part.INPUT_GRADIENT, Part.WEIGHT_GRADIENT),
    INPUT_GRADIENT: (Part.INPUT_GRADIENT,),
    WEIGHT_GRADIENT: (Part.WEIGHT_GRADIENT,),
}
"""The parts of an operator that run in a slot of each kind."""
Called = tuple[str, int, int]
"""What a slot calls: kind, stage, and part of the sequence."""


def build(model: Model, plan: Plan, job: Job, layout: Layout, framework: Framework) -> Program:
    """Bodies for F, B, I and W with the framework's kernels of each stage, called in the order of the schedule.

    Kernels are those of the tokens of one context-parallel rank. Stages share bodies, unless every layer has a load of its own.
    """
    narrow = bool(job.narrow) and framework.low_precision.keeps_narrow_inputs
    original = bool(job.narrow) and framework.low_precision.keeps_originals(job.dtype)
    counts = stage_layers(plan, model, job.sequence_length, layout.layered)
    stages = tuple(stages_of((*counts, *[0] * layout.shares), layout))
    fraction, job = job.packed_fraction, replace(job, sequence_length=job.sequence_length // plan.cp)
    embedded, headed = ({s.rank for s in stages if getattr(s, end)} for end in ("embedding", "head"))
    together = embedded == headed  # one rank has both ends, and holds a shared table once
    bodies: dict[str, Body] = {}
    kernels: dict[str, list[tuple[int, BlockOp]]] = {}
    names: dict[Called, str] = {}
    for kind, number, part in called_by(layout):
        stage = stages[number]
        name = work_of(model, plan, job, stage, part if layout.shape.splits > 1 else -1)
        if name not in kernels:
            whole = ((i, packed(op, fraction)) for i, op in _operators(model, job, stage, together, layout.shape.splits, part))
            listed = plan.recomputation.ops
            operators = [(i, replace(op, listed=True) if i >= 0 and op.name in listed else op) for i, op in whole]
            of = framework_kernels(operators, framework, plan.tp, chunked=chunks_head(plan, framework), dtype=job.dtype)
            of = kernels_of_stage(of, stage, layout.shape.ranks) if layout.shares else of
            of = learning(of, job, stage.first_layer, embedding=stage.embedding)
            kernels[name] = keep_inputs(of, narrow=narrow, original=original, by_heads=plan.divides_heads_by > 1)
        names[kind, number, part] = body = f"{kind} of {name}"
        if body not in bodies:
            bodies[body] = _body(kind, kernels[name])
    return Program(stages, bodies, steps_of(layout, names), {})


def work_of(model: Model, plan: Plan, job: Job, stage: Stage, part: int) -> str:
    """The *work* of a stage as text: everything that its bodies depend on, for whole sequences (part -1) or for a part of them.
    Stages of equal work share bodies."""
    ends = "embedding, " * stage.embedding, ", head" * stage.head
    name = f"{ends[0]}{_layers_of(model, stage)} layers{ends[1]}" + ", share" * stage.share
    name += f", part {part}" if part >= 0 else ""
    frozen = min(max(0, job.frozen_layers - stage.first_layer), stage.layers)
    name += f", {frozen} frozen" if frozen else ""
    return name + (f", stage {stage.number}" if plan.moe.layers_differ else "")


def called_by(layout: Layout) -> Iterable[Called]:
    """The bodies that the slots of a layout call, in the order of their first calls."""
    slots = (slot for boxes in layout.orders for box in boxes for slot in slots_of(box))
    return dict.fromkeys((kind, stage, microbatch % layout.shape.splits) for kind, stage, microbatch in slots)


def names_of(layout: Layout, program: Program) -> dict[Called, str]:
    """The names of the bodies that a program of the same slots calls."""
    splits, steps = layout.shape.splits, (step for order in program.orders for step in order)
    return {(step.phase, step.stage % layout.stages, step.microbatch % splits): step.body for step in steps}


def steps_of(layout: Layout, names: Mapping[Called, str]) -> tuple[tuple[Step, ...], ...]:
    """The steps of every rank in the order of the schedule, given the names of their bodies."""
    splits, layered = layout.shape.splits, layout.layered
    first = [layout.instance(0, microbatch) for microbatch in range(layout.shape.microbatches)]

    def step(slot: Slot, pair: int) -> Step:
        kind, stage, microbatch = slot
        return _step(names[kind, stage, microbatch % splits], slot, first[microbatch], layered, pair)

    return tuple(
        tuple(step(slot, at if len(slots) > 1 else -1) for at, slots in enumerate(map(slots_of, boxes)) for slot in slots)
        for boxes in layout.orders
    )


def stages_of(counts: Sequence[int], layout: Layout) -> Iterator[Stage]:
    """The instances of the stages, given the number of layers of each stage in pipeline order."""
    for instance, rank in enumerate(layout.placement):
        number = instance % layout.stages
        share, ends = number >= layout.layered, (number == 0, number == layout.layered - 1)
        if share:
            ends = number < layout.layered + layout.shape.ranks, number >= layout.layered + layout.shape.ranks
        yield Stage(number, rank, layout.chunk(instance), sum(counts[:number]), counts[number], *ends, share)


def _operators(model: Model, job: Job, stage: Stage, together: bool, splits: int, part: int) -> list[tuple[int, BlockOp]]:
    """Operators as (layer within the stage or -1, operator) in forward order, for one of `splits` parts of every sequence.

    Modules for multi-token prediction are numbered like layers after the last one.
    """
    block, seq = model.block, job.sequence_length // splits
    size = {"batch": job.microbatch_size, "seq": seq, "element_bytes": job.element_bytes}
    before = block.embedding(model, **size) if stage.embedding else []
    tied = model.tied_embeddings
    after = block.head(model, **size, owns_table=not (tied and together)) if stage.head else []
    further = further_tokens(model, block, **size, prefix=part * seq, owns_table=not (tied or together)) if stage.head else ()
    kinds = [block.kind(model, number) for number in range(stage.first_layer, stage.first_layer + stage.layers)]
    layer = {kind: block.layer(model, **size, prefix=part * seq, number=stage.first_layer + kinds.index(kind)) for kind in kinds}
    layers = [(-1, before), *((i, layer[kind]) for i, kind in enumerate(kinds)), (-1, after[:1])]
    modules = [(stage.layers + number if number >= 0 else -1, op) for number, op in further]
    return [*((i, op) for i, ops in layers for op in ops), *modules, *((-1, op) for op in after[1:])]


def _layers_of(model: Model, stage: Stage) -> str:
    """The numbers of the layers of a stage in order; with their kinds if the layers of the model differ."""
    kinds = (model.block.kind(model, number) for number in range(stage.first_layer, stage.first_layer + stage.layers))
    return ", ".join(f"{len(list(alike))} {kind}".strip() for kind, alike in groupby(kinds)) or "0"


def _body(kind: str, operators: list[tuple[int, BlockOp]]) -> Body:
    """The body of a slot: F in forward order; B, I and W in reverse, with input gradients, weight gradients or (B) both.

    A slot without a kernel, such as the input gradients of a stage with only the embedding, just waits for its input.
    """
    order = operators if kind == FORWARD else reversed(operators)
    kernels = tuple(making(new, op.makes) for layer, op in order for part in PARTS[kind] for new in _compute(layer, op, part))
    return Body(kernels or (Wait(name="wait for input", streams=(COMPUTE,), part=PARTS[kind][0]),))


def _compute(layer: int, op: BlockOp, part: Part) -> Iterator[Compute]:
    """The kernel of one part of an operator; nothing if the operator has no such part."""
    kernel = {Part.FORWARD: op.forward, Part.INPUT_GRADIENT: op.input_gradient, Part.WEIGHT_GRADIENT: op.weight_gradient}[part]
    if kernel is None:
        return
    name = f"{layer}.{op.name}" if layer >= 0 else op.name
    forward, inputs = part is Part.FORWARD, part is Part.INPUT_GRADIENT
    yield Compute(
        name=name if forward else f"{name}.{'dgrad' if inputs else 'wgrad'}",
        operator=name,
        streams=(COMPUTE,),
        layer=layer,
        part=part,
        kernel=kernel,
        split=op.split,
        expert=op.expert,
        frozen=op.frozen,
        adapter=op.adapter,
        matrices=op.matrices,
        listed=op.listed,
        keeps_result=op.keeps_result and forward,
        input_kept=op.input_kept,
        input_shared=op.input_shared,
        parameters=op.parameters if forward else 0,
        whole_parameters=op.whole_parameters if forward else 0,
        held_bytes=op.saved_bytes if forward else 0,
        adds_gradient=not forward and (op.fused_weight_gradient or not inputs),
    )


def _step(body: str, slot: Slot, first: int, layered: int, pair: int) -> Step:
    """The step of a slot: the call of a body, with the keys that the step waits for and produces. `first` is the instance of
    stage 0 through which its microbatch passes, `layered` the number of stages that hold layers."""
    kind, number, microbatch = slot
    stage, last = first + number, number == layered - 1
    done = (LAST, ("done", kind, stage, microbatch))
    if number >= layered:
        return Step(body, kind, stage, microbatch, outputs=(done,))
    after: tuple[Key, ...] = ()
    outputs: tuple[tuple[str, Key], ...] = (done,)
    if kind == "F":
        after = ((ACTIVATION, stage, microbatch),) if number else ()
        outputs = ((END, (LOSS, stage, microbatch) if last else (ACTIVATION, stage + 1, microbatch)), done)
    elif kind in ("B", "I"):
        after = ((LOSS if last else GRADIENT, stage, microbatch),)
        outputs = ((END, (GRADIENT, stage - 1, microbatch)), done) if number else (done,)
    return Step(body, kind, stage, microbatch, after, outputs, pair=pair)
