"""Release of activations: the backward pass of a microbatch frees, layer by layer, the bytes that the forward pass holds.

The last kernel of a layer in B, or in W where the backward pass is split, frees the bytes that the operators of the layer hold,
and those that the backward pass recomputed. The last kernel of the pass frees the activations of a layer without a kernel in it.

Where the backward pass is split, autograd frees in I what only input gradients read, and W has the inputs of linear layers and
the gradients of their results (`WeightGradStore` in megatron/core/weight_grad_store.py of
sail-sg/zero-bubble-pipeline-parallelism @7633c5f1). Reference: Qi et al., arXiv 2401.10241, on M_B and M_W.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ...frozen import replace
from ...kernels import Attention, Gemm, Kernel, Part
from ...program.operations import AnyOp, Compute, Purpose
from ...program.program import Body, Program
from ...program.slot import BACKWARD, FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT

BETWEEN = (None, Purpose.RECOMPUTE, Purpose.EXCHANGE, Purpose.MERGE)
"""Purposes of the operations that hold, or free, what input gradients read. What attention holds of other ranks (`EXCHANGE`) is
freed by its own operations."""
Place = tuple[int, bool]
"""(layer within the stage or -1, whether the operation is in a layer or after the layers)."""


def release_activations(program: Program) -> Program:
    """The program with the bytes that each kernel frees, in every backward body that ends a microbatch on a stage."""
    bodies = dict(program.bodies)
    for order in program.orders:
        calls = {(step.stage, step.microbatch, step.phase): step.body for step in order}
        for step in order:
            body = program.bodies[step.body]
            if step.phase == FORWARD or bodies[step.body] is not body:
                continue
            phases = {BACKWARD: "FB", INPUT_GRADIENT: "FIW", WEIGHT_GRADIENT: "FIW"}.get(step.phase, "")
            passes = [bodies[calls[step.stage, step.microbatch, phase]] for phase in phases]
            if step.phase == INPUT_GRADIENT:
                bodies[step.body] = _between(body, passes[0], passes[2])
            elif passes:
                bodies[step.body] = _releasing(body, *passes)
    return replace(program, bodies=bodies)


def _between(body: Body, forward: Body, weights: Body) -> Body:
    """Input gradients that free what no weight gradient needs, and hold the gradients that weight gradients need."""
    gradients = (op for op in weights.ops if isinstance(op, Compute) and op.part is Part.WEIGHT_GRADIENT)
    needed = {op.operator: op.kernel for op in gradients if isinstance(op.kernel, Gemm)}  # not the sum of gradients
    own = {op.operator: op.name for op in body.ops if isinstance(op, Compute) and op.part is Part.INPUT_GRADIENT}
    last = _last_kernels(body)
    freed: dict[str, int] = {}
    attention = {op.operator for op in body.ops if isinstance(op, Compute) and isinstance(op.kernel, Attention)}
    for ops in (forward.ops, body.ops[::-1]):
        for place, op in _with_places(ops):
            for operator, held in _read_by(op, attention):
                if operator not in needed and (operator in own or place in last):
                    name = own.get(operator) or last[place]
                    freed[name] = freed.get(name, 0) + held
    # the first of several pieces of a GEMM holds the gradient for all of them
    first = {op.operator: op.name for op in reversed(body.ops) if _gradient_bytes(op, needed)}
    holding = (
        replace(op, held_bytes=op.held_bytes + _gradient_bytes(op, needed)) if op.name in first.values() else op
        for op in body.ops
    )
    return _freeing(holding, freed)


def _read_by(op: AnyOp, attention: set[str]) -> Iterator[tuple[str, int]]:
    """The operators that read what an operation holds, and its bytes, less what it frees. What came from other ranks stays for
    weight gradients, except for attention, and except for results that a repeated collective holds for another operator."""
    if op.purpose in BETWEEN and (isinstance(op, Compute) or op.operator in attention):
        yield op.operator, op.held_bytes - op.freed_bytes - sum(size_bytes for _, size_bytes in op.held_results)
    if op.purpose in BETWEEN:
        yield from op.held_results


def _gradient_bytes(op: AnyOp, needed: Mapping[str, Kernel]) -> int:
    """Bytes of the gradient of a result that a later weight gradient reads, in the format in which it is read."""
    is_gemm = isinstance(op, Compute) and isinstance(op.kernel, Gemm) and op.part is Part.INPUT_GRADIENT
    kernel = needed.get(op.operator) if is_gemm else None
    return int(kernel.batch * kernel.k * kernel.n * kernel.operand_bytes) if isinstance(kernel, Gemm) else 0


def _releasing(body: Body, forward: Body, *backward: Body) -> Body:
    """A backward body that frees everything that the bodies of its microbatch hold, including itself."""
    held_bytes: dict[Place, int] = {}
    for ops in (forward.ops, *(one.ops[::-1] for one in backward)):
        for place, op in _with_places(ops):
            held_bytes[place] = held_bytes.get(place, 0) + op.held_bytes - op.freed_bytes
    last = _last_kernels(body)
    end = next((op.name for op in reversed(body.ops) if isinstance(op, Compute)), body.ops[-1].name)
    freed: dict[str, int] = {}
    for place, held in held_bytes.items():
        name = last.get(place, end)
        freed[name] = freed.get(name, 0) + held
    return _freeing(body.ops, freed)


def _last_kernels(body: Body) -> dict[Place, str]:
    """The last kernel of each place in a backward body."""
    last: dict[Place, str] = {}
    for place, op in _with_places(reversed(body.ops)):
        if isinstance(op, Compute):
            last.setdefault(place, op.name)
    return last


def _freeing(ops: Iterable[AnyOp], freed: Mapping[str, int]) -> Body:
    """A body whose operations also free bytes, by name."""
    return Body(tuple(replace(op, freed_bytes=op.freed_bytes + freed[op.name]) if op.name in freed else op for op in ops))


def _with_places(ops: Iterable[AnyOp]) -> Iterator[tuple[Place, AnyOp]]:
    """Operations in forward order, each with its place."""
    behind = False
    for op in ops:
        behind = behind or op.layer >= 0
        yield (op.layer, behind), op
