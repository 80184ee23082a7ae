"""The compiled engine through the front door: the same runs to the nanosecond, and when `auto` takes it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

import simulator as sim
from simulator.engine import des
from simulator.engine.compiled import event_loop
from simulator.engine.fold import fold, unfolded
from simulator.engine.replay import with_fixed_durations
from simulator.errors import UserError
from simulator.plan.plan import Fidelity
from simulator.simulation import choose_engine, estimated_effort
from simulator.simulation.runnable import RunnableScenario as Scenario

from ..commandline import trainsim
from ..small_scenarios import bound, scenario, small_cluster
from .test_plans import scenarios

needs_numba = pytest.mark.skipif(not event_loop.INSTALLED, reason="numba, the extra 'fast', is not installed")


@needs_numba
@settings(max_examples=12, deadline=None)
@given(scenarios())
def test_every_task_of_random_plans_starts_and_ends_as_in_the_event_loop(of: Scenario) -> None:
    """With slow GPUs, links that are slow for a while, and every rank for itself."""
    skeleton = bound(of).skeleton
    for graph in (with_fixed_durations(fold(skeleton).graph), unfolded(skeleton).graph):
        assert event_loop.why_not(graph) == ""
        one, other = des.simulate(graph), event_loop.simulate(graph)
        np.testing.assert_array_equal(one.start_ns, other.start_ns)
        np.testing.assert_array_equal(one.end_ns, other.end_ns)


@pytest.mark.thinned(2)
@needs_numba
@pytest.mark.parametrize("collectives", ["fluid", "stepwise"])
def test_the_same_step_where_flows_are_hashed_or_sent_message_by_message(collectives: str) -> None:
    cluster = small_cluster(2, shape="leaf-spine", routing="ecmp", oversubscription=3.0)
    of = scenario(plan=sim.Plan(tp=1, pp=2, dp=4), cluster=cluster, fidelity=Fidelity(collectives=collectives))
    runs = [of.simulate(engine=engine) for engine in ("des", "compiled")]
    assert [run.engine for run in runs] == ["des", "compiled"]
    assert runs[0].metrics == runs[1].metrics
    assert "because it was requested" in runs[1].engine_reason


@needs_numba
def test_a_speed_that_changes_on_the_way_is_refused_with_the_reason() -> None:
    of = scenario(perturb=(sim.Perturb(rank=0, speed=0.5, from_s=1e-5, until_s=1e-3),))
    with pytest.raises(UserError, match="speed of some tasks changes"):
        of.simulate(engine="compiled")
    assert of.simulate().engine == "heap"


@needs_numba
def test_auto_takes_it_for_many_tasks_that_share_links(monkeypatch: pytest.MonkeyPatch) -> None:
    of = scenario(plan=sim.Plan(tp=1, pp=2, dp=4, rank_order="tp-pp-dp"), cluster=small_cluster(2))
    monkeypatch.setattr(choose_engine, "ROWS_OF_STRETCH", 1000)  # which would leave few tasks
    few = of.simulate()
    assert few.engine == "heap"
    monkeypatch.setattr(choose_engine, "MANY_TASKS", 10)
    many = of.simulate()
    assert many.engine == "compiled"
    assert "tasks are many" in many.engine_reason
    assert many.metrics == few.metrics
    closed = replace(of, fidelity=Fidelity("closed", "free")).simulate()
    assert closed.engine == "replay", "which is quicker still"


@needs_numba
def test_auto_takes_it_for_fewer_tasks_in_a_process_that_has_loaded_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose_engine, "ROWS_OF_STRETCH", 1000)
    monkeypatch.setattr(choose_engine, "MANY_TASKS_AT_ONCE", 10)
    of = scenario(plan=sim.Plan(tp=1, pp=2, dp=4, rank_order="tp-pp-dp"), cluster=small_cluster(2))
    choose_engine.load()
    assert event_loop.is_loaded()
    loaded = of.simulate()
    assert loaded.engine == "compiled"
    assert loaded.engine_reason.endswith("where it is loaded already")
    monkeypatch.setattr(event_loop, "is_loaded", lambda: False)
    monkeypatch.setattr(choose_engine, "MANY_TASKS_KEPT", 10)
    assert event_loop.is_kept()
    found = of.simulate()
    assert found.engine == "compiled"
    assert found.engine_reason.endswith("where it is kept on disk")
    monkeypatch.setattr(event_loop, "is_kept", lambda: False)
    anew = of.simulate()
    assert anew.engine == "heap"
    assert anew.metrics == loaded.metrics


@needs_numba
def test_stretches_of_few_rows_are_left_to_it_where_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    of = scenario(plan=sim.Plan(tp=1, pp=2, dp=4, rank_order="tp-pp-dp"), cluster=small_cluster(2))
    choose_engine.load()
    stretches = of.simulate()
    assert stretches.engine == "heap"
    monkeypatch.setattr(choose_engine, "MANY_ROWS", 1)
    monkeypatch.setattr(choose_engine, "MANY_TASKS_AT_ONCE", 10)
    assert of.simulate().engine == "heap", "as many rows come to a stretch"
    monkeypatch.setattr(choose_engine, "ROWS_OF_STRETCH_LOADED", 1000)
    rows = of.simulate()
    assert rows.engine == "compiled"
    assert rows.metrics == stretches.metrics
    monkeypatch.setattr(event_loop, "is_loaded", lambda: False)
    assert of.simulate().engine == "heap"


def test_without_numba_auto_says_what_it_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "INSTALLED", False)
    monkeypatch.setattr(choose_engine, "ROWS_OF_STRETCH", 1000)
    monkeypatch.setattr(choose_engine, "MANY_TASKS", 10)
    of = scenario(plan=sim.Plan(tp=1, pp=2, dp=4, rank_order="tp-pp-dp"), cluster=small_cluster(2))
    run = of.simulate()
    assert run.engine == "heap"
    assert "not compiled because numba is not installed" in run.engine_reason
    with pytest.raises(UserError, match="numba is not installed") as refused:
        of.simulate(engine="compiled")
    assert "cluster-training-simulator[fast]" in refused.value.hint


@pytest.mark.parametrize("quick", [True, False])
def test_what_would_never_end_is_refused_with_its_cost(quick: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimated_effort, "find_spec", lambda name: name if quick else None)
    monkeypatch.setattr(estimated_effort, "MOST_S", 0)
    with pytest.raises(UserError, match=r"\d+ tasks.*would take about .* and .*B") as refused:
        estimated_effort.Limits().must_end(1000)
    assert ("extra 'fast'" in refused.value.hint) != quick


@pytest.mark.slow
@needs_numba
def test_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text("{model: llama3-8b, cluster: {name: dgx-h100, nodes: 1}, plan: {tp: 2, pp: 2, dp: 2, sharding: zero1}}")
    steps = [trainsim("run", file, "--allow-oom", "--engine", engine, "--json").record for engine in ("des", "compiled")]
    assert [step["engine"] for step in steps] == ["des", "compiled"]
    assert steps[0]["step_time_s"] == steps[1]["step_time_s"]
