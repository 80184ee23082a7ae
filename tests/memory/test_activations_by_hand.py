"""Activations of a layer by hand, tensor by tensor: a layer of Llama and one with experts, on ranks that divide them, and the
microbatches that each stage of a schedule has in flight.

Korthikanti et al., arXiv 2205.05198, count a layer of a GPT (tests of section 12); here are norms, gates, grouped queries and
routed rows.
"""

from __future__ import annotations

from typing import Any

import pytest

import simulator as sim
from simulator.config import feasible
from simulator.program.slot import FORWARD
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.simulate import program_of

from ..small_scenarios import scenario, small_cluster, small_model

TOKENS, HIDDEN, HEADS, KEYS, INNER, EXPERTS, CHOSEN, WIDTH = 512, 512, 8, 256, 1408, 8, 2, 704
MIXTURE = {"experts": EXPERTS, "experts_per_token": CHOSEN, "expert_ffn_hidden": WIDTH}
STATISTIC, LOGIT = 4, 4
"""Bytes of a row of fused attention in a head, and of a probability of the router."""


def of(plan: dict[str, Any], *, attention: str = "", dtype: Any = "bf16", layers: int = 4, **model: Any) -> Scenario:
    chosen, job = sim.Plan(**plan), sim.Job(TOKENS, 32, 1, dtype=dtype)
    framework = sim.framework({"attention": attention} if attention else {})
    of = scenario(small_model(layers, **model), small_cluster(2), chosen, job, framework=framework)
    feasible.check(of)
    return of


def held(chosen: Scenario) -> int:
    """Bytes that a microbatch holds of the last layer of the first stage after its forward pass."""
    program = program_of(chosen)
    body = next(step.body for step in program.orders[0] if step.phase == FORWARD)
    ops = program.bodies[body].ops
    last = max(op.layer for op in ops)
    return sum(op.held_bytes - op.freed_bytes for op in ops if op.layer == last)


def attention_by_hand(tokens: int, tp: int, width: int, shares: int) -> int:
    """Inputs of the norm and of the projections (in shares of ranks), queries, keys and values, statistics, and the result."""
    return tokens * (width * (2 * HIDDEN // shares + (2 * HIDDEN + 2 * KEYS) // tp) + STATISTIC * HEADS // tp)


@pytest.mark.parametrize(
    ("plan", "tp", "shares", "cp"),
    [({"dp": 8}, 1, 1, 1), ({"tp": 4, "dp": 2}, 4, 4, 1), ({"tp": 4, "dp": 2, "sequence_parallel": False}, 4, 1, 1),
     ({"cp": 4, "dp": 2}, 1, 1, 4), ({"cp": 4, "dp": 2, "cp_kind": "all-gather"}, 1, 1, 4), ({"cp": 2, "tp": 4}, 4, 4, 2),
     ({"cp": 4, "dp": 2, "cp_kind": "ulysses"}, 1, 1, 4)],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_t11_1_a_layer_of_llama_keeps_its_inputs_tensor_by_tensor(
    plan: dict[str, Any], tp: int, shares: int, cp: int, dtype: str
) -> None:
    """Of an MLP: the inputs of its norm and of gate and up, both of their results, and their product. Ranks that exchange tokens
    for heads keep the result of attention in both forms."""
    width, tokens = {"fp32": 4, "bf16": 2}[dtype], TOKENS // cp
    mlp = tokens * width * (2 * HIDDEN // shares + 3 * INNER // tp)
    again = tokens * width * HIDDEN * (plan.get("cp_kind") == "ulysses")
    assert held(of(plan, dtype=dtype)) == attention_by_hand(tokens, tp, width, shares) + mlp + again


@pytest.mark.parametrize(
    ("plan", "tp", "shares", "rows"),
    [({"dp": 8}, 1, 1, 1), ({"dp": 8, "ep": 8}, 1, 1, 1), ({"tp": 4, "dp": 2, "ep": 2, "etp": 4}, 4, 4, 1),
     ({"tp": 4, "dp": 2, "ep": 8, "etp": 1}, 4, 4, 4)],
)  # fmt: skip
def test_t17_8_a_layer_with_experts_keeps_its_rows(plan: dict[str, Any], tp: int, shares: int, rows: int) -> None:
    """Of the experts: the input of the router, the probabilities in fp32, and for each of two copies of a token the row itself
    (h), the results of gate and up (2 f) and their product (f)."""
    mixture = TOKENS * (2 * 2 * HIDDEN // shares + LOGIT * EXPERTS // shares)
    etp = plan.get("etp", 1)
    copies = CHOSEN * TOKENS * 2 * (HIDDEN + 3 * WIDTH // etp) // rows
    assert held(of(plan, **MIXTURE)) == attention_by_hand(TOKENS, tp, 2, shares) + mixture + copies


def test_t9_5_unfused_attention_keeps_scores() -> None:
    """Two bytes for the result of the softmax of each score, in place of the statistics of a row."""
    more = held(of({"dp": 8}, attention="unfused")) - held(of({"dp": 8}))
    assert more == 2 * HEADS * TOKENS**2 - STATISTIC * HEADS * TOKENS


@pytest.mark.parametrize("recompute", ["full", "selective"])
def test_t12_2_what_repeated_layers_keep(recompute: Any) -> None:
    kept = held(of({"tp": 4, "dp": 2, "recompute": recompute}))
    whole = attention_by_hand(TOKENS, 4, 2, 4) + TOKENS * 2 * (2 * HIDDEN // 4 + 3 * INNER // 4)
    assert kept == (TOKENS * 2 * HIDDEN // 4 if recompute == "full" else whole - STATISTIC * HEADS // 4 * TOKENS)


IN_FLIGHT: list[tuple[dict[str, Any], list[float]]] = [
    ({"schedule": "gpipe"}, [8, 8, 8, 8]),
    ({"schedule": "1f1b"}, [4, 3, 2, 1]),
    ({"schedule": "naive"}, [1, 1, 1, 1]),
    ({"schedule": "interleaved", "chunks": 2}, [(4 + 6 + 1) / 2, (4 + 4 + 1) / 2, (4 + 2 + 1) / 2, (4 + 1) / 2]),
    ({"schedule": "looped-bfs", "chunks": 2}, [8, 8, 8, 8]),
]


@pytest.mark.parametrize(("schedule", "microbatches"), IN_FLIGHT, ids=lambda value: str(value)[:24])
def test_t11_1_microbatches_in_flight_on_every_stage(schedule: dict[str, Any], microbatches: list[float]) -> None:
    """Eight microbatches on four stages; a half where a rank has two chunks. The last rank holds the head's tensors as well."""
    chosen = of({"pp": 4, "dp": 2, **schedule}, layers=16)
    chosen = scenario(chosen.model, chosen.cluster, chosen.plan, sim.Job(TOKENS, 16, 1))
    layer = attention_by_hand(TOKENS, 1, 2, 1) + TOKENS * 2 * (2 * HIDDEN + 3 * INNER)
    found = [rank.activations_bytes / (4 * layer) for rank in chosen.simulate().memory]
    assert found[:3] == pytest.approx(microbatches[:3])
    assert found[3] > microbatches[3]
