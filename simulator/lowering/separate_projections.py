"""Layers that project one input, as queries, keys and values: where they are separate, the gradients of the input are added up.

A model describes them as one layer of several matrices, which most frameworks make of them. Where they are layers by themselves,
autograd adds the gradient of each to that of the ones before it (InputBuffer in torch/csrc/autograd/input_buffer.cpp,
pytorch/pytorch). Their GEMMs are simulated as the one GEMM that takes as many columns.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..kernels import Gemm, Rowwise, Split
from ..workload.blocks.dense import BlockOp
from ..workload.framework import Framework


def sums_of_input_gradients(op: BlockOp, whole: Gemm, framework: Framework) -> Iterator[BlockOp]:
    """A kernel for each gradient of the input after the first: two are read and one is written, or one more is read by what a
    compiler fuses with it."""
    block = "attention" if op.makes else "mlp"
    if block not in framework.separate_projections:
        return
    moved_bytes = (1 if framework.compile else 3) * int(whole.element_bytes)
    added = Rowwise("add", whole.m * whole.batch, whole.k, int(whole.element_bytes), moved_bytes)
    for number in range(1, len(op.matrices)):
        yield BlockOp(f"{op.name}_input_gradient_{number}", None, Split.SEQUENCE, added)
