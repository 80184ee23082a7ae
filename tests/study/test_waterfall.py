"""The bars of a waterfall are differences of simulated steps, and add up to the step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import simulator as sim
from simulator.study.waterfall import BUBBLE, LEFT, waterfall
from simulator.study.without import BELOW_PEAK, IMBALANCE, LAUNCHES, OPTIMIZER, RECOMPUTATION, SLOWER_CLOCKS, Counterfactual
from simulator.workload.framework import Overlaps

from ..small_scenarios import scenario, small_cluster, small_model

PLANS: list[dict[str, Any]] = [
    {"tp": 2, "pp": 2, "dp": 2},
    {"tp": 1, "pp": 1, "dp": 8, "sharding": "fsdp"},
    {"tp": 2, "pp": 4, "dp": 1, "recompute": "full"},
]


def run_of(plan: dict[str, Any], *slow: sim.Perturb, model: Any = None, batch: int = 16, **more: Any) -> sim.Run:
    job = sim.Job(sequence_length=512, global_batch=batch)
    return scenario(model or small_model(), small_cluster(2), sim.Plan(**plan), job, perturb=slow, **more).simulate()


@pytest.mark.parametrize("plan", PLANS)
def test_bars_add_up_to_the_step(plan: dict[str, Any]) -> None:
    run = run_of(plan, framework=sim.framework("megatron-core-2025"))
    shown = waterfall(run)
    assert sum(bar.seconds for bar in shown.bars) == pytest.approx(run.metrics.step_time_s, rel=1e-9)
    assert sum(shown.fraction(bar) for bar in shown.bars) == pytest.approx(1, abs=1e-9)
    assert shown.fraction(shown.bars[-1]) == pytest.approx(run.metrics.mfu, rel=1e-9)


def test_a_bar_is_what_a_scenario_without_the_cause_saves() -> None:
    """Where fields of a scenario remove the same cause, the step is the same to the nanosecond."""
    plan = {"tp": 2, "pp": 2, "dp": 2}
    framework = sim.framework("megatron-core-2025")
    burst = sim.Fidelity(overlap="free", power="burst")
    assert Counterfactual(run_of(plan, framework=framework)).step_s([SLOWER_CLOCKS]) == pytest.approx(
        run_of(plan, framework=framework, fidelity=burst).metrics.step_time_s, rel=1e-5
    )


def test_without_anything_but_stages_a_uniform_pipeline_has_its_textbook_bubble() -> None:
    """P - 1 of M + P - 1: at the speed of the kernels themselves, whose stages differ by embedding and head until evened."""
    run = run_of({"tp": 1, "pp": 8, "dp": 1}, model=small_model(vocab=512))
    without = Counterfactual(run)
    gone = [cause for cause in without.causes if cause not in (BELOW_PEAK, SLOWER_CLOCKS)]
    assert 1 - without.kernels_s(gone) / without.step_s(gone) == pytest.approx(7 / 23, rel=0.01)


def test_a_slow_rank_is_imbalance_and_nothing_else() -> None:
    """One of eight replicas at half speed: evened, all take the mean."""
    plan = {"tp": 1, "pp": 1, "dp": 8}
    usual, slow = (Counterfactual(run_of(plan, *p)) for p in ([], [sim.Perturb(rank=3, speed=0.5)]))
    evened_s = slow.step_s([IMBALANCE])
    assert usual.step_s([]) < evened_s < slow.step_s([])
    assert evened_s - usual.step_s([]) == pytest.approx(usual.kernels_s([]) / 8, rel=0.05)
    assert usual.step_s([IMBALANCE]) == pytest.approx(usual.step_s([]), rel=1e-6)
    for speed in (0.5, 1.5):
        shown = waterfall(run_of(plan, sim.Perturb(rank=3, speed=speed)))
        assert {bar.cause: bar.seconds for bar in shown.bars}[LEFT] == pytest.approx(0, abs=1e-6)


def test_a_bubble_is_no_longer_because_a_rank_is_slow() -> None:
    """What is lost on the mean rank is lost against the peak."""
    plan = {"tp": 1, "pp": 4, "dp": 2}
    usual, slow = (waterfall(run_of(plan, *p)) for p in ([], [sim.Perturb(rank=3, speed=0.5)]))
    bubble_s = [{bar.cause: bar.seconds for bar in shown.bars}[BUBBLE] for shown in (usual, slow)]
    assert bubble_s[1] == pytest.approx(bubble_s[0], rel=1e-3)


@pytest.mark.parametrize("part", [0.1, 0.5])
def test_a_rank_that_is_slow_for_a_part_of_a_step_is_as_much_imbalance(part: float) -> None:
    """It computes for longer by half of that time, and others wait for it; evened, all take an eighth of that."""
    plan = {"tp": 1, "pp": 1, "dp": 8}
    last_s = part * run_of(plan).metrics.step_time_s
    slow = run_of(plan, sim.Perturb(rank=3, speed=0.5, until_s=last_s))
    bars = {bar.cause: bar.seconds for bar in waterfall(slow).bars}
    assert bars[IMBALANCE] == pytest.approx(last_s / 2 * 7 / 8, rel=0.15)


def test_a_rank_that_is_slow_while_it_waits_is_no_imbalance() -> None:
    """With one microbatch in eight stages, the first rank waits from its forward to its backward pass. The second rank is slow at
    the end of the step, which is not reached where the causes that come first are gone."""
    plan = {"tp": 1, "pp": 8, "dp": 1, "schedule": "naive"}
    framework = sim.framework("megatron-core-2025")
    whole_s = run_of(plan, batch=1, framework=framework).metrics.step_time_s
    never = sim.Perturb(rank=0, speed=1, until_s=whole_s)
    waiting = sim.Perturb(rank=0, speed=0.2, from_s=0.2 * whole_s, until_s=0.3 * whole_s)
    late = sim.Perturb(rank=1, speed=0.2, from_s=0.9 * whole_s)
    runs = [run_of(plan, perturb, batch=1, framework=framework) for perturb in (never, waiting, late)]
    usual_s, waiting_s, late_s = (run.metrics.step_time_s for run in runs)
    assert usual_s == waiting_s < late_s
    usual, *slow = ({bar.cause: bar.seconds for bar in waterfall(run).bars}[IMBALANCE] for run in runs)
    assert slow == pytest.approx([usual] * 2, abs=1e-6 * whole_s)


def test_hot_experts_are_imbalance_and_no_bubble() -> None:
    """Members of a group wait for each other in every layer; evened in every layer, none waits."""
    model = small_model(experts=8, experts_per_token=2, expert_ffn_hidden=4096, hidden=2048, heads=16)
    plan = {"ep": 8, "dp": 8, "moe": sim.Moe(routing=(1, 1, 7, 1, 1, 1, 1, 1))}
    shown = waterfall(run_of(plan, model=model))
    seconds = {bar.cause: bar.seconds for bar in shown.bars}
    assert seconds[IMBALANCE] > 0.1 * shown.step_s
    assert abs(seconds[LEFT]) < 1e-6 * shown.step_s


def test_what_does_not_occur_adds_nothing() -> None:
    run = run_of({"tp": 1, "pp": 1, "dp": 8})
    bars = {bar.cause: bar.seconds for bar in waterfall(run).bars}
    assert bars[LAUNCHES] == bars[RECOMPUTATION] == 0
    assert bars[OPTIMIZER] > 0
    assert bars[LEFT] == pytest.approx(0, abs=1e-6), "but for durations rounded to whole nanoseconds"


def test_messages_are_refused() -> None:
    stepwise = sim.Fidelity(collectives="stepwise", overlap="free")
    with pytest.raises(sim.UserError, match="every message"):
        waterfall(run_of({"tp": 2, "pp": 1, "dp": 4}, fidelity=stepwise))


@pytest.mark.parametrize("blocking", [False, True])
def test_slower_clocks_lengthen_kernels_and_not_their_launches(blocking: bool) -> None:
    """Where every kernel waits for its launch, that is a part of its time, but no part of what clocks add."""
    nothing = Overlaps(dp=False, pp=False, parameter_gather=False)
    framework = replace(sim.framework("torchtitan-2024"), launch_blocking=blocking, overlap=nothing)
    plan = sim.Plan(tp=2, pp=2, overlap=sim.Overlap(cp=False))
    run = scenario(small_model(hidden=4096, ffn_hidden=8192), plan=plan, framework=framework).simulate()
    without = Counterfactual(run)
    added_s = without.kernels_s([]) - without.kernels_s([SLOWER_CLOCKS])
    assert 0 < added_s == pytest.approx(run.sustained_clocks_s, rel=1e-4)
