"""Adapters of low rank on tensor-parallel ranks, as in Megatron-Bridge.

Beside a column layer the first matrix is divided by its outputs, and its results are gathered; the second is divided by its
outputs. Beside a row layer the first matrix is divided by its inputs, and its partial sums are reduced; the second is divided by
its outputs, and its results are gathered. In the backward pass the gradients of the narrow tensor between the two are reduced.
Sequence parallelism ends before an adapter: the first matrix beside a column layer takes the input that its layer has gathered,
and keeps it whole; the gradient of that input joins that of the layer before the reduce-scatter. The gradient of the result of a
row layer's adapter is gathered once more. Reference: NVIDIA-NeMo/Megatron-Bridge 29836cce, src/megatron/bridge/peft/utils.py
(`ParallelLinearAdapter`, `get_adapter_attributes_from_linear`).
"""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import InvariantBroken
from ...frozen import replace
from ...kernels import Gemm, Part, Split
from ...program.operations import AnyOp, Communicator, Compute, Purpose, collective_for


def divided_adapter(op: Compute, group: Communicator, tp: int, *, sequence: bool) -> Iterator[AnyOp]:
    """The share of a GEMM of an adapter on one of `tp` ranks, with its collectives."""
    kernel, column, first = op.kernel, op.split is Split.COLUMN, op.adapter == "in"
    if not isinstance(kernel, Gemm):
        raise InvariantBroken(f"{op.name} is not a GEMM of an adapter")
    forward, back, by_inputs = op.part is Part.FORWARD, op.part is Part.INPUT_GRADIENT, first and not column
    if back and sequence and not first and not column:
        result_bytes = int(kernel.m * kernel.k * kernel.element_bytes)
        yield collective_for(op, group, Purpose.GATHER, "all_gather", result_bytes)
    yield replace(
        op,
        kernel=kernel.split(Split.ROW if by_inputs else Split.COLUMN, tp),
        parameters=-(-op.parameters // tp),
        held_bytes=op.held_bytes // tp if by_inputs else op.held_bytes,
    )
    if forward and first is column:
        yield collective_for(op, group, Purpose.GATHER, "all_gather", kernel.result_bytes)
    if (forward and by_inputs) or (back and (not first or (column and not sequence))):
        yield collective_for(op, group, Purpose.REDUCE, "all_reduce", kernel.result_bytes)
