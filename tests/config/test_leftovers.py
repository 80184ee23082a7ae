"""Leftovers: a plan that was changed has no options without a use, and a plan that a person may state has none to begin with."""

from __future__ import annotations

from typing import Any

import pytest

import simulator as sim
from simulator.config import catalog, feasible
from simulator.config.leftovers import changed, completed, leftovers
from simulator.errors import UserError

SMALL: dict[str, Any] = {
    "model": {"layers": 16, "hidden": 1024, "heads": 8, "ffn_hidden": 2816, "vocab": 32768, "gated_mlp": True},
    "cluster": {"name": "dgx-h100", "nodes": 1},
    "job": {"sequence_length": 4096, "global_batch": 32},
}
EXPERTS = {**SMALL, "model": {**SMALL["model"], "experts": 8, "experts_per_token": 2, "expert_ffn_hidden": 704}}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "group": (
        SMALL, {"pp": 4, "schedule": "interleaved", "chunks": 2, "group": 4}, {"plan.schedule": "1f1b", "plan.chunks": 1},
        {"plan.group": None},
    ),
    "splits": (SMALL, {"pp": 4, "schedule": "seq-1f1b", "splits": 2}, {"plan.schedule": "1f1b"}, {"plan.splits": 1}),
    "memory limit": (
        SMALL, {"pp": 4, "schedule": "zb-auto", "memory_limit": 1.5}, {"plan.schedule": "zb-h1"}, {"plan.memory_limit": 1.0},
    ),
    "kind of cp": (SMALL, {"cp": 2, "cp_kind": "all-gather"}, {"plan.cp": 1}, {"plan.cp_kind": "ring"}),
    "mixed": (
        SMALL, {"cp": 4, "cp_kind": "mixed", "cp_ulysses": 2}, {"plan.cp": 1}, {"plan.cp_kind": "ring", "plan.cp_ulysses": None},
    ),
    "balance": (SMALL, {"cp": 2, "cp_balance": False}, {"plan.cp": 1}, {"plan.cp_balance": True}),
    "pieces": (SMALL, {"tp": 2, "overlap": {"tp": "decomposed"}}, {"plan.tp": 1}, {"plan.overlap.tp": None}),
    "vocabulary": (
        SMALL, {"pp": 4, "schedule": "1f1b", "vocabulary": "vocab-1"}, {"plan.pp": 1}, {"plan.vocabulary": "baseline"},
    ),
    "layout": (SMALL, {"pp": 4, "layout": [3, 4, 5, 4]}, {"plan.pp": 2}, {"plan.layout": "even"}),
    "routing": (
        EXPERTS, {"ep": 4, "moe": {"routing": "drawn", "seed": 3}}, {"plan.ep": 1},
        {"plan.moe.routing": "balanced", "plan.moe.seed": 0},
    ),
    "whole experts by DeepEP": (EXPERTS, {"ep": 4, "moe": {"dispatcher": "deepep"}}, {"plan.tp": 2}, {"plan.etp": 1}),
    "whole experts with rows of their own": (EXPERTS, {"ep": 4, "moe": {"routing": "drawn"}}, {"plan.tp": 2}, {"plan.etp": 1}),
    "no exchange by DeepEP": (
        EXPERTS, {"ep": 4, "moe": {"dispatcher": "deepep"}}, {"plan.ep": 1, "plan.tp": 2}, {"plan.moe.dispatcher": "alltoall"},
    ),
    "experts of ranks": (
        EXPERTS, {"ep": 4, "moe": {"routing": "drawn", "placement": [[0, 2], [1, 3], [4, 6], [5, 7]]}}, {"plan.ep": 8},
        {"plan.moe.placement": "contiguous"},
    ),
    "ranks of a node": (
        EXPERTS, {"ep": 8, "moe": {"dispatcher": "deepep", "node": 4}}, {"plan.ep": 2}, {"plan.moe.node": None},
    ),
    "nodes of a token": (
        {**EXPERTS, "cluster": {**EXPERTS["cluster"], "gpus_per_node": 2, "nodes": 8}},
        {"ep": 8, "moe": {"dispatcher": "deepep", "nodes_per_token": 2}}, {"plan.ep": 2}, {"plan.moe.nodes_per_token": None},
    ),
    "exchanges": (
        EXPERTS, {"ep": 4, "pp": 2, "schedule": "dualpipe-v", "overlap": {"ep": True}}, {"plan.ep": 1}, {"plan.overlap.ep": None},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_a_change_leaves_without_a_use_goes_back_to_its_default(name: str) -> None:
    base, plan, change, expected = CASES[name]
    given = sim.scenario({**base, "plan": plan})
    feasible.check(given)
    assert leftovers(given) == {}
    with pytest.raises(UserError):
        feasible.check(changed(given, change))
    whole = completed(given, change)
    assert whole == {**change, **expected}
    feasible.check(changed(given, whole))
    assert leftovers(changed(given, whole)) == {}


def test_what_the_change_states_stays() -> None:
    given = sim.scenario({**SMALL, "plan": {"cp": 2}})
    assert completed(given, {"plan.cp": 1, "plan.cp_kind": "all-gather"}) == {"plan.cp": 1, "plan.cp_kind": "all-gather"}


@pytest.mark.parametrize("name", sorted(catalog.files("scenarios")))
def test_a_scenario_that_ships_has_none(name: str) -> None:
    assert leftovers(sim.load(name)) == {}
