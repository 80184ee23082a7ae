"""Tasks that take a part of a rank's resources, and the tasks that this slows: by hand, as laws, and equal in all engines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine import des, overlap, skeleton
from simulator.engine.compiled import event_loop
from simulator.engine.fold import unfolded
from simulator.engine.replay import replay, why_not
from simulator.engine.task import CORES, FULL_SPEED, LEAST_SPEED, MEMORY, Csr, Profile, Sharing, TaskGraph
from simulator.errors import UserError

from .make import Build, lift, random_base, random_graph, random_part, steady
from .test_compiled import assert_equal_to_des, needs_numba

seeds = st.integers(0, 2**32)
QUARTER = FULL_SPEED // 4


def shared(graph: TaskGraph, needs: dict[int, int], takes: dict[int, tuple[int, int]], ranks: Any = ((0,),)) -> TaskGraph:
    """The graph with slowed tasks and the resource that each needs, and with tasks that take from the first group of ranks."""
    n = len(graph)
    resource, group, taken = np.full(n, -1), np.full(n, -1), np.zeros((n, 2), dtype=np.int64)
    for task, which in needs.items():
        resource[task] = which
    for task, parts in takes.items():
        group[task], taken[task] = 0, parts
    return replace(graph, sharing=Sharing(resource, taken, group, Csr.from_lists(ranks)))


def ends(graph: TaskGraph) -> list[int]:
    found: list[int] = des.simulate(graph).end_ns.tolist()
    if event_loop.why_not(graph) == "":
        assert event_loop.simulate(graph).end_ns.tolist() == found
    return found


def test_s6_1_a_task_in_progress_takes_its_parts_from_its_start_to_its_end() -> None:
    b = Build(speeds=steady(FULL_SPEED))
    slowed = b.task(1000, on="compute", speed=0)
    first = b.task(100, on="other")
    b.task(300, on="other", after=[first])
    # 100 ns at full speed, 300 ns at three quarters: 325 done; the rest at full speed
    assert ends(shared(b.graph(), {slowed: CORES}, {2: (QUARTER, 0)}))[slowed] == 400 + 675


def test_s6_2_a_slowed_task_runs_at_what_is_left_of_its_resource_times_the_speed_of_its_rank() -> None:
    for speed, lasts in ((FULL_SPEED, 400), (FULL_SPEED // 2, 800)):
        b = Build(speeds=steady(speed))
        cores, memory, other = b.task(300, on="a", speed=0), b.task(300, on="b", speed=0), b.task(300, on="c", speed=0)
        b.task(5000, on="d")
        found = ends(shared(b.graph(), {cores: CORES, memory: MEMORY}, {3: (QUARTER, 0)}))
        assert found[:3] == [lasts, 300 * FULL_SPEED // speed, 300 * FULL_SPEED // speed]
        assert found[other] == 300 * FULL_SPEED // speed


def test_s6_3_parts_of_several_tasks_add_up_and_half_of_a_resource_is_always_left() -> None:
    for tasks, lasts in ((0, 300), (1, 400), (2, 600), (3, 600), (9, 600)):
        b = Build(speeds=steady(FULL_SPEED))
        slowed = b.task(300, on="compute", speed=0)
        takers = [b.task(5000, on=f"other {i}") for i in range(tasks)]
        found = ends(shared(b.graph(), {slowed: CORES}, dict.fromkeys(takers, (QUARTER, 0))))
        assert found[slowed] == lasts
    assert LEAST_SPEED * 2 == FULL_SPEED


def test_s6_4_speeds_are_set_once_per_instant_after_all_other_events() -> None:
    """One task gives back what the next one takes: the speed does not change, and no rounding is added."""
    b = Build(speeds=steady(FULL_SPEED))
    slowed = b.task(299, on="compute", speed=0)
    chain = [b.task(1, on="other") for _ in range(500)]
    found = ends(shared(b.graph(), {slowed: MEMORY}, dict.fromkeys(chain, (0, FULL_SPEED // 3))))
    left = FULL_SPEED - FULL_SPEED // 3
    assert found[slowed] == -(-(299 * FULL_SPEED) // left)


def test_s6_5_a_speed_that_changes_multiplies_what_is_left() -> None:
    b = Build(speeds=[Profile((0, 200), (FULL_SPEED, FULL_SPEED // 2))])
    slowed = b.task(300, on="compute", speed=0)
    b.task(5000, on="other")
    found = des.simulate(shared(b.graph(), {slowed: CORES}, {1: (QUARTER, 0)})).end_ns
    assert found[slowed] == 200 + 400, "150 ns of work at 3/4, and 150 at 3/8"


def test_s6_6_replay_refuses_tasks_whose_speed_depends_on_others() -> None:
    b = Build(speeds=steady(FULL_SPEED))
    slowed = b.task(300, on="compute", speed=0)
    b.task(5000, on="other")
    graph = shared(b.graph(), {slowed: CORES}, {1: (QUARTER, 0)})
    assert "depends on what else is in progress" in why_not(graph)
    with pytest.raises(UserError, match="replay is exact only"):
        replay(graph)


def random_shared(rng: np.random.Generator, *, flows: bool = True, tasks: int = 60) -> TaskGraph:
    """A random graph in which tasks without a footprint belong to ranks; about half of all tasks take from some ranks."""
    graph, ranks = random_graph(rng, flows=flows, tasks=tasks), int(rng.integers(1, 4))
    n, groups = len(graph), 3
    speed = np.where(graph.footprint < 0, rng.integers(0, ranks, n), -1)
    resource = np.where((speed >= 0) & (graph.solo_ns > 0), rng.integers(-1, 2, n), -1)
    takes = np.stack([random_part(rng, (n,)), random_part(rng, (n,))], axis=1)
    group = np.where(takes.any(axis=1), rng.integers(0, groups, n), -1)
    members = Csr.from_lists([rng.integers(0, ranks, int(rng.integers(1, 4))).tolist() for _ in range(groups)])
    profiles = (*graph.profiles, *steady(*(int(rng.integers(FULL_SPEED // 3, 2 * FULL_SPEED)) for _ in range(ranks))))
    of_ranks = np.arange(ranks) + len(graph.profiles)
    return replace(
        graph, speed=speed, speed_profile=of_ranks, profiles=profiles, sharing=Sharing(resource, takes, group, members)
    )


@needs_numba
@settings(max_examples=20, deadline=None)
@given(seeds)
def test_the_compiled_engine_slows_tasks_as_the_event_loop_does(seed: int) -> None:
    assert_equal_to_des(random_shared(np.random.default_rng(seed)))


@settings(max_examples=20, deadline=None)
@given(seeds)
def test_no_task_starts_or_ends_earlier_because_tasks_are_slowed(seed: int) -> None:
    """Where nothing shares a link: a transfer that is delayed may leave its link to another one."""
    graph = random_shared(np.random.default_rng(seed), flows=False)
    slowed, free = des.simulate(graph), des.simulate(replace(graph, sharing=None))
    assert (slowed.start_ns >= free.start_ns).all()
    assert (slowed.end_ns >= free.end_ns).all()


@settings(max_examples=20, deadline=None)
@given(seeds)
def test_every_slowed_task_does_its_work_at_the_speeds_that_the_others_leave(seed: int) -> None:
    """The times, checked nanosecond by nanosecond against the definition."""
    graph = random_shared(np.random.default_rng(seed), flows=False)
    assert graph.sharing
    sharing, times = graph.sharing, des.simulate(graph)
    taken = np.zeros((len(graph.speed_profile), int(times.end_ns.max()) + 1, 2), dtype=np.int64)
    for task in np.flatnonzero(sharing.group >= 0).tolist():
        for rank in sharing.ranks.row(int(sharing.group[task])).tolist():
            taken[rank, times.start_ns[task] : times.end_ns[task]] += sharing.takes[task]
    for task in sharing.slowed.tolist():
        rank, which = int(graph.speed[task]), int(sharing.resource[task])
        full = graph.profiles[graph.speed_profile[rank]].value[0]
        during = taken[rank, times.start_ns[task] : times.end_ns[task], which]
        speeds = full * np.maximum(LEAST_SPEED, FULL_SPEED - during) // FULL_SPEED
        work = int(graph.solo_ns[task]) << 16
        assert speeds.sum() >= work > speeds[:-1].sum()


@settings(max_examples=20, deadline=None)
@given(seeds)
def test_what_the_order_of_a_template_rules_out_never_overlaps(seed: int) -> None:
    """Times are the same if every task that takes anything may slow every task that needs it."""
    rng = np.random.default_rng(seed)
    of = lift(random_base(rng), 1, rng)
    with pytest.MonkeyPatch.context() as patch:
        few = unfolded(of).graph
        patch.setattr(skeleton, "overlapping", lambda preds, lanes, needs, takes: (
            np.flatnonzero(needs >= 0), np.flatnonzero(takes.any(axis=1))
        ))  # fmt: skip
        every = unfolded(of).graph
    one, other = des.simulate(few), des.simulate(every)
    np.testing.assert_array_equal(one.start_ns, other.start_ns)
    np.testing.assert_array_equal(one.end_ns, other.end_ns)


def test_a_transfer_that_the_next_kernel_waits_for_slows_nothing() -> None:
    """Kernel, transfer, kernel that waits for it, on two lanes; then one that does not wait."""
    lanes, needs = Csr.from_lists([[0, 2], [1]]), np.array([CORES, -1, CORES])
    takes = np.array([[False, False], [True, True], [False, False]])
    for last_waits, found in ((True, ([], [])), (False, ([2], [1]))):
        preds = Csr.from_lists([[], [0], [1] if last_waits else []])
        assert tuple(rows.tolist() for rows in overlap.overlapping(preds, lanes, needs, takes)) == found
