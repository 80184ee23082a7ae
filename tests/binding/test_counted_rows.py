"""A host that waits for the numbers of rows that dropless experts have exchanged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simulator as sim
from simulator.program.operations import Purpose
from simulator.simulation.runnable import RunnableScenario as Scenario

from ..small_scenarios import both, bound_twice, scenario, small_cluster, small_model
from .test_launches import EAGER, GRAPHED, assert_pruning_is_exact, assert_same_operations, bound_with, timeline_of

COUNTING = replace(EAGER, waits=("counts",))
EXPERTS = {"experts": 8, "experts_per_token": 2, "expert_ffn_hidden": 704, "ffn_hidden": 704}
PLANS: dict[str, dict[str, Any]] = {
    "one stage": {"dp": 8, "ep": 4},
    "tensors too": {"tp": 2, "dp": 4, "ep": 4, "etp": 1},
    "interleaved": {"pp": 2, "dp": 4, "ep": 4, "chunks": 2, "schedule": "interleaved"},
    "beside compute": {"pp": 2, "dp": 4, "ep": 4, "chunks": 2, "schedule": "interleaved", "overlap": sim.Overlap(ep=True)},
    "deepep": {"dp": 8, "ep": 8, "moe": sim.Moe(dispatcher="deepep")},
}


def of(plan: str, *, tokens: int = 256, **changes: Any) -> Scenario:
    chosen = sim.Plan(**{**PLANS[plan], **changes})
    return scenario(small_model(4, **EXPERTS), small_cluster(2), chosen, sim.Job(tokens, 32, 1))


@pytest.mark.parametrize("plan", PLANS)
def test_t8_10_nothing_is_launched_before_the_numbers_of_rows_are_there(plan: str) -> None:
    bound = bound_with(of(plan, tokens=2048), COUNTING, every=True)
    timeline, seen = timeline_of(bound), 0
    for which, labels in enumerate(bound.labels):
        times = timeline.rank_times(int(np.flatnonzero(bound.skeleton.program == which)[0]))
        hosted = np.flatnonzero(labels.is_launch)
        for row in np.flatnonzero(labels.of_op(lambda op: op.purpose is Purpose.COUNT_ROWS)).tolist():
            later = hosted[hosted > row]
            assert (times.start_ns[later] >= times.end_ns[row]).all()
            seen += len(later) > 0
    assert seen >= 4, "layers"


@pytest.mark.parametrize("plan", PLANS)
def test_t8_5_launches_that_are_left_out_change_nothing_then_either(plan: str) -> None:
    assert_pruning_is_exact(*(bound_with(of(plan), COUNTING, steps=2, every=every) for every in (False, True)))


@settings(max_examples=8, deadline=None)
@given(st.sampled_from(sorted(PLANS)), *[st.integers(0, 60_000)] * 2)
def test_waiting_for_the_numbers_never_shortens_a_step(plan: str, kernel_ns: int, collective_ns: int) -> None:
    hosts = [replace(host, kernel_ns=kernel_ns, collective_ns=collective_ns) for host in (EAGER, COUNTING)]
    free, waiting = (timeline_of(bound_with(of(plan), host), closed=True).times.makespan_ns for host in hosts)
    assert free <= waiting


def test_t8_10_with_a_capacity_no_numbers_are_exchanged_and_graphs_cannot_wait() -> None:
    dropping = of("one stage", moe=sim.Moe(capacity=1.25))
    for chosen, host in ((dropping, EAGER), (of("one stage"), GRAPHED)):
        pair = [bound_with(chosen, replace(host, waits=waits), every=True) for waits in ((), ("counts",))]
        assert_same_operations(*((bound, timeline_of(bound)) for bound in pair))


@pytest.mark.parametrize("plan", PLANS)
def test_folded_equals_unfolded_where_hosts_wait_for_numbers_of_rows(plan: str) -> None:
    software = sim.framework({"host": {"kernel": "20 us", "collective": "10 us"}, "host_waits": ["counts"]})
    both(*bound_twice(replace(of(plan), framework=software))).assert_equal()
