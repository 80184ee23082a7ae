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
    return tuple(Round(_from_multiples(n, d), Fraction(1)) for d in distances)


def _from_multiples(n: int, distance: int) -> Edges:
    """From every multiple of twice the distance to the rank at that distance."""
    source = np.arange(0, n - distance, 2 * distance)
    return Edges.of(source, source + distance)
