"""The bound of a step never exceeds the step that is simulated."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

import simulator as sim
from simulator.config import catalog, feasible
from simulator.config.scenario import Scenario
from simulator.errors import SimulatorError
from simulator.search.bound import LowerBound, lower_bound
from simulator.simulation.memory_check import slots_of
from simulator.simulation.simulate import layout_of, simulate_scenario, site_of

from ..equality.test_plans import scenarios
from ..small_scenarios import scenario

SPLIT = {"seq-1f1b": {"splits": 2}}
CHUNKED = ("interleaved", "interleaved-zb", "hanayo", "looped-bfs")
SCHEDULES = [name for name in catalog.files("schedules") if name not in ("optimal", "zb-auto")]


def bound_of(of: Scenario) -> LowerBound:
    of = feasible.check(of)
    site = site_of(of)
    layout = layout_of(of, site)
    return lower_bound(of, site, layout, slots_of(of, layout))


def tightness(of: Scenario) -> float:
    """The bound as a part of the simulated step."""
    metrics = simulate_scenario(of, allow_oom=True).metrics
    return bound_of(of).ns / 1e9 / metrics.step_time_s


@pytest.mark.thinned(8)
@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("optimizer", ["synchronised", "post-validated"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_bound_exceeds_its_step(schedule: str, optimizer: str, blocks: bool) -> None:
    more: dict[str, Any] = {"chunks": 2 if schedule in CHUNKED else 1, **SPLIT.get(schedule, {})}
    plan = sim.Plan(pp=4, tp=2, schedule=schedule, optimizer=optimizer, overlap=sim.Overlap(pp=not blocks), **more)
    found = tightness(scenario(plan=plan, job=sim.Job(sequence_length=256, global_batch=8, gradient_clipping=None)))
    assert 0 < found <= 1
    if optimizer == "synchronised" and schedule not in ("dualpipe", "dualpipe-v"):
        assert found > 0.9


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(scenarios())
def test_no_bound_exceeds_the_step_of_a_random_plan(of: Scenario) -> None:
    with suppress(SimulatorError):
        assert tightness(of) <= 1
