"""Every file in simulator/metrics, found unasked: on an empty timeline, on one task, and with all times scaled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest

import simulator as sim
from simulator.config import catalog
from simulator.engine import des
from simulator.engine.fold import fold
from simulator.engine.skeleton import Skeleton, Tariff
from simulator.engine.task import FULL_SPEED, Csr, Profile
from simulator.engine.template import Template
from simulator.engine.timeline import Timeline, Times
from simulator.kernels import Gemm
from simulator.metrics import Observation, observe
from simulator.program.labels import Labels
from simulator.program.operations import COMPUTE, Compute
from simulator.program.program import Stage, Step

from ..small_scenarios import scenario, small_cluster

NAMES = sorted(catalog.files("metrics"))


def observation_of(durations_ns: list[int]) -> Observation:
    """One rank that runs so many kernels one after the other."""
    n = len(durations_ns)
    none, zeros = np.zeros(0, dtype=np.int64), np.zeros((1, 1), dtype=np.int64)
    lanes = Csr.from_lists([list(range(n))])
    template = Template(
        np.full(n, -1), np.array(durations_ns, dtype=np.int64), np.zeros(n, dtype=np.int64), Csr.from_lists([[]] * n), lanes
    )
    skeleton = Skeleton(
        (template,), Tariff(*[zeros] * 8), (Profile.constant(FULL_SPEED),), np.array([0]), np.array([0]),
        np.full((1, 1), -1), none, 1, Csr.from_lists([]), none, none,
    )  # fmt: skip
    folded = fold(skeleton)
    op = Compute(name="product", streams=(COMPUTE,), kernel=Gemm(8, 8, 8, 2))
    labels = Labels(
        (Step("F", "F", 0, 0, iteration=0),), (op,), np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64), (COMPUTE,), ("",),
        (Stage(0, 0, 0, 0, 1, True, True),),
    )  # fmt: skip
    timeline = Timeline(des.simulate(folded.graph), folded)
    return observe(timeline, (labels,), model_flop=1024.0, peak_flop_per_s=1e12)


def scaled(seen: Observation, factor: int) -> Observation:
    once = seen.timeline.times
    times = Times(once.start_ns * factor, once.end_ns * factor, once.arrival_ns * factor)
    window = replace(seen.window, begin_ns=seen.window.begin_ns * factor, end_ns=seen.window.end_ns * factor)
    return replace(seen, timeline=Timeline(times, seen.timeline.expansion), window=window)


def numbers(value: Any) -> Iterator[float]:
    """Every number in a metric's result."""
    if is_dataclass(value) and not isinstance(value, type):
        for f in fields(value):
            yield from numbers(getattr(value, f.name))
    elif isinstance(value, np.ndarray):
        yield from value.astype(float).ravel().tolist()
    elif isinstance(value, (int, float, np.number)) and not isinstance(value, bool):
        yield float(value)


@pytest.mark.parametrize("name", NAMES)
def test_a_metric_says_how_it_scales_and_survives_an_empty_timeline(name: str) -> None:
    metric = catalog.module("metrics", name)
    assert metric.SCALES in ("time", "fraction", "rate")
    found = list(numbers(metric.measure(observation_of([]))))
    assert found
    assert all(value == 0 for value in found)


@pytest.mark.parametrize("name", NAMES)
def test_one_task(name: str) -> None:
    metric = catalog.module("metrics", name)
    found = list(numbers(metric.measure(observation_of([1000]))))
    assert all(np.isfinite(found))
    assert name in ("bubble", "slowed-s") or any(found)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("factor", [2, 7])
def test_scaled_times_scale_the_metric(name: str, factor: int) -> None:
    metric = catalog.module("metrics", name)
    plan = sim.Plan(tp=2, pp=2, dp=2, sharding="zero1")
    seen = scenario(cluster=small_cluster(2), plan=plan).simulate().observation
    once, more = np.array(list(numbers(metric.measure(seen)))), np.array(list(numbers(metric.measure(scaled(seen, factor)))))
    change = {"time": factor, "fraction": 1.0, "rate": 1 / factor}[metric.SCALES]
    np.testing.assert_allclose(more, once * change, rtol=1e-9)


def test_one_busy_rank_is_busy_all_the_time() -> None:
    seen = observation_of([300, 200])
    assert catalog.module("metrics", "idle").measure(seen).of("busy").tolist() == [500]
    use = catalog.module("metrics", "mfu").measure(seen)
    assert use.mfu == pytest.approx(1024 / (500e-9 * 1e12))
    assert use.hfu == pytest.approx(2 * 1024 / (500e-9 * 1e12))
