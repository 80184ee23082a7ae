"""Compute beside communication: slowed where both run on a GPU at the same time, by what the library takes, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import simulator as sim
from simulator.binding.gpu_occupancy import Occupancy
from simulator.config import feasible, step_constants
from simulator.engine.task import CORES, FULL_SPEED, LEAST_SPEED, MEMORY
from simulator.errors import UserError
from simulator.program.operations import Communicator
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.workload.framework import CommunicationSms, Framework

from ..small_scenarios import bound, scenario, small_cluster, small_model

FREE = sim.Fidelity("closed", "free", calibration="kernels")
SLOWED = sim.Fidelity("closed", "slowed", calibration="kernels")
"""Arithmetic loses the share of SMs that communication holds, so that tests can do the sums."""
BESIDE = sim.Plan(tp=4, overlap=sim.Overlap(tp=True))
"""Reduce-scatters of input gradients beside weight gradients."""
EXPOSED = sim.Plan(tp=4, overlap=sim.Overlap(dp=False))
SMS = 132


def small(plan: sim.Plan, fidelity: sim.Fidelity, **sms: int) -> Scenario:
    job, framework = sim.Job(sequence_length=256, global_batch=4), Framework(sms=CommunicationSms(**sms))
    return scenario(small_model(2), small_cluster(1), plan, job, fidelity=fidelity, framework=framework)


def kernels(run: sim.Run) -> tuple[Any, Any, Any]:
    """Start, end and time alone of every kernel of rank 0 that communication may slow."""
    graph, tasks, times = run.engine_timeline.expansion.graph, run.engine_timeline.tasks_of(0), run.engine_timeline.times
    assert graph.sharing
    slowed = tasks[graph.sharing.resource[tasks] >= 0]
    return times.start_ns[slowed], times.end_ns[slowed], graph.solo_ns[slowed]


def test_t22_1_a_gemm_beside_a_collective_runs_on_the_sms_that_are_left() -> None:
    """By hand: weight gradients start together with reduce-scatters of input gradients, or with gathers, and outlast them."""
    run = small(BESIDE, SLOWED, rings=33).simulate()
    graph, tasks, times = run.engine_timeline.expansion.graph, run.engine_timeline.tasks_of(0), run.engine_timeline.times
    assert graph.sharing
    lasts = {int(times.start_ns[t]): int(times.end_ns[t] - times.start_ns[t]) for t in tasks if graph.sharing.group[t] >= 0}
    left = FULL_SPEED - 8 * FULL_SPEED // SMS  # 256 x 512 elements of 2 bytes fill 8 channels, of 33
    gemms = tasks[graph.sharing.resource[tasks] == CORES].tolist()
    assert len(gemms) == len(lasts) > 10
    for task in gemms:
        beside_ns, work = lasts[int(times.start_ns[task])], int(graph.solo_ns[task]) * FULL_SPEED
        assert times.end_ns[task] - times.start_ns[task] == beside_ns + -(-(work - beside_ns * left) // FULL_SPEED)


def test_t22_4_kernels_keep_half_of_a_gpu_whatever_runs_beside_them() -> None:
    start, end, alone = kernels(small(replace(BESIDE, tp=1, dp=4), SLOWED, rings=64).simulate())
    assert (end - start >= alone).all()
    assert (end - start <= -(-(alone << 16) // LEAST_SPEED)).all()


def test_t22_5_what_nothing_runs_beside_takes_as_long_as_alone() -> None:
    """Communication that compute waits for slows nothing, and is not even looked at: the program says so."""
    exposed = small(EXPOSED, SLOWED)
    one, other = exposed.simulate(), replace(exposed, fidelity=FREE).simulate()
    assert one.metrics == other.metrics
    assert one.engine_timeline.expansion.graph.sharing is None
    assert one.engine == other.engine == "replay"
    assert one.metrics.slowed_s == 0


@pytest.mark.parametrize("plan", [BESIDE, sim.Plan(dp=4), sim.Plan(pp=2), sim.Plan(dp=4, sharding="fsdp")])
def test_t22_6_a_step_is_never_faster_and_busy_time_grows_by_what_is_reported(plan: sim.Plan) -> None:
    slowed, free = small(plan, SLOWED).simulate(), small(plan, FREE).simulate()
    assert slowed.metrics.step_time_s > free.metrics.step_time_s
    assert slowed.metrics.busy_s == pytest.approx(free.metrics.busy_s + slowed.metrics.slowed_s, rel=1e-12)
    assert 0 < slowed.metrics.slowed_s < free.metrics.busy_s
    assert dict(slowed.summary)["- slow-down"].endswith("communication beside them")
    assert "- slow-down" not in dict(free.summary)
    assert slowed.as_dict()["scenario"]["fidelity"]["overlap"] == "slowed"


def test_t22_6_a_speed_that_changes_is_not_taken_for_communication() -> None:
    """A perturbation that lasts throughout adds to the slow-down what a constant speed adds; one after the step adds nothing."""
    scenario = small(BESIDE, SLOWED)

    def slow_down_s(*perturb: sim.Perturb) -> float:
        return replace(scenario, perturb=perturb).simulate(steps=1).metrics.slowed_s

    for rank in (0, 3):
        throughout = sim.Perturb(rank=rank, speed=0.5, from_s=0.0, until_s=100.0)
        assert slow_down_s(throughout) == slow_down_s(sim.Perturb(rank=rank, speed=0.5))
        assert slow_down_s(sim.Perturb(rank=rank, speed=0.5, from_s=100.0)) == slow_down_s() > 0


def test_t22_7_the_switch_changes_only_speeds() -> None:
    """The same tasks, with the same durations, and nothing that shares a rank's resources."""
    graphs = [
        small(plan, fidelity).simulate().engine_timeline.expansion.graph
        for plan in (BESIDE, sim.Plan(dp=4))
        for fidelity in (SLOWED, FREE)
    ]
    for slowed, free in zip(graphs[::2], graphs[1::2], strict=True):
        assert free.sharing is None
        assert slowed.sharing is not None
        for name in ("solo_ns", "tail_ns", "speed", "footprint", "work", "cap", "footprint_weight", "link_profile"):
            np.testing.assert_array_equal(getattr(slowed, name), getattr(free, name))


