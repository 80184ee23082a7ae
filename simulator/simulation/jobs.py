"""Step times of several jobs that share a cluster: each job running alone, and all jobs running together.

All jobs start together and run step after step. The number of steps is large enough that every job completes at least one whole
step while all jobs run: after each job has completed its first step and before any job begins its last. The first steps of a job
whose ranks do not wait for the gradient norm differ from those of a long run: as many of them are left out as the job takes when
it is alone until its steps repeat. The step time of a job is the mean of its whole steps within that interval, and is reported
beside the step time of the same job without the other jobs.
Where a disturbance begins or ends, steps differ: every job then runs one step, from a standing start to its last arrival.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from math import ceil
from time import perf_counter
from typing import Any

import numpy as np

from ..binding.bind import Bound, Site, bind
from ..config import derived, feasible
from ..config.scenario import Scenario
from ..config.tenancy import SHARED, Tenancy, Tenant
from ..config.without_use import unused
from ..engine import heap
from ..engine.fold import fold
from ..engine.replay import with_fixed_durations
from ..engine.skeleton import join_skeletons
from ..engine.task import Array
from ..engine.timeline import Timeline
from ..errors import Fault, Infeasible, UserError
from ..escape import Summarised
from ..lowering.passes.data_parallel import NORM
from ..memory.account import RankMemory
from ..metrics.mfu import CONVENTION
from ..program.layout import Layout
from ..units import counted, seconds, show_s
from . import estimated_effort, memory_check
from .network.traffic import Traffic, ratio
from .simulate import layout_of, prices_of, program_of, site_of
from .steady_state import GROWING, LONGEST_PERIOD, first_kernels, has_transitions, repeating
from .whole_run import WholeRun, whole_run

LEAST_STEPS = 3
"""Number of steps of a job from which whole steps can be measured, where all ranks wait for the gradient norm."""
ONE_STEP = 1
"""Number of steps of a job where a disturbance begins or ends."""
MOST_STEPS = 512
ATTEMPTS = 8
"""Number of attempts to find how many steps each job completes while another job completes one."""
SPARE = 1.25
"""Safety factor on the simulated duration of each job."""


@dataclass(frozen=True)
class JobRun:
    """The step time of a job together with the other jobs, and alone on the cluster."""

    name: str
    gpus: int
    step_time_s: float
    alone_s: float
    tokens_per_s: float
    mfu: float
    flop_convention: str
    peak_memory_bytes: int
    """The memory that the fullest GPU of the job needs."""
    fits: bool
    """Whether every GPU, and every host, has the memory that the job needs."""
    memory: str
    """The memory of the fullest GPU in words."""
    whole_run: WholeRun | None = None
    """The run of all tokens of the job together with the other jobs."""

    @property
    def slowdown(self) -> float:
        return self.step_time_s / self.alone_s if self.alone_s else 1.0


@dataclass(frozen=True, repr=False)
class SharedRun(Summarised):
    """The result of several jobs on one fabric."""

    jobs: tuple[JobRun, ...]
    gpus: int
    wall_s: float
    from_ns: int
    until_ns: int
    """End of the interval from `from_ns` in which all jobs run and are measured."""
    notes: Sequence[str] = ()
    """Sentences that users should read beside the numbers."""

    def as_dict(self) -> dict[str, Any]:
        records = [{**asdict(job), "slowdown": job.slowdown} for job in self.jobs]
        jobs = [{name: of for name, of in record.items() if of is not None and name != "memory"} for record in records]
        return {"jobs": jobs, "gpus": self.gpus, "wall_s": self.wall_s}

    @property
    def summary(self) -> list[tuple[str, str]]:
        """A line for every job."""
        lines = []
        for job in self.jobs:
            slower = f"{job.slowdown:.3f}x of {show_s(job.alone_s)} alone"
            lines.append((job.name, f"{show_s(job.step_time_s)} on {counted(job.gpus, 'GPU')}, {slower}"))
            speed = f"{job.tokens_per_s:,.0f} tokens/s, MFU {job.mfu:.1%} (attention counted in {job.flop_convention})"
            lines += [(f"{job.name}, throughput", speed), (f"{job.name}, memory", job.memory)]
            lines += [(f"{job.name}, {label}", text) for label, text in (job.whole_run.lines if job.whole_run else ())]
        return lines


@dataclass(frozen=True, slots=True)
class Share:
    """The bytes that a job sends over a link in one of its steps."""

    name: str
    bytes: float


@dataclass(frozen=True, slots=True)
class SharedLink:
    """A link that several jobs use."""

    name: str
    capacity_bytes_per_s: float
    """Mean capacity over the interval in which all jobs run."""
    utilisation: float
    """Fraction of the capacity that all jobs together use, step after step."""
    jobs: tuple[Share, ...]


@dataclass(frozen=True, eq=False, slots=True)
class _Placed:
    """A job with what is computed once for all of its runs: its site in the whole cluster, and the order of its slots."""

    tenant: Tenant
    site: Site
    layout: Layout
    least_steps: int
    waits: bool
    """Whether all ranks wait for the gradient norm."""
    settled: int = 0
    """The first edge between steps that counts: those before it are of first steps, which differ from those of a long run."""
    period: int = 1
    """Number of steps that repeat together."""

    def bound(self, steps: int) -> Bound:
        """The program of `steps` steps of the job, bound to its GPUs."""
        scenario = self.tenant.scenario
        program = program_of(scenario, steps, self.layout)
        return bind(program, derived.mesh_of(scenario), self.site, gpus=np.array(self.tenant.gpus)[derived.gpus_of(scenario)])


def _checked(tenancy: Tenancy) -> list[Scenario]:
    """The scenarios of all jobs after their checks. A fault names its job; a fault of what all jobs share is reported once."""
    scenarios: list[Scenario] = []
    faults: list[Fault] = []
    of_all = tuple(f"{key}{end}" for key in SHARED for end in ".:")
    for tenant in tenancy.tenants:
        try:
            scenarios.append(feasible.check(tenant.scenario, tenancy.cluster))
        except UserError as error:
            said = ((fault, "" if fault.message.startswith(of_all) else f"{tenant.name}: ") for fault in error.faults)
            faults += [replace(fault, message=f"{lead}{fault.message}") for fault, lead in said]
    for tenant in tenancy.tenants[:1] if tenancy.perturb else ():
        faults += feasible.faults_beside_jobs(replace(tenant.scenario, cluster=tenancy.cluster, perturb=tenancy.perturb))
    if faults:
        raise UserError(faults=dict.fromkeys(faults))
    return scenarios


def _placed(tenancy: Tenancy) -> list[_Placed]:
    """The jobs of a cluster, after the scenario of each has been checked."""
    placed, one_step = [], has_transitions(tenancy.perturb)
    for tenant, scenario in zip(tenancy.tenants, _checked(tenancy), strict=True):
        site = site_of(replace(scenario, cluster=tenancy.cluster, perturb=tenancy.perturb), prices_of(scenario))
        waits = scenario.plan.waits_for_norm(scenario.job.gradient_clipping)
        least_steps = ONE_STEP if one_step else LEAST_STEPS
        placed.append(_Placed(replace(tenant, scenario=scenario), site, layout_of(scenario), least_steps, waits))
    return placed


def simulate(tenancy: Tenancy, *, allow_oom: bool = False, long: bool = False) -> SharedRun:
    """Simulates every job alone on the cluster, then all jobs together."""
    began, limits = perf_counter(), estimated_effort.Limits("des", long)
    notes: list[str] = []
    placed = _placed(tenancy)
    memory = [_memory_of(job, allow_oom=allow_oom) for job in placed]
    for job, of_job in zip(placed, memory, strict=True):
        notes += [f"{job.tenant.name}: {sentence}" for sentence in memory_check.notes(job.tenant.scenario, of_job)]
    placed, alone_s = map(list, zip(*(_alone(job, limits) for job in placed), strict=True))
    edges = _step_edges_together(placed, alone_s, limits)
    runs = [_job_run(*of) for of in zip(placed, memory, _means_s(placed, edges), alone_s, strict=True)]
    if placed[0].least_steps == ONE_STEP:
        notes.append("a disturbance begins or ends: every job does one step, from a standing start to its last arrival")
    notes += _without_effect(placed, tenancy)
    return SharedRun(tuple(runs), tenancy.cluster.gpus, perf_counter() - began, *_common_ns(edges), tuple(notes))


def _without_effect(placed: Sequence[_Placed], tenancy: Tenancy) -> list[str]:
    """A sentence for each value without effect: on what all jobs share once, on others with the name of the job. The cluster is
    the whole one, because the part of a job may have more NICs than GPUs."""
    found = []
    for job in placed:
        for sentence in unused(replace(job.tenant.scenario, cluster=tenancy.cluster)):
            of_all = sentence.startswith(tuple(f"{key}." for key in SHARED))
            found.append(sentence if of_all else f"{job.tenant.name}: {sentence}")
    return list(dict.fromkeys(found))


def _job_run(job: _Placed, memory: Sequence[RankMemory], step_s: float, alone_s: float) -> JobRun:
    """A job with its step times."""
    scenario, gpus = job.tenant.scenario, len(job.tenant.gpus)
    available_flop = step_s * gpus * derived.peak_flop_per_s(scenario)
    return JobRun(
        job.tenant.name,
        gpus,
        step_s,
        alone_s,
        tokens_per_s=scenario.job.tokens / step_s,
        mfu=derived.flop_of_step(scenario) / available_flop,
        flop_convention=CONVENTION,
        peak_memory_bytes=max(rank.total_bytes for rank in memory),
        fits=memory_check.fits(scenario, memory),
        memory=memory_check.summary(scenario, memory),
        whole_run=whole_run(scenario, gpus, step_s),
    )


def _memory_of(job: _Placed, *, allow_oom: bool) -> tuple[RankMemory, ...]:
    """The memory of a job. Raises `Infeasible` with the name of the job if it does not fit, unless `allow_oom`."""
    scenario = job.tenant.scenario
    try:
        return memory_check.memory_of(scenario, job.layout, allow_oom=allow_oom)
    except Infeasible as error:
        ways = f"{memory_check.remedies(scenario)}, or more gpus for the job that allow them"
        hint = f"{ways}; --allow-oom shows the step times anyway"
        raise Infeasible(f"{job.tenant.name}: {error.message}", hint=hint, over_bytes=error.over_bytes) from None


def _alone(job: _Placed, limits: estimated_effort.Limits) -> tuple[_Placed, float]:
    """A job with the number of its first steps that do not count, and the seconds of its steps when it is alone."""
    if job.waits or job.least_steps == ONE_STEP:
        edges = _run([(job, job.least_steps)], limits)
        return job, _means_s([job], edges)[0]
    for steps in GROWING:
        (edges_alone,) = _run([(job, steps)], limits)
        if period := repeating(edges_alone.at_ns):
            break
    period = period or LONGEST_PERIOD
    settled = steps - 1 - period
    settles = replace(job, settled=settled, period=period, least_steps=settled + period + LEAST_STEPS)
    return settles, edges_alone.mean_s(settled, steps - 1)


def _step_edges_together(placed: Sequence[_Placed], alone_s: Sequence[float], limits: estimated_effort.Limits) -> list[_Edges]:
    """The step edges of all jobs running together, simulated until each job completes a whole step while all jobs run."""
    if placed[0].least_steps == ONE_STEP:
        return _run([(job, 1) for job in placed], limits)
    lasts_s, enough_s = list(alone_s), 2 * max(alone_s)
    for _ in range(ATTEMPTS):
        steps = [
            job.least_steps + (ceil(SPARE * enough_s / step_s) if step_s else 0)
            for job, step_s in zip(placed, lasts_s, strict=True)
        ]
        if max(steps) > MOST_STEPS:
            more, fewer = (placed[steps.index(of)].tenant.name for of in (max(steps), min(steps)))
            raise UserError(
                f"{more} does so many steps during one step of {fewer} that more than {MOST_STEPS} would have to be simulated",
                hint=f"a larger batch for {more}, or a smaller one for {fewer}",
            )
        edges = _run(list(zip(placed, steps, strict=True)), limits)
        if all(of.within(*_common_ns(edges)) is not None for of in edges):
            return edges
        lasts_s = [of.mean_s(0, of.at_ns.shape[1] - 1) for of in edges]
        enough_s = 2 * max(*lasts_s, seconds(_common_ns(edges)[0]))
    raise UserError("no time was found in which every job does a whole step", hint="jobs whose steps are more alike")


@dataclass(frozen=True, eq=False, slots=True)
class _Edges:
    """Times at which the steps of a job begin and end, in nanoseconds: a row per class of ranks, a column per edge."""

    at_ns: Array
    ranks: Array
    """Number of ranks that each class represents."""

    def within(self, from_ns: int, until_ns: int) -> tuple[int, int] | None:
        """The first and the last edge between two times; None if these times enclose no whole step."""
        inside = np.flatnonzero((self.at_ns.min(axis=0) >= from_ns) & (self.at_ns.max(axis=0) <= until_ns))
        return (int(inside[0]), int(inside[-1])) if len(inside) > 1 else None

    def from_edge(self, first: int) -> _Edges:
        """The edges from one of them on."""
        return replace(self, at_ns=self.at_ns[:, first:])

    def mean_s(self, first: int, last: int) -> float:
        """The mean step time between two edges, averaged over ranks."""
        lasted_ns = int(np.dot(self.at_ns[:, last] - self.at_ns[:, first], self.ranks))
        return seconds(lasted_ns / (int(self.ranks.sum()) * (last - first)))


def _common_ns(edges: Sequence[_Edges]) -> tuple[int, int]:
    """Start and end of the interval in which every job is between its first and its last edge."""
    return max(int(of.at_ns[:, 0].max()) for of in edges), min(int(of.at_ns[:, -1].min()) for of in edges)


def _means_s(jobs: Sequence[_Placed], edges: Sequence[_Edges]) -> list[float]:
    """The mean of the whole steps of each job in the interval in which all jobs run, in seconds.

    Of steps that repeat together only whole repetitions count, where the interval has one.
    """
    common_ns, found = _common_ns(edges), []
    for job, of in zip(jobs, edges, strict=True):
        first, last = of.within(*common_ns) or (0, 1)
        found.append(of.mean_s(first, last - (last - first) % job.period if last - first >= job.period else last))
    return found


def shared(tenancy: Tenancy, run: SharedRun, count: int) -> list[SharedLink]:
    """The links that several jobs use, the most utilised first, with each job at its step time under contention."""
    wiring, bounds = tenancy.cluster.wiring, [job.bound(1) for job in _placed(tenancy)]
    traffic = [Traffic(tenancy.cluster, bound.every_link, bound.labels, range(1), 1) for bound in bounds]
    users = [(job, of.bytes) for job, of in zip(run.jobs, traffic, strict=True)]
    capacity = traffic[0].capacity(run.from_ns, run.until_ns)
    rate = sum((carried / job.step_time_s for job, carried in users if job.step_time_s), np.zeros(wiring.links))
    used = ratio(rate, capacity)
    several = np.sum([carried > 0 for _, carried in users], axis=0) > 1
    order = np.argsort(-np.round(used, 12), kind="stable")
    return [
        SharedLink(
            wiring.link_name(link),
            float(capacity[link]),
            float(used[link]),
            tuple(Share(job.name, float(carried[link])) for job, carried in users if carried[link] > 0),
        )
        for link in order[several[order]][:count].tolist()
    ]


def _run(jobs: Sequence[tuple[_Placed, int]], limits: estimated_effort.Limits) -> list[_Edges]:
    """The step edges of each job, when the given jobs run the given numbers of steps together on the whole cluster."""
    bounds = [job.bound(steps) for job, steps in jobs]
    first_job, _ = jobs[0]
    folded = fold(join_skeletons([bound.skeleton for bound in bounds]), limits.must_end)
    closed = first_job.tenant.scenario.fidelity.collectives == "closed"
    times = heap.simulate(with_fixed_durations(folded.graph, every=closed))
    timeline = Timeline(times, folded)
    firsts = accumulate((bound.skeleton.ranks for bound in bounds), initial=0)
    one_step = first_job.least_steps == ONE_STEP
    found = (_edges(timeline, bound, first, one_step=one_step) for bound, first in zip(bounds, firsts, strict=False))
    return [edges.from_edge(job.settled) for (job, _), edges in zip(jobs, found, strict=True)]


def _edges(timeline: Timeline, bound: Bound, first: int, *, one_step: bool) -> _Edges:
    """Step edges of the ranks from `first` on, which run a bound program: gradient norms, else starts of steps.

    With `one_step` the edges are time zero and the last arrival of all of these ranks.
    """
    skeleton, times = bound.skeleton, timeline.times
    classes, at, ranks = np.unique(timeline.class_of[first : first + skeleton.ranks], return_index=True, return_counts=True)
    rows: list[Array] = []
    for which, rank in zip(classes.tolist(), at.tolist(), strict=True):
        program = int(skeleton.program[rank])
        tasks, labels = timeline.expansion.tasks_of(which), bound.labels[program]
        norms = np.flatnonzero((labels.phase == NORM) & ~labels.is_launch)
        if one_step:
            rows.append(np.array([0, times.arrival_ns[tasks].max()]))
        elif len(norms):
            rows.append(times.end_ns[tasks[norms]])
        else:
            rows.append(times.start_ns[tasks[first_kernels(skeleton.templates[program], labels)]])
    at_ns = np.array(rows)
    return _Edges(np.broadcast_to(at_ns.max(axis=0), at_ns.shape) if one_step else at_ns, ranks)
