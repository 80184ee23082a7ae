"""`trainsim search`: its table and its JSON, the scenario that it writes, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulator.search import best_first

from ..commandline import SMALL, trainsim

SPACE = "tp: [1, 2]\npp: [1, 2, 3]\nmicrobatch: [1]\nschedule: [1f1b]\nrecompute: [none]\nsplit: [even]\n"


@pytest.fixture
def searched(tmp_path: Path) -> tuple[object, ...]:
    """The words of a search of a small space, in this process."""
    (tmp_path / "scenario.yaml").write_text(SMALL)
    (tmp_path / "space.yaml").write_text(SPACE)
    return "search", tmp_path / "scenario.yaml", "--space", tmp_path / "space.yaml", "--workers", 1


def test_json_counts_every_plan(searched: tuple[object, ...]) -> None:
    record = trainsim(*searched, "--json", "--top", 1).record
    assert record["plans"] == 6
    assert record["simulated"] + record["bounded"] + record["infeasible"] == 6
    assert record["reasons"]["plan"]["plans"] == record["infeasible"] == 2
    assert len(record["best"]) == 1
    assert {"plan", "step_time_s", "peak_memory_bytes", "mfu"} <= set(record["best"][0])


@pytest.mark.parametrize("more", [("--pareto", "gpus"), ("--tokens", 1e12, "--days", 4)], ids=lambda more: more[0])
def test_json_counts_what_a_front_or_the_days_exclude(searched: tuple[object, ...], more: tuple[object, ...]) -> None:
    record = trainsim(*searched, "--json", *more).record
    assert record["bounded"] > 0
    assert record["simulated"] + record["bounded"] + record["infeasible"] == record["plans"] == 6


@pytest.mark.parametrize("days", [2.9, 0.1])
def test_where_all_plans_take_too_many_days_the_hint_is_to_allow_more(
    searched: tuple[object, ...], tmp_path: Path, days: float
) -> None:
    """The bound of the only plan is below 2.9 days, and its step above."""
    (tmp_path / "space.yaml").write_text(SPACE.replace("[1, 2]", "[1]").replace("[1, 2, 3]", "[1]"))
    said = trainsim(*searched, "--tokens", 1e12, "--days", days)
    assert (said.code, "more GPUs with --gpus, or more --days" in said.err) == (3, True), said.err
    assert ("1 simulated" in said.err) == (days == 2.9)


def test_the_winner_is_a_scenario_that_runs(searched: tuple[object, ...], tmp_path: Path) -> None:
    said = trainsim(*searched, "--write", tmp_path / "best.yaml", "--json")
    again = trainsim("run", tmp_path / "best.yaml", "--json").record
    best = said.record["best"][0]
    text = (tmp_path / "best.yaml").read_text(encoding="utf-8")
    assert not [line for line in text.splitlines() if line.lstrip().startswith("- ")], "lists are in one line"
    assert (again["step_time_s"], again["peak_memory_bytes"]) == (best["step_time_s"], best["peak_memory_bytes"])


def test_a_run_of_tokens_takes_days_and_costs(searched: tuple[object, ...]) -> None:
    hours, cost = (trainsim(*searched, "--json", "--tokens", 1e12, *more).record["best"][0] for more in ((), ("--price", 3)))
    steps = 1e12 / (1024 * 32)
    assert hours["days"] == pytest.approx(steps * hours["step_time_s"] / 86400)
    assert hours["gpu_hours"] == pytest.approx(hours["days"] * 24 * 16)
    assert cost["cost"] == pytest.approx(3 * hours["gpu_hours"])
    assert "GPU-hours" in trainsim(*searched, "--tokens", 1e12).out


def test_tokens_and_price_are_those_of_the_job(searched: tuple[object, ...], tmp_path: Path) -> None:
    file = tmp_path / "scenario.yaml"
    by_options = trainsim(*searched, "--tokens", 1e12, "--price", 3, "--days", 50, "--json").record["best"]
    file.write_text(SMALL.replace("global_batch: 32", "global_batch: 32, total_tokens: 1e12, price_per_gpu_hour: 3"))
    by_job = trainsim(*searched, "--days", 50, "--json").record["best"]
    figures = [[{name: one[name] for name in ("text", "days", "cost")} for one in best] for best in (by_options, by_job)]
    assert figures[0] == figures[1]
    assert trainsim(*searched, "--tokens", 2e12, "--json").record["best"][0]["days"] == pytest.approx(2 * by_job[0]["days"])


def test_plans_on_equally_many_gpus_are_behind_in_step_time(searched: tuple[object, ...]) -> None:
    asked = (*searched, "--gpus", "16,32", "--tokens", 1e12, "--days", 400)
    best = trainsim(*asked, "--json", "--top", 9).record["best"]
    said = trainsim(*asked, "--top", 9).out
    assert "ordered by number of GPUs, then step time" in said
    assert "cluster.nodes" not in said
    (first, second), last = best[:2], best[-1]
    assert (first["gpus"], second["gpus"], last["gpus"]) == (16, 16, 32)
    behind = [line.split()[:-2] for line in said.splitlines() if " GiB" in line]
    assert f"{second['step_time_s'] / first['step_time_s'] - 1:.2%}" in behind[1]
    assert "100.00%" in behind[-1]
    assert "ordered by" not in trainsim(*searched).out


def test_ctrl_c_keeps_what_is_known(searched: tuple[object, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    own, simulated = best_first.measured, list[Any]()

    def interrupted(*given: Any) -> Any:
        if simulated:
            raise KeyboardInterrupt
        simulated.append(given)
        return own(*given)

    monkeypatch.setattr(best_first, "measured", interrupted)
    said = trainsim(*searched)
    assert said.code == 130
    assert "1 simulated" in said.out
    assert "plans that are not listed may be better" in said.out
    simulated.append(0)
    said = trainsim(*searched)
    assert said.code == 130
    assert "interrupted before a plan was simulated" in said.out
    assert trainsim(*searched, "--json").record["best"] == []


def test_where_nothing_fits_the_nearest_plan_says_what_it_lacks(searched: tuple[object, ...], tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yaml"
    (tmp_path / "space.yaml").write_text(SPACE.replace("pp: [1, 2, 3]", "pp: [1, 2, 8]").replace("[none]", "[none, full]"))
    big = ("--set", "model=llama3-405b", "--set", "model.layers=120")
    said = trainsim(*searched, *big, "--json")
    alone = [
        trainsim("run", scenario, *big, "--json", *(word for name in settings for word in ("--set", name))).record
        for tp in (1, 2) for pp in (1, 2, 8) for recompute in ("none", "full")
        for settings in [(f"plan.tp={tp}", f"plan.pp={pp}", f"plan.recompute={recompute}", "plan.sharding=zero1")]
    ]  # fmt: skip
    assert said.record["over_gib"] == min(record["over_gib"] for record in alone) > 0
    assert f"the nearest lacks {said.record['over_gib']:.1f} GiB: tp 2 pp 8, microbatch 1" in said.record["infeasible"]
    assert said.record["hint"] == "more GPUs with --gpus, or in --space more tp, cp or pp"


def test_a_schedule_of_the_scenario_that_is_not_searched_is_told(searched: tuple[object, ...], tmp_path: Path) -> None:
    """One of the catalog may be added to the space, code may not."""
    (tmp_path / "mine.py").write_text("from simulator.schedules.gpipe import order\n")
    for schedule, note in (
        ("zb-h1", "note: plan.schedule: zb-h1 is not searched, but 1f1b; `schedule: [zb-h1]` in --space searches it"),
        ("mine.py:order", "mine.py:order is not searched, but 1f1b; a search takes schedules of the catalog only"),
        ("1F1B", None),
    ):
        (tmp_path / "scenario.yaml").write_text(SMALL.replace("pp: 2", f"pp: 2, schedule: '{schedule}'"))
        said = trainsim(*searched, "--trust")
        assert said.code == 0
        assert note in said.err if note else "is not searched" not in said.err


def test_context_parallelism_that_is_not_searched_is_told(searched: tuple[object, ...], tmp_path: Path) -> None:
    (tmp_path / "scenario.yaml").write_text(SMALL.replace("pp: 2", "pp: 2, cp: 2"))
    said = trainsim(*searched)
    assert "note: plan.cp: 2 is not searched, but 1; `cp: [2]` in --space searches it" in said.err


def test_a_setting_that_the_space_varies_is_told(searched: tuple[object, ...], tmp_path: Path) -> None:
    """The plan of a scenario is only where a search begins; what is typed is more, and has no effect either."""
    told = trainsim(*searched, "--set", "plan.pp=3", "--set", "plan.dp=4", "--set", "job.dtype=fp16").err.splitlines()
    left = "what the other degrees leave of the GPUs"
    assert [line for line in told if line.startswith("note: ")] == [
        "note: plan.pp: a search takes it from its space, 1, 2 or 3; `pp: [...]` in --space changes that",
        f"note: plan.dp: a search takes it from its space, {left}; `dp: [...]` in --space changes that",
    ]
    (tmp_path / "one.yaml").write_text(
        "{tp: [2], pp: [2], microbatch: [1], schedule: [1f1b], sharding: [zero1], recompute: [none]}"
    )
    scenario = tmp_path / "scenario.yaml"
    assert trainsim("search", scenario, "--space", tmp_path / "one.yaml", "--set", "plan.tp=2", "--workers", 1).err == ""


def test_the_space_is_shown(searched: tuple[object, ...]) -> None:
    out = trainsim(*searched, "--show-space").out
    assert "pp: [1, 2, 3]" in out
    assert "6 plans" in out
    record = trainsim(*searched, "--show-space", "--json").record
    assert (record["space"]["pp"], record["plans"]) == ([1, 2, 3], 6)


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (("--objective", "speed"), 2, "no objective 'speed'"),
        (("--pareto", "gpus", "--objective", "cost"), 2, "leave out --objective, or for the best plans by cost --pareto"),
        (("--gpus", "8,x"), 2, "'x' is not a number of GPUs"),
        (("--gpus", "12"), 2, "not whole nodes of 8"),
        (("--over", "plan.tp=1,2"), 2, "is a part of the space"),
        (("--over", "plan.overlap.dp"), 2, "gives no field with values"),
        (("--price", "3"), 2, "--price is about a run of so many tokens"),
        (("--set", "model=llama3-405b"), 3, "no plan can run: 6 plans: 2 infeasible, 4 out of memory"),
    ],
)
def test_what_cannot_be_searched_is_told(searched: tuple[object, ...], more: tuple[str, ...], code: int, message: str) -> None:
    said = trainsim(*searched, *more)
    assert (said.code, message in said.err) == (code, True), said.err
