"""Recomputation of listed operators whose result passes through collectives, or is a part of what attention keeps.

Sentence 12.12 and 12.13 of the second half of docs/semantics.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import simulator as sim
from simulator.config import feasible
from simulator.errors import UserError
from simulator.program.operations import AnyOp, Collective, Purpose
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.simulate import layout_of, program_of

from ..small_scenarios import scenario, small_cluster, small_model

LAYERS, HIDDEN, HEADS, KV_HEADS, DEPTH, TOKENS, WIDTH = 2, 512, 8, 4, 64, 256, 2
EXPERTS = {"experts": 8, "experts_per_token": 2, "expert_ffn_hidden": 512}
LATENT = {
    "kv_heads": 8, "head_dim": 48, "rope_head_dim": 16, "value_head_dim": 32, "kv_lora_rank": 128, "q_lora_rank": 96,
}  # fmt: skip


def of(ops: tuple[str, ...], plan: dict[str, Any], framework: Any = "none", dtype: Any = "bf16", **model: Any) -> Scenario:
    chosen = sim.Plan(**plan, recompute=sim.Recompute(ops=ops) if ops else "none")
    gpus = chosen.tp * chosen.pp * chosen.cp * (chosen.dp or 1)
    cluster = small_cluster(max(1, gpus // 4), gpus_per_node=min(4, gpus))
    software = sim.framework(framework) if isinstance(framework, str) else framework
    job = sim.Job(sequence_length=TOKENS * chosen.cp, global_batch=4 * (chosen.dp or 1), dtype=dtype)
    return scenario(small_model(LAYERS, **model), cluster, chosen, job, framework=software)


def layer_of(of: Scenario, phase: str) -> list[AnyOp]:
    """The operations of the first layer of a stage, in its first slot of a kind."""
    program = program_of(of, 1, layout_of(of))
    body = next(program.bodies[step.body] for step in program.orders[0] if step.phase == phase)
    return [op for op in body.ops if op.layer == 0]


def again(of: Scenario, phase: str = "B") -> list[AnyOp]:
    return [op for op in layer_of(of, phase) if op.purpose is Purpose.RECOMPUTE]


def repeated(of: Scenario) -> list[str]:
    """The repeated operations of a layer: names of kernels, and kinds of collectives."""
    return [op.kind if isinstance(op, Collective) else op.name.removesuffix(".again") for op in again(of)]


def saved(ops: tuple[str, ...], *args: Any, **model: Any) -> int:
    """Bytes that the forward pass of a layer no longer holds; the repetition holds as many."""
    without, listed = (sum(op.held_bytes for op in layer_of(of(which, *args, **model), "F")) for which in ((), ops))
    assert sum(op.held_bytes for op in again(of(ops, *args, **model))) == without - listed
    return without - listed


ROWS = 2 * TOKENS * HIDDEN * WIDTH
"""Bytes of the rows that the experts of a rank have, under an even load."""


@pytest.mark.parametrize(("ep", "dispatcher", "ways"), [(8, "alltoall", 1), (4, "alltoall", 1), (8, "deepep", 2)])
def test_t12_12_rows_that_came_from_other_ranks_come_again(ep: int, dispatcher: Any, ways: int) -> None:
    plan = {"ep": ep, "dp": 8, "moe": sim.Moe(dispatcher=dispatcher)}
    names, router = ("top_k", "permute"), TOKENS * EXPERTS["experts"] * 4
    assert saved(names, plan, **EXPERTS) == ROWS + router
    chosen = of(names, plan, **EXPERTS)
    sort = ["0.expert_up.sort"] * (ep < EXPERTS["experts"] and ways != 2)
    assert [name for name in repeated(chosen) if not name.endswith("arrival")] == [
        "0.top_k", "0.permute", "all_gather", *["alltoall"] * ways, *sort,
    ]  # fmt: skip
    assert chosen.simulate().metrics.step_time_s > of((), plan, **EXPERTS).simulate().metrics.step_time_s


def test_t12_12_what_is_behind_two_ways_waits_for_both() -> None:
    plan = {"ep": 8, "dp": 8, "moe": sim.Moe(dispatcher="deepep")}
    ops = layer_of(of(("top_k", "permute"), plan, **EXPERTS), "B")
    ways = {op.name for op in ops if op.purpose is Purpose.RECOMPUTE and isinstance(op, Collective) and op.kind == "alltoall"}
    (wait,) = (op for op in ops if op.purpose is Purpose.RECOMPUTE and op.name.endswith("arrival"))
    assert ways == set(wait.after or ())
    following = ops[ops.index(wait) + 1]
    assert following.after is None
    assert following.operator == "0.expert_up"


def test_t12_12_operators_on_both_sides_of_the_way_to_experts_are_repeated_in_order() -> None:
    names = ("top_k", "permute", "expert_up")
    chosen = of(names, {"ep": 4, "dp": 8}, **EXPERTS)
    order = ["0.top_k", "0.permute", "all_gather", "alltoall", "0.expert_up.sort", "0.expert_up"]
    assert repeated(chosen) == order
    assert saved(names, {"ep": 4, "dp": 8}, **EXPERTS) == 3 * ROWS + TOKENS * EXPERTS["experts"] * 4


EXCHANGED = {"ring": 0, "all-gather": 0, "ulysses": 3, "mixed": 3}


@pytest.mark.parametrize("kind", EXCHANGED)
def test_t12_12_what_came_for_the_heads_of_a_rank_comes_again(kind: Any) -> None:
    """Rings and gathers of keys and values begin with what the rank has made itself, which is all that it keeps."""
    names, plan = ("qkv", "rope"), {"cp": 4, "dp": 1, "cp_kind": kind, **({"cp_ulysses": 2} if kind == "mixed" else {})}
    assert repeated(of(names, plan)) == ["0.qkv", "0.rope", *["alltoall"] * EXCHANGED[kind]]
    if kind != "all-gather":
        assert saved(names, plan) == TOKENS * (HEADS + 2 * KV_HEADS) * DEPTH * WIDTH


@pytest.mark.parametrize("overlap", [False, True, "decomposed"])
@pytest.mark.parametrize(("framework", "dtype", "casts"), [
    ("none", "bf16", []), ("torchtitan-2024", "fp8", ["0.mlp_up.cast scale", "0.mlp_up.cast"]), ("megatron-core-2025", "fp8", []),
])  # fmt: skip
def test_t12_12_a_gather_is_repeated_where_its_result_is_kept(framework: str, dtype: str, casts: list[str], overlap: Any) -> None:
    for gathered in (False, True):
        software = replace(sim.framework(framework), gathered_inputs=gathered)
        plan = {"tp": 4, "dp": 1, "sharding": "none", "overlap": sim.Overlap(tp=overlap)}
        found, norm = (
            repeated(of(("mlp_norm",), plan, software, dtype)),
            "add_" * (software.fusion.residual_norm or software.compile),
        )
        gather = ["exchange"] * 3 if overlap == "decomposed" else ["all_gather"]
        expected = [f"0.{norm}mlp_norm", *(casts if gathered else []), *(gather if gathered else [])]
        assert [name for name in found if not name.endswith("arrival")] == expected
        element_bytes = 1 if dtype == "fp8" and (gathered or framework == "megatron-core-2025") else WIDTH
        freed = saved(("mlp_norm",), plan, software, dtype)
        assert freed == TOKENS * HIDDEN * element_bytes // (1 if gathered else 4)


Q, K, V = (heads * DEPTH * TOKENS * WIDTH for heads in (HEADS, KV_HEADS, KV_HEADS))
LATENT_Q, LATENT_K, LATENT_V = (HEADS * width * TOKENS * WIDTH for width in (48, 48, 32))
MADE: dict[tuple[str, ...], tuple[dict[str, Any], int]] = {
    ("qkv", "rope"): ({}, Q + K + V),
    ("qk_norm", "rope"): ({"qk_norm": "head"}, Q + K),
    ("qk_norm",): ({"qk_norm": "full", "positions": "none"}, Q + K),
    ("qkv", "qk_norm", "rope"): ({"qk_norm": "head"}, 2 * (Q + K) + V),
    ("qkv",): ({"qk_norm": "head"}, Q + K),
    ("kv_up", "rope"): (LATENT, LATENT_K + LATENT_V),
    ("kv_norm", "kv_up", "rope"): (LATENT, LATENT_K + LATENT_V + 128 * TOKENS * WIDTH),
    ("q_up", "kv_up", "rope"): (LATENT, LATENT_Q + LATENT_K + LATENT_V),
    ("q", "kv_up", "rope"): ({**LATENT, "q_lora_rank": 0}, LATENT_Q + LATENT_K + LATENT_V),
}
"""Operators -> the model, and the bytes of the tensors that these operators make: kept tensors of others are not freed."""


@pytest.mark.parametrize("framework", ["none", "megatron-lm-2021"])
@pytest.mark.parametrize("names", MADE)
def test_t12_13_only_what_listed_operators_make_of_the_inputs_of_attention_is_not_kept(
    names: tuple[str, ...], framework: str
) -> None:
    model, freed = MADE[names]
    software = replace(sim.framework(framework), dropout=False)
    chosen = of(names, {"dp": 1}, software, **model)
    feasible.check(chosen)
    assert saved(names, {"dp": 1}, software, **model) == freed
    assert list(dict.fromkeys(op.operator.split()[0] for op in again(chosen))) == [f"0.{name}" for name in names]


def test_t12_13_with_ulysses_copies_of_keys_count_as_keys() -> None:
    plan = {"cp": 8, "dp": 1, "cp_kind": "ulysses"}
    assert saved(("qk_norm", "rope"), plan, qk_norm="head") == 2 * Q


@pytest.mark.parametrize(("names", "says"), [
    (("q_up",), "no operator keeps the result of q_up\n.*add rope"),
    (("q_up", "rope"), "rope keeps no input from which it could be recomputed\n.*add kv_up"),
])  # fmt: skip
def test_queries_are_not_repeated_without_their_rotation(names: tuple[str, ...], says: str) -> None:
    with pytest.raises(UserError, match=says):
        feasible.check(of(names, {"dp": 1}, **LATENT))


SPLIT: list[tuple[tuple[str, ...], dict[str, Any], dict[str, Any]]] = [
    (("top_k", "permute", "expert_up"), {"ep": 4, "dp": 4}, EXPERTS),
    (("qkv", "rope"), {"cp": 2, "cp_kind": "ulysses", "dp": 1}, {}),
    (("q_up", "kv_up", "rope"), {"dp": 1}, LATENT),
]


@pytest.mark.parametrize(("names", "plan", "model"), SPLIT)
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_what_is_recomputed_is_freed_with_every_schedule(names: Any, plan: Any, model: Any, schedule: str) -> None:
    chosen = of(names, {**plan, "pp": 2, "schedule": schedule}, **model)
    program = program_of(chosen, 1, layout_of(chosen))
    left: dict[tuple[int, int], int] = {}
    for step in (step for order in program.orders for step in order):
        key = step.stage, step.microbatch
        left[key] = left.get(key, 0) + sum(op.held_bytes - op.freed_bytes for op in program.bodies[step.body].ops)
        assert left[key] >= 0
    assert not any(left.values())
    assert again(chosen, "B" if schedule == "1f1b" else "I")
