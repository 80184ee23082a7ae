"""Recomputation that keeps the results of attention, of every other matrix product, and of reduce-scatters (section 12)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import simulator as sim
from simulator.program.operations import Compute
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.simulate import layout_of, program_of

from ..small_scenarios import both, bound_twice, scenario, small_cluster, small_model
from .test_recompute import FFN, HEADS, HIDDEN, LAYERS, TOKENS, WIDTH, again, bodies, everything_held, held

KEYS = HIDDEN // 2
"""Channels of the keys, with half as many key heads as heads."""


def of(recompute: Any, *, compiled: bool = True, framework: str = "torchtitan-2024", **more: Any) -> Scenario:
    plan = {key: more.pop(key) for key in [*more] if key in sim.Plan.__dataclass_fields__}
    chosen = sim.Plan(**{"dp": 1, **plan}, recompute=recompute)
    gpus = chosen.tp * chosen.pp * chosen.cp * (chosen.dp or 1)
    cluster = small_cluster(max(1, gpus // 4)) if gpus % 4 == 0 else small_cluster(1, gpus_per_node=gpus)
    job = sim.Job(sequence_length=TOKENS, global_batch=4 * (chosen.dp or 1), dtype=more.pop("dtype", "bf16"))
    software = replace(sim.framework(framework), compile=compiled)
    model = small_model(LAYERS, **{"kv_heads": HEADS // 2, **more.pop("model", {})})
    return scenario(model, cluster, chosen, job, framework=software, **more)


def names(ops: Any) -> list[str]:
    return [op.operator.removeprefix("0.") for op in ops if op.layer == 0]


def columns(ops: Any) -> dict[str, int]:
    """Outputs of the GEMMs of the first layer."""
    gemms = (op for op in ops if isinstance(op, Compute) and hasattr(op.kernel, "n") and op.layer == 0)
    return {op.operator.removeprefix("0."): op.kernel.n for op in gemms}


@pytest.mark.parametrize("compiled", [True, False])
def test_t12_10_every_other_matrix_product_is_kept(compiled: bool) -> None:
    """Kept: input, queries, values, statistics and result of attention, gate; and without a compiler the result of the layer."""
    forward, backward = (next(bodies(of("per-op", compiled=compiled), phase)) for phase in "FB")
    kept = (HIDDEN + HIDDEN + KEYS + HIDDEN + FFN) * WIDTH + HEADS * 4 + (0 if compiled else HIDDEN * WIDTH)
    assert [held(forward, layer) for layer in range(LAYERS)] == [TOKENS * kept] * LAYERS
    assert columns(again(backward)) == {"qkv": KEYS, "attention_out": HIDDEN, "mlp_up": FFN}
    repeated = names(again(backward))
    for word in ("attention_norm", "rope", "mlp_norm"):
        assert any(word in name for name in repeated)
    assert not {"attention", "mlp_down", "mlp_residual"} & set(repeated)
    assert repeated[-1].startswith("gated_activation"), "the last tensor that is needed"


def test_t12_10_the_count_goes_on_from_product_to_product() -> None:
    """With an MLP of two matrices its first one is the fifth product of a layer, and the second the sixth."""
    backward = next(bodies(of("per-op", model={"gated_mlp": False}), "B"))
    assert columns(again(backward)) == {"qkv": KEYS, "attention_out": HIDDEN}
    assert names(again(backward))[-1] == "activation", "the sixth product would run again, but nothing needs its result"


def test_t12_10_results_of_products_with_biases_are_not_kept() -> None:
    kept = TOKENS * ((HIDDEN + HIDDEN) * WIDTH + HEADS * 4)
    forward, backward = (next(bodies(of("per-op", model={"bias": True}), phase)) for phase in "FB")
    assert held(forward, 0) == kept
    assert columns(again(backward)) == {"qkv": HIDDEN + 2 * KEYS, "attention_out": HIDDEN, "mlp_up": 2 * FFN}


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("sequence", [True, False])
def test_t12_11_the_results_of_reduce_scatters_are_kept(sequence: bool, compiled: bool) -> None:
    """A compiler leaves out the product before a kept reduce-scatter; an all-reduce is repeated."""
    chosen = of("per-op", tp=2, sequence_parallel=sequence, compiled=compiled)
    forward, backward = (next(bodies(chosen, phase)) for phase in "FB")
    ends = [op for op in again(backward) if op.operator == "0.attention_out"]
    assert [isinstance(op, Compute) for op in ends] == ([] if sequence and compiled else [True] if sequence else [True, False])
    divided = HIDDEN + KEYS + HIDDEN + FFN, HEADS * 4
    layer_input = HIDDEN * WIDTH // 2 if sequence else HIDDEN * WIDTH
    scattered = HIDDEN * WIDTH // 2 if sequence else 0
    unread = 0 if compiled else HIDDEN * WIDTH
    kept = (divided[0] * WIDTH + divided[1]) // 2 + layer_input + scattered + unread
    assert held(forward, 0) == TOKENS * kept


PLANS: dict[str, dict[str, Any]] = {
    "tp": {"tp": 2},
    "tp without sequence parallelism": {"tp": 4, "sequence_parallel": False},
    "pieces": {"tp": 2, "overlap": sim.Overlap(tp="decomposed")},
    "ring": {"cp": 4},
    "all-gather": {"cp": 2, "cp_kind": "all-gather"},
    "all-to-all": {"cp": 2, "cp_kind": "ulysses"},
    "split backward": {"pp": 2, "schedule": "zb-h1"},
    "norms of heads": {"tp": 2, "model": {"qk_norm": "head", "norms": "both"}},
    "parallel layers": {"model": {"parallel_mlp": "one_norm"}},
    "8 bits": {"tp": 2, "dtype": "fp8"},
    "unfused": {"tp": 2, "framework": "megatron-lm-2021"},
    "latents": {"tp": 2, "model": {"kv_heads": HEADS, "kv_lora_rank": 64, "rope_head_dim": 32}},
    "every other layer": {"dp": 4, "sharding": "fsdp", "every": 2},
}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("plan", PLANS)
def test_t12_10_what_is_not_kept_is_held_again(plan: str) -> None:
    """All passes of a layer hold the same bytes together, the forward pass fewer, and engines agree."""
    fields = dict(PLANS[plan])
    recompute = sim.Recompute("per-op", every=fields.pop("every", 1))
    before, after = (of(how, **fields) for how in ("none", recompute))
    layout = layout_of(before)
    one, other = (program_of(chosen, 1, layout) for chosen in (before, after))
    assert everything_held(one) == everything_held(other)
    for phase in "FB" if plan != "split backward" else "FI":
        for ops in bodies(after, phase):
            assert len({op.name for op in ops}) == len(ops)
            assert all(op.held_bytes >= 0 for op in ops)
    assert after.simulate().memory[0].activations_bytes < before.simulate().memory[0].activations_bytes
    both(*bound_twice(after)).assert_equal()


def test_t12_10_time_and_memory_lie_between_those_of_none_and_full() -> None:
    runs = [of(how).simulate() for how in ("none", "per-op", "full")]
    assert [run.metrics.mfu for run in runs] == sorted((run.metrics.mfu for run in runs), reverse=True)
    assert [run.peak_memory_bytes for run in runs] == sorted((run.peak_memory_bytes for run in runs), reverse=True)
    products = TOKENS * 2 * HIDDEN * (KEYS + HIDDEN + FFN) * LAYERS * 4
    model = runs[0].scenario.model
    needed = model.train_flop_per_token(TOKENS, causal=False) * TOKENS * 4
    assert runs[1].metrics.hfu / runs[1].metrics.mfu == pytest.approx(1 + products / needed)
