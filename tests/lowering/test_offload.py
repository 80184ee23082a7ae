"""Offload: what is copied to the host and back, when, over which links, and what waits for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simulator as sim
from simulator.lowering.passes.data_parallel import parameters_by_stage
from simulator.program.operations import (
    COPY_IN,
    COPY_OUT,
    OFFLOAD,
    PAGEABLE_IN,
    PAGEABLE_OUT,
    UPDATE_ON_HOST,
    Collective,
    Compute,
)
from simulator.program.program import Program
from simulator.simulation.run import Run
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.simulate import program_of
from simulator.units import GB, NS_PER_S
from simulator.workload.framework import Framework, HostWork

from ..small_scenarios import HOST, both, bound_twice, scenario, small_cluster, small_model

HALF = sim.Offload(activations=0.5)
ADAM, CAST = 28, 6
"""Bytes that a CPU moves to update a parameter, and to cast it to 16 bits."""


def of(offload: Any, *, layers: int = 8, microbatches: int = 2, dp: int = 4, **plan: Any) -> Scenario:
    chosen = sim.Plan(dp=dp, offload=offload, **plan)
    nodes = max(1, dp * chosen.pp * chosen.tp // 4)
    job = sim.Job(sequence_length=256, global_batch=dp * microbatches)
    return scenario(small_model(layers), small_cluster(nodes, host=HOST), chosen, job)


def two_nodes(link: str, offload: Any = HALF, **host: Any) -> Scenario:
    """Two GPUs, each with a NIC of 50 GB/s and PCIe of 60 GB/s."""
    memory = {"link": link, "bandwidth": "60 GB/s", "memory_bandwidth": "1 TB/s", **host}
    shape = {"gpus_per_node": 1, "inter_node": "1x400 Gbit/s", "pcie": "60 GB/s", "host": memory}
    return scenario(cluster=small_cluster(2, **shape), plan=sim.Plan(dp=2, offload=offload), job=sim.Job(2048, 2))


def copied_bytes(program: Program, rank: int = 0) -> dict[tuple[str, str], int]:
    """Bytes of a step by the phase of the step and the kind of copy."""
    found: dict[tuple[str, str], int] = {}
    for step in program.orders[rank]:
        for op in program.bodies[step.body].ops:
            if isinstance(op, Collective) and program.communicators[op.communicator].axis == OFFLOAD:
                found[step.phase, op.kind] = found.get((step.phase, op.kind), 0) + op.payload_bytes
    return found


def held_by_layers(program: Program) -> dict[int, int]:
    """Bytes that each layer of the first forward body holds until the backward pass, without copies."""
    held: dict[int, int] = {}
    for op in program.bodies[program.orders[0][0].body].ops:
        held[op.layer] = held.get(op.layer, 0) + op.held_bytes - op.freed_bytes
    return held


def parameters(program: Program, rank: int = 0) -> int:
    body = next(program.bodies[step.body] for step in program.orders[rank] if step.phase == "F")
    return sum(op.parameters for op in body.ops if isinstance(op, Compute))


def rows_of(run: Run, rank: int = 0) -> Any:
    return run.timeline.to_pandas(ranks=[rank]).sort_values(["start_ns", "end_ns"])


def of_layer(rows: Any, phase: str, layer: int) -> Any:
    """The kernels of a layer in the first pass of a phase."""
    return rows[
        (rows.stream == "compute") & (rows.phase == phase) & (rows.microbatch == 0) & rows.block.str.startswith(f"layer {layer} ")
    ]


@given(st.integers(3, 6), st.floats(0.1, 1), st.integers(1, 2))
@settings(deadline=None, max_examples=8)
def test_t19_1_the_first_layers_are_copied_and_never_the_last_two(layers: int, fraction: float, microbatches: int) -> None:
    copied = min(round(fraction * layers), layers - 2)
    if copied:
        plain, program = (
            program_of(of(offload, layers=layers, microbatches=microbatches)) for offload in ("none", sim.Offload(fraction))
        )
        expected = microbatches * sum(size for layer, size in held_by_layers(plain).items() if 0 <= layer < copied)
        assert copied_bytes(program) == {("F", COPY_OUT): expected, ("B", COPY_IN): expected}
    else:
        with pytest.raises(sim.UserError, match=r"offload\.activations"):
            of(sim.Offload(fraction), layers=layers).simulate()


def test_t19_1_copies_start_with_layers_and_later_layers_wait_for_them() -> None:
    """Of 8 layers 4 are copied, over a slow link: layer i + 4 waits for the copy of layer i, and i for its copy back."""
    slow = two_nodes("c2c", bandwidth="20 GB/s").simulate()
    rows = rows_of(slow)
    forward, backward = ({n: of_layer(rows, phase, n) for n in range(8)} for phase in "FB")
    out, back = ({n: rows[rows.block == f"layer {n} copy {way}"].iloc[0] for n in range(4)} for way in ("out", "in"))
    assert (out[0].start_ns, back[3].start_ns) == (forward[0].end_ns.max(), backward[7].end_ns.max())
    for n in range(4):
        assert forward[n + 4].start_ns.min() >= out[n].end_ns
        assert backward[n].start_ns.min() >= back[n].end_ns
        assert out[n].start_ns == max([forward[n].end_ns.max(), *(out[m].end_ns for m in range(n))])
        reached = backward[n + 4].end_ns.max()
        assert back[n].start_ns == max([reached, *(back[m].end_ns for m in range(n + 1, 4))])
    assert any(forward[n + 4].start_ns.min() == out[n].end_ns for n in range(4)), "the link is slow enough to wait for"


@pytest.mark.parametrize(
    "plan", [{"pp": 2, "dp": 2}, {"pp": 2, "dp": 2, "schedule": "zb-h1"}, {"recompute": "full"}, {"tp": 2, "dp": 2}]
)
def test_t19_2_a_microbatch_holds_no_more_layers_than_are_kept(plan: dict[str, Any]) -> None:
    """The most that a rank holds at any time is what is counted before, and that is less by what is copied."""
    runs = [of(offload, layers=8, microbatches=4, **plan).simulate() for offload in ("none", HALF)]
    for run in runs:
        for rank in run.memory:
            assert run.memory_over_time(rank.rank)[1].max() == rank.total_bytes
    plain, less = (run.memory[0].activations_bytes for run in runs)
    assert less < plain


def test_t19_2_activations_are_freed_and_held_again_where_the_layers_beside_their_copies_are_launched() -> None:
    """Of 8 layers 4 are copied: layer n is freed before layer n + 4 begins, and held again before gradients of layer n + 3."""
    run = two_nodes("c2c").simulate()
    at_s, held = run.memory_over_time(0)
    at_ns, changes, rows = np.rint(at_s[1:] * NS_PER_S), held[1:] - held[:-1], rows_of(run)
    for n in range(4):
        copies = {way: rows[rows.block == f"layer {n} copy {way}"].iloc[0] for way in ("out", "in")}
        freed, taken = (at_ns[changes == sign * copies[way].payload_bytes] for way, sign in (("out", -1), ("in", 1)))
        waits, reached = of_layer(rows, "F", n + 4).start_ns.min(), of_layer(rows, "B", n + 4).end_ns.max()
        assert any((copies["out"].end_ns <= freed) & (freed <= waits))
        assert any((reached <= taken) & (taken <= of_layer(rows, "B", n + 3).start_ns.min()))


@pytest.mark.parametrize(
    ("sharding", "divided", "cast"), [("none", 1, CAST), ("zero1", 4, CAST), ("zero2", 4, CAST), ("zero3", 4, CAST)]
)
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_t19_3_gradients_go_out_and_parameters_come_back(sharding: str, divided: int, cast: int, fraction: float) -> None:
    program = program_of(of(sim.Offload(optimizer=True, optimizer_fraction=fraction), sharding=sharding))
    share = parameters(program) / divided * fraction
    found = copied_bytes(program)
    assert found.pop(("B", COPY_OUT)) == pytest.approx(4 * share, abs=100)
    assert found.pop(("optimizer", COPY_IN)) == pytest.approx(2 * share, abs=10)
    assert found.pop(("optimizer", UPDATE_ON_HOST)) == pytest.approx((ADAM + cast) * share, abs=100)
    assert not found
    kernels = [op for op in program.bodies["optimizer 0"].ops if isinstance(op, Compute)]
    assert len(kernels) == (fraction < 1)
    assert all(op.kernel.rows == pytest.approx(share, abs=10) for op in kernels)  # type: ignore[union-attr]


def test_t19_3_without_replicas_every_gradient_is_copied_once() -> None:
    program = program_of(of("optimizer", dp=1, pp=2, tp=2))
    for rank in range(2):
        assert copied_bytes(program, rank)["B", COPY_OUT] == 4 * parameters(program, rank)


@pytest.mark.parametrize("more", [{}, {"sharding": "zero1"}, {"overlap": sim.Overlap(dp=False)}])
def test_t19_3_the_norm_waits_for_copies_and_the_next_step_for_the_update(more: dict[str, Any]) -> None:
    run = of("optimizer", **more).simulate(steps=2)
    rows = rows_of(run)
    norm = rows[rows.phase == "norm"].start_ns.tolist()
    out = rows[rows.kind == COPY_OUT]
    update, back = (rows[rows.kind == kind] for kind in (UPDATE_ON_HOST, COPY_IN))
    assert out[out.end_ns <= norm[0]].payload_bytes.sum() == out.payload_bytes.sum() / 2
    assert update.start_ns.tolist() == norm
    assert back.start_ns.tolist() == update.end_ns.tolist()
    forward = rows[(rows.phase == "F") & (rows.stream == "compute")]
    assert forward[forward.start_ns > norm[0]].start_ns.min() >= back.end_ns.min()


@pytest.mark.parametrize("plan", [{}, {"sharding": "zero1"}, {"pp": 2, "dp": 2}])
def test_t19_3_without_a_norm_the_update_itself_waits_for_the_copies(plan: dict[str, Any]) -> None:
    given = of("optimizer", **plan)
    rows = rows_of(replace(given, job=replace(given.job, gradient_clipping=False)).simulate(steps=1))
    assert "norm" not in set(rows.phase)
    assert rows[rows.kind == UPDATE_ON_HOST].start_ns.min() >= rows[rows.kind == COPY_OUT].end_ns.max()


@pytest.mark.parametrize(
    ("sharding", "kept_bytes", "cast"), [("zero3", 2, CAST), ("fsdp", 4, 0), (sim.Sharding("hsdp", group=2), 4, 0)]
)
def test_t19_4_every_gather_waits_for_the_share_of_the_host(sharding: Any, kept_bytes: int, cast: int) -> None:
    program = program_of(of("parameters", sharding=sharding))
    ranks = 2 if isinstance(sharding, sim.Sharding) else 4
    found = copied_bytes(program)
    gathered = {
        phase: sum(
            op.payload_bytes
            for step in program.orders[0]
            if step.phase == phase
            for op in program.bodies[step.body].ops
            if isinstance(op, Collective) and op.kind == "all_gather"
        )
        for phase in "FB"
    }
    for phase, whole_bytes in gathered.items():
        assert found[phase, COPY_IN] == pytest.approx(whole_bytes // 2 * kept_bytes / ranks, abs=200)
    assert found["optimizer", UPDATE_ON_HOST] == pytest.approx((ADAM + cast) * parameters(program) / ranks, abs=100)
    assert ("optimizer", COPY_IN) not in found
    rows = rows_of(of("parameters", sharding=sharding).simulate())
    gathers = rows[rows.kind == "all_gather"]
    assert len(gathers)
    for _, gather in gathers.iterrows():
        same = (rows.phase == gather.phase) & (rows.microbatch == gather.microbatch) & (rows.block == f"{gather.block} copy in")
        assert gather.start_ns >= rows[same].iloc[0].end_ns


def test_t19_5_copies_share_pcie_with_the_nic() -> None:
    """Beside a copy a reduction has half of 60 GB/s, and with C2C its NIC's 50 GB/s; alone it has those always."""
    took: dict[str, dict[str, int]] = {}
    for link in ("pcie", "c2c"):
        rows = rows_of(two_nodes(link).simulate())
        took[link] = {row.block: row.end_ns - row.start_ns for row in rows[rows.kind == "all_reduce"].itertuples()}
        size = {row.block: row.payload_bytes for row in rows[rows.kind == "all_reduce"].itertuples()}
    alone, beside = "embedding gradients", "layer 6 gradients"
    assert took["pcie"][alone] == took["c2c"][alone]
    latency_ns = took["pcie"][alone] - size[alone] / (50 * GB) * NS_PER_S
    assert took["c2c"][beside] == pytest.approx(latency_ns + size[beside] / (50 * GB) * NS_PER_S, abs=5)
    assert took["pcie"][beside] == pytest.approx(latency_ns + size[beside] / (30 * GB) * NS_PER_S, abs=5)


