"""The costs of a run's kernels: they add up to the time that its ranks compute, and their errors to its band."""

from __future__ import annotations

import pytest

import simulator as sim

from ..commandline import trainsim
from ..house import scenario, small_cluster


@pytest.mark.parametrize("plan", [sim.Plan(tp=2, pp=2, dp=1), sim.Plan(tp=1, pp=4, schedule="zb-h1"), sim.Plan(tp=4)])
def test_costs_add_up_to_the_time_at_work(plan: sim.Plan) -> None:
    run = scenario(plan=plan, cluster=small_cluster(1)).simulate()
    total_s = sum(cost.seconds for cost in run.kernel_costs) / run.program.ranks
    rows = run.timeline.to_pandas()
    computing = rows[rows.stream == "compute"]
    assert total_s == pytest.approx((computing.end_ns - computing.start_ns).sum() / 1e9 / run.gpus, rel=1e-4)
    low, high = run.step_time_interval_s
    assert low < run.metrics.step_time_s < high
    assert high - run.metrics.step_time_s < run.metrics.busy_s


def test_costs_on_the_command_line() -> None:
    said = trainsim("run", "llama3-70b-64xh100", "--costs")
    assert "mlp_up.wgrad" in said.out
    assert "measured" in said.out
    record = trainsim("run", "llama3-70b-64xh100", "--costs", "--json").record
    assert {"name", "calls", "seconds", "model", "provenance", "sigma"} <= set(record["costs"][0])
    low, high = record["step_time_interval_s"]
    assert low < record["step_time_s"] < high
