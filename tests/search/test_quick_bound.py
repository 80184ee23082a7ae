"""The quick bound of a step never exceeds the step that is simulated."""

from __future__ import annotations

from contextlib import suppress
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

import simulator as sim
from simulator.config import catalog, feasible
from simulator.config.scenario import Scenario
from simulator.errors import SimulatorError, UserError
from simulator.frozen import replace
from simulator.program.layout import lay_out
from simulator.program.slot import Shape, slots_of
from simulator.search.slot_times import TRIED, SlotTimes, kinds_at, plan_slots
from simulator.search.weigh import quick_bound_of
from simulator.simulation.simulate import simulate_scenario, site_of

from ..equality.test_plans import scenarios
from ..small_scenarios import scenario
from .test_bound import CHUNKED, SCHEDULES, SPLIT


def tightness(of: Scenario) -> float:
    """The quick bound as a part of the simulated step; 0 where there is none without an order of slots."""
    of = feasible.check(of)
    slots = plan_slots(of, site_of(of), SlotTimes())
    metrics = simulate_scenario(of, allow_oom=True).metrics
    return (quick_bound_of(of, slots) if slots else 0) / 1e9 / metrics.step_time_s


@pytest.mark.thinned(6)
@pytest.mark.parametrize("optimizer", ["synchronised", "post-validated"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_quick_bound_exceeds_its_step(schedule: str, optimizer: str) -> None:
    more: dict[str, Any] = {"chunks": 2 if schedule in CHUNKED else 1, **SPLIT.get(schedule, {})}
    plan = sim.Plan(pp=4, schedule=schedule, optimizer=optimizer, **more)
    of = scenario(plan=plan, job=sim.Job(sequence_length=256, global_batch=16, gradient_clipping=None))
    found = tightness(of)
    assert 0 < found <= 1
    assert found > 0.5 or schedule == "naive"  # which runs one slot at a time


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


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_has_the_kinds_of_slots_of_a_small_shape_at_every_shape(schedule: str) -> None:
    module, splits = catalog.module("schedules", schedule), 2 if schedule in SPLIT else 1
    shapes = [Shape(ranks, m * splits, chunks, splits=splits) for ranks in (2, 4) for m in (4, 8, 12) for chunks in (1, 2)]
    tried = 0
    for shape in shapes:
        with suppress(UserError):
            layout = lay_out(module, shape)
            found = {slot.kind for order in layout.orders for box in order for slot in slots_of(box)}
            kinds = kinds_at(module, replace(TRIED, chunks=shape.chunks, splits=splits, microbatches=TRIED.microbatches * splits))
            assert kinds is None or found <= set(kinds)
            tried += kinds is not None
    assert tried >= 3


@pytest.mark.parametrize("framework", ["none", "megatron-core-2025"])
def test_slots_that_plans_share_have_the_times_of_each_plan(framework: str) -> None:
    software = {"framework": sim.framework(framework)} if framework != "none" else {}
    overlaps = [sim.Overlap(dp=dp, pp=pp, tp=tp) for dp, pp, tp in product([None, False, True], repeat=3)]
    shared, pipelines = SlotTimes(), [(2, "1f1b", 1), (2, "interleaved", 2), (4, "zb-v", 2)]
    for sharding, overlap, (pp, schedule, chunks) in product(["none", "zero1"], overlaps, pipelines):
        plan = sim.Plan(tp=2, pp=pp, schedule=schedule, chunks=chunks, sharding=sharding, overlap=overlap)
        of = feasible.check(scenario(plan=plan, **software))
        site = site_of(of)
        assert plan_slots(of, site, shared) == plan_slots(of, site, SlotTimes())
    assert len(shared.known) < 2 * len(overlaps)
