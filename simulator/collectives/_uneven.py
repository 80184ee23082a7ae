"""Uneven all-to-alls: what every rank has for every other, as a matrix of bytes.

Entry (i, j) is what rank i has for rank j; what it keeps for itself stands on the diagonal and is not sent. The payload is
what a rank holds on average, what it keeps included: all n ranks together hold n payloads. A message without bytes is not
sent, nor waited for, and a round without messages is none.
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
"""Messages that go together: from whom, to whom, how many bytes. All three have one shape; it is the order of the messages."""


def checked_matrix(kind: str, ranks: int, matrix: ArrayLike) -> Array:
    """A matrix as numbers. Raises `UserError` unless it fits an exchange among this number of ranks."""
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
    """What a rank holds on average, in the unit of the matrix."""
    return sum(map(Fraction, held.sum(axis=1).tolist()), Fraction(0)) / len(held)


def uneven(held: Array, parts: Iterable[Sent]) -> tuple[Round, ...]:
    """Rounds of messages along edges, each with its bytes of a matrix."""
    whole = payload(held)
    rounds = []
    for source, target, sent in parts:
        some = (sent > 0) & (source != target)
        if some.any():
            most = float(sent[some].max())
            rounds.append(Round(Edges(source[some], target[some], sent[some] / most), Fraction(most) / whole))
    return tuple(rounds)
