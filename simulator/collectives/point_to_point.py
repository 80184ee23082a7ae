"""A point-to-point transfer: all bytes over one edge, in one step."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from . import Edges

KINDS = ("sendrecv",)


def steps(kind: str, ranks: int) -> int:
    return 1


def wire_fraction(kind: str, ranks: int) -> Fraction:
    return Fraction(1)


def edges(nodes: NDArray[np.int64]) -> Edges:
    """From the first member to the second."""
    return Edges(np.array([0]), np.array([1]), np.ones(1))
