"""Within a budget optuna proposes what to simulate: mostly the best plan of a small space, and never one that cannot run."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import simulator as sim
from simulator.errors import UserError
from simulator.search import sampled_search
from simulator.search.best_first import SIMULATED, search_of
from simulator.search.sampled_search import MOST_TRIES, SampledSearch
from simulator.search.search import aim_of, base_of, choices_of, found_of
from simulator.search.space import MOST_PLANS, choice_by, choices, number_of_plans, space_of
from simulator.study.grid import Axis
from simulator.study.pool import Workers

from ..commandline import SMALL, run
from .test_search import FRAMEWORK

needs_optuna = pytest.mark.skipif(find_spec("optuna") is None, reason="optuna is not installed")
SPACE: dict[str, Any] = {
    "tp": [1, 2, 4, 8], "pp": [1, 2, 4, 8], "microbatch": [1, 2, 64], "recompute": ["none", "full"], "split": ["even"],
    "schedule": ["1f1b", "interleaved", "zb-h1"], "chunks": [2],
}  # fmt: skip


def sampled(seed: int, budget: int, top: int = 1) -> SampledSearch:
    found = SampledSearch(base_of(FRAMEWORK), aim_of("step_time", top), [], space=space_of(SPACE), budget=budget, seed=seed)
    found.run(Workers(1), lambda text: None)
    return found


@needs_optuna
@pytest.mark.slow
def test_the_best_plan_is_found_most_of_the_time() -> None:
    base = base_of(FRAMEWORK)
    every = search_of(base, aim_of("step_time", 2), choices_of(base, SPACE))
    every.run(Workers(1), lambda text: None)
    budget, (quickest_s, second_s, *_) = 12, sorted(values[0] for values, *_ in every.best)
    found = [sampled(seed, budget) for seed in range(5)]
    times = [one.best[0][0][0] for one in found]
    assert min(times) == quickest_s
    assert sum(time_s == quickest_s for time_s in times) >= 3
    assert max(times) <= second_s
    assert all(len(one.plans) < len(every.plans) / 2 for one in found)


@needs_optuna
def test_what_is_proposed_can_run_and_the_budget_is_kept() -> None:
    found = found_of(base_of(FRAMEWORK), aim_of("step_time", 3), SPACE, budget=4)
    statuses = [plan.status for plan in found.search.plans]
    assert statuses.count(SIMULATED) <= 4
    assert "infeasible" in statuses
    assert len({plan.text for plan in found.search.plans}) == len(statuses) < found.of_plans
    assert found.confirmed == "confirmed by the reference engine"
    for plan in found.best:
        assert sim.scenario(found.document(plan).data).simulate().metrics.step_time_s == plan.simulated()[1]


@needs_optuna
@pytest.mark.parametrize(("within_s", "said"), [(1.0, [32.0]), (0.005, ["PRUNED"])])
def test_a_plan_that_takes_too_many_days_is_learned_as_the_worst(within_s: float, said: list[Any]) -> None:
    """It has as few GPUs as any, which is the value of other plans."""
    aim = aim_of("gpus", 1, within_s=within_s)
    space = {**SPACE, "tp": [1], "pp": [1], "microbatch": [1], "recompute": ["none"]}
    found = SampledSearch(base_of({**FRAMEWORK, "cluster": {"name": "dgx-h100"}}), aim, [], space=space_of(space), budget=1)
    found.run(Workers(1), lambda text: None)
    told = list[Any]()
    study = SimpleNamespace(tell=lambda trial, value=None, state=None: told.append(value or state.name))
    found._learn(study, SimpleNamespace(), found.plans[0])  # type: ignore[arg-type]
    assert told == said


@needs_optuna
def test_the_same_is_proposed_again() -> None:
    tables = [sim.search(FRAMEWORK, space=SPACE, budget=3) for _ in range(2)]
    assert tables[0].equals(tables[1])


@needs_optuna
def test_proposals_end_when_no_plan_can_run() -> None:
    result = found_of(base_of(FRAMEWORK), aim_of("step_time", 1), {"tp": [3, 5, 7], "pp": [1, 3]}, budget=2)
    assert not result.best
    assert result.search.tries <= 2 * MOST_TRIES


@needs_optuna
def test_processes_share_a_budget() -> None:
    found = found_of(base_of(FRAMEWORK), aim_of("step_time", 1), SPACE, budget=3, workers=2)
    assert found.counts[SIMULATED] <= 3
    assert found.best


@needs_optuna
def test_a_command_says_that_plans_were_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    (tmp_path / "space.yaml").write_text("tp: [1, 2, 4]\npp: [1, 2]\n")
    options = ["search", str(tmp_path / "small.yaml"), "--space", str(tmp_path / "space.yaml"), "--budget", "2", "--workers", "1"]
    assert run(options) == 0
    assert "those that were not tried may be better" in capsys.readouterr().out
    assert run([*options, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["simulated"] <= 2
    assert record["plans"] < record["plans_of_space"]
    assert run([*options, "--store", str(tmp_path / "plans.sqlite")]) == 2
    assert "--budget tries some" in capsys.readouterr().err


def test_without_optuna_a_budget_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampled_search, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="needs optuna, which is not installed") as failed:
        sim.search(FRAMEWORK, space=SPACE, budget=3)
    assert "pip install 'cluster-training-simulator[search]'" in str(failed.value.faults[0].hint)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"budget": 0}, "a budget of 0 plans"), ({"budget": True}, "a budget of"), ({"budget": 2, "pareto": "memory"}, "a front")],
)
def test_what_no_budget_can_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        sim.search(FRAMEWORK, space=SPACE, **options)


def test_a_space_out_of_reach_is_refused_with_an_estimate() -> None:
    space = {
        "tp": [1, 2, 4, 8], "pp": [1, 2, 4, 8], "dp": [1, 2, 4, 8], "microbatch": [1, 2, 3, 4, 5, 6, 7, 8],
        "schedule": ["1f1b", "gpipe", "zb-h1", "zb-v", "interleaved"], "sharding": ["none", "zero1", "zero2", "zero3"],
        "recompute": ["none", "selective", "full"], "overlap": ["none", "dp", "tp", "pp", "dp+pp", "dp+tp+pp"],
    }  # fmt: skip
    number = number_of_plans(space_of(space), ())
    assert number > MOST_PLANS
    with pytest.raises(UserError, match=rf"{number:,} plans are more than .* takes about [\d.,]+ core-hours") as failed:
        sim.search(FRAMEWORK, space=space)
    assert "a budget of plans" in str(failed.value.faults[0].hint)


def test_plans_are_counted_without_being_made() -> None:
    space = space_of({**SPACE, "schedule": ["1f1b", "interleaved", "zb-v"], "chunks": [2, 4], "dp": [1, 2]})
    axes = (Axis("plan.overlap.dp", (True, False)),)
    every = list(choices(space, axes))
    assert number_of_plans(space, axes) == len(every) == len({plan.text for plan in every})
    assert choice_by(space, axes, lambda name, values: values[-1]) in every
    assert choice_by(space, axes, lambda name, values: values[0]) in every
