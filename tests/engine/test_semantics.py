"""The first half of docs/semantics.md, sentence by sentence. Rates of 1 GB/s move one byte per nanosecond."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulator.engine import des
from simulator.engine.replay import with_fixed_durations
from simulator.engine.task import FULL_SPEED, Profile, TaskGraph
from simulator.errors import Deadlock

from .make import Build, gb_per_s, random_graph, steady


def times(b: Build) -> list[tuple[int, int]]:
    result = des.simulate(b.graph())
    return list(zip(result.start_ns.tolist(), result.end_ns.tolist(), strict=True))


def links(*gb: float) -> Build:
    return Build(links=steady(*(gb_per_s(rate) for rate in gb)))


def test_s1_1_a_stream_is_first_in_first_out() -> None:
    b = Build()
    slow = b.task(100, on="other")
    b.task(10, on="s", after=[slow])
    b.task(5, on="s")
    assert times(b) == [(0, 100), (100, 110), (110, 115)]


def test_s1_2_a_gang_holds_all_its_streams_throughout() -> None:
    b = Build()
    b.task(7, on="p")
    b.task(20, on=("p", "q"))
    b.task(3, on="p")
    b.task(4, on="q")
    assert times(b) == [(0, 7), (7, 27), (27, 30), (27, 31)]


def test_s1_3_a_task_starts_when_it_heads_its_streams_and_its_predecessors_have_ended_and_arrived() -> None:
    b = Build()
    first = b.task(9, on="p")
    second = b.task(4, on="q")
    b.task(1, on="r", after=[first, second])
    b.task(2, on=("q", "r"), after=[second], tail=6)
    b.task(1, on="p", after=[3])
    assert times(b) == [(0, 9), (0, 4), (9, 10), (10, 12), (18, 19)]


def test_s1_4_a_successor_starts_at_the_instant_of_the_end() -> None:
    b = Build()
    chain = [b.task(0, on="p")]
    for i in range(5):
        chain.append(b.task(0 if i % 2 else 3, on=i, after=[chain[-1]]))
    assert [start for start, _ in times(b)][1:] == [0, 3, 3, 6, 6]


def test_s2_1_latency_holds_streams_and_no_link() -> None:
    b = links(1)
    b.task(50, on="p", work=100, route=[0])
    b.task(0, on="q", work=50, route=[0])
    b.task(1, on="p")
    assert times(b) == [(0, 150), (0, 50), (150, 151)]


@pytest.mark.parametrize(
    ("speed", "ends"), [(FULL_SPEED, 100), (FULL_SPEED // 2, 200), (FULL_SPEED * 2, 50), (FULL_SPEED // 3, 301)]
)
def test_s2_2_a_pace_stretches_a_task(speed: int, ends: int) -> None:
    b = Build(speeds=steady(speed))
    b.task(100, on="p", speed=0)
    assert times(b) == [(0, ends)]


def test_s2_3_a_change_of_speed_acts_on_what_is_left() -> None:
    b = Build(speeds=[Profile((0, 40, 60), (FULL_SPEED, FULL_SPEED // 4, FULL_SPEED))])
    b.task(100, on="p", speed=0)
    assert times(b) == [(0, 40 + 20 + 55)]


@pytest.mark.parametrize("speeds", [(FULL_SPEED, 0, 3), (1, FULL_SPEED), (FULL_SPEED // 3, 2 * FULL_SPEED, 7), (0, FULL_SPEED)])
def test_s2_3_the_durations_of_a_profile_are_those_that_are_simulated(speeds: tuple[int, ...]) -> None:
    profile = Profile((0, 40, 60)[: len(speeds)], speeds)
    starts, works = (one.ravel() for one in np.meshgrid(np.arange(0, 90, 3), np.array([0, 1, 2, 17, 40, 300])))
    b = Build(speeds=[profile])
    for i, (start, work) in enumerate(zip(starts.tolist(), works.tolist(), strict=True)):
        b.task(start, on=f"before {i}")
        b.task(work, on=f"p {i}", speed=0, after=[2 * i])
    simulated = np.array([end - start for start, end in times(b)[1::2]])
    assert np.array_equal(profile.lasting_ns(starts, works), simulated)


def test_s2_4_a_tail_delays_what_depends_on_a_task_and_neither_its_streams_nor_its_links() -> None:
    b = links(1)
    sent = b.task(5, on="edge", work=100, route=[0], tail=40)
    b.task(0, on="edge", work=100, route=[0], tail=30)
    b.task(1, on="next", after=[sent])
    b.task(1, on="both", after=[0, 1])
    b.task(2, on="edge")
    assert times(b) == [(0, 105), (105, 205), (145, 146), (235, 236), (205, 207)]


def test_s2_4_no_speed_stretches_a_tail() -> None:
    b = Build(speeds=steady(FULL_SPEED // 4))
    b.task(10, on="p", speed=0, tail=7)
    b.task(1, on="q", speed=0, after=[0])
    assert times(b) == [(0, 40), (47, 51)]


def test_s2_5_without_a_pace_the_wall_clock_counts() -> None:
    b = Build(speeds=steady(FULL_SPEED // 2))
    b.task(100, on="p")
    assert times(b) == [(0, 100)]


def test_s2_6_a_run_lasts_to_the_last_arrival() -> None:
    b = Build()
    b.task(10, on="p", tail=90)
    b.task(20, on="p")
    result = des.simulate(b.graph())
    assert result.arrival_ns.tolist() == [100, 30]
    assert result.makespan_ns == 100
    assert des.simulate(Build().graph()).makespan_ns == 0


def test_s3_1_work_moves_over_all_links_at_once() -> None:
    b = links(4, 2, 8)
    b.task(10, on="p", work=100, route=[0, 1, 2])
    assert times(b) == [(0, 60)]


def test_s3_2_a_weight_counts_the_bytes_of_a_link_per_byte_of_work() -> None:
    b = links(3)
    b.task(0, on="p", work=100, route=[(0, 3 << 16)])
    assert times(b) == [(0, 100)]


def test_s3_3_rates_are_max_min_fair_and_capped() -> None:
    b = links(10, 4)
    b.task(0, on=0, work=1000, route=[0, 1])
    b.task(0, on=1, work=1000, route=[0, 1])
    b.task(0, on=2, work=1000, route=[0], cap=gb_per_s(5))
    b.task(0, on=3, work=10, route=[0])
    assert [end for _, end in times(b)] == [500, 500, 4 + 198, 4]


def test_s3_4_twin_links_freeze_together() -> None:
    """f crosses both links, g and h one each: capacity 11 gives all of them 5.5, rounded alike."""
    b = Build(links=[Profile.constant(11), Profile.constant(11)])
    for route in ([0, 1], [0], [1]):
        b.task(0, on=str(route), work=1, route=route)
    ends = [end for _, end in times(b)]
    assert ends[1] == ends[2]


def test_s3_5_a_flow_that_follows_another_never_shares_with_it() -> None:
    b = links(1)
    first = b.task(0, on="p", work=70, route=[0])
    b.task(0, on="q", work=30, route=[0], after=[first])
    assert times(b) == [(0, 70), (70, 100)]


def test_s3_6_a_flow_ends_at_the_first_whole_nanosecond() -> None:
    b = links(3)
    b.task(0, on="p", work=100, route=[0])
    assert times(b) == [(0, 34)]


def test_s3_7_capacity_may_change_and_may_be_zero_for_a_while() -> None:
    b = Build(links=[Profile((0, 20, 50, 60), (gb_per_s(1), 0, gb_per_s(2), gb_per_s(1)))])
    b.task(0, on="p", work=60, route=[0])
    assert times(b) == [(0, 80)]


@pytest.mark.parametrize("seed", range(60))
def test_s3_8_closing_lone_flows_changes_nothing(seed: int) -> None:
    graph = random_graph(np.random.default_rng(seed), flows=True)
    open_, closed = des.simulate(graph), des.simulate(with_fixed_durations(graph))
    assert (open_.start_ns == closed.start_ns).all()
    assert (open_.end_ns == closed.end_ns).all()


def test_s3_8_some_flows_are_closed_and_shared_ones_are_not() -> None:
    b = links(2, 2)
    alone = b.task(0, on="p", work=100, route=[0])
    shared = [b.task(0, on=name, work=100, route=[1]) for name in "qr"]
    graph = with_fixed_durations(b.graph())
    assert graph.footprint[alone] == -1
    assert graph.solo_ns[alone] == 50
    assert (graph.footprint[shared] >= 0).all()


def test_s3_9_a_cap_may_change_and_what_is_left_goes_on_with_the_new_one() -> None:
    b = links(100)
    cap = Profile((0, 20, 50, 60), (gb_per_s(1), 0, gb_per_s(2), gb_per_s(1)))
    b.task(0, on="p", work=60, route=[0], cap=cap)
    b.task(15, on="q", work=60, route=[0], cap=cap)
    b.task(70, on="r", work=60, route=[0], cap=cap)
    assert times(b) == [(0, 80), (0, 95), (0, 130)]


def test_s3_9_what_a_falling_cap_leaves_goes_to_others() -> None:
    b = links(10)
    b.task(0, on="p", work=1000, route=[0], cap=Profile((0, 40), (gb_per_s(5), gb_per_s(2))))
    b.task(0, on="q", work=600, route=[0])
    assert times(b) == [(0, 40 + 400), (0, 40 + 50)]


@pytest.mark.parametrize("seed", range(20))
def test_s4_1_the_order_of_tasks_in_the_columns_changes_no_time(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, flows=True, speeds=seed % 2 == 0)
    new_of = rng.permutation(len(graph))
    base, moved = des.simulate(graph), des.simulate(_renumbered(graph, new_of))
    assert (moved.start_ns[new_of] == base.start_ns).all()
    assert (moved.end_ns[new_of] == base.end_ns).all()


COLUMNS = ("solo_ns", "tail_ns", "speed", "footprint", "work", "cap")


def _renumbered(graph: TaskGraph, new_of: np.ndarray) -> TaskGraph:
    """The same graph with task i called `new_of[i]`."""
    old_of = np.argsort(new_of)
    preds = [[int(new_of[p]) for p in graph.preds.row(int(old))] for old in old_of]
    columns = {name: getattr(graph, name)[old_of] for name in (*COLUMNS, "cap_profile")}
    streams = type(graph.streams)(graph.streams.ptr, new_of[graph.streams.idx])
    return replace(graph, **columns, streams=streams, preds=type(graph.preds).from_lists(preds))


def test_s4_2_opposite_orders_of_two_collectives_are_a_deadlock_with_the_grid() -> None:
    b = Build()
    for rank in "xy":
        b.task(5, on=f"compute {rank}")
    one, two = b.task(1, on=("comm x", "comm y")), b.task(1, on=("comm x", "comm y"))
    b.task(3, on="compute x", after=[one])
    b.streams["comm y"].reverse()
    with pytest.raises(Deadlock) as caught:
        des.simulate(b.graph())
    blocked = {entry.stream: entry for entry in caught.value.blocked}
    assert {entry.head for entry in blocked.values()} == {one, two, 4}
    assert blocked[2].waits_for == (two,)
    assert blocked[3].waits_for == (one,)
    text = str(caught.value)
    assert "3 of 5 tasks" in text
    assert text.count("->") == 3


def test_s4_2_a_cycle_of_predecessors_is_a_deadlock() -> None:
    b = Build()
    b.task(1, on="p", after=[1])
    b.task(1, on="q", after=[0])
    with pytest.raises(Deadlock):
        des.simulate(b.graph())


def test_s4_2_a_link_that_never_carries_anything_is_a_deadlock() -> None:
    b = Build(links=[Profile((0, 10), (gb_per_s(1), 0))])
    b.task(0, on="p", work=60, route=[0])
    with pytest.raises(Deadlock, match="never move"):
        des.simulate(b.graph())


def test_s5_1_a_gigabyte_per_second_is_a_byte_per_nanosecond() -> None:
    b = links(1)
    b.task(0, on="p", work=12345, route=[0])
    assert times(b) == [(0, 12345)]


def test_s5_2_links_are_filled_downwards_and_ends_taken_upwards() -> None:
    """Three flows on a link of ten quanta get three each; a byte is 2^24 quanta of work."""
    b = Build(links=[Profile.constant(10)])
    for name in "pqr":
        b.task(0, on=name, work=1, route=[0])
    assert [end for _, end in times(b)] == [-(-(1 << 24) // 3)] * 3
