"""Layers of stages as layouts state them, layers moved for the vocabulary, placement of ranks, and the whole run."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulator as sim
from simulator.config import feasible
from simulator.errors import UserError
from simulator.plan.mesh import Mesh
from simulator.plan.stage_layers import stage_layers
from simulator.simulation.run import Run

from ..small_scenarios import both, bound_twice, scenario, small_cluster, small_model

CHUNKED = ("interleaved", "hanayo", "zb-v", "v-half", "dualpipe-v")
SCHEDULES = ("naive", "1f1b", "gpipe", "zb-h1", "zb-auto", "chimera", "dualpipe", *CHUNKED)


def layers_of(layout: object, layers: int, stages: int, **plan: Any) -> tuple[int, ...]:
    return stage_layers(sim.Plan(layout=layout, **plan), small_model(layers=layers), 256, stages)


def run_of(layers: int = 8, framework: str = "none", **plan: Any) -> Run:
    """A run on 8 GPUs with eight microbatches."""
    of = scenario(
        small_model(layers=layers), small_cluster(2), sim.Plan(**plan), sim.Job(128, 16), framework=sim.framework(framework)
    )
    return of.simulate()


@pytest.mark.parametrize("chunks", [1, 2])
def test_t14_1_a_list_gives_every_stage_its_layers(chunks: int) -> None:
    counts = [1, 3, 2, 2] * chunks
    schedule = "interleaved" if chunks > 1 else "1f1b"
    run = run_of(8 * chunks, tp=2, pp=4, chunks=chunks, schedule=schedule, layout=counts, overlap=sim.Overlap(pp=True))
    model, stages = small_model(), run.program.stages
    assert [stage.layers for stage in stages] == counts
    assert [stage.first_layer for stage in stages] == np.cumsum([0, *counts[:-1]]).tolist()
    divided = model.layer_parameters - 2 * model.hidden
    for rank, memory in enumerate(run.memory):
        held = sum(stage.layers for stage in stages if stage.rank == rank) * (divided // 2 + 2 * model.hidden)
        ends = {0: model.vocab * model.hidden // 2, 3: model.vocab * model.hidden // 2 + model.hidden}
        assert memory.parameters_bytes == 2 * (held + ends.get(rank, 0))
    assert dict(run.summary)["layers"] == ", ".join(["1, 3, 2 x 2"] * chunks) + " per stage"
    blocks = set(run.timeline.to_pandas([2]).block)
    assert {"layer 1 qkv", "layer 3 qkv"} <= blocks
    assert "layer 4 qkv" not in blocks


@pytest.mark.parametrize(("layout", "layers", "stages", "counts"), [
    ("first=7,last=7", 126, 16, [7, *[8] * 14, 7]),
    ("first=1, last=2", 13, 5, [1, 4, 3, 3, 2]),
    ("first=4", 10, 3, [4, 3, 3]),
    ("last=0", 10, 3, [5, 5, 0]),
    ("first=3,last=5", 8, 2, [3, 5]),
    ("first=8", 8, 1, [8]),
    ("last=5,first=3", 8, 2, [3, 5]),
    (" last = 2 , first = 1", 13, 5, [1, 4, 3, 3, 2]),
])  # fmt: skip
def test_t14_2_ends_of_their_own(layout: str, layers: int, stages: int, counts: list[int]) -> None:
    assert layers_of(layout, layers, stages) == tuple(counts)


@pytest.mark.parametrize(("layout", "counts"), [
    ("Ettt|tt|ttL", [3, 2, 2]),
    ("Et*3|(tt|)*3,tL", [3, 2, 2, 2, 1]),
    ("E|t*12|(t*2|)*2t,L", [0, 12, 2, 2, 1]),
    ("E(t|)*3L", [1, 1, 1, 0]),
    ("Et*8L", [8]),
    ("Et*3 | t*2 | t*2L", [3, 2, 2]),
])  # fmt: skip
def test_t14_3_layouts_of_megatron(layout: str, counts: list[int]) -> None:
    assert layers_of(layout, sum(counts), len(counts)) == tuple(counts)


@given(st.integers(0, 3), st.lists(st.integers(1, 9), max_size=6), st.integers(0, 3), st.data())
def test_t14_3_repetitions_of_megatron_are_read_like_what_they_repeat(
    first: int, middle: list[int], last: int, data: st.DataObject
) -> None:
    counts = [first, *middle, last]
    letters = [data.draw(st.sampled_from(["t" * n, f"t*{n}", f"{'t' * (n - 1)},t"] if n else [""])) for n in counts]
    times = data.draw(st.integers(1, 4))
    group = "".join(f"{stage}|" for stage in letters[1:-1])
    text = f"E{letters[0]}|{f'({group})*{times}' if group else ''}{letters[-1]}L"
    if first + last + sum(middle):
        whole = [first, *middle * times, last]
        assert layers_of(text, sum(whole), len(whole)) == tuple(whole)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_t14_4_embedding_and_head_run_alone_in_every_schedule(schedule: str) -> None:
    chunks = 2 if schedule in CHUNKED else 1
    run = run_of(
        4 * chunks - 2, "megatron-core-2025", tp=2, pp=4, chunks=chunks, schedule=schedule, layout="first=0,last=0",
        sharding="zero1",
    )  # fmt: skip
    assert [stage.layers for stage in run.program.stages][: 4 * chunks] == [0, *[1] * (4 * chunks - 2), 0]
    assert (run.time_by_cause.ns.sum(axis=1) == run.observation.window_ns).all()
    for rank in range(4):
        _, held = run.memory_over_time(rank)
        assert held.max() <= run.memory[rank].total_bytes
        assert held[-1] == run.memory[rank].static_bytes


@pytest.mark.parametrize(("layout", "wrong"), [
    ([4, 0, 2, 2], "no layer in stage 1"), ([2, 2, 2, 1], "has 7 layers"), ([8], "has 1 stages"), ("E|t*8|L", "3 stages"),
    ("first=9", "leaves -1 of 8 layers for 3"), ("first=4,last=3", "no layer in stage 2"), ("last", "not a layout"),
    ("Et*8|t*99999|L", "too many"), ("Et|tt|m|L", "several tokens"), ("tE|t|t|L", "not a layout"), ([True, 7], "not a layout"),
    ([], "not a layout"), ("E((t|)*2t|)*2L", "not a layout"),
])  # fmt: skip
def test_t14_4_other_layouts_are_refused(layout: object, wrong: str) -> None:
    of = scenario(plan=sim.Plan(tp=2, pp=4, layout=layout))
    with pytest.raises(UserError, match=r"plan\.layout") as refused:
        feasible.check(of)
    assert wrong in str(refused.value)
    assert refused.value.hint


def test_t14_4_fewer_layers_than_stages_need_a_layout_that_says_so() -> None:
    of = scenario(small_model(layers=6), small_cluster(2), sim.Plan(pp=8))
    with pytest.raises(UserError, match="6 layers") as refused:
        feasible.check(of)
    assert 'layout: "first=0,last=0"' in refused.value.hint
    feasible.check(replace(of, plan=sim.Plan(pp=8, layout="first=0,last=0")))


@pytest.mark.parametrize("framework", ["none", "megatron-core-2025"])
def test_t14_5_a_slot_without_a_kernel_waits_for_its_input(framework: str) -> None:
    run = run_of(6, framework, tp=2, pp=4, schedule="zb-h1", layout="first=0,last=2")
    rows = run.timeline.to_pandas([0])
    empty = rows[rows.phase == "I"]
    assert set(empty.kind) == {"wait"}
    assert (empty.start_ns == empty.end_ns).all()
    arrived = rows[rows.kind == "receive"].set_index("microbatch").arrival_ns
    assert (empty.start_ns.to_numpy() >= arrived[empty.microbatch].to_numpy()).all()
    weights = rows[(rows.phase == "W") & (rows.stream == "compute")].groupby("microbatch").start_ns.min()
    assert (weights[empty.microbatch].to_numpy() >= empty.end_ns.to_numpy()).all()


def flop_of(model: Any, counts: tuple[int, ...], seq: int) -> list[int]:
    """Forward flop of every stage by the published formulas: 24 h^2 for a layer of GPT, 2 h V for the head, per token."""
    layer = (24 * model.hidden**2 + 4 * seq * model.hidden) * seq
    return [n * layer + (2 * model.hidden * model.vocab * seq if s == len(counts) - 1 else 0) for s, n in enumerate(counts)]


@given(st.integers(1, 9), st.integers(1, 5), st.sampled_from([256, 4096, 50_000, 250_000]), st.sampled_from([64, 2048]))
def test_t14_6_no_other_division_has_a_smaller_largest_stage(layers: int, stages: int, vocab: int, seq: int) -> None:
    model = sim.model({"layers": max(layers, stages), "hidden": 512, "heads": 8, "vocab": vocab})
    counts = stage_layers(sim.Plan(vocabulary="redis"), model, seq, stages)
    assert sum(counts) == model.layers
    every = (np.diff([0, *cuts, model.layers]) for cuts in combinations_with_replacement(range(model.layers + 1), stages - 1))
    assert max(flop_of(model, counts, seq)) == min(max(flop_of(model, tuple(n.tolist()), seq)) for n in every)
    assert list(counts[:-1]) == sorted(counts[:-1])


@pytest.mark.parametrize(("vocab", "seq", "counts"), [
    (32_000, 2048, [4] * 8), (64_000, 2048, [4, 4, 4, 4, 4, 4, 5, 3]), (128_000, 4096, [4, 4, 4, 4, 4, 5, 5, 2]),
    (256_000, 2048, [4, 4, 4, 5, 5, 5, 5, 0]),
])  # fmt: skip
def test_t14_6_the_divisions_of_the_paper(vocab: int, seq: int, counts: list[int]) -> None:
    """Source: artifact/exp_one_host.csv of sail-sg/VocabularyParallelism at 6191c3b, layers of the last of 8 stages."""
    model = sim.model({"layers": 32, "hidden": 3072, "heads": 24, "ffn_hidden": 12288, "vocab": vocab})
    assert stage_layers(sim.Plan(vocabulary="redis"), model, seq, 8) == tuple(counts)


def test_t14_6_moved_layers_shorten_the_step() -> None:
    model = small_model(layers=16, vocab=64_000)
    base = scenario(model, small_cluster(1), sim.Plan(pp=4), sim.Job(512, 32))
    moved = replace(base, plan=sim.Plan(pp=4, vocabulary="redis"))
    assert [stage.layers for stage in moved.simulate().program.stages][-1] < 4
    assert moved.simulate().metrics.step_time_s < base.simulate().metrics.step_time_s


def test_t14_7_the_whole_run() -> None:
    job = sim.Job(2048, 1536, total_tokens=300_000_000_000, price_per_gpu_hour=2.0)
    plan = sim.Plan(tp=8, pp=8, dp=2, sharding="zero1", overlap=sim.Overlap(pp=True))
    of = scenario(sim.model("gpt3-175b"), sim.cluster("dgx-a100", nodes=16), plan, replace(job, global_batch=64))
    run = of.simulate()
    whole, step_s = run.whole_run, run.metrics.step_time_s
    assert whole is not None
    assert whole.steps == pytest.approx(300e9 / (64 * 2048))
    assert whole.days * 86400 == pytest.approx(whole.steps * step_s)
    assert whole.gpu_hours == pytest.approx(whole.days * 24 * 128)
    assert whole.cost == pytest.approx(2 * whole.gpu_hours)
    flop, gpu = of.model.train_flop_per_token(2048, causal=False) * 300e9, of.cluster.gpu
    assert whole.years_on_one_gpu * 365 * 86400 * 312e12 * gpu.kernels.compute_fraction == pytest.approx(flop)
    assert 3.14e23 < flop < 3.3e23
    assert run.as_dict()["whole_run"]["days"] == whole.days
    assert [label for label, _ in run.summary].count("whole run") == 1
    bare = replace(of, job=sim.Job(2048, 64)).simulate()
    assert bare.whole_run is None
    assert "whole_run" not in bare.as_dict()


def latency_s(run: Run) -> float:
    """The sample latency by the table of the timeline."""
    rows = run.timeline.to_pandas().query("phase == 'F' and kind != 'launch'")
    first, last = (rows[rows.stage == stage].groupby(["rank", "microbatch"]) for stage in (0, rows.stage.max()))
    return float(last.end_ns.max().mean() - first.start_ns.min().mean()) / 1e9


@pytest.mark.parametrize("plan", [
    {"tp": 2, "pp": 4}, {"tp": 1, "pp": 2, "dp": 4},
    {"tp": 2, "pp": 4, "schedule": "dualpipe"}, {"tp": 2, "pp": 4, "schedule": "zb-v"},
])  # fmt: skip
def test_t14_8_the_latency_of_a_sample(plan: dict[str, Any]) -> None:
    run = run_of(16, "megatron-core-2025", **plan)
    assert run.as_dict()["sample_latency_s"] == pytest.approx(latency_s(run), rel=1e-12)


def test_t14_8_latency_grows_with_the_stages() -> None:
    found = [
        scenario(small_model(), small_cluster(1, gpus_per_node=pp), sim.Plan(pp=pp, dp=1), sim.Job(128, 1)).simulate()
        for pp in (1, 2, 4, 8)
    ]
    latencies = [run.as_dict()["sample_latency_s"] for run in found]
    assert latencies == sorted(latencies)
    assert latencies[0] < latencies[-1]


def test_t14_9_the_picture_of_64_gpus() -> None:
    mesh = Mesh.of({"tp": 4, "pp": 4, "dp": 4}, "tp-pp-dp")
    stage, replica = mesh.coordinate("pp"), mesh.coordinate("dp")
    assert np.flatnonzero((stage == 1) & (replica == 0)).tolist() == [4, 5, 6, 7]
    assert np.flatnonzero(replica == 1).tolist() == [*range(16, 32)]


def test_t14_9_the_scenario_of_the_picture_has_its_ranks() -> None:
    rows = sim.load("three-axes-64xh100").simulate().timeline.to_pandas(range(0, 64, 4))
    ran = rows[rows.stage >= 0].groupby("rank").stage.unique()
    assert [stages.tolist() for stages in ran] == [[0], [1], [2], [3]] * 4
    moved = rows[rows.kind.isin(["reduce_scatter", "all_gather"]) & (rows.stream == "dp")]
    assert set(moved["rank"]) == set(range(0, 64, 4))


def test_t14_9_ranks_run_on_the_gpus_of_a_placement() -> None:
    plan = sim.Plan(tp=4, pp=2)
    near, far = (scenario(plan=replace(plan, placement=gpus)) for gpus in ((*range(8),), (0, 4, 1, 5, 2, 6, 3, 7)))
    assert near.simulate().metrics == scenario(plan=plan).simulate().metrics
    assert far.simulate().metrics.exposed_s["tp"] > near.simulate().metrics.exposed_s["tp"]
    bound = far.simulate().bound
    assert sorted(bound.gpus_of(0).tolist()) == [0, 1, 4, 5], "the first four ranks, wherever they are"
    both(*bound_twice(far)).assert_equal()


def test_t14_9_perturbations_name_gpus() -> None:
    plan = sim.Plan(tp=4, pp=2, placement=(4, 5, 6, 7, 0, 1, 2, 3))
    slow = scenario(plan=plan, perturb=(sim.Perturb(rank=0, speed=0.5),)).simulate()
    exchanged = scenario(plan=sim.Plan(tp=4, pp=2), perturb=(sim.Perturb(rank=4, speed=0.5),)).simulate()
    assert slow.metrics == exchanged.metrics


@pytest.mark.parametrize("placement", [(0, 1), (0, 0, 1, 2, 3, 4, 5, 6), tuple(range(1, 9)), tuple(range(9))])
def test_t14_9_other_placements_are_refused(placement: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=r"plan\.placement"):
        feasible.check(scenario(plan=sim.Plan(placement=placement)))
