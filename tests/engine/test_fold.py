"""Folding: random covers of random networks, whole and with something broken in them, must fold to equal times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulator.engine import des
from simulator.engine.fold import Partition, fold, quotient, refine, unfolded, verify
from simulator.engine.skeleton import Expansion, Skeleton, Tariff, task_count
from simulator.engine.task import FULL_SPEED, UNCAPPED, Csr, Profile
from simulator.engine.template import Template
from simulator.errors import InvariantBroken

from .make import check, gb_per_s, lift, random_base, with_profile

SAMPLE, ALL = range(120), range(120, 1120)


def random_lift(seed: int) -> tuple[Skeleton, int]:
    """A cover, in two of three cases with one slow rank or one link that changes; and the classes that its base has."""
    rng = np.random.default_rng(seed)
    base = random_base(rng)
    skeleton = lift(base, int(rng.integers(2, 9)), rng)
    if seed % 3 == 1:
        skeleton = with_profile(skeleton, Profile.constant(FULL_SPEED // 3), rank=int(rng.integers(0, skeleton.ranks)))
    if seed % 3 == 2:
        profile = Profile((0, 200, 900), (gb_per_s(6), gb_per_s(2), gb_per_s(9)))
        skeleton = with_profile(skeleton, profile, link=int(rng.integers(0, len(skeleton.link_profile))))
    return skeleton, len(base.speed)


def assert_equal(skeleton: Skeleton, folded: Expansion) -> None:
    """Every start and end of every rank's every row."""
    whole = unfolded(skeleton)
    check(whole.graph)
    check(folded.graph)
    one, other = des.simulate(whole.graph), des.simulate(folded.graph)
    for rank in range(skeleton.ranks):
        mine, theirs = whole.tasks_of(rank), folded.tasks_of(int(folded.class_of[rank]))
        assert (one.start_ns[mine] == other.start_ns[theirs]).all()
        assert (one.end_ns[mine] == other.end_ns[theirs]).all()
    assert folded.tasks_unfolded == len(whole.graph) == task_count(skeleton)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("seed", SAMPLE)
def test_random_lifts_fold_to_equal_times(seed: int) -> None:
    skeleton, base_classes = random_lift(seed)
    folded = fold(skeleton)
    assert_equal(skeleton, folded)
    if seed % 3 == 0:
        assert folded.skeleton.ranks <= base_classes


@pytest.mark.slow
def test_a_thousand_random_lifts_fold_to_equal_times() -> None:
    for seed in ALL:
        skeleton, _ = random_lift(seed)
        assert_equal(skeleton, fold(skeleton))


