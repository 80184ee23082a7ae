"""Faults that were planted are named first, and every change that is proposed takes what was promised."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

import simulator as sim
from simulator.advise.explanation import Explanation, explain
from simulator.advise.neighbours import neighbours
from simulator.advise.remedies import changed
from simulator.simulation import runnable
from simulator.study.waterfall import BUBBLE
from simulator.study.without import IMBALANCE, LAUNCHES

from ..small_scenarios import scenario, small_cluster, small_model

ROOMY: dict[str, Any] = {"intra_node": "NVSwitch 10 TB/s"}
LARGE: dict[str, Any] = {"hidden": 4096, "heads": 32, "kv_heads": 8, "ffn_hidden": 14336}
JOB = sim.Job(sequence_length=2048, global_batch=32)


def explained(plan: sim.Plan, *slow: sim.Perturb, model: Any = None, cluster: Any = None, **more: Any) -> Explanation:
    given = scenario(
        model or small_model(**LARGE), cluster or small_cluster(2, **ROOMY), plan, more.pop("job", JOB), perturb=slow, **more
    )
    return explain(given.simulate())


PLANTED: list[tuple[str, str, dict[str, Any]]] = [
    ("a slow GPU", IMBALANCE, {"plan": sim.Plan(dp=8), "slow": sim.Perturb(rank=3, speed=0.4)}),
    ("few microbatches", BUBBLE, {"plan": sim.Plan(pp=8), "job": replace(JOB, global_batch=2)}),
    ("a slow NIC", "dp", {"plan": sim.Plan(dp=8), "cluster": small_cluster(2, inter_node="4x1 Gbit/s")}),
    ("slow NVLinks", "tp", {"plan": sim.Plan(tp=4, dp=2), "cluster": small_cluster(2, intra_node="NVSwitch 10 GB/s")}),
    (
        "launches of small kernels",
        LAUNCHES,
        {"plan": sim.Plan(dp=8), "model": small_model(hidden=64, heads=4, ffn_hidden=128),
         "job": replace(JOB, sequence_length=64), "framework": sim.framework("megatron-core-2025")},
    ),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cause", "given"), [(cause, given) for _, cause, given in PLANTED], ids=[name for name, _, _ in PLANTED]
)
def test_a_planted_fault_is_named_first(cause: str, given: dict[str, Any]) -> None:
    more = dict(given)
    slow = [more.pop("slow")] if "slow" in more else []
    found = explained(more.pop("plan"), *slow, **more)
    assert found.losses[0].cause == cause
    if slow:
        assert "rank 3" in found.losses[0].text


@pytest.mark.slow
def test_a_heavy_head_is_named_with_a_split_that_takes_what_was_promised() -> None:
    """A head of three layers' weight: the last stage is named, and the split that helps, to the nanosecond."""
    model = small_model(layers=16, hidden=1024, heads=8, kv_heads=8, ffn_hidden=2816, vocab=65536)
    plan = sim.Plan(pp=4, dp=1)
    found = explained(plan, model=model, cluster=small_cluster(1, **ROOMY), job=replace(JOB, global_batch=8))
    loss = next(loss for loss in found.losses if loss.cause == IMBALANCE)
    assert "stage 3 (4 layers and the head)" in loss.text
    split = next(change for change in found.changes if "plan.layout" in change.change)
    assert split.change["plan.layout"][-1] < 4
    assert loss.remedy == split.text
    assert changed(found.run.scenario, split.change).simulate().metrics.step_time_s == split.step_time_s  # type: ignore[attr-defined]
    assert split.step_time_s < found.run.metrics.step_time_s
    record = found.as_dict()
    assert [one["cause"] for one in record["losses"]] == [one.cause for one in found.losses]
    assert sum(bar["fraction"] for bar in record["waterfall"]) == pytest.approx(1, abs=1e-9)
    assert all(first.fraction >= second.fraction for first, second in zip(found.losses, found.losses[1:], strict=False))


@pytest.mark.slow
@pytest.mark.parametrize("settings", [[], ["plan.overlap.dp=false", "plan.overlap.tp=false", "plan.tp=2", "plan.dp=2"]])
def test_a_change_as_it_is_printed_makes_the_step_that_is_printed_with_it(settings: list[str]) -> None:
    name, base = "vocabulary-llama3-8b-8xh100", ["plan.vocabulary=baseline", "plan.pp=2"]
    given = runnable.load_one(name, [*base, *settings])
    found = neighbours(given.simulate(allow_oom=True))
    assert any("plan.overlap." in one.settings for one in found) == bool(settings)
    for one in found:
        json.dumps(one.as_dict())
        options = [word for word in one.settings.split() if word != "--set"]
        again = runnable.load_one(name, [*base, *settings, *options]).simulate()
        assert again.metrics.step_time_s == one.step_time_s, one.settings
