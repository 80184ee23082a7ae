"""Slots whose bodies were lowered for another plan are those that the plan gets by itself."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings

import simulator as sim
from simulator.bounded_cache import Cache
from simulator.config import derived, feasible
from simulator.errors import UserError
from simulator.lowering.kept_slots import kept_slots
from simulator.lowering.lower import lower_slots
from simulator.program.layout import Layout
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.simulate import layout_of

from ..equality.test_plans import scenarios
from ..small_scenarios import scenario, small_cluster, small_model

OTHERS: tuple[dict[str, Any], ...] = (
    {},
    {"schedule": "gpipe"},
    {"schedule": "zb-h1"},
    {"schedule": "interleaved", "chunks": 2},
    {"schedule": "dualpipe", "chunks": 1},
    {"schedule": "zb-v", "chunks": 2},
    {"layout": "last=0"},
    {"pp": 1, "schedule": "1f1b", "chunks": 1},
    {"sharding": "none"},
    {"sharding": "zero1"},
    {"sharding": "zero2"},
    {"sharding": "fsdp"},
    {"sharding": sim.Sharding("fsdp", reshard=False, reduce="last")},
    {"sharding": sim.Sharding("zero3", reshard=True, unit=2)},
)
"""Other pipelines of a plan, and other sharding."""


def check(of: Scenario, layout: Layout, kept: Cache) -> None:
    plan, dp = derived.placed(of), derived.replicas(of)
    known = kept_slots(of.model, plan, of.job, layout, dp=dp, framework=of.framework, kept=kept)
    alone = lower_slots(of.model, plan, of.job, layout, dp=dp, framework=of.framework)
    assert len(known) == len(alone)
    for one, other in zip(known, alone, strict=True):
        assert one == other


def check_others(of: Scenario, kept: Cache) -> int:
    """Checks the plan of a scenario and plans with other pipelines; returns how many of them are feasible."""
    found = 0
    for other in OTHERS:
        pp = other.get("pp", of.plan.pp)
        dp = of.plan.dp and of.plan.pp * of.plan.dp // pp
        try:
            varied = feasible.check(replace(of, plan=replace(of.plan, **{**other, "pp": pp, "dp": dp})))
            layout = layout_of(varied).sampled
        except UserError:
            continue
        check(varied, layout, kept)
        found += 1
    return found


@settings(max_examples=10)
@given(scenarios())
def test_bodies_of_drawn_plans(of: Scenario) -> None:
    assert check_others(of, Cache(1 << 20)) >= 1


@pytest.mark.slow
@settings(max_examples=150)
@given(scenarios())
def test_bodies_of_drawn_plans_many_times(of: Scenario) -> None:
    check_others(of, Cache(1 << 20))


@pytest.mark.slow
def test_plans_of_a_search_share_bodies() -> None:
    """Plans one after the other, of which most find what they need; how much is kept does not matter."""
    for most in (1 << 20, 300):
        kept = Cache(most)
        for tp, sharding, recompute in product((1, 2), ("none", "fsdp"), ("none", "full")):
            plan = sim.Plan(tp=tp, pp=4, sharding=sharding, recompute=recompute)  # type: ignore[arg-type]
            of = scenario(small_model(8), small_cluster(4), plan, sim.Job(sequence_length=64, global_batch=64))
            assert check_others(of, kept) >= 5
        assert kept.weight <= most


def test_a_work_that_is_known_is_not_lowered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered: list[Layout] = []

    def counted(*arguments: Any, **options: Any) -> Any:
        lowered.append(arguments[3])
        return lower_slots(*arguments, **options)

    monkeypatch.setattr("simulator.lowering.kept_slots.lower_slots", counted)
    kept = Cache(1 << 20)
    job, model, cluster = sim.Job(sequence_length=64, global_batch=64), small_model(8), small_cluster(4)
    for schedule, sharding, fewer in (
        ("1f1b", "none", 3), ("gpipe", "none", 0), ("zb-h1", "none", 3), ("zb-h2", "none", 0), ("1f1b", "zero1", 0),
        ("1f1b", "zero2", 3), ("1f1b", "fsdp", 0),
    ):  # fmt: skip
        of = scenario(model, cluster, sim.Plan(tp=2, pp=4, schedule=schedule, sharding=sharding), job)
        before = len(lowered)
        check(of, layout_of(of).sampled, kept)
        assert len(lowered) - before == fewer, "the first stage, those in the middle, and the last"
