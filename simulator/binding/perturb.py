"""Perturbations as profiles over time: ranks that compute slower and links that carry less, always or for a while.

The measured rate of a collective lies below the capacity of most links that it crosses. Where one of these links is degraded,
the library waits for it, and the rate falls by the same factor as that link: the cap is scaled by the smallest fraction of
capacity that perturbations leave to any of its links. Without measurements nothing is scaled, because the links themselves
limit the flow. Latency does not change.
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
    """The profile of a constant `base` under all its perturbations; overlapping factors multiply. Never below 0."""
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
    of_target: dict[int, list[Perturbation]] = {}
    for p in perturbations:
        if (target := getattr(p, kind)) is not None:
            of_target.setdefault(target, []).append(p)
    return of_target


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
"""Fractions of a rate are integers in units of 2^-40."""
UNDEGRADED = Profile.constant(1 << RATIO_BITS)


class DegradedLinks:
    """The smallest fraction of capacity that perturbations leave to any link of a group, as numbered profiles; number 0 is 1."""

    def __init__(self, perturbations: Mapping[int, Sequence[Perturbation]], profiles: list[Profile]) -> None:
        self._fraction_of_link = {link: profile(1 << RATIO_BITS, of) for link, of in perturbations.items()}
        self._fractions = [UNDEGRADED]
        self._profiles = profiles
        """The profiles of the skeleton, to which the profiles of changing caps are appended."""

    def fractions_of_groups(self, group: Array, link: Array, groups: int) -> Array:
        """The number of the profile of each group, given the pairs (group, link that it crosses)."""
        number = np.zeros(groups, dtype=np.int64)
        if not self._fraction_of_link:
            return number
        left: dict[int, Profile] = {}
        seen = np.isin(link, list(self._fraction_of_link))
        for row, at in zip(group[seen].tolist(), link[seen].tolist(), strict=True):
            least, fraction = left.get(row, UNDEGRADED), self._fraction_of_link[at]
            since = sorted({*least.since_ns, *fraction.since_ns})
            left[row] = Profile.of(since, [min(least.at(now), fraction.at(now)) for now in since])
        for row, least in left.items():
            number[row] = _index_of(least, self._fractions)
        return number

    def scaled_cap(self, cap: int, number: int) -> tuple[int, int]:
        """The scaled cap at time zero, and the index of its profile if it changes, or -1."""
        left = self._fractions[number]
        # rounded down, but to zero only if no capacity is left
        changing = Profile(left.since_ns, tuple(max(cap * value >> RATIO_BITS, min(1, value)) for value in left.value))
        return changing.value[0], -1 if changing.steady else _index_of(changing, self._profiles)
