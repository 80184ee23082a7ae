"""Units of several layers and of half a layer: how often ranks gather and reduce, and what they hold meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simulator as sim
from simulator.program.operations import Collective, Compute, Purpose
from simulator.program.program import Program
from simulator.simulation.memory_check import memory_of
from simulator.simulation.simulate import layout_of, program_of

from ..small_scenarios import scenario, small_model
from .test_sharded_state import copy_of, gathers_of, of, rows_of, sent_bytes

LAYERS = 8
UNITS = [1, 2, 3, 5, 8, "half-layer"]


def units_of(unit: Any, layers: int = LAYERS) -> int:
    return 2 * layers if unit == "half-layer" else -(-layers // unit)


def collectives(program: Program, phase: str) -> list[Purpose]:
    """Purposes of the gathers and the reductions in the first pass of a phase."""
    body = next(step.body for step in program.orders[0] if step.phase == phase)
    return [op.purpose for op in program.bodies[body].ops if isinstance(op, Collective) and op.purpose]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("kind", ["fsdp", "zero3", "hsdp"])
def test_t13_11_the_unit_decides_the_number_of_collectives_and_not_their_bytes(kind: Any, unit: Any) -> None:
    group = 4 if kind == "hsdp" else None
    whole, program = (program_of(of(sim.Sharding(kind, group, unit=one))) for one in (1, unit))
    if kind != "hsdp":  # the all-reduce across groups rounds the share of every unit
        assert sent_bytes(program) == sent_bytes(whole)
    assert collectives(program, "F").count(Purpose.GATHER_PARAMETERS) == units_of(unit) + 2
    assert collectives(program, "B").count(Purpose.GATHER_PARAMETERS) == units_of(unit) + 1
    reductions = 2 if kind == "hsdp" else 1
    assert collectives(program, "B").count(Purpose.REDUCE_GRADIENTS) == reductions * (units_of(unit) + 2)


@pytest.mark.parametrize("unit", [2, 3, "half-layer"])
def test_t13_11_every_stage_of_a_pipeline_has_units_of_its_own(unit: Any) -> None:
    whole, program = (program_of(of(sim.Sharding("fsdp", unit=one), dp=4, pp=2, microbatches=4)) for one in (1, unit))
    for rank in range(2):
        assert sent_bytes(program, rank) == sent_bytes(whole, rank)
    assert collectives(program, "F").count(Purpose.GATHER_PARAMETERS) == units_of(unit, LAYERS // 2) + 1


def test_t13_11_half_a_layer_is_gathered_while_the_other_half_computes() -> None:
    run = of(sim.Sharding("fsdp", unit="half-layer")).simulate(steps=1)
    rows = rows_of(run)
    first = [copy_of(rows, gather) for gather in gathers_of(run, "F", 1).itertuples() if gather.block.startswith("layer 3")]
    of_layer = rows[(rows.phase == "F") & (rows.microbatch == 1) & rows.block.str.startswith("layer 3")]
    kernels = [block.removeprefix("layer 3 ") for block in of_layer[of_layer.stream == "compute"].block]
    assert len(first) == 2
    assert kernels.index("attention parameters copy") + 1 == kernels.index("attention_norm")
    assert kernels.index("mlp parameters copy") == kernels.index("attention_out") + 1


@given(st.sampled_from([1, 2, 4]), st.integers(0, 2), st.sampled_from([None, 1]))
@settings(deadline=None, max_examples=12)
def test_t13_11_gathered_layers_are_held_unit_by_unit(unit: int, prefetch: int, in_flight: int | None) -> None:
    """As in the test of sentence 10, counted in units: the peak of what is gathered grows with the unit."""
    model = small_model(layers=16, vocab=128)
    sharding = sim.Sharding("fsdp", prefetch=prefetch, in_flight=in_flight, reduce="last", unit=unit)
    chosen = scenario(model, None, sim.Plan(dp=8, sharding=sharding), sim.Job(sequence_length=1, global_batch=8))
    unit_bytes = (chosen.model.parameters - 2 * 128 * 512 - 512) // 16 * unit * 2
    gathered = min(1 + max(1, prefetch), 1 + (in_flight or 99))
    held = memory_of(chosen, layout_of(chosen))[0].activations_bytes
    assert held == pytest.approx((2 + gathered) * unit_bytes, rel=0.05)


def test_t13_11_experts_of_the_layers_of_a_unit_are_gathered_together() -> None:
    mixture = {"experts": 8, "experts_per_token": 2, "expert_ffn_hidden": 256, "dense_layers": 1}
    whole, pairs = (program_of(of(sim.Sharding("fsdp", unit=unit), ep=2, model=mixture)) for unit in (1, 2))
    assert sent_bytes(pairs) == sent_bytes(whole)
    assert collectives(whole, "F").count(Purpose.GATHER_PARAMETERS) == LAYERS + LAYERS - 1 + 2
    assert collectives(pairs, "F").count(Purpose.GATHER_PARAMETERS) == LAYERS // 2 + LAYERS // 2 + 2


def test_t13_11_every_parameter_of_a_layer_is_in_one_of_its_halves() -> None:
    program = program_of(of(sim.Sharding("fsdp", unit="half-layer"), model={"norms": "both", "qk_norm": "head"}))
    body = next(step.body for step in program.orders[0] if step.phase == "F")
    ops = [op for op in program.bodies[body].ops if isinstance(op, Compute) and op.layer == 0 and op.parameters]
    halves = {op.operator.removeprefix("0."): op.unit for op in ops}
    attention = {"attention_norm", "qkv", "qk_norm", "attention_out"}
    assert {name for name, unit in halves.items() if unit == (0, "attention")} == attention
    assert {name for name, unit in halves.items() if unit == (0, "mlp")} == halves.keys() - attention
