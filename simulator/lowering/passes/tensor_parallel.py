"""Tensor parallelism, as Megatron has it: linear layers divided by columns, then by rows, and sums where they meet.

Each rank of a group holds a share of every matrix. After a row layer (and after the embedding) the partial sums are
all-reduced forward; before a column layer the input's gradient is all-reduced backward; the loss over a divided vocabulary
needs three small all-reduces: the maximum, the sum of exponentials, and the target's logit. Reference: Shoeybi et al.,
arXiv 1909.08053.

With sequence parallelism each rank keeps only its share of the tokens between the divided layers. Every all-reduce of
activations becomes a reduce-scatter, and an all-gather stands before each divided region: the same bytes on the wire, norms and
residuals divided by the group, and activations kept in shares. Backward it is mirrored, and the input of a column layer, kept in
shares, is gathered once more for its weight gradient. Reference: Korthikanti et al., arXiv 2205.05198.

With overlap the sum of the gradient of a column layer's input runs beside the weight gradient, and the gather of the kept input
beside the input gradient. So the weight gradient leaves the chain: it waits only for that gather, and what follows waits for the
sum instead of for it. A split backward pass has no input gradient beside its weight gradients: there each of them follows its
gather in the chain, as without overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

from ...errors import InvariantBroken
from ...kernels import Attention, Gemm, Kernel, Part, Rowwise, Split
from ...program.op import AnyOp, Collective, Compute, Purpose
from ...program.program import Body, Communicator, Program

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
        if isinstance(op.kernel, Attention):
            raise InvariantBroken("attention is divided by heads and leaves no partial sums")
        yield _collective(op, Purpose.REDUCE, "all_reduce", op.kernel.result_bytes)
    if op.split is Split.LOSS and op.part is Part.FORWARD:
        rows = op.kernel.rows if isinstance(op.kernel, Rowwise) else 0
        for i in range(LOSS_SUMS):
            agree = _collective(op, Purpose.AGREE, "all_reduce", rows * FP32_BYTES)
            yield replace(agree, name=f"{agree.name}{i}")


def _collective(op: AnyOp, purpose: Purpose, kind: str, payload_bytes: int) -> Collective:
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


def sequence_parallel(program: Program, tp: int) -> Program:
    """Divides the tokens between the tensor-parallel regions among the `tp` ranks of each group."""
    if tp == 1:
        return program

    def in_shares(body: Body) -> Body:
        present = {(op.operator, op.part) for op in body.ops}
        return body.mapped(lambda op: _share(op, tp, present))

    return replace(program, bodies={name: in_shares(body) for name, body in program.bodies.items()})


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
        yield _collective(op, Purpose.GATHER, "all_gather", gathered)
    kernel = op.kernel
    if op.split is Split.COLUMN and isinstance(kernel, Gemm):
        if op.part is Part.INPUT_GRADIENT and (op.operator, Part.WEIGHT_GRADIENT) in present:
            yield _collective(op, Purpose.REGATHER, "all_gather", kernel.result_bytes)
        if op.part is Part.WEIGHT_GRADIENT and (op.operator, Part.INPUT_GRADIENT) not in present:
            yield _collective(op, Purpose.REGATHER, "all_gather", kernel.input_bytes)
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
