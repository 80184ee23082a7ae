"""Lowering of model, plan, job and schedule to a program: `build`, then one pass after another.

`build` writes the pipeline before any other parallelism: stages, bodies of unsplit operators, steps in schedule order. The
program has several training steps from a standing start, or the one step that stands for every step of a run (iterations.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import lcm

from ..frozen import replace
from ..kernels import Part
from ..plan.plan import Plan
from ..plan.stage_layers import stage_layers
from ..program.layout import Layout
from ..program.program import (
    ACTIVATION,
    COMPUTE,
    END,
    GRADIENT,
    LAST,
    LOSS,
    Body,
    Compute,
    Key,
    Program,
    Stage,
    Step,
    Wait,
)
from ..program.slot import BACKWARD, FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Pair, Slot, slots_of
from ..workload.blocks.dense import BlockOp
from ..workload.blocks.prediction import further_tokens
from ..workload.framework import Framework, MemoryOverhead
from ..workload.job import ELEMENT_BYTES, Job
from ..workload.learning import learning, packed
from ..workload.model import Model
from .chunked_head import chunks_head
from .iterations import between_norms, repeat
from .kernels_of_framework import accumulate, framework_kernels
from .passes.context_parallel import ContextParallel, context_parallel
from .passes.data_parallel import DataParallel, OfParameters, Replicas, data_parallel
from .passes.decomposed_gemms import decomposed_gemms
from .passes.expert_overlap import side_by_side
from .passes.expert_parallel import ExpertParallel, expert_parallel
from .passes.gather_shares import gather_shares
from .passes.muon import Muon, muon
from .passes.offload_activations import offload_activations
from .passes.offload_state import OffloadedState, offload_state
from .passes.pipeline import blocking, pipeline
from .passes.quantise import Quantisation, cast_weights, quantise
from .passes.recompute import recompute
from .passes.release import release_activations
from .passes.scales import reduce_scales
from .passes.sharded_units import units
from .passes.shards import ShardedState
from .passes.tensor_parallel import tensor_parallel
from .passes.vocabulary import SharedVocabulary, kernels_of_stage, vocabulary
from .passes.working_set import Sizes, keep_results, working_sets
from .passes.zero1 import zero1
from .passes.zero3 import zero3
from .roles import joined

PARTS = {
    FORWARD: (Part.FORWARD,),
    BACKWARD: (Part.INPUT_GRADIENT, Part.WEIGHT_GRADIENT),
    INPUT_GRADIENT: (Part.INPUT_GRADIENT,),
    WEIGHT_GRADIENT: (Part.WEIGHT_GRADIENT,),
}
"""The parts of an operator that run in a slot of each kind."""
Called = tuple[str, int, int]
"""What a slot calls: kind, stage, and part of the sequence."""
VOCABULARY_MULTIPLE = 128
"""A vocabulary that tensor-parallel ranks cannot divide evenly is padded to this many rows per rank, as Megatron pads it."""


def lower(
    model: Model,
    plan: Plan,
    job: Job,
    layout: Layout,
    *,
    dp: int,
    framework: Framework,
    steps: int | None = 1,
    slots: Sequence[Program] = (),
) -> Program:
    """The hardware-free program of `steps` training steps, or (None) from one gradient norm to the next, per role.

    `dp` ranks hold the same parameters and share their gradients; ranks that share sequences are among them. `slots` may be what
    `lower_slots` made of the same plan for another number of microbatches; no operation is then lowered twice.
    """
    if slots and not (plan.shares_vocabulary or plan.offloading.activations):  # the passes of both change steps too
        slots = [replace(program, orders=steps_of(layout, _names(layout, program))) for program in slots]
    else:
        slots = lower_slots(model, plan, job, layout, dp=dp, framework=framework)
    programs = [_lowered(of, model, plan, job, layout, dp=dp, framework=framework, steps=steps) for of in slots]
    return joined(programs, "cp", [(position,) for position in range(plan.cp)]) if len(programs) > 1 else programs[0]


def lower_slots(model: Model, plan: Plan, job: Job, layout: Layout, *, dp: int, framework: Framework) -> tuple[Program, ...]:
    """Programs of the slots alone: without reductions of gradients, optimizer, gathers of parameters, and transfers.

    One program serves all ranks, or each position in a ring without balance has its own.
    """
    positions: Sequence[int | None] = (None,) if plan.cp_balance else range(plan.cp)
    return tuple(_slots(model, plan, job, layout, dp=dp, framework=framework, position=position) for position in positions)


def _slots(model: Model, plan: Plan, job: Job, layout: Layout, *, dp: int, framework: Framework, position: int | None) -> Program:
    """The slots of every pipeline rank, for ranks at a position in a ring without balance, or (None) for all."""
    overlap, sequence, sharding = plan.overlap.over(framework.overlap), plan.uses_sequence_parallel, plan.full_sharding
    shares, element_bytes, gradient_bytes = plan.tp if sequence else 1, job.element_bytes, framework.gradient_bytes(job)
    narrow, model, tokens = _quantisation(plan, job, framework, dp), _divisible(model, plan), _tokens(plan, job, layout)
    program = build(model, plan, job, layout, framework)
    if plan.shares_vocabulary:
        program = vocabulary(program, SharedVocabulary(plan.vocabulary, tokens // shares, model.hidden, element_bytes))
    program = tensor_parallel(program, plan.tp, sequence=sequence, overlap=overlap.tp is not False)
    program = _divided(program, model, plan, job, tokens, position)
    program = quantise(program, narrow) if narrow else program
    if overlap.tp == "decomposed" and sequence and plan.tp > 1 and not job.lora:
        program = decomposed_gemms(program, plan.tp)
    each, fused = Replicas(dp, plan.copies_of_experts(dp)).several(sharding.reduce == "each"), framework.fusion.accumulation
    sums, chunked = (not (fused or each[0]), not (fused or each[1])), chunks_head(plan, framework)
    if any(sums) or chunked:
        program = accumulate(program, (element_bytes, gradient_bytes), whole=sums, chunked=chunked)
    kept = narrow is not None and narrow.keeps_narrow_input
    program = recompute(program, plan.recomputation, keeps_casts=kept, compiled=framework.compile)
    program = _agreed(program, narrow, plan, dp) if narrow else program
    sent_bytes = _sent_bytes(model, plan, job, layout, framework)
    return _with_memory(program, plan, framework.memory, sent_bytes, element_bytes, each)


def _lowered(
    slots: Program, model: Model, plan: Plan, job: Job, layout: Layout, *, dp: int, framework: Framework, steps: int | None
) -> Program:
    """The program of every pipeline rank from its slots."""
    overlap, sharding = plan.overlap.over(framework.overlap), plan.full_sharding
    element_bytes, gradient_bytes = job.element_bytes, framework.gradient_bytes(job)
    reduced_bytes = ELEMENT_BYTES[sharding.reduce_dtype] if sharding.reduce_dtype else gradient_bytes
    narrow, model = _quantisation(plan, job, framework, dp), _divisible(model, plan)
    replicas = DataParallel(
        Replicas(dp, plan.copies_of_experts(dp)),
        overlaps=overlap.dp or sharding.kind not in ("none", "zero1"),
        synchronised=plan.waits_for_norm(job.gradient_clipping),
        tied_parameters=-(-model.vocab * model.hidden // plan.tp) if model.shares_table and not job.lora else 0,
        gradient_bytes=gradient_bytes,
        reduced_bytes=reduced_bytes,
        update=job.full_optimizer.pieces(element_bytes, fused=framework.fusion.optimizer),
        clips=job.gradient_clipping is True,
        each=sharding.reduce == "each",
    )
    program = data_parallel(units(slots, sharding.unit), replicas)
    state = _sharded_state(model, plan, framework, dp, (element_bytes, reduced_bytes))
    program = (zero3 if sharding.gathers else zero1)(program, state) if sharding.kind != "none" else program
    if job.full_optimizer.kind == "muon":
        program = muon(
            program, Muon(job.full_optimizer, state.replicas if sharding.kind != "none" else None, plan.tp, gradient_bytes)
        )
    program = offload_state(program, OffloadedState(plan.offloading, replicas.replicas, state, framework.offload))
    program = cast_weights(program, narrow) if narrow else program
    sent_bytes = _sent_bytes(model, plan, job, layout, framework)
    program = _pipelined(program, layout, sent_bytes, plan.tp if _in_shares(plan, framework) else 1, beside=overlap.pp)
    program = side_by_side(program) if plan.exchanges_beside_compute(framework.overlap) else program
    return between_norms(program) if steps is None else repeat(program, steps)


def _quantisation(plan: Plan, job: Job, framework: Framework, dp: int) -> Quantisation | None:
    """The narrow format of a job, if it has one. Parameters that are gathered anew are cast anew."""
    if not job.narrow:
        return None
    anew = Replicas(dp, plan.copies_of_experts(dp)).several(plan.full_sharding.regathers)
    shares = plan.tp if plan.uses_sequence_parallel else 1
    return Quantisation(job.dtype, framework.low_precision, job.element_bytes, shares, anew)


def _tokens(plan: Plan, job: Job, layout: Layout) -> int:
    """Number of tokens of a slot on a context-parallel rank."""
    return job.microbatch_size * job.sequence_length // (layout.shape.splits * plan.cp)


def _in_shares(plan: Plan, framework: Framework) -> bool:
    """Whether each tensor-parallel rank sends its share of what the next stage needs, which is gathered there."""
    return framework.p2p_scatter_gather and plan.tp > 1 and not plan.uses_sequence_parallel


def _sent_bytes(model: Model, plan: Plan, job: Job, layout: Layout, framework: Framework) -> int:
    """Bytes that a rank sends from stage to stage."""
    divided = plan.uses_sequence_parallel or _in_shares(plan, framework)
    return _tokens(plan, job, layout) * model.hidden * job.element_bytes // (plan.tp if divided else 1)


def _pipelined(program: Program, layout: Layout, sent_bytes: int, shares: int, *, beside: bool) -> Program:
    """The program with transfers between stages, of one of `shares` parts of what a stage needs."""
    program = pipeline(program, sent_bytes)
    program = program if beside else blocking(program, layout)
    return gather_shares(program, shares * sent_bytes) if shares > 1 else program


def _divided(program: Program, model: Model, plan: Plan, job: Job, tokens: int, position: int | None) -> Program:
    """The program of ranks that share sequences and experts."""
    gathers, beside = plan.cp_kind == "all-gather", plan.overlap.cp
    program = context_parallel(program, ContextParallel(plan.cp, plan.divides_heads_by, gathers, beside, position))
    return expert_parallel(program, ExpertParallel.of(model, plan, job, tokens // plan.tp)) if model.experts else program


def _sharded_state(model: Model, plan: Plan, framework: Framework, dp: int, widths: tuple[int, int]) -> ShardedState:
    """What the passes of sharded state need; `widths` are the bytes of a parameter and of a gradient in its reduction."""
    sharding, (element_bytes, reduced_bytes) = plan.full_sharding, widths
    group = sharding.group and sharding.group * plan.cp
    return ShardedState(
        replace(sharding, group=group),
        dp,
        element_bytes,
        reduced_bytes,
        overlaps=plan.overlap.over(framework.overlap).dp,
        pipelined=plan.pp > 1,
        gathers_beside_forward=framework.overlap.parameter_gather,
        tied=model.tied_embeddings,
        edp=plan.copies_of_experts(group or dp),
        whole_tensors=framework.whole_tensors and sharding.kind == "zero1",
    )


def _agreed(program: Program, narrow: Quantisation, plan: Plan, dp: int) -> Program:
    """The program whose ranks agree on their scales, where the framework shares them."""
    if (over := narrow.shared_scales) == "none":
        return program
    return reduce_scales(program, over, plan.tp * (dp if over == "replicas" else plan.cp))


def _with_memory(
    program: Program, plan: Plan, memory: MemoryOverhead, sent_bytes: int, element_bytes: int, elsewhere: OfParameters
) -> Program:
    """The program with what passes copy to the host, keep, free, and need while they run."""
    program = offload_activations(program, plan.offloading)
    program = release_activations(keep_results(program, sent_bytes) if memory.stage_results else program)
    return working_sets(program, Sizes(element_bytes, memory.bytes_of_logit(plan.tp), elsewhere))


def _divisible(model: Model, plan: Plan) -> Model:
    """The model that tensor-parallel ranks can divide: with a padded vocabulary and at least one key head for every rank."""
    shares = plan.tp * (plan.pp if plan.shares_vocabulary else 1)
    rows = lcm(VOCABULARY_MULTIPLE * plan.tp, shares)
    vocab = model.vocab if model.vocab % shares == 0 else -(-model.vocab // rows) * rows
    return replace(model, vocab=vocab, kv_heads=max(model.kv_heads, plan.tp))


def build(model: Model, plan: Plan, job: Job, layout: Layout, framework: Framework) -> Program:
    """Bodies for F, B, I and W with the framework's kernels of each stage, called in the order of the schedule.

    Kernels are those of the tokens of one context-parallel rank. Stages share bodies, unless every layer has a load of its own.
    """
    counts = stage_layers(plan, model, job.sequence_length, layout.layered)
    stages = tuple(stages_of((*counts, *[0] * layout.shares), layout))
    fraction, job = job.packed_fraction, replace(job, sequence_length=job.sequence_length // plan.cp)
    embedded, headed = ({s.rank for s in stages if getattr(s, end)} for end in ("embedding", "head"))
    together = embedded == headed  # one rank has both ends, and holds a table that they share once
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
            of = framework_kernels(operators, framework, plan.tp, chunked=chunks_head(plan, framework))
            of = kernels_of_stage(of, stage, layout.shape.ranks) if layout.shares else of
            kernels[name] = learning(of, job, stage.first_layer, embedding=stage.embedding)
        names[kind, number, part] = body = f"{kind} of {name}"
        if body not in bodies:
            bodies[body] = _body(kind, kernels[name])
    return Program(stages, bodies, steps_of(layout, names), {})


def work_of(model: Model, plan: Plan, job: Job, stage: Stage, part: int) -> str:
    """The work of a stage, as text: for whole sequences (part -1), or for a part of them. Stages of equal work share bodies."""
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


def _names(layout: Layout, program: Program) -> dict[Called, str]:
    """The names of the bodies that a program of the same slots calls."""
    splits, steps = layout.shape.splits, (step for order in program.orders for step in order)
    return {(step.phase, step.stage % layout.stages, step.microbatch % splits): step.body for step in steps}


def steps_of(layout: Layout, names: Mapping[Called, str]) -> tuple[tuple[Step, ...], ...]:
    """The steps of every rank in the order of the schedule, given the names of their bodies."""
    splits = layout.shape.splits
    return tuple(
        tuple(
            _step(names[slot.kind, slot.stage, slot.microbatch % splits], slot, layout, number if isinstance(box, Pair) else -1)
            for number, box in enumerate(boxes)
            for slot in slots_of(box)
        )
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

    Modules that predict further tokens are numbered like layers behind the last.
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
    """The numbers of layers of a stage, in their order; with their kinds where the layers of the model differ."""
    kinds = (model.block.kind(model, number) for number in range(stage.first_layer, stage.first_layer + stage.layers))
    return ", ".join(f"{len(list(alike))} {kind}".strip() for kind, alike in groupby(kinds)) or "0"


def _body(kind: str, operators: list[tuple[int, BlockOp]]) -> Body:
    """The body of a slot: F in forward order; B, I and W in reverse, with input gradients, weight gradients or (B) both.

    A slot without a kernel, such as the input gradients of a stage of the embedding alone, waits for its input only.
    """
    order = operators if kind == FORWARD else reversed(operators)
    kernels = tuple(new for layer, op in order for part in PARTS[kind] for new in _compute(layer, op, part))
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
        parameters=op.parameters if forward else 0,
        whole_parameters=op.whole_parameters if forward else 0,
        held_bytes=op.saved_bytes if forward else 0,
        adds_gradient=not forward and (op.fused_weight_gradient or not inputs),
    )


def _step(body: str, slot: Slot, layout: Layout, pair: int) -> Step:
    """The step of a slot: the call of a body, with the keys that the step waits for and produces."""
    kind, number, microbatch = slot
    stage, last = layout.instance(number, microbatch), number == layout.layered - 1
    if number >= layout.layered:
        return Step(body, kind, stage, microbatch, outputs=((LAST, ("done", kind, stage, microbatch)),))
    after: tuple[Key, ...] = ()
    outputs: tuple[tuple[str, Key], ...] = ()
    if kind == "F":
        after = ((ACTIVATION, stage, microbatch),) if number else ()
        outputs = ((END, (LOSS, stage, microbatch) if last else (ACTIVATION, stage + 1, microbatch)),)
    elif kind in ("B", "I"):
        after = ((LOSS if last else GRADIENT, stage, microbatch),)
        outputs = ((END, (GRADIENT, stage - 1, microbatch)),) if number else ()
    return Step(body, kind, stage, microbatch, after, (*outputs, (LAST, ("done", kind, stage, microbatch))), 0, pair)
