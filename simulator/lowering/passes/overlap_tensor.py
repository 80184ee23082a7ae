"""Overlap of tensor-parallel communication with compute, where Megatron's linear layers allow it.

In the backward pass of a column layer the sum of the input's gradient runs beside the weight gradient, and the gather of
the kept input beside the input gradient. So the weight gradient leaves the chain: it waits only for that gather, and what
follows waits for the sum instead of for it. A split backward pass has no input gradient beside its weight gradients: there
each of them follows its gather in the chain, as without overlap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...kernels import Part, Split
from ...program.op import AnyOp, Compute, Purpose
from ...program.program import Body, Program


def overlap_tensor(program: Program, enabled: bool) -> Program:
    """Takes weight gradients of column layers, and the gathers that only they need, out of the chain."""
    if not enabled:
        return program
    return replace(program, bodies={name: _loosened(body) for name, body in program.bodies.items()})


def _loosened(body: Body) -> Body:
    gathers = {op.operator: op.name for op in body.ops if op.purpose is Purpose.REGATHER and op.part is Part.INPUT_GRADIENT}
    passed_on = {op.operator for op in body.ops if op.part is Part.INPUT_GRADIENT}

    def change(op: AnyOp) -> Iterator[AnyOp]:
        of_column = isinstance(op, Compute) and op.split is Split.COLUMN and op.operator in passed_on
        if op.name == gathers.get(op.operator):
            yield replace(op, detached=True)
        elif of_column and op.part is Part.WEIGHT_GRADIENT:
            gather = gathers.get(op.operator)
            yield replace(op, detached=True, after=(gather,) if gather else ())
        else:
            yield op

    return body.mapped(change)
