"""Sharded state: what is gathered and reduced, how often, in which order, and beside what."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simulator as sim
from simulator.config import derived
from simulator.errors import UserError
from simulator.kernels import Rowwise
from simulator.program.operations import Collective, Compute, Purpose
from simulator.program.program import Program
from simulator.simulation.run import Run
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.simulate import program_of
from simulator.workload.framework import Framework

from ..small_scenarios import HOST, both, bound_twice, scenario, small_cluster, small_model

P_BYTES, G_BYTES = 2, 4
"""Bytes of a parameter in bf16, and of a gradient in fp32."""


def of(sharding: Any, *, microbatches: int = 3, dp: int = 8, pp: int = 1, **more: Any) -> Scenario:
    plan = {key: more.pop(key) for key in [*more] if key in sim.Plan.__dataclass_fields__}
    chosen = sim.Plan(dp=dp, pp=pp, sharding=sharding, **plan)
    gpus = dp * pp * chosen.tp
    job = sim.Job(sequence_length=256, global_batch=dp * microbatches)
    model = small_model(**more.pop("model", {}))
    return scenario(model, small_cluster(max(1, gpus // 4)), chosen, job, **more)


def sent_bytes(program: Program, rank: int = 0) -> dict[tuple[str, str], int]:
    """Payload bytes of a step by communicator and kind, of parameters and gradients."""
    found: dict[tuple[str, str], int] = {}
    for step in program.orders[rank]:
        for op in program.bodies[step.body].ops:
            if isinstance(op, Collective) and op.purpose in (Purpose.REDUCE_GRADIENTS, Purpose.GATHER_PARAMETERS):
                key = op.communicator, op.kind
                found[key] = found.get(key, 0) + op.payload_bytes
    return found


def called(program: Program, rank: int = 0) -> list[Any]:
    return [op for step in program.orders[rank] for op in program.bodies[step.body].ops]


def parameters(program: Program, rank: int = 0) -> dict[str, int]:
    """Parameters of the first stage of a rank: all, and those of the embedding, the layers and the head."""
    body = next(step.body for step in program.orders[rank] if step.phase == "F")
    found = {"embedding": 0, "layers": 0, "head": 0}
    for op in program.bodies[body].ops:
        if isinstance(op, Compute):
            found["layers" if op.layer >= 0 else "embedding" if op.name == "embedding" else "head"] += op.parameters
    return {"all": sum(found.values()), **found}


def rows_of(run: Run, rank: int = 0) -> Any:
    return run.timeline.to_pandas(ranks=[rank]).sort_values(["start_ns", "end_ns"])


def gathers_of(run: Run, phase: str, microbatch: int) -> Any:
    rows = rows_of(run)
    here = (rows.phase == phase) & (rows.microbatch == microbatch)
    return rows[here & rows.block.str.endswith("parameters")]


def copy_of(rows: Any, gather: Any) -> Any:
    here = (rows.phase == gather.phase) & (rows.microbatch == gather.microbatch) & (rows.block == f"{gather.block} copy")
    return rows[here].iloc[0]


@given(st.integers(1, 4), st.sampled_from([2, 4, 8]), st.booleans())
@settings(deadline=None, max_examples=15)
def test_t13_1_every_pass_gathers_its_units(microbatches: int, dp: int, tied: bool) -> None:
    """m P (2 p + g), but for the head, and a table that it shares with the embedding, which backward passes find in place."""
    for kind in ("zero3", "fsdp"):
        program = program_of(of(kind, microbatches=microbatches, dp=dp, model={"tied_embeddings": tied}))
        count = parameters(program)
        kept = count["head"] + (count["embedding"] if tied else 0)
        assert sent_bytes(program) == {
            ("dp", "all_gather"): microbatches * (2 * count["all"] - kept) * P_BYTES,
            ("dp", "reduce_scatter"): microbatches * count["all"] * G_BYTES,
        }


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "recompute", ["selective", "full", sim.Recompute("full", together=2), sim.Recompute("full", early_stop=True)]
)
def test_t13_1_recomputation_gathers_nothing_more(recompute: Any) -> None:
    for sharding in ("fsdp", sim.Sharding("fsdp", in_flight=1)):
        plain, repeating = of(sharding), of(sharding, recompute=recompute)
        assert sent_bytes(program_of(repeating)) == sent_bytes(program_of(plain))
        run = repeating.simulate()
        assert run.metrics.step_time_s > plain.simulate().metrics.step_time_s
        assert run.memory_over_time(0)[1].max() == run.memory[0].total_bytes < plain.simulate().memory[0].total_bytes


def test_t13_1_a_unit_is_a_layer_the_embedding_or_the_head() -> None:
    run = of("fsdp").simulate()
    assert len(gathers_of(run, "F", 0)) == 8 + 2
    assert len(gathers_of(run, "B", 0)) == 8 + 1
    assert sorted(gathers_of(run, "F", 0).block)[:2] == ["embedding parameters", "head parameters"]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
def test_t13_2_without_reshard_backward_passes_gather_what_is_missing_only(schedule: str) -> None:
    """m P (p + g) where each backward pass follows its forward pass; gpipe's second backward pass finds nothing in place."""
    program = program_of(of(sim.Sharding("fsdp", reshard=False), schedule=schedule))
    count, passes = parameters(program)["all"], 3
    assert sent_bytes(program)["dp", "reduce_scatter"] == passes * count * G_BYTES
    assert sent_bytes(program)["dp", "all_gather"] == passes * count * P_BYTES


