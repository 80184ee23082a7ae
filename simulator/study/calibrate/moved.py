"""Memory-bound operators in the words of a table: which operator a row timed, and the bytes that it moved.

There is one reading of a row, for `calibrate fit` and `validate` alike. It has an operator move the bytes that runs have it
move, or, where eager PyTorch ran operators one by one in fp32, those of its kernels there (gpus/eager.py).
"""

from __future__ import annotations

import re

from ...kernels import Rowwise
from ..gpus.eager import autograd, backward_name, is_one_by_one, traced_passes
from ..gpus.kernel import FORWARD_ONLY, PASSES, WIDTH, bytes_each, own_name
from .table import Probe

BACK = "_bwd"
BACKS = (BACK, "_backward")
LABEL = "torch2.1"
"""How some tables begin the variant of an operator."""
ALIKE = {"drop": "dropout", "div": "truediv"}
"""Other names of the same operator."""
BINARY = re.compile(r"(add|mul|div|pow|sub|truediv|where)\b")
BINARY_PASSES, UNARY_PASSES = 3, 2
"""Over the elements of a row's shape, of an elementwise operator that workloads do not have; backward it reads its gradient and
writes another."""
WIDE_GELU = "gelu32"
"""Gelu in 16 bits is bound by its arithmetic; in 32 bits it is not."""
WITHIN = ("", "d2d", "dtod")
"""Copies within a GPU's memory; others are of links."""


def rowwise_of(probe: Probe) -> Rowwise | None:
    """The memory-bound operator of a row, as models of its time know it, with the bytes that it moved; None if there is no such
    one, or the row says too little."""
    name, back, elementwise = name_of(probe.op, probe.variant), probe.op.endswith(BACKS), is_elementwise(probe.op)
    if probe.dtype not in WIDTH or not (probe.m and probe.n) or (name not in PASSES and not elementwise):
        return None
    if (name == "copy" and not is_within(probe.variant)) or (back and name in FORWARD_ONLY):
        return None
    width = WIDTH[probe.dtype]
    known, each = _back(name, probe) if back else _forward(name, probe)
    return Rowwise(known, probe.m, probe.n, max(1, int(width)), each)


def name_of(op: str, variant: str) -> str:
    """A memory-bound operator of a row, or its backward pass, as workloads call the operator: the first word of `variant`, if it
    is told there."""
    base = _base(op)
    words = variant.lower().removeprefix(LABEL).split() if base == "elementwise" else []
    name = own_name(words[0] if words else base)
    return ALIKE.get(name, name)


def is_elementwise(op: str) -> bool:
    """Whether the operator is told in `variant`."""
    return _base(op) == "elementwise"


def is_within(variant: str) -> bool:
    """Whether a copy stays within the memory of a GPU."""
    return "".join(variant.lower().split()[:1]) in WITHIN


def _base(op: str) -> str:
    for back in BACKS:
        op = op.removesuffix(back)
    return op


def _forward(name: str, probe: Probe) -> tuple[str, float]:
    """The name of a forward pass and the bytes that it moves for each element."""
    width = WIDTH[probe.dtype]
    known = WIDE_GELU if name == "gelu" and probe.dtype == "fp32" else name
    traced = traced_passes(name, probe.variant) if is_one_by_one(probe.dtype, probe.variant) else None
    if traced is not None:
        return known, traced * width
    if name in PASSES:
        return known, bytes_each(name, probe.dtype)
    return known, (BINARY_PASSES if BINARY.fullmatch(name) else UNARY_PASSES) * width


def _back(name: str, probe: Probe) -> tuple[str, float]:
    """The same of a backward pass."""
    width = WIDTH[probe.dtype]
    alone = is_one_by_one(probe.dtype, probe.variant)
    written_out = autograd(name, width) if alone else None
    if written_out:
        return written_out
    each = bytes_each(name, probe.dtype, backward=True) if name in PASSES else UNARY_PASSES * width
    return (backward_name(name) if alone else f"{name}_backward"), each