@pytest.mark.parametrize(
    ("moe", "collectives", "chosen"),
    [
        (sim.Moe(), "fluid", "slowed"),
        (sim.Moe(), "stepwise", "free"),
        (sim.Moe("drawn", ranks="hottest"), "fluid", "slowed"),
        (sim.Moe("drawn", ranks="each"), "fluid", "free"),
    ],
)
def test_t22_7_left_open_the_switch_depends_on_how_much_is_simulated_one_by_one(moe: Any, collectives: Any, chosen: str) -> None:
    model = small_model(2, experts=4, experts_per_token=2)
    left_open = replace(scenario(model, small_cluster(1), sim.Plan(ep=4, moe=moe)), fidelity=sim.Fidelity(collectives))
    assert feasible.check(left_open).fidelity.overlap == chosen
    asked = replace(left_open, fidelity=replace(left_open.fidelity, overlap="free"))
    assert feasible.check(asked).fidelity.overlap == "free"


def test_t22_8_arithmetic_loses_a_multiple_of_the_share_of_sms() -> None:
    one, fitted = (bound(small(BESIDE, replace(SLOWED, calibration=by))).skeleton.tariff for by in ("kernels", "steps"))
    times = step_constants.beside_communication()
    assert times > 1
    np.testing.assert_allclose(fitted.cores, np.minimum(one.cores * times, FULL_SPEED), atol=times)
    np.testing.assert_array_equal(fitted.memory, one.memory)