@pytest.mark.parametrize("prefetch", [1, 2, 3])
def test_t13_3_a_gather_waits_for_the_copy_of_a_unit_before(prefetch: int) -> None:
    run = of(sim.Sharding("fsdp", prefetch=prefetch)).simulate(steps=1)
    rows = rows_of(run)
    for phase, behind in (("F", prefetch + 1), ("B", prefetch)):
        gathers = [*gathers_of(run, phase, 1).itertuples()]
        copies = [copy_of(rows, gather) for gather in gathers]
        for k in range(behind, len(gathers)):
            assert gathers[k].start_ns >= copies[k - behind].end_ns
            free = max(copies[k - behind].end_ns, gathers[k - 1].end_ns)
            busy = rows[(rows.stream == "dp") & (rows.start_ns < gathers[k].start_ns)].end_ns.max()
            assert gathers[k].start_ns == max(free, busy), "it leaves as soon as it may"
        assert all(copy.start_ns >= gather.end_ns for copy, gather in zip(copies, gathers, strict=True))


@pytest.mark.parametrize("tied", [False, True])
def test_t13_3_the_first_gather_of_a_backward_pass_waits_for_the_gradient_of_the_loss(tied: bool) -> None:
    run = of("fsdp", model={"tied_embeddings": tied}).simulate(steps=1)
    rows = rows_of(run)
    loss = rows[(rows.phase == "B") & (rows.microbatch == 1) & (rows.block == "cross_entropy.dgrad")]
    assert next(gathers_of(run, "B", 1).itertuples()).start_ns == loss.end_ns.item()


def test_t13_3_without_prefetch_a_gather_waits_for_the_unit_before() -> None:
    run = of(sim.Sharding("fsdp", prefetch=0)).simulate(steps=1)
    rows = rows_of(run)
    compute = rows[rows.stream == "compute"]
    for gather in gathers_of(run, "F", 1).itertuples():
        assert not ((compute.start_ns < gather.end_ns) & (compute.end_ns > gather.start_ns)).any()