def test_t19_5_the_gpus_of_a_node_share_the_memory_of_the_host() -> None:
    """Four GPUs update their parameters at a quarter of 400 GB/s each; a copy has 50 GB/s for itself."""
    rows = rows_of(of("optimizer").simulate())
    update, back = (rows[rows.kind == kind].iloc[0] for kind in (UPDATE_ON_HOST, COPY_IN))
    assert update.end_ns - update.start_ns == pytest.approx(update.payload_bytes / (100 * GB) * NS_PER_S, abs=5)
    assert back.end_ns - back.start_ns == pytest.approx(back.payload_bytes / (50 * GB) * NS_PER_S, abs=1000)


def test_t19_5_a_pcie_server_copies_over_its_own_links() -> None:
    """Four GPUs of a socket share the link of their PCIe switch: each copies at a quarter of 31.5 GB/s."""
    cluster = sim.cluster("l40s-pcie", nodes=1, fabric="ideal")
    rows = rows_of(
        scenario(cluster=cluster, plan=sim.Plan(offload="optimizer", sharding="zero1"), job=sim.Job(256, 8)).simulate()
    )
    back = rows[rows.kind == COPY_IN].iloc[0]
    assert back.end_ns - back.start_ns == pytest.approx(back.payload_bytes / (31.5 / 4 * GB) * NS_PER_S, rel=0.01)


