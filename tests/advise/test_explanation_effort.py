"""The estimated effort of an explanation counts all of its simulations."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import simulator as sim
from simulator.advise import explanation_effort, neighbours
from simulator.advise.explanation import explain
from simulator.advise.explanation_effort import splits_in_time
from simulator.simulation import choose_engine, estimated_effort
from simulator.simulation.run import Run
from simulator.study.waterfall import waterfall
from simulator.study.without import RECOMPUTATION, Counterfactual

from ..commandline import trainsim


@pytest.fixture(scope="module")
def run() -> Run:
    """A step of a small pipeline of four stages."""
    return sim.scenario(
        {
            "model": "llama3-8b",
            "cluster": {"name": "dgx-h100", "nodes": 1},
            "plan": {"tp": 2, "pp": 4},
            "job": {"sequence_length": 2048, "global_batch": 16},
        }
    ).simulate()


def _estimated_s(run: Run) -> float:
    """The largest limit in seconds, to a thousandth, at which the explanation of a run is still refused."""
    low, high = 0.0, 30.0
    while high - low > 0.001:
        middle = (low + high) / 2
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(estimated_effort, "MOST_S", middle)
            try:
                splits_in_time(run, 10, 3, long=False)
                high = middle
            except estimated_effort.TooLong:
                low = middle
    return low


def test_an_explanation_is_refused_where_its_simulations_together_take_too_long(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone_s = run.engine_timeline.tasks * estimated_effort.TASK["compiled"].seconds
    together_s = _estimated_s(run)
    assert together_s > 2 * alone_s
    monkeypatch.setattr(estimated_effort, "MOST_S", together_s / 2)
    with pytest.raises(estimated_effort.TooLong, match=r"this explanation, of \d+ simulations") as refused:
        explain(run)
    assert "--long" in str(refused.value.hint)
    assert splits_in_time(run, 10, 3, long=True) == float("inf")


def test_the_announced_work_is_what_is_simulated(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """All splits in which a layer moves are counted, beside the changes and two simulations of each cause but one."""
    simulated: list[object] = []
    made = neighbours._made
    monkeypatch.setattr(neighbours, "_made", lambda *args, **options: simulated.append(args) or made(*args, **options))
    work = neighbours.expected_work(run)
    _, tried = neighbours.neighbours(run)
    causes = 2 * len(Counterfactual(run).causes) - 1
    assert tried
    assert tried.neighbouring + tried.too_large == 12
    assert work.simulations <= causes + len(simulated) <= work.simulations + work.further
    assert work.effort.seconds == pytest.approx(_estimated_s(run) * work.simulations / (causes + 13), rel=0.5)


def test_long_work_is_announced_before_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = tmp_path / "a.yaml"
    given.write_text("{model: llama3.2-1b, cluster: {name: dgx-h100, nodes: 1}, job: {sequence_length: 2048, global_batch: 8}}")
    loaded: list[bool] = []
    monkeypatch.setattr(choose_engine, "load", lambda: loaded.append(True))
    assert "simulations" not in trainsim("explain", str(given)).err
    assert not loaded
    monkeypatch.setattr(explanation_effort, "LONG_S", 0)
    assert re.search(r"^note: about \d+ simulations, estimated at \d+ s$", trainsim("explain", str(given)).err, re.M)
    assert loaded, "the engine for many simulations"


def test_splits_are_those_of_the_slowest_stage_where_there_is_no_time_for_all(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    every = explain(run).splits
    monkeypatch.setattr(neighbours, "splits_in_time", lambda *args, **options: 3)
    few = explain(run).splits
    assert every
    assert every.neighbouring + every.too_large == 4 * 3
    assert few
    assert few.neighbouring + few.too_large == 3
    assert few.further is None


def test_a_cause_that_a_step_has_nothing_of_is_not_simulated(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    without = Counterfactual(run)
    assert without.step_s([RECOMPUTATION]) == run.metrics.step_time_s
    simulated: list[object] = []
    observed = Counterfactual._observed
    monkeypatch.setattr(Counterfactual, "_observed", lambda self, graph: simulated.append(graph) or observed(self, graph))
    bars = waterfall(run).bars
    assert RECOMPUTATION in {bar.cause for bar in bars}
    assert len(simulated) < 2 * len(without.causes) - 1