@pytest.mark.parametrize("most", [1, 2, 3])
def test_t13_3_no_more_units_than_in_flight_are_gathered_at_once(most: int) -> None:
    run = of(sim.Sharding("fsdp", prefetch=4, in_flight=most)).simulate(steps=1)
    rows = rows_of(run)
    gathers = gathers_of(run, "F", 1)
    layers = gathers[gathers.block.str.startswith("layer")]
    ends = {}
    for gather in layers.itertuples():
        name = gather.block.removesuffix("parameters")
        here = rows[(rows.phase == "F") & (rows.microbatch == 1) & rows.block.str.startswith(name) & (rows.stream == "compute")]
        ends[gather.block] = here.end_ns.max()
    alive = [sum(ends[g.block] > at.start_ns >= g.start_ns for g in layers.itertuples()) for at in layers.itertuples()]
    assert max(alive) == most


def test_t13_4_gradients_are_copied_in_one_reduce_scatter_after_the_other() -> None:
    run = of("fsdp").simulate(steps=1)
    rows = rows_of(run)
    here = rows[(rows.phase == "B") & (rows.microbatch == 1)]
    scatters = here[here.block.str.endswith("gradients")]
    copies = here[here.block.str.endswith("gradients copy")]
    assert len(scatters) == len(copies) == 8 + 2
    for (before, _), (scatter, copy) in pairwise(zip(scatters.itertuples(), copies.itertuples(), strict=True)):
        assert copy.start_ns >= before.end_ns
        assert scatter.start_ns >= copy.end_ns


@pytest.mark.parametrize("reduce_dtype, written", [(None, 4), ("bf16", 2)])
def test_t13_4_a_copy_reads_gradients_as_made_and_writes_them_as_reduced(reduce_dtype: Any, written: int) -> None:
    program = program_of(of(sim.Sharding("fsdp", reduce_dtype=reduce_dtype)))
    copies = [op for op in called(program) if isinstance(op, Compute) and op.name.endswith("gradients copy")]
    moved = sum(op.kernel.traffic_bytes for op in copies if isinstance(op.kernel, Rowwise))
    assert moved == 3 * parameters(program)["all"] * (2 + written)


def test_t13_4_kernels_that_add_gradients_are_not_needed_where_every_pass_reduces() -> None:
    framework = sim.framework("torchtitan-2024")
    for sharding, added in (("zero1", True), (sim.Sharding("fsdp", reduce="last"), True), ("fsdp", False)):
        program = program_of(of(sharding, framework=framework))
        assert added == any(op.purpose is Purpose.ACCUMULATE for body in program.bodies.values() for op in body.ops)


def test_t13_4_the_format_of_the_reduction_decides_its_bytes() -> None:
    whole, half = (sent_bytes(program_of(of(sim.Sharding("fsdp", reduce_dtype=dtype)))) for dtype in (None, "bf16"))
    assert whole["dp", "reduce_scatter"] == 2 * half["dp", "reduce_scatter"]
    assert whole["dp", "all_gather"] == half["dp", "all_gather"]


@pytest.mark.parametrize(("sharding", "fewer"), [("zero1", 1), ("zero2", 1), ("fsdp", 2), ("zero3", 2)])
def test_gathered_gradients_are_those_of_ranks_that_divide_parameters(sharding: str, fewer: int) -> None:
    wide, narrow = (
        sent_bytes(program_of(derived.with_usual_plan(of(sharding, framework=Framework(gathered_gradients=chosen)))))
        for chosen in (None, "bf16")
    )
    assert wide["dp", "reduce_scatter"] == fewer * narrow["dp", "reduce_scatter"]


@pytest.mark.parametrize("sharding", ["zero3", "fsdp", sim.Sharding("hsdp", group=4)], ids=str)
def test_t13_5_a_pass_gathers_when_the_pass_before_and_its_reductions_have_ended(sharding: Any) -> None:
    rows = rows_of(of(sharding).simulate())
    passes = [of_pass for _, of_pass in rows[rows.phase.isin(["F", "B"])].groupby(["microbatch", "phase"], sort=False)]
    assert len(passes) == 6
    for before, then in pairwise(passes):
        gathers = then[then.block.str.endswith("parameters")]
        assert gathers.start_ns.min() >= before[before.stream == "compute"].end_ns.max()
        if before.phase.iloc[0] == "B":
            assert gathers.start_ns.min() >= before.end_ns.max()
    updated_ns = rows[rows.phase == "optimizer"].end_ns.max()
    assert rows[rows.block.str.endswith("parameters")].start_ns.min() == updated_ns


