"""Stretches of rows give the same times as the reference for every row, on random plans, clusters and disturbances."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

import simulator as sim
from simulator.binding.bind import Bound
from simulator.config import feasible
from simulator.engine import des, stretched_timeline, stretches
from simulator.engine.fold import folded
from simulator.engine.replay import with_fixed_durations
from simulator.engine.stretched_timeline import StretchedTimeline
from simulator.engine.timeline import Timeline
from simulator.errors import UserError
from simulator.metrics import idle, mfu, observe, slowed_s
from simulator.program.labels import Labels
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.workload.framework import Framework, HostTimes

from ..small_scenarios import bound, scenario, small_cluster, small_model
from .test_plans import scenarios

SCHEDULES = ("1f1b", "interleaved", "zb-h1", "zb-v", "gpipe", "dualpipe", "hanayo", "looped-bfs")


def both(of: Bound, *, every: bool) -> tuple[Timeline, StretchedTimeline] | None:
    """The timeline of all rows by the reference, and that of stretches; None where stretches cannot be made."""
    expansion = folded(of.skeleton).expansion()
    graph = with_fixed_durations(expansion.graph, every=every)
    found = of_stretches(of, every=every)
    return (Timeline(des.simulate(graph), expansion), found) if found else None


def of_stretches(of: Bound, *, every: bool) -> StretchedTimeline | None:
    """The timeline of stretches; None where they cannot be made."""
    if any(template.solo_ns.ndim > 1 for template in of.skeleton.templates):
        return None
    ranks = folded(of.skeleton)
    made = stretches.stretched(ranks, lambda program: of.labels[program].interrupted, every=every)
    assert made is not None
    found = stretched_timeline.run(ranks, made)
    assert found is not None
    return found


def assert_equal(one: Timeline, other: StretchedTimeline) -> None:
    for column in ("start_ns", "end_ns", "arrival_ns"):
        np.testing.assert_array_equal(getattr(one.times, column), getattr(other.times, column))
    assert one.makespan_ns == other.makespan_ns


def assert_same_causes(labels: tuple[Labels, ...], one: Timeline, other: StretchedTimeline) -> None:
    """The time of every class by cause, and what communication slows, from all rows and from stretches."""
    rows, of_stretches = (observe(timeline, labels, 1.0, 1.0) for timeline in (one, other))
    found = idle.measure(of_stretches)
    assert found.causes == idle.measure(rows).causes
    np.testing.assert_array_equal(found.ns, idle.measure(rows).ns)
    assert slowed_s.measure(of_stretches) == slowed_s.measure(rows)
    assert mfu.measure(of_stretches) == mfu.measure(rows)


def check(of: Scenario, steps: int | None, *, every: bool) -> None:
    try:
        feasible.check(of)
    except UserError:
        reject()
    whole = bound(of, steps)
    try:
        pair = both(whole, every=every)
    except UserError as error:
        if not every or "changes during the step" not in str(error):
            raise
        return
    if pair:
        assert_same_causes(whole.labels, *pair)
        assert_equal(*pair)


@settings(max_examples=12)
@given(scenarios(), st.sampled_from([1, 1, 2]), st.booleans())
def test_every_row_is_as_in_the_reference(of: Scenario, steps: int, every: bool) -> None:
    check(of, steps, every=every)


@pytest.mark.slow
@settings(max_examples=150)
@given(scenarios(), st.sampled_from([1, 1, 2]), st.booleans())
def test_every_row_is_as_in_the_reference_many_times(of: Scenario, steps: int, every: bool) -> None:
    check(of, steps, every=every)


@pytest.mark.parametrize("overlap", [True, False])
def test_launches_of_a_rank_whose_speed_changes_take_as_long_as_others(overlap: bool) -> None:
    host = Framework(host=HostTimes(kernel_s=5e-6, collective_s=1e-5))
    plan = sim.Plan(dp=8, sharding=sim.Sharding("zero1", 2), overlap=sim.Overlap(dp=overlap))
    slow = (sim.Perturb(rank=1, speed=0.5, until_s=1.0),)
    check(scenario(plan=plan, job=sim.Job(64, 16), framework=host, perturb=slow), 1, every=False)


@pytest.mark.parametrize("window", [(0.0001, 0.0004), (0.0002, 1.0), (0.0, 0.0003)])
def test_what_communication_adds_on_a_rank_whose_speed_changes_is_as_in_the_reference(window: tuple[float, float]) -> None:
    slow = (sim.Perturb(rank=0, speed=0.5, from_s=window[0], until_s=window[1]),)
    plan, slowed = sim.Plan(dp=4, overlap=sim.Overlap(dp=True)), sim.Fidelity(overlap="slowed")
    of = scenario(small_model(2), small_cluster(1), plan, sim.Job(256, 16), fidelity=slowed, perturb=slow)
    pair = both(bound(of, 1), every=False)
    assert pair
    of_stretches, rows = (observe(timeline, bound(of, 1).labels) for timeline in reversed(pair))
    assert slowed_s.measure(of_stretches) == slowed_s.measure(rows) > 0


@pytest.mark.parametrize("name", SCHEDULES)
def test_s7_5_rows_of_all_schedules_and_times_by_cause_are_as_in_the_reference(name: str) -> None:
    chunks = 2 if name in ("interleaved", "zb-v", "hanayo", "looped-bfs") else 1
    plan = sim.Plan(tp=2, pp=4, dp=2, schedule=name, chunks=chunks, sharding="zero1")
    of = scenario(plan=plan, cluster=small_cluster(4), job=sim.Job(64, 16))
    pair = both(bound(of, None), every=False)
    assert pair
    assert_equal(*pair)
    assert_same_causes(bound(of, None).labels, *pair)
    one, other = pair
    assert len(other.stretched.graph) < len(one.expansion.graph) * 0.7