def test_t19_5_the_gpus_of_a_rack_copy_over_c2c_and_share_the_memory_of_its_cpus() -> None:
    """GB200: 225 GB/s for each GPU, also for all of them at once, and a 72nd of 18.4 TB/s for its update."""
    plan, job = sim.Plan(offload="optimizer", sharding="zero1"), sim.Job(256, 72)
    rows = rows_of(scenario(cluster=sim.cluster("gb200-nvl72", nodes=1), plan=plan, job=job).simulate())
    update, back = (rows[rows.kind == kind].iloc[0] for kind in (UPDATE_ON_HOST, COPY_IN))
    assert update.end_ns - update.start_ns == pytest.approx(update.payload_bytes / (18_400 / 72 * GB) * NS_PER_S, abs=5)
    assert back.end_ns - back.start_ns == pytest.approx(back.payload_bytes / (225 * GB) * NS_PER_S, abs=1000)


def test_t19_6_waiting_for_the_host_is_exposed_time_of_offload() -> None:
    plain, run = (of(offload).simulate() for offload in ("none", "optimizer"))
    rows = rows_of(run)
    waited_ns = rows[rows.kind == COPY_IN].iloc[0].end_ns - rows[rows.kind == UPDATE_ON_HOST].iloc[0].start_ns
    assert run.metrics.exposed_s[OFFLOAD] * NS_PER_S >= waited_ns
    assert OFFLOAD not in plain.metrics.exposed_s
    assert "exposed offload" in dict(run.summary)


