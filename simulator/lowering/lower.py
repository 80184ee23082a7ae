"""Lowering of model, plan, job and schedule to a program: `build`, then one pass after another.

`build` (build.py) writes the pipeline before any other parallelism. The program has several training steps from a standing start,
or the one step that stands for every step of a run (iterations.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm

from ..frozen import replace
from ..kernels import NARROW_BYTES
from ..plan.plan import Plan
from ..program.layout import Layout
from ..program.program import Program
from ..workload.framework import Framework, MemoryOverhead
from ..workload.job import ELEMENT_BYTES, Job
from ..workload.model import Model
from .build import build, names_of, steps_of
from .chunked_head import chunks_head
from .iterations import between_norms, repeat
from .passes.accumulate import accumulate, whole_table_gradients
from .passes.context_parallel import ContextParallel, context_parallel
from .passes.data_parallel import FP32_BYTES, DataParallel, OfParameters, Replicas, data_parallel
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
from .passes.shards import ShardedState, all_reduced
from .passes.single_tensors import single_tensors
from .passes.tensor_parallel import tensor_parallel
from .passes.vocabulary import SharedVocabulary, vocabulary
from .passes.working_set import Sizes, keep_results, working_sets
from .passes.zero1 import zero1
from .passes.zero3 import zero3
from .roles import joined
from .segments import Keeping

VOCABULARY_MULTIPLE = 128
"""A vocabulary that tensor-parallel ranks cannot divide evenly is padded to a multiple of this many rows per rank, as in
Megatron."""


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
    whole_slots: bool = False,
) -> Program:
    """The hardware-free program of `steps` training steps, or (None) from one gradient norm to the next, per role.

    `dp` ranks, including context-parallel ones, hold the same parameters and reduce their gradients. `slots` may be the result
    of `lower_slots` for the same plan and another number of microbatches; no operation is then lowered twice. With `whole_slots`
    every slot is one step, as is needed to count the memory of slots and to time them.
    """
    if slots and not (plan.shares_vocabulary or plan.offloading.activations):  # the passes of both change steps too
        slots = [replace(program, orders=steps_of(layout, names_of(layout, program))) for program in slots]
    else:
        slots = lower_slots(model, plan, job, layout, dp=dp, framework=framework)
    programs = [_lowered(of, model, plan, job, layout, dp=dp, framework=framework, whole_slots=whole_slots) for of in slots]
    programs = [between_norms(program) if steps is None else repeat(program, steps) for program in programs]
    return joined(programs, "cp", [(position,) for position in range(plan.cp)]) if len(programs) > 1 else programs[0]


def lower_slots(model: Model, plan: Plan, job: Job, layout: Layout, *, dp: int, framework: Framework) -> tuple[Program, ...]:
    """Programs of the slots alone: without reductions of gradients, optimizer, gathers of parameters, and transfers.

    One program serves all ranks, or each position in a ring without load balancing has its own.
    """
    positions: Sequence[int | None] = (None,) if plan.cp_balance else range(plan.cp)
    return tuple(_slots(model, plan, job, layout, dp=dp, framework=framework, position=position) for position in positions)


def _slots(model: Model, plan: Plan, job: Job, layout: Layout, *, dp: int, framework: Framework, position: int | None) -> Program:
    """The slots of every pipeline rank, for ranks at a position in a ring without load balancing, or (None) for all."""
    overlap, sequence, sharding = plan.overlap.over(framework.overlap), plan.uses_sequence_parallel, plan.full_sharding
    shares, element_bytes, gradient_bytes = plan.tp if sequence else 1, job.element_bytes, framework.gradient_bytes(job)
    narrow, model, tokens = quantisation(plan, job, framework, dp), _divisible(model, plan), _tokens(plan, job, layout)
    program = build(model, plan, job, layout, framework)
    if plan.shares_vocabulary:
        program = vocabulary(program, SharedVocabulary(plan.vocabulary, tokens // shares, model.hidden, element_bytes))
    beside, gathered = overlap.tp is not False, framework.gathered_inputs
    program = tensor_parallel(program, plan.tp, sequence=sequence, overlap=beside, keeps_gathered=gathered)
    program = _divided(program, model, plan, job, tokens, position, framework=framework)
    program = quantise(program, narrow) if narrow else program
    if overlap.tp == "decomposed" and sequence and plan.tp > 1 and not job.lora:
        program = decomposed_gemms(program, plan.tp)
    each, fused = Replicas(dp, plan.copies_of_experts(dp)).several(sharding.reduce == "each"), framework.fusion.accumulation
    sums, chunked = (not (fused or each[0]), not (fused or each[1])), chunks_head(plan, framework)
    if any(sums) or chunked:
        program = accumulate(program, (element_bytes, gradient_bytes), whole=sums, chunked=chunked)
    if not framework.fusion.embedding_gradient:
        widths, tied = (element_bytes, gradient_bytes), model.shares_table and plan.pp == 1
        rows = -(-model.vocab // (plan.tp * plan.pp if plan.shares_vocabulary else plan.tp))
        program = whole_table_gradients(program, rows, widths, added=not each[0], tied=tied)
    kept = narrow is not None and framework.low_precision.keeps_narrow_inputs
    layer_bytes = tokens * model.hidden * element_bytes // shares
    program = recompute(program, plan.recomputation, layer_bytes, Keeping(kept, gathered, framework.compile))
    program = _agreed(program, narrow, plan, dp) if narrow else program
    sent_bytes = _sent_bytes(model, plan, job, layout, framework)
    return _with_memory(program, plan, framework.memory, sent_bytes, element_bytes, each)


def _lowered(
    slots: Program, model: Model, plan: Plan, job: Job, layout: Layout, *, dp: int, framework: Framework, whole_slots: bool
) -> Program:
    """The program of one training step of every pipeline rank, from its slots."""
    overlap, sharding = plan.overlap.over(framework.overlap), plan.full_sharding
    element_bytes, gradient_bytes = job.element_bytes, framework.gradient_bytes(job)
    reduced_bytes = _reduced_bytes(plan, job, framework)
    narrow, model = quantisation(plan, job, framework, dp), _divisible(model, plan)
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
        whole_slots=whole_slots,
    )
    program = data_parallel(units(slots, sharding.unit), replicas)
    state = _sharded_state(model, plan, job, framework, dp, reduced_bytes)
    program = (zero3 if sharding.gathers else zero1)(program, state) if sharding.kind != "none" else program
    divided = state.replicas if sharding.kind != "none" else None
    if job.full_optimizer.kind == "muon":
        program = muon(program, Muon(job.full_optimizer, divided, plan.tp, gradient_bytes, element_bytes))
    elif framework.single_tensors and not plan.offloading.optimizer:
        program = single_tensors(program, divided)
    program = offload_state(program, OffloadedState(plan.offloading, replicas.replicas, state, framework.offload))
    program = all_reduced(program) if sharding.kind in framework.all_reduced_gradients else program
    program = cast_weights(program, narrow) if narrow else program
    sent_bytes = _sent_bytes(model, plan, job, layout, framework)
    program = _pipelined(program, layout, sent_bytes, plan.tp if _in_shares(plan, framework) else 1, beside=overlap.pp)
    return side_by_side(program) if plan.exchanges_beside_compute(framework.overlap) else program


def quantisation(plan: Plan, job: Job, framework: Framework, dp: int) -> Quantisation | None:
    """The narrow format of a job, if it has one. Parameters that are gathered again are cast again."""
    if not job.narrow:
        return None
    divided = _ranks_of_group(plan) or dp
    replicas, recipe = Replicas(divided, plan.copies_of_experts(divided)), framework.low_precision
    anew = replicas.several(plan.full_sharding.regathers)
    arriving = replicas.several(plan.full_sharding.kind != "none" and _gathers_narrow(plan, job, framework))
    shares = plan.tp if plan.uses_sequence_parallel else 1
    return Quantisation(job.dtype, recipe, job.element_bytes, shares, anew, arriving, framework.gathered_inputs)


def _gathers_narrow(plan: Plan, job: Job, framework: Framework) -> bool:
    """Whether ranks that divide the optimizer or the parameters gather weights in the narrow format of the job."""
    return framework.low_precision.gathers_narrow(job.dtype, divided=plan.full_sharding.gathers)


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


def _divided(
    program: Program, model: Model, plan: Plan, job: Job, tokens: int, position: int | None, *, framework: Framework
) -> Program:
    """The program of ranks that share sequences and experts."""
    gathers, beside, wide = plan.cp_kind == "all-gather", plan.overlap.cp, framework.fp32_rings
    program = context_parallel(program, ContextParallel(plan.cp, plan.divides_heads_by, gathers, beside, position, wide))
    if not model.experts:
        return program
    narrow = framework.low_precision.narrow_dispatch
    return expert_parallel(program, ExpertParallel.of(model, plan, job, tokens // plan.tp, narrow=narrow))


def _reduced_bytes(plan: Plan, job: Job, framework: Framework) -> int:
    """Bytes of a gradient in its reduction. Where gradients of a whole stage are copied, the copy is in the training dtype."""
    if plan.full_sharding.reduce_dtype:
        return ELEMENT_BYTES[plan.full_sharding.reduce_dtype]
    accumulated = framework.gradient_bytes(job)
    return min(accumulated, job.element_bytes) if framework.memory.whole_gradients else accumulated


def _sharded_state(model: Model, plan: Plan, job: Job, framework: Framework, dp: int, reduced_bytes: int) -> ShardedState:
    """What the passes of sharded state need; `reduced_bytes` are those of a gradient in its reduction."""
    sharding, has_master = plan.full_sharding, job.full_optimizer.master == "fp32"
    group = _ranks_of_group(plan)
    return ShardedState(
        replace(sharding, group=group),
        dp,
        job.element_bytes,
        reduced_bytes,
        overlaps=plan.overlap.over(framework.overlap).dp,
        pipelined=plan.pp > 1,
        gathers_beside_forward=framework.overlap.parameter_gather,
        tied=model.tied_embeddings,
        edp=plan.copies_of_experts(group or dp),
        master_bytes=FP32_BYTES if has_master else job.element_bytes,
        whole_tensors=framework.whole_tensors and sharding.kind == "zero1",
        weights_beside_master=framework.weights_beside_master,
        in_place_gathers=framework.in_place_gathers,
        narrow_bytes=NARROW_BYTES[job.dtype] if _gathers_narrow(plan, job, framework) else 0.0,
    )


def _ranks_of_group(plan: Plan) -> int | None:
    """Number of ranks among which state is divided; None for all ranks with the same state."""
    group = plan.full_sharding.group
    return group and group * plan.cp


def _agreed(program: Program, narrow: Quantisation, plan: Plan, dp: int) -> Program:
    """The program whose ranks reduce their scales, if the framework shares them."""
    if (over := narrow.shared_scales) == "none":
        return program
    return reduce_scales(program, over, plan.tp * (dp if over == "replicas" else plan.cp))


def _with_memory(
    program: Program, plan: Plan, memory: MemoryOverhead, sent_bytes: int, element_bytes: int, elsewhere: OfParameters
) -> Program:
    """The program with copies to the host, and with the bytes that operations keep, free, and need while they run."""
    program = offload_activations(program, plan.offloading)
    program = release_activations(keep_results(program, sent_bytes) if memory.stage_results else program)
    return working_sets(program, Sizes(element_bytes, memory.bytes_of_logit(plan.tp), elsewhere))


def _divisible(model: Model, plan: Plan) -> Model:
    """The model that tensor-parallel ranks can divide: with a padded vocabulary and at least one key head for every rank."""
    shares = plan.tp * (plan.pp if plan.shares_vocabulary else 1)
    rows = lcm(VOCABULARY_MULTIPLE * plan.tp, shares)
    vocab = model.vocab if model.vocab % shares == 0 else -(-model.vocab // rows) * rows
    return replace(model, vocab=vocab, kv_heads=max(model.kv_heads, plan.tp))
