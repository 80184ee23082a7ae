"""A point-to-point transfer: all bytes over one edge, in one step."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from . import Edges

KINDS = ("sendrecv",)


def steps(kind: str, ranks: int) -> int:
    return min(1, ranks - 1)


def wire_fraction(kind: str, ranks: int) -> Fraction:
    return Fraction(min(1, ranks - 1))


def edges(nodes: NDArray[np.int64]) -> Edges:
    """From the first member to the second, if there is one."""
    first = np.arange(min(1, len(nodes) - 1))
    return Edges(first, first + 1, np.ones(len(first)))
