"""A step whose schedule repeats itself is measured from fewer microbatches as from all of them, in all that it says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

import simulator as sim
from simulator.binding.launches import Host
from simulator.config import feasible
from simulator.engine.timeline import Timeline, Times
from simulator.errors import UserError
from simulator.program.labels import Labels
from simulator.simulation.fewer_microbatches import fewer_microbatches, period_of
from simulator.simulation.repeats import Repetition
from simulator.simulation.run import Run
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.simulate import layout_of, simulate_scenario, site_of
from simulator.workload.framework import Framework, HostTimes

from ..small_scenarios import scenario, small_cluster, small_model
from .test_plans import scenarios

SCHEDULES = {
    "1f1b": 1, "zb-h1": 1, "zb-h2": 1, "interleaved": 2, "interleaved-zb": 2, "zb-v": 2, "v-half": 2, "v-min": 2, "hanayo": 2,
    "dualpipe": 1, "dualpipe-v": 2, "chimera": 1, "naive": 1, "gpipe": 1, "seq-1f1b": 1, "looped-bfs": 2,
}  # fmt: skip
"""Schedule -> chunks of a rank."""
WITHOUT_PERIODS = {"gpipe", "looped-bfs"}
"""In these every rank runs all forward passes before the backward passes."""
LAUNCHES = {"no launches": 0.0, "quick launches": 2e-6, "slow launches": 30e-6}


@st.composite
def of_many_microbatches(draw: st.DrawFn) -> Scenario:
    """Drawn plans with many microbatches; half of them with another schedule, and without what tells ranks apart."""
    of = draw(scenarios())
    plan, times = of.plan, draw(st.sampled_from([12, 16, 24]))
    if draw(st.booleans()):
        of, plan = replace(of, perturb=()), replace(plan, placement=None, vocabulary="baseline")
        name = draw(st.sampled_from(sorted(SCHEDULES))) if plan.pp > 1 else plan.schedule
        if name in SCHEDULES:
            splits = 2 if name == "seq-1f1b" else 1
            dp = plan.cp * (plan.dp or 1)
            plan = replace(plan, schedule=name, chunks=SCHEDULES[name], splits=splits, layout="even", cp=1, dp=dp)
    framework = Framework(
        host=HostTimes(kernel_s=draw(st.sampled_from([*LAUNCHES.values()])), collective_s=draw(st.sampled_from([0.0, 5e-6]))),
        cuda_graphs=draw(st.booleans()),
    )
    fidelity = replace(of.fidelity, overlap=draw(st.sampled_from(["free", "slowed"])))
    job = replace(of.job, global_batch=of.job.global_batch * times)
    try:
        return feasible.check(replace(of, plan=plan, framework=framework, fidelity=fidelity, job=job))
    except UserError:
        reject()


def measured_twice(of: Scenario) -> tuple[Run, Run]:
    """The step from fewer microbatches if it repeats itself, and from all of them."""
    return tuple(simulate_scenario(of, session=session, allow_oom=True, long=True) for session in (sim.Session(), None))  # type: ignore[return-value]


def check(of: Scenario) -> bool:
    """Whether fewer microbatches were simulated; all that is measured is as with all of them."""
    try:
        few, every = measured_twice(of)
    except UserError:
        reject()
    assert every.simulated.repeats is None
    if few.simulated.repeats is None:
        return False
    assert few.metrics == every.metrics
    assert few.energy == every.energy
    for one, other in ((few.kernel_costs, every.kernel_costs), (few.collective_costs, every.collective_costs)):
        assert sorted(map(repr, one)) == sorted(map(repr, other))
    assert few.memory == every.memory
    np.testing.assert_array_equal(few.time_by_cause.ns, every.time_by_cause.ns)
    assert few.simulated.timeline.tasks < every.simulated.timeline.tasks
    return True


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "naive", "zb-h1"])
def test_a_step_of_few_microbatches_has_no_period_and_says_so(name: str) -> None:
    for microbatches, of_period in product((1, 2), (1, 2, 3)):
        of = scenario(plan=sim.Plan(pp=4, schedule=name), cluster=small_cluster(1), job=sim.Job(64, microbatches))
        run = of.simulate()
        assert Repetition(run.engine_timeline, run.bound.labels, of_period).of(1) is None


@settings(max_examples=8)
@given(of_many_microbatches())
def test_fewer_microbatches_measure_the_same(of: Scenario) -> None:
    check(of)


@pytest.mark.slow
@settings(max_examples=60)
@given(of_many_microbatches())
def test_fewer_microbatches_measure_the_same_many_times(of: Scenario) -> None:
    check(of)


def pipeline(schedule: str, overlap: str = "free", launch_s: float = 0.0, microbatches: int = 144) -> Scenario:
    """Four stages of two layers each, in two replicas."""
    splits = 2 if schedule == "seq-1f1b" else 1
    plan = sim.Plan(tp=2, pp=4, schedule=schedule, chunks=SCHEDULES[schedule], splits=splits)
    framework, fidelity = Framework(host=HostTimes(kernel_s=launch_s)), sim.Fidelity(overlap=overlap)
    job = sim.Job(sequence_length=256, global_batch=2 * microbatches)
    return scenario(small_model(8), small_cluster(4), plan, job, framework=framework, fidelity=fidelity)


@pytest.mark.thinned(16)
@pytest.mark.parametrize(
    ("schedule", "overlap", "launch"),
    [pytest.param(*of, id="-".join(of)) for of in product(SCHEDULES, ("free", "slowed"), LAUNCHES)],
)
def test_every_schedule_with_periods_is_measured_from_fewer_microbatches(schedule: str, overlap: str, launch: str) -> None:
    """Where slow hosts decide, the quicker of them run ahead of the others ever further, and no state comes back."""
    found = check(pipeline(schedule, overlap, LAUNCHES[launch]))
    assert found == (schedule not in WITHOUT_PERIODS) or launch == "slow launches"


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zb-h1", "hanayo"])
def test_a_session_simulates_few_microbatches_once_for_any_number_of_them(schedule: str) -> None:
    session, timelines = sim.Session(), []
    for microbatches, steps in product((144, 160, 152, 144), (None, 1)):
        of = pipeline(schedule, "slowed", microbatches=microbatches)
        kept, alone = (simulate_scenario(of, session=one, steps=steps) for one in (session, None))
        assert kept.metrics == alone.metrics
        assert kept.simulated.repeats
        assert kept.engine_timeline.makespan_ns == alone.engine_timeline.makespan_ns
        timelines.append(kept.simulated.timeline)
    assert timelines[0] is timelines[2] is timelines[6]
    assert timelines[0] is not timelines[1] is timelines[3]


def test_a_session_tells_apart_what_differs_in_steps_of_few_microbatches() -> None:
    session, base = sim.Session(), pipeline("1f1b", "slowed")
    others = [
        base,
        replace(base, cluster=replace(base.cluster, gpu=replace(base.cluster.gpu, tdp_w=450.0))),
        replace(base, fidelity=replace(base.fidelity, power="burst")),
        replace(base, framework=replace(base.framework, host=HostTimes(kernel_s=2e-6))),
        replace(base, perturb=(sim.Perturb(rank=3, speed=0.5),)),
        replace(base, model=small_model(16)),
    ]
    for of in (*others, *others):
        kept, alone = (simulate_scenario(of, session=one) for one in (session, None))
        assert kept.metrics == alone.metrics


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_hosts_and_tied_embeddings_leave_periods_alike(schedule: str) -> None:
    """The norm waits for the sum of the gradients of a tied embedding, and its launch for nothing: no launch stands beside all
    periods."""
    of = pipeline(schedule, "slowed", LAUNCHES["quick launches"])
    of = replace(of, model=small_model(8, tied_embeddings=True), job=replace(of.job, sequence_length=2048))
    assert check(of)


def test_a_host_that_waits_for_every_loss_leaves_periods_alike() -> None:
    of = pipeline("1f1b", "slowed", LAUNCHES["quick launches"])
    assert check(replace(of, framework=replace(of.framework, host_waits=("loss",)), job=replace(of.job, sequence_length=2048)))


def test_pipelines_on_longer_paths_keep_the_pace_of_the_others() -> None:
    """Half of the replicas have both stages in one pod. Transfers take the time that was measured, on any path."""
    cluster = small_cluster(4, nodes_per_pod=3, fabric="ndr-ib")
    of = replace(pipeline("1f1b", "slowed"), plan=sim.Plan(tp=2, pp=2, dp=4), cluster=cluster)
    of = replace(of, job=replace(of.job, global_batch=4 * 144))
    assert simulate_scenario(of).engine_timeline.skeleton.ranks > 2
    assert check(of)


def test_what_is_shown_of_a_run_has_all_microbatches() -> None:
    few, every = measured_twice(pipeline("1f1b"))
    assert "of 144 microbatches" in few.simulated.engine_reason
    assert few.engine_timeline.tasks == every.engine_timeline.tasks
    np.testing.assert_array_equal(few.engine_timeline.times.start_ns, every.engine_timeline.times.start_ns)
    assert few.timeline.to_pandas().equals(every.timeline.to_pandas())


# The proof, on times that no simulation gives.


@dataclass(frozen=True)
class Changed:
    """A timeline in which some rows of a class of ranks start or arrive later than they did."""

    timeline: Timeline
    which: int
    starts_later_ns: Any = 0
    arrives_later_ns: Any = 0

    @property
    def skeleton(self) -> Any:
        return self.timeline.skeleton

    def class_times(self, which: int) -> Times:
        times = self.timeline.class_times(which)
        if which != self.which:
            return times
        return Times(times.start_ns + self.starts_later_ns, times.end_ns, times.arrival_ns + self.arrives_later_ns)


@pytest.fixture(scope="module")
def few() -> tuple[Run, int, int]:
    """A run of fewer microbatches, with the microbatches of a period and the number of periods that were left out."""
    of = pipeline("1f1b")
    period = period_of(layout_of(of, site_of(of)))
    run = simulate_scenario(of, session=sim.Session())
    assert period
    assert run.simulated.repeats
    return run, period.microbatches, run.simulated.repeats.times


def repetition(of: tuple[Run, int, int], timeline: Any = None, host: Any = None) -> Repetition:
    run, microbatches, _ = of
    return Repetition(timeline or run.simulated.timeline, run.simulated.bound.labels, microbatches, host)


def proven(of: tuple[Run, int, int], timeline: Any = None, host: Any = None) -> Any:
    return repetition(of, timeline, host).of(of[2])


def rows_of(few: tuple[Run, int, int], which: int) -> tuple[Labels, Times, Any]:
    """The labels, times and microbatches of every row of a class of ranks; below 0 for what is outside of slots."""
    run = few[0].simulated
    labels = run.bound.labels[int(run.timeline.skeleton.program[which])]
    return labels, run.timeline.class_times(which), np.array([step.microbatch for step in labels.steps])[labels.step]


def test_the_proof_looks_at_every_start(few: tuple[Run, int, int]) -> None:
    """A row that starts a nanosecond later in each period than in the last arrives when it did, and so do all others."""
    run = few[0].simulated
    assert proven(few)
    for which in range(run.timeline.skeleton.ranks):
        labels, _, microbatch = rows_of(few, which)
        of_one = (labels.op == labels.op[np.flatnonzero(microbatch == 5)[1]]) & (microbatch >= 0)
        assert of_one.sum() >= 8
        assert proven(few, Changed(run.timeline, which))
        assert not proven(few, Changed(run.timeline, which, np.where(of_one, microbatch, 0)))
        assert not proven(few, Changed(run.timeline, which, arrives_later_ns=np.where(of_one, microbatch, 0)))


def test_the_proof_looks_at_what_is_still_in_progress(few: tuple[Run, int, int]) -> None:
    """What began before the periods and ends in them is part of the state; a proof has to wait until it has ended."""
    run, found = few[0].simulated, proven(few)
    _, times, microbatch = rows_of(few, 0)
    first = (microbatch == 0) & (times.arrival_ns < found.from_ns - 3 * found.lasts_ns)
    assert first.any()
    late_ns, later_ns = (np.where(first, found.from_ns + 1 - of, 0) for of in (times.start_ns + 2, times.arrival_ns))
    assert not proven(few, Changed(run.timeline, 0, arrives_later_ns=later_ns))
    assert not proven(few, Changed(run.timeline, 0, late_ns, later_ns))


def test_a_proof_that_fails_says_how_many_periods_it_lacks(few: tuple[Run, int, int]) -> None:
    run, found = few[0].simulated, proven(few)
    _, times, microbatch = rows_of(few, 0)
    first = (microbatch == 0) & (times.arrival_ns < found.from_ns - 3 * found.lasts_ns)
    for periods in (1, 2):
        later_ns = np.where(first, found.from_ns + (periods - 1) * found.lasts_ns + 1 - times.arrival_ns, 0)
        failed = repetition(few, Changed(run.timeline, 0, arrives_later_ns=later_ns))
        assert failed.of(few[2]) is None
        assert failed.missing_periods >= periods
    assert repetition(few).missing_periods == 0


def test_the_next_attempt_has_the_periods_that_the_last_one_lacked() -> None:
    period = period_of(layout_of(of := pipeline("1f1b"), site_of(of)))
    assert period
    first = fewer_microbatches(period)
    assert first
    assert fewer_microbatches(period, first, first, missing_periods=2) == first + 2 * period.of_all
    assert (fewer_microbatches(period, first, first) or 0) > first + 2 * period.of_all
    assert fewer_microbatches(period, first, spent=144) is None


def test_the_proof_needs_periods_that_are_left(few: tuple[Run, int, int]) -> None:
    """What comes behind the periods must not begin before two more of them have gone by."""
    run, found = few[0].simulated, proven(few)
    labels, times, _ = rows_of(few, 0)
    behind = np.flatnonzero(labels.step == labels.step.max())
    early = np.zeros(len(labels.step), dtype=np.int64)
    early[behind] = found.from_ns + found.lasts_ns - times.start_ns[behind]
    assert (early[behind] < 0).all()
    sooner = proven(few, Changed(run.timeline, 0, early))
    assert sooner is None or sooner.from_ns + 2 * sooner.lasts_ns <= found.from_ns + found.lasts_ns


def test_a_host_that_would_fall_behind_is_no_proof(few: tuple[Run, int, int]) -> None:
    assert proven(few, host=Host(kernel_ns=1, collective_ns=1, graph_ns=None))
    assert not proven(few, host=Host(kernel_ns=100_000, collective_ns=1, graph_ns=None))


def test_orders_decide_what_a_period_is() -> None:
    """Fewer microbatches of one schedule are no shorter step of another."""
    of, other = pipeline("zb-h1"), pipeline("1f1b")
    period = period_of(layout_of(of, site_of(of)))
    assert period
    number = fewer_microbatches(period)
    assert number
    shorter, foreign = (replace(each, job=replace(each.job, global_batch=2 * number)) for each in (of, other))
    assert period.left_out(layout_of(shorter, site_of(shorter))) == (144 - number) // period.of_all
    assert period.left_out(layout_of(foreign, site_of(foreign))) == 0
    assert not period.left_out(layout_of(of, site_of(of)))
