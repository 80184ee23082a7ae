"""The verb: a model, a cluster, a plan and a job go in, a run comes out.

One direction: check, schedule, lower, bind, fold, close, run, measure. Names become objects here and only here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from time import perf_counter

from ..binding.fidelity import Fidelity
from ..binding.stepwise import stepwise
from ..engine.close import close
from ..engine.fold import Folded, fold, unfolded
from ..engine.timeline import Timeline
from ..errors import Deadlock, InvariantBroken, UserError, did_you_mean
from ..hardware.cluster import Cluster
from ..plan.plan import Plan
from ..program.labels import Labels
from ..program.program import Program
from ..workload.framework import Framework
from ..workload.job import Job
from ..workload.model import Model
from . import engines, steady_state
from .assemble import bound_of, layout_of, program_of, site_of
from .explain_deadlock import explained
from .fits import memory_of, must_fit
from .run_options import ENGINES, MOST_STEPS
from .runs.run import Run
from .scenarios import feasible
from .scenarios.scenario import Perturb, Scenario


def simulate(
    model: Model,
    cluster: Cluster,
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
) -> Run:
    """Simulates a training step as it is in a long run, or the first `steps` from a standing start, and returns the run.

    A step lasts from one gradient norm to the next. Where steps run into each other, which a post-validated optimizer lets them,
    so many are simulated that they repeat. Of disturbances that begin or end the first step is simulated.
    """
    disturbed = (perturb,) if isinstance(perturb, Perturb) else tuple(perturb)
    software = framework or Framework()
    scenario = Scenario(model, cluster, plan or Plan(), job or Job(), fidelity or Fidelity(), disturbed, software)
    return simulate_scenario(scenario, engine=engine, folding=folding, steps=steps, allow_oom=allow_oom)


def simulate_scenario(
    scenario: Scenario, *, engine: str = "auto", folding: bool = True, steps: int | None = None, allow_oom: bool = False
) -> Run:
    """The same for a scenario that has been put together already."""
    began = perf_counter()
    if engine not in ENGINES:
        raise UserError(f"no engine {engine!r}", hint=did_you_mean(engine, ENGINES))
    if steps is not None and (not isinstance(steps, int) or not 1 <= steps <= MOST_STEPS):
        raise UserError(f"{steps!r} steps cannot be simulated", hint=f"a whole number from 1 to {MOST_STEPS}")
    feasible.check(scenario)
    layout = layout_of(scenario)
    memory = memory_of(scenario, layout)
    if not allow_oom:
        must_fit(scenario, memory)
    counts = steady_state.to_simulate(scenario, steps)
    for count in counts:
        program = program_of(scenario, count, layout)
        timeline, labels, used, reason = _simulated(scenario, program, engine, folding)
        growing = {"may_grow": len(counts) > 1, "may_last": count == counts[-1]}
        if window := steady_state.measured(timeline, labels, count, **growing):
            return Run(scenario, program, timeline, labels, memory, used, reason, perf_counter() - began, window)
    raise InvariantBroken("no number of steps was enough to measure one")


def _simulated(scenario: Scenario, program: Program, engine: str, folding: bool) -> tuple[Timeline, tuple[Labels, ...], str, str]:
    """The timeline of a program on the scenario's cluster, its labels, the engine, and why that one."""
    bound = bound_of(scenario, program)
    messages = scenario.fidelity.collectives == "stepwise"
    folding = folding and not messages
    folded = (fold if folding else unfolded)(bound.skeleton, partial(engines.must_end, engine=engine))
    steps_of = stepwise(bound, site_of(scenario), folded.expansion) if messages else None
    graph = close(steps_of.graph if steps_of else folded.expansion.graph, every=scenario.fidelity.collectives == "closed")
    try:
        times, used, reason = engines.run(graph, engine)
    except Deadlock as deadlock:
        raise explained(deadlock, folded.expansion, bound.labels) from None
    timeline = Timeline(steps_of.times(times) if steps_of else times, folded.expansion, folded.class_of)
    why_whole = "every message is simulated, on links at their face value" if messages else "folding was switched off"
    return timeline, bound.labels, used, f"{_folding_reason(folded, '' if folding else why_whole)}; {reason}"


def _folding_reason(folded: Folded, why_whole: str) -> str:
    classes, ranks = folded.expansion.ranks, len(folded.class_of)
    if why_whole:
        return f"all {ranks} ranks simulated because {why_whole}"
    if classes == ranks:
        return f"{classes} classes of {ranks} ranks, because every rank differs"
    return f"{classes} classes of {ranks} ranks, because the others behave alike"