@pytest.mark.parametrize("microbatches", [1, 3])
def test_t13_6_zero2_reduces_after_every_backward_pass(microbatches: int) -> None:
    """P (m g + p)."""
    program = program_of(of("zero2", microbatches=microbatches))
    count = parameters(program)["all"]
    expected = {("dp", "reduce_scatter"): microbatches * count * G_BYTES, ("dp", "all_gather"): count * P_BYTES}
    assert sent_bytes(program) == expected
    last = program_of(of(sim.Sharding("fsdp", reduce="last"), microbatches=microbatches))
    assert sent_bytes(last)["dp", "reduce_scatter"] == count * G_BYTES


@pytest.mark.parametrize("group", [None, 4])
@pytest.mark.parametrize("listed", [(), ("zero1",), ("zero1", "zero2")], ids=str)
@pytest.mark.parametrize("kind", ["zero1", "zero2", "fsdp"])
def test_t13_13_all_reduces_of_as_many_bytes_take_the_place_of_reduce_scatters(kind: Any, listed: Any, group: Any) -> None:
    """As in DeepSpeed, where the all-reduce across groups stays; what ranks gather, update and hold does not change."""
    sharding = sim.Sharding(kind, group=group)
    plain, chosen = (of(sharding, framework=Framework(all_reduced_gradients=kinds)) for kinds in ((), listed))
    expected = sent_bytes(program_of(plain))
    within = "dp shards" if group else "dp"
    if kind in listed:
        expected[within, "all_reduce"] = expected.pop((within, "reduce_scatter"))
    assert sent_bytes(program_of(chosen)) == expected
    before, after = plain.simulate(steps=1), chosen.simulate(steps=1)
    assert before.memory == after.memory
    assert (after.metrics.step_time_s > before.metrics.step_time_s) == (kind in listed)


@pytest.mark.parametrize(
    ("software", "kinds"),
    [("deepspeed-2026", {"zero1", "zero2"}), ("deepspeed-2023", {"zero1"}), ("megatron-deepspeed-2022", {"zero1"}),
     ("megatron-core-2025", set())],
)  # fmt: skip
def test_t13_13_deepspeed_scatters_gradients_of_zero3_only(software: str, kinds: set[str]) -> None:
    for kind in ("zero1", "zero2", "zero3"):
        reduced = {name for _, name in sent_bytes(program_of(of(kind, framework=sim.framework(software))))} - {"all_gather"}
        assert reduced == {"all_reduce" if kind in kinds else "reduce_scatter"}


def test_t13_13_the_host_gets_a_share_of_what_is_all_reduced() -> None:
    software = sim.framework("deepspeed-2026")
    plan, cluster = sim.Plan(dp=8, sharding="zero2", offload="optimizer"), small_cluster(2, host=HOST)
    out = []
    for framework in (software, replace(software, all_reduced_gradients=())):
        chosen = scenario(small_model(), cluster, plan, sim.Job(256, 24), framework=framework)
        copies = [op for op in called(program_of(chosen)) if isinstance(op, Collective) and op.name.endswith("copy out")]
        out.append(sum(op.payload_bytes for op in copies))
    assert out[0] == out[1] == pytest.approx(4 * small_model().parameters / 8, rel=0.001)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved", "zb-h1"])
