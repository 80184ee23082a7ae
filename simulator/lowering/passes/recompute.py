"""Recomputation of activations: the backward pass repeats forward operations whose inputs and results were not kept.

A *segment* is a run of forward operations that are repeated together: whole layers, attention between its inputs and its
result, or operators from a list. In the forward pass a segment keeps only its input. The backward pass repeats the segment, with
its collectives and casts, right before the first operation that needs what was not kept. The repeated operations hold what the
original operations would have held, until the backward pass of their layer ends. Reference: Korthikanti et al., arXiv 2205.05198.

In formats of eight or four bits a GEMM keeps its input as cast, where the framework does. The cast between listed operators and
such a GEMM is then repeated with them, and a row of listed operators that begins with a GEMM begins with its kept cast.

Megatron Core recomputes the first layers of a stage one by one (method `block`) or several together (`uniform`,
transformer_block.py). Of some listed modules it also discards the results, which other modules would keep
(CheckpointWithoutOutput, tensor_parallel/random.py). torchtitan recomputes every k-th layer, beginning with the k-th
(parallelize_llama.py). PyTorch stops early ("Rule 5" in torch/utils/checkpoint.py). Its operators save their inputs before they
run (tools/autograd/gen_variable_type.py), so that an operator whose input is the last tensor needed does not run again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile, groupby, takewhile

from ...kernels import Attention, Rowwise, Split
from ...plan.plan import Recompute
from ...program.program import AnyOp, Body, Compute, Program, Purpose
from ...program.slot import BACKWARD, FORWARD, INPUT_GRADIENT

CASTS = (Purpose.CAST, Purpose.CAST_WEIGHTS)
KEEP_RESULTS = ("dropout", "softmax")
"""Operators on rows that hold what they make (a mask, probabilities), not their input."""


@dataclass(frozen=True, slots=True)
class _Segment:
    """Consecutive operations of a forward body that are repeated together."""

    ops: tuple[AnyOp, ...]
    consumer: Compute | None = None
    """The operation behind a segment of listed operators, which does not keep its input, the result of the segment."""

    @property
    def operators(self) -> set[str]:
        """The operators whose gradients need what the segment does not keep."""
        return {op.operator for op in self.ops} | ({self.consumer.operator} if self.consumer else set())


def recompute(program: Program, chosen: Recompute, *, keeps_casts: bool = False) -> Program:
    """The program with forward bodies that hold less, and backward bodies (B, or I) that repeat what is needed.

    `keeps_casts` says whether GEMMs keep their inputs as cast.
    """
    if not chosen.words:
        return program
    bodies = dict(program.bodies)
    for order in program.orders:
        forward = {(step.stage, step.microbatch): step.body for step in order if step.phase == FORWARD}
        for step in order:
            if step.phase in (BACKWARD, INPUT_GRADIENT) and bodies[step.body] is program.bodies[step.body]:
                name = forward[step.stage, step.microbatch]
                bodies[name], bodies[step.body] = _recomputed(
                    program.bodies[name], program.bodies[step.body], chosen, keeps_casts=keeps_casts
                )
    return replace(program, bodies=bodies)


def _recomputed(forward: Body, backward: Body, chosen: Recompute, *, keeps_casts: bool) -> tuple[Body, Body]:
    """A forward body that holds less, and its backward body with repeated operations."""
    held = {op.name: op.held_bytes for op in forward.ops}
    repeated: dict[str, list[AnyOp]] = {}
    for segment in _segments(forward.ops, chosen, keeps_casts=keeps_casts):
        before = next((op.name for op in backward.ops if op.operator in segment.operators), "")
        if not before:
            continue  # a frozen layer without a backward pass needs nothing again
        repeated.setdefault(before, []).extend(_repeated(segment, held, early_stop=chosen.early_stop))
    ops = tuple(replace(op, held_bytes=held[op.name]) for op in forward.ops)
    return Body(ops), Body(tuple(new for op in backward.ops for new in (*repeated.get(op.name, ()), op)))


def _segments(ops: Sequence[AnyOp], chosen: Recompute, *, keeps_casts: bool) -> Iterator[_Segment]:
    """The segments of a forward body, in forward order."""
    kernels = [op for op in ops if isinstance(op, Compute)]
    listed = {op.operator for op in kernels if op.listed}
    attention = {op.operator for op in kernels if isinstance(op.kernel, Attention) or op.split is Split.HEADS}

    def segment(op: AnyOp) -> tuple[int, bool] | None:
        """The segment of an operation: its first layer, and whether its operators are listed; None outside of segments."""
        if not chosen.takes(op.layer):
            return None
        if chosen.scope == "full":
            return op.layer // chosen.together, False
        if op.operator in listed:
            return op.layer, True
        return (op.layer, False) if chosen.scope == "selective" and op.operator in attention else None

    end = 0
    for key, run in groupby(ops, segment):
        members = tuple(run)
        end += len(members)
        if not key:
            continue
        if not key[1]:
            yield _Segment(members)
            continue
        behind = [op for op in ops[end:] if isinstance(op, Compute)]
        consumer = next((op for op in behind if op.purpose not in CASTS), None)
        if keeps_casts:
            casts = takewhile(lambda op: op.purpose in CASTS, behind)
            made = [op for op in casts if op.purpose is Purpose.CAST]
            members = (*dropwhile(lambda op: op.purpose is Purpose.CAST, members), *made)
        yield _Segment(members, consumer)


def _repeated(segment: _Segment, held: dict[str, int], *, early_stop: bool) -> Iterator[AnyOp]:
    """The repeated operations of a segment. Subtracts what they hold from the bytes that the forward pass holds (`held`)."""
    ops, result_bytes, holds = segment.ops, 0, dict[str, int]()
    first = next((op.name for op in ops if op.held_bytes > _made_bytes(op)), "")
    temporary_bytes = sum(op.freed_bytes for op in ops)
    for op in ops:
        kept = max(0, held[op.name] - _made_bytes(op)) if op.name == first else 0
        # what a collective brings and a later operation of the segment frees is held both times
        passing = 0 if isinstance(op, Compute) else min(held[op.name], temporary_bytes)
        temporary_bytes -= passing
        holds[op.name], held[op.name] = held[op.name] - kept, kept + passing
    if segment.consumer:
        kept = _made_bytes(segment.consumer)
        result_bytes, held[segment.consumer.name] = held[segment.consumer.name] - kept, kept
    elif early_stop:
        ops, result_bytes = _until_needed(ops, holds)
    names = {op.name: f"{op.name}.again" for op in ops}
    for op in ops:
        after = tuple(names[name] for name in op.after or () if name in names) or None
        held_bytes = holds[op.name] + (result_bytes if op is ops[-1] else 0)
        new = replace(op, name=names[op.name], purpose=Purpose.RECOMPUTE, after=after, held_bytes=held_bytes)
        yield replace(new, parameters=0, whole_parameters=0) if isinstance(new, Compute) else new


def _until_needed(ops: tuple[AnyOp, ...], holds: dict[str, int]) -> tuple[tuple[AnyOp, ...], int]:
    """The operations up to the last one whose result is needed, and the bytes of this result if a later operation holds it."""
    needed = [i for i, op in enumerate(ops) if holds[op.name]]
    of_experts = [i for i, op in enumerate(ops) if isinstance(op, Compute) and op.expert]
    if not any(holds[ops[i].name] for i in of_experts):
        needed += of_experts  # a rank without rows takes part in the same collectives as those with rows
    last = max(needed, default=0)
    if _made_bytes(ops[last]):
        end = max(i for i, op in enumerate(ops) if op.operator == ops[last].operator)
        return ops[: end + 1], 0
    return ops[:last], holds[ops[last].name]


def _made_bytes(op: AnyOp) -> int:
    """Bytes that an operation holds besides its input, because it makes them: a mask, probabilities, statistics of attention."""
    kernel = op.kernel if isinstance(op, Compute) else None
    if isinstance(kernel, Attention):
        return min(op.held_bytes, kernel.statistics_bytes)
    return op.held_bytes if kernel is None or (isinstance(kernel, Rowwise) and kernel.op in KEEP_RESULTS) else 0
