"""The verb: a model, a cluster, a plan and a job go in, a run comes out.

One direction: check, schedule, lower, bind, fold, close, run, measure. Names become objects here and only here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

from ..binding.bind import Bound, Site
from ..binding.stepwise import stepwise
from ..config import catalog, feasible, user_code
from ..config.scenario import Perturb, Scenario
from ..engine.fold import fold, unfolded
from ..engine.replay import with_fixed_durations
from ..engine.skeleton import Expansion
from ..engine.timeline import Timeline, grid
from ..errors import Deadlock, InvariantBroken, UserError, described, did_you_mean, must_be, shown
from ..hardware.cluster import Cluster
from ..plan.plan import Fidelity, Plan
from ..program.labels import Labels
from ..program.program import Program
from ..workload.framework import Framework
from ..workload.job import Job
from ..workload.model import Model
from . import choose_engine, estimated_effort, steady_state
from .assemble import bound_of, layout_of, prices_of, program_of, site_of
from .memory_check import memory_of, must_fit
from .run import Run

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
    expect: estimated_effort.Expect = estimated_effort.no_progress,
) -> Run:
    """Simulates a training step of a scenario, as `simulate` does; `expect` is called with what the run is estimated to take."""
    began = perf_counter()
    _check_options(engine, steps)
    scenario = with_code(scenario)
    feasible.check(scenario)
    prices = prices_of(scenario)
    site = site_of(scenario, prices)
    layout = layout_of(scenario, site)
    memory = memory_of(scenario, layout)
    if not allow_oom:
        must_fit(scenario, memory)
    counts = steady_state.to_simulate(scenario, steps)
    limits = estimated_effort.Limits(engine, long, expect)
    for count in counts:
        program = program_of(scenario, count, layout)
        _check_effort(scenario, program, limits, folding=folding)
        bound = bound_of(scenario, program, site)
        timeline, used, reason = _simulated(scenario.fidelity, bound, site, limits, folding=folding)
        growing = {"may_grow": len(counts) > 1, "may_last": count == counts[-1]}
        if window := steady_state.measured(timeline, bound.labels, count, **growing):
            wall_s = perf_counter() - began
            return Run(scenario, program, site, prices, bound, timeline, memory, used, reason, wall_s, window)
    raise InvariantBroken("no number of steps was enough to measure one")


def _check_options(engine: str, steps: int | None) -> None:
    """Raises `UserError` for an engine that does not exist, or a number of steps that nothing simulates."""
    engines, most = estimated_effort.ENGINES, estimated_effort.MOST_STEPS
    if engine not in engines:
        raise UserError(f"no engine {shown(engine)}", hint=did_you_mean(engine if isinstance(engine, str) else "", engines))
    if steps is not None and (not isinstance(steps, int) or isinstance(steps, bool) or not 1 <= steps <= most):
        raise UserError(f"{described(steps)} steps cannot be simulated", hint=f"a whole number from 1 to {most}")


def _simulated(
    fidelity: Fidelity, bound: Bound, site: Site, limits: estimated_effort.Limits, *, folding: bool
) -> tuple[Timeline, str, str]:
    """The timeline of a program on a cluster, the engine, and why that one."""
    messages = fidelity.collectives == "stepwise"
    folding = folding and not messages
    folded = (fold if folding else unfolded)(bound.skeleton, limits.must_end)
    steps_of = stepwise(bound, site, folded, limits.must_send) if messages else None
    graph = with_fixed_durations(steps_of.graph if steps_of else folded.graph, every=fidelity.collectives == "closed")
    try:
        times, used, reason = choose_engine.run(graph, limits.engine)
    except Deadlock as deadlock:
        raise _explained(deadlock, folded, bound.labels) from None
    timeline = Timeline(steps_of.times(times) if steps_of else times, folded)
    why_whole = "every message is simulated, on links at their face value" if messages else "folding was switched off"
    return timeline, used, f"{_folding_reason(folded, '' if folding else why_whole)}; {reason}"


def with_code(scenario: Scenario) -> Scenario:
    """The scenario with what its schedule names imported, if that is code: it was written in Python, as files were looked at."""
    schedule = getattr(scenario.plan, "schedule", None)
    if not catalog.is_code(schedule):
        return scenario
    return replace(scenario, plan=replace(scenario.plan, schedule=user_code.imported(schedule)))


def _check_effort(scenario: Scenario, program: Program, limits: estimated_effort.Limits, *, folding: bool) -> None:
    """Raises `UserError` for a run that would take longer than goes without saying, before anything is bound to GPUs."""
    cluster, rows = scenario.cluster, [sum(len(program.bodies[step.body].ops) for step in steps) for steps in program.orders]
    takes = estimated_effort.of_run(rows, cluster.gpus, folding=folding, by=limits.quickest)
    if cluster.shape_name == "explicit":
        takes += estimated_effort.of_routes(cluster.gpus, sum(run.count for run in cluster.wiring.vertices), cluster.wiring.links)
    hint = "fewer GPUs or microbatches" if folding else "fewer GPUs or microbatches, or folding"
    limits.check(takes, f"this run on {cluster.gpus:,} GPUs", hint)


def _folding_reason(folded: Expansion, why_whole: str) -> str:
    classes, ranks = folded.skeleton.ranks, len(folded.class_of)
    if why_whole:
        return f"all {ranks} ranks simulated because {why_whole}"
    if classes == ranks:
        return f"{classes} classes of {ranks} ranks, because every rank differs"
    return f"{classes} classes of {ranks} ranks, because the others behave alike"


def _explained(deadlock: Deadlock, expansion: Expansion, labels: tuple[Labels, ...]) -> Deadlock:
    """The deadlock with names instead of numbers: which rank is blocked, on which stream, at which operation."""
    rank_of, row_of = expansion.origin

    def of_rank(rank: int) -> Labels:
        return labels[int(expansion.skeleton.program[rank])]

    def stream_name(stream: int) -> str:
        rank = int(expansion.stream_rank[stream])
        return f"rank {rank} {of_rank(rank).lanes[int(expansion.stream_lane[stream])]}"

    def task_name(task: int) -> str:
        rank, row = int(rank_of[task]), int(row_of[task])
        names = of_rank(rank)
        step = names.steps[names.step[row]]
        where = f" of {step.phase} s{step.stage} m{step.microbatch}" if step.stage >= 0 else ""
        return f"{names.block(row)}{where} on rank {rank}"

    first = str(deadlock).splitlines()[0]
    drawn = grid(deadlock.blocked, stream_name, task_name)
    hint = "the schedule orders the slots of two ranks so that each waits for the other"
    return Deadlock(f"{first}\n{drawn}", blocked=deadlock.blocked, hint=hint)
