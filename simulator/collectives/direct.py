"""Direct exchange: every rank sends to every other at once; one step, and no byte goes through a third rank.

Alone on equal links of latency a and bandwidth B, with S bytes on each rank, an all-to-all takes a + (n - 1)/n S/B, which
nothing can beat; so do a gather and a scatter of S bytes. An all-reduce is one after the other ("two-shot"). What a NIC
spends on each of many small messages is not counted: `hierarchical` sends fewer.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..errors import UserError
from . import Array, Edges, Round

KINDS = ("all_reduce", "reduce_scatter", "all_gather", "alltoall")


def rounds(kind: str, nodes: Array, matrix: ArrayLike | None = None) -> tuple[Round, ...]:
    """All pairs at once, 1/n of the payload each.

    With a `matrix` the exchange is uneven: entry (i, j) is what rank i has for rank j, in any unit. The payload is then
    what a rank holds on average, what it keeps for itself included: all ranks together hold n payloads.
    """
    n = len(nodes)
    if matrix is not None:
        return _uneven(n, np.asarray(matrix))
    if n < 2:
        return ()
    once = Round(_all_pairs(n), Fraction(1, n))
    return (once, once) if kind == "all_reduce" else (once,)


def _all_pairs(n: int) -> Edges:
    source, other = np.divmod(np.arange(n * (n - 1)), n - 1)
    return Edges.of(source, other + (other >= source))


def _uneven(n: int, matrix: Array) -> tuple[Round, ...]:
    if matrix.shape != (n, n) or not np.isfinite(matrix).all() or (matrix < 0).any():
        raise UserError(
            f"the bytes of an all-to-all among {n} ranks are a matrix of {n} x {n} numbers, none negative",
            hint="row i holds what rank i has for every rank",
        )
    source, target = np.nonzero(matrix)
    source, target = source[source != target], target[source != target]
    if not len(source):
        return ()
    sent = matrix[source, target]
    most, total = _exact(sent.max()), sum(map(_exact, matrix.sum(axis=1)), Fraction(0))
    return (Round(Edges(source, target, sent / sent.max()), n * most / total),)


def _exact(number: Any) -> Fraction:
    return Fraction(number.item())
