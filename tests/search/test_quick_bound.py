"""The quick bound of a step never exceeds the step that is simulated."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

import simulator as sim
from simulator.config import feasible
from simulator.config.scenario import Scenario
from simulator.errors import SimulatorError
from simulator.search.quick_bound import quick_bound_ns
from simulator.simulation.memory_check import slots_of
from simulator.simulation.simulate import layout_of, simulate_scenario, site_of

from ..equality.test_plans import scenarios
from ..small_scenarios import scenario
from .test_bound import CHUNKED, SCHEDULES, SPLIT


def tightness(of: Scenario) -> float:
    """The quick bound as a part of the simulated step."""
    of = feasible.check(of)
    site = site_of(of)
    layout = layout_of(of, site)
    metrics = simulate_scenario(of, allow_oom=True).metrics
    return quick_bound_ns(of, site, layout, slots_of(of, layout)) / 1e9 / metrics.step_time_s


@pytest.mark.thinned(6)
@pytest.mark.parametrize("optimizer", ["synchronised", "post-validated"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_quick_bound_exceeds_its_step(schedule: str, optimizer: str) -> None:
    more: dict[str, Any] = {"chunks": 2 if schedule in CHUNKED else 1, **SPLIT.get(schedule, {})}
    plan = sim.Plan(pp=4, schedule=schedule, optimizer=optimizer, **more)
    of = scenario(plan=plan, job=sim.Job(sequence_length=256, global_batch=16, gradient_clipping=None))
    found = tightness(of)
    assert 0 < found <= 1
    assert optimizer != "synchronised" or found > 0.5  # else it counts busy time alone


@pytest.mark.parametrize("speed", [0.5, 2.0])
def test_a_rank_that_is_faster_lowers_the_bound(speed: float) -> None:
    of = scenario(plan=sim.Plan(pp=4), perturb=[sim.Perturb(rank=0, speed=speed)])
    assert 0 < tightness(of) <= 1


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(scenarios())
def test_no_quick_bound_exceeds_the_step_of_a_random_plan(of: Scenario) -> None:
    with suppress(SimulatorError):
        assert tightness(of) <= 1
