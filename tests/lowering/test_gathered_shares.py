"""Transfers between stages in shares, which the tensor-parallel ranks of the receiving stage gather."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import simulator as sim
from simulator.simulation.simulate import program_of
from simulator.workload.framework import Framework, HostTimes

from ..small_scenarios import both, bound_twice, scenario, small_cluster, small_model

SHARES = Framework(p2p_scatter_gather=True)
WHOLE_BYTES = 2 * 256 * 512 * 2


def of(schedule: str = "1f1b", framework: Framework = SHARES, chunks: int = 1, **plan: Any) -> Any:
    plan = {"tp": 2, "pp": 4, "sequence_parallel": False, "schedule": schedule, "chunks": chunks, **plan}
    return scenario(small_model(), small_cluster(2), sim.Plan(**plan), sim.Job(256, 16, 2), framework=framework)


@pytest.mark.parametrize("blocks", [True, False])
def test_t1_13_a_share_is_sent_and_the_whole_gathered_before_the_slot_that_consumes_it(blocks: bool) -> None:
    run = of(overlap=sim.Overlap(pp=not blocks)).simulate(steps=1)
    rows = run.timeline.to_pandas(ranks=[2])  # the second of four stages receives activations and gradients
    ends = rows[rows.kind.isin(["send", "receive"])]
    assert set(ends.payload_bytes) == {WHOLE_BYTES // 2}
    gathers = rows[rows.phase == "gather"]
    assert set(gathers.payload_bytes) == {WHOLE_BYTES}
    assert set(gathers.kind) == {"all_gather"}
    assert set(gathers.stream) == {"tp"}
    received = rows[rows.kind == "receive"]
    assert len(gathers) == len(received) == 2 * 8
    for phase, value in (("F", "activation"), ("B", "gradient")):
        gathered = gathers[gathers.block.str.contains(value)].set_index("microbatch")
        arrived = received[received.stream.str.startswith(value)].set_index("microbatch").arrival_ns
        begins = rows[(rows.phase == phase) & (rows.stream == "compute")].groupby("microbatch").start_ns.min()
        assert (gathered.start_ns >= arrived[gathered.index]).all()
        assert (begins[gathered.index] >= gathered.end_ns).all()


@pytest.mark.parametrize("plan", [{"sequence_parallel": True}, {"tp": 1, "pp": 4}, {"tp": 4, "pp": 1}])
def test_t1_13_ranks_that_hold_shares_or_send_nothing_gather_nothing(plan: dict[str, Any]) -> None:
    assert program_of(of(**plan)) == program_of(of(framework=Framework(), **plan))


@pytest.mark.thinned(4)
@pytest.mark.parametrize(("schedule", "chunks"), [("interleaved", 2), ("zb-h1", 1), ("v-half", 2), ("dualpipe", 1)])
@pytest.mark.parametrize("blocks", [True, False])
def test_t1_13_holds_in_every_schedule_folded_or_not(schedule: str, chunks: int, blocks: bool) -> None:
    software = replace(SHARES, host=HostTimes(kernel_s=2e-6, collective_s=5e-6), p2p_sync=blocks)
    chosen = of(schedule, software, chunks, overlap=sim.Overlap(pp=not blocks))
    both(*bound_twice(chosen)).assert_equal()
    orders = program_of(chosen).orders
    assert all(
        sum(step.phase == "gather" for step in order) == sum(step.phase == "receive" for step in order) for order in orders
    )


def test_t1_13_shares_are_quicker_where_nics_are_slow() -> None:
    """Over one NIC a node every transfer of a share takes half as long, and the gather runs within the node."""
    shape = {"inter_node": "1x100 Gbit/s"}
    plan = sim.Plan(tp=2, pp=4, sequence_parallel=False)
    times = [
        scenario(small_model(), small_cluster(2, **shape), plan, sim.Job(256, 16, 2), framework=software)
        .simulate()
        .metrics.step_time_s
        for software in (SHARES, Framework())
    ]
    assert times[0] < times[1]
