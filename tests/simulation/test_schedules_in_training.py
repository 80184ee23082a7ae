"""Schedules inside whole training steps: directions, pairs, split sequences, post-validated optimizers, costs.

The sentences of docs/semantics.md, second half, that are about them; read off the timelines of small runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import simulator as sim
from simulator.config import catalog, derived
from simulator.errors import UserError
from simulator.program.layout import lay_out
from simulator.program.slot import Durations, Pair, Shape, Slot
from simulator.simulation.run import Run
from simulator.simulation.simulate import program_of, site_of
from simulator.simulation.slot_durations import slot_durations
from simulator.study.schedule import evaluate

from ..small_scenarios import scenario, small_cluster, small_model

JOB = sim.Job(sequence_length=256, global_batch=8)


def run_of(plan: sim.Plan, model: Any = None, job: sim.Job = JOB, **more: Any) -> Run:
    gpus = plan.tp * plan.pp * (plan.dp or 1)
    return scenario(model, small_cluster(max(1, gpus // 4)), plan, job, **more).simulate()


def dualpipe(**changes: Any) -> sim.Plan:
    return sim.Plan(**{"tp": 1, "pp": 4, "dp": 1, "schedule": "dualpipe", **changes})


@pytest.mark.parametrize("schedule", ["zb-v", "zb-auto"])
def test_a_schedule_that_looks_at_durations_takes_experts_and_sharded_state(schedule: str) -> None:
    """Durations are those of one microbatch alone, whose parameters nobody shares."""
    model = small_model(8, experts=8, experts_per_token=2)
    plan = sim.Plan(pp=2, dp=4, ep=2, etp=1, schedule=schedule, sharding=sim.Sharding("zero1", group=2))
    assert run_of(plan, model).metrics.step_time_s > 0


def test_t2_6_copies_on_other_ranks_are_replicas() -> None:
    """Each of 4 ranks holds 2 of 4 stages: twice the parameters, reduced over pairs of ranks, the optimizer halved by ZeRO-1."""
    run, usual = run_of(dualpipe()), run_of(dualpipe(schedule="1f1b"))
    held, once = ([m.parameters_bytes for m in r.memory] for r in (run, usual))
    assert held == [a + b for a, b in zip(once, reversed(once), strict=True)]
    rows = run.timeline.to_pandas()
    reduced = rows[rows.block.str.endswith("gradients")]
    assert set(reduced.kind) == {"all_reduce"}
    assert reduced.groupby("rank").payload_bytes.sum().tolist() == [2 * n for n in held]  # fp32 against bf16
    assert {frozenset(g["rank"]) for _, g in reduced.groupby("stage")} == {frozenset({0, 3}), frozenset({1, 2})}
    sharded = run_of(dualpipe(sharding="zero1"))
    assert [m.optimizer_bytes * 2 for m in sharded.memory] == [m.optimizer_bytes for m in run.memory]
    gathered = sharded.timeline.to_pandas().query("kind == 'all_gather'")
    assert gathered.groupby("rank").payload_bytes.sum().tolist() == held


@pytest.mark.parametrize("overlaps", [True, False])
def test_t2_6_without_overlap_too(overlaps: bool) -> None:
    plan = dualpipe(dp=2, overlap=sim.Overlap(dp=overlaps))
    rows = run_of(plan, job=sim.Job(sequence_length=256, global_batch=16)).timeline.to_pandas()
    reduced = rows[rows.kind == "all_reduce"]
    assert reduced.groupby(["rank", "stream"]).ngroups == 8 * 2
    members = reduced[reduced.stream == "copies of stage 0"]["rank"]
    assert set(members) == {0, 1, 6, 7}
    assert len(members) == 4 * (3 if overlaps else 1)


class LateHead(SimpleNamespace):
    """Two chunks on one rank; the head's last weight gradient comes after the embedding's, or before."""

    CHUNKS = 2

    def __init__(self, *, late: bool) -> None:
        super().__init__(__name__="late" if late else "early", late=late)

    def order(self, rank: int, shape: Shape) -> Iterator[Slot]:
        for m in range(shape.microbatches):
            yield from (Slot("F", 0, m), Slot("F", 1, m), Slot("I", 1, m), Slot("I", 0, m))
            yield from (Slot("W", stage, m) for stage in ((0, 1) if self.late else (1, 0)))


def test_t2_7_a_shared_table_is_reduced_when_both_ends_are_done() -> None:
    for late in (True, False):
        plan = sim.Plan(pp=1, dp=4, chunks=2, schedule=LateHead(late=late))
        rows = run_of(plan, small_model(tied_embeddings=True)).timeline.to_pandas(ranks=[0])
        weights = rows[(rows.phase == "W") & rows.block.isin(["embedding.wgrad", "logits.wgrad"])]
        table = rows[(rows.kind == "all_reduce") & ~rows.block.str.startswith("layer") & ~rows.block.str.startswith("head")]
        assert len(table) == 1
        assert table.payload_bytes.iloc[0] == 4096 * 512 * 4
        assert table.start_ns.iloc[0] >= weights.end_ns.max()
        assert (
            rows[rows.kind == "all_reduce"].payload_bytes.sum()
            == 2 * run_of(plan, small_model(tied_embeddings=True)).memory[0].parameters_bytes
        )


@pytest.mark.parametrize(
    ("field", "name", "same"),
    [("chunks", "interleaved", "1f1b"), ("chunks", "interleaved_zb", "zb-h1"), ("splits", "seq-1f1b", "1f1b")],
)
def test_a_schedule_that_cuts_nothing_says_what_it_comes_to(field: str, name: str, same: str) -> None:
    cuts_nothing, named = (run_of(sim.Plan(tp=1, pp=2, schedule=called)) for called in (name, same))
    assert cuts_nothing.metrics.step_time_s == named.metrics.step_time_s
    assert f"{catalog.plain(name)}, which is {same} with plan.{field} 1" in dict(cuts_nothing.summary)["plan"]
    assert "which is" not in dict(named.summary)["plan"]
    cut = run_of(sim.Plan(tp=1, pp=2, schedule=name, **{field: 2}))
    assert f"{catalog.plain(name)} x 2 {field}" in dict(cut.summary)["plan"]


def test_t3_4_a_post_validated_optimizer_waits_for_its_own_rank_only() -> None:
    plan = sim.Plan(tp=1, pp=4, dp=1, optimizer="post-validated")
    run, synchronised = run_of(plan), run_of(replace(plan, optimizer="synchronised"))
    rows = run.timeline.to_pandas()
    assert "norm" not in set(rows.phase)
    assert run.metrics.step_time_s == synchronised.metrics.step_time_s, "with 1f1b the first rank is busy first and last"
    zb_h2 = replace(plan, schedule="zb-h2")
    even = small_model(layers=4, vocab=128, hidden=2048, heads=16, kv_heads=16, ffn_hidden=8192)
    both = (zb_h2, replace(zb_h2, optimizer="synchronised"))
    apart, at_once = (run_of(one, even).metrics.step_time_s for one in both)
    assert apart < at_once, "where no rank is busy throughout"
    first = rows[rows.phase == "optimizer"].groupby("rank").start_ns.min()
    assert first.nunique() == 4
    for rank, start_ns in first.items():
        backward = rows[(rows["rank"] == rank) & (rows.phase == "B") & (rows.stream == "compute")]
        assert start_ns == backward.end_ns[backward.end_ns <= start_ns].max()
    assert (run.time_by_cause.ns.sum(axis=1) == run.observation.window_ns).all()


@pytest.mark.parametrize("name", ["zb-h2", "zb-h1"])
def test_t3_4_the_step_is_the_span_then_and_the_makespan_otherwise(name: str) -> None:
    """Free links: the bare schedule at the durations of this model's slots says how long a step takes, optimizer apart."""
    job = sim.Job(sequence_length=256, global_batch=12)
    fast = small_cluster(1, intra_node="NVSwitch 10 TB/s", latency={"nvlink": "0.0001 ns"})
    model = small_model(layers=4, vocab=128, hidden=2048, heads=16, kv_heads=16, ffn_hidden=8192)
    plan = sim.Plan(tp=1, pp=4, dp=1, schedule=name, optimizer="post-validated")
    of = scenario(model, fast, plan, job)
    schedule, shape = catalog.module("schedules", name), derived.schedule_shape(of)
    bare = evaluate(lay_out(schedule, replace(shape, durations=slot_durations(of, schedule, shape, site_of(of)))))
    run, waiting = of.simulate(), scenario(model, fast, replace(plan, optimizer="synchronised"), job).simulate()
    rows = waiting.timeline.to_pandas().query("phase == 'optimizer'")
    optimizer_s = ((rows.end_ns - rows.start_ns).to_numpy() / 1e9)[rows["rank"].argsort()]
    assert waiting.metrics.step_time_s == pytest.approx(bare.makespan + optimizer_s.max(), rel=1e-4)
    assert run.metrics.step_time_s == pytest.approx((np.array(bare.span_per_rank) + optimizer_s).max(), rel=1e-4)


