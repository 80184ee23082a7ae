"""Joining: parts that share no link take the times that each takes by itself, whatever its speeds, caps and tails."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine import des
from simulator.engine.fold import fold, unfolded
from simulator.engine.skeleton import Skeleton, join_skeletons
from simulator.engine.task import FULL_SPEED, Profile

from .make import check, lift, random_base, with_profile

seeds = st.integers(0, 2**32)


def parts_of(seed: int, count: int = 3) -> list[Skeleton]:
    """Random skeletons with ranks of changing speed, each on its own part of the same links."""
    rng = np.random.default_rng(seed)
    parts = []
    for _ in range(count):
        part = lift(random_base(rng), int(rng.integers(1, 4)), rng)
        for _ in range(2):
            slow = Profile(
                (0, int(rng.integers(1, 300))), (FULL_SPEED // int(rng.integers(1, 5)), FULL_SPEED // int(rng.integers(1, 5)))
            )
            part = with_profile(part, slow, rank=int(rng.integers(0, part.ranks)))
        parts.append(part)
    capacity = [part.profiles[i] for part in parts for i in part.link_profile.tolist()]
    first = np.cumsum([0] + [len(part.link_profile) for part in parts])
    return [_on(part, capacity, int(at)) for part, at in zip(parts, first, strict=False)]


def _on(part: Skeleton, capacity: list[Profile], first: int) -> Skeleton:
    """The part on the links from `first` on of all, whose capacities are the same for every part."""
    footprints = replace(part.footprints, idx=part.footprints.idx + first)
    profiles = (*part.profiles, *capacity)
    return replace(part, footprints=footprints, profiles=profiles, link_profile=np.arange(len(capacity)) + len(part.profiles))


@given(seeds, st.booleans())
def test_parts_that_share_no_link_are_each_as_alone(seed: int, folds: bool) -> None:
    parts = parts_of(seed)
    how = fold if folds else unfolded
    together = how(join_skeletons(parts))
    times, first = des.simulate(check(together.graph)), 0
    for part in parts:
        alone = unfolded(part)
        expected = des.simulate(alone.graph)
        for rank in range(part.ranks):
            mine = alone.tasks_of(rank)
            theirs = together.tasks_of(int(together.class_of[first + rank]))
            for name in ("start_ns", "end_ns", "arrival_ns"):
                assert (getattr(expected, name)[mine] == getattr(times, name)[theirs]).all()
        first += part.ranks


@pytest.mark.parametrize("second", [FULL_SPEED // 2, FULL_SPEED // 5])
def test_every_rank_keeps_its_own_speed(second: int) -> None:
    rng = np.random.default_rng(1)
    one = lift(random_base(rng), 2, rng)
    other = with_profile(one, Profile.constant(second), rank=1)
    whole = join_skeletons([one, other])
    found = [whole.profiles[i] for i in whole.speed.tolist()]
    assert found == [part.profiles[i] for part in (one, other) for i in part.speed.tolist()]
