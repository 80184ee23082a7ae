"""A point-to-point transfer: all bytes over one edge, in one step."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from . import Array, Edges, Round

KINDS = ("sendrecv",)


def rounds(kind: str, nodes: Array) -> tuple[Round, ...]:
    """From the first member to the second, if there is one."""
    if len(nodes) < 2:
        return ()
    return (Round(Edges.of(np.array([0]), np.array([1])), Fraction(1)),)
