"""The verb: a model, a cluster, a plan and a job go in, a run comes out.

One direction: check, schedule, lower, bind, fold, close, run, measure. Names become objects here and only here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter

from ..binding.fidelity import Fidelity
from ..binding.stepwise import Counts, stepwise
from ..engine.close import close
from ..engine.fold import Folded, fold, unfolded
from ..engine.timeline import Timeline
from ..errors import Deadlock, InvariantBroken, UserError, described, did_you_mean, must_be, shown
from ..hardware.cluster import Cluster
from ..plan.plan import Plan
from ..program.labels import Labels
from ..program.program import Program
from ..workload.framework import Framework
from ..workload.job import Job
from ..workload.model import Model
from . import catalog, effort, engines, outside, steady_state
from .assemble import bound_of, layout_of, program_of, site_of
from .explain_deadlock import explained
from .fits import memory_of, must_fit
from .run_options import ENGINES, MOST_STEPS
from .runs.run import Run
from .scenarios import feasible
from .scenarios.scenario import Perturb, Scenario

PERTURB = "sim.Perturb(rank=13, speed=0.8), or a list of such"
MODEL = 'sim.model("llama3-70b"); a scenario from a file or a mapping is run by .simulate()'


def simulate(
    model: Model,
    cluster: Cluster | None = None,
    plan: Plan | None = None,
    job: Job | None = None,
    *,
    framework: Framework | None = None,
    fidelity: Fidelity | None = None,
    perturb: Perturb | Sequence[Perturb] = (),
    engine: str = "auto",
    folding: bool = True,
    steps: int | None = None,
    allow_oom: bool = False,
    long: bool = False,
) -> Run:
    """Simulates a training step as it is in a long run, or the first `steps` from a standing start, and returns the run.

    A step lasts from one gradient norm to the next. Where steps run into each other, which a post-validated optimizer lets them,
    so many are simulated that they repeat. Of disturbances that begin or end the first step is simulated.
    What is estimated to take longer than 10 s or more than 4 GiB is refused, unless `long` says that it may.
    """
    scenario = Scenario(
        must_be(model, Model, "model", "a model", MODEL),
        must_be(cluster, Cluster, "cluster", "a cluster", 'sim.cluster("dgx-h100", nodes=8)'),
        Plan() if plan is None else plan,
        Job() if job is None else job,
        Fidelity() if fidelity is None else fidelity,
        (perturb,) if isinstance(perturb, Perturb) else tuple(must_be(perturb, Sequence, "perturb", "disturbances", PERTURB)),
        Framework() if framework is None else framework,
    )
    return simulate_scenario(scenario, engine=engine, folding=folding, steps=steps, allow_oom=allow_oom, long=long)


def simulate_scenario(
    scenario: Scenario,
    *,
    engine: str = "auto",
    folding: bool = True,
    steps: int | None = None,
    allow_oom: bool = False,
    long: bool = False,
    expect: effort.Expect = effort.nobody,
) -> Run:
    """The same for a scenario that has been put together already; `expect` is told what it will take."""
    began = perf_counter()
    if engine not in ENGINES:
        raise UserError(f"no engine {shown(engine)}", hint=did_you_mean(engine if isinstance(engine, str) else "", ENGINES))
    if steps is not None and (not isinstance(steps, int) or isinstance(steps, bool) or not 1 <= steps <= MOST_STEPS):
        raise UserError(f"{described(steps)} steps cannot be simulated", hint=f"a whole number from 1 to {MOST_STEPS}")
    scenario = with_code(scenario)
    feasible.check(scenario)
    layout = layout_of(scenario)
    memory = memory_of(scenario, layout)
    if not allow_oom:
        must_fit(scenario, memory)
    counts = steady_state.to_simulate(scenario, steps)
    for count in counts:
        program = program_of(scenario, count, layout)
        _must_be_short(scenario, program, engine, folding=folding, long=long, expect=expect)
        enough = partial(engines.must_end, engine=engine, long=long, expect=expect)
        may_send = partial(engines.must_send, long=long, expect=expect)
        timeline, labels, used, reason = _simulated(scenario, program, engine, enough, may_send, folding=folding)
        growing = {"may_grow": len(counts) > 1, "may_last": count == counts[-1]}
        if window := steady_state.measured(timeline, labels, count, **growing):
            return Run(scenario, program, timeline, labels, memory, used, reason, perf_counter() - began, window)
    raise InvariantBroken("no number of steps was enough to measure one")


def _simulated(
    scenario: Scenario,
    program: Program,
    engine: str,
    must_end: Callable[[int], None],
    must_send: Callable[[Counts], None],
    *,
    folding: bool,
) -> tuple[Timeline, tuple[Labels, ...], str, str]:
    """The timeline of a program on the scenario's cluster, its labels, the engine, and why that one.

    `must_end` is told how many tasks it comes to, `must_send` how many messages, and both raise if those are too many.
    """
    bound = bound_of(scenario, program)
    messages = scenario.fidelity.collectives == "stepwise"
    folding = folding and not messages
    folded = (fold if folding else unfolded)(bound.skeleton, must_end)
    steps_of = stepwise(bound, site_of(scenario), folded.expansion, must_send) if messages else None
    graph = close(steps_of.graph if steps_of else folded.expansion.graph, every=scenario.fidelity.collectives == "closed")
    try:
        times, used, reason = engines.run(graph, engine)
    except Deadlock as deadlock:
        raise explained(deadlock, folded.expansion, bound.labels) from None
    timeline = Timeline(steps_of.times(times) if steps_of else times, folded.expansion, folded.class_of)
    why_whole = "every message is simulated, on links at their face value" if messages else "folding was switched off"
    return timeline, bound.labels, used, f"{_folding_reason(folded, '' if folding else why_whole)}; {reason}"


def with_code(scenario: Scenario) -> Scenario:
    """The scenario with what its schedule names imported, if that is code: it was written in Python, as files were looked at."""
    schedule = getattr(scenario.plan, "schedule", None)
    if not catalog.is_code(schedule):
        return scenario
    return replace(scenario, plan=replace(scenario.plan, schedule=outside.imported(schedule)))


def _must_be_short(
    scenario: Scenario, program: Program, engine: str, *, folding: bool, long: bool, expect: effort.Expect
) -> None:
    """Raises `UserError` for a run that would take longer than goes without saying, before anything is bound to GPUs."""
    cluster, rows = scenario.cluster, [sum(len(program.bodies[step.body].ops) for step in steps) for steps in program.orders]
    takes = effort.of_run(rows, cluster.gpus, folding=folding, by=engines.quickest(engine))
    if cluster.shape_name == "explicit":
        takes += effort.of_routes(cluster.gpus, sum(run.count for run in cluster.wiring.vertices), cluster.wiring.links)
    hint = "fewer GPUs or microbatches" if folding else "fewer GPUs or microbatches, or folding"
    effort.check(takes, f"this run on {cluster.gpus:,} GPUs", hint, long=long, expect=expect)


def _folding_reason(folded: Folded, why_whole: str) -> str:
    classes, ranks = folded.expansion.ranks, len(folded.class_of)
    if why_whole:
        return f"all {ranks} ranks simulated because {why_whole}"
    if classes == ranks:
        return f"{classes} classes of {ranks} ranks, because every rank differs"
    return f"{classes} classes of {ranks} ranks, because the others behave alike"
