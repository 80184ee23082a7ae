"""One operator of a block, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass

from ...kernels import Gemm, Kernel, Part, Rowwise, Split


@dataclass(frozen=True, slots=True)
class BlockOp:
    """An operator: its kernel in each direction, its parameters, and the bytes that it keeps from forward to backward."""

    name: str
    forward: Kernel | None
    """None for what only the backward pass does."""
    split: Split
    input_gradient: Kernel | None = None
    weight_gradient: Kernel | None = None
    parameters: int = 0
    whole_parameters: int = 0
    """Of those, the ones that a tensor-parallel group does not divide: biases added to sums, learned positions."""
    matmul_parameters: int = 0
    saved_bytes: int = 0
    """Kept for the backward pass, before any splitting: mostly the operator's own input."""
    fused_weight_gradient: bool = False
    """The kernel of the input gradient makes the gradients of the parameters too."""


def linear(name: str, tokens: int, inputs: int, outputs: int, element_bytes: int, split: Split, *, bias: bool) -> BlockOp:
    """A linear layer: three matrix products of equal flop, its input kept."""
    return BlockOp(
        name,
        forward=Gemm(tokens, outputs, inputs, element_bytes),
        input_gradient=Gemm(tokens, inputs, outputs, element_bytes, Part.INPUT_GRADIENT),
        weight_gradient=Gemm(inputs, outputs, tokens, element_bytes, Part.WEIGHT_GRADIENT),
        split=split,
        parameters=inputs * outputs + (outputs if bias else 0),
        whole_parameters=outputs if bias and split is Split.ROW else 0,
        matmul_parameters=inputs * outputs,
        saved_bytes=tokens * inputs * element_bytes,
    )


def rowwise(
    name: str,
    rows: int,
    columns: int,
    element_bytes: int,
    split: Split,
    *,
    forward: int,
    backward: int,
    saved: int = 0,
    parameters: int = 0,
    kernel: str = "",
) -> BlockOp:
    """A memory-bound operator that moves `forward` (`backward`) and keeps `saved` elements per element of its shape."""
    op = kernel or name
    return BlockOp(
        name,
        forward=Rowwise(op, rows, columns, element_bytes, forward * element_bytes),
        input_gradient=Rowwise(f"{op}_backward", rows, columns, element_bytes, backward * element_bytes),
        split=split,
        parameters=parameters,
        saved_bytes=saved * rows * columns * element_bytes,
        fused_weight_gradient=parameters > 0,
    )
