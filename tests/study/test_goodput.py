"""Goodput: the renewal model beside a simulated failing job, the best interval beside its formulas, bytes of checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import astuple, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import simulator as sim
from simulator.errors import UserError
from simulator.hardware.measure import switches
from simulator.study.renewal import Interruptions, best_interval_s, daly_s, failures_per_s, shares, waiting_fraction, young_s

from ..commandline import SMALL, trainsim
from .failing_job import FailingJob

HOUR_S, DAY_S = 3600, 86400
SYNC = Interruptions(1 / 10_000, pause_s=60, detection_s=300, restart_s=700)
ASYNC = Interruptions(1 / 10_000, pause_s=5, write_s=400, detection_s=300, restart_s=700)
STANDARD_ERRORS = 4
REPLICAS, MTBFS = 24, 250


def compared(job: Interruptions, interval_s: float, seed: int, **more: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Means of the effective fraction and of the work per second over simulated jobs, and the standard errors of both."""
    seeds = np.random.SeedSequence(seed).spawn(REPLICAS)
    checkpoints = round(MTBFS * job.mtbf_s * shares(job, interval_s).trained / interval_s)
    runs = [FailingJob(job, interval_s, np.random.default_rng(one), **more).run(checkpoints) for one in seeds]
    return np.mean(runs, axis=0), np.std(runs, axis=0, ddof=1) / math.sqrt(REPLICAS)


@pytest.mark.parametrize(
    ("job", "interval_s"),
    [
        (ASYNC, 900),
        pytest.param(SYNC, 1200, marks=pytest.mark.slow),
        pytest.param(SYNC, 8000, marks=pytest.mark.slow),
        pytest.param(replace(ASYNC, restart_s=9000, detection_s=0), 2000, marks=pytest.mark.slow),
        pytest.param(replace(SYNC, detection_s=0, restart_s=0), 300, marks=pytest.mark.slow),
    ],
)
def test_a_simulated_job_trains_as_long_as_the_model_says(job: Interruptions, interval_s: float) -> None:
    (trained, _), (error, _) = compared(job, interval_s, seed=18)
    assert abs(trained - shares(job, interval_s).trained) < STANDARD_ERRORS * error
    assert error < 0.01


@pytest.mark.slow
@pytest.mark.parametrize(("spares", "repair_s"), [(0, 2000), (1, 20_000), (3, 40_000)])
def test_a_simulated_job_waits_for_repairs_as_long_as_the_model_says(spares: int, repair_s: float) -> None:
    job = replace(SYNC, detection_s=0)
    (trained, _), (error, _) = compared(job, 1200, seed=19, of_nodes=0.6, spares=spares, repair_s=repair_s)
    waiting = waiting_fraction(0.6 * job.rate_per_s * repair_s, spares)
    assert waiting > 0.02
    assert abs(trained - shares(job, 1200).delayed(waiting).trained) < STANDARD_ERRORS * error


@pytest.mark.slow
def test_stragglers_slow_a_simulated_job_as_the_model_says() -> None:
    slow = {"slow_rate_per_s": 1 / 5000, "slow_s": 3600.0, "slow_speed": 0.8}
    (trained, work), (error, of_work) = compared(SYNC, 1200, seed=20, **slow)
    never = math.exp(-3600 / 5000)
    assert abs(trained - shares(SYNC, 1200).trained) < STANDARD_ERRORS * error
    assert abs(work - shares(SYNC, 1200).trained * (never + 0.8 * (1 - never))) < STANDARD_ERRORS * of_work


jobs = st.builds(
    Interruptions,
    st.floats(1e-7, 1e-4),
    pause_s=st.floats(0, 600),
    write_s=st.floats(0, 1000),
    detection_s=st.floats(0, 1000),
    restart_s=st.floats(0, 3000),
)


@given(jobs, st.floats(1, 50_000))
def test_shares_of_the_time_add_up_and_none_is_negative(job: Interruptions, interval_s: float) -> None:
    parts = astuple(shares(job, interval_s))
    assert sum(parts) == pytest.approx(1)
    assert min(parts) >= -1e-9
    assert astuple(shares(job, interval_s).delayed(0.25)) == pytest.approx([0.75 * part for part in parts[:-1]] + [0.25])


@given(jobs)
def test_no_other_interval_keeps_more(job: Interruptions) -> None:
    best_s = best_interval_s(job, least_s=1)
    most = shares(job, best_s).trained
    for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2):
        if (other_s := factor * best_s) >= max(1, job.write_s - job.pause_s):
            assert shares(job, other_s).trained <= most * (1 + 1e-12)


