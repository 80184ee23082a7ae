"""The kernels of an Adam step, over the parameters that a rank updates: one, or the multi-tensor operators of PyTorch."""

from __future__ import annotations

from ...kernels import Part, Rowwise
from ...program.op import COMPUTE, Compute

FP32_BYTES = 4
ADAM_BYTES = 26
"""Traffic per parameter, besides the gradient that is read: read and write the fp32 master and both moments (24 bytes), write
the half-precision weight (2)."""
BY_TENSORS = (
    ("decay", 8, 0), ("moment", 8, 1), ("variance", 8, 0), ("square", 8, 1), ("root", 8, 0), ("divide", 8, 0),
    ("epsilon", 8, 0), ("update", 16, 0), ("cast", 6, 0),
)  # fmt: skip
"""The same one operator after the other: bytes besides the gradient, and how often that is read."""


def updating(parameters: int, gradient_bytes: int, *, fused: bool) -> tuple[Compute, ...]:
    """The optimizer's kernels, in their order."""
    kernels = (("adam", ADAM_BYTES, 1),) if fused else BY_TENSORS
    return tuple(
        Compute(
            name=name,
            streams=(COMPUTE,),
            part=Part.OPTIMIZER,
            kernel=Rowwise(name, parameters, 1, FP32_BYTES, moved + reads * gradient_bytes),
        )
        for name, moved, reads in kernels
    )
