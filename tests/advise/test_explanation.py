"""Every change that is proposed takes what was promised, and the splits around a pipeline's are all tried."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

import simulator as sim
from simulator.advise.candidates import candidate
from simulator.advise.explanation import explain
from simulator.advise.neighbours import neighbours
from simulator.advise.shown_parts import listed
from simulator.advise.splits import Splits
from simulator.config.leftovers import changed
from simulator.simulation import runnable
from simulator.study.without import IMBALANCE


def test_a_run_explains_itself() -> None:
    run = sim.scenario(
        {
            "model": {"name": "small", "layers": 4, "hidden": 512, "heads": 8, "ffn_hidden": 2048, "vocab": 1000},
            "cluster": {"name": "dgx-h100", "nodes": 1},
            "plan": {"pp": 4, "tp": 2},
            "job": {"sequence_length": 512, "global_batch": 8},
        }
    ).simulate()
    told = run.explain()
    assert told.as_dict() == sim.explain(run).as_dict()
    assert sum(bar["fraction"] for bar in told.as_dict()["waterfall"]) == pytest.approx(1, abs=1e-9)


def test_the_layers_of_many_stages_are_written_in_a_line() -> None:
    counts = (1, *[2] * 30, 3, *[2] * 31, 1)
    text = Splits(63, 0, counts, 1.01, None).text(1.0)
    assert text.endswith("none makes the step shorter; with [1] + [2] * 30 + [3] + [2] * 31 + [1] it is 1.00% longer")
    assert "[1,2,3] is the best" in Splits(6, 0, (1, 2, 3), 0.9, None).text(1.0)


def test_a_change_has_the_sharding_that_the_framework_chooses_for_it() -> None:
    """The plan has one replica, which shards nothing; half the tensor parallelism makes two, whose state nemo divides."""
    given: dict[str, Any] = {
        "model": {"name": "small", "layers": 8, "hidden": 4096, "heads": 32, "ffn_hidden": 16384, "vocab": 32000},
        "cluster": {"name": "dgx-h100", "nodes": 1},
        "plan": {"tp": 8},
        "job": {"sequence_length": 512, "global_batch": 16},
        "framework": "nemo-2024",
    }
    run = sim.scenario(given).simulate()
    change = next(one for one in neighbours(run)[0] if one.change == {"plan.tp": 4})
    written = sim.scenario({**given, "plan": {"tp": 4}}).simulate()
    assert written.scenario.plan.full_sharding.kind == "zero1"
    assert change.step_time_s == written.metrics.step_time_s
    assert change.more_bytes == written.peak_memory_bytes - run.peak_memory_bytes


def test_changes_are_measured_as_the_run_was() -> None:
    given = sim.scenario(
        {
            "model": {"name": "small", "layers": 8, "hidden": 1024, "heads": 8, "ffn_hidden": 4096, "vocab": 32000},
            "cluster": {"name": "dgx-h100", "nodes": 1},
            "plan": {"pp": 4, "tp": 2, "optimizer": "post-validated", "schedule": "zb-h1"},
            "job": {"sequence_length": 2048, "global_batch": 16},
        }
    )
    found = neighbours(given.simulate(steps=1))[0]
    assert found
    for one in found[:2]:
        again = runnable.runnable(changed(given, one.change)).simulate(steps=1)
        assert one.step_time_s == again.metrics.step_time_s


MIXTURE: dict[str, Any] = {
    "model": {
        "name": "small", "layers": 4, "hidden": 1024, "heads": 8, "ffn_hidden": 4096, "vocab": 32000, "gated_mlp": True,
        "experts": 16, "experts_per_token": 2, "expert_ffn_hidden": 1024,
    },
    "cluster": {"name": "dgx-h100", "nodes": 2},
    "job": {"sequence_length": 2048, "global_batch": 32},
}  # fmt: skip


@pytest.mark.parametrize(
    ("plan", "change"),
    [({"ep": 16}, {"plan.ep": 8}), ({"ep": 16}, {"plan.overlap.ep": True}), ({"tp": 2, "ep": 4}, {"plan.etp": 1})],
)
def test_other_experts_on_a_gpu_and_exchanges_beside_compute_are_tried(plan: dict[str, Any], change: dict[str, Any]) -> None:
    """Experts over two nodes that fit into one, tensor-parallel experts of a narrow model, and exchanges that nothing hides."""
    found = next(one for one in neighbours(sim.scenario({**MIXTURE, "plan": plan}).simulate())[0] if one.fields == change)
    assert found.addresses == "ep"
    (name, value), overlaps = next(iter(change.items())), "plan.overlap.ep" in change
    written = {**plan, "overlap": {"ep": True}} if overlaps else {**plan, name.removeprefix("plan."): value}
    assert found.step_time_s == sim.scenario({**MIXTURE, "plan": written}).simulate().metrics.step_time_s


def test_a_plan_in_words_says_how_gpus_divide_an_expert() -> None:
    words = [candidate(sim.scenario({**MIXTURE, "plan": {"tp": 2, "ep": 4, **etp}})) for etp in ({}, {"etp": 2}, {"etp": 1})]
    assert [one.words for one in words if one] == ["tp 2 x dp 8, ep 4", "tp 2 x dp 8, ep 4", "tp 2 x dp 8, ep 4, etp 1"]


@pytest.mark.slow
def test_a_head_of_three_layers_is_named_with_a_split_that_takes_what_was_promised() -> None:
    """Gemma 7B: 28 layers, and a vocabulary of 256,000, whose head has the parameters of 2.8 layers. To the nanosecond."""
    given = sim.scenario(
        {
            "model": "gemma-7b",
            "cluster": {"name": "dgx-h100", "nodes": 1},
            "plan": {"pp": 4, "sharding": "zero1"},
            "job": {"sequence_length": 2048, "global_batch": 32},
        }
    )
    found = explain(given.simulate())
    loss = next(loss for loss in found.losses if loss.cause == IMBALANCE)
    assert "stage 3 (7 layers and the head) on rank 6" in loss.text
    assert "; the head takes " in loss.text
    split = next(change for change in found.changes if "plan.layout" in change.change)
    assert split.change["plan.layout"][-1] in (4, 5)
    assert loss.remedy == split.text
    again = runnable.runnable(changed(given, split.change)).simulate()
    assert again.metrics.step_time_s == split.step_time_s < found.run.metrics.step_time_s
    assert found.splits
    assert found.splits.neighbouring + found.splits.too_large == 4 * 3
    assert found.splits.best == (split.change["plan.layout"], split.step_time_s)
    record = found.as_dict()
    assert [one["cause"] for one in record["losses"]] == [one.cause for one in found.losses]
    assert sum(bar["fraction"] for bar in record["waterfall"]) == pytest.approx(1, abs=1e-9)
    assert all(first.fraction >= second.fraction for first, second in zip(found.losses, found.losses[1:], strict=False))


@pytest.mark.slow
def test_of_70b_on_8_stages_every_neighbouring_split_is_tried_and_the_best_is_named_however_little_it_gains() -> None:
    given = sim.scenario(
        {
            "model": "llama3-70b",
            "cluster": {"name": "dgx-h100", "nodes": 8},
            "plan": {"tp": 4, "pp": 8, "sharding": "zero1"},
            "job": {"sequence_length": 8192, "microbatch_size": 1, "global_batch": 256},
            "framework": "megatron-core-2025",
        }
    )
    found = explain(given.simulate(), long=True)
    loss = next(loss for loss in found.losses if loss.cause == IMBALANCE)
    assert "stage 7 (10 layers and the head) on rank 56" in loss.text
    assert re.search(r"; the head takes [0-9.]+ s$", loss.text)
    assert found.splits
    assert found.splits.neighbouring + found.splits.too_large == 8 * 7
    assert found.splits.too_large <= 7, "only stage 0, which keeps most activations, has no room for one more layer"
    gained = 1 - found.splits.step_time_s / found.run.metrics.step_time_s
    assert 0 < gained < 0.05
    assert f"is the best: the step is {gained:.2%} shorter" in found.splits.text(found.run.metrics.step_time_s)
    again = runnable.runnable(changed(given, {"plan.layout": found.splits.counts})).simulate()
    assert again.metrics.step_time_s == found.splits.step_time_s


@pytest.mark.slow
@pytest.mark.parametrize("settings", [[], ["plan.overlap.dp=false", "plan.overlap.tp=false", "plan.tp=2", "plan.dp=2"]])
def test_a_change_as_it_is_printed_makes_the_step_that_is_printed_with_it(settings: list[str]) -> None:
    name, base = "vocabulary-llama3-8b-8xh100", ["plan.vocabulary=baseline", "plan.pp=2"]
    given = runnable.load_one(name, [*base, *settings])
    found, _ = neighbours(given.simulate(allow_oom=True))
    assert any("plan.overlap." in one.settings for one in found) == bool(settings)
    for one in found:
        json.dumps(one.as_dict())
        options = [word for word in one.settings.split() if word != "--set"]
        again = runnable.load_one(name, [*base, *settings, *options]).simulate()
        assert again.metrics.step_time_s == one.step_time_s, one.settings


def test_what_is_listed_names_stages_and_how_many_more_there_are() -> None:
    assert listed([(f"stage {n}", 0.001 * (9 - n)) for n in range(7)]).startswith("stage 0: 9.000 ms, stage 1: 8.000 ms, ")
    assert listed([(f"stage {n}", 0.001 * (9 - n)) for n in range(7)]).endswith(", stage 4: 5.000 ms, and 2 more")
    assert listed([("stage 0", 1.0)]) == "stage 0: 1.000 s"