def test_a_broken_symmetry_splits_classes() -> None:
    rng = np.random.default_rng(5)
    whole = lift(random_base(rng), 6, rng)
    broken = with_profile(whole, Profile.constant(FULL_SPEED // 2), rank=0)
    assert refine(broken).classes > refine(whole).classes


def test_ranks_of_other_programs_or_speeds_are_never_merged() -> None:
    for seed in range(30):
        skeleton, _ = random_lift(seed)
        classes = refine(skeleton).rank
        for column in (skeleton.program, skeleton.speed):
            for value in np.unique(classes):
                assert len(set(column[classes == value].tolist())) == 1


@pytest.mark.parametrize("part", ["rank", "communicator", "link"])
def test_verify_catches_every_corrupted_partition(part: str) -> None:
    """Two random classes merged: stable partitions are coarsest here, so no merger may pass."""
    caught = 0
    for seed in range(90):
        rng = np.random.default_rng(seed)
        skeleton, _ = random_lift(seed)
        partition = refine(skeleton)
        classes = getattr(partition, part)
        if classes.max() == 0:
            continue
        keep, drop = sorted(rng.choice(int(classes.max()) + 1, 2, replace=False).tolist())
        merged = np.where(classes == drop, keep, classes)
        merged = np.unique(merged, return_inverse=True)[1]
        corrupted = replace_part(partition, part, merged)
        if _stable_by_definition(skeleton, corrupted):
            continue
        with pytest.raises(InvariantBroken):
            verify(skeleton, corrupted)
        caught += 1
    assert caught >= 20


def bare(members: list[list[int]], *, speed: list[int] | None = None) -> Skeleton:
    """Ranks that all run one program, a task of their own and two turns of slot 0; communicators without links."""
    ranks = sum(map(len, members))
    none = np.zeros(0, dtype=np.int64)
    slots = np.full((1, ranks), -1)
    for communicator, of in enumerate(members):
        slots[0, of] = communicator
    zeros, turns = np.zeros(3, dtype=np.int64), np.array([-1, 0, 0])
    template = Template(turns, np.array([10, 0, 0]), zeros, Csr.from_lists([[], [0], [1]]), Csr.from_lists([[0], [1, 2]]))
    tariff = Tariff(*(np.full((1, 1), value) for value in (5, 0, UNCAPPED, 0, 0, -1, 0, 0)))
    profiles = (Profile.constant(FULL_SPEED), Profile.constant(FULL_SPEED // 2))
    footprints = Csr.from_lists([[] for _ in members])
    return Skeleton(
        (template,), tariff, profiles, np.zeros(ranks, dtype=np.int64), np.array(speed or [0] * ranks), slots,
        np.zeros(len(members), dtype=np.int64), 1, footprints, none, none,
    )  # fmt: skip


def test_verify_looks_at_the_members_of_communicators() -> None:
    """Two of a kind, of one rank and of two that are all in one class: nothing but their number tells them apart."""
    skeleton = bare([[0], [1, 2]])
    everything_alike = Partition(np.zeros(3, dtype=np.int64), np.zeros(2, dtype=np.int64), np.zeros(0, dtype=np.int64))
    with pytest.raises(InvariantBroken, match="members"):
        verify(skeleton, everything_alike)
    verify(bare([[0, 3], [1, 2]]), replace(everything_alike, rank=np.zeros(4, dtype=np.int64)))


def test_verify_looks_at_the_speeds_of_ranks() -> None:
    alone = [[0], [1]]
    everything_alike = Partition(np.zeros(2, dtype=np.int64), np.zeros(2, dtype=np.int64), np.zeros(0, dtype=np.int64))
    with pytest.raises(InvariantBroken, match="ranks"):
        verify(bare(alone, speed=[0, 1]), everything_alike)
    verify(bare(alone, speed=[1, 1]), everything_alike)


def replace_part(partition: Partition, part: str, classes: np.ndarray) -> Partition:
    return replace(partition, **{part: classes})


def _stable_by_definition(skeleton: Skeleton, partition: Partition) -> bool:
    """The three conditions of docs/semantics.md, written out with dictionaries."""
    rank, comm, link = (c.tolist() for c in (partition.rank, partition.communicator, partition.link))
    members: list[list[tuple[int, int]]] = [[] for _ in comm]
    for slot, row in enumerate(skeleton.slots.tolist()):
        for r, c in enumerate(row):
            if c >= 0:
                members[c].append((slot, rank[r]))
    footprints = skeleton.footprints.lists()
    weights = [
        skeleton.footprint_weight[a:b].tolist()
        for a, b in zip(skeleton.footprints.ptr, skeleton.footprints.ptr[1:], strict=False)
    ]
    load: list[dict[int, int]] = [{} for _ in link]
    for footprint, (crossed, weight) in enumerate(zip(footprints, weights, strict=True)):
        for at, w in zip(crossed, weight, strict=True):
            load[at][comm[footprint]] = load[at].get(comm[footprint], 0) + w
    slot_classes = [[comm[c] if c >= 0 else -1 for c in row] for row in skeleton.slots[:, np.arange(len(rank))].T.tolist()]
    looks = {
        "rank": [(p, s, tuple(row)) for p, s, row in zip(skeleton.program, skeleton.speed, slot_classes, strict=True)],
        "comm": [
            (k, tuple(sorted(m)), tuple(sorted((link[at], w) for at, w in zip(crossed, weight, strict=True))))
            for k, m, crossed, weight in zip(skeleton.kind, members, footprints, weights, strict=True)
        ],
        "link": [(p, tuple(sorted(carried.items()))) for p, carried in zip(skeleton.link_profile, load, strict=True)],
    }
    for name, classes in (("rank", rank), ("comm", comm), ("link", link)):
        first: dict[int, object] = {}
        if any(first.setdefault(c, look) != look for c, look in zip(classes, looks[name], strict=True)):
            return False
    return True


def test_verify_and_the_definition_agree_on_what_refine_finds() -> None:
    for seed in range(60):
        skeleton, _ = random_lift(seed)
        partition = refine(skeleton)
        verify(skeleton, partition)
        assert _stable_by_definition(skeleton, partition)


def test_the_quotient_of_a_quotient_is_itself() -> None:
    for seed in range(30):
        skeleton, _ = random_lift(seed)
        once = quotient(skeleton, refine(skeleton))
        assert refine(once).classes == once.ranks


def test_members_that_take_other_turns_are_a_bug_that_is_named() -> None:
    found = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        skeleton = lift(random_base(rng), 3, rng)
        communicator, slot, rank = skeleton.members
        for c in range(skeleton.communicators):
            at = np.flatnonzero(communicator == c)
            programs = skeleton.program[rank[at]]
            rows = skeleton.templates[programs[0]].rows_of(int(slot[at[0]]))
            if len(set(programs.tolist())) < 2 or not len(rows):
                continue
            template = skeleton.templates[programs[0]]
            charge = template.charge.copy()
            charge[rows[0]] = (charge[rows[0]] + 1) % 4
            changed = tuple(replace(t, charge=charge) if t is template else t for t in skeleton.templates)
            with pytest.raises(InvariantBroken, match="same turns"):
                unfolded(replace(skeleton, templates=changed))
            found += 1
    assert found
