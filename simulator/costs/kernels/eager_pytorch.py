"""Operators that eager PyTorch ran one by one, from an idle GPU, in fp32: what each moved, and what the framework took around it.

Rows call them `torch2.1 add`, or `gelu fwd` and `gelu bwd(all grads)` where a model was run operator by operator. Such a time
begins before the framework looks the operator up and launches it: some microseconds that are the host's, the same for every
operator of a machine; fewer if nothing is launched. They are fitted beside the kernels, and left out of them. Backward passes
move what autograd writes out of several kernels, counted here kernel by kernel where that is not what workloads count: they then
stream as pointwise ones do, and how much slower is fitted per GPU, under names of their own. A ratio holds for the passes that it
was fitted with, and for no others. The ids of these look-ups were all the same, and rows hold the mean of a model's tables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from .rowwise import BACKWARD, LOOKUPS, ONE_ID

FORWARD = "fwd"
ONE_BY_ONE = re.compile(r"torch2\.1 |(\w+ )?(fwd|bwd\(all grads\))$")
"""The variants of such rows."""
AUTOGRAD = "autograd_"
"""How the name of a backward pass begins whose bytes are those of `AUTOGRAD_PASSES`."""
MASK_BYTES = 1
"""A truth for each element."""
MASK = MASK_BYTES / 4
"""Share of a pass over elements of four bytes."""
AUTOGRAD_PASSES: Mapping[str, float] = {"add": 0, "mul": 2, "where": 2, "tanh": 3, "pow": 2 + 2 + 3, "dropout": 1 + 2 + 3}
"""Passes over the elements of a backward row, where they are not those of workloads. `add` hands its gradient on. Numbers scale,
so they have no gradient; `where` reads its mask. Tanh reads the gradient and what it kept. Power: x^(p-1), times p, times the
gradient. Dropout: the mask made numbers, scaled, times the gradient. All others are counted as runs have them, and known by a
ratio: gelu and relu read the gradient and what they kept; a division by a number reads the gradient; softmax multiplies gradient
and result before its kernel (six passes in all), layer norm reads both operands for its input and again for its weights (seven),
a look-up zeroes the table's gradient, sorts ids and adds rows."""
MASKED = ("where", "dropout")
"""Operators that read a mask too."""
TRACED_PASSES: Mapping[str, float] = {"mul": 2, "truediv": 2, "pow": 2, "where": 2 + MASK}
"""Passes forward in rows of a model: with a number, or a mask and a number; operators timed by themselves have two tensors."""


def is_one_by_one(dtype: str, variant: str) -> bool:
    """Whether a row was timed so."""
    return dtype == "fp32" and bool(ONE_BY_ONE.match(variant.strip().lower()))


def autograd(name: str, width: float) -> tuple[str, float] | None:
    """The backward pass of an operator as eager PyTorch runs it on elements of `width` bytes: its name, and the bytes that it
    moves for each of them, none if it launches nothing; None if it is that of workloads."""
    if name not in AUTOGRAD_PASSES:
        return None
    return f"{AUTOGRAD}{name}{BACKWARD}", AUTOGRAD_PASSES[name] * width + MASK_BYTES * (name in MASKED)


def backward_name(name: str) -> str:
    """A backward pass that was timed one by one as its ratios know it, if its bytes are those of workloads."""
    return f"{ONE_ID * (name in LOOKUPS)}{name}{BACKWARD}"


def traced_passes(name: str, variant: str) -> float | None:
    """Passes over the elements of a forward row that was timed one by one; None if they are those of all others."""
    return TRACED_PASSES.get(name) if variant.strip().lower().endswith(FORWARD) else None
