"""Sequence parallelism: between the divided layers each rank keeps only its share of the tokens.

Every all-reduce of activations becomes a reduce-scatter, and an all-gather stands before each divided region: the same
bytes on the wire, norms and residuals divided by the group, and activations kept in shares. Backward it is mirrored, and
the input of a column layer, kept in shares, is gathered once more for its weight gradient. Reference: Korthikanti et al.,
arXiv 2205.05198.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...kernels import Gemm, Part, Rowwise, Split
from ...program.op import AnyOp, Collective, Compute, Purpose
from ...program.program import Body, Program
from .tensor_parallel import collective


def sequence_parallel(program: Program, tp: int) -> Program:
    """Divides the tokens between the tensor-parallel regions among the `tp` ranks of each group."""
    if tp == 1:
        return program
    return replace(program, bodies={name: _in_shares(body, tp) for name, body in program.bodies.items()})


def _in_shares(body: Body, tp: int) -> Body:
    present = {(op.operator, op.part) for op in body.ops}
    return body.mapped(lambda op: _share(op, tp, present))


def _share(op: AnyOp, tp: int, present: set[tuple[str, Part]]) -> Iterator[AnyOp]:
    """An op on one rank's share of the tokens. `present` are the operators of its body, and which parts of them it has."""
    if isinstance(op, Collective) and op.purpose is Purpose.REDUCE:
        yield replace(op, kind="reduce_scatter")
        return
    if not isinstance(op, Compute):
        yield op
        return
    if op.split is Split.SEQUENCE:
        yield replace(op, kernel=op.kernel.split(Split.SEQUENCE, tp), held_bytes=op.held_bytes // tp)
        return
    gathered = _gathered_bytes(op)
    if gathered:
        yield collective(op, Purpose.GATHER, "all_gather", gathered)
    kernel = op.kernel
    if op.split is Split.COLUMN and isinstance(kernel, Gemm):
        if op.part is Part.INPUT_GRADIENT and (op.operator, Part.WEIGHT_GRADIENT) in present:
            yield collective(op, Purpose.REGATHER, "all_gather", kernel.result_bytes)
        if op.part is Part.WEIGHT_GRADIENT and (op.operator, Part.INPUT_GRADIENT) not in present:
            yield collective(op, Purpose.REGATHER, "all_gather", kernel.input_bytes)
        op = replace(op, held_bytes=op.held_bytes // tp)
    yield op


def _gathered_bytes(op: Compute) -> int:
    """Bytes that the operator needs whole and finds in shares, or 0: its input forward, its result's gradient backward."""
    kernel = op.kernel
    if isinstance(kernel, Gemm):
        column_forward = op.split is Split.COLUMN and op.part is Part.FORWARD
        row_backward = op.split is Split.ROW and op.part is Part.INPUT_GRADIENT
        return kernel.input_bytes if column_forward or row_backward else 0
    if isinstance(kernel, Rowwise) and op.split is Split.LOOKUP and op.part is Part.WEIGHT_GRADIENT:
        return kernel.result_bytes
    return 0
