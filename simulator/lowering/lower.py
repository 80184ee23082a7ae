"""From model, plan, job and schedule to a program: `build`, then one pass after another."""

from __future__ import annotations

from dataclasses import replace

from ..plan.plan import Plan, shards_optimizer
from ..program.program import Program
from ..program.slot import Layout
from ..workload.framework import Framework
from ..workload.job import Job
from ..workload.model import Model
from .build import build
from .passes.accumulate import accumulate
from .passes.blocking import blocking
from .passes.data_parallel import DataParallel, data_parallel
from .passes.pipeline import pipeline
from .passes.quantise import Quantisation, cast_weights, quantise
from .passes.release import release_activations
from .passes.repeat import between_norms, repeat
from .passes.tensor_parallel import overlap_tensor, sequence_parallel, tensor_parallel
from .passes.zero1 import ShardedOptimizer, zero1

VOCABULARY_MULTIPLE = 128
"""A vocabulary that tensor-parallel ranks cannot divide evenly is padded to this many rows per rank, as Megatron pads it."""


def lower(
    model: Model, plan: Plan, job: Job, layout: Layout, *, dp: int, steps: int | None = 1, framework: Framework | None = None
) -> Program:
    """What every pipeline rank does in `steps` training steps, or (None) from one gradient norm to the next, free of hardware."""
    framework = framework or Framework()
    overlap = plan.overlap.over(framework.overlap)
    program = build(_as_divided(model, plan.tp), job, layout, framework)
    program = tensor_parallel(program, plan.tp)
    if plan.uses_sequence_parallel:
        program = sequence_parallel(program, plan.tp)
    program = overlap_tensor(program, overlap.tp)
    shares = plan.tp if plan.uses_sequence_parallel else 1
    narrow = Quantisation(job.dtype, framework.low_precision, job.element_bytes, shares) if job.narrow else None
    program = quantise(program, narrow) if narrow else program
    if not framework.fusion.accumulation:
        program = accumulate(program, element_bytes=job.element_bytes, gradient_bytes=framework.gradient_bytes)
    program = release_activations(program)
    program = data_parallel(program, _data_parallel(model, plan, dp, framework))
    if shards_optimizer(plan):
        program = zero1(program, ShardedOptimizer(dp, job.element_bytes, framework.overlap.parameter_gather))
    program = cast_weights(program, narrow) if narrow else program
    tokens = job.microbatch_size * job.sequence_length // layout.shape.splits
    program = pipeline(program, tokens * model.hidden * job.element_bytes // shares)
    program = program if overlap.pp else blocking(program, layout)
    return between_norms(program) if steps is None else repeat(program, steps)


def _data_parallel(model: Model, plan: Plan, dp: int, framework: Framework) -> DataParallel:
    """What data parallelism needs to know."""
    return DataParallel(
        dp,
        overlaps=plan.overlap.over(framework.overlap).dp,
        synchronised=plan.optimizer == "synchronised",
        tied_parameters=-(-_as_divided(model, plan.tp).vocab * model.hidden // plan.tp) if model.tied_embeddings else 0,
        gradient_bytes=framework.gradient_bytes,
        fused_optimizer=framework.fusion.optimizer,
    )


def _as_divided(model: Model, tp: int) -> Model:
    """The model as tensor-parallel ranks hold it: a vocabulary that divides, and a key head for every rank at least."""
    rows = VOCABULARY_MULTIPLE * tp
    vocab = model.vocab if model.vocab % tp == 0 else -(-model.vocab // rows) * rows
    return replace(model, vocab=vocab, kv_heads=max(model.kv_heads, tp))
