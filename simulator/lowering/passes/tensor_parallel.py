"""Tensor parallelism, as Megatron has it: linear layers divided by columns, then by rows, and sums where they meet.

Each rank of a group holds a share of every matrix. After a row layer (and after the embedding) the partial sums are
all-reduced forward; before a column layer the input's gradient is all-reduced backward; the loss over a divided vocabulary
needs three small all-reduces: the maximum, the sum of exponentials, and the target's logit. Reference: Shoeybi et al.,
arXiv 1909.08053.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

from ...errors import InvariantBroken
from ...kernels import Attention, Kernel, Part, Rowwise, Split
from ...program.op import AnyOp, Collective, Compute, Purpose
from ...program.program import Communicator, Program

TP = Communicator("tp", "tp", ("tp",))
FP32_BYTES = 4
LOSS_SUMS = 3


def tensor_parallel(program: Program, tp: int) -> Program:
    """Divides every operator among `tp` ranks and adds the all-reduces."""
    if tp == 1:
        return program

    @cache
    def share(kernel: Kernel, split: Split) -> Kernel:
        """One rank's share of a kernel; layers are alike, so that few kernels are met often."""
        return kernel if split is Split.LOOKUP else kernel.split(Split.INNER if split is Split.LOSS else split, tp)

    return program.with_bodies(lambda op: _divided(op, tp, share)).with_communicators(TP)


def _divided(op: AnyOp, tp: int, share: Callable[[Kernel, Split], Kernel]) -> Iterator[AnyOp]:
    if not isinstance(op, Compute) or op.split is Split.SEQUENCE:
        yield op
        return
    holds_share = op.split in (Split.ROW, Split.INNER, Split.HEADS, Split.LOSS)
    yield replace(
        op,
        parameters=op.whole_parameters + -(-(op.parameters - op.whole_parameters) // tp),
        kernel=share(op.kernel, op.split),
        held_bytes=op.held_bytes // tp if holds_share else op.held_bytes,
    )
    if (op.split in (Split.ROW, Split.LOOKUP) and op.part is Part.FORWARD) or (
        op.split is Split.COLUMN and op.part is Part.INPUT_GRADIENT
    ):
        yield collective(op, Purpose.REDUCE, "all_reduce", _summed_bytes(op.kernel))
    if op.split is Split.LOSS and op.part is Part.FORWARD:
        rows = op.kernel.rows if isinstance(op.kernel, Rowwise) else 0
        for i in range(LOSS_SUMS):
            agree = collective(op, Purpose.AGREE, "all_reduce", rows * FP32_BYTES)
            yield replace(agree, name=f"{agree.name}{i}")


def collective(op: AnyOp, purpose: Purpose, kind: str, payload_bytes: int) -> Collective:
    """A collective of the tensor-parallel group that stands beside an operator."""
    return Collective(
        name=f"{op.name}.{purpose.value}",
        streams=(TP.name,),
        layer=op.layer,
        purpose=purpose,
        part=op.part,
        twin=op.operator,
        communicator=TP.name,
        kind=kind,
        payload_bytes=payload_bytes,
    )


def _summed_bytes(kernel: Kernel) -> int:
    """Bytes of what the ranks have partial sums of: tokens x width."""
    if isinstance(kernel, Attention):
        raise InvariantBroken("attention is divided by heads and leaves no partial sums")
    return kernel.result_bytes
