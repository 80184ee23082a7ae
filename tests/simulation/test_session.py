"""A session gives the results of simulations without one, and what it keeps is bounded."""

from __future__ import annotations

import gc
import tracemalloc
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from multiprocessing import get_context
from unittest import mock

import pytest

import simulator as sim
from simulator.bounded_cache import Cache
from simulator.simulation import choose_engine
from simulator.simulation.simulate import simulate_scenario

from ..small_scenarios import scenario, small_cluster

PLANS = [
    sim.Plan(tp=tp, pp=pp, schedule=schedule, sharding=sharding)
    for (tp, pp), schedule, sharding in product([(1, 2), (2, 2), (2, 4), (4, 2)], ["1f1b", "zb-h1"], ["none", "zero1"])
]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("batch", [16, 32])
def test_results_are_the_same_in_a_session_and_without(batch: int) -> None:
    session = sim.Session()
    for plan in PLANS:
        of = scenario(plan=plan, cluster=small_cluster(4), job=sim.Job(64, batch))
        with mock.patch.multiple(choose_engine, _is_loaded=lambda: False, _is_kept=lambda: False):
            one, other = simulate_scenario(of, session=session), simulate_scenario(of)
        assert one.metrics == other.metrics
        assert one.memory == other.memory
        assert one.program == other.program
        assert one.engine == other.engine
        assert one.simulated.repeats or one.engine_reason == other.engine_reason
        assert list(one.kernel_costs) == list(other.kernel_costs)


@pytest.mark.slow
def test_what_differs_is_told_apart_in_a_session() -> None:
    session, base = sim.Session(), scenario(cluster=small_cluster(4), plan=sim.Plan(tp=2, pp=2), job=sim.Job(64, 16))
    others = [
        base,
        replace(base, cluster=replace(base.cluster, nic=replace(base.cluster.nic, bytes_per_s=1e9))),
        replace(base, cluster=replace(base.cluster, gpu=replace(base.cluster.gpu, tdp_w=450.0))),
        replace(base, fidelity=replace(base.fidelity, power="burst")),
        replace(base, job=replace(base.job, sequence_length=128)),
        replace(base, model=replace(base.model, layers=8)),
        replace(base, perturb=(sim.Perturb(rank=3, speed=0.5),)),
    ]
    for of in (*others, *others):
        assert simulate_scenario(of, session=session).metrics == simulate_scenario(of).metrics


def test_one_account_of_memory_serves_any_number_of_microbatches() -> None:
    session, base = sim.Session(), scenario(cluster=sim.cluster("dgx-h100", nodes=2), plan=sim.Plan(tp=2, pp=2, sharding="zero1"))
    offloading = replace(base, plan=sim.Plan(sharding="zero3", offload=sim.Offload(optimizer=True)))
    reserving = replace(base, cluster=replace(base.cluster, gpu=replace(base.cluster.gpu, reserved_bytes=1e9)))
    for of, accounts in ((base, 1), (offloading, 3), (reserving, 4)):  # a single pass copies all gradients to the host
        for batch in (16, 32, 64):
            more = replace(of, job=replace(of.job, global_batch=batch))
            assert simulate_scenario(more, session=session).memory == simulate_scenario(more).memory
        assert len(session.accounts) == accounts


def test_kept_values_are_bounded_and_the_oldest_go_first() -> None:
    kept: Cache = Cache(3)
    made: list[int] = []

    def value(key: int) -> int:
        made.append(key)
        return key

    for key in (0, 1, 2, 0, 3, 0, 1):
        assert kept.of(key, lambda key=key: value(key)) == key
    assert made == [0, 1, 2, 3, 1]
    assert len(kept) == 3
    assert kept.of("heavy", lambda: "heavy", weight=4) == "heavy"
    assert len(kept) == 3


def _memory_of_a_session(rounds: int) -> list[int]:
    """Traced bytes after each round of the same hundred simulations in one session."""
    session = sim.Session()
    tracemalloc.start()
    sizes = []
    for _ in range(rounds):
        for number in range(100):
            of = scenario(plan=PLANS[number % len(PLANS)], cluster=small_cluster(4), job=sim.Job(64 + 16 * (number % 50), 16))
            simulate_scenario(of, session=session, allow_oom=True)
        gc.collect()
        sizes.append(tracemalloc.get_traced_memory()[0])
    return sizes


@pytest.mark.slow
def test_the_memory_of_a_session_stays_flat() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:  # what other tests keep is not counted
        sizes = alone.submit(_memory_of_a_session, 4).result()
    assert sizes[-1] < 1.05 * sizes[1]
