"""The block of the summary that says where the time of a step goes."""

from __future__ import annotations

import pytest

import simulator as sim
from simulator.simulation.time_block import time_lines


@pytest.mark.parametrize(
    ("plan", "wait"),
    [
        (sim.Plan(pp=8, schedule="gpipe"), "ranks wait for other stages"),
        (sim.Plan(tp=8), "compute waits for tensor-parallel communication"),
    ],
)
def test_the_parts_are_the_step_and_the_largest_wait_is_named(plan: sim.Plan, wait: str) -> None:
    run = sim.simulate(sim.model("llama3-8b"), sim.cluster("dgx-h100", nodes=1), plan, sim.Job(2048, 8), allow_oom=True)
    *parts, (label, said) = time_lines(run.metrics, run.sustained_clocks_s, run.gpus)
    seconds = [float(text.split()[1].strip("<")) for name, text in parts if name[0] != "-"]
    assert sum(seconds) == pytest.approx(run.metrics.step_time_s, rel=1e-4)
    assert label == "largest wait"
    assert said.startswith(wait)
    assert len({text.index(" s  ") for _, text in parts}) == 1  # one column of one unit
    assert all(len(text) <= 120 for _, text in run.summary)


def test_nobody_waits_for_the_optimizer() -> None:
    """A single GPU waits for nothing: its optimizer is listed, and is no wait."""
    one = sim.cluster("dgx-h100", nodes=1, gpus_per_node=1)
    run = sim.simulate(sim.model("llama3.2-1b"), one, sim.Plan(), sim.Job(2048, 1), allow_oom=True)
    lines = dict(time_lines(run.metrics, None, 1))
    assert list(lines) == ["compute", "optimizer"]
