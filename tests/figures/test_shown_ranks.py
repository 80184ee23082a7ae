"""The ranks that pictures and reports show where nobody chose them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulator as sim
from simulator.advise.places import place_of
from simulator.figures import bars, shown_ranks, trace
from simulator.figures.bars import chart_of_run
from simulator.figures.gantt import gantt
from simulator.figures.shown_ranks import candidates, kinds_of, left_out, spread, spread_within
from simulator.simulation.run import Run
from simulator.study.without import IMBALANCE

from ..small_scenarios import scenario, small_cluster, small_model

PLAN = sim.Plan(tp=2, pp=2, dp=4)
SLOW = 13


def simulated(plan: sim.Plan = PLAN, slow: int | None = SLOW, **how: Any) -> Run:
    perturb = () if slow is None else (sim.Perturb(rank=slow, speed=0.6),)
    return scenario(cluster=small_cluster(4), plan=plan, perturb=perturb).simulate(**how)


def looks(run: Run, rank: int) -> tuple[int, bytes, bytes]:
    times = run.engine_timeline.rank_times(rank)
    return run.coordinate(rank), times.start_ns.tobytes(), times.end_ns.tobytes()


def test_a_slow_rank_and_every_other_kind_of_rank_have_rows() -> None:
    run = simulated()
    shown = candidates(run, kinds_of(run))
    assert SLOW in shown
    assert sorted(looks(run, rank) for rank in shown) == sorted({looks(run, rank) for rank in range(run.gpus)})
    labels = [row.label for row in chart_of_run(run).rows]
    assert f"rank {SLOW} (stage 1, perturbed)" in labels
    assert sum(label.endswith("perturbed)") for label in labels) == 1
    alike = sum(int(label.split()[3]) if " other" in label else 0 for label in labels)
    assert alike + len(labels) == run.gpus
    assert not chart_of_run(run).note


def test_a_slow_gpu_is_marked_on_the_rank_that_is_placed_there() -> None:
    slow = sim.Perturb(rank=0, speed=0.5)
    run = scenario(cluster=small_cluster(1), plan=sim.Plan(pp=4, placement=(3, 2, 1, 0)), perturb=(slow,)).simulate()
    assert shown_ranks.perturbed(run) == [3]
    assert [row.label for row in chart_of_run(run).rows][3] == "rank 3 (stage 3, perturbed)"
    assert sum("perturbed" in row.label for row in chart_of_run(run).rows) == 1
    assert dict(run.summary)["perturbed"] == "GPU 0 (rank 3) at 0.5 of its speed"
    assert place_of(run, IMBALANCE).startswith("GPU 0 (rank 3) runs at 0.5 of its speed")
    plain = scenario(cluster=small_cluster(1), plan=sim.Plan(pp=4)).simulate()
    assert dict(sim.compare({"a": plain, "b": run}).summary)["perturb.0"] == "None | GPU 0 (rank 3) at 0.5 of its speed"


def test_ranks_that_were_simulated_one_by_one_but_look_alike_have_one_row() -> None:
    folded, whole = simulated(slow=None), simulated(slow=None, folding=False)
    assert whole.engine_timeline.skeleton.ranks == whole.gpus
    assert chart_of_run(whole).rows == chart_of_run(folded).rows
    assert len(chart_of_run(whole).rows) == 2


def test_of_many_kinds_the_pipelines_of_perturbed_ranks_are_shown_and_the_rest_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = simulated()
    kinds = kinds_of(run)
    monkeypatch.setattr(shown_ranks, "FEW", kinds.count - 1)
    shown = candidates(run, kinds)
    assert shown == [0, SLOW - 8, 8, SLOW]
    assert left_out(kinds, shown) == f"4 of {kinds.count} kinds of ranks"
    note = f"4 of {kinds.count} kinds of ranks are drawn"
    assert gantt(run).axes[0].get_title(loc="left").splitlines()[1:] == [f"{note}; others by --gantt-ranks, or ranks= in Python"]
    assert gantt({"one": run}).axes[0].get_title(loc="left").splitlines()[1:] == [note]
    assert len(gantt(run, ranks=[0]).axes[0].get_title(loc="left").splitlines()) == 1


def test_a_long_pipeline_is_shown_from_its_first_to_its_last_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    run = simulated(sim.Plan(pp=8, dp=2), slow=None)
    monkeypatch.setattr(bars, "MOST_ROWS", 4)
    chart = chart_of_run(run)
    assert [row.label.split("stage ")[1] for row in chart.rows] == ["0)", "2)", "5)", "7)"]
    assert chart.note == "4 of 8 pipeline ranks are drawn"


def test_ranks_of_a_pipeline_coordinate_with_several_programs_have_their_stages() -> None:
    """Such ranks have unequal parts of a sequence."""
    plan = sim.Plan(pp=2, cp=2, dp=4, cp_kind="ring", cp_balance=False)
    run = simulated(plan, slow=None)
    assert len(run.labels) == 4
    assert [row.label.split("(")[1] for row in chart_of_run(run).rows] == ["stage 0)"] * 2 + ["stage 1)"] * 2


def test_a_trace_of_too_many_classes_has_the_last_ones_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = simulated(sim.Plan(pp=8, dp=2), slow=None)
    tasks = [2 * len(run.engine_timeline.tasks_of(2 * stage)) for stage in range(8)]
    monkeypatch.setattr(trace, "MOST_EVENTS", sum(tasks) // 2)
    monkeypatch.setattr(trace, "events_of", lambda run, rank, arrows, zero_ns: [{"rank": rank}])
    trace.trace(run, tmp_path / "trace.json")
    shown = [event["rank"] for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]]
    assert 2 < len(shown) < 8
    assert (shown[0], shown[-1]) == (0, 14)


def test_a_trace_of_too_many_classes_has_a_whole_pipeline_with_its_arrows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = sim.Plan(pp=2, dp=8, ep=8, moe=sim.Moe(routing="drawn", seed=1))
    model = small_model(4, experts=8, experts_per_token=2, expert_ffn_hidden=256)
    run = scenario(model, small_cluster(4), plan).simulate()
    timeline = run.engine_timeline
    assert len(set(timeline.class_of.tolist())) == 16
    most = 4 * max(2 * len(timeline.tasks_of(rank)) for rank in range(16))
    monkeypatch.setattr(trace, "MOST_EVENTS", most)
    shown = trace._representatives(run)
    assert len(shown) < 16
    assert {0, 8} <= set(shown), "the ranks of one pipeline"
    assert all(trace._arrows(run, shown)[rank] for rank in (0, 8))


@given(st.dictionaries(st.integers(0, 99), st.integers(1, 50), min_size=1), st.integers(1, 900))
def test_ranks_within_a_budget_are_all_or_keep_it(sizes: dict[int, int], budget: int) -> None:
    chosen = spread_within(sizes, budget)
    assert chosen
    assert sum(sizes[rank] for rank in chosen) <= budget or len(chosen) == 1
    assert sum(sizes.values()) > budget or chosen == list(sizes)


@given(st.lists(st.integers(0, 10**6), unique=True, min_size=1, max_size=80), st.integers(1, 90), st.data())
def test_spread_ranks_keep_their_order_their_ends_and_half_of_those_that_come_first(
    ranks: list[int], most: int, data: st.DataObject
) -> None:
    first = data.draw(st.lists(st.sampled_from(ranks), unique=True))
    chosen = spread(ranks, most, first)
    assert len(chosen) == min(most, len(ranks))
    places = [ranks.index(rank) for rank in chosen]
    assert places == sorted(set(places))
    assert len({*chosen} & {*first}) >= min(len(first), most // 2)
    if most >= 4:
        assert (chosen[0], chosen[-1]) == (ranks[0], ranks[-1])
    if not first and len(chosen) > 1:
        assert np.ptp(np.diff(places)) <= 1
