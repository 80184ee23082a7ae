"""Contraction and the event loop over a heap: all times are those of the reference engine, on random graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from simulator.engine import des, heap
from simulator.engine.contract import FIXED, contract
from simulator.engine.fold import unfolded
from simulator.engine.replay import with_fixed_durations
from simulator.engine.skeleton import join_skeletons
from simulator.engine.task import CORES, FULL_SPEED, MEMORY, Csr, Profile, Sharing, TaskGraph
from simulator.engine.timeline import Times
from simulator.errors import Deadlock

from .make import Build, gb_per_s, lift, random_base, random_graph, steady
from .test_sharing import random_shared


def random_steps(rng: np.random.Generator, *, tasks: int = 60, shares: bool = True, changes: bool = True) -> TaskGraph:
    """Ranks with kernels in a row, collectives of all ranks among them, and transfers beside, as a training step has them."""
    ranks = int(rng.integers(1, 4))
    speeds = [_speed(rng, changes=changes) for _ in range(ranks)]
    b = Build(links=steady(gb_per_s(4), gb_per_s(1)), speeds=speeds)
    resource, takes, group = [], [], []
    last: list[list[int]] = [[] for _ in range(ranks)]
    while len(b.rows) < tasks:
        kind, rank = rng.random(), int(rng.integers(0, ranks))
        needs, part, of = -1, [0, 0], -1
        if kind < 0.7:
            task = b.task(int(rng.integers(0, 300)), on=f"compute {rank}", after=last[rank], speed=rank)
            last[rank], needs = [task] if rng.random() < 0.8 else [], int(rng.integers(-1, 2))
        elif kind < 0.85:
            ended = [task for tasks_of in last for task in tasks_of]
            task = b.task(int(rng.integers(0, 200)), on="all", after=ended, tail=int(rng.choice([0, 0, 30])))
            last = [[task] for _ in range(ranks)]
        else:
            work, latency = int(rng.integers(0, 2000)), int(rng.integers(0, 400))
            route = [int(rng.integers(0, 2))] if work else ()
            task = b.task(latency, on=f"edge {rank}", after=last[rank], work=work, route=route)
            if rng.random() < 0.7:
                part, of = rng.integers(0, FULL_SPEED // 3, 2).tolist(), rank
            if rng.random() < 0.3:
                last[(rank + 1) % ranks].append(task)
        resource.append(needs)
        takes.append(part)
        group.append(of)
    graph = b.graph()
    if not shares:
        return graph
    needs = np.where((graph.solo_ns > 0) & (graph.speed >= 0), resource, -1)
    members = Csr.from_lists([[rank, (rank + 1) % ranks] for rank in range(ranks)])
    return replace(graph, sharing=Sharing(needs, np.array(takes), np.array(group), members))


def _speed(rng: np.random.Generator, *, changes: bool) -> Profile:
    """Full speed, a lower one, or one that changes, to nothing for a while too."""
    kind = int(rng.integers(0, 4 if changes else 2))
    if kind < 2:
        return Profile.constant(FULL_SPEED if kind else int(rng.integers(FULL_SPEED // 2, FULL_SPEED)))
    since = sorted(set(rng.integers(1, 4000, 2).tolist()))
    values = [FULL_SPEED, *rng.choice([0, FULL_SPEED // 3], len(since) - 1).tolist(), int(rng.integers(1, FULL_SPEED))]
    return Profile((0, *since), tuple(values))


def several_jobs(rng: np.random.Generator) -> TaskGraph:
    """Two networks on the same links."""
    base = random_base(rng)
    return unfolded(join_skeletons([lift(base, 1, rng), lift(base, 1, rng)])).graph


KINDS: dict[str, Callable[[np.random.Generator, int], TaskGraph]] = {
    "no flows": lambda rng, n: random_graph(rng, flows=False, tasks=n),
    "flows": lambda rng, n: random_graph(rng, flows=True, tasks=n),
    "changing speeds": lambda rng, n: random_graph(rng, flows=True, speeds=True, tasks=n),
    "slowed": lambda rng, n: random_shared(rng, tasks=n),
    "steps": lambda rng, n: random_steps(rng, tasks=n),
    "steps at steady speeds": lambda rng, n: random_steps(rng, tasks=n, changes=False),
    "steps that slow nothing": lambda rng, n: with_fixed_durations(random_steps(rng, tasks=n, shares=False, changes=False)),
}


def assert_equal(one: Times, other: Times) -> None:
    np.testing.assert_array_equal(one.start_ns, other.start_ns)
    np.testing.assert_array_equal(one.end_ns, other.end_ns)
    np.testing.assert_array_equal(one.arrival_ns, other.arrival_ns)


def assert_as_reference(graph: TaskGraph) -> None:
    """Whether it is contracted or not."""
    times = des.simulate(graph)
    assert_equal(heap.times_by(contract(graph)), times)
    assert_equal(heap.whole_times(graph), times)


def graphs(kind: str, first: int, count: int, tasks: int) -> Iterator[TaskGraph]:
    for seed in range(first, first + count):
        yield KINDS[kind](np.random.default_rng(seed), tasks)


@pytest.mark.parametrize("kind", KINDS)
def test_s7_4_every_task_starts_and_ends_as_in_the_reference(kind: str) -> None:
    """Small graphs, 1,505 in all."""
    for graph in graphs(kind, 0, 215, 12):
        assert_equal(heap.times_by(contract(graph)), des.simulate(graph))


@pytest.mark.parametrize("kind", KINDS)
def test_every_task_starts_and_ends_as_in_the_reference_without_contraction(kind: str) -> None:
    for graph in graphs(kind, 300, 10, 60):
        assert_equal(heap.whole_times(graph), des.simulate(graph))


def test_several_jobs_on_the_same_links() -> None:
    for seed in range(10):
        assert_as_reference(several_jobs(np.random.default_rng(seed)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_larger_graphs(kind: str) -> None:
    for graph in graphs(kind, 1000, 150, 200):
        assert_as_reference(graph)


@pytest.mark.slow
def test_many_pairs_of_jobs_on_the_same_links() -> None:
    for seed in range(100, 400):
        assert_as_reference(several_jobs(np.random.default_rng(seed)))


def test_the_graph_of_chains_is_one_that_every_engine_takes() -> None:
    """Where no speed changes, the chains of a graph are tasks like others."""
    for graph in graphs("steps that slow nothing", 500, 20, 60):
        small = contract(graph)
        assert len(small.graph) < len(graph)
        assert_equal(small.times(des.simulate(small.graph), np.zeros(0, dtype=np.int64)), des.simulate(graph))


def test_s7_2_branches_that_leave_one_task_and_meet_again_are_contracted() -> None:
    """Two ranks, and after each kernel of both a collective: all fixed, or with one rank that may be slowed."""
    b = Build(speeds=steady(FULL_SPEED, FULL_SPEED // 2))
    done: list[int] = []
    for _ in range(10):
        kernels = [b.task(100 + rank, on=f"compute {rank}", after=done, speed=rank) for rank in (0, 1)]
        done = [b.task(7, on="all", after=kernels)]
    graph = b.graph()
    assert len(contract(graph).graph) == 3, "the first kernels wait for nothing, and the rest for both of them"
    assert heap.times_by(contract(graph)).end_ns[-1] == 10 * (202 + 7)
    needs = np.where(graph.speed == 1, CORES, -1)
    slowed = replace(graph, sharing=Sharing(needs, np.zeros((30, 2), dtype=np.int64), np.full(30, -1), Csr.from_lists([[1]])))
    assert len(contract(slowed).graph) > 10
    assert_as_reference(slowed)


def test_s7_1_a_chain_of_kernels_that_may_be_slowed_is_one_task_with_pieces() -> None:
    """And a task that slows the middle of it slows these pieces only."""
    b = Build(speeds=steady(FULL_SPEED))
    for _ in range(4):
        b.task(100, on="compute", speed=0)
    wait = b.task(150, on="wait")
    b.task(60, on="edge", after=[wait])
    needs, takes, group = np.array([CORES, MEMORY, CORES, CORES, -1, -1]), np.zeros((6, 2), dtype=np.int64), np.full(6, -1)
    takes[5], group[5] = (FULL_SPEED // 4, FULL_SPEED // 2), 0
    graph = replace(b.graph(), sharing=Sharing(needs, takes, group, Csr.from_lists([[0]])))
    small = contract(graph)
    assert len(small.graph) == 3
    assert (small.pieces.kind != FIXED).all()
    found = heap.times_by(small)
    # the second piece runs at half speed from 150 to 210 and ends at 230
    assert found.end_ns.tolist() == [100, 230, 330, 430, 150, 210]
    assert_equal(found, des.simulate(graph))


def test_s7_3_chains_on_ranks_of_different_speeds_are_kept_apart() -> None:
    b = Build(speeds=[Profile((0, 50), (FULL_SPEED, FULL_SPEED // 2)), Profile((0, 70), (FULL_SPEED, FULL_SPEED // 4))])
    one = b.task(100, on="a", speed=0)
    b.task(100, on="b", after=[one], speed=1)
    assert len(contract(b.graph()).graph) == 2
    assert_as_reference(b.graph())


@pytest.mark.parametrize("kind", ["no flows", "steps"])
def test_s7_4_a_deadlock_is_found_with_all_that_it_blocks(kind: str) -> None:
    """Predecessors at random close circles; what each engine says is the same."""
    found = 0
    for graph in graphs(kind, 0, 40, 24):
        rng, n = np.random.default_rng(len(graph)), len(graph)
        rows, values = np.append(graph.preds.row_of, rng.integers(0, n, 2)), np.append(graph.preds.idx, rng.integers(0, n, 2))
        wrong = replace(graph, preds=Csr.from_pairs(rows, values, n))
        said = [_outcome(run, wrong) for run in (des.simulate, heap.whole_times, lambda graph: heap.times_by(contract(graph)))]
        assert said[0] == said[1] == said[2]
        found += isinstance(said[0], str)
    assert found > 10


def _outcome(run: Callable[[TaskGraph], Times], graph: TaskGraph) -> str | list[int]:
    """The message of a deadlock, or the ends of all tasks."""
    try:
        ends: list[int] = run(graph).end_ns.tolist()
    except Deadlock as stopped:
        return str(stopped)
    return ends


def test_a_circle_of_tasks_that_wait_for_one_another_only_is_not_contracted_away() -> None:
    for length in (1, 2, 3, 4, 8):
        graph = Build()
        for _ in range(length):
            graph.task(10)
        circle = replace(graph.graph(), preds=Csr.from_lists([[(task - 1) % length] for task in range(length)]))
        with pytest.raises(Deadlock):
            heap.times_by(contract(circle))


def test_times_beyond_64_bits_are_not_added_up_in_them() -> None:
    b, tasks = Build(), heap.MOST_UNCONTRACTED + 1
    for _ in range(tasks):
        b.task(1 << 60, on="p")
    assert heap.simulate(b.graph()).makespan_ns == tasks << 60


def test_a_link_without_capacity_for_good_is_a_deadlock() -> None:
    b = Build(links=[Profile((0, 10), (gb_per_s(1), 0))])
    b.task(0, on="p", work=1000, route=[0])
    for run in (des.simulate, heap.whole_times, lambda graph: heap.times_by(contract(graph))):
        with pytest.raises(Deadlock):
            run(b.graph())
