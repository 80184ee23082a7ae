"""The memory of the first slots never exceeds that of the whole order."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings

import simulator as sim
from simulator.bounded_cache import Cache
from simulator.config import feasible
from simulator.config.scenario import Scenario
from simulator.errors import UserError
from simulator.search import plan_checks
from simulator.search.first_slots import first_slots_bytes
from simulator.search.search import base_of
from simulator.search.slot_times import SlotTimes, slot_kinds
from simulator.search.space import EVEN, Choice
from simulator.simulation.memory_check import memory_of
from simulator.simulation.simulate import layout_of

from ..equality.test_plans import scenarios
from ..small_scenarios import scenario, small_cluster, small_model
from .test_bound import CHUNKED, SCHEDULES, SPLIT

TOGETHER = ("zb-v", "v-half", "v-min", "chimera", "hanayo")
"""Schedules that order all ranks together: of these one microbatch is known."""
UNKNOWN = ("zb-auto", "optimal")


def part_known(of: Scenario) -> float:
    """The bytes of the first slots as a part of those that the fullest GPU needs."""
    of = feasible.check(of)
    least_bytes = first_slots_bytes(of, slot_kinds(of, SlotTimes()), Cache(0))
    return least_bytes / max(rank.total_bytes for rank in memory_of(of, layout_of(of)))


@pytest.mark.thinned(8)
@pytest.mark.parametrize("sharding", ["none", "zero1", "fsdp"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_first_slots_need_no_more_than_all(schedule: str, sharding: str) -> None:
    more: dict[str, Any] = {"chunks": 2 if schedule in CHUNKED else 1, **SPLIT.get(schedule, {})}
    plan, job = sim.Plan(pp=4, schedule=schedule, sharding=sharding, **more), sim.Job(sequence_length=8192, global_batch=32)
    try:
        known = part_known(scenario(small_model(8), small_cluster(2), plan, job))
    except UserError as error:
        pytest.skip(f"refused: {error}")
    if schedule in UNKNOWN:
        assert known == 0
    else:
        assert (0.2 if schedule in TOGETHER else 0.5) < known <= 1, "the rest are buffers, of which a small model has many"


LARGE = {
    "model": "llama3-70b",
    "cluster": {"name": "dgx-h100", "nodes": 16},
    "plan": {"tp": 4, "pp": 8},
    "job": {"sequence_length": 8192, "global_batch": 256, "microbatch_size": 1},
    "framework": "megatron-core-2025",
}


@pytest.mark.parametrize(
    ("schedule", "tp", "chunks", "least"),
    [("1f1b", 2, 1, 0.98), ("interleaved", 4, 4, 0.98), ("dualpipe-v", 4, 2, 0.98), ("zb-v", 2, 2, 0.5)],
)
def test_a_plan_that_does_not_fit_is_not_ordered(schedule: str, tp: int, chunks: int, least: float) -> None:
    base, one = base_of(LARGE), Choice(tp, 4, 1, 1, 1, schedule, chunks, "zero1", "none", EVEN)
    ordered = mock.Mock(side_effect=AssertionError("ordered"))
    with mock.patch.object(plan_checks, "layout_of", ordered):
        known = plan_checks.examined(base, one)
    with mock.patch.object(plan_checks, "first_slots_bytes", return_value=0):
        whole = plan_checks.examined(base, one)
    assert known.status == whole.status == plan_checks.OUT_OF_MEMORY
    assert least * whole.memory_bytes < known.memory_bytes < whole.memory_bytes


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(scenarios())
def test_the_first_slots_of_a_random_plan_need_no_more_than_all(of: Scenario) -> None:
    with suppress(UserError):
        assert part_known(of) <= 1
