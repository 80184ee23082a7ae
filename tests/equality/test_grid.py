"""Folded equals unfolded, every start and end, on a grid of plans with and without something broken in them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest

import simulator as sim
from simulator.engine.skeleton import Skeleton
from simulator.errors import UserError
from simulator.simulation.runnable import RunnableScenario as Scenario

from ..small_scenarios import Both, both, bound_twice, scenario, small_cluster, small_model

ORDERS = ("tp-cp-ep-dp-pp", "tp-pp-dp")
BREAKS = ("symmetric", "slow GPU", "slow NIC", "slow uplink", "uneven microbatches")


class Point(NamedTuple):
    replicas: int
    pp: int
    tp: int
    oversubscription: float
    order: str
    chunks: int
    broken: str


GRID = [Point(*values) for values in product((1, 2, 4), (2, 4, 8), (2, 4), (1.0, 2.0), ORDERS, (1, 2), BREAKS)]
SAMPLE = [p for i, p in enumerate(p for p in GRID if p.replicas * p.pp * p.tp <= 32) if i % 17 == 0]


def both_of(p: Point) -> Both:
    whole, folded = bound_twice(scenario_of(p))
    return both(uneven(whole, p), uneven(folded, p)) if p.broken == "uneven microbatches" else both(whole, folded)


def scenario_of(p: Point) -> Scenario:
    gpus = p.replicas * p.pp * p.tp
    cluster = small_cluster(
        max(1, gpus // 4), **({"gpus_per_node": gpus} if gpus < 4 else {}), oversubscription=p.oversubscription
    )
    schedule = "interleaved" if p.chunks > 1 else "1f1b"
    plan = sim.Plan(tp=p.tp, pp=p.pp, dp=p.replicas, chunks=p.chunks, schedule=schedule, rank_order=p.order, sharding="zero1")
    job = sim.Job(sequence_length=128, global_batch=p.replicas * p.pp)
    model = small_model(layers=p.pp * p.chunks + 1)
    perturb = tuple(_perturbation(p.broken, cluster))
    return scenario(model, cluster, plan, job, perturb=perturb)


def _perturbation(broken: str, cluster: Any) -> list[Any]:
    if broken == "slow GPU":
        return [sim.Perturb(rank=1, speed=0.7)]
    link = {"slow NIC": "node0/nic1>leaf1", "slow uplink": "leaf1>spine"}.get(broken)
    try:
        exists = link is not None and cluster.link_named(link) >= 0
    except UserError:
        exists = False
    return [sim.Perturb(link=link, capacity=0.4, from_s=0.0002, until_s=0.003)] if exists else []


def uneven(skeleton: Skeleton, p: Point) -> Skeleton:
    """Every other replica computes a third longer: programs of its own for its ranks."""
    longer = [replace_solo(t, t.solo_ns * 4 // 3) for t in skeleton.templates]
    groups = np.arange(skeleton.ranks)
    dp_first = p.order.index("dp") < p.order.index("pp")
    replica = groups // p.tp % p.replicas if dp_first else groups // (p.tp * p.pp)
    program = np.where(replica % 2 == 1, skeleton.program + len(skeleton.templates), skeleton.program)
    return replace(skeleton, templates=(*skeleton.templates, *longer), program=program)


def replace_solo(template: Any, solo_ns: Any) -> Any:
    return replace(template, solo_ns=solo_ns)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("point", SAMPLE, ids=str)
def test_sample_of_the_grid(point: Point) -> None:
    both_of(point).assert_equal()


@pytest.mark.slow
@pytest.mark.parametrize(("replicas", "pp"), list(product((1, 2, 4), (2, 4, 8))))
def test_a_third_of_the_grid(replicas: int, pp: int) -> None:
    for point in GRID[::3]:
        if (point.replicas, point.pp) == (replicas, pp):
            both_of(point).assert_equal()


def test_symmetric_plans_fold_to_their_stages_and_broken_ones_split() -> None:
    whole = both_of(Point(4, 4, 2, 1.0, ORDERS[0], 1, "symmetric"))
    assert whole.classes == 4
    for broken in ("slow GPU", "slow NIC", "uneven microbatches"):
        assert both_of(Point(4, 4, 2, 1.0, ORDERS[0], 1, broken)).classes > 4


def test_a_slow_gpu_slows_everybody_a_little_and_itself_most() -> None:
    fine = both_of(Point(2, 2, 2, 1.0, ORDERS[0], 1, "symmetric"))
    slow = both_of(Point(2, 2, 2, 1.0, ORDERS[0], 1, "slow GPU"))
    assert slow.folded_times.makespan_ns > fine.folded_times.makespan_ns
