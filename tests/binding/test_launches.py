"""The host: section 8 of the second half of docs/semantics.md, and that leaving launches out changes nothing."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, get_args
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simulator as sim
from simulator.binding import launches as binding_launches
from simulator.binding.bind import Bound, bind
from simulator.binding.launches import ANY_TIME, MOST_LIFTED_NS, NO_TIME, Host
from simulator.binding.stepwise import stepwise
from simulator.config import derived
from simulator.engine import des
from simulator.engine.fold import fold, refine, unfolded
from simulator.engine.replay import replay, why_not, with_fixed_durations
from simulator.engine.skeleton import Expansion, join_skeletons
from simulator.engine.timeline import Timeline, Times
from simulator.figures.gantt import gantt
from simulator.figures.trace import events_of
from simulator.kernels import Kernel, KernelCost, Rowwise
from simulator.metrics import idle, observe
from simulator.metrics.idle import BUBBLE
from simulator.plan.mesh import Mesh
from simulator.program.operations import COMPUTE, HOST, AnyOp, Collective, Communicator, Compute, Transfer, Wait
from simulator.program.program import END, Body, Key, Program, Stage, Step
from simulator.simulation.memory_check import memory_of
from simulator.simulation.run import Run
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.simulate import layout_of, prices_of, program_of, site_of
from simulator.simulation.simulated import Simulated
from simulator.workload.framework import HostWait

from ..small_scenarios import both, scenario, small_cluster, small_model

EAGER = Host(kernel_ns=10_000, collective_ns=20_000, graph_ns=None)
QUICK = Host(kernel_ns=2_000, collective_ns=5_000, graph_ns=None)
GRAPHED = replace(QUICK, graph_ns=30_000)
SYNCED = replace(EAGER, waits_for_transfers=True)
SYNCED_GRAPHS = replace(GRAPHED, waits_for_transfers=True)
WAITING = replace(EAGER, waits=("forward", "backward", "loss"), input_launches=3)
FREE = Host(kernel_ns=0, collective_ns=0, graph_ns=None)
SLOW, FAST = sim.Perturb(rank=1, speed=0.6), sim.Perturb(rank=2, speed=1.7, from_s=0.0003, until_s=0.002)

FOUR_STAGES = {"tp": 1, "pp": 4, "dp": 1}
PLANS: dict[str, dict[str, Any]] = {
    "one GPU": {},
    "tp pp": {"tp": 2, "pp": 4, "dp": 1},
    "zero1": {"tp": 2, "pp": 2, "dp": 2, "sharding": "zero1"},
    "tp beside compute": {"tp": 4, "pp": 1, "dp": 2, "overlap": sim.Overlap(tp=True)},
    "interleaved": {"tp": 1, "pp": 4, "dp": 2, "chunks": 2, "schedule": "interleaved"},
    "blocking": {"tp": 1, "pp": 4, "dp": 2, "overlap": sim.Overlap(pp=False, dp=False)},
    "blocking groups": {**FOUR_STAGES, "chunks": 2, "schedule": "interleaved", "overlap": sim.Overlap(pp=False)},
    "blocking zero bubble": {"tp": 2, "pp": 2, "dp": 1, "schedule": "zb-h1", "overlap": sim.Overlap(pp=False)},
    "blocking pairs": {**FOUR_STAGES, "chunks": 2, "schedule": "dualpipe-v", "overlap": sim.Overlap(pp=False)},
    "zb-v": {"tp": 1, "pp": 4, "dp": 1, "chunks": 2, "schedule": "zb-v"},
    "post-validated": {"tp": 1, "pp": 4, "dp": 2, "schedule": "zb-h1", "optimizer": "post-validated"},
    "pairs": {"tp": 2, "pp": 4, "dp": 1, "chunks": 2, "schedule": "dualpipe"},
}


def of_plan(plan: dict[str, Any], *, tokens: int = 256, batch: int = 16, **more: Any) -> Scenario:
    chosen = sim.Plan(**plan)
    gpus = chosen.tp * chosen.pp * (chosen.dp or 1)
    shape = {"gpus_per_node": 1} if gpus == 1 else {}
    return scenario(small_model(), small_cluster(max(1, gpus // 4), **shape), chosen, sim.Job(tokens, batch, 1), **more)


def bound_with(of: Scenario, host: Host | None, *, every: bool = False, steps: int = 1, cost: KernelCost | None = None) -> Bound:
    site = replace(site_of(of), host=host)
    site = replace(site, cost=cost) if cost else site
    return bind(program_of(of, steps), derived.mesh_of(of), site, every_launch=every)


def timeline_of(bound: Bound, folded: Expansion | None = None, *, closed: bool = False) -> Timeline:
    folded = folded or fold(bound.skeleton)
    graph = with_fixed_durations(folded.graph, every=closed)
    times = des.simulate(graph) if why_not(graph) else replay(graph)
    return Timeline(times, folded)


def run_of(of: Scenario, host: Host | None, *, steps: int = 1, every: bool = False) -> Run:
    bound, program, prices = bound_with(of, host, steps=steps, every=every), program_of(of, steps), prices_of(of)
    timeline, memory = timeline_of(bound), memory_of(of, layout_of(of))
    return Run(of, site_of(of, prices), prices, memory, Simulated(program, bound, timeline, "des", ""), 0.0)


def operations(bound: Bound, timeline: Timeline) -> list[Times]:
    """The times of every operation of every rank, without launches."""
    found = []
    for rank in range(timeline.ranks):
        kept = ~bound.labels[int(bound.skeleton.program[rank])].is_launch
        times = timeline.rank_times(rank)
        found.append(Times(times.start_ns[kept], times.end_ns[kept], times.arrival_ns[kept]))
    return found


def assert_same_operations(one: tuple[Bound, Timeline], other: tuple[Bound, Timeline]) -> None:
    for mine, theirs in zip(operations(*one), operations(*other), strict=True):
        np.testing.assert_array_equal(mine.start_ns, theirs.start_ns)
        np.testing.assert_array_equal(mine.end_ns, theirs.end_ns)


def assert_pruning_is_exact(some: Bound, every: Bound) -> None:
    """Every start and end, and the cause of every idle instant."""
    seen = []
    for bound in (some, every):
        timeline = timeline_of(bound)
        seen.append((bound, timeline, idle.measure(observe(timeline, bound.labels))))
    assert_same_operations(seen[0][:2], seen[1][:2])
    for cause in seen[1][2].causes:
        mine, theirs = (spent.of(cause)[timeline.class_of] for _, timeline, spent in seen)
        np.testing.assert_array_equal(mine, theirs, err_msg=cause)
    assert launches(some) <= launches(every)


def launches(bound: Bound) -> int:
    return sum(int(labels.is_launch.sum()) for labels in bound.labels)


def host_ns(labels: Any, host: Host, iteration: int | None = None) -> int:
    """What all launches of a rank take, counted one by one."""
    counts = ~labels.is_launch & ~labels.is_wait
    counts = counts if iteration is None else counts & (labels.iteration == iteration)
    kernels = int((labels.is_compute & counts).sum())
    return kernels * host.kernel_ns + (int(counts.sum()) - kernels) * host.collective_ns


def frame(run: Run, rank: int = 0) -> pd.DataFrame:
    return run.timeline.to_pandas(ranks=[rank])


# Leaving out launches


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "host",
    [QUICK, pytest.param(EAGER, marks=pytest.mark.slow), pytest.param(GRAPHED, marks=pytest.mark.slow), SYNCED, WAITING],
    ids=["quick", "eager", "graphed", "synced", "waiting"],
)
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_t8_5_launches_that_are_left_out_change_no_start_and_no_end(plan: dict[str, Any], host: Host) -> None:
    perturb = (SLOW, FAST) if plan else ()
    of = of_plan(plan, perturb=perturb, batch=8)
    assert_pruning_is_exact(*(bound_with(of, host, steps=2, every=every) for every in (False, True)))


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_t8_5_holds_for_kernels_of_any_length(data: st.DataObject) -> None:
    plan = PLANS[data.draw(st.sampled_from(sorted(PLANS)))]
    draw = data.draw(st.tuples(*[st.integers(0, 30_000)] * 3, st.none() | st.integers(0, 60_000), st.integers(0, 1 << 30)))
    kernel_ns, collective_ns, longest_ns, graph_ns, seed = draw
    waits = tuple(data.draw(st.sets(st.sampled_from(get_args(HostWait)))))
    more = {"waits_for_transfers": data.draw(st.booleans()), "waits": waits, "input_launches": data.draw(st.integers(0, 3))}
    host = Host(kernel_ns, collective_ns, graph_ns, **more)
    of = of_plan(plan, batch=8, perturb=(SLOW, FAST)[: data.draw(st.integers(0, 2)) if plan else 0])
    steps = data.draw(st.integers(1, 2))
    cost = _random_cost(seed, longest_ns)
    some, every = (bound_with(of, host, every=every, steps=steps, cost=cost) for every in (False, True))
    assert_pruning_is_exact(some, every)


def _random_cost(seed: int, longest_ns: int) -> KernelCost:
    rng, known = np.random.default_rng(seed), dict[Kernel, int]()
    return lambda kernel: known.setdefault(kernel, int(rng.integers(0, longest_ns + 1)))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1 << 30))
def test_t8_5_holds_for_any_program(seed: int) -> None:
    rng = np.random.default_rng(seed)
    program = _random_program(rng)
    site = site_of(scenario(perturb=(SLOW, FAST)[: rng.integers(3)]))
    kernel_ns, collective_ns = (int(x) for x in rng.integers(0, 40, 2) * (rng.random(2) < 0.8))
    host = Host(kernel_ns, collective_ns, int(rng.integers(0, 80)) if rng.random() < 0.3 else None, bool(rng.random() < 0.5))
    site = replace(site, host=host, cost=_random_cost(seed, int(rng.integers(1, 120))))
    mesh = Mesh.of({"tp": 2, "cp": 1, "ep": 1, "dp": 2, "pp": 2}, "tp-cp-ep-dp-pp")
    assert_pruning_is_exact(bind(program, mesh, site), bind(program, mesh, site, every_launch=True))


def _random_program(rng: np.random.Generator) -> Program:
    """Bodies of kernels and collectives that wait for anything before them, transfers both ways, barriers now and then."""
    bodies = {f"body {i}": Body(tuple(_random_ops(rng, i))) for i in range(4)}
    bodies["norm"] = Body((Collective(name="norm", streams=("world",), communicator="world", kind="barrier", payload_bytes=0),))
    for edge in ("forth", "back", "late"):
        for sends in (True, False):
            end = Transfer(name=f"{edge} {sends}", streams=(edge,), communicator=edge, payload_bytes=64, sends=sends)
            bodies[f"{edge} {sends}"] = Body((end,))
        bodies[f"{edge} drained"] = Body((Wait(name="wait", streams=(COMPUTE, edge)),))
    blocks = rng.random() < 0.5
    orders: list[list[Step]] = [[], []]
    for iteration in range(int(rng.integers(1, 4))):
        count = int(rng.integers(1, 4))
        for rank, (needs, gives) in enumerate((("back", "forth"), ("forth", "back"))):
            steps = [Step(f"{needs} False", "receive", rank, m, (), ((END, (needs, m)),), iteration) for m in range(count)]
            for m in range(count):
                waits: tuple[Key, ...] = ((needs, m),) if rank else ()
                body = f"body {rng.integers(4)}"
                steps.append(Step(body, "F", rank, m, waits, ((END, (gives, "made", m)),), iteration))
                steps.append(Step(f"{gives} True", "send", rank, m, ((gives, "made", m),), (), iteration))
                if blocks and rng.random() < 0.7:
                    arrived: tuple[Key, ...] = ((needs, m),) if rank and rng.random() < 0.5 else ()
                    steps.append(Step(f"{gives} drained", "wait", rank, m, arrived, iteration=iteration))
                if not rank:
                    steps.append(Step(f"body {rng.integers(4)}", "B", rank, m, ((needs, m),), (), iteration))
            orders[rank] += steps
        if rng.random() < 0.7:
            orders[0].append(Step("late True", "send", 0, 0, iteration=iteration))
            for rank in (0, 1):
                orders[rank].append(Step("norm", "norm", iteration=iteration))
            orders[1].append(Step("late False", "receive", 1, 0, (), ((END, ("late",)),), iteration))
            for rank, waits in enumerate(((), (("late",),))):
                orders[rank].append(Step(f"body {rng.integers(4)}", "optimizer", after=waits, iteration=iteration))
    axes = ("tp", "cp", "ep", "dp", "pp")
    groups = [Communicator("tp", "tp", ("tp",)), Communicator("dp", "dp", ("dp",)), Communicator("world", "dp", axes)]
    groups += [Communicator("forth", "pp", ("pp",), (0, 1)), Communicator("back", "pp", ("pp",), (1, 0))]
    groups.append(Communicator("late", "pp", ("pp",), (0, 1)))
    stages = tuple(Stage(r, r, 0, 0, 1, not r, bool(r)) for r in (0, 1))
    called = {step.body: bodies[step.body] for steps in orders for step in steps}
    used = {op.communicator for body in called.values() for op in body.ops if isinstance(op, (Collective, Transfer))}
    return Program(stages, called, tuple(map(tuple, orders)), {g.name: g for g in groups if g.name in used})


def _random_ops(rng: np.random.Generator, body: int) -> list[AnyOp]:
    ops: list[AnyOp] = []
    for i in range(int(rng.integers(1, 7))):
        name, detached = f"op {i}", bool(rng.random() < 0.3)
        after = None if rng.random() < 0.5 else tuple(op.name for op in ops if rng.random() < 0.4)
        if rng.random() < 0.6:
            kernel = Rowwise("gelu", 1 + body, 1 + i, 2, 4)
            stream = COMPUTE if rng.random() < 0.8 else "beside"
            ops.append(Compute(name=name, streams=(stream,), after=after, detached=detached, kernel=kernel))
        else:
            group = str(rng.choice(["tp", "dp"]))
            payload = int(rng.integers(0, 4000))
            ops.append(
                Collective(name=name, streams=(group,), after=after, detached=detached, communicator=group, kind="all_reduce",
                           payload_bytes=payload)
            )  # fmt: skip
    return ops


def test_t8_5_few_launches_stay_where_kernels_are_long() -> None:
    of = of_plan(PLANS["tp pp"], tokens=8192)
    kept, plain = bound_with(of, QUICK), bound_with(of, None)
    assert launches(kept) <= 4 * len(kept.labels)
    assert timeline_of(kept).times.makespan_ns - timeline_of(plain).times.makespan_ns < 50_000


def test_t8_5_the_launch_of_the_norm_is_left_out_behind_the_sum_of_a_tied_embedding() -> None:
    """The norm waits for a sum on another stream, and that for kernels: both are late, and so is the norm."""
    of = of_plan({"tp": 2, "pp": 4, "dp": 1}, tokens=8192)
    bound = bound_with(replace(of, model=small_model(tied_embeddings=True)), QUICK)
    for labels in bound.labels:
        assert not (labels.is_launch & labels.in_phase("norm")).any()


def test_t8_5_where_only_the_last_stage_waits_no_other_rank_keeps_a_launch_in_every_microbatch() -> None:
    of = of_plan({"tp": 2, "pp": 4, "dp": 1}, tokens=8192)
    for labels in bound_with(of, replace(QUICK, waits=("loss",))).labels:
        microbatches = {labels.steps[number].microbatch for number in labels.step[labels.is_launch].tolist()}
        assert len(microbatches) > 8 if labels.pipeline == 3 else len(microbatches) < 8


# What a host does


def test_t8_1_operations_are_launched_one_after_the_other_and_start_when_that_is_done() -> None:
    bound = bound_with(of_plan(PLANS["tp pp"]), EAGER, every=True)
    timeline = timeline_of(bound)
    for which, labels in enumerate(bound.labels):
        rank = int(np.flatnonzero(bound.skeleton.program == which)[0])
        times, template = timeline.rank_times(rank), bound.skeleton.templates[which]
        hosted = template.lanes.row(labels.lanes.index(HOST))
        assert len(hosted) == (~labels.is_launch).sum()
        assert (times.start_ns[hosted][1:] >= times.end_ns[hosted][:-1]).all()
        for row in np.flatnonzero(~labels.is_launch).tolist():
            (launch,) = set(template.preds.row(row).tolist()) & set(hosted.tolist())
            assert times.start_ns[row] >= times.end_ns[launch]
            cost = EAGER.kernel_ns if labels.is_compute[row] else EAGER.collective_ns
            assert times.end_ns[launch] - times.start_ns[launch] == cost


def test_t8_1_a_receive_is_launched_right_before_what_waits_for_it() -> None:
    bound = bound_with(of_plan({"tp": 1, "pp": 4, "dp": 1}), EAGER, every=True)
    labels, template = bound.labels[1], bound.skeleton.templates[1]
    hosted = template.lanes.row(labels.lanes.index(HOST)).tolist()
    launch_of = {row: launch for row in range(len(template)) for launch in template.preds.row(row).tolist() if launch in hosted}
    received = np.flatnonzero(labels.kind == "receive").tolist()
    assert received == list(range(len(received))), "receives are posted first"
    waiting = dict(zip(template.preds.idx.tolist(), template.preds.row_of.tolist(), strict=True))
    for row in received:
        consumer = hosted.index(launch_of[waiting[row]])
        assert hosted.index(launch_of[row]) == consumer - 1


def test_t8_2_the_host_runs_ahead_and_waits_for_the_norm_only() -> None:
    of = of_plan(PLANS["zero1"], tokens=4096)
    bound = bound_with(of, QUICK, every=True, steps=2)
    timeline, labels = timeline_of(bound), bound.labels[0]
    times, hosted = timeline.rank_times(0), np.flatnonzero(labels.is_launch)
    norms = np.flatnonzero(labels.kind == "barrier")
    idle = [(a, b) for a, b in pairwise(hosted.tolist()) if times.start_ns[b] > times.end_ns[a]]
    assert [int(times.start_ns[b]) for _, b in idle] == times.end_ns[norms].tolist()
    before = hosted[hosted < norms[0]]
    assert 2 * times.end_ns[before].max() < times.end_ns[norms[0]], "it had launched all that long before"
    free = bound_with(of_plan(PLANS["post-validated"], tokens=4096), QUICK, every=True, steps=2)
    times, labels = timeline_of(free).rank_times(0), free.labels[0]
    assert times.end_ns[labels.is_launch].max() == host_ns(labels, QUICK)


def test_t8_3_a_slow_gpu_launches_as_fast() -> None:
    of = of_plan({"tp": 1, "pp": 1, "dp": 4}, perturb=(sim.Perturb(rank=1, speed=0.1),))
    bound = bound_with(of, EAGER, every=True)
    timeline, labels = timeline_of(bound), bound.labels[0]
    mine, slow = (timeline.rank_times(rank) for rank in (0, 1))
    before = labels.is_launch & (np.arange(len(labels.step)) < np.flatnonzero(labels.kind == "barrier")[0])
    np.testing.assert_array_equal(mine.end_ns[before], slow.end_ns[before])
    kernels = labels.is_compute & (mine.end_ns > mine.start_ns)
    assert ((slow.end_ns - slow.start_ns)[kernels] > 9 * (mine.end_ns - mine.start_ns)[kernels]).all()


def test_t8_4_a_graph_is_one_launch_with_all_that_is_in_it() -> None:
    of = of_plan(PLANS["tp pp"])
    bound = bound_with(of, GRAPHED, every=True)
    for labels, template in zip(bound.labels, bound.skeleton.templates, strict=True):
        phases = np.array([step.phase for step in labels.steps])
        slots = np.isin(phases, ["F", "B", "optimizer"])
        per_step = np.bincount(labels.step[labels.is_launch], minlength=len(phases))
        assert (per_step == 1).all(), "one for each slot, transfer and norm"
        durations = bound.skeleton.tariff.latency_ns[-1][template.charge[labels.is_launch]]
        graphed = slots[labels.step[labels.is_launch]]
        assert set(durations[graphed]) == {30_000}
        assert set(durations[~graphed]) == {QUICK.collective_ns}


def test_t8_6_waiting_for_a_launch_is_time_of_the_host() -> None:
    of = of_plan({"tp": 1, "pp": 1}, tokens=64, batch=2)
    run, bare = run_of(of, EAGER), run_of(of, None)
    spent = run.time_by_cause
    assert spent.ns.sum() == run.observation.window_ns
    assert run.metrics.launch_s > 0.5 * run.metrics.step_time_s
    assert run.metrics.launch_s == pytest.approx(run.metrics.step_time_s - bare.metrics.step_time_s, rel=1e-9)
    assert not spent.of(BUBBLE).any()
    assert bare.metrics.launch_s == 0
    assert "launch overhead" in dict(run.summary)
    assert "launch overhead" not in dict(bare.summary)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("host", [EAGER, GRAPHED, SYNCED, WAITING], ids=["eager", "graphed", "synced", "waiting"])
def test_t4_4_holds_with_a_host(plan: dict[str, Any], host: Host) -> None:
    run = run_of(of_plan(plan, perturb=(SLOW,) if plan else ()), host, steps=2)
    assert (run.time_by_cause.ns >= 0).all()
    assert (run.time_by_cause.ns.sum(axis=1) == run.observation.window_ns).all()


@pytest.mark.parametrize("plan", ["blocking", "blocking groups", "blocking zero bubble", "blocking pairs"])
def test_t8_7_with_p2p_sync_the_host_launches_on_when_an_exchange_is_over(plan: str) -> None:
    for host, syncs in ((SYNCED, True), (EAGER, False)):
        bound = bound_with(of_plan(PLANS[plan], tokens=4096, batch=8), host, every=True)
        timeline, late = timeline_of(bound), 0
        for which, labels in enumerate(bound.labels):
            rank = int(np.flatnonzero(bound.skeleton.program == which)[0])
            times, hosted = timeline.rank_times(rank), np.flatnonzero(labels.is_launch)
            for wait in np.flatnonzero(labels.is_wait).tolist():
                following = hosted[hosted > wait]
                late += int((times.start_ns[following] < times.end_ns[wait]).sum())
        assert (late == 0) == syncs


def test_t8_7_only_where_transfers_block() -> None:
    for plan in PLANS:
        if not plan.startswith("blocking"):
            synced, free = (bound_with(of_plan(PLANS[plan], batch=8), host) for host in (SYNCED, EAGER))
            assert_same_operations((synced, timeline_of(synced)), (free, timeline_of(free)))


@pytest.mark.parametrize("host", [EAGER, SYNCED], ids=["eager", "synced"])
def test_t8_8_where_transfers_block_no_sender_waits_for_the_launch_of_a_receive(host: Host) -> None:
    bound = bound_with(of_plan(PLANS["blocking groups"], batch=8), host, every=True)
    timeline = timeline_of(bound)
    for which, (labels, template) in enumerate(zip(bound.labels, bound.skeleton.templates, strict=True)):
        hosted = template.lanes.row(labels.lanes.index(HOST))
        times = timeline.rank_times(int(np.flatnonzero(bound.skeleton.program == which)[0]))
        for row in np.flatnonzero(labels.kind == "receive").tolist():
            assert not set(template.preds.row(row).tolist()) & set(hosted.tolist())
        lasting = (times.end_ns - times.start_ns)[hosted].sum()
        assert lasting == host_ns(labels, host) - unlaunched_ns(labels, template, host), "but launching it takes its time"


def unlaunched_ns(labels: Any, template: Any, host: Host) -> int:
    """What the host takes after its last row: launches of receives for which nothing is launched any more."""
    hosted = np.flatnonzero(labels.is_launch)
    received = np.flatnonzero(labels.kind == "receive")
    first = {row: int(template.preds.row_of[template.preds.idx == row].min()) for row in received.tolist()}
    return sum(host.collective_ns for at in first.values() if at > hosted.max())


@settings(max_examples=8, deadline=None)
@given(st.sampled_from([plan for plan in PLANS if plan.startswith("blocking")]), *[st.integers(0, 60_000)] * 2)
def test_a_host_that_waits_for_transfers_never_shortens_a_step(plan: str, kernel_ns: int, collective_ns: int) -> None:
    """With closed collectives, as above."""
    of, host = of_plan(PLANS[plan], batch=8), Host(kernel_ns, collective_ns, None)
    free, synced = (replace(host, waits_for_transfers=waits) for waits in (False, True))
    ends = [timeline_of(bound_with(of, h), closed=True).times.makespan_ns for h in (free, synced)]
    assert ends == sorted(ends)


@pytest.mark.parametrize(("wait", "phases"), [("forward", "F"), ("backward", "BI"), ("inputs", "F"), ("loss", "F")])
@pytest.mark.parametrize("plan", ["one GPU", "interleaved", "blocking", "zb-v"])
def test_t8_10_the_host_launches_on_when_its_gpu_has_ended_what_it_had(plan: str, wait: str, phases: str) -> None:
    bound = bound_with(of_plan(PLANS[plan], tokens=4096, batch=8), replace(QUICK, waits=(wait,)), every=True)
    timeline, seen = timeline_of(bound), 0
    for which, labels in enumerate(bound.labels):
        times = timeline.rank_times(int(np.flatnonzero(bound.skeleton.program == which)[0]))
        hosted, computed = np.flatnonzero(labels.is_launch), np.flatnonzero(labels.is_compute)
        for number, step in enumerate(labels.steps):
            stage = labels.stages[step.stage]
            if step.phase not in phases or (wait == "inputs" and not (stage.embedding or stage.head)):
                continue
            if wait == "loss" and not stage.head:
                continue
            of_step = computed[labels.step[computed] == number]
            before = of_step[-1:] if wait == "loss" else computed[computed < of_step[0]][-1:]
            later = hosted[hosted > of_step[-1]] if wait == "loss" else hosted[hosted >= of_step[0] - 1]
            seen += len(before)
            assert not len(before) or (times.start_ns[later] >= times.end_ns[before]).all()
    assert seen


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(sorted(PLANS)), st.sets(st.sampled_from(get_args(HostWait))), *[st.integers(0, 60_000)] * 2)
def test_a_host_that_waits_for_its_gpu_never_shortens_a_step(
    plan: str, waits: set[HostWait], kernel_ns: int, collective_ns: int
) -> None:
    """With closed collectives, as above."""
    of, host = of_plan(PLANS[plan], batch=8), Host(kernel_ns, collective_ns, None)
    hosts = host, replace(host, waits=tuple(waits)), replace(host, waits=tuple(waits), input_launches=5)
    ends = [timeline_of(bound_with(of, h), closed=True).times.makespan_ns for h in hosts]
    assert ends == sorted(ends)


def test_t8_11_launches_of_inputs_take_the_time_of_kernels_at_both_ends_of_the_pipeline() -> None:
    loading, labels = replace(EAGER, input_launches=7), bound_with(of_plan(PLANS["tp pp"], batch=8), EAGER).labels
    taken = [[int(binding_launches.launch_times_ns(of, host).sum()) for of in labels] for host in (EAGER, loading)]
    more = [later - sooner for sooner, later in zip(*taken, strict=True)]
    assert more == [8 * 7 * EAGER.kernel_ns, 0, 0, 8 * 7 * EAGER.kernel_ns]


# Laws


@pytest.mark.thinned(4)
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_host_that_takes_no_time_is_no_host(plan: dict[str, Any]) -> None:
    of = of_plan(plan)
    none = bound_with(of, None)
    for every in (False, True):
        free = bound_with(of, FREE, every=every)
        assert_same_operations((none, timeline_of(none)), (free, timeline_of(free)))


@given(st.data(), st.sampled_from([1, 500, MOST_LIFTED_NS]))
def test_a_row_of_a_stream_starts_when_the_rows_before_it_can_have_ended(data: st.DataObject, most_ns: int) -> None:
    """Part by part between barriers, as one would add it up, in however many pieces the stream is looked at."""
    parts = data.draw(st.lists(st.integers(0, 3), max_size=12).map(sorted))
    times = [data.draw(st.lists(st.sampled_from([ANY_TIME, -40, 0, 30, 500]), min_size=n, max_size=n)) for n in [len(parts)] * 2]
    least = data.draw(st.lists(st.integers(0, 90), min_size=len(parts), max_size=len(parts)))
    part, earliest, due, least_ns = (np.array(column, dtype=np.int64) for column in (parts, *times, least))
    expected, ended = earliest.copy(), ANY_TIME
    for row in range(len(parts)):
        ended = ended if row and parts[row] == parts[row - 1] else ANY_TIME
        expected[row] = max(expected[row], ended)
        ended = max(ended, int(earliest[row]), int(due[row])) + least[row]
        ended = ended if ended > NO_TIME else ANY_TIME
    with mock.patch.object(binding_launches, "MOST_LIFTED_NS", most_ns):
        role = SimpleNamespace(barriers_before=part, due_ns=due)
        binding_launches._raise_by_stream_order(np.arange(len(parts)), role, least_ns, earliest)
    assert earliest.tolist() == expected.tolist()


@settings(max_examples=8, deadline=None)
@given(st.sampled_from(sorted(PLANS)), *[st.integers(0, 60_000)] * 4)
def test_more_host_time_never_shortens_a_step(plan: str, kernel_ns: int, collective_ns: int, more_ns: int, yet_ns: int) -> None:
    """With closed collectives: where flows share links, a later start can leave more of them to others."""
    ends = []
    for host in (None, Host(kernel_ns, collective_ns, None), Host(kernel_ns + more_ns, collective_ns + yet_ns, None)):
        ends.append(timeline_of(bound_with(of_plan(PLANS[plan], batch=8), host), closed=True).times.makespan_ns)
    assert ends == sorted(ends)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_step_lasts_as_long_as_the_launches_of_any_rank(plan: dict[str, Any]) -> None:
    of = of_plan(plan, tokens=64)
    bound = bound_with(of, EAGER)
    longest = max(host_ns(labels, EAGER) for labels in bound.labels)
    assert timeline_of(bound).times.makespan_ns >= longest


def tiny(gpus: int, tokens: int) -> Scenario:
    """A GPT of 12 layers and hidden 768."""
    shape = {"layers": 12, "hidden": 768, "heads": 12, "kv_heads": 12, "ffn_hidden": 3072, "vocab": 50304, "gated_mlp": False}
    cluster = small_cluster(1, gpus_per_node=gpus)
    job = sim.Job(sequence_length=tokens, global_batch=4 * gpus)
    return scenario(small_model(**shape), cluster, sim.Plan(dp=gpus), job)


@pytest.mark.parametrize("gpus", [1, 8])
def test_a_small_model_is_bound_by_launches_unless_they_are_graphs(gpus: int) -> None:
    host = Host(20_000, 20_000, None)
    of = tiny(gpus, 64)
    bare, eager, graphed = (run_of(of, h) for h in (None, host, replace(host, graph_ns=20_000)))
    labels, rows = eager.labels[0], frame(eager)
    adam = rows[(rows.phase == "optimizer") & (rows.stream == COMPUTE)].iloc[0]
    before_norm = host_ns(labels, host) - host.kernel_ns
    late_ns = int(eager.observation.window_ns[0]) - (before_norm + host.kernel_ns + adam.end_ns - adam.start_ns)
    if gpus == 1:  # the norm has nothing to wait for but its launch; then adam is launched, and runs
        assert late_ns == 0
    else:
        assert 0 <= late_ns == rows[rows.kind == "barrier"].end_ns.iloc[0] - before_norm
    assert eager.metrics.step_time_s > 1.3 * bare.metrics.step_time_s
    assert graphed.metrics.step_time_s == pytest.approx(bare.metrics.step_time_s, abs=50e-6)


def test_a_large_model_is_bound_by_its_kernels() -> None:
    of = tiny(1, 16384)
    bare, eager = (run_of(of, host) for host in (None, Host(10_000, 10_000, None)))
    assert eager.metrics.step_time_s - bare.metrics.step_time_s == pytest.approx(20e-6)


# With everything else


@pytest.mark.slow
@pytest.mark.parametrize("host", [QUICK, GRAPHED, SYNCED_GRAPHS], ids=["quick", "graphed", "synced"])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_folded_is_unfolded(plan: dict[str, Any], host: Host) -> None:
    for every in (False, True):
        of = of_plan(plan, batch=8, perturb=(SLOW,) if plan else ())
        whole, folded = (bound_with(of, host, every=every).skeleton for _ in range(2))
        both(whole, folded).assert_equal()
    launched, free = (refine(bound_with(of_plan(plan, batch=8), by).skeleton) for by in (host, None))
    assert launched.classes == free.classes


def test_replay_runs_hosts() -> None:
    folded = fold(bound_with(of_plan(PLANS["one GPU"]), EAGER).skeleton)
    graph = with_fixed_durations(folded.graph)
    assert not why_not(graph)
    fast, reference = replay(graph), des.simulate(graph)
    np.testing.assert_array_equal(fast.end_ns, reference.end_ns)


def test_stepwise_collectives_wait_for_their_launches() -> None:
    of = of_plan({"tp": 4, "pp": 1, "dp": 1}, batch=2)
    for host in (EAGER, GRAPHED):
        found = []
        for every in (False, True):
            bound = bound_with(of, host, every=every)
            whole = unfolded(bound.skeleton)
            messages = stepwise(bound, replace(site_of(of), host=host), whole, lambda _: None)
            times = messages.times(des.simulate(with_fixed_durations(messages.graph)))
            found.append((bound, Timeline(times, whole)))
        assert_same_operations(*found)
        assert found[0][1].times.makespan_ns >= (host_ns(found[0][0].labels[0], host) if host is EAGER else 0)


def test_jobs_that_share_nothing_run_as_alone() -> None:
    """Two jobs on nodes of their own, one with a slow host: each as it runs by itself."""
    cluster = small_cluster(2)
    own = replace(of_plan({"tp": 2, "pp": 1, "dp": 2}), cluster=small_cluster(1))
    parts, alone = [], []
    for node, host in enumerate((EAGER, GRAPHED)):
        site = replace(site_of(replace(own, cluster=cluster)), host=host)
        gpus = np.arange(4) + 4 * node
        parts.append(bind(program_of(own, 2), derived.mesh_of(own), site, gpus=gpus))
        alone.append(timeline_of(parts[-1]))
        assert parts[-1].gpus_of(parts[-1].skeleton.communicators - 1).tolist() == [int(gpus[-1])]
    together = timeline_of(parts[0], fold(join_skeletons([part.skeleton for part in parts])))
    for node in (0, 1):
        for rank in range(4):
            joined, single = together.rank_times(4 * node + rank), alone[node].rank_times(rank)
            np.testing.assert_array_equal(joined.end_ns, single.end_ns)


def test_memory_is_held_from_the_kernels_on_not_from_their_launches() -> None:
    of = of_plan({"tp": 1, "pp": 2, "dp": 1}, tokens=4096, batch=4)
    every, bare = run_of(of, QUICK, every=True), run_of(of, None)
    for rank in range(2):
        (seconds, held), (reference, same) = (run.memory_over_time(rank) for run in (every, bare))
        np.testing.assert_array_equal(held, same)
        np.testing.assert_allclose(seconds, reference, atol=100e-6)


def test_figures_show_a_host_where_there_is_one() -> None:
    of = of_plan({"tp": 1, "pp": 2, "dp": 1}, tokens=64, batch=4)
    hosted, bare = run_of(of, EAGER), run_of(of, None)
    for run, shown in ((hosted, True), (bare, False)):
        (legend,) = gantt(run).legends
        assert any("launches of the host" in text.get_text() for text in legend.get_texts()) == shown
        threads = [event["args"]["name"] for event in events_of(run, 0, set(), 0) if event["name"] == "thread_name"]
        assert ("host" in threads) == shown
        launched = [event for event in events_of(run, 0, set(), 0) if event.get("cat") == "launch"]
        assert bool(launched) == shown
