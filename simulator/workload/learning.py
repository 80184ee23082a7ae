"""Trained parameters: the operators of a model with frozen layers, or with adapters of low rank (LoRA) and frozen parameters.

A frozen operator has no weight gradient, and a frozen linear layer keeps no input. Gradients of inputs are computed after the
first trained operator; later stages compute all of them, since Megatron-LM's receive buffers require gradients
(`requires_grad=True`, core/pipeline_parallel/p2p_communication.py). An adapter of rank r is a product of two matrices, (inputs,
r) and (r, outputs), and a kernel that scales its result and adds it to that of its layer. References: Hu et al., arXiv
2106.09685; NVIDIA-NeMo/Megatron-Bridge 29836cce, src/megatron/bridge/peft/utils.py (`ParallelLinearAdapter`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from ..frozen import replace
from ..kernels import Attention, Gemm, Kernel, Rowwise, Split
from .blocks.dense import BlockOp, linear
from .job import Job, Lora
from .model import Model

Layered = tuple[int, BlockOp]
"""(layer within the stage or -1, operator)."""


def learning(operators: Sequence[Layered], job: Job, first_layer: int, *, embedding: bool) -> list[Layered]:
    """The operators of a stage in training, in forward order, with adapters; `first_layer` is the number of its layer 0.

    A stage with the embedding begins the model: no gradient of its input is needed.
    """
    if not job.learns_in_part:
        return [*operators]
    passes, behind = not embedding, not embedding
    found = []
    for layer, op in _with_adapters(operators, job.lora) if job.lora else operators:
        behind = behind or layer >= 0
        in_frozen_part = first_layer + layer < job.frozen_layers if layer >= 0 else not behind
        frozen = not op.adapter if job.lora else in_frozen_part
        found.append((layer, _frozen(op, passes) if frozen else replace(op, input_gradient=_if(passes, op))))
        passes = passes or not frozen
    return found


def _if(passes: bool, op: BlockOp) -> Kernel | None:
    """The kernel of the input gradient, if an operator before it is trained, or if the kernel computes both gradients."""
    return op.input_gradient if passes or op.fused_weight_gradient else None


def _frozen(op: BlockOp, passes: bool) -> BlockOp:
    """An operator without its weight gradient; without any backward pass if no operator before it is trained."""
    keeps = passes and op.weight_gradient is None  # a linear layer keeps its input only for the weight gradient
    return replace(
        op,
        input_gradient=op.input_gradient if passes else None,
        weight_gradient=None,
        fused_weight_gradient=False,
        saved_bytes=op.saved_bytes if keeps else 0,
        frozen=True,
    )


def _with_adapters(operators: Sequence[Layered], lora: Lora) -> Iterator[Layered]:
    """The operators of a model, and an adapter after every linear layer that has one."""
    inputs: set[tuple[int, int]] = set()  # (layer, width) of the inputs that adapters keep
    for layer, op in operators:
        yield layer, op
        if layer >= 0 and op.name in lora.targets and isinstance(op.forward, Gemm):
            shared = not op.saved_bytes and (layer, op.forward.k) in inputs
            yield from ((layer, new) for new in _adapter(op, op.forward, lora.rank, shared=shared))
            inputs.add((layer, op.forward.k))


def _adapter(op: BlockOp, base: Gemm, rank: int, *, shared: bool) -> Iterator[BlockOp]:
    """The operators of the adapter of a linear layer; `shared`: another adapter keeps the same input."""
    width = int(base.element_bytes)
    down = linear(f"{op.name}_lora_in", (base.m, base.k, rank, width), op.split, bias=False)
    yield replace(down, adapter="in", saved_bytes=0 if shared else down.saved_bytes)
    yield replace(linear(f"{op.name}_lora_out", (base.m, rank, base.n, width), op.split, bias=False), adapter="out")
    scaled = Rowwise("multiply", base.m, base.n, width, 5 * width)  # scaling reads one tensor and writes one, the sum three
    backward = replace(scaled, op="multiply_backward", bytes_per_element=2 * width)
    yield BlockOp(f"{op.name}_lora_sum", scaled, Split.INNER if op.split is Split.COLUMN else Split.SEQUENCE, backward)


def packed(op: BlockOp, fraction: float) -> BlockOp:
    """An operator on sequences of documents, within which a fraction of the scores lie."""
    forward, backward = op.forward, op.input_gradient
    if fraction == 1 or not isinstance(forward, Attention) or not isinstance(backward, Attention):
        return op
    return replace(op, forward=replace(forward, packed=fraction), input_gradient=replace(backward, packed=fraction))


def train_flop_per_token(model: Model, job: Job) -> float:
    """Flop that the training of one token needs, with the scores of whole documents, and without those that frozen parameters
    save."""
    tokens, fraction = job.sequence_length, job.packed_fraction
    flop: float = model.train_flop_per_token(tokens, causal=False)
    if job.packing:
        without_scores = model.train_flop_per_token(0, causal=False)
        flop = without_scores + (flop - without_scores) * fraction
    if not job.learns_in_part:
        return flop
    # So many sequences that every expert has whole tokens: an expert with less than one would count as if it had one.
    batch = model.experts // math.gcd(model.experts, tokens * model.experts_per_token) if model.experts else 1
    size = {"batch": batch, "seq": tokens, "element_bytes": job.element_bytes}
    kinds = {kind: model.block.layer(model, **size, number=number) for kind, number in model.kinds.items()}
    layers = ((i, op) for i in range(model.layers) for op in kinds[model.block.kind(model, i)])
    ends = (((-1, op) for op in of(model, **size)) for of in (model.block.embedding, model.block.head))
    operators = [(i, packed(op, fraction)) for part in (next(ends), layers, next(ends)) for i, op in part]
    saved = _flop(operators) - _flop(learning(operators, job, 0, embedding=True))
    return flop - saved / (batch * tokens)


def _flop(operators: Iterable[Layered]) -> int:
    """Flop of all kernels, by the full convention."""
    parts = (kernel for _, op in operators for kernel in (op.forward, op.input_gradient, op.weight_gradient))
    return sum(kernel.model_flop for kernel in parts if kernel)
