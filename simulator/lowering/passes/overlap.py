"""Overlap of tensor-parallel communication with compute, where Megatron's linear layers allow it.

In the backward pass of a column layer the sum of the input's gradient runs beside the weight gradient, and the gather of
the kept input beside the input gradient. So the weight gradient leaves the chain: it waits only for that gather, and what
follows waits for the sum instead of for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...kernels import Part, Split
from ...program.op import AnyOp, Compute
from ...program.program import Body, Program
from .sequence import REGATHER


def overlap_tensor(program: Program, enabled: bool) -> Program:
    """Takes weight gradients of column layers, and the gathers that only they need, out of the chain."""
    if not enabled:
        return program
    return replace(program, bodies={name: _loosened(body) for name, body in program.bodies.items()})


def _loosened(body: Body) -> Body:
    regathers = {op.name for op in body.ops if op.name.endswith(f".{REGATHER}")}
    has_dgrad = {op.name for op in body.ops if isinstance(op, Compute) and op.part is Part.INPUT_GRADIENT}

    def change(op: AnyOp) -> Iterator[AnyOp]:
        twin = op.name.replace(".wgrad", ".dgrad")
        if op.name in regathers:
            yield replace(op, detached=True)
        elif isinstance(op, Compute) and op.part is Part.WEIGHT_GRADIENT and op.split is Split.COLUMN and twin in has_dgrad:
            gather = f"{twin}.{REGATHER}"
            yield replace(op, detached=True, after=(gather,) if gather in regathers else ())
        else:
            yield op

    return body.mapped(change)
