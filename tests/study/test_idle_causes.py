"""The bubble is divided as it is defined, and every idle instant has one cause."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simulator as sim
from simulator.costs.kernels.estimator import PricedKernels
from simulator.kernels import Attention, Gemm, Kernel
from simulator.metrics.idle import BUBBLE, imbalance
from simulator.simulation import simulate
from simulator.study.idle_causes import DEPENDENCY, DRAIN, STAGE_IMBALANCE, WARM_UP, IdleTime, idle_time

from ..small_scenarios import scenario, small_cluster, small_model

STAGES, MICROBATCHES, VOCABULARY = 4, 8, 640


class LayersOnly(PricedKernels):
    """Kernels of layers take whole milliseconds by their flop; embedding, head and optimizer take no time."""

    def __call__(self, kernel: Kernel) -> int:
        of_head = isinstance(kernel, Gemm) and VOCABULARY in (kernel.m, kernel.n, kernel.k)
        return 0 if of_head or not isinstance(kernel, (Gemm, Attention)) else 1_000_000 * max(1, kernel.flop >> 27)


@pytest.fixture
def layers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = simulate.prices_of
    monkeypatch.setattr(simulate, "prices_of", lambda of: LayersOnly(usual(of).estimator))


def pipeline(*slow: sim.Perturb, **plan: Any) -> IdleTime:
    """A pipeline of equal stages on links that take next to no time."""
    links = {"intra_node": "NVSwitch 1000 TB/s", "latency": {"nvlink": "0.0001 ns"}}
    job = sim.Job(sequence_length=256, global_batch=MICROBATCHES)
    model = small_model(vocab=VOCABULARY)
    given = scenario(model, small_cluster(1, **links), sim.Plan(**{"pp": STAGES, "dp": 1, **plan}), job, perturb=slow)
    run = given.simulate()
    assert not any(run.metrics.imbalance_s.values())
    return idle_time(run)


def of(found: IdleTime, name: str) -> list[int]:
    """The nanoseconds of each rank."""
    chosen = [number for number, cause in enumerate(found.causes) if cause.name == name]
    each: list[int] = found.ns[:, chosen].sum(axis=1)[found.result.engine_timeline.class_of].tolist()
    return each


def test_t4_11_a_uniform_pipeline_warms_up_and_drains_and_waits_for_nothing_else(layers_only: None) -> None:
    """(P - 1) of M + P - 1, half before the first backward slot and half after the last forward slot."""
    found = pipeline()
    fill = (STAGES - 1) / (MICROBATCHES + STAGES - 1)
    step_s = found.result.metrics.step_time_s
    idle_s = sum(found.largest.values())
    assert (found.mean_s(WARM_UP) + found.mean_s(DRAIN)) / step_s == pytest.approx(fill, abs=1e-6)
    assert idle_s / step_s == pytest.approx(fill, abs=1e-6)
    assert found.mean_s(WARM_UP) == pytest.approx(found.mean_s(DRAIN), rel=1e-5)


@pytest.mark.parametrize("slow", range(STAGES))
def test_t4_12_a_slower_stage_changes_neither_warm_up_nor_drain_of_the_others_and_is_named(layers_only: None, slow: int) -> None:
    usual, found = pipeline(), pipeline(sim.Perturb(rank=slow, speed=1 / 1.2))
    others = [rank for rank in range(STAGES) if rank != slow]
    for part in (WARM_UP, DRAIN):
        assert [of(found, part)[rank] for rank in others] == pytest.approx([of(usual, part)[rank] for rank in others], rel=1e-6)
        assert of(found, part)[slow] <= of(usual, part)[slow] * (1 + 1e-6), "it fills some of its waits itself"
    named = [cause for cause in found.causes if cause.name == STAGE_IMBALANCE]
    assert [(cause.stage, cause.rank) for cause in named] == [(slow, slow)]
    assert found.mean_s(DEPENDENCY) / found.result.metrics.step_time_s < 1e-6
    bubble_s = found.result.metrics.bubble_fraction * found.result.metrics.step_time_s
    assert sum(found.mean_s(name) for name in (WARM_UP, DRAIN, STAGE_IMBALANCE, DEPENDENCY)) == pytest.approx(bubble_s)
    slower_ns = 0.2 * of(found, "busy")[others[0]] * (MICROBATCHES - (STAGES - 1 - slow)) / MICROBATCHES
    assert [of(found, STAGE_IMBALANCE)[rank] for rank in others] == pytest.approx([slower_ns] * len(others), rel=1e-3)
    assert of(found, STAGE_IMBALANCE)[slow] < 1e-3 * slower_ns


def test_t4_13_imbalance_of_a_group_names_its_slower_member() -> None:
    job = sim.Job(sequence_length=128, global_batch=16)
    run = scenario(
        small_model(layers=2), small_cluster(1), sim.Plan(dp=4), job, perturb=[sim.Perturb(rank=2, speed=0.5)]
    ).simulate()
    named = {(cause.name, cause.rank) for cause in idle_time(run).causes if cause.rank >= 0}
    assert named == {(imbalance("dp"), 2)}


@settings(max_examples=12)
@given(st.data())
def test_t4_14_all_causes_add_up_to_the_step_on_every_rank(data: st.DataObject) -> None:
    """To the nanosecond; parts of the bubble to the bubble, and members of a group to its imbalance."""
    tp, pp, dp = data.draw(st.sampled_from([(1, 4, 2), (2, 2, 2), (1, 8, 1), (2, 1, 4), (1, 2, 4)]))
    plan: dict[str, Any] = {
        "tp": tp, "pp": pp, "dp": dp,
        "sharding": data.draw(st.sampled_from(["none", "zero1"])),
        "optimizer": data.draw(st.sampled_from(["synchronised", "post-validated"])),
        "schedule": data.draw(st.sampled_from(["1f1b", "gpipe", "zb-h1"])),
    }  # fmt: skip
    slow = [sim.Perturb(rank=data.draw(st.integers(0, 7)), speed=0.7)] if data.draw(st.booleans()) else []
    framework = sim.framework(data.draw(st.sampled_from(["none", "megatron-core-2025"])))
    job = sim.Job(sequence_length=128, global_batch=8)
    given = scenario(small_model(), small_cluster(2), sim.Plan(**plan), job, perturb=slow, framework=framework)
    adds_up(given.simulate(steps=data.draw(st.sampled_from([None, None, 2]))))


def adds_up(run: sim.Run) -> None:
    found = idle_time(run)
    assert (found.ns >= 0).all()
    np.testing.assert_array_equal(found.ns.sum(axis=1), run.observation.window_ns)
    parts = [n for n, cause in enumerate(found.causes) if cause.name in (WARM_UP, DRAIN, DEPENDENCY, STAGE_IMBALANCE)]
    np.testing.assert_array_equal(found.ns[:, parts].sum(axis=1), run.time_by_cause.of(BUBBLE))
    for axis in run.observation.axes:
        members = [n for n, cause in enumerate(found.causes) if cause.name == imbalance(axis)]
        np.testing.assert_array_equal(found.ns[:, members].sum(axis=1), run.time_by_cause.of(imbalance(axis)))
    assert all(cause.rank >= 0 for cause in found.causes if "imbalance" in cause.name)
