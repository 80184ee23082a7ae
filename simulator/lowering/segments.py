"""Segments of a forward pass that the backward pass repeats, for recomputation (passes/recompute.py).

A segment is a run of whole layers, attention, or a row of listed operators. A row includes the operations between it and the
operator that keeps its result: operations that only transfer or cast the result are repeated too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import dropwhile, groupby, pairwise

from ..kernels import Attention, Gemm, Rowwise, Split
from ..plan.recomputation import Recompute
from ..program.operations import AnyOp, Collective, Compute, Purpose
from ..workload.blocks.dense import QUERIES
from .attention_inputs import made_by, share_bytes, takes_inputs

CASTS = (Purpose.CAST, Purpose.CAST_WEIGHTS)
WAYS = (Purpose.COUNT_ROWS, Purpose.DISPATCH, Purpose.COMBINE, Purpose.SORT)
"""Operations on the way of tokens to experts, or back."""
KEEP_RESULTS = ("dropout", "softmax")
"""Operators on rows that hold a tensor that they produce (a mask, probabilities), not their input."""
_Key = tuple[int, bool]
"""A segment: its first layer, and whether its operators are listed."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive operations of a forward body that are repeated together."""

    ops: tuple[AnyOp, ...]
    results: tuple[tuple[Compute, int], ...] = ()
    """The operations after a segment of listed operators that no longer keep results of the segment, and the bytes of these
    results."""

    @property
    def operators(self) -> set[str]:
        """The operators whose gradients need what the segment does not keep."""
        return {op.operator for op in (*self.ops, *(consumer for consumer, _ in self.results))}


@dataclass(frozen=True, slots=True)
class Keeping:
    """How a framework keeps inputs of GEMMs, and results."""

    casts: bool = False
    """Whether GEMMs keep their inputs as cast."""
    gathered: bool = False
    """Whether column layers keep their inputs as gathered."""
    compiled: bool = False
    """Whether a compiler drops unused results."""


def segments(ops: Sequence[AnyOp], chosen: Recompute, keeping: Keeping) -> Iterator[Segment]:
    """The segments of a forward body, in forward order."""
    kernels = [op for op in ops if isinstance(op, Compute)]
    listed = {op.operator for op in kernels if op.listed}
    attention = {op.operator for op in kernels if isinstance(op.kernel, Attention) or op.split is Split.HEADS}

    def segment(op: AnyOp) -> _Key | None:
        """The segment of an operation; None outside of segments."""
        if not chosen.takes(op.layer):
            return None
        if chosen.scope in ("full", "per-op"):
            return op.layer // chosen.together, False
        if op.operator in listed:
            return op.layer, True
        return (op.layer, False) if chosen.scope == "selective" and op.operator in attention else None

    end = 0
    keys = _with_ways(ops, [segment(op) for op in ops])
    for key, run in groupby(zip(keys, ops, strict=True), lambda pair: pair[0]):
        members = tuple(op for _, op in run)
        end += len(members)
        if key:
            yield _listed(members, ops[end:], listed, keeping) if key[1] else Segment(members)


def _with_ways(ops: Sequence[AnyOp], keys: Sequence[_Key | None]) -> list[_Key | None]:
    """The segments of operations, with those on the way to experts, or back, between operators of one segment."""
    found = list(keys)
    for at, op in enumerate(ops):
        if at and op.purpose in WAYS and found[at] is None and found[at - 1]:
            behind = next((keys[i] for i in range(at, len(ops)) if ops[i].purpose not in WAYS), None)
            found[at] = found[at - 1] if found[at - 1] == behind else None
    return found


def _listed(members: tuple[AnyOp, ...], behind: Sequence[AnyOp], listed: set[str], keeping: Keeping) -> Segment:
    """The segment of a row of listed operators, with the operations between them and the operation that keeps their result."""
    end = next((at for at, op in enumerate(behind) if _computes(op)), len(behind))
    consumer = next((op for op in behind[end:] if isinstance(op, Compute)), None)
    made = {name for op in members for name in made_by(op)}
    if _is_kept(members):
        members = members[1:]
    if keeping.casts:
        members = (*dropwhile(lambda op: op.purpose is Purpose.CAST, members),)
    if consumer is None:
        return Segment(members)
    members += tuple(_between(behind[:end], behind[end:], consumer, keeping))
    results = [(consumer, _result_bytes(consumer, made))]
    if not takes_inputs(consumer) and any(made_by(op) == (QUERIES,) for op in members):
        results += _queries(members, behind, listed)  # queries do not pass through the operators of keys and values
    return Segment(members, tuple(results))


def _computes(op: AnyOp) -> bool:
    """Whether an operation is a kernel of the model, rather than one that casts or sorts."""
    return isinstance(op, Compute) and op.purpose not in (*CASTS, Purpose.SORT)


def _between(before: Sequence[AnyOp], behind: Sequence[AnyOp], consumer: Compute, keeping: Keeping) -> Iterator[AnyOp]:
    """The operations that turn the result of `before` into the tensor that an operation keeps.

    The pieces of a gather that runs beside the pieces of a GEMM come after the first piece of the GEMM.
    """
    gathers = [op for op in (*before, *behind) if op.operator == consumer.operator and op.purpose is Purpose.GATHER]
    gathers = gathers if keeping.gathered and consumer.held_bytes else []
    casts = keeping.casts
    for at, op in enumerate(before):
        exchanged = op.purpose is Purpose.EXCHANGE and isinstance(op, Collective) and op.kind == "alltoall"
        cast = op.purpose is Purpose.CAST and (casts or any(one in gathers for one in before[at:]))
        if op.purpose in WAYS or exchanged or cast or op in gathers:
            yield op
    yield from (op for op in gathers if op not in before)


def _result_bytes(consumer: Compute, made: set[str]) -> int:
    """Bytes that an operation holds of the result of operators before it, which make some inputs if it is attention."""
    inputs_bytes = consumer.held_bytes - made_bytes(consumer)
    return share_bytes(consumer, inputs_bytes, made) if made and takes_inputs(consumer) else inputs_bytes


def _queries(members: Sequence[AnyOp], behind: Sequence[AnyOp], listed: set[str]) -> Iterator[tuple[Compute, int]]:
    """Attention and the bytes of its queries, if the operator right before it, which rotates them, is repeated too."""
    layer = [op for op in behind if op.layer == members[0].layer and isinstance(op, Compute)]
    for op, then in pairwise(layer):
        if takes_inputs(then):
            yield from [(then, _result_bytes(then, {QUERIES}))] if op.operator in listed else []
            return


def _is_kept(members: Sequence[AnyOp]) -> bool:
    """Whether operations begin with a gather whose result the GEMM behind it keeps."""
    gather = members[0]
    if not isinstance(gather, Collective) or gather.purpose is not Purpose.GATHER:
        return False
    own = (op for op in members if op.operator == gather.operator and isinstance(op, Compute) and isinstance(op.kernel, Gemm))
    return any(op.held_bytes >= gather.payload_bytes for op in own)


def made_bytes(op: AnyOp) -> int:
    """Bytes that an operation holds besides its input, because it produces them: a mask, probabilities, statistics of
    attention."""
    kernel = op.kernel if isinstance(op, Compute) else None
    if isinstance(op, Compute) and isinstance(op.kernel, Attention):
        result_bytes = op.kernel.result_bytes if op.keeps_result else 0
        return min(op.held_bytes, op.kernel.statistics_bytes + result_bytes)
    return op.held_bytes if kernel is None or (isinstance(kernel, Rowwise) and kernel.op in KEEP_RESULTS) else 0
