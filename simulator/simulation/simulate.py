"""Simulation of a training step: the functions `simulate` and `simulate_scenario`, which turn a scenario into a run.

The steps run in one direction: check, schedule, lower, bind, fold, close, run, measure. `simulate_scenario` calls the steps in
this order; the functions of the steps follow below. Only this module turns names into objects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from time import perf_counter
from typing import Any

from ..binding.bind import Bound, Site, bind, bind_first
from ..binding.launches import Host
from ..binding.perturb import Perturbation
from ..config import catalog, derived, feasible, shipped_fits, step_constants, user_code
from ..config.scenario import Perturb, Scenario
from ..costs.kernels.estimator import Options, PricedKernels, measured_cost
from ..costs.kernels.family import LAUNCHES
from ..engine.fold import every_rank
from ..engine.timeline import Timeline
from ..errors import InvariantBroken, UserError, described, did_you_mean, must_be, shown
from ..fabrics.policy import policy_on
from ..fabrics.uneven_alltoall import Exchange, uneven_policy
from ..hardware.cluster import Cluster
from ..kernels import UNFUSED, KernelCost
from ..lowering.lower import lower
from ..lowering.passes.expert_overlap import paired
from ..plan.plan import Fidelity, Plan
from ..program.layout import Layout, lay_out
from ..program.program import Program
from ..schedules._vocabulary import with_vocabulary
from ..units import ns
from ..workload.framework import Framework
from ..workload.job import Job
from ..workload.model import Model
from . import ENGINES, MOST_STEPS, estimated_effort, steady_state
from .expected_periods import is_expected
from .fewer_microbatches import Period, fewer_microbatches, period_of
from .memory_check import Slots, memory_of, slots_of
from .repeats import Repetition
from .run import Run
from .session import Session
from .simulated import Simulated
from .slot_durations import slot_durations
from .timelines import by_stretches, row_by_row

PERTURB = "sim.Perturb(rank=13, speed=0.8), or a list of such"
MODEL = 'sim.model("llama3-70b"); a scenario from a file or a mapping is run by .simulate()'
CLUSTER = 'sim.cluster("dgx-h100", nodes=8)'


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
    session: Session | None = None,
) -> Run:
    """Simulates a training step in the steady state of a long run, or the first `steps` from a standing start; returns the run.

    A step lasts from one gradient norm to the next. Where steps overlap, as a post-validated optimizer allows, as many steps are
    simulated as their times need to repeat. With disturbances that begin or end, the first step is simulated.
    A simulation that is estimated to take longer than 30 s or more than 4 GiB is refused, unless `long` allows the effort.
    Simulations of similar scenarios are quicker in one `session`, and give the same results.
    """
    must_be(model, Model, "model", "a model", MODEL)
    if cluster is None:
        raise UserError("no cluster was given", hint=CLUSTER)
    scenario = Scenario(
        model,
        must_be(cluster, Cluster, "cluster", "a cluster", CLUSTER),
        Plan() if plan is None else plan,
        Job() if job is None else job,
        Fidelity() if fidelity is None else fidelity,
        (perturb,) if isinstance(perturb, Perturb) else tuple(must_be(perturb, Sequence, "perturb", "disturbances", PERTURB)),
        Framework() if framework is None else framework,
    )
    options: dict[str, Any] = {"folding": folding, "steps": steps, "allow_oom": allow_oom, "long": long, "session": session}
    return simulate_scenario(scenario, engine=engine, **options)


def simulate_scenario(
    scenario: Scenario,
    *,
    engine: str = "auto",
    folding: bool = True,
    steps: int | None = None,
    allow_oom: bool = False,
    long: bool = False,
    expect: estimated_effort.Expect = estimated_effort.no_progress,
    session: Session | None = None,
) -> Run:
    """Simulates a training step of a scenario, as `simulate` does; `expect` is called with the estimated effort of the run."""
    began, in_session, session = perf_counter(), session is not None, session or Session()
    _check_options(engine, steps)
    must_be(session, Session, "session", "a session", "session=sim.Session()")
    schedule = getattr(scenario.plan, "schedule", None)
    if catalog.is_code(schedule):  # the scenario was written in Python; files were checked when they were read
        scenario = replace(scenario, plan=replace(scenario.plan, schedule=user_code.imported(schedule)))
    given, scenario = scenario, feasible.check(replace(scenario, cluster=session.known("cluster", scenario.cluster)))
    scenario = replace(scenario, model=session.known("model", scenario.model))
    prices = kept_prices(scenario, session)
    site = site_of(scenario, prices, session)
    layout = layout_of(scenario, site, session)
    counts = steady_state.to_simulate(scenario, steps)
    limits = estimated_effort.Limits(engine, long, expect)
    slots = cache(partial(slots_of, scenario, layout, session.slots))
    memory = memory_of(scenario, layout, slots, allow_oom=allow_oom, kept=session.accounts)

    def simulated(of: Scenario, layout: Layout, limits: estimated_effort.Limits = limits) -> Simulated:
        return _simulate_until_measured(of, layout, slots, site, limits, counts, folding=folding)

    may_leave_out = in_session and engine == "auto" and folding
    if may_leave_out and (found := _simulate_fewer_microbatches(scenario, layout, site, counts, simulated, session, slots=slots)):
        every = partial(simulated, scenario, layout, replace(limits, long=True))
        return Run(scenario, site, prices, memory, found, perf_counter() - began, every, given=given, steps=steps)
    measured = simulated(scenario, layout)
    return Run(scenario, site, prices, memory, measured, perf_counter() - began, given=given, steps=steps)


def _simulate_until_measured(
    scenario: Scenario,
    layout: Layout,
    slots: Slots,
    site: Site,
    limits: estimated_effort.Limits,
    counts: Sequence[int | None],
    *,
    folding: bool,
) -> Simulated:
    """Simulates as many training steps as are needed to measure one."""
    for count in counts:
        program = program_of(scenario, count, layout, slots())
        bound, timeline, used, reason = _run_program(scenario, program, site, limits, folding=folding)
        if window := steady_state.measured(timeline, bound.labels, count, tuple(counts)):
            return Simulated(program, bound, timeline, used, reason, window)
    raise InvariantBroken("no number of steps was enough to measure one")


def _simulate_fewer_microbatches(
    scenario: Scenario,
    layout: Layout,
    site: Site,
    counts: Sequence[int | None],
    simulated: Callable[[Scenario, Layout], Simulated],
    session: Session,
    *,
    slots: Slots,
) -> Simulated | None:
    """A step of fewer microbatches in which a part stands for several; None where there is no proof that it does."""
    one_step = len(counts) == 1 and counts[0] in (None, 1) and scenario.fidelity.collectives != "stepwise"
    period = period_of(layout) if one_step and not steady_state.has_transitions(scenario.perturb) else None
    number = spent = missing_periods = 0
    while period and (number := fewer_microbatches(period, number, spent, missing_periods) or 0):
        fewer, missing_periods = derived.with_microbatches(scenario, number), 0
        try:
            shorter = layout_of(fewer, site, session)
        except UserError:  # the schedule does not support so few microbatches
            continue
        if not (left_out := period.left_out(shorter)):
            continue
        key = counts[0], period.microbatches, shorter  # the schedule may be a file, which may change
        short_run = partial(_short_run, fewer, shorter, period, site, simulated, slots=slots)
        if not (simulated_few := session.short_run(fewer, key, short_run)):
            continue
        found, repetition = simulated_few
        if repeats := repetition.of(left_out):
            reason = f"{found.engine_reason}; {number} of {layout.shape.microbatches} microbatches, because all state repeats"
            return replace(found, repeats=repeats, engine_reason=reason)
        spent, missing_periods = spent + number, repetition.missing_periods
    return None


def _short_run(
    fewer: Scenario,
    layout: Layout,
    period: Period,
    site: Site,
    simulated: Callable[[Scenario, Layout], Simulated],
    *,
    slots: Slots,
) -> tuple[Simulated, Repetition] | None:
    """A step of few microbatches, and its repeating periods; None if it is not expected to have any."""
    if not is_expected(layout, period.slots, slots(), site.cost):
        return None
    found = simulated(fewer, layout)
    return found, Repetition(found.timeline, found.bound.labels, period.microbatches, site.host)


def _check_options(engine: str, steps: int | None) -> None:
    """Raises `UserError` for an engine that does not exist, or a number of steps outside the allowed range."""
    if engine not in ENGINES:
        raise UserError(f"no engine {shown(engine)}", hint=did_you_mean(engine if isinstance(engine, str) else "", ENGINES))
    if steps is not None and (not isinstance(steps, int) or isinstance(steps, bool) or not 1 <= steps <= MOST_STEPS):
        raise UserError(f"{described(steps)} steps cannot be simulated", hint=f"a whole number from 1 to {MOST_STEPS}")


def prices_of(scenario: Scenario) -> PricedKernels:
    """Kernel times in the scenario's dtype on its GPU with its software; lowering has split the kernels that are not fused."""
    gpu, framework = scenario.cluster.gpu, scenario.framework
    library = "" if framework.attention == UNFUSED else framework.attention
    slower = step_constants.arithmetic() if scenario.fidelity.calibration == "steps" else 1.0
    boards = derived.mesh_of(scenario).ranks if scenario.fidelity.boards == "slowest" else 1
    launches = LAUNCHES[scenario.fidelity.power]
    software = Options(library, launches=launches, boards=boards, arithmetic=slower)
    adds, gradient_bytes = framework.fusion.accumulation, framework.gradient_bytes(scenario.job)
    software = replace(software, accumulate=adds, gradient_bytes=gradient_bytes)
    return measured_cost(gpu, scenario.job.activation_dtype, shipped_fits.fits_for(gpu), software)


