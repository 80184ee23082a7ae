"""Rules of training: adapters and frozen layers, optimizers, documents that share a sequence."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import did_you_mean, shown
from ..fields import Contradiction
from ..kernels import UNFUSED, Gemm, Split
from ..workload.optimizer import Optimizer
from .scenario import Scenario

Found = Iterator[Contradiction]
WHOLE_MATRICES = ("none", "zero1")
"""Kinds of sharding that leave every rank whole matrices."""


def faults_of_learning(scenario: Scenario) -> Found:
    """Faults of frozen layers, and of plans that cannot be combined with frozen parameters."""
    job, model, plan = scenario.job, scenario.model, scenario.plan
    if job.frozen_layers > model.layers:
        message = f"{model.name} has {model.layers} layers, fewer than {job.frozen_layers}"
        yield "job.frozen_layers", message, f"at most {model.layers}"
    if job.frozen_layers and model.tied_embeddings:
        message = f"the embedding of {model.name} does not learn, but the head shares its table and does"
        yield "job.frozen_layers", message, "0, or a model without tied_embeddings"
    if job.lora:
        yield from _faults_of_adapters(scenario)
    if not job.learns_in_part:
        return
    field = "job.lora" if job.lora else "job.frozen_layers"
    if job.narrow:
        yield field, f"parameters that do not learn are not modelled in {job.dtype}", "dtype: bf16"
    if model.mtp_layers:
        yield field, "modules that predict further tokens are modelled only where all of the model learns", "mtp_layers: 0"
    if plan.recomputation.ops or plan.recomputation.scope == "per-op":
        message = "recomputation of single operators is not modelled beside parameters that do not learn"
        yield field, message, "recompute: full or selective, or none"
    if plan.vocabulary != "baseline":
        message = f"vocabulary {plan.vocabulary} is modelled only where all of the model learns"
        yield field, message, "vocabulary: baseline"


def _faults_of_adapters(scenario: Scenario) -> Found:
    """Faults of the rank of adapters, and of the layers that have one."""
    lora, model, tp = scenario.job.lora, scenario.model, scenario.plan.tp
    if not lora:
        return
    layers = (model.block.layer(model, batch=1, seq=1, element_bytes=1, number=number) for number in model.kinds.values())
    linear = [op for ops in layers for op in ops if isinstance(op.forward, Gemm) and op.split in (Split.COLUMN, Split.ROW)]
    names = list(dict.fromkeys(op.name for op in linear if not op.expert))
    for name in lora.targets:
        if name not in names:
            yield "job.lora.targets", f"no adapter of {shown(name)} is modelled in {model.name}", did_you_mean(name, names)
    if not lora.targets:
        yield "job.lora.targets", "is empty: nothing would learn", f"[{', '.join(names)}]"
    if lora.rank % tp:
        yield "job.lora.rank", f"{lora.rank} does not divide by tp {tp}", f"rank: {-(-lora.rank // tp) * tp}"
    if model.hidden % tp:
        yield "job.lora", f"hidden {model.hidden} of {model.name} does not divide by tp {tp}", "another tp"


def faults_of_optimizer(scenario: Scenario) -> Found:
    """Faults of the optimizer, and of gradient clipping."""
    job, plan, optimizer = scenario.job, scenario.plan, scenario.job.full_optimizer
    if job.gradient_clipping and plan.optimizer == "post-validated":
        message = "the passes of clipping are not modelled with an optimizer that does not wait for the norm"
        yield "job.gradient_clipping", message, "leave it out, or plan.optimizer: synchronised"
    if optimizer.kind != "muon":
        return
    if plan.full_sharding.kind not in WHOLE_MATRICES:
        message = f"muon needs whole matrices, which {plan.full_sharding.kind} divides"
        yield "job.optimizer", message, "sharding: zero1, or optimizer: adam"
    if isinstance(job.optimizer, Optimizer) and job.optimizer.tensor_parallel and plan.tp == 1:
        yield (
            "job.optimizer.tensor_parallel",
            "there is no tensor-parallel group that divides matrices",
            "use tp > 1, or leave it out",
        )
    if job.dtype == "fp16":
        yield "job.optimizer", "muon is not combined with fp16", "dtype: bf16"
    if job.lora:
        yield "job.optimizer", "muon is not modelled for adapters", "optimizer: adam"


def faults_of_packing(scenario: Scenario) -> Found:
    """Faults of documents that share a sequence."""
    plan, model = scenario.plan, scenario.model
    if not scenario.job.packing:
        return
    if scenario.framework.attention == UNFUSED:
        message = "attention in separate kernels computes the scores of all pairs of documents"
        yield "job.packing", message, "a library in framework.attention, or leave it out"
    if 0 < model.window < scenario.job.sequence_length:
        yield "job.packing", f"documents in windows of attention as in {model.name} are not modelled", "leave it out"
    if plan.splits > 1:
        yield "job.packing", "documents in parts of sequences are not modelled", "splits: 1, or leave it out"
    if plan.vocabulary == "redis":
        yield "job.packing", "redis counts the flop of sequences of one document", "vocabulary: baseline, or a layout"
