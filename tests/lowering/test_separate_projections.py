"""Layers that project one input by themselves: sentence 9.18 of docs/semantics.md."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import simulator as sim
from simulator.kernels import Rowwise
from simulator.program.operations import Compute
from simulator.simulation.simulate import program_of
from simulator.workload.framework import Framework

from .. import small_scenarios as small

TOKENS, HIDDEN_BYTES = 256, 2
BOTH = ("attention", "mlp")


def scenario(separate: tuple[str, ...], *, compiles: bool = False, gated: bool = True, **plan: Any) -> Any:
    chosen = sim.Plan(**{"dp": 1, "pp": 1, **plan})
    model = replace(small.small_model(2), gated_mlp=gated)
    cluster, job = small.small_cluster(1, gpus_per_node=chosen.tp), sim.Job(sequence_length=TOKENS, global_batch=4)
    software = Framework(separate_projections=separate, compile=compiles)
    return small.scenario(model, cluster, chosen, job, framework=software)


def ops(*args: Any, **options: Any) -> list[Any]:
    """The operations of the second layer."""
    return [op for body in program_of(scenario(*args, **options)).bodies.values() for op in body.ops if op.layer == 1]


def sums(*args: Any, **options: Any) -> dict[str, int]:
    """The bytes that each added operation moves, by name."""
    one = {op.name for op in ops((), **options)}
    new = [op for op in ops(*args, **options) if op.name not in one]
    assert all(isinstance(op, Compute) and isinstance(op.kernel, Rowwise) for op in new)
    return {op.name.partition(".")[2]: int(op.kernel.traffic_bytes) for op in new}


@pytest.mark.parametrize(("compiles", "moved"), [(False, 3), (True, 1)])
def test_t9_18_a_sum_for_each_gradient_after_the_first(compiles: bool, moved: int) -> None:
    moved_bytes = moved * TOKENS * small.small_model(2).hidden * HIDDEN_BYTES
    names = [f"{op}_input_gradient_{n}.dgrad" for op, n in (("mlp_up", 1), ("qkv", 2), ("qkv", 1))]
    assert sums(BOTH, compiles=compiles) == dict.fromkeys(names, moved_bytes)
    assert list(sums(("mlp",), compiles=compiles)) == names[:1]
    assert list(sums(("attention",), compiles=compiles, gated=False)) == names[1:]
    assert not sums(("mlp",), gated=False)


def test_t9_18_sums_follow_the_gemm_of_their_input_gradient() -> None:
    names = [op.name.partition(".")[2] for op in ops(BOTH)]
    for layer, before in (("qkv", "attention_norm"), ("mlp_up", "mlp_norm")):
        added = [at for at, name in enumerate(names) if name.startswith(f"{layer}_input_gradient")]
        assert names.index(f"{layer}.dgrad") < min(added) <= max(added) < names.index(f"{before}.dgrad")


def test_t9_18_tensor_parallel_ranks_add_whole_gradients() -> None:
    assert sums(BOTH, tp=2, sequence_parallel=False) == sums(BOTH)


def test_t9_18_the_step_takes_the_kernels_longer_and_keeps_as_much() -> None:
    one, several = (scenario(of).simulate() for of in ((), BOTH))
    assert several.metrics.step_time_s > one.metrics.step_time_s
    assert several.memory == one.memory
    assert several.metrics.mfu < one.metrics.mfu
