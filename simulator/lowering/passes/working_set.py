"""Working sets: the tensors that an operation reads and writes while it runs, beside what is held for the backward pass.

A forward operation reads its input and writes its result; what it keeps for the backward pass is held already. A backward
operation reads the gradient of its result and writes that of its input. The gradient of a weight is a separate tensor if no GEMM
adds it to earlier gradients; that of an embedding table always is, and is as large as the table (`torch.nn.Embedding` unless it
is `sparse`; megatron/core/tensor_parallel/layers.py of NVIDIA/Megatron-LM). Weights are not part of a working set.

The loss has its own copies of the logits, whose bytes the framework states (`MemoryOverhead.logit_bytes`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ...frozen import replace
from ...kernels import Attention, Gemm, Kernel, Part, Rowwise, Split
from ...program.operations import AnyOp, Compute, Purpose
from ...program.program import ACTIVATION, Body, Program
from ...program.slot import FORWARD, KINDS
from .data_parallel import OfParameters

LOSS = (Split.LOSS, Split.INNER)
"""How ranks divide the kernels of the loss, which are those after the layers."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes that working sets need."""

    element_bytes: int
    logit_bytes: int
    """Bytes of a logit at the peak of the loss."""
    gradients_elsewhere: OfParameters
    """Whether the gradients of weights are counted with the buffers of their reductions."""


def working_sets(program: Program, sizes: Sizes) -> Program:
    """The program with the bytes that each kernel of a pass takes while it runs."""
    bodies = dict(program.bodies)
    for order in program.orders:
        forward = {(step.stage, step.microbatch): program.bodies[step.body] for step in order if step.phase == FORWARD}
        for step in order:
            body = program.bodies[step.body]
            if step.phase in KINDS and bodies[step.body] is body:
                bodies[step.body] = Body(tuple(_working(body, forward[step.stage, step.microbatch], sizes)))
    return replace(program, bodies=bodies)


def keep_results(program: Program, sent_bytes: int) -> Program:
    """The program in which a stage keeps the result that it has sent, if any, until its backward pass."""
    bodies = dict(program.bodies)
    for order in program.orders:
        for step in order:
            sends = any(key[0] == ACTIVATION for _, key in step.outputs)
            if step.phase == FORWARD and sends and bodies[step.body] is program.bodies[step.body]:
                *ops, last = bodies[step.body].ops
                bodies[step.body] = Body((*ops, replace(last, held_bytes=last.held_bytes + sent_bytes)))
    return replace(program, bodies=bodies)


def _working(body: Body, forward: Body, sizes: Sizes) -> Iterator[AnyOp]:
    """The operations of a body with their working sets; `forward` is the forward pass of the same microbatch."""
    again_bytes = _repeated_bytes(body)
    inputs = {
        op.operator: replace(op, held_bytes=op.held_bytes + again_bytes[op.operator])
        for op in forward.ops
        if isinstance(op, Compute) and op.operator == op.name
    }
    added = {op.operator for op in body.ops if op.purpose is Purpose.ACCUMULATE}
    # a table that several look-ups share, or a look-up and a head, counts as a parameter of one of them
    outside = [op.parameters for op in inputs.values() if op.layer < 0]
    inputs |= {name: replace(op, parameters=max(outside)) for name, op in inputs.items() if op.split is Split.LOOKUP}
    # casts and sums of parts, repeated or not: what they read and write belongs to the operators beside them
    beside = {(op.operator, op.kernel) for op in forward.ops if isinstance(op, Compute) and op.purpose is not None}
    for op in (replace(op, held_results=()) if op.held_results else op for op in body.ops):
        first = inputs.get(op.operator)
        counts = isinstance(op, Compute) and op.purpose in (None, Purpose.ACCUMULATE, Purpose.RECOMPUTE)
        if isinstance(op, Compute) and counts and first and (op.operator, op.kernel) not in beside:
            yield replace(op, working_bytes=int(_working_bytes(op, first, sizes, makes_gradient=op.operator in added)))
        else:
            yield op


def _repeated_bytes(body: Body) -> Counter[str]:
    """The bytes that repeated operations hold, by the operator that reads them."""
    found = Counter[str]()
    for op in (op for op in body.ops if isinstance(op, Compute) and op.purpose is Purpose.RECOMPUTE):
        found[op.operator] += op.held_bytes
        for operator, size_bytes in op.held_results:
            found[operator] += size_bytes
            found[op.operator] -= size_bytes
    return found


def _working_bytes(op: Compute, first: Compute, sizes: Sizes, *, makes_gradient: bool) -> float:
    """Bytes that an operation takes while it runs; `first` is the forward operation of its operator, with all bytes that are held
    for it."""
    kernel, gradient_bytes = op.kernel, 0.0
    if op.layer < 0 and op.split in LOSS:
        logits = kernel.rows * kernel.columns if isinstance(kernel, Rowwise) else 0
        return max(0, logits * sizes.logit_bytes - first.held_bytes)
    if op.part is Part.FORWARD:
        return max(0.0, _tensors_bytes(op, kernel) - op.held_bytes)
    here = op.part is Part.WEIGHT_GRADIENT and not sizes.gradients_elsewhere[op.expert]
    if here and (op.split is Split.LOOKUP or makes_gradient):
        gradient_bytes = _elements_of_gradient(op, first) * sizes.element_bytes
    if op.purpose is Purpose.ACCUMULATE:
        return gradient_bytes
    if op.part is Part.WEIGHT_GRADIENT and isinstance(kernel, Gemm):
        # m inputs, n outputs, k tokens: the gradient of the result and that of the input, which exists already
        return gradient_bytes + kernel.batch * kernel.k * (kernel.m + kernel.n) * kernel.element_bytes
    kept_bytes = 0 if isinstance(kernel, Gemm) and op.split is not Split.HEADS else first.held_bytes
    return gradient_bytes + max(0.0, _tensors_bytes(op, kernel) - kept_bytes)


def _elements_of_gradient(op: Compute, first: Compute) -> int:
    """Elements of the gradient of a weight that an operation makes, or adds to others. A GEMM may have the weight of another
    operator, as a head has the table of the embedding."""
    kernel = op.kernel
    if op.split is Split.LOOKUP or isinstance(kernel, Attention):
        return first.parameters
    return kernel.batch * kernel.m * kernel.n if isinstance(kernel, Gemm) else kernel.rows * kernel.columns


def _tensors_bytes(op: Compute, kernel: Kernel) -> float:
    """Bytes of the tensors that a kernel reads and writes, without weights."""
    if isinstance(kernel, Gemm) and op.split is not Split.HEADS:
        return kernel.batch * kernel.m * (kernel.n + kernel.k) * kernel.element_bytes
    return kernel.traffic_bytes
