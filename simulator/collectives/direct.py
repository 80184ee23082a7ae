"""Direct exchange: every rank sends to every other rank at the same time, in one step and without intermediate ranks.

Uncontended on equal links of latency a and bandwidth B, with S bytes on each rank, an all-to-all takes a + (n - 1)/n S/B, which
is optimal; so do a gather and a scatter of S bytes. An all-reduce is a scatter followed by a gather ("two-shot"). The overhead
of a NIC per message is not modelled; `hierarchical` sends fewer messages.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from . import Array, Everyone, Round
from ._uneven import checked_matrix, uneven

KINDS = ("all_reduce", "reduce_scatter", "all_gather", "alltoall")


def rounds(kind: str, nodes: Array, matrix: ArrayLike | None = None) -> tuple[Round, ...]:
    """All pairs at once: 1/n of the payload each, or the entries of a matrix of bytes."""
    n = len(nodes)
    if matrix is not None:
        held = checked_matrix(kind, n, matrix)
        return uneven(held, [(*np.indices((n, n)), held)])
    if n < 2:
        return ()
    once = Round(Everyone(n), Fraction(1, n))
    return (once, once) if kind == "all_reduce" else (once,)
