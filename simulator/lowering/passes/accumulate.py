"""Accumulation of gradients: kernels that PyTorch launches to add the gradient of a microbatch to that of those before it."""

from __future__ import annotations

from collections.abc import Iterator

from ...frozen import replace
from ...kernels import Gemm, Part, Rowwise, Split
from ...program.operations import AnyOp, Compute, Purpose
from ...program.program import Body, Program
from ..chunked_head import sums_of_chunks
from .data_parallel import OfParameters


def accumulate(program: Program, widths: tuple[int, int], *, whole: OfParameters, chunked: bool) -> Program:
    """A kernel after every weight gradient that reads the gradient in the job's format and adds to the accumulated gradient.

    `widths` are the bytes of both. `whole`: whether gradients that are not computed in chunks are added. If the head is
    `chunked`, every chunk adds its gradient to those of the others; the addition of their sum is not counted.
    """
    element_bytes, gradient_bytes = widths
    moved = element_bytes + 2 * gradient_bytes

    def kernels(op: Compute, gradient: Gemm) -> Iterator[tuple[str, Rowwise]]:
        if chunked and op.layer < 0:
            yield from ((f"{op.name}.{kernel.op}", kernel) for kernel in sums_of_chunks(gradient))
        elif whole[op.expert]:
            yield f"{op.name}.sum", Rowwise("add", gradient.m * gradient.batch, gradient.n, gradient_bytes, moved)

    def added(body: Body) -> Iterator[AnyOp]:
        for op in body.ops:
            yield op
            if isinstance(op, Compute) and op.part is Part.WEIGHT_GRADIENT and isinstance(op.kernel, Gemm):
                before = op.name
                for name, kernel in kernels(op, op.kernel):
                    same = replace(op, after=(before,) if op.detached else None, rows_of_variants=())
                    yield replace(same, name=name, purpose=Purpose.ACCUMULATE, kernel=kernel)
                    before = name

    return program.with_bodies(added)


def whole_table_gradients(program: Program, rows: int, widths: tuple[int, int], *, added: bool, tied: bool) -> Program:
    """The kernels around every backward look-up whose gradient has all `rows` of a rank's table, not only those looked up.

    A first kernel writes zeros (embedding_dense_backward_cuda of aten/src/ATen/native/cuda/Embedding.cu, pytorch/pytorch). With
    `added`, a last one adds the gradient to the accumulated one; where the head on the same rank has the table too (`tied`),
    to the gradient of the head, which is accumulated for both. `widths` are the bytes of both.
    """
    element_bytes, gradient_bytes = widths
    moved = 3 * element_bytes if tied else element_bytes + 2 * gradient_bytes

    def around(body: Body) -> Iterator[AnyOp]:
        for op in body.ops:
            if not (isinstance(op, Compute) and op.split is Split.LOOKUP and op.part is Part.WEIGHT_GRADIENT):
                yield op
                continue
            columns = op.kernel.columns if isinstance(op.kernel, Rowwise) else 0
            zeros = Rowwise("zero", rows, columns, element_bytes, element_bytes)
            total = replace(zeros, op="add", bytes_per_element=moved)
            yield replace(op, name=f"{op.name}.zero", purpose=Purpose.ZERO, kernel=zeros)
            yield replace(op, after=(f"{op.name}.zero",)) if op.detached else op
            if added:
                after = (op.name,) if op.detached else None
                yield replace(op, name=f"{op.name}.sum", purpose=Purpose.ACCUMULATE, kernel=total, after=after)

    return program.with_bodies(around)