@pytest.mark.parametrize("work", [HostWork(), HostWork(pinned=False)])
@pytest.mark.parametrize("clips", [None, False])
def test_t4_4_a_rank_that_waits_for_a_slow_one_waits_for_a_replica_whatever_it_copies(work: HostWork, clips: bool | None) -> None:
    """Copies to the host are of one rank: nobody is waited for at one."""
    given = of("optimizer", sharding="zero1")
    job, slow = replace(given.job, gradient_clipping=clips), (sim.Perturb(rank=3, speed=0.5),)
    run = replace(given, job=job, perturb=slow, framework=Framework(offload=work)).simulate()
    m = run.metrics
    causes_s = m.busy_s + sum(m.exposed_s.values()) + sum(m.imbalance_s.values()) + m.launch_s + m.optimizer_s
    assert causes_s + m.bubble_fraction * m.step_time_s == pytest.approx(m.step_time_s, rel=1e-9)
    assert m.imbalance_s["dp"] > 0.1 * m.step_time_s
    assert "imbalance of offload" not in {cause for cause in run.time_by_cause.causes if run.time_by_cause.of(cause).any()}


def by_core(sharding: str = "zero1", microbatches: int = 2, **work: Any) -> Scenario:
    """A run whose host copies pageable memory at 10 GB/s, over links of 50 GB/s."""
    host = {**HOST, "core_bandwidth": "10 GB/s"}
    given = replace(of("optimizer", sharding=sharding, microbatches=microbatches), cluster=small_cluster(1, host=host))
    return replace(given, framework=Framework(gradients="bf16", offload=HostWork(pinned=False, **work)))


