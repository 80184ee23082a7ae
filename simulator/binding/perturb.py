"""Perturbations: a rank that computes slower, a link that carries less, always or for a while, as profiles over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..engine.task import Profile
from ..units import ns


@dataclass(frozen=True, slots=True)
class Perturbation:
    """A factor on the speed of a rank or on the capacity of a link, from a time until another (None: to the end)."""

    factor: float
    rank: int | None = None
    link: int | None = None
    from_s: float = 0.0
    until_s: float | None = None


def profile(base: int, perturbations: Sequence[Perturbation]) -> Profile:
    """A constant `base` under all its perturbations at once; overlapping factors multiply. Never below 0."""
    changes = {0} | {ns(p.from_s) for p in perturbations} | {ns(p.until_s) for p in perturbations if p.until_s is not None}
    since = sorted(changes)
    values = []
    for at in since:
        value = float(base)
        for p in perturbations:
            if ns(p.from_s) <= at and (p.until_s is None or at < ns(p.until_s)):
                value *= p.factor
        values.append(round(value))
    return Profile.of(since, values)
