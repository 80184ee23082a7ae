"""Exchanges between ranks whose numbers differ in one bit, for groups of any size.

Where the size is no power of two, some ranks first give all that they have to a neighbour, which takes part in their stead
and hands them the result. Reference: Rabenseifner, "Optimization of Collective Reduction Operations", 2004.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from . import Edges, Round


def is_power_of_two(n: int) -> bool:
    return n & (n - 1) == 0


def bits(n: int) -> int:
    """The logarithm to base two, rounded down."""
    return n.bit_length() - 1


def swaps(n: int, plan: Sequence[tuple[int, Fraction]]) -> tuple[Round, ...]:
    """Exchanges of a fraction of the payload between ranks that differ in the given bit, one after the other."""
    whole = 1 << bits(n)
    helper = 2 * np.arange(n - whole)
    core = np.concatenate([helper, np.arange(2 * len(helper), n)])
    exchanged = tuple(Round(Edges.of(core, core[np.arange(whole) ^ (1 << bit)]), fraction) for bit, fraction in plan)
    if not len(helper):
        return exchanged
    give, take = (Round(Edges.of(*ends), Fraction(1)) for ends in ((helper + 1, helper), (helper, helper + 1)))
    return (give, *exchanged, take)