def test_formulas_are_those_of_young_and_daly() -> None:
    """Daly (2006), figures 3, 4 and 5: checkpoints of 5 min; failures every 24 h, 6 h and 15 min."""
    for hours, minutes in ((24, 117), (6, 57), (0.25, 9.1)):
        job = Interruptions(1 / (hours * HOUR_S), pause_s=300, restart_s=600)
        assert daly_s(job) / 60 == pytest.approx(minutes, rel=0.006)
        assert best_interval_s(job) == pytest.approx(daly_s(job), rel=0.01)
    job = Interruptions(1e-9, pause_s=300)
    assert young_s(job) == math.sqrt(2 * 300 * 1e9)
    assert best_interval_s(job) == pytest.approx(young_s(job), rel=1e-3)


def test_limits_of_the_model() -> None:
    never = Interruptions(0.0, pause_s=60)
    assert shares(never, 540).trained == 0.9
    assert failures_per_s(never) == 0
    assert waiting_fraction(0.0, 0) == 0
    assert waiting_fraction(1.0, 0) == 0.5
    assert waiting_fraction(2.0, 1) == pytest.approx(2 / 5)
    with pytest.raises(sim.Infeasible, match="makes no progress"):
        shares(Interruptions(1.0, 60), 600)


SCENARIO: dict[str, Any] = yaml.safe_load(SMALL)
OF_A_MODEL: dict[str, tuple[dict[str, Any], float]] = {
    "plain": ({}, 14),
    "divided by all axes": ({"plan": {"tp": 4, "pp": 2, "sharding": "zero1"}}, 14),
    "fully sharded": ({"plan": {"sharding": "fsdp"}}, 12),
    "in two copies": ({"plan": {"pp": 4, "schedule": "dualpipe"}}, 14),
    "experts": ({"model": {**SCENARIO["model"], "experts": 8, "experts_per_token": 2}, "plan": {"tp": 2, "ep": 4, "etp": 1}}, 14),
    "fp32": ({"job": {**SCENARIO["job"], "dtype": "fp32"}}, 12),
    "a table on two ranks": ({"model": {**SCENARIO["model"], "tied_embeddings": True}, "plan": {"pp": 2}}, 14),
    "a table for further tokens": ({"model": {**SCENARIO["model"], "mtp_layers": 1}, "plan": {"pp": 2}}, 14),
}


@cache
def small() -> sim.Run:
    return sim.scenario(SCENARIO).simulate()


@pytest.mark.parametrize("case", OF_A_MODEL)
def test_a_checkpoint_holds_weights_master_copy_and_moments_once(case: str) -> None:
    changes, bytes_each = OF_A_MODEL[case]
    run = sim.scenario({**SCENARIO, **changes}).simulate()
    saved = sim.goodput(run, "50000 h").saving.size_bytes
    assert saved == pytest.approx(bytes_each * run.scenario.model.parameters, rel=0.002)


def test_components_are_counted_and_their_failures_add_up() -> None:
    found = sim.goodput(small(), {"gpu": "1000 d", "nic": "2 per 100 d", "switch": "3 in 10 d of 5", "job": "50 d"})
    leaves = sum(name.startswith("leaf") for name in small().scenario.cluster.vertices)
    assert found.components["gpu"] == found.components["nic"] == 16
    assert found.components["switch"] >= leaves > 0
    per_day = {"gpu": 0.016, "nic": 0.32, "switch": found.components["switch"] * 0.06, "job": 0.02}
    assert {kind: rate * DAY_S for kind, rate in found.rates_per_s.items()} == pytest.approx(per_day)
    assert found.job.mtbf_s == pytest.approx(DAY_S / sum(per_day.values()))


def test_switches_are_those_that_one_buys_however_traffic_is_routed() -> None:
    """The graph pools the spines that traffic is sprayed over; hubs and gateways are no switches."""
    for name, nodes in (("dgx-h100", 64), ("aws-p5", 64), ("polaris", 32)):
        counts = set[int]()
        for routing in ("spray", "ecmp"):
            cluster = {"name": name, "nodes": nodes, "routing": routing}
            run = sim.scenario({**SCENARIO, "cluster": cluster, "plan": {}, "job": {**SCENARIO["job"], "global_batch": 512}})
            counts.add(sim.goodput(run, {"switch": "20000 h"}).components["switch"])
        assert counts == {sum(switches(run.cluster).values())}, name


def test_bandwidth_of_nodes_and_of_the_storage() -> None:
    usual = sim.goodput(small(), "50000 h")
    size = usual.saving.size_bytes
    assert usual.saving.write_s == usual.saving.pause_s == size / 4e9
    shared = sim.goodput(small(), "50000 h", checkpoint={"node": "4 GB/s", "storage": "1 GB/s", "kind": "async"})
    assert shared.saving.write_s == shared.job.write_s == size / 1e9
    assert shared.saving.pause_s == size / 16 / small().scenario.cluster.pcie.bytes_per_s
    assert shared.job.restart_s == 600 + size / 1e9


