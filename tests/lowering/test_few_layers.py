"""Slots of many equal layers, made of slots of few layers, are those that lowering every layer gives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings

import simulator as sim
from simulator.bounded_cache import Cache
from simulator.frozen import replace
from simulator.kernels import Part
from simulator.lowering import kept_slots
from simulator.lowering.build import called_by
from simulator.lowering.few_layers import FEW, ApartError, are_alike, are_proven, longer
from simulator.lowering.lower import lower_slots
from simulator.plan.stage_layers import stage_layers
from simulator.program.operations import COMPUTE, Wait
from simulator.program.program import Body, Program
from simulator.simulation.runnable import RunnableScenario as Scenario

from ..equality.test_plans import scenarios
from ..small_scenarios import scenario, small_cluster, small_model
from .test_kept_slots import check_others


def deep(of: Scenario) -> Scenario:
    """The scenario with five times as many layers, evenly divided."""
    model = replace(of.model, layers=5 * of.model.layers)
    return replace(of, model=model, plan=replace(of.plan, layout="even"))


@contextmanager
def lowered_layers() -> Iterator[list[int]]:
    """The layers of the stages that are lowered within."""
    layers: list[int] = []

    def counted(model: Any, plan: Any, job: Any, layout: Any, **options: Any) -> Any:
        counts = stage_layers(plan, model, job.sequence_length, layout.layered)
        layers.extend(counts[stage] for _, stage, _ in called_by(layout))
        return lower_slots(model, plan, job, layout, **options)

    with mock.patch.object(kept_slots, "lower_slots", counted):
        yield layers


@settings(max_examples=10)
@given(scenarios())
def test_bodies_of_deep_models(of: Scenario) -> None:
    check_others(deep(of), Cache(1 << 20))


@pytest.mark.slow
@settings(max_examples=80)
@given(scenarios())
def test_bodies_of_deep_models_many_times(of: Scenario) -> None:
    check_others(deep(of), Cache(1 << 20))


CHANGES: dict[str, dict[str, Any]] = {
    "alone": {},
    "divided": {"tp": 2},
    "in turns": {"tp": 2, "sequence_parallel": False},
    "decomposed": {"tp": 2, "overlap": sim.Overlap(tp="decomposed")},
    "ring": {"cp": 2},
    "recomputed": {"tp": 2, "recompute": "full"},
    "selective": {"tp": 2, "recompute": "selective"},
    "by operator": {"recompute": "per-op"},
    "listed": {"recompute": sim.Recompute(ops=("mlp_norm", "gated_activation"))},
}


@pytest.mark.thinned(10)
@pytest.mark.parametrize("framework", ["none", "megatron-core-2025", "megatron-lm-2021"])
@pytest.mark.parametrize("name", CHANGES)
def test_models_of_many_layers_are_lowered_with_few(name: str, framework: str) -> None:
    plan, job = sim.Plan(pp=2, **CHANGES[name]), sim.Job(sequence_length=64, global_batch=16)
    of = scenario(small_model(40), small_cluster(1), plan, job, framework=sim.framework(framework))
    if name == "ring" and framework == "megatron-lm-2021":
        pytest.skip("context parallelism needs fused attention")
    with lowered_layers() as layers:
        assert check_others(of, Cache(1 << 20)) >= 5
    assert max(layers) <= FEW + 2


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "other",
    [
        {"recompute": sim.Recompute("full", first=3)},
        {"recompute": sim.Recompute("full", every=2)},
        {"recompute": sim.Recompute("full", together=4)},
    ],
)
def test_layers_that_differ_are_all_lowered(other: dict[str, Any]) -> None:
    of = scenario(small_model(40), plan=sim.Plan(pp=4, **other), job=sim.Job(sequence_length=64, global_batch=16))
    assert not are_alike(of.model, of.plan, of.job)
    with lowered_layers() as layers:
        assert check_others(of, Cache(1 << 20)) >= 5
    assert max(layers) == 40


def test_models_of_several_kinds_of_layers_and_frozen_layers_are_not_alike() -> None:
    plan, job = sim.Plan(), sim.Job(sequence_length=64, global_batch=16)
    mixed = small_model(12, experts=8, experts_per_token=2, dense_layers=3)
    assert are_alike(small_model(12), plan, job)
    assert not are_alike(mixed, plan, job)
    assert not are_alike(small_model(12), plan, replace(job, frozen_layers=2))
    assert not are_alike(small_model(12), replace(plan, moe=sim.Moe(routing="drawn")), job)


def op(layer: int, name: str, after: tuple[str, ...] | None = None, held_bytes: int = 1) -> Wait:
    name = f"{layer}.{name}" if layer >= 0 else name
    return Wait(name=name, operator=name, streams=(COMPUTE,), layer=layer, part=Part.FORWARD, after=after, held_bytes=held_bytes)


def body(layers: int, *, last_bytes: int = 1) -> Body:
    """Layers of two operations, of which the second waits for the second of the layer before."""
    ops = [op(-1, "embedding")]
    for layer in range(layers):
        before = (f"{layer - 1}.b",) if layer else ("embedding",)
        ops += [op(layer, "a"), op(layer, "b", (*before, f"{layer}.a"))]
    return Body((*ops, op(-1, "head", (f"{layers - 1}.b",), held_bytes=last_bytes)))


def program(of: Body) -> Program:
    return Program((), {"F": of}, (), {})


def test_the_middle_layer_is_repeated() -> None:
    assert are_proven(program(body(FEW)), program(body(FEW + 1)))
    for layers in (FEW, FEW + 1, 17):
        assert longer(body(FEW), layers) == body(layers)
    back = Body(body(FEW).ops[::-1])
    assert [op.name for op in longer(back, 5).ops] == [op.name for op in body(5).ops[::-1]]


def test_what_depends_on_the_number_of_layers_is_no_repetition() -> None:
    """As a wrong bound on what a body frees at its end would be: it grows with the layers."""
    assert not are_proven(program(body(FEW, last_bytes=FEW)), program(body(FEW + 1, last_bytes=FEW + 1)))
    assert not are_proven(program(body(FEW)), program(body(FEW + 2)))


def test_layers_that_wait_for_others_from_afar_are_no_repetition() -> None:
    ops = body(FEW).ops
    for far in (replace(ops[-2], after=("0.b",)), replace(ops[1], after=("2.a",)), replace(ops[-1], after=("1.b",))):
        changed = Body(tuple(far if one.name == far.name else one for one in ops))
        with pytest.raises(ApartError):
            longer(changed, 9)
    apart = Body((*ops[:4], ops[5], ops[4], *ops[6:]))
    with pytest.raises(ApartError):
        longer(apart, 9)