def test_t13_7_with_a_pipeline_each_stage_gathers_and_reduces_once(schedule: str) -> None:
    chunks = 2 if schedule == "interleaved" else 1
    run = of("fsdp", dp=4, pp=2, schedule=schedule, chunks=chunks, microbatches=4).simulate(steps=1)
    zero1 = program_of(of("zero1", dp=4, pp=2, schedule=schedule, chunks=chunks, microbatches=4))
    for rank in range(2):
        assert sent_bytes(run.program, rank) == sent_bytes(zero1, rank)
    rows = rows_of(run)
    gathers = rows[rows.block.str.endswith("parameters")]
    assert set(gathers.phase) == {"F"}
    assert set(gathers.microbatch) == {0}
    for _, stage in rows[rows.phase.isin(["B", "W"])].groupby("stage"):
        reduced = stage.block.str.contains("gradients")
        assert stage[reduced].start_ns.min() >= stage[~reduced].end_ns.max()
        layers = stage[reduced & stage.block.str.startswith("layer") & (stage.stream == "dp")].block
        assert list(layers) == sorted(layers)


@pytest.mark.parametrize("kind", ["zero1", "zero2", "zero3", "fsdp", "hsdp"])
@pytest.mark.parametrize("group", [1, 2, 4])
def test_t13_8_groups_reduce_inside_and_then_across(kind: str, group: int) -> None:
    program = program_of(of(sim.Sharding(kind, group=group)))  # type: ignore[arg-type]
    sent, passes = sent_bytes(program), 1 if kind == "zero1" else 3
    count = parameters(program)
    gathered = count["all"] if kind in ("zero1", "zero2") else passes * (2 * count["all"] - count["head"])
    shares = passes * sum(-(-size // group) for size in bucket_sizes(program)) * G_BYTES
    assert sent.pop(("dp replicas", "all_reduce")) == pytest.approx(shares, abs=passes * 100)
    inside = {("dp shards", "reduce_scatter"): passes * count["all"] * G_BYTES, ("dp shards", "all_gather"): gathered * P_BYTES}
    assert sent == (inside if group > 1 else {})


def bucket_sizes(program: Program) -> list[int]:
    count = parameters(program)
    return [count["embedding"], *[count["layers"] // 8] * 8, count["head"]]


@pytest.mark.parametrize("order", ["tp-cp-ep-dp-pp", "dp-tp-pp"])
def test_t13_8_the_ranks_of_a_group_are_neighbours_along_dp(order: str) -> None:
    mesh = derived.mesh_of(of(sim.Sharding("hsdp", group=4), tp=2, rank_order=order))
    whole = derived.mesh_of(of("fsdp", tp=2, rank_order=order))
    members = whole.groups(("dp", "replicas"))
    assert whole.groups(("dp",)).tolist() == mesh.groups(("dp", "replicas")).tolist()
    assert sorted(mesh.groups(("dp",)).tolist()) == sorted(members.reshape(-1, 4).tolist())
    across = np.concatenate([members[:, i::4] for i in range(4)])
    assert sorted(mesh.groups(("replicas",)).tolist()) == sorted(across.tolist())


@pytest.mark.parametrize("kind", ["zero2", "zero3", "fsdp", "hsdp"])
def test_t13_9_without_overlap_nothing_runs_beside_compute(kind: str) -> None:
    sharding = sim.Sharding(kind, group=4 if kind == "hsdp" else None)  # type: ignore[arg-type]
    chosen = of(sharding, overlap=sim.Overlap(dp=False), framework=sim.framework("megatron-lm-2021"))
    rows = rows_of(chosen.simulate(steps=1))
    moved = rows[rows.block.str.endswith(("gradients", "parameters", "shares")) & rows.phase.isin(["F", "B"])]
    compute = rows[rows.stream == "compute"]
    for row in moved.itertuples():
        assert not ((compute.start_ns < row.end_ns) & (compute.end_ns > row.start_ns)).any()
    beside = sent_bytes(program_of(of(sharding, framework=sim.framework("megatron-lm-2021"))))
    assert sent_bytes(program_of(chosen)) == beside


GRID = [
    ("zero2", {}), ("zero3", {}), ("fsdp", {}), ("hsdp", {"group": 2}), ("zero1", {"group": 2}),
    ("zero3", {"group": 2, "unit": "half-layer"}),
    ("fsdp", {"reshard": False}), ("fsdp", {"prefetch": 0}), ("fsdp", {"in_flight": 1, "reduce": "last", "unit": 2}),
]  # fmt: skip
PLANS: dict[str, dict[str, Any]] = {
    "dp": {"dp": 4},
    "tp": {"dp": 4, "tp": 2},
    "tp beside": {"dp": 4, "tp": 2, "overlap": sim.Overlap(tp=True)},
    "pp": {"dp": 4, "pp": 2},
    "pp, blocking": {"dp": 4, "pp": 2, "overlap": sim.Overlap(pp=False, dp=False)},
    "uneven stages": {"dp": 4, "pp": 2, "chunks": 2, "schedule": "interleaved", "model": {"layers": 10}},
    "split backward": {"dp": 4, "pp": 2, "schedule": "zb-v"},
    "ends alone": {"dp": 2, "pp": 4, "layout": (0, 4, 4, 0)},
    "no norm": {"dp": 4, "pp": 2, "optimizer": "post-validated"},
    "tied": {"dp": 4, "model": {"tied_embeddings": True}},
    "parts of sequences": {"dp": 4, "pp": 2, "schedule": "seq-1f1b", "splits": 2},
    "two directions": {"dp": 4, "pp": 4, "schedule": "dualpipe", "microbatches": 8},
    "many forward passes first": {"dp": 4, "schedule": "gpipe"},
    "in line": {"dp": 4, "overlap": sim.Overlap(dp=False)},
}
SOFTWARE = ["none", "megatron-core-2025", "torchtitan-2024"]


@pytest.mark.thinned(8)
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(("kind", "fields"), GRID, ids=str)
def test_every_combination_runs_or_is_refused_with_a_reason(kind: Any, fields: dict[str, Any], plan: str) -> None:
    framework = sim.framework(SOFTWARE[len(plan) % 3])
    chosen = of(sim.Sharding(kind, **fields), framework=framework, **{"microbatches": 4, **PLANS[plan]})
    gathers = kind in ("zero3", "fsdp", "hsdp")
    if chosen.plan.pp > 1 and (kind in ("zero2", "zero3") or (gathers and plan == "two directions")):
        with pytest.raises(UserError, match=r"plan\.sharding"):
            chosen.simulate()
        return
    run = chosen.simulate()
    both(*bound_twice(chosen)).assert_equal()
    assert run.metrics.step_time_s > 0
    for rank in run.memory:
        _, held = run.memory_over_time(rank.rank)
        assert held[0] == held[-1] == rank.static_bytes
        assert held.max() == rank.total_bytes or (fields.get("reduce") == "last" and held.max() < rank.total_bytes)


def test_fp8_weights_that_are_released_are_cast_in_every_pass() -> None:
    framework = sim.framework("megatron-core-2025")
    for sharding, every in (("zero1", False), ("fsdp", True)):
        chosen = of(sharding, framework=framework)
        chosen = scenario(chosen.model, chosen.cluster, chosen.plan, sim.Job(256, 24, 1, dtype="fp8"), framework=framework)
        program = program_of(chosen)
        cast = [
            sum(op.name.endswith("weights") for op in program.bodies[step.body].ops)
            for step in program.orders[0]
            if step.phase == "F"
        ]
        assert cast[0] > 0
        assert (cast[1] == cast[0]) == every


def test_a_single_replica_shares_nothing() -> None:
    alone, shared = (of(kind, dp=1, tp=4) for kind in ("none", "fsdp"))
    assert alone.simulate().metrics == shared.simulate().metrics
    assert alone.simulate().memory == shared.simulate().memory
