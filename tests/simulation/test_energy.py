"""Sustained clocks, limits of power and energy of whole steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulator as sim
from simulator.config import shipped_fits, step_constants
from simulator.costs.kernels import power
from simulator.errors import UserError
from simulator.simulation.energy import Energy
from simulator.simulation.runnable import RunnableScenario
from tests.small_scenarios import scenario, small_cluster, small_model

LARGE = small_model(4, hidden=4096, heads=32, kv_heads=8, ffn_hidden=14336)
JOB = sim.Job(sequence_length=2048, global_batch=16, dtype="bf16")
BURST = sim.Fidelity(power="burst")
KERNELS = sim.Fidelity(calibration="kernels")


def large(tdp_w: float = 700.0, fidelity: sim.Fidelity | None = None, gpu: str = "h100", **job: Any) -> RunnableScenario:
    cluster = small_cluster(gpu=gpu)
    cluster = replace(cluster, gpu=replace(cluster.gpu, tdp_w=tdp_w or cluster.gpu.tdp_w))
    return scenario(LARGE, cluster, sim.Plan(tp=2, pp=2), replace(JOB, **job), fidelity=fidelity or sim.Fidelity())


def test_t21_1_steps_are_sustained_unless_they_are_asked_for_bursts() -> None:
    sustained, burst = large().simulate(), large(fidelity=BURST).simulate()
    assert large().fidelity.power == "sustained"
    assert 1.03 < sustained.metrics.step_time_s / burst.metrics.step_time_s < 1.25
    assert (sustained.as_dict()["scenario"]["fidelity"]["power"], burst.as_dict()["scenario"]["fidelity"]["power"]) == (
        "sustained",
        "burst",
    )
    for mine, theirs in zip(sustained.kernel_costs, sorted(burst.kernel_costs, key=lambda c: c.name), strict=False):
        assert mine.over_burst >= 1
        assert theirs.over_burst == 1
    assert all(cost.over_burst == 1 for cost in sustained.kernel_costs if " bytes each" in cost.shape)


def test_t21_9_one_factor_on_arithmetic_was_fitted_to_steps() -> None:
    usual, alone = large().simulate(), large(fidelity=KERNELS).simulate()
    factor = step_constants.arithmetic()
    assert factor > 1
    before_s = {(cost.name, cost.shape, cost.ranks): cost.seconds_each for cost in alone.kernel_costs}
    for cost in usual.kernel_costs:
        longer = 1 if " bytes each" in cost.shape else factor
        assert cost.seconds_each == pytest.approx(before_s[cost.name, cost.shape, cost.ranks] * longer, rel=1e-12)
    said = dict(usual.summary)["calibration"]
    assert said.startswith(f"{factor - 1:+.1%} on arithmetic")
    assert "calibration" not in dict(alone.summary)


def test_t21_10_kernels_have_the_pace_of_the_slowest_board() -> None:
    """More boards never quicken a kernel, only arithmetic changes, and only at sustained clocks; a GPU alone is as measured."""
    alike = sim.Fidelity(boards="alike")
    usual, same = large().simulate(), large(fidelity=alike).simulate()
    before_s = {(cost.name, cost.shape, cost.ranks): cost.seconds_each for cost in same.kernel_costs}
    for cost in usual.kernel_costs:
        now_s, then_s = cost.seconds_each, before_s[cost.name, cost.shape, cost.ranks]
        assert now_s == then_s if " bytes each" in cost.shape else now_s > then_s
    bursts = [large(fidelity=replace(how, power="burst")).simulate().metrics.step_time_s for how in (alike, sim.Fidelity())]
    assert bursts[0] == bursts[1]
    single = small_cluster(1, gpus_per_node=1)
    alone = [scenario(LARGE, single, sim.Plan(), JOB, fidelity=how) for how in (sim.Fidelity(), alike)]
    one, other = (run.simulate(allow_oom=True) for run in alone)
    assert one.metrics.step_time_s == other.metrics.step_time_s
    assert "sustained clocks of the slowest of 8 boards" in dict(usual.summary)["- clocks"]
    assert "sustained clocks of the board" in dict(one.summary)["- clocks"]


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_t21_10_more_boards_have_a_slower_one(few: int, more: int) -> None:
    few, more = sorted((few, more))
    assert 1 == power.slowest(1) <= power.slowest(few) <= power.slowest(more)


@pytest.mark.parametrize("boards", [2, 8, 64, 1024])
def test_t21_10_the_slowest_of_many_is_the_mean_of_the_slowest_drawn(boards: int) -> None:
    drawn = np.random.default_rng(boards).standard_normal((4000, boards)).max(axis=1)
    assert 1 + power.BOARD_SPREAD * drawn.mean() == pytest.approx(power.slowest(boards), abs=0.02)


def test_t21_4_what_sustained_clocks_add() -> None:
    run, burst = large().simulate(), large(fidelity=BURST).simulate()
    added_s = run.metrics.busy_s - burst.metrics.busy_s
    assert run.sustained_clocks_s == pytest.approx(added_s, rel=0.01)
    (said,) = (text for label, text in run.summary if label == "- clocks")
    assert said.split()[0] == f"{run.sustained_clocks_s / run.metrics.step_time_s:.1%}"
    assert run.as_dict()["sustained_clocks_s"] == run.sustained_clocks_s
    assert burst.sustained_clocks_s == 0
    assert "- clocks" not in dict(burst.summary)


def test_t21_4_what_sustained_clocks_add_on_slower_ranks_and_without_the_optimizer() -> None:
    """Every rank at half its speed, with an optimizer of products, which are slower at sustained clocks too."""
    job = replace(large().job, optimizer=sim.Optimizer(kind="muon"))
    half = tuple(sim.Perturb(rank=rank, speed=0.5) for rank in range(large().cluster.gpus))
    for perturb in ((), half, half[:1]):
        runs = [replace(of, job=job, perturb=perturb).simulate() for of in (large(), large(fidelity=BURST))]
        added_s = runs[0].metrics.busy_s - runs[1].metrics.busy_s
        assert runs[0].sustained_clocks_s == pytest.approx(added_s, rel=0.01)
        assert runs[0].metrics.optimizer_s > 1.01 * runs[1].metrics.optimizer_s


def test_t21_4_clocks_and_t21_5_energy_at_speeds_that_change() -> None:
    """A perturbation that lasts throughout is a constant one, one after the step is none, and half of a step is in between."""

    def found(*perturb: sim.Perturb) -> tuple[float, float]:
        run = replace(large(), perturb=perturb).simulate(steps=1)
        assert isinstance(run.energy, Energy)
        return run.sustained_clocks_s, run.energy.joules_per_step

    slow = sim.Perturb(rank=0, speed=0.5)
    step_s = replace(large(), perturb=(slow,)).simulate(steps=1).metrics.step_time_s
    always, never = found(slow), found()
    assert found(replace(slow, from_s=0.0, until_s=100.0)) == pytest.approx(always, rel=1e-6)
    assert found(replace(slow, from_s=100.0)) == pytest.approx(never, rel=1e-12)
    for half, whole, none in zip(found(replace(slow, until_s=step_s / 2)), always, never, strict=True):
        assert none < half < whole


@pytest.mark.parametrize("fidelity", [sim.Fidelity(), BURST])
def test_a_limit_that_an_idle_board_draws_is_refused(fidelity: sim.Fidelity) -> None:
    with pytest.raises(sim.UserError, match="122 W is no more than the 122 W of an idle board"):
        large(122.0, fidelity).simulate()


def test_lower_limits_make_steps_longer_but_not_bursts() -> None:
    times = [large(tdp_w).simulate().metrics.step_time_s for tdp_w in (300, 500, 700)]
    assert times[0] > times[1] > times[2]
    without = large(500.0, BURST).simulate()
    usual = large(fidelity=BURST).simulate()
    assert (without.metrics, without.energy) == (usual.metrics, usual.energy)
    assert any("cluster.gpu.tdp: 500 W has no effect, a burst is too short for it" in note for note in without.notes)


def test_a_memory_bound_step_hardly_notices_a_lower_clock() -> None:
    narrow = small_model(1, hidden=1024, heads=8, kv_heads=8, ffn_hidden=1024, vocab=65536)
    job = sim.Job(sequence_length=64, global_batch=8)  # Adam and weights that are read take most of it

    def step_s(tdp_w: float) -> float:
        cluster = small_cluster(1)
        return (
            scenario(narrow, replace(cluster, gpu=replace(cluster.gpu, tdp_w=tdp_w)), sim.Plan(), job, fidelity=KERNELS)
            .simulate()
            .metrics.step_time_s
        )

    assert step_s(700) <= step_s(500) < 1.02 * step_s(700)


@pytest.mark.parametrize(("gpu", "tdp_w"), [("a100-80gb", 0), ("h100", 0), ("h100", 500), ("b200", 0)])
def test_t21_5_energy_is_power_times_time(gpu: str, tdp_w: float) -> None:
    run = large(tdp_w, gpu=gpu).simulate(allow_oom=True)
    energy, step_s, on = run.energy, run.metrics.step_time_s, run.scenario.cluster.gpu
    assert isinstance(energy, Energy)
    assert energy.joules_per_step == pytest.approx(energy.mean_w * step_s * run.gpus)
    assert energy.joules_per_token == pytest.approx(energy.joules_per_step / run.scenario.job.tokens)
    assert shipped_idle_w(gpu) < energy.mean_w < on.tdp_w
    assert run.as_dict()["energy"]["mean_w"] == energy.mean_w
    assert energy.line in dict(run.summary)["energy"]


@pytest.mark.parametrize("speed", [0.5, 2.0, 10.0])
def test_t21_5_no_gpu_draws_more_than_its_limit_at_any_speed(speed: float) -> None:
    """A quicker kernel has less time in which to draw it; a slower one has more, up to what its flop and bytes take."""
    of, every = large(350.0), tuple(sim.Perturb(rank=rank, speed=speed) for rank in range(8))
    at_full, run = of.simulate(), replace(of, perturb=every).simulate()
    one, other = at_full.energy, run.energy
    assert isinstance(one, Energy)
    assert isinstance(other, Energy)
    assert other.mean_w <= run.scenario.cluster.gpu.tdp_w
    idle_j, step_s = shipped_idle_w("h100") * run.gpus, run.metrics.step_time_s
    busy_j, at_full_j = other.joules_per_step - idle_j * step_s, one.joules_per_step - idle_j * at_full.metrics.step_time_s
    assert (busy_j > 1.001 * at_full_j) == (speed < 1)


def shipped_idle_w(gpu: str) -> float:
    return {"a100-80gb": 90.0, "h100": 122.0, "b200": 200.0}[gpu]


def test_t21_5_a_kernel_adds_its_flop_and_bytes_up_to_the_limit() -> None:
    h100 = shipped_fits.gpu("h100")
    assert power.pj_per_flop(h100, "bf16") == power.pj_per_flop(h100, "fp16") == 0.79
    assert power.added_j(h100, 1e12, 1e9, 10.0) == pytest.approx(1.0 + 0.14)
    assert power.added_j(h100, 1e15, 1e9, 1.0) == 578.0
    for gpu, dtype, why in (("l40s", "bf16", "sm_89"), ("h100", "fp32", "fp32"), ("mi300x", "bf16", "gfx942")):
        assert why in power.no_energy(shipped_fits.gpu(gpu), dtype)
    run = large(gpu="l40s", tdp_w=0).simulate(allow_oom=True)
    assert run.energy == "the power of sm_89 is not known"
    assert dict(run.summary)["energy"] == "not known: the power of sm_89 is not known"
    assert run.as_dict()["energy"] == {"unknown": run.energy}


def test_t21_5_energy_of_a_flop_by_generation_and_format() -> None:
    stated = {
        "a100-80gb": {"bf16": 1.2},
        "h100": {"bf16": 0.79, "fp8": 0.44},
        "b200": {"bf16": 0.59, "fp8": 0.34, "mxfp8": 0.34, "nvfp4": 0.26},
    }
    for gpu, formats in stated.items():
        assert {dtype: power.pj_per_flop(shipped_fits.gpu(gpu), dtype) for dtype in formats} == formats


def test_t21_6_energy_of_a_whole_run() -> None:
    run = large(total_tokens=2**40, price_per_kwh=0.1, pue=1.3).simulate()
    whole, energy = run.whole_run, run.energy
    assert whole is not None
    assert whole.kwh is not None
    assert isinstance(energy, Energy)
    assert whole.kwh == pytest.approx(1.3 * whole.steps * energy.joules_per_step / 3.6e6)
    assert whole.energy_cost == pytest.approx(0.1 * whole.kwh)
    assert "kWh" in dict(run.summary)["its energy"]
    plain = large(total_tokens=2**40).simulate().whole_run
    assert plain is not None
    assert plain.kwh is not None
    assert plain.kwh == pytest.approx(whole.kwh / 1.3)
    assert plain.energy_cost is None
    unknown = large(gpu="l40s", tdp_w=0, total_tokens=2**40).simulate(allow_oom=True).whole_run
    assert unknown is not None
    assert unknown.kwh is None
    with pytest.raises(UserError, match=r"job\.price_per_kwh: there is no energy, the power of sm_89 is not known"):
        large(gpu="l40s", tdp_w=0, total_tokens=2**40, price_per_kwh=0.1).simulate(allow_oom=True)
    with pytest.raises(UserError, match=r"cluster\.gpu\.tdp: 250 W is not between 300 and 1,400 W"):
        large(250.0).simulate()
    assert large(250.0, BURST).simulate().metrics
