"""Packed sequences: documents of several lengths fill a sequence, and attention stays within a document.

The mask of attention is block-diagonal and causal. GEMMs and operators on rows do not change; the number of scores of attention
is the sum of the squared lengths of the documents instead of the squared length of the sequence. Every sequence is simulated with
the expected fraction, E[L^2] / (E[L] s) for documents of random length L that fill sequences of s tokens without being cut at
their ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, log
from statistics import NormalDist
from typing import Annotated, Literal

from ..fields import Contradiction, Declared, Limits, documented

Tokens = Annotated[int, Limits(ge=1, le=2**27)]


@documented
@dataclass(frozen=True, slots=True)
class Packing(Declared):
    """Lengths of the documents that fill a sequence: a list for every sequence, or a distribution with its mean."""

    lengths: Annotated[tuple[Tokens, ...], "tokens of each document of a sequence, such as [6144, 2048]"] = ()
    mean: Annotated[int | None, Limits(ge=1, le=2**27), "mean length of a document, in tokens"] = None
    distribution: Annotated[
        Literal["fixed", "uniform", "lognormal"],
        "fixed: all documents have the mean length; uniform: 1 to 2 x mean - 1 tokens; lognormal: cut at the end of a sequence",
    ] = "fixed"
    sigma: Annotated[
        float | None, Limits(gt=0, le=10), "of lognormal lengths, standard deviation of their logarithm; left out: 1"
    ] = None

    def contradictions(self) -> Iterator[Contradiction]:
        if bool(self.lengths) == (self.mean is not None):
            yield "mean", ": either the lengths of the documents are known or their mean", "lengths: [6144, 2048], or mean: 2048"
        if self.lengths and self.distribution != "fixed":
            yield "distribution", ": the lengths are listed", "leave it out, or mean in place of lengths"
        if self.sigma is not None and self.distribution != "lognormal":
            yield "sigma", f": {self.distribution} lengths have none", "leave it out, or distribution: lognormal"

    def longest(self) -> int:
        """Tokens of the longest document; of a lognormal distribution, those of its mean."""
        mean = self.mean or 1
        return max(self.lengths, default=2 * mean - 1 if self.distribution == "uniform" else mean)

    def fraction(self, tokens: int) -> float:
        """Expected fraction of the scores of a sequence of `tokens` tokens that are within documents."""
        mean = self.mean or 1
        if self.distribution == "uniform":
            return (2 * self.longest() + 1) / (3 * tokens)
        if self.distribution == "lognormal":
            return _lognormal_fraction(mean, self.sigma or 1.0, tokens)
        whole, rest = divmod(tokens, mean)
        lengths = self.lengths or (*[mean] * whole, rest)
        return sum(length**2 for length in lengths) / tokens**2


def _lognormal_fraction(mean: int, sigma: float, most: int) -> float:
    """E[L^2] / (E[L] most) for lognormal lengths L of the given mean, cut off at `most`."""
    below, middle = NormalDist().cdf, log(mean) - sigma**2 / 2
    reach = (log(most) - middle) / sigma
    longer = 1 - below(reach)
    length = mean * below(reach - sigma) + most * longer
    square = mean**2 * exp(sigma**2) * below(reach - 2 * sigma) + most**2 * longer
    return min(1.0, square / (length * most))
