"""Tensor parallelism as in Megatron: linear layers divided by columns, then by rows, with collectives for the partial sums.

Each rank of a group holds a share of every matrix. After a row layer (and after the embedding) the partial sums are
all-reduced forward; before a column layer the gradient of the input is all-reduced backward; the loss over a divided vocabulary
needs three small all-reduces: the maximum, the sum of exponentials, and the target's logit. Reference: Shoeybi et al.,
arXiv 1909.08053. Where the results of several row layers are added to each other (`Split.SUM`), the group reduces their sum.

With sequence parallelism each rank keeps only its share of the tokens between the divided layers. Every all-reduce of
activations becomes a reduce-scatter, and an all-gather precedes each divided region: the same bytes on the wire, norms and
residuals divided by the group, and activations kept in shares. The backward pass mirrors the forward pass, and gathers the input
of a column layer, which is kept in shares, once more for the weight gradient. Reference: Korthikanti et al., arXiv 2205.05198.
With DTensor the gather precedes the layer as an operation of its own, so that autograd keeps the gathered input, and nothing is
gathered again (`PrepareModuleInput` of torchtitan/models/llama3/infra/parallelize.py, pytorch/torchtitan @37e536d).

With overlap the all-reduce of the input gradient of a column layer runs beside the weight gradient, and the gather of the kept
input beside the input gradient. So the weight gradient leaves the chain: the weight gradient waits only for the gather, and later
ops wait for the all-reduce instead of the weight gradient. A split backward pass has no input gradient beside its weight
gradients: there each weight gradient follows its gather in the chain, as without overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

from ...errors import InvariantBroken
from ...frozen import replace
from ...kernels import Attention, Gemm, Kernel, Part, Rowwise, Split
from ...program.operations import AnyOp, Collective, Communicator, Compute, Purpose, collective_for
from ...program.program import Body, Program
from .adapters import divided_adapter

TP = Communicator("tp", "tp", ("tp",))
FP32_BYTES = 4
LOSS_SUMS = 3
HELD_BY_CHANNELS = (Split.ROW, Split.INNER, Split.HEADS, Split.LOSS)
"""Operators that hold a share of the channels for the backward pass."""
HELD_BY_TOKENS = (Split.SEQUENCE, Split.COLUMN, Split.GATHERED)
"""Operators that, with sequence parallelism, hold a share of the tokens."""
COLUMNS = (Split.COLUMN, Split.GATHERED)


def tensor_parallel(program: Program, tp: int, *, sequence: bool, overlap: bool, keeps_gathered: bool = False) -> Program:
    """Divides every operator among `tp` ranks and adds the collectives; with `sequence` tokens are divided between regions, and
    column layers keep their share of their input, or with `keeps_gathered` all of it.

    Operators of experts stay whole: `expert_parallel` divides these.
    """
    if tp > 1:

        @cache
        def share(kernel: Kernel, split: Split) -> Kernel:
            """The share of a kernel on one rank, cached because layers are alike and repeat a few kernels."""
            return kernel if split is Split.LOOKUP else kernel.split(Split.INNER if split is Split.LOSS else split, tp)

        program = program.with_communicators(TP).with_bodies(lambda body: _divided(body, tp, (sequence, keeps_gathered), share))
    return program.with_bodies(_with_detached_weight_gradients) if overlap else program


def _divided(body: Body, tp: int, tokens: tuple[bool, bool], share: Callable[[Kernel, Split], Kernel]) -> Iterator[AnyOp]:
    """The operations of a body; `tokens` says whether they are divided between regions, and whether they are kept as gathered."""
    sequence, keeps_gathered = tokens
    by_tokens = (Split.SEQUENCE,) if keeps_gathered else HELD_BY_TOKENS
    present = {(op.operator, op.part) for op in body.ops}
    summed = {op.layer for op in body.ops if isinstance(op, Compute) and op.split is Split.SUM}
    for op in body.ops:
        if not isinstance(op, Compute) or op.expert or (op.split is Split.SEQUENCE and not sequence):
            yield op
            continue
        if op.adapter:
            yield from divided_adapter(op, TP, tp, sequence=sequence)
            continue
        joined = op.split is Split.ROW and op.layer in summed
        if sequence and not joined:
            yield from (new for new in _gathers(op, present) if not (keeps_gathered and new.purpose is Purpose.REGATHER))
        parameters = op.whole_parameters + -(-(op.parameters - op.whole_parameters) // tp)
        held_bytes = op.held_bytes
        if sequence and keeps_gathered and op.part is Part.FORWARD and op.split in COLUMNS and not (held_bytes or op.frozen):
            held_bytes = _input_bytes(op.kernel)  # another layer keeps the same input, which it has gathered itself
        in_shares = op.split in HELD_BY_CHANNELS or (sequence and op.split in by_tokens)
        yield replace(
            op,
            parameters=op.parameters if op.split is Split.SEQUENCE else parameters,
            kernel=share(op.kernel, op.split),
            held_bytes=held_bytes // tp if in_shares else held_bytes,
        )
        if not joined:
            yield from _sums(op, "reduce_scatter" if sequence else "all_reduce")


def _input_bytes(kernel: Kernel) -> int:
    """Bytes of the input of a linear layer; none for other kernels."""
    return int(kernel.m * kernel.k * kernel.element_bytes) if isinstance(kernel, Gemm) else 0


def _gathers(op: Compute, present: set[tuple[str, Part]]) -> Iterator[Collective]:
    """Gathers of tensors that are kept in shares: the input forward, the gradient of the result backward, and the input of a
    column layer for its weight gradient. `present` lists the operators of the body with their parts in the body.
    """
    kernel, column = op.kernel, op.split in COLUMNS
    of_sum = (op.split, op.part) in ((Split.LOOKUP, Part.WEIGHT_GRADIENT), (Split.SUM, Part.INPUT_GRADIENT))
    if isinstance(kernel, Rowwise) and of_sum:
        yield collective_for(op, TP, Purpose.GATHER, "all_gather", kernel.result_bytes)
    if not isinstance(kernel, Gemm):
        return
    input_bytes = int(kernel.m * kernel.k * kernel.element_bytes)
    if (op.split, op.part) == (Split.ROW, Part.INPUT_GRADIENT) or (column and op.part is Part.FORWARD):
        yield collective_for(op, TP, Purpose.GATHER, "all_gather", input_bytes)
    if (op.split, op.part) == (Split.GATHERED, Part.INPUT_GRADIENT):
        yield collective_for(op, TP, Purpose.GATHER_RESULT, "all_gather", input_bytes)
    if column and op.part is Part.INPUT_GRADIENT and (op.operator, Part.WEIGHT_GRADIENT) in present:
        yield collective_for(op, TP, Purpose.REGATHER, "all_gather", kernel.result_bytes)
    if column and op.part is Part.WEIGHT_GRADIENT and (op.operator, Part.INPUT_GRADIENT) not in present:
        yield collective_for(op, TP, Purpose.REGATHER, "all_gather", input_bytes)


def _sums(op: Compute, kind: str) -> Iterator[Collective]:
    """Collectives for the partial sums of a group: of a result, of the gradient of an input, of the terms of the loss; and the
    gather of a result that every rank needs whole.
    """
    of_result = op.part is Part.FORWARD and op.split in (Split.ROW, Split.SUM, Split.LOOKUP)
    if op.part is Part.FORWARD and op.split is Split.GATHERED and isinstance(op.kernel, Gemm):
        yield collective_for(op, TP, Purpose.GATHER_RESULT, "all_gather", op.kernel.result_bytes)
    if of_result or (op.part is Part.INPUT_GRADIENT and op.split in COLUMNS):
        if isinstance(op.kernel, Attention):
            raise InvariantBroken("attention is divided by heads and leaves no partial sums")
        yield collective_for(op, TP, Purpose.REDUCE, kind, op.kernel.result_bytes)
    if op.part is Part.FORWARD and op.split is Split.LOSS and isinstance(op.kernel, Rowwise):
        for i in range(LOSS_SUMS):
            reduction = collective_for(op, TP, Purpose.REDUCE_LOSS, "all_reduce", op.kernel.rows * FP32_BYTES)
            yield replace(reduction, name=f"{reduction.name} {i}")


def _with_detached_weight_gradients(body: Body) -> Iterator[AnyOp]:
    """Detaches from the chain the weight gradients of column layers, and the gathers that only weight gradients need."""
    gathers = {op.operator: op.name for op in body.ops if op.purpose is Purpose.REGATHER and op.part is Part.INPUT_GRADIENT}
    passed_on = {op.operator for op in body.ops if op.part is Part.INPUT_GRADIENT}
    for op in body.ops:
        of_column = isinstance(op, Compute) and op.split in COLUMNS and not (op.expert or op.adapter)
        of_column = of_column and op.operator in passed_on
        if op.name == gathers.get(op.operator):
            yield replace(op, detached=True)
        elif of_column and op.part is Part.WEIGHT_GRADIENT:
            gather = gathers.get(op.operator)
            yield replace(op, detached=True, after=(gather,) if gather else ())
        else:
            yield op
