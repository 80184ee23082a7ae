"""Scales of fp8 that ranks agree on at the end of every pass: section 10, second half of docs/semantics.md."""

from __future__ import annotations

from typing import Any

import pytest

import simulator as sim
from simulator.program.operations import COMPUTE, Collective, Purpose
from simulator.program.program import Program
from simulator.simulation.runnable import RunnableScenario
from simulator.simulation.simulate import program_of
from simulator.workload.framework import Framework, LowPrecision

from ..small_scenarios import both, bound_twice, scenario, small_cluster, small_model

LAYERS, GEMMS = 4, 4
"""Layers of the model, and linear layers of each: queries, keys and values; their projection; both halves of the MLP."""


def of(shared: Any, plan: sim.Plan, dtype: Any = "fp8", **recipe: Any) -> RunnableScenario:
    job = sim.Job(sequence_length=256, global_batch=16, dtype=dtype)
    framework = Framework(low_precision=LowPrecision(shared_scales=shared, **recipe))
    return scenario(small_model(LAYERS), small_cluster(2), plan, job, framework=framework)


def reductions(program: Program) -> dict[str, list[Collective]]:
    """The reductions of each kind of pass of the first rank."""
    bodies = {step.phase: program.bodies[step.body].ops for step in program.orders[0]}
    return {
        phase: [op for op in ops if isinstance(op, Collective) and op.purpose is Purpose.REDUCE_SCALES]
        for phase, ops in bodies.items()
    }


@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_t10_9_every_pass_ends_with_one_reduction(pp: int, recompute: Any) -> None:
    program = program_of(of("replicas", sim.Plan(tp=2, pp=pp, recompute=recompute)))
    found = reductions(program)
    (forward,), (backward,) = found["F"], found["B"]
    assert forward.payload_bytes == 12 * GEMMS * LAYERS // pp
    assert backward.payload_bytes == 8 * GEMMS * LAYERS // pp
    assert {op.streams[0] for op in (forward, backward)} == {COMPUTE}
    body = program.bodies[next(step.body for step in program.orders[0] if step.phase == "F")]
    assert body.ops[-1] == forward


@pytest.mark.parametrize(
    "shared, plan, axes",
    [
        ("replicas", sim.Plan(), {"tp", "cp", "dp", "replicas"}),
        ("tp", sim.Plan(cp=2), {"tp", "cp"}),
        ("tp", sim.Plan(), None),
        ("none", sim.Plan(tp=2), None),
    ],
)
def test_t10_9_the_group_is_that_of_the_field(shared: str, plan: sim.Plan, axes: set[str] | None) -> None:
    group = program_of(of(shared, plan)).communicators.get("scales")
    assert (axes is None) == (group is None)
    if group and axes:
        assert {*group.axes} >= axes - {"replicas"}


@pytest.mark.parametrize("other", [{"dtype": "mxfp8"}, {"scaling": "current"}, {"dtype": "bf16"}])
def test_t10_9_only_delayed_scales_of_tensors_are_shared(other: dict[str, Any]) -> None:
    assert "scales" not in program_of(of("replicas", sim.Plan(tp=2), **other)).communicators


@pytest.mark.parametrize("shared", ["tp", "replicas"])
def test_folded_or_not_times_are_the_same(shared: str) -> None:
    both(*bound_twice(of(shared, sim.Plan(tp=2, pp=2)))).assert_equal()


def test_a_reduction_takes_time() -> None:
    apart, shared = (of(word, sim.Plan(tp=2, pp=2)).simulate().metrics.step_time_s for word in ("none", "replicas"))
    assert shared > apart
