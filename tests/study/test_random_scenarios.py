"""200 scenarios at random: the critical path is as long as the measured steps, and every rank's time has its causes."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest

import simulator as sim
from simulator.metrics.idle import BUBBLE, imbalance
from simulator.study.critical_path import critical_path
from simulator.study.idle_causes import DEPENDENCY, DRAIN, STAGE_IMBALANCE, WARM_UP, idle_time

from ..small_scenarios import scenario, small_cluster, small_model

SEEDS = 200
SHAPES = [(1, 1, 1), (2, 1, 1), (1, 4, 1), (2, 2, 1), (1, 8, 1), (4, 2, 1), (1, 2, 2), (2, 1, 2), (1, 1, 4)]
"""Degrees of tensor, pipeline and context parallelism."""


def run_of(seed: int) -> sim.Run:
    """A scenario of eight GPUs, drawn by a seed: any parallelism, schedule, sharding, network, framework, slow rank or link."""
    draw = Random(seed)
    tp, pp, cp = draw.choice(SHAPES)
    experts = draw.random() < 0.25 and cp == 1 and tp == 1 and pp < 8
    plan: dict[str, Any] = {"tp": tp, "pp": pp, "cp": cp, "optimizer": draw.choice(["synchronised", "post-validated"])}
    schedules: list[dict[str, Any]] = [{"schedule": name} for name in ("1f1b", "gpipe", "zb-h1", "naive")]
    schedules += [{"schedule": "interleaved", "chunks": 2}, {"schedule": "zb-v", "chunks": 2}]
    plan |= draw.choice(schedules) if pp > 1 else {}
    plan["sharding"] = draw.choice(["none", "zero1", "fsdp"] if pp == 1 else ["none", "zero1"])
    plan["recompute"] = draw.choice(["none", "none", "full"])
    plan["overlap"] = sim.Overlap(dp=draw.random() < 0.5, pp=draw.random() < 0.5)
    plan |= {"ep": 8 // pp, "moe": sim.Moe(routing=draw.choice(["balanced", "drawn"]))} if experts else {}
    if plan["optimizer"] == "post-validated" and plan["sharding"] == "fsdp":
        plan["optimizer"] = "synchronised"
    slow = [sim.Perturb(rank=draw.randrange(8), speed=0.6)] if draw.random() < 0.3 else []
    slow += [sim.Perturb(link="node1/nic2>leaf2", capacity=0.2)] if draw.random() < 0.3 else []
    shape = draw.choice([{"shape": "rail-optimized"}, {"shape": "rail-optimized", "inter_node": "4x5 Gbit/s"}])
    model = small_model(
        **({"experts": 8, "experts_per_token": 2, "expert_ffn_hidden": 256} if experts else {}), layers=8 * plan.get("chunks", 1)
    )
    fidelity = sim.Fidelity(collectives=draw.choice(["fluid", "fluid", "closed"]), overlap=draw.choice(["free", None]))
    job = sim.Job(sequence_length=256, global_batch=draw.choice([8, 8, 16]))
    framework = sim.framework(draw.choice(["none", "none", "megatron-core-2025"]))
    given = scenario(model, small_cluster(**shape), sim.Plan(**plan), job, perturb=slow, framework=framework, fidelity=fidelity)
    return given.simulate(steps=draw.choice([None, None, None, 1, 2]))


@pytest.mark.thinned(30)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_path_and_attribution_add_up_to_the_nanosecond(seed: int) -> None:
    run = run_of(seed)
    path, window = critical_path(run), run.observation.window
    assert path.length_ns == run.observation.window_ns[window.end_ns.argmax()]
    assert all(one.until_ns == following.from_ns for one, following in pairwise(path.segments))
    found = idle_time(run)
    assert (found.ns >= 0).all()
    np.testing.assert_array_equal(found.ns.sum(axis=1), run.observation.window_ns)

    def of(*names: str) -> Any:
        return found.ns[:, [number for number, cause in enumerate(found.causes) if cause.name in names]].sum(axis=1)

    np.testing.assert_array_equal(of(WARM_UP, DRAIN, DEPENDENCY, STAGE_IMBALANCE), run.time_by_cause.of(BUBBLE))
    for axis in run.observation.axes:
        np.testing.assert_array_equal(of(imbalance(axis)), run.time_by_cause.of(imbalance(axis)))
    assert all(cause.rank >= 0 for cause in found.causes if "imbalance" in cause.name)
