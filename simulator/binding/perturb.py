"""Perturbations: a rank that computes slower, a link that carries less, always or for a while, as profiles over time.

A measured collective goes at a rate that no single link explains, and most links have room to spare beside it. Where one of
the links that it crosses is degraded its library waits for that one, so its rate falls as much as that link's does: the
cap is scaled by the least of what perturbations leave of its links. Where nothing was measured nothing is
scaled, as the links limit by themselves. Latency stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..engine.task import Array, Profile
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


def by_target(perturbations: Sequence[Perturbation], kind: Literal["rank", "link"]) -> dict[int, list[Perturbation]]:
    """The perturbations of each rank, or of each link."""
    found: dict[int, list[Perturbation]] = {}
    for p in perturbations:
        if (target := getattr(p, kind)) is not None:
            found.setdefault(target, []).append(p)
    return found


def profiles_of(base: Array, changes: Mapping[int, Sequence[Perturbation]], profiles: list[Profile]) -> Array:
    """The profile of each entry of `base`, equal ones shared; new profiles are appended to `profiles`."""
    values, index = np.unique(base, return_inverse=True)
    index = index + len(profiles)
    profiles += map(Profile.constant, values.tolist())
    for target, perturbations in changes.items():
        index[target] = _index_of(profile(int(base[target]), perturbations), profiles)
    return index


def _index_of(wanted: Profile, profiles: list[Profile]) -> int:
    if wanted not in profiles:
        profiles.append(wanted)
    return profiles.index(wanted)


RATIO_BITS = 40
"""What is left of a rate counts 2^-40."""
WHOLE = Profile.constant(1 << RATIO_BITS)


class Degraded:
    """What perturbations leave of the links that a group crosses, the least at each time, as numbered profiles; 0 is all."""

    def __init__(self, perturbations: Mapping[int, Sequence[Perturbation]], profiles: list[Profile]) -> None:
        self._left_of_link = {link: profile(1 << RATIO_BITS, of) for link, of in perturbations.items()}
        self._left = [WHOLE]
        self._profiles = profiles
        """The skeleton's, to which caps that change with time append theirs."""

    def crossed(self, group: Array, link: Array, groups: int) -> Array:
        """The number of what is left to each of so many groups, given the pairs (group, link that it crosses)."""
        number = np.zeros(groups, dtype=np.int64)
        if not self._left_of_link:
            return number
        left: dict[int, Profile] = {}
        seen = np.isin(link, list(self._left_of_link))
        for of, at in zip(group[seen].tolist(), link[seen].tolist(), strict=True):
            one, other = left.get(of, WHOLE), self._left_of_link[at]
            since = sorted({*one.since_ns, *other.since_ns})
            left[of] = Profile.of(since, [min(one.at(now), other.at(now)) for now in since])
        for of, least in left.items():
            number[of] = _index_of(least, self._left)
        return number

    def capped(self, cap: int, number: int) -> tuple[int, int]:
        """What is left of a cap at time zero, and the index of its profile if that changes, or -1."""
        left = self._left[number]
        # rounded down, but not to nothing, unless nothing is left
        changing = Profile(left.since_ns, tuple(max(cap * value >> RATIO_BITS, min(1, value)) for value in left.value))
        return changing.value[0], -1 if changing.steady else _index_of(changing, self._profiles)
