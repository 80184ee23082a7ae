"""From model, plan, job and schedule to a program: `build`, then one pass after another."""

from __future__ import annotations

from dataclasses import replace

from ..plan.plan import Plan
from ..program.program import Program
from ..program.slot import Layout
from ..workload.job import Job
from ..workload.model import Model
from .build import build
from .passes.data import DataParallel, data
from .passes.overlap import overlap_tensor
from .passes.pipeline import pipeline
from .passes.repeat import repeat
from .passes.sequence import sequence
from .passes.tensor import tensor

VOCABULARY_MULTIPLE = 128
"""A vocabulary that tensor-parallel ranks cannot divide evenly is padded to this many rows per rank, as Megatron pads it."""


def lower(model: Model, plan: Plan, job: Job, layout: Layout, *, dp: int, steps: int = 1) -> Program:
    """What every pipeline rank does in `steps` training steps, free of hardware."""
    program = build(_as_divided(model, plan.tp), job, layout)
    program = tensor(program, plan.tp)
    if plan.uses_sequence_parallel:
        program = sequence(program, plan.tp)
    program = overlap_tensor(program, plan.overlap.tp)
    tied = -(-_as_divided(model, plan.tp).vocab * model.hidden // plan.tp) if model.tied_embeddings else 0
    synchronised = plan.optimizer == "synchronised"
    how = DataParallel(dp, plan.sharding == "zero1", plan.overlap.dp, synchronised, job.element_bytes, tied)
    program = data(program, how)
    tokens = job.microbatch_size * job.sequence_length // layout.shape.splits
    activation_bytes = tokens * model.hidden * job.element_bytes
    if plan.uses_sequence_parallel:
        activation_bytes //= plan.tp
    program = pipeline(program, activation_bytes, overlaps=plan.overlap.pp)
    return repeat(program, steps)


def _as_divided(model: Model, tp: int) -> Model:
    """The model as tensor-parallel ranks hold it: a vocabulary that divides, and a key head for every rank at least."""
    rows = VOCABULARY_MULTIPLE * tp
    vocab = model.vocab if model.vocab % tp == 0 else -(-model.vocab // rows) * rows
    return replace(model, vocab=vocab, kv_heads=max(model.kv_heads, tp))
