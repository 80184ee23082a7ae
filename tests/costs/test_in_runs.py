"""The costs of a run's kernels: they add up to the time that its ranks compute, and their errors to its band."""

from __future__ import annotations

import pytest

import simulator as sim
from simulator.study.band import SPREADS, band_s
from simulator.study.kernel_costs import OpCost
from simulator.study.load import load_one as load

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


def test_collectives_take_alone_what_the_list_says() -> None:
    run = load("llama3-70b-64xh100", ["fidelity.collectives=closed", "job.global_batch=8"]).simulate()
    rows = run.timeline.to_pandas([0])
    gathers = rows[(rows.stream == "tp") & (rows.kind == "all_gather")]
    (cost,) = (cost for cost in run.collective_costs if cost.name == "tp all_gather")
    assert ((gathers.end_ns - gathers.start_ns) / 1e9).tolist() == pytest.approx([cost.seconds_each] * len(gathers), abs=1.001e-9)
    assert cost.provenance == "interpolated"


def test_the_band_holds_what_is_waited_for_and_nothing_else() -> None:
    def cost(sigma: float, axis: str = "") -> OpCost:
        return OpCost("one", "", 1, 1.0, 1.0, "model", "measured", sigma, False, axis)

    def width_s(sigma: float, exposed_s: float) -> float:
        low, high = band_s(10.0, [cost(0.1)], [cost(sigma, "tp")], {"tp": exposed_s}, 1)
        assert (low + high) / 2 == pytest.approx(10.0)
        return high - low

    assert width_s(0.3, 0.0) == pytest.approx(2 * SPREADS * 0.1)
    assert width_s(0.3, 2.0) == pytest.approx(2 * SPREADS * (0.1**2 + 0.6**2) ** 0.5)
    assert width_s(0.1, 2.0) < width_s(0.3, 2.0)
