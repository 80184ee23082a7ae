"""Gradient accumulation by kernels of its own: what a product yields is added to the gradients of earlier microbatches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...kernels import Gemm, Part, Rowwise
from ...program.op import AnyOp, Compute, Purpose
from ...program.program import Program


def accumulate(program: Program, *, element_bytes: int, gradient_bytes: int) -> Program:
    """Every weight gradient read in the job's format and added to one that is read and written in the gradients' own."""
    moved = element_bytes + 2 * gradient_bytes

    def change(op: AnyOp) -> Iterator[AnyOp]:
        yield op
        if isinstance(op, Compute) and op.part is Part.WEIGHT_GRADIENT and isinstance(op.kernel, Gemm):
            kernel = Rowwise("add", op.kernel.m, op.kernel.n, gradient_bytes, moved)
            after = (op.name,) if op.detached else None
            yield replace(op, name=f"{op.name}.sum", purpose=Purpose.ACCUMULATE, kernel=kernel, after=after)

    return program.with_bodies(change)