def test_t5_4_two_directions_and_a_stage_of_each() -> None:
    rows = run_of(dualpipe()).timeline.to_pandas()
    forward = rows[rows.phase == "F"]
    for rank in range(4):
        mine = forward[forward["rank"] == rank]
        assert {(m, s) for m, s in zip(mine.microbatch, mine.stage, strict=True)} == {
            (m, rank if m < 4 else 3 - rank) for m in range(8)
        }


class OnePair(SimpleNamespace):
    """Two microbatches on one stage; the second forward beside the first backward, or before it."""

    CHUNKS = 1

    def __init__(self, *, paired: bool) -> None:
        super().__init__(__name__="paired" if paired else "apart", paired=paired)

    def order(self, rank: int, shape: Shape) -> Iterator[Slot | Pair]:
        forward, backward = Slot("F", 0, 1), Slot("B", 0, 0)
        yield Slot("F", 0, 0)
        yield from [Pair(forward, backward)] if self.paired else [forward, backward]
        yield Slot("B", 0, 1)


def test_t5_5_a_pair_takes_turns_and_hides_tensor_parallelism() -> None:
    job = sim.Job(sequence_length=256, global_batch=2)
    paired, apart = (run_of(sim.Plan(tp=4, pp=1, schedule=OnePair(paired=p)), job=job) for p in (True, False))
    rows = paired.timeline.to_pandas(ranks=[0])
    on_gpu = rows[rows.stream == "compute"].sort_values("start_ns")
    together = on_gpu[((on_gpu.phase == "F") & (on_gpu.microbatch == 1)) | ((on_gpu.phase == "B") & (on_gpu.microbatch == 0))]
    turns = (together.phase.to_numpy()[1:] != together.phase.to_numpy()[:-1]).sum()
    assert turns > 0.8 * 2 * min((together.phase == phase).sum() for phase in "FB")
    assert paired.metrics.exposed_s["tp"] < 0.75 * apart.metrics.exposed_s["tp"]
    assert paired.metrics.busy_s == apart.metrics.busy_s