def test_t19_8_a_core_copies_pageable_memory_at_its_own_rate() -> None:
    rows = rows_of(by_core().simulate())
    for kind in (PAGEABLE_OUT, PAGEABLE_IN):
        copies = rows[rows.kind == kind]
        assert len(copies)
        assert (copies.end_ns - copies.start_ns).tolist() == pytest.approx(copies.payload_bytes / (10 * GB) * NS_PER_S, abs=2000)
    assert not len(rows[rows.kind.isin([COPY_OUT, COPY_IN])])


def test_t19_8_compute_waits_for_a_core_that_copies_gradients() -> None:
    rows = rows_of(by_core("zero2").simulate())
    kernels, copies = rows[(rows.stream == "compute") & (rows.phase == "B")], rows[rows.kind == PAGEABLE_OUT]
    assert len(copies) > 1
    for copy in copies.itertuples():
        behind = kernels[kernels.start_ns >= copy.start_ns]
        assert behind.start_ns.min() >= copy.end_ns if len(behind) else copy.block == copies.iloc[-1].block
    beside = rows_of(replace(by_core("zero2"), framework=Framework(gradients="bf16")).simulate())
    assert any(
        ((beside.stream == "compute") & (beside.start_ns < copy.end_ns) & (beside.start_ns >= copy.start_ns)).any()
        for copy in beside[beside.kind == COPY_OUT].itertuples()
    ), "locked memory is copied beside compute"


@pytest.mark.parametrize("microbatches", [1, 3])
@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
def test_t19_9_every_backward_pass_leaves_its_gradients_on_the_host(sharding: str, microbatches: int) -> None:
    program = program_of(by_core(sharding, microbatches, keeps_gradients=True, scales=True))
    share, found = parameters(program) / 4, copied_bytes(program)
    kept = microbatches * 2 * share if sharding == "zero3" else 0
    assert found.pop(("B", PAGEABLE_OUT)) == pytest.approx(4 * share + kept, abs=400)
    assert found.pop(("B", PAGEABLE_IN), 0) == pytest.approx(kept, abs=400)
    assert found.pop(("optimizer", PAGEABLE_IN)) == pytest.approx(2 * share, abs=100)
    assert found.pop(("optimizer", UPDATE_ON_HOST)) == pytest.approx((8 + ADAM + CAST) * share, abs=200)
    assert not found


@pytest.mark.parametrize("collectives", ["closed", "fluid", "stepwise"])
def test_every_fidelity_copies_as_long_without_contention(collectives: Any) -> None:
    run = replace(two_nodes("c2c"), fidelity=sim.Fidelity(collectives=collectives)).simulate()
    copy = rows_of(run)
    copy = copy[copy.kind == COPY_OUT].iloc[0]
    assert copy.end_ns - copy.start_ns == pytest.approx(copy.payload_bytes / (60 * GB) * NS_PER_S, abs=1000)


@pytest.mark.parametrize("offload", [sim.Offload(0.5, optimizer=True), "parameters"])
@pytest.mark.parametrize("work", [HostWork(), HostWork(pinned=False, keeps_gradients=True)])
def test_folded_equals_unfolded(offload: Any, work: HostWork) -> None:
    given = replace(of(offload, dp=8, sharding="zero3"), framework=Framework(offload=work))
    both(*bound_twice(given)).assert_equal()


def test_a_plan_that_offloads_nothing_has_no_hosts_in_its_graph() -> None:
    plain = of("none").simulate()
    assert not any(run.kind == "memory" for run in plain.site.cluster.wiring.vertices)
    assert "cpu > memory" in {links["kind"] for links in of(HALF).simulate().network.classes}


def test_gradients_of_a_norm_behind_the_embedding_are_copied_with_a_split_backward_pass() -> None:
    """They are complete since the input gradients, and without replicas nothing reduces them."""
    chosen = sim.Plan(pp=4, dp=1, schedule="zb-h1", offload="optimizer")
    job = sim.Job(sequence_length=256, global_batch=4)
    given = scenario(small_model(embedding_norm=True), small_cluster(1, host=HOST), chosen, job)
    program = program_of(given)
    first = {step.body for step in program.orders[0]}
    copies = [op for body in sorted(first) for op in program.bodies[body].ops if op.name.endswith("copy out")]
    (stage,) = parameters_by_stage(program, 0).values()
    assert sum(op.payload_bytes for op in copies if isinstance(op, Collective)) == 4 * sum(stage.values())