def test_t22_8_the_multiple_moves_what_runs_beside_communication_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = replace(SLOWED, calibration="steps")
    beside, exposed = (small(plan, fitted).simulate() for plan in (BESIDE, EXPOSED))
    monkeypatch.setattr(step_constants, "beside_communication", lambda: 1.0)
    share, alone = (small(plan, fitted).simulate() for plan in (BESIDE, EXPOSED))
    assert beside.metrics.slowed_s > share.metrics.slowed_s > 0
    assert beside.metrics.step_time_s > share.metrics.step_time_s
    assert exposed.metrics == alone.metrics
    assert "beside communication" in dict(beside.summary)["calibration"]
    assert "beside" not in dict(exposed.summary)["calibration"]


def test_memory_bound_kernels_lose_bandwidth_and_gemms_lose_sms() -> None:
    skeleton = bound(small(sim.Plan(dp=4), SLOWED)).skeleton
    [template] = skeleton.templates
    kinds = bound(small(sim.Plan(dp=4), SLOWED)).labels[0]
    assert template.resource is not None
    assert set(kinds.kind[template.resource == CORES]) == {"gemm", "attention"}
    assert {"rmsnorm", "residual"} & set(kinds.kind[template.resource == MEMORY])
    assert (template.resource[~kinds.is_compute] == -1).all()
    assert skeleton.tariff.cores.max() > 0 < skeleton.tariff.memory.max()


def test_ways_of_deepep_share_its_sms() -> None:
    model = small_model(2, experts=8, experts_per_token=2)
    plan = sim.Plan(ep=8, moe=sim.Moe(dispatcher="deepep"))
    of = scenario(model, small_cluster(2), plan, sim.Job(sequence_length=256, global_batch=8), fidelity=SLOWED)
    kept = bound(of).skeleton.tariff
    assert 10 * FULL_SPEED // SMS in kept.cores[kept.cores > 0].tolist()


@pytest.mark.parametrize("gbit, channels", [(100, 8), (400, 16)])
def test_t22_2_paths_between_nodes_are_doubled_by_the_rate_of_their_nics(gbit: int, channels: int) -> None:
    """Four NICs, and two channels for each, or four if a NIC has at least 28 GB/s. NVLink of 450 GB/s does not count."""
    cluster = small_cluster(2, inter_node=f"4x{gbit} Gbit/s")
    group = Communicator("dp", ("dp",), "dp")
    occupancy = Occupancy(CommunicationSms(), cluster, group, 1)
    cores, _ = occupancy.parts("all_gather", "ring", 1 << 30, np.arange(8), 10**9)
    assert cores == channels * FULL_SPEED // SMS


@pytest.mark.parametrize("gpu, rate", [("v100-32gb", 50), ("a100-80gb", 50), ("h100", 50), ("b200", 100)])
def test_t22_2_a_message_has_two_channels_for_each_nvlink_of_its_generation(gpu: str, rate: int) -> None:
    """This rate is that of two NVLinks, where their number is not stated, so that a message has four channels."""
    cluster = small_cluster(1, gpu=gpu, intra_node=f"NVSwitch {rate} GB/s")
    assert not cluster.nvlinks
    occupancy = Occupancy(CommunicationSms(), cluster, Communicator("pp", ("pp",), "pp"), 1)
    cores, _ = occupancy.parts("sendrecv", "point_to_point", 1 << 30, np.arange(2), 10**9)
    assert cores == 4 * FULL_SPEED // cluster.gpu.sms


def test_single_messages_are_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"fidelity.overlap: what single messages take"):
        small(BESIDE, sim.Fidelity("stepwise", "slowed")).simulate()


def test_sms_that_nothing_uses_are_reported() -> None:
    [note] = [line for line in small(BESIDE, FREE, rings=4).simulate().notes if "framework.sms" in line]
    assert "no effect" in note
    assert not any("framework.sms" in line for line in small(BESIDE, SLOWED, rings=4).simulate().notes)
