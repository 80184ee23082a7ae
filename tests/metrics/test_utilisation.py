"""MFU, HFU and model flop/s, from flop, time and peak."""

from __future__ import annotations

import pytest

import simulator as sim
from simulator.units import TFLOP
from simulator.workload.learning import train_flop_per_token

from ..small_scenarios import scenario, small_cluster, small_model


@pytest.mark.parametrize("plan", [{"dp": 4}, {"pp": 4}, {"tp": 2, "dp": 2}])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_utilisation_is_flop_over_time_and_peak(plan: dict[str, int], recompute: str) -> None:
    """Without recomputation both count the same; repeated passes through the layers count in HFU only."""
    run = scenario(small_model(8), small_cluster(1), sim.Plan(**plan, recompute=recompute), sim.Job(128, 16, 1)).simulate()
    found, peak, job, model = run.metrics, run.scenario.cluster.gpu.peak("bf16"), run.scenario.job, run.scenario.model
    flop = job.tokens * train_flop_per_token(model, job)
    assert found.model_tflop_per_s_per_gpu * TFLOP == pytest.approx(flop / found.step_time_s / 4)
    assert found.mfu == pytest.approx(flop / found.step_time_s / 4 / peak)
    head = 6 * job.tokens * model.vocab * model.hidden
    repeated = (flop - head) / 3 if recompute == "full" else 0
    assert found.hfu == pytest.approx((flop + repeated) / found.step_time_s / 4 / peak, rel=0.01)
