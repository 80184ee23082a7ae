"""Operators that eager PyTorch ran one by one, from an idle GPU, in fp32: what each moved, and what the framework took around it.

Rows call them `torch2.1 add`, or `gelu fwd` and `gelu bwd(all grads)` where a model was run operator by operator. Such a time
begins before the framework looks the operator up and launches it: some microseconds that are the host's, the same for every
operator of a machine; fewer if nothing is launched. They are fitted beside the kernels, and left out of them. Backward passes
move what autograd writes out of several kernels, counted here kernel by kernel: they then stream as pointwise ones do, and how
much slower is told per GPU. The ids of these look-ups were all the same, and rows hold the mean of a model's tables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..kernel import PASSES, WIDTH, bytes_each
from .words import UNARY_PASSES, forward_bytes, name_of

FORWARD = "fwd"
ONE_BY_ONE = re.compile(r"torch2\.1 |(\w+ )?(fwd|bwd\(all grads\))$")
"""The variants of such rows."""
MASK = 0.25
"""Of a pass over elements of four bytes: a truth of one byte."""
AUTOGRAD_PASSES: Mapping[str, float] = {
    "add": 0, "mul": 2, "truediv": 2, "where": 2 + MASK, "gelu": 3, "tanh": 3, "relu": 3, "pow": 2 + 2 + 3,
    "dropout": 1 + MASK + 2 + 3, "softmax": 3, "layernorm": 3, "embedding": 3,
}  # fmt: skip
"""Passes over the elements of a backward row. `add` hands its gradient on. Numbers scale and divide, so they have no gradient;
`where` reads its mask. Gelu, tanh and relu read the gradient and what they kept. Power: x^(p-1), times p, times the gradient.
Dropout: the mask made numbers, scaled, times the gradient. Softmax, layer norm and look-ups are counted as runs have them, and
told by a ratio: softmax multiplies gradient and result before its kernel (six passes in all), layer norm reads both operands for
its input and again for its weights (seven), a look-up zeroes the table's gradient, sorts ids and adds rows."""
TRACED_PASSES: Mapping[str, float] = {"mul": 2, "truediv": 2, "pow": 2, "where": 2 + MASK}
"""Forward, in rows of a model: with a number, or a mask and a number, where operators timed by themselves have two tensors."""
ALIKE = {"drop": "dropout", "div": "truediv"}
"""Other names of the same operator."""


def is_one_by_one(dtype: str, variant: str) -> bool:
    """Whether a row was timed so."""
    return dtype == "fp32" and bool(ONE_BY_ONE.match(variant))


def operator(op: str, variant: str) -> str:
    """The memory-bound operator of a row as it is known here, forward or backward."""
    name = name_of(op, variant)
    return ALIKE.get(name, name)


def row_bytes(name: str, dtype: str, variant: str, *, back: bool, elementwise: bool) -> float:
    """Bytes for each element of a row's shape; of elementwise operators that are not known, backward, gradient in and out."""
    if not back:
        traced = name in TRACED_PASSES and variant.endswith(FORWARD) and is_one_by_one(dtype, variant)
        return TRACED_PASSES[name] * WIDTH[dtype] if traced else forward_bytes(name, dtype)
    if name in AUTOGRAD_PASSES:
        return AUTOGRAD_PASSES[name] * WIDTH[dtype]
    return bytes_each(name, dtype, backward=True) if name in PASSES and not elementwise else UNARY_PASSES * WIDTH[dtype]