def kept_prices(scenario: Scenario, session: Session) -> PricedKernels:
    """`prices_of`, from what a session keeps."""
    software = scenario.framework, scenario.job.activation_dtype, scenario.framework.gradients_of(scenario.job)
    options = *software, scenario.fidelity, derived.mesh_of(scenario).ranks
    return session.prices(scenario.cluster.gpu, options, lambda: prices_of(scenario))


def site_of(scenario: Scenario, prices: PricedKernels | None = None, session: Session | None = None) -> Site:
    """The scenario's cluster with the times of kernels, collectives and launches, and the disturbances."""
    cluster, session = derived.cluster_of(scenario), session or Session()
    perturbations = [_perturbation(p, cluster) for p in scenario.perturb]
    host = _host(scenario.framework)
    policy = session.policy(cluster, lambda: policy_on(cluster))
    uneven = replace(policy, uneven=lambda matrix, gpus: uneven_policy(Exchange.of(matrix), policy, cluster, gpus))
    sms = scenario.framework.sms if scenario.fidelity.overlap == "slowed" else None
    cost: KernelCost = prices or prices_of(scenario)
    if scenario.framework.launch_blocking:
        cost, host = _after_launch(cost, ns(scenario.framework.kernel_s)), None
    times = step_constants.beside_communication() if scenario.fidelity.calibration == "steps" else 1.0
    return Site(cluster, cost, uneven, perturbations, host, sms, times, session.routes(cluster))