def test_more_trouble_is_less_goodput() -> None:
    usual: Callable[..., float] = lambda mtbf="5000 h", **more: sim.goodput(small(), mtbf, **more).goodput  # noqa: E731
    worse = [
        usual("500 h"),
        usual(recovery={"restart": "2 h"}),
        usual(recovery={"detection": "2 h"}),
        usual(checkpoint={"interval": "1 min"}),
        usual(recovery={"spares": 0}),
        usual(stragglers={"gpu": "100 h"}),
    ]
    assert max(worse) < usual()
    assert usual(recovery={"spares": 1}) > usual(recovery={"spares": 0})


@pytest.mark.parametrize("pp", [1, 2, 8])
def test_a_slow_gpu_is_simulated_on_any_stage(pp: int) -> None:
    """At the mean speed over GPUs; of more than four stages two stand for all between the ends. It may be any place of a plan."""
    placement = [*range(0, 16, 2), *range(1, 16, 2)]
    plan = {"tp": 1, "pp": pp, "placement": placement, "layout": "even" if pp < 8 else "last=2"}
    of = {**SCENARIO, "model": {**SCENARIO["model"], "layers": 16}, "plan": plan}
    run = sim.scenario(of).simulate()
    found = sim.goodput(run, "5000 h", stragglers={"gpu": "100 h", "speed": 0.5, "lasts": "30 min"})

    def slowed_s(stage: int) -> float:
        gpu = placement[stage * 16 // pp]
        return float(sim.scenario({**of, "perturb": [{"rank": gpu, "speed": 0.5}]}).simulate().metrics.step_time_s)

    weights = {0: 1.0, 2: 3.0, 4: 3.0, 7: 1.0} if pp == 8 else dict.fromkeys(range(pp), 1.0)
    mean_s = pp / sum(weight / slowed_s(stage) for stage, weight in weights.items())
    assert found.slowed_step_s == pytest.approx(mean_s, rel=1e-12)
    assert mean_s > slowed_s(0) or pp == 1
    never = math.exp(-16 * 0.5 / 100)
    assert found.speed == pytest.approx(never + (1 - never) * run.metrics.step_time_s / mean_s)


def test_stragglers_of_a_run_that_does_not_fit_are_simulated_as_it_was() -> None:
    run = sim.scenario({**SCENARIO, "model": "llama3-70b", "job": {"sequence_length": 64, "global_batch": 16}})
    found = sim.goodput(run.simulate(allow_oom=True), "5000 h", stragglers={"gpu": "100 h"})
    assert not found.run.fits
    assert found.slowed_step_s > found.run.metrics.step_time_s


REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "no unit": (("--mtbf", "50000"), "bare number"),
    "no such component": (("--mtbf", "gpus=5 h"), "did you mean 'gpu'?"),
    "no failure in a count": (("--mtbf", "0 in 5 d"), "counts nothing"),
    "a component twice": (("--mtbf", "5 h", "--mtbf", "gpu=5 h"), "gpu occurs twice"),
    "no such kind of checkpoint": (("--mtbf", "5 h", "--checkpoint", "asyn"), "did you mean 'async'?"),
    "no interval": (("--mtbf", "5 h", "--checkpoint-interval", "0 s"), "at least a step"),
    "less than a step": (
        ("--mtbf", "5 h", "--checkpoint-interval", "10 ms"),
        "a checkpoint every 10.00 ms is more than one in each step, which takes",
    ),
    "nothing fails": ((), "--mtbf gpu=50000h or --checkpoint-interval 30min"),
    "a checkpoint before the last": (
        ("--mtbf", "9 h", "--checkpoint", "async", "--checkpoint-interval", "1 s", "--node-bandwidth", "100 MB/s"),
        "begins before the last one",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_no_sense_is_refused(case: str, tmp_path: Any) -> None:
    options, message = REFUSED[case]
    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    said = trainsim("goodput", file, *options)
    assert (said.code, message in said.err) == (2, True), said.err


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(UserError) as wrong:
        sim.goodput(small(), {"gpus": "1 h", "nic": "x"}, checkpoint={"interval": 30}, recovery={"spares": -1}, days=0)
    assert len(wrong.value.faults) == 5


@pytest.mark.slow
def test_the_published_counts_of_llama_3_keep_nine_tenths_of_the_time() -> None:
    """419 unexpected interruptions in 54 days on 16,384 GPUs, and more than 90% of effective time; restarts are assumed."""
    checkpoint = {"storage": "2 TB/s"}
    run = sim.load("llama3-405b-16384xh100").simulate()
    found = {
        kind: sim.goodput(run, {"job": "419 in 54 d"}, checkpoint={**checkpoint, "kind": kind}, days=54)
        for kind in ("sync", "async")
    }
    assert {kind: round(one.ettr, 3) for kind, one in found.items()} == {"sync": 0.902, "async": 0.921}
    assert found["sync"].run.gpus == 16_384
