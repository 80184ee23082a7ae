"""Every byte of the account belongs to an item with a formula; at the peak, to the operators that took it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simulator as sim
from simulator.config import feasible
from simulator.errors import UserError
from simulator.memory.account import Account
from simulator.memory.items import Item
from simulator.memory.peak import Peak, peak_of
from simulator.program.holdings import Holding
from simulator.simulation.memory_check import terms_of
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.simulate import layout_of, program_of

from ..small_scenarios import scenario, small_cluster, small_model
from .test_memory import PLANS, RECOMPUTE

SPREAD = st.sampled_from([
    {}, {"dp": 4, "sharding": "zero2"}, {"dp": 4, "sharding": "zero3"}, {"sharding": "fsdp"}, {"cp": 4}, {"cp": 2, "tp": 2},
    {"cp": 4, "cp_kind": "all-gather"}, {"cp": 4, "cp_kind": "mixed", "cp_ulysses": 2},
    {"sharding": sim.Sharding("fsdp", prefetch=0)},
])  # fmt: skip


def tokens_of(of: Scenario) -> int:
    return of.job.microbatch_size * of.job.sequence_length // (of.plan.splits * of.plan.cp)


def value(item: Item) -> float:
    """What the formula of an item comes to, read as a person reads it."""
    words = re.sub(r"[a-z]+", "", re.sub(r"\bx\b", "*", item.formula.replace(",", "")))
    assert set(words) <= set("0123456789*+-/() "), item
    return float(eval(words))


@given(plan=PLANS | SPREAD, recompute=RECOMPUTE, framework=st.sampled_from(["none", "megatron-lm-2021", "torchtitan-2024"]))
@settings(deadline=None, max_examples=10)
def test_t11_5_every_byte_belongs_to_an_item_whose_formula_gives_it(plan: dict[str, Any], recompute: Any, framework: str) -> None:
    chosen = sim.Plan(**plan, recompute=recompute)
    of = scenario(small_model(layers=9), small_cluster(2), chosen, sim.Job(256, 32, 1), framework=sim.framework(framework))
    try:
        feasible.check(of)
    except UserError:
        return
    program = program_of(of)
    for rank in Account(program, terms_of(of, layout_of(of))).memory():
        peak = peak_of(program, rank.rank, tokens_of(of))
        assert sum(item.size_bytes for item in peak.items) == rank.activations_bytes
        assert sum(item.size_bytes for item in (*rank.items, *peak.items)) == rank.total_bytes
        for item in (*rank.items, *peak.items):
            if item.kind not in (Holding.CONTEXT, Holding.FRAGMENTATION):
                assert value(item) == pytest.approx(item.size_bytes, abs=16 if "/" in item.formula else 0), item


def of_kind(peak: Peak, kind: Holding) -> dict[str, int]:
    return {item.what: item.size_bytes for item in peak.items if item.kind is kind}


def test_t11_5_by_hand_what_a_first_stage_and_a_last_stage_hold() -> None:
    """The first of four stages holds four microbatches of two layers; the last holds one, with its logits in fp32."""
    of = scenario(small_model(layers=8), small_cluster(1), sim.Plan(pp=4), sim.Job(256, 16, 1))
    program = program_of(of)
    first, last = (peak_of(program, rank, 256) for rank in (0, 3))
    layers = 2 * 256 * 2  # two layers, tokens, bytes of an element
    of_layer = {
        "attention_norm": 512, "qkv": 512, "attention": 16 * 64 + 8 * 2, "attention_out": 512, "mlp_norm": 512, "mlp_up": 512,
        "gated_activation": 2 * 1408, "mlp_down": 1408,
    }  # fmt: skip
    assert of_kind(first, Holding.ACTIVATIONS) == {what: 4 * layers * width for what, width in of_layer.items()}
    assert of_kind(last, Holding.ACTIVATIONS) == {what: layers * width for what, width in of_layer.items()}
    assert of_kind(last, Holding.LOGITS) == {
        "final_norm": 256 * 512 * 2, "logits": 256 * 512 * 2, "cross_entropy": 256 * 4096 * 4
    }  # fmt: skip
    assert (first.microbatches, first.step.phase, first.step.microbatch) == (4, "F", 3)
    assert (last.microbatches, last.step.phase) == (1, "F")


def test_t11_5_units_and_buffers_of_sharded_state_have_classes_of_their_own() -> None:
    """Eight wide layers and one token: a unit in use and one gathered ahead, and the fp32 buffer of the reduction before."""
    of = scenario(small_model(layers=8, vocab=128), None, sim.Plan(dp=8, sharding="fsdp"), sim.Job(1, 8))
    peak = peak_of(program_of(of), 0, 1)
    layer = (of.model.parameters - 2 * 128 * 512 - 512) // 8
    assert of_kind(peak, Holding.GATHERED) == {"units in flight": 2 * 2 * layer}
    assert of_kind(peak, Holding.COMMUNICATION) == {"buffers of reductions": 4 * layer}


def test_t11_5_keys_of_other_ranks_are_buffers_of_communication() -> None:
    """All keys and values, and in the backward pass of the last layer their gradients too."""
    of = scenario(small_model(vocab=128), small_cluster(1), sim.Plan(cp=4, cp_kind="all-gather"), sim.Job(256, 4, 1))
    peak, gathered_bytes = peak_of(program_of(of), 0, 64), 256 * 2 * 4 * 64 * 2
    assert of_kind(peak, Holding.COMMUNICATION) == {"attention, other ranks": gathered_bytes}
    assert of_kind(peak, Holding.ACTIVATIONS)["attention, gradients"] == gathered_bytes
    assert (peak.step.phase, peak.op.layer) == ("B", 7)