def _after_launch(cost: KernelCost, launch_ns: int) -> KernelCost:
    """The cost of kernels whose launch begins when the kernel before has ended."""
    return lambda kernel: launch_ns + cost(kernel)


def _perturbation(p: Perturb, cluster: Cluster) -> Perturbation:
    if p.link is not None:
        return Perturbation(p.capacity or 0.0, link=cluster.link_named(p.link), from_s=p.from_s, until_s=p.until_s)
    return Perturbation(p.speed or 1.0, rank=p.rank, from_s=p.from_s, until_s=p.until_s)


def _host(framework: Framework) -> Host | None:
    """Launch overheads of the host; None if launches are free."""
    kernel_ns, collective_ns = ns(framework.kernel_s), ns(framework.host.collective_s)
    if not kernel_ns and not collective_ns:
        return None
    graph_ns = ns(framework.host.graph_s) if framework.cuda_graphs else None
    return Host(
        kernel_ns,
        collective_ns,
        graph_ns,
        waits_for_transfers=framework.p2p_sync,
        waits=framework.host_waits,
        input_launches=framework.input_launches,
    )


def layout_of(scenario: Scenario, site: Site | None = None, session: Session | None = None) -> Layout:
    """The slot order of the scenario's schedule. A cost-aware schedule receives the slot durations on the site."""
    schedule, shape = scenario.schedule, derived.schedule_shape(scenario)
    if getattr(schedule, "COST_AWARE", False):
        shape = replace(shape, durations=slot_durations(scenario, schedule, shape, site or site_of(scenario)))
    named, blocks = scenario.plan.schedule, not scenario.plan.overlap.over(scenario.framework.overlap).pp
    exchanges = blocks or catalog.is_code(named) or not isinstance(named, str)  # the exchanges of a user's code are checked
    laid_out = partial(lay_out, schedule, shape, exchanges=exchanges)
    layout = laid_out() if session is None else session.layout((schedule, exchanges, shape), laid_out)
    layout = paired(layout) if scenario.plan.exchanges_beside_compute(scenario.framework.overlap) else layout
    return with_vocabulary(layout, scenario.plan.vocabulary) if scenario.plan.shares_vocabulary else layout


