"""The critical path of a step is as long as the step, and goes through what is slow."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simulator as sim
from simulator.study.critical_path import critical_path

from ..small_scenarios import scenario, small_cluster, small_model


def run_of(plan: dict[str, Any], *slow: sim.Perturb, **options: Any) -> sim.Run:
    chosen = sim.Plan(**plan)
    gpus = chosen.tp * chosen.pp * (chosen.dp or 1)
    job = sim.Job(sequence_length=128, global_batch=8)
    more = {"framework": options.pop("framework", sim.framework("none"))}
    return scenario(small_model(layers=4), small_cluster(gpus // 4), chosen, job, perturb=slow, **more).simulate(**options)


@settings(max_examples=12)
@given(st.data())
def test_its_length_is_the_measured_window(data: st.DataObject) -> None:
    """To the nanosecond, whether steps run into each other or not, from a standing start or not; without a gap."""
    tp, pp = data.draw(st.sampled_from([(1, 1), (2, 2), (1, 4), (4, 1)]))
    plan = {
        "tp": tp, "pp": pp, "dp": 8 // tp // pp,
        "schedule": data.draw(st.sampled_from(["1f1b", "gpipe", "zb-h1"])),
        "sharding": data.draw(st.sampled_from(["none", "zero1"])),
        "optimizer": data.draw(st.sampled_from(["synchronised", "post-validated"])),
    }  # fmt: skip
    slow = [sim.Perturb(rank=data.draw(st.integers(0, 7)), speed=0.5)] if data.draw(st.booleans()) else []
    framework = sim.framework(data.draw(st.sampled_from(["none", "megatron-core-2025"])))
    run = run_of(plan, *slow, framework=framework, steps=data.draw(st.sampled_from([None, None, 2])))
    path = critical_path(run)
    assert path.length_ns == run.observation.window_ns[run.observation.window.end_ns.argmax()]
    assert all(one.until_ns == next_.from_ns for one, next_ in pairwise(path.segments))
    assert sum(path.by_category.values()) * path.steps == pytest.approx(path.length_ns * 1e-9)


def test_it_goes_through_the_stage_of_a_slow_rank() -> None:
    path = critical_path(run_of({"tp": 1, "pp": 4, "dp": 1}, sim.Perturb(rank=2, speed=0.25)))
    assert next(iter(path.by(lambda segment: segment.stage))) == 2


def test_where_every_rank_has_its_own_rows_segments_are_single_operations() -> None:
    """Rows of such ranks are merged for the simulation; the path tells them apart again."""
    model = small_model(layers=4, experts=8, experts_per_token=2, expert_ffn_hidden=256)
    plan = sim.Plan(ep=4, dp=8, moe=sim.Moe(routing="drawn"))
    run = scenario(model, small_cluster(2), plan, sim.Job(sequence_length=128, global_batch=16)).simulate()
    path = critical_path(run)
    assert path.length_ns == run.observation.window_ns.max()
    assert any("expert" in segment.op for segment in path.segments)
