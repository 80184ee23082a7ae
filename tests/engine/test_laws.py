"""Laws of every run, on random graphs: work is conserved, streams are serial, dependencies hold, time scales."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine import des
from simulator.engine.replay import replay, why_not
from simulator.engine.task import FULL_SPEED, RATE_BITS, WEIGHT_BITS, Csr, Profile, TaskGraph
from simulator.errors import UserError

from .make import Build, gb_per_s, random_graph, steady

seeds = st.integers(0, 2**32)


def graph_of(seed: int, *, flows: bool = True, speeds: bool = False) -> TaskGraph:
    return random_graph(np.random.default_rng(seed), flows=flows, speeds=speeds)


@given(seeds, st.booleans())
def test_streams_are_serial_and_dependencies_hold(seed: int, speeds: bool) -> None:
    graph = graph_of(seed, speeds=speeds)
    times = des.simulate(graph)
    before, tail_ns = graph.all_preds()
    assert (times.start_ns[before.row_of] >= times.end_ns[before.idx] + tail_ns).all()
    assert (times.end_ns >= times.start_ns).all()
    assert (times.arrival_ns == times.end_ns + graph.tail_ns).all()


@given(seeds, st.booleans())
def test_nothing_waits_for_nothing(seed: int, speeds: bool) -> None:
    """Every task starts at zero, at the arrival of something that it depends on or at the end of what its stream did before."""
    graph = graph_of(seed, speeds=speeds)
    times = des.simulate(graph)
    before, tail_ns = graph.all_preds()
    free_ns = np.zeros(len(graph), dtype=np.int64)
    np.maximum.at(free_ns, before.row_of, times.end_ns[before.idx] + tail_ns)
    assert (times.start_ns == free_ns).all()


@given(seeds, st.integers(2, 6), st.integers(0, 500))
def test_transfers_behind_one_another_take_their_bytes_and_one_latency(seed: int, transfers: int, latency_ns: int) -> None:
    rng = np.random.default_rng(seed)
    b, sizes = Build(links=steady(gb_per_s(1))), rng.integers(1, 300, transfers).tolist()
    sent = [b.task(0, on="edge", work=size, route=[0], tail=latency_ns) for size in sizes]
    b.task(0, on="next", after=sent)
    found = des.simulate(b.graph())
    assert found.end_ns[sent].tolist() == np.cumsum(sizes).tolist()
    assert found.start_ns[-1] == found.makespan_ns == sum(sizes) + latency_ns


@given(seeds)
def test_work_is_conserved(seed: int) -> None:
    """A task takes at least its solo time and what its best rate allows, and no link ever carries more than it can."""
    graph = graph_of(seed)
    times = des.simulate(graph)
    moving = times.end_ns - times.start_ns - graph.solo_ns
    assert (moving >= 0).all()
    flows = np.flatnonzero(graph.work > 0)
    assert (moving[graph.work == 0] == 0).all()
    for task in flows.tolist():
        assert int(moving[task]) * _highest_cap(graph, task) >= int(graph.work[task])
    for link, profile in enumerate(graph.profile_of_link):
        _never_overfull(graph, times.start_ns + graph.solo_ns, times.end_ns, link, profile.value[0])


def _highest_cap(graph: TaskGraph, task: int) -> int:
    profile = -1 if graph.cap_profile is None else int(graph.cap_profile[task])
    return int(graph.cap[task]) if profile < 0 else max(graph.profiles[profile].value)


def _never_overfull(graph: TaskGraph, begins: np.ndarray, ends: np.ndarray, link: int, capacity: int) -> None:
    """Over every window, the work of the flows that move wholly within it fits into capacity x length."""
    carried = [
        (int(begins[t]), int(ends[t]), int(graph.work[t]) * int(w) >> WEIGHT_BITS)
        for t in np.flatnonzero(graph.work > 0).tolist()
        for at, w in graph.routes()[int(graph.footprint[t])]
        if at == link
    ]
    for low in {begin for begin, _, _ in carried}:
        for high in {end for _, end, _ in carried if end > low}:
            inside = sum(work for begin, end, work in carried if begin >= low and end <= high)
            slack = (len(carried) + 1) * (capacity + (1 << RATE_BITS))
            assert inside <= capacity * (high - low) + slack


@given(seeds, st.integers(2, 1000))
def test_scaling_all_times_scales_the_timeline(seed: int, factor: int) -> None:
    graph = graph_of(seed, flows=False)
    longer = replace(graph, solo_ns=graph.solo_ns * factor, tail_ns=graph.tail_ns * factor)
    once, scaled = des.simulate(graph), des.simulate(longer)
    assert (scaled.start_ns == once.start_ns * factor).all()
    assert (scaled.end_ns == once.end_ns * factor).all()


@given(seeds, st.integers(1, 40), st.integers(1, 100))
def test_more_bandwidth_never_hurts_an_uncontended_run(seed: int, gb: int, more: int) -> None:
    assert _makespan_on_lone_links(seed, gb + more) <= _makespan_on_lone_links(seed, gb)


def _makespan_on_lone_links(seed: int, gb: int) -> int:
    """A random graph in which each stream has a link of its own."""
    rng = np.random.default_rng(seed)
    b = Build(links=steady(*[gb_per_s(gb)] * 3))
    for task in range(30):
        after = sorted(set(rng.integers(0, task, 2).tolist())) if task else []
        link = int(rng.integers(0, 3))
        b.task(int(rng.integers(0, 30)), on=link, after=after, work=int(rng.integers(1, 500)), route=[link])
    return des.simulate(b.graph()).makespan_ns


@given(seeds)
def test_replay_is_the_event_loop_where_it_is_legal(seed: int) -> None:
    graph = graph_of(seed, flows=seed % 3 > 0, speeds=seed % 5 == 0)
    if why_not(graph):
        with pytest.raises(UserError, match="replay"):
            replay(graph)
        return
    one, other = des.simulate(graph), replay(graph)
    assert (one.start_ns == other.start_ns).all()
    assert (one.end_ns == other.end_ns).all()


def test_replay_refuses_two_tasks_that_may_overlap_on_a_link() -> None:
    b = Build(links=steady(gb_per_s(8)))
    b.task(0, on="p", work=10, route=[0])
    b.task(0, on="q", work=10, route=[0])
    with pytest.raises(UserError, match="share links"):
        replay(b.graph())


def test_replay_takes_flows_of_one_stream_on_one_link() -> None:
    b = Build(links=steady(gb_per_s(2)))
    for _ in range(3):
        b.task(1, on="p", work=10, route=[0])
    assert replay(b.graph()).end_ns.tolist() == [6, 12, 18]


def test_replay_refuses_what_changes_speed_meanwhile() -> None:
    b = Build(speeds=[Profile((0, 5), (FULL_SPEED, FULL_SPEED // 2))])
    b.task(10, on="p", speed=0)
    with pytest.raises(UserError, match="speed"):
        replay(b.graph())


def test_csr_groups_and_transposes() -> None:
    lists = [[3, 1], [], [1, 1, 0]]
    csr = Csr.from_lists(lists)
    assert csr.lists() == lists
    assert csr.transposed(4).lists() == [[2], [0, 2, 2], [], [0]]