def program_of(scenario: Scenario, steps: int | None = 1, layout: Layout | None = None, slots: Sequence[Program] = ()) -> Program:
    """The scenario's program, free of hardware: `steps` training steps, or (None) the work between two gradient norms.

    The slots have the order of the given layout, or else of the scenario's schedule, and may be lowered already.
    """
    layout, plan, dp = layout or layout_of(scenario), derived.placed(scenario), derived.replicas(scenario)
    return lower(
        scenario.model, plan, scenario.job, layout, dp=dp, steps=steps, framework=derived.software(scenario), slots=slots
    )


def bound_of(scenario: Scenario, program: Program, site: Site | None = None) -> Bound:
    """The program bound to the scenario's cluster."""
    return bind(program, derived.mesh_of(scenario), site or site_of(scenario), gpus=derived.gpus_of(scenario))


def bound_first_of(scenario: Scenario, program: Program, site: Site, within: Callable[[int], None] = lambda gpus: None) -> Bound:
    """The program bound to the scenario's cluster, or to the first block of replicas only, if all blocks are copies of it."""
    gpus = None if scenario.plan.placement is None else derived.gpus_of(scenario)
    return bind_first(program, derived.mesh_of(scenario), site, gpus=gpus, within=within)


def _run_program(
    scenario: Scenario, program: Program, site: Site, limits: estimated_effort.Limits, *, folding: bool
) -> tuple[Bound, Timeline, str, str]:
    """The bound program, its timeline, the engine, and the reasons for the number of classes of ranks and for the engine."""
    fidelity = scenario.fidelity.collectives
    messages = fidelity == "stepwise"
    folds = folding and not messages
    within = partial(limits.must_begin, program, scenario.cluster, folding=folding)
    if not folds:
        within(scenario.cluster.gpus)
    bound = bound_first_of(scenario, program, site, within) if folds else bound_of(scenario, program, site)
    unfolded = bound.skeleton if messages else bound.merged
    ranks_of = bound.folded(limits.must_end) if folds else every_rank(unfolded, limits.must_end)
    found = None if messages else by_stretches(ranks_of, bound, limits.engine, every=fidelity == "closed")
    timeline, used, reason = found or row_by_row(ranks_of, bound, site, limits, fidelity)
    classes, ranks = timeline.skeleton.ranks, timeline.ranks
    simulated = (
        f"{classes} classes of {ranks} ranks, because {'every rank differs' if classes == ranks else 'the others behave alike'}"
    )
    if messages:
        simulated = f"all {ranks} ranks simulated because every message is simulated, on links at their nominal rates"
    elif not folding:
        simulated = f"all {ranks} ranks simulated because folding was switched off"
    return bound, timeline, used, f"{simulated}; {reason}"
