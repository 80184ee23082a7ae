"""Binomial broadcast: in every round all who have the payload send it to one who has not.

Uncontended on equal links of latency a and bandwidth B it takes ceil(log2 n) (a + S/B), the fewest steps for small payloads.
Reference: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH", 2005.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from . import Array, Edges, Round

KINDS = ("broadcast",)


def rounds(kind: str, nodes: Array) -> tuple[Round, ...]:
    """The farthest first, so that later rounds stay near."""
    n = len(nodes)
    distances = [1 << bit for bit in reversed(range((n - 1).bit_length()))]
    senders = [np.arange(0, n - d, 2 * d) for d in distances]
    return tuple(Round(Edges.of(source, source + d), Fraction(1)) for d, source in zip(distances, senders, strict=True))
