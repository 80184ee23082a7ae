"""Turns on shared links that never run together: found only where they do not, on random covers of random networks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import simulator as sim
from simulator.engine import des, stretched_timeline
from simulator.engine.fold import Folded, every_rank, folded, unfolded
from simulator.engine.mutual_exclusion import LinkSharers, Precedence, have_common_member
from simulator.engine.replay import with_fixed_durations
from simulator.engine.skeleton import Skeleton
from simulator.engine.stretches import stretched
from simulator.engine.task import Array
from simulator.engine.template import Template

from ..small_scenarios import bound, scenario, small_cluster
from .make import lift, random_base

SAMPLE, ALL = range(80), range(80, 2080)


def random_cover(seed: int) -> Skeleton:
    """Several copies of a random network, joined at random: classes of links do not tell whether members are in common."""
    rng = np.random.default_rng(seed)
    return lift(random_base(rng), int(rng.integers(1, 5)), rng)


def assert_rows_as_in_the_reference(skeleton: Skeleton, ranks: Folded) -> int:
    """Compares every row of every rank; returns the number of stretches of several rows."""
    made = stretched(ranks, lambda program: np.zeros(len(skeleton.templates[program]), dtype=np.int64))
    assert made is not None
    found, whole = stretched_timeline.run(ranks, made), unfolded(skeleton)
    assert found is not None
    times = des.simulate(with_fixed_durations(whole.graph))
    for rank in range(skeleton.ranks):
        tasks, of_class = whole.tasks_of(rank), found.class_times(int(ranks.class_of[rank]))
        for column in ("start_ns", "end_ns", "arrival_ns"):
            np.testing.assert_array_equal(getattr(times, column)[tasks], getattr(of_class, column))
    return sum(int((of.ends - of.heads > 1).sum()) for of in made.stretches)


@pytest.mark.parametrize("seed", SAMPLE)
def test_random_covers_of_stretches_are_as_in_the_reference(seed: int) -> None:
    skeleton = random_cover(seed)
    for ranks in (folded(skeleton), every_rank(skeleton)):
        assert_rows_as_in_the_reference(skeleton, ranks)


@pytest.mark.slow
def test_two_thousand_random_covers_are_as_in_the_reference() -> None:
    assert sum(assert_rows_as_in_the_reference(cover, folded(cover)) for cover in map(random_cover, ALL)) > 1000


def templates() -> Iterator[Template]:
    """The programs of random networks."""
    for seed in SAMPLE:
        yield from random_base(np.random.default_rng(seed)).templates


def reached(template: Template) -> Array:
    """(row, row) -> whether the first has ended before the second starts, by every way from row to row."""
    n, (src, dst, _) = len(template), template.edges
    way = np.zeros((n, n), dtype=bool)
    way[src, dst] = True
    for between in range(n):
        way |= way[:, between : between + 1] & way[between]
    return way


def test_rows_that_never_run_together_are_before_or_behind_each_other() -> None:
    claimed = together = 0
    for template in templates():
        way, slots = reached(template), range(int(template.slot.max(initial=-1)) + 1)
        order = Precedence.of(template, 0)
        for slot, other in ((a, b) for a in slots for b in slots if a != b):
            rows, others = template.rows_of(slot), template.rows_of(other)
            excluded = order.never_together(rows, others)
            claimed, together = claimed + int(excluded.sum()), together + int((~excluded).sum())
            for row in rows[excluded].tolist():
                assert (way[row, others] | way[others, row]).all()
    assert claimed > 100
    assert together > 100


@pytest.mark.parametrize("seed", SAMPLE)
def test_a_common_member_is_a_member_of_all(seed: int) -> None:
    skeleton = random_cover(seed)
    joint, owner = have_common_member(skeleton), skeleton.footprints.row_of // skeleton.patterns
    for link in range(len(skeleton.link_profile)):
        crossing = set(owner[skeleton.footprints.idx == link].tolist())
        members = [set(skeleton.members[2][skeleton.members[0] == one].tolist()) for one in crossing]
        assert bool(joint[link]) == (len(members) < 2 or bool(set.intersection(*members)))


def test_a_few_flows_are_left_where_groups_are_smaller_than_nodes() -> None:
    plan, job = sim.Plan(tp=2, pp=2, dp=4, sharding="zero1", overlap=sim.Overlap(dp=True)), sim.Job(64, 64)
    of = bound(scenario(plan=plan, cluster=small_cluster(4), job=job), None)
    ranks = folded(of.skeleton)
    made = stretched(ranks, lambda program: of.labels[program].interrupted)
    assert made is not None
    flows = int((made.graph.footprint >= 0).sum())
    every = int((with_fixed_durations(ranks.expansion().graph).footprint >= 0).sum())
    assert flows * 4 < every


def test_links_without_a_common_member_keep_turns_open() -> None:
    of = bound(scenario(plan=sim.Plan(tp=2, dp=8), cluster=small_cluster(4), job=sim.Job(64, 64)), None)
    skeleton = folded(of.skeleton).skeleton
    main = of.labels[0].lanes.index("compute")
    turns = skeleton.templates[0].turns
    joint = np.ones(len(skeleton.link_profile), dtype=bool)
    assert LinkSharers(skeleton, joint).exclusive(0, main, turns).any()
    assert not LinkSharers(skeleton, ~joint).exclusive(0, main, turns)[skeleton.templates[0].slot[turns] == 0].any()
