"""What is measured: a step of a long run, each operation once, whatever was simulated to find it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulator as sim
from simulator.engine.timeline import Timeline
from simulator.lowering.passes.data_parallel import NORM
from simulator.metrics.idle import BUSY
from simulator.program.labels import Labels
from simulator.program.operations import COMPUTE
from simulator.simulation.run import Run
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.steady_state import LONGEST_PERIOD, between_starts, repeating

from ..small_scenarios import both, bound, bound_twice, scenario, small_cluster

PLANS: dict[str, dict[str, Any]] = {
    "data": {"tp": 1, "pp": 1, "dp": 4, "sharding": "zero1"},
    "three axes": {"tp": 2, "pp": 2, "dp": 2, "sharding": "zero1"},
    "interleaved": {"tp": 1, "pp": 4, "dp": 2, "chunks": 2, "schedule": "interleaved", "sharding": "zero1"},
    "split": {"tp": 1, "pp": 4, "dp": 2, "schedule": "zb-h1", "sharding": "zero1"},
    "two directions": {"tp": 1, "pp": 4, "dp": 2, "schedule": "dualpipe", "sharding": "zero1"},
    "blocking": {"tp": 1, "pp": 2, "dp": 2, "sharding": "zero1", "overlap": sim.Overlap(dp=False, pp=False)},
    "tensor beside": {"tp": 4, "pp": 1, "dp": 2, "sharding": "zero1", "overlap": sim.Overlap(tp=True)},
    "unsharded": {"tp": 2, "pp": 2, "dp": 2},
}
POST = {name: {**plan, "optimizer": "post-validated"} for name, plan in PLANS.items() if name != "two directions"}
SHARDED = {name: plan for name, plan in PLANS.items() if "sharding" in plan}
JOB = sim.Job(sequence_length=256, global_batch=32)


def of_plan(plan: dict[str, Any], framework: str = "none", **more: Any) -> Scenario:
    chosen = sim.Plan(**plan)
    gpus = chosen.tp * chosen.pp * (chosen.dp or 1)
    cluster = more.pop("cluster", None) or small_cluster(max(1, gpus // 4))
    return scenario(more.pop("model", None), cluster, chosen, JOB, framework=sim.framework(framework), **more)


def times_of(of: Scenario, steps: int | None) -> tuple[Timeline, Any]:
    found = both(*bound_twice(of, steps))
    found.assert_equal()
    return Timeline(found.folded_times, found.folded), bound(of, steps).labels


@pytest.mark.thinned(3)
@pytest.mark.parametrize("framework", ["none", pytest.param("megatron-core-2025", marks=pytest.mark.slow)])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_t3_2_from_norm_to_norm_is_what_lies_between_two_norms_of_a_long_run(plan: dict[str, Any], framework: str) -> None:
    """Of three steps in a row all that happens between two norms, to the nanosecond, on every rank."""
    of = of_plan(plan, framework, perturb=(sim.Perturb(rank=1, speed=0.7),))
    (one, names), (three, labels) = times_of(of, None), times_of(of, 3)
    for rank in range(one.ranks):
        program = int(one.expansion.skeleton.program[int(one.class_of[rank])])
        short, long = table(one, names[program], rank), table(three, labels[program], rank)
        norms = labels[program]
        ends = three.rank_times(rank).end_ns[(norms.phase == NORM) & ~norms.is_launch]
        assert len(ends) == 3
        for begin_ns, end_ns in pairwise(ends):
            inside = long[(long.start_ns >= begin_ns) & (long.end_ns <= end_ns)]
            moved = inside.assign(start_ns=inside.start_ns - begin_ns, end_ns=inside.end_ns - begin_ns)
            columns = list(short)
            pd.testing.assert_frame_equal(
                short.sort_values(columns, ignore_index=True), moved.sort_values(columns, ignore_index=True)
            )
            assert one.rank_times(rank).end_ns.max() == end_ns - begin_ns


def table(timeline: Timeline, labels: Labels, rank: int) -> pd.DataFrame:
    """What a rank does and takes time, launches apart."""
    times = timeline.rank_times(rank)
    columns = {"what": labels.blocks, "microbatch": labels.microbatch, "start_ns": times.start_ns, "end_ns": times.end_ns}
    return pd.DataFrame(columns)[~labels.is_launch & (times.end_ns > times.start_ns)]


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "plan",
    [*PLANS.values(), *(pytest.param(plan, marks=() if name == "split" else pytest.mark.slow) for name, plan in POST.items())],
    ids=[*PLANS, *(f"{name}-post" for name in POST)],
)
def test_t3_7_nothing_is_lost_and_nothing_counted_twice(plan: dict[str, Any]) -> None:
    """Busy time, executed flop and bytes on links per step are the same however many steps are simulated and measured."""
    of = of_plan(plan)
    steady, *others = (of.simulate(steps=steps) for steps in (None, 1, 2, 3))
    for run in others:
        assert run.metrics.busy_s == pytest.approx(steady.metrics.busy_s, rel=1e-12)
        per_step = (run.metrics.hfu * run.metrics.step_time_s, run.metrics.mfu * run.metrics.step_time_s)
        of_steady = (steady.metrics.hfu * steady.metrics.step_time_s, steady.metrics.mfu * steady.metrics.step_time_s)
        assert per_step == pytest.approx(of_steady, rel=1e-12)
        np.testing.assert_allclose(run.network.bytes, steady.network.bytes, rtol=1e-12)
        assert [cost.calls for cost in run.kernel_costs] == [cost.calls for cost in steady.kernel_costs]
        assert [cost.calls for cost in run.collective_costs] == [cost.calls for cost in steady.collective_costs]
    for run in (steady, *others):
        assert (run.time_by_cause.ns >= 0).all()
        assert (run.time_by_cause.ns.sum(axis=1) == run.observation.window_ns).all()
        assert run.observation.window_ns.min() == run.observation.window_ns.max()
        shown = run.timeline.to_pandas(ranks=[0])
        kernels = shown[shown.stream == COMPUTE]
        lasted_ns = (kernels.end_ns - kernels.start_ns).sum()
        which = run.engine_timeline.class_of[0]
        optimizer_ns = kernels[kernels.phase == "optimizer"].pipe(lambda rows: (rows.end_ns - rows.start_ns).sum())
        assert lasted_ns - optimizer_ns == run.time_by_cause.of(BUSY)[which]
        assert shown.start_ns.min() >= 0
        assert len(run.timeline) == len(run.timeline.to_pandas())


@pytest.mark.thinned(3)
@pytest.mark.parametrize("plan", POST.values(), ids=POST)
def test_t3_4_every_rank_takes_as_long_from_step_to_step(plan: dict[str, Any]) -> None:
    of = of_plan(plan)
    run, many = of.simulate(), of.simulate(steps=9)
    seen = run.observation
    assert len(np.unique(seen.window_ns)) == 1
    assert run.metrics.step_time_s == seen.window_ns[0] / seen.window.steps / 1e9
    rows = many.timeline.to_pandas().query("stream == 'compute' and phase == 'F' and microbatch == 0")
    first = rows.groupby("rank").apply(lambda of: of.start_ns.sort_values().iloc[:: len(of) // 9].to_numpy())
    intervals = np.diff(np.stack(first.tolist()), axis=1)
    assert (intervals[:, -3:] == seen.window_ns[0]).all(), "and so it goes on"
    assert "overlapping steps" in run.observation.window.text
    assert run.as_dict()["measured"] == dict(run.summary)["measured"] == run.observation.window.text


def test_t3_4_steps_are_simulated_until_they_repeat() -> None:
    """Without weight gradients that fill gaps the ranks of a long pipeline take turns; four steps are too few to see it."""
    run = of_plan({"tp": 1, "pp": 4, "dp": 1, "optimizer": "post-validated"}).simulate()
    assert run.observation.window.iterations.stop + 1 in (4, 6, 9, 13)


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=LONGEST_PERIOD), st.lists(st.integers(1, 50), max_size=4), st.integers(2, 3)
)
def test_t3_4_a_pattern_is_found_as_soon_as_it_repeats_on_every_rank(pattern: list[int], before: list[int], times: int) -> None:
    intervals = np.array([[*before, *pattern * times], [*(2 * x for x in before), *pattern * times]])
    starts = np.cumsum(np.pad(intervals, ((0, 0), (1, 0))), axis=1)
    period = repeating(starts)
    assert 0 < period <= len(pattern)
    found = between_starts(starts, period)
    lasted = (found.end_ns - found.begin_ns) / found.steps
    last = (pattern * times)[-2 * period :]
    assert last[:period] == last[period:]
    assert lasted.tolist() == pytest.approx([np.mean(last)] * 2)
    assert all((pattern * times)[-k:] != (pattern * times)[-2 * k : -k] for k in range(1, period))
    slower = starts.copy()
    slower[1] += np.arange(starts.shape[1])
    assert repeating(slower) == 0, "a rank that falls behind is not a pattern"


def test_t3_4_where_nothing_repeats_the_mean_of_the_last_four_is_taken_and_said() -> None:
    from simulator.simulation.steady_state import _description

    starts = np.cumsum([[0, *range(1, 13)]], axis=1)
    assert repeating(starts) == 0
    found = between_starts(starts, LONGEST_PERIOD, _description(13, 0))
    assert (found.end_ns - found.begin_ns)[0] == 9 + 10 + 11 + 12
    assert (found.iterations, found.steps) == (range(8, 12), 4)
    assert "no pattern repeats" in found.text


@pytest.mark.thinned(3)
@pytest.mark.parametrize("framework", ["none", "megatron-core-2025"])
@pytest.mark.parametrize("plan", SHARDED.values(), ids=SHARDED)
def test_t3_3_a_layer_waits_for_its_own_bucket_of_the_step_before(plan: dict[str, Any], framework: str) -> None:
    run = of_plan(plan, framework, cluster=slow_network(plan)).simulate(steps=3)
    late = 0
    for rank in (0, run.gpus - 1):
        rows = run.timeline.to_pandas(ranks=[rank])
        for stage, of_stage in rows.groupby("stage"):
            gathers = of_stage[of_stage.kind == "all_gather"].query("phase == 'gather'")
            assert gathers.start_ns.is_monotonic_increasing, "in the order of the forward pass"
            forward = of_stage[(of_stage.phase == "F") & (of_stage.stream == COMPUTE)]
            for block, moved in gathers.groupby("block"):
                reader = first_reader(forward, str(block), int(stage), plan)
                starts, ends = reader.start_ns.to_numpy(), moved.end_ns.sort_values().to_numpy()
                starts = starts.reshape(3, -1).min(axis=1)
                assert len(ends) == 3
                assert (starts[1:] >= ends[:-1]).all()
                late += int((starts[1:] == ends[:-1]).sum())
        begins = rows[(rows.phase == "F") & (rows.stream == COMPUTE)].start_ns.min()
        assert begins < rows[(rows.phase == "gather") & (rows.stream != "host")].end_ns.min(), (
            "the first step finds its parameters in place"
        )
    assert late > 0 or framework != "none"


def first_reader(forward: pd.DataFrame, block: str, stage: int, plan: dict[str, Any]) -> pd.DataFrame:
    """The first kernels that need a bucket, of every microbatch and step."""
    if block.startswith("layer"):
        mine = forward[forward.block.str.startswith(block.removesuffix("parameters"))]
        return mine[mine.block == mine.sort_values("start_ns").block.iloc[0]]
    return forward[forward.block == {"embedding parameters": "embedding", "head parameters": "final_norm"}[block]]


def slow_network(plan: dict[str, Any]) -> Any:
    gpus = plan["tp"] * plan["pp"] * plan["dp"]
    return small_cluster(max(1, gpus // 4), intra_node="NVSwitch 2 GB/s", inter_node="4x4 Gbit/s")


def test_t3_3_gathers_are_hidden_by_the_forward_pass_unless_the_profile_says_otherwise() -> None:
    plan = {"tp": 1, "pp": 1, "dp": 4, "sharding": "zero1"}
    beside = of_plan(plan, cluster=slow_network(plan))
    software = beside.framework
    apart = replace(beside, framework=replace(software, overlap=replace(software.overlap, parameter_gather=False)))
    fast, slow = beside.simulate(), apart.simulate()
    rows, other = (run.timeline.to_pandas(ranks=[0]) for run in (fast, slow))
    gathered, forward = rows[rows.phase == "gather"], rows[(rows.phase == "F") & (rows.stream == COMPUTE)]
    assert forward.start_ns.min() < gathered.end_ns.max()
    assert forward.start_ns.min() == gathered.end_ns.min()
    assert other[(other.phase == "F")].start_ns.min() == other[other.phase == "gather"].end_ns.max()
    assert fast.metrics.exposed_s["dp"] < slow.metrics.exposed_s["dp"]
    assert fast.metrics.step_time_s < slow.metrics.step_time_s
    assert fast.metrics.busy_s == slow.metrics.busy_s
    bodies = {step.body for step in fast.program.orders[0] if step.phase == "F"}
    assert len(bodies) == 1, "bodies stay shared: only the call of the first waits"


def test_t3_6_so_many_steps_from_a_standing_start_and_their_mean() -> None:
    for plan in (PLANS["three axes"], POST["split"]):
        for steps in (1, 2, 5):
            run = of_plan(plan).simulate(steps=steps)
            rows = run.timeline.to_pandas()
            assert rows.start_ns.min() == 0
            assert run.metrics.step_time_s == pytest.approx(rows.end_ns.max() / steps / 1e9, rel=1e-12)
            assert (rows[rows["rank"] == 0].phase == "optimizer").sum() == steps


@pytest.mark.parametrize("when", [{"from_s": 1e-4}, {"until_s": 1e-3}])
def test_t3_6_what_disturbs_for_a_while_does_so_once(when: dict[str, float]) -> None:
    slow = sim.Perturb(rank=1, speed=0.5, **when)
    for plan in (PLANS["three axes"], POST["split"]):
        of = of_plan(plan, perturb=(slow,))
        run, one, two = of.simulate(), of.simulate(steps=1), of.simulate(steps=2)
        assert run.metrics.step_time_s == one.metrics.step_time_s
        assert "first step" in run.observation.window.text
        assert "first 2 steps" in two.observation.window.text
        always = of_plan(plan, perturb=(replace(slow, from_s=0.0, until_s=None),)).simulate()
        assert "first" not in always.observation.window.text


def test_a_picture_a_trace_and_memory_show_what_is_measured(tmp_path: Any) -> None:
    import json

    from simulator.figures.bars import chart_of_run

    for plan in (PLANS["three axes"], POST["split"]):
        run: Run = of_plan(plan).simulate()
        seen = run.observation
        chart = chart_of_run(run)
        assert chart.end == pytest.approx((seen.until_ns - seen.from_ns) / 1e9)
        assert chart.since == seen.window.text
        for row in chart.rows:
            assert all(0 <= bar.start < bar.end <= chart.end for bar in row.bars)
        sim.trace(run, tmp_path / "t.json", ranks=[0])
        record = json.loads((tmp_path / "t.json").read_text())
        assert record["otherData"]["measured"] == seen.window.text
        kernels = [e for e in record["traceEvents"] if e.get("tid") == 0 and e["ph"] == "X" and e["cat"] != "slot"]
        rows = run.timeline.to_pandas(ranks=[0]).query("stream == 'compute'")
        assert sum(e["dur"] for e in kernels) == pytest.approx((rows.end_ns - rows.start_ns).sum() / 1e3)
        for coordinate in range(run.program.ranks):
            at, held = run.memory_over_time(coordinate)
            assert at[0] == 0
            assert (np.diff(at) >= 0).all()
            assert at[-1] <= chart.end
            assert held[-1] == run.memory[coordinate].static_bytes
            assert held.max() == run.memory[coordinate].total_bytes
