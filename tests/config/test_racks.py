"""Hints for plans that do not fit racks of 72 GPUs: degrees that divide, or a part of every rack."""

from __future__ import annotations

from typing import Any

import pytest

import simulator as sim
from simulator.config.feasible import check

MOE = {
    "layers": 8, "hidden": 2048, "heads": 16, "ffn_hidden": 8192, "vocab": 32000, "gated_mlp": True, "experts": 64,
    "experts_per_token": 8, "expert_ffn_hidden": 1024,
}  # fmt: skip
DENSE = {key: value for key, value in MOE.items() if "expert" not in key}


def refused(model: dict[str, Any], nodes: int, plan: dict[str, Any], batch: int = 9216, name: str = "gb200-nvl72") -> Any:
    with pytest.raises(sim.UserError) as told:
        checked(model, {"name": name, "nodes": nodes}, plan, batch)
    return told.value.faults[0].hint


def checked(model: dict[str, Any], cluster: dict[str, Any], plan: dict[str, Any], batch: int = 9216) -> Any:
    job = {"sequence_length": 4096, "global_batch": batch}
    return check(sim.scenario({"model": model, "cluster": cluster, "plan": plan, "job": job}))


@pytest.mark.parametrize(
    ("plan", "hint"),
    [
        ({"ep": 64}, "ep: 16, or ep: 64 with cluster.gpus_per_node: 64"),
        ({"ep": 72}, "ep: 16, or ep: 64 with cluster.gpus_per_node: 64"),
        ({"ep": 12}, "ep: 8"),
        ({"ep": 6}, "ep: 4"),
        ({"ep": 64, "pp": 2}, "ep: 8, or ep: 64 with cluster.gpus_per_node: 64"),
        ({"ep": 64, "tp": 2, "etp": 2}, "ep: 8, or ep: 64 with cluster.gpus_per_node: 64"),
    ],
)
def test_a_degree_of_experts_in_a_hint_divides_experts_and_ranks(plan: dict[str, Any], hint: str) -> None:
    """A hint was to take 72 in place of 64 once, and for 72 to take 64: neither runs on full racks."""
    assert refused(MOE, 2, plan) == hint
    degrees = {**plan, "ep": int(hint.partition(",")[0].removeprefix("ep: "))}
    checked(MOE, {"name": "gb200-nvl72", "nodes": 2}, degrees)
    if "gpus_per_node" in hint:
        part = {"name": "gb200-nvl72", "nodes": 2, "gpus_per_node": 64}
        assert checked(MOE, part, {**plan, "ep": 64}, 8192).cluster.gpus == 128


@pytest.mark.parametrize(
    ("nodes", "plan", "hint"),
    [
        (2, {"tp": 8, "pp": 8}, "a product of 48 or 72, or nodes: 8, or cluster.gpus_per_node: 64"),
        (2, {"tp": 8, "pp": 8, "dp": 2}, "nodes: 8 without dp, or cluster.gpus_per_node: 64"),
        (1, {"dp": 64}, "dp: 72, or leave it out, or cluster.gpus_per_node: 64"),
        (1, {"dp": 8}, "dp: 72, or leave it out"),
        (2, {"dp": 64}, "dp: 144, or leave it out"),
    ],
)
def test_a_part_of_every_rack_is_a_way_out_where_it_is_most_of_the_rack(nodes: int, plan: dict[str, Any], hint: str) -> None:
    assert refused(DENSE, nodes, plan) == hint


def test_nodes_whose_links_depend_on_the_number_of_gpus_are_not_cut() -> None:
    assert "gpus_per_node" not in refused(DENSE, 1, {"dp": 6}, name="dgx1-v100")
    assert "cluster.gpus_per_node: 6" in refused(DENSE, 1, {"dp": 6}, name="dgx-h100")
