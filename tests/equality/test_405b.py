"""Once, the real thing: Llama-3.1 405B on 1,024 GPUs, every rank simulated, against its sixteen classes."""

from __future__ import annotations

import pytest

import simulator as sim

from ..small_scenarios import both, bound_twice, scenario


@pytest.mark.slow
def test_every_task_of_405b_on_1024_gpus() -> None:
    plan = sim.Plan(tp=8, pp=16, dp=8, chunks=4, schedule="interleaved", sharding="zero1")
    job = sim.Job(sequence_length=8192, global_batch=16 * 8)
    result = both(*bound_twice(scenario(sim.model("llama3-405b"), sim.cluster("dgx-h100", nodes=128), plan, job)))
    assert len(result.whole.graph) > 3_000_000
    assert result.classes == 16
    result.assert_equal()
