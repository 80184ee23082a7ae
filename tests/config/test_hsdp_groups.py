"""`sharding: hsdp` as a word: its groups are the data-parallel ranks of a node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import simulator as sim

from ..commandline import trainsim

MODEL = {"layers": 8, "hidden": 1024, "heads": 16, "vocab": 32000}
SCENARIO = """\
model: {layers: 8, hidden: 1024, heads: 16, vocab: 32000}
cluster: {name: dgx-h100, nodes: 2}
plan: {tp: 2, sharding: hsdp}
job: {sequence_length: 1024, global_batch: 32}
"""


def ran(tmp_path: Path, *settings: str) -> Any:
    """What a run of the scenario says with some settings."""
    (tmp_path / "scenario.yaml").write_text(SCENARIO, encoding="utf-8")
    options = [word for setting in settings for word in ("--set", setting)]
    return trainsim("run", tmp_path / "scenario.yaml", "--json", *options).record


@pytest.mark.parametrize(
    ("settings", "group"),
    [
        ((), 4),
        (("plan.tp=1",), 8),
        (("plan.pp=2", "cluster.nodes=4"), 4),
        (("plan.pp=2", "plan.rank_order=tp-pp-dp"), 2),
        (("plan.cp=2",), 2),
        (("plan.tp=8", "plan.rank_order=dp-tp"), None),
        (("cluster.nodes=3", "job.global_batch=48", "plan.tp=4"), 2),
        (("cluster.nodes=1", "plan.placement=[0, 1, 2, 3, 4, 5, 6, 7]"), None),
        (("plan.tp=1", "plan.placement=[0,8,1,9,2,10,3,11,4,12,5,13,6,14,7,15]"), None),
        (("plan.tp=1", "plan.placement=[0,1,8,9,2,3,10,11,4,5,12,13,6,7,14,15]"), 2),
        (("plan.sharding={kind: hsdp, prefetch: 2}",), 4),
        (("plan.sharding={kind: hsdp, group: 2}",), 2),
    ],
)
def test_groups_are_the_ranks_that_share_a_node(settings: tuple[str, ...], group: int | None, tmp_path: Path) -> None:
    said = ran(tmp_path, *settings)
    assert said.get("scenario", {"plan": {"sharding": {"group": None}}})["plan"]["sharding"]["group"] == group
    if group:
        stated = ran(tmp_path, *settings, f"plan.sharding.group={group}", "plan.sharding.kind=hsdp")
        assert stated["step_time_s"] == said["step_time_s"]


@pytest.mark.parametrize(
    ("settings", "message", "hint"),
    [
        (("plan.tp=8", "cluster.nodes=4"), "no two data-parallel ranks share a node", "group: 2, or kind: fsdp"),
        (("plan.tp=8",), "no two data-parallel ranks share a node", "kind: fsdp"),
        (("cluster.nodes=1",), "all 4 data-parallel ranks share a node", "group: 2, or kind: fsdp"),
        (("plan.tp=8", "plan.pp=2"), "there is one data-parallel rank", "kind: fsdp"),
    ],
)
def test_where_nodes_give_no_groups_the_nearest_are_named(
    settings: tuple[str, ...], message: str, hint: str, tmp_path: Path
) -> None:
    said = ran(tmp_path, *settings)
    (fault,) = said["faults"]
    assert fault["message"] == f"plan.sharding.group: hsdp replicates the state across groups, and {message}"
    assert fault["hint"] == hint


def test_the_word_in_python_and_degrees_that_do_not_fit_the_gpus(tmp_path: Path) -> None:
    model, cluster = sim.model(MODEL), sim.cluster("dgx-h100", nodes=2)
    run = sim.simulate(model, cluster, sim.Plan(tp=2, sharding="hsdp"), sim.Job(sequence_length=1024, global_batch=32))
    assert run.scenario.plan.full_sharding.group == 4
    assert dict(run.summary)["plan"].endswith("hsdp in groups of 4")
    assert not any("hsdp" in fault["message"] for fault in ran(tmp_path, "plan.tp=3")["faults"])