def test_t5_6_parts_of_a_sequence_add_up_where_attention_is_not_fused_too() -> None:
    software = sim.framework({"attention": "unfused"})
    for splits in (1, 4):
        run = run_of(sim.Plan(tp=2, pp=2, dp=1, schedule="seq-1f1b", splits=splits), framework=software)
        assert run.metrics.hfu == pytest.approx(run.metrics.mfu, rel=1e-12)


def test_t5_6_parts_of_a_sequence_add_up_to_the_whole() -> None:
    whole = run_of(sim.Plan(tp=2, pp=2, dp=1, schedule="seq-1f1b"))
    split = run_of(sim.Plan(tp=2, pp=2, dp=1, schedule="seq-1f1b", splits=4))
    for run in (whole, split):
        assert run.metrics.hfu == pytest.approx(run.metrics.mfu, rel=1e-12)
    flop = [run.timeline.to_pandas().query("kind == 'attention'").flop.sum() for run in (whole, split)]
    assert flop[0] == flop[1] > 0
    rows = split.timeline.to_pandas(ranks=[0]).query("phase == 'F' and kind == 'attention'")
    lasts = rows.assign(part=rows.microbatch % 4, lasts=rows.end_ns - rows.start_ns).groupby("part").lasts.max()
    assert lasts.is_monotonic_increasing
    assert split.memory[0].activations_bytes < whole.memory[0].activations_bytes


def test_t5_7_a_cost_aware_schedule_is_told_what_slots_take() -> None:
    told: list[Durations] = []

    def orders(shape: Shape) -> list[list[Slot]]:
        told.append(shape.durations)
        return [[Slot(kind, rank, m) for kind in "FIW" for m in range(shape.microbatches)] for rank in range(shape.ranks)]

    schedule = SimpleNamespace(COST_AWARE=True, CHUNKS=1, orders=orders, __name__="told")
    plan = sim.Plan(tp=2, pp=4, dp=1, schedule=schedule)
    disturbed = scenario(None, small_cluster(2), plan, JOB, perturb=(sim.Perturb(rank=0, speed=0.5),))
    run = scenario(None, small_cluster(2), plan, JOB).simulate()
    rows = run.timeline.to_pandas()
    single = rows[(rows.microbatch == 0) & rows.phase.isin(["F", "I", "W"]) & (rows["rank"] % 2 == 0)]
    slots = single.groupby(["phase", "stage"]).agg(start_ns=("start_ns", "min"), end_ns=("end_ns", "max"))
    lasted = (slots.end_ns - slots.start_ns) / 1e9
    for phase, durations in (("F", told[-1].forward), ("I", told[-1].input_gradient), ("W", told[-1].weight_gradient)):
        assert isinstance(durations, tuple)
        np.testing.assert_allclose(durations, lasted[phase].to_numpy(), rtol=0.01)  # other transfers share NVLink
    assert told[-1].comm == pytest.approx(((rows.arrival_ns - rows.start_ns)[rows.kind == "send"]).max() / 1e9, rel=0.5)
    before = told[-1]
    program_of(disturbed)
    assert told[-1] == before


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (sim.Plan(tp=2, pp=4, splits=2), "plan.splits: 1f1b has no use for it"),
        (sim.Plan(tp=2, pp=4, group=4), "plan.group: 1f1b has no use for it"),
        (sim.Plan(tp=2, pp=4, memory_limit=2.0), "plan.memory_limit: 1f1b has no use for it"),
        (sim.Plan(tp=2, pp=4, schedule="seq-1f1b", splits=3), "plan.splits: 256 tokens do not divide into 3 parts"),
        (sim.Plan(tp=2, pp=4, chunks=2, schedule="gpipe"), "plan.chunks: gpipe runs 1 chunk per rank, not 2"),
        (sim.Plan(tp=2, pp=4, chunks=3, schedule="interleaved"), "8 layers of inline do not fill pp x chunks = 12 stages"),
    ],
)
def test_what_a_schedule_cannot_do_is_refused(plan: sim.Plan, message: str) -> None:
    with pytest.raises(UserError, match=message):
        scenario(plan=plan).simulate()
