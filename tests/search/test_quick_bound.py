"""The quick bound of a step never exceeds the step that is simulated."""

from __future__ import annotations

from contextlib import suppress
from itertools import product
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings

import simulator as sim
from simulator.config import catalog, feasible
from simulator.config.scenario import Scenario
from simulator.errors import SimulatorError, UserError
from simulator.frozen import replace
from simulator.program.layout import lay_out
from simulator.program.slot import Shape, slots_of
from simulator.search.plan_checks import quick_bound_of
from simulator.search.slot_rows import Sample
from simulator.search.slot_times import TRIED, SlotTimes, kinds_at, plan_slots
from simulator.simulation.memory_check import slots_of as slots_of_plan
from simulator.simulation.simulate import layout_of, program_of, simulate_scenario, site_of

from ..equality.test_plans import scenarios
from ..lowering.test_few_layers import deep
from ..small_scenarios import scenario, small_cluster, small_model
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


@pytest.mark.thinned(6)
@pytest.mark.parametrize("framework", ["none", "megatron-core-2025", "megatron-lm-2021"])
@pytest.mark.parametrize("layers", [8, 48])
@pytest.mark.parametrize("schedule", ["dualpipe", "dualpipe-v"])
def test_pairs_hide_only_part_of_their_collectives(schedule: str, layers: int, framework: str) -> None:
    plan = sim.Plan(tp=4, pp=4, schedule=schedule, chunks=2 if schedule == "dualpipe-v" else 1)
    job = sim.Job(sequence_length=256, global_batch=24)
    of = feasible.check(scenario(small_model(layers), small_cluster(4), plan, job, framework=sim.framework(framework)))
    slots = plan_slots(of, site_of(of), SlotTimes())
    assert slots
    assert 0 < tightness(of) <= 1
    assert quick_bound_of(of, slots) > quick_bound_of(of, replace(slots, pairs_ns={})), "beyond the kernels alone"


PAIRED: list[dict[str, Any]] = [
    {"sharding": sharding, **other}
    for sharding in ("none", "zero1", "fsdp")
    for other in (
        {},
        {"sequence_parallel": False},
        {"overlap": sim.Overlap(dp=False, pp=False)},
        {"optimizer": "post-validated"},
        {"cp": 2},
        {"recompute": "full"},
    )
]


@pytest.mark.thinned(12)
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
@pytest.mark.parametrize("plan", PAIRED, ids=str)
@pytest.mark.parametrize("schedule", ["dualpipe", "dualpipe-v"])
def test_pairs_run_the_operations_of_slots(schedule: str, plan: dict[str, Any], dtype: str) -> None:
    """What only the first and the last slots have besides, such as reductions, is in no pair; so the times of pairs hold."""
    chunks = 2 if schedule == "dualpipe-v" else 1
    job = sim.Job(sequence_length=256, global_batch=64, dtype=dtype, gradient_clipping=None)
    of = scenario(small_model(16), small_cluster(4), sim.Plan(tp=2, pp=4, schedule=schedule, chunks=chunks, **plan), job)
    try:
        of = feasible.check(of)
    except UserError as error:
        pytest.skip(f"refused: {error}")
    layout = layout_of(of)
    slots = slots_of_plan(of, layout)
    names = {name: [op.name for op in body.ops] for each in slots for name, body in each.bodies.items()}
    usual = {(s.phase, s.stage % layout.stages): names[s.body] for each in slots for order in each.orders for s in order}
    program, pairs = program_of(of, 2, layout, slots), 0
    for step in (step for order in program.orders for step in order if step.pair >= 0):
        assert step.phase in "FB"
        assert [op.name for op in program.bodies[step.body].ops] == usual[step.phase, step.stage % layout.stages]
        pairs += 1
    assert pairs > 100


def check_few_layers(of: Scenario, kept: SlotTimes) -> None:
    with suppress(UserError):
        of = feasible.check(of)
        site = site_of(of)
        with mock.patch.object(Sample, "_of_few_layers", return_value=None):
            alone = plan_slots(of, site, SlotTimes())
        assert plan_slots(of, site, kept) == alone


@settings(max_examples=8)
@given(scenarios())
def test_times_by_few_layers_are_those_of_all_layers(of: Scenario) -> None:
    check_few_layers(deep(of), SlotTimes())


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(scenarios())
def test_times_by_few_layers_are_those_of_all_layers_many_times(of: Scenario) -> None:
    check_few_layers(deep(of), SlotTimes())


@pytest.mark.parametrize("tp", [1, 2])
def test_stages_of_many_layers_share_the_rows_of_few(tp: int) -> None:
    kept = SlotTimes()
    for pp, schedule, chunks in ((2, "1f1b", 1), (4, "1f1b", 1), (2, "interleaved", 3), (4, "dualpipe-v", 2), (2, "zb-v", 2)):
        plan, job = sim.Plan(tp=tp, pp=pp, schedule=schedule, chunks=chunks), sim.Job(sequence_length=64, global_batch=64)
        check_few_layers(scenario(small_model(48), small_cluster(4), plan, job), kept)
    assert len(kept.rows.short) == 18, "of three kinds of stages F and B, and all four where one rank has both ends of the model"


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
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


@pytest.mark.thinned(6)
@pytest.mark.parametrize("pipeline", [(2, "1f1b", 1), (2, "interleaved", 2), (4, "zb-v", 2)], ids=lambda of: of[1])
@pytest.mark.parametrize("framework", ["none", "megatron-core-2025"])
def test_slots_that_plans_share_have_the_times_of_each_plan(framework: str, pipeline: tuple[int, str, int]) -> None:
    software = {"framework": sim.framework(framework)} if framework != "none" else {}
    overlaps = [sim.Overlap(dp=dp, pp=pp, tp=tp) for dp, pp, tp in product([None, False, True], repeat=3)]
    shared, (pp, schedule, chunks) = SlotTimes(), pipeline
    for sharding, overlap in product(["none", "zero1"], overlaps):
        plan = sim.Plan(tp=2, pp=pp, schedule=schedule, chunks=chunks, sharding=sharding, overlap=overlap)
        of = feasible.check(scenario(plan=plan, **software))
        site = site_of(of)
        assert plan_slots(of, site, shared) == plan_slots(of, site, SlotTimes())
    assert len(shared.known) < 2 * len(overlaps)
