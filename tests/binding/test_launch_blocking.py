"""A host that waits for every kernel, as with CUDA_LAUNCH_BLOCKING=1."""

from __future__ import annotations

import pytest

import simulator as sim
from simulator.errors import UserError
from simulator.workload.framework import Framework, HostTimes

from ..small_scenarios import both, bound_twice, scenario, small_cluster

KERNEL_NS = 30_000
WAITING = Framework(host=HostTimes(kernel_s=KERNEL_NS / 1e9, collective_s=5e-5), launch_blocking=True)
EXPOSED = sim.Overlap(dp=False, tp=False, pp=False)


def test_t8_9_every_kernel_takes_the_time_of_its_launch_more() -> None:
    """One rank: nothing but kernels, one after the other."""
    plan, cluster = sim.Plan(overlap=EXPOSED), small_cluster(1, gpus_per_node=1)
    waiting, free = (scenario(None, cluster, plan, framework=software).simulate() for software in (WAITING, Framework()))
    kernels = int((free.timeline.to_pandas(ranks=[0]).stream == "compute").sum())
    assert kernels > 100
    assert waiting.metrics.step_time_s == pytest.approx(free.metrics.step_time_s + kernels * KERNEL_NS / 1e9, rel=1e-9)
    assert waiting.metrics.launch_s == 0


def test_t8_9_folded_equals_unfolded() -> None:
    plan = sim.Plan(tp=2, pp=2, sharding="zero1", overlap=EXPOSED)
    both(*bound_twice(scenario(plan=plan, framework=WAITING))).assert_equal()


@pytest.mark.parametrize("axis", ["dp", "tp", "pp"])
def test_t8_9_nothing_runs_beside_compute(axis: str) -> None:
    plan = sim.Plan(tp=2, pp=2, overlap=sim.Overlap(**{"dp": False, "tp": False, "pp": False, axis: True}))
    with pytest.raises(UserError, match=f"plan.overlap.{axis}: the host waits for every kernel"):
        scenario(plan=plan, framework=WAITING).simulate()


def test_t8_9_the_kernels_of_a_graph_cannot_wait() -> None:
    graphed = Framework(host=WAITING.host, launch_blocking=True, cuda_graphs=True)
    with pytest.raises(UserError, match=r"framework.launch_blocking: the kernels of a CUDA graph"):
        scenario(plan=sim.Plan(overlap=EXPOSED), framework=graphed).simulate()
