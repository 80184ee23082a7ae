"""Uneven all-to-alls, given by a matrix of the bytes that each rank sends to each other rank.

Entry (i, j) is the number of bytes from rank i to rank j. The diagonal is the part that a rank keeps; it is not sent. The
payload is the mean number of bytes per rank, including the diagonal: all n ranks together hold n payloads. Messages without
bytes are not sent and delay nothing, and rounds without messages are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from ..errors import UserError
from . import Array, Edges, Round

Sent = tuple[Array, Array, Array]
"""Simultaneous messages: sources, targets and bytes, as arrays of one shape."""


def checked_matrix(kind: str, ranks: int, matrix: ArrayLike) -> Array:
    """The matrix as an array. Raises `UserError` unless it describes an all-to-all among `ranks` ranks."""
    if kind != "alltoall":
        raise UserError(f"{kind} takes no matrix of bytes", hint="only an alltoall can be uneven")
    try:
        held = np.asarray(matrix, dtype=np.float64)
    except (TypeError, ValueError):
        held = np.zeros(0)
    if not ranks or held.shape != (ranks, ranks) or (held < 0).any() or not float(held.max()) * held.size < math.inf:
        raise UserError(
            f"the bytes of an all-to-all among {ranks} ranks are a matrix of {ranks} x {ranks} numbers, none negative",
            hint="row i holds what rank i has for every rank",
        )
    return held


def payload(held: Array) -> Fraction:
    """The mean number of bytes per rank, in the unit of the matrix."""
    return sum(map(Fraction, held.sum(axis=1).tolist()), Fraction(0)) / len(held)


def uneven(held: Array, parts: Iterable[Sent]) -> tuple[Round, ...]:
    """The rounds of an uneven all-to-all, from the messages of each round."""
    whole = payload(held)
    rounds = []
    for source, target, sent in parts:
        some = (sent > 0) & (source != target)
        if some.any():
            most = float(sent[some].max())
            rounds.append(Round(Edges(source[some], target[some], sent[some] / most), Fraction(most) / whole))
    return tuple(rounds)
