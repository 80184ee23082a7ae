"""Several jobs on one cluster: each trains its own model on its own GPUs, and all share the fabric.

All start together and step after step, each at least as long as two steps of the slowest take alone. A job's step is the
mean of those of its steps, after the first, that end while every job still runs; beside it stands what the same job takes
with the fabric to itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from time import perf_counter
from typing import Any

import numpy as np

from ..binding.bind import Bound, bind
from ..engine import des
from ..engine.close import close
from ..engine.fold import Folded, fold
from ..engine.join import join
from ..engine.skeleton import Skeleton
from ..engine.task import Array
from ..engine.timeline import Timeline
from ..errors import Fault, UserError, shown
from ..hardware.cluster import Cluster
from ..units import seconds, show_s
from .assemble import program_of, site_of
from .documents.document import Document, Place
from .network.shared_links import SharedLink, shared_links
from .network.traffic import Traffic
from .scenarios import feasible
from .scenarios.clusters import MOST_GPUS
from .scenarios.scenario import Perturb, Scenario

KEYS = ("name", "model", "plan", "job", "gpus")
LEAST_STEPS, MOST_STEPS = 3, 64


@dataclass(frozen=True)
class Tenant:
    """A job with the GPUs that it has: numbers in the whole cluster."""

    name: str
    scenario: Scenario
    """On a cluster that is only what it sees of the whole one."""
    gpus: tuple[int, ...]


@dataclass(frozen=True)
class JobRun:
    """What a job's step takes among the others, and alone."""

    name: str
    gpus: int
    step_time_s: float
    alone_s: float

    @property
    def slowdown(self) -> float:
        return self.step_time_s / self.alone_s if self.alone_s else 1.0


@dataclass(frozen=True)
class SharedRun:
    """The result of several jobs on one fabric."""

    jobs: tuple[JobRun, ...]
    gpus: int
    wall_s: float
    until_ns: int
    """So long all of them run."""

    def as_dict(self) -> dict[str, Any]:
        named = ("name", "gpus", "step_time_s", "alone_s", "slowdown")
        jobs = [{name: getattr(job, name) for name in named} for job in self.jobs]
        return {"jobs": jobs, "gpus": self.gpus, "wall_s": self.wall_s}

    @property
    def summary(self) -> list[tuple[str, str]]:
        """A line for every job."""
        return [
            (job.name, f"{show_s(job.step_time_s)} on {job.gpus:,} GPUs, {job.slowdown:.3f}x of {show_s(job.alone_s)} alone")
            for job in self.jobs
        ]

    def __repr__(self) -> str:
        return "\n".join(["SharedRun", *(f"  {name:<11} {text}" for name, text in self.summary)])


@dataclass(frozen=True)
class Tenancy:
    """Jobs on one cluster."""

    cluster: Cluster
    tenants: tuple[Tenant, ...]
    perturb: tuple[Perturb, ...] = ()
    """Ranks in it are GPUs of the whole cluster."""

    def simulate(self, *, allow_oom: bool = False) -> SharedRun:
        """Every job alone, then all of them together."""
        from .simulate import memory_of, must_fit

        began = perf_counter()
        for tenant in self.tenants:
            feasible.check(tenant.scenario)
            if not allow_oom:
                must_fit(tenant.scenario, memory_of(tenant.scenario, program_of(tenant.scenario)))
        alone_s = [_step_s(self._ends_ns([(tenant, LEAST_STEPS)])[0], LEAST_STEPS) for tenant in self.tenants]
        horizon_s = 2 * max(alone_s)
        steps = [min(MOST_STEPS, max(LEAST_STEPS, ceil(horizon_s / alone) + 1)) if alone else LEAST_STEPS for alone in alone_s]
        ends_ns = self._ends_ns(list(zip(self.tenants, steps, strict=True)))
        until_ns = min(int(ends[-1]) for ends in ends_ns)
        runs = [
            JobRun(t.name, len(t.gpus), _step_s(ends, max(2, int((ends <= until_ns).sum()))), alone)
            for t, ends, alone in zip(self.tenants, ends_ns, alone_s, strict=True)
        ]
        return SharedRun(tuple(runs), self.cluster.gpus, perf_counter() - began, until_ns)

    def shared(self, run: SharedRun, count: int = 10) -> list[SharedLink]:
        """The links that several jobs use, those first that are fullest at the pace which jobs have among the others."""
        traffic = [Traffic(self.cluster, self._bound(t, LEAST_STEPS, every_link=True), 1) for t in self.tenants]
        users = [(job.name, job.step_time_s, of.bytes) for job, of in zip(run.jobs, traffic, strict=True)]
        return shared_links(self.cluster.wiring, traffic[0].capacity(0, run.until_ns), users, count)

    def _ends_ns(self, who: Sequence[tuple[Tenant, int]]) -> list[Array]:
        """When each job's steps end, for so many steps of each, on the whole cluster."""
        bounds = [self._bound(tenant, steps) for tenant, steps in who]
        folded: Folded = fold(join([bound.skeleton for bound in bounds]))
        closed = who[0][0].scenario.fidelity.collectives == "closed"
        times = des.simulate(close(folded.expansion.graph, every=closed))
        timeline = Timeline(times, folded.expansion, folded.class_of)
        found, first = [], 0
        for bound in bounds:
            found.append(_ends_ns(timeline, bound, first))
            first += bound.skeleton.ranks
        return found

    def _bound(self, tenant: Tenant, steps: int, *, every_link: bool = False) -> Bound:
        of = replace(tenant.scenario, cluster=self.cluster, perturb=self.perturb)
        program = program_of(tenant.scenario, steps)
        return bind(program, feasible.mesh_of(tenant.scenario), site_of(of), gpus=np.array(tenant.gpus), every_link=every_link)


def _ends_ns(timeline: Timeline, bound: Bound, first: int) -> Array:
    """The last end of each step of the ranks from `first` on that run a bound program."""
    skeleton: Skeleton = bound.skeleton
    classes, at = np.unique(timeline.class_of[first : first + skeleton.ranks], return_index=True)
    labels = [bound.labels[int(skeleton.program[rank])] for rank in at.tolist()]
    ends = np.zeros(1 + max(int(of.iteration.max(initial=0)) for of in labels), dtype=np.int64)
    for which, of in zip(classes.tolist(), labels, strict=True):
        np.maximum.at(ends, of.iteration, timeline.times.end_ns[timeline.expansion.tasks_of(which)])
    return ends


def _step_s(ends_ns: Array, count: int) -> float:
    """The mean step after the first of the first `count`."""
    return seconds(int(ends_ns[count - 1] - ends_ns[0]) / (count - 1))


def tenancy(document: Document) -> Tenancy:
    """The jobs of a document; raises `UserError` with the faults of all of them."""
    entries = document.at(("jobs",))
    faults: list[Fault] = []
    tenants: list[Tenant] = []
    whole, free = None, 0
    if not isinstance(entries, list) or not entries:
        raise UserError("jobs should be a list of jobs", where=document.where(("jobs",)), hint="jobs: [{name: a, gpus: 8, ...}]")
    for i, entry in enumerate(entries):
        place: Place = ("jobs", i)
        try:
            whole, tenant = _tenant(document, place, entry, free)
        except UserError as error:
            faults += error.faults
            continue
        free = max(free, max(tenant.gpus) + 1)
        tenants.append(tenant)
    if not faults and whole is not None:
        faults += _clashes(document, tenants, whole.cluster)
    if faults or whole is None:
        raise UserError(faults=list(dict.fromkeys(faults)))
    return Tenancy(whole.cluster, tuple(tenants), whole.perturb)


def _tenant(document: Document, place: Place, entry: Any, free: int) -> tuple[Scenario, Tenant]:
    """The job as if it had the whole cluster, and the job on its part: the GPUs named, or so many from the first free one."""
    from .scenarios.load import from_document

    where = document.where(place)
    if not isinstance(entry, Mapping) or set(entry) - set(KEYS) or "gpus" not in entry or "model" not in entry:
        hint = "{name: a, model: .., plan: {..}, job: {..}, gpus: 8}"
        raise UserError(f"jobs: {shown(entry)} is no job", where=where, hint=hint)
    gpus = entry["gpus"]
    chosen = list(range(free, free + gpus)) if type(gpus) is int and 0 < gpus <= MOST_GPUS else gpus
    if type(gpus) is int and gpus > MOST_GPUS:
        at = document.where((*place, "gpus"))
        raise UserError(f"jobs: {shown(gpus)} GPUs are more than one simulation takes", where=at, hint=f"at most {MOST_GPUS}")
    if not isinstance(chosen, list) or not chosen or not all(type(g) is int and g >= 0 for g in chosen):
        at = document.where((*place, "gpus"))
        wrong = next((g for g in gpus if type(g) is not int or g < 0), gpus) if isinstance(gpus, list) else gpus
        said = f"{shown(wrong)} is no number of a GPU" if wrong is not gpus else f"{shown(gpus)} are no GPUs"
        raise UserError(f"jobs: gpus: {said}", where=at, hint="how many, such as 8, or a list of their numbers: [0, 1, 2, 3]")
    shared = {key: value for key, value in document.data.items() if key in ("cluster", "framework", "fidelity", "perturb")}
    own = {key: entry[key] for key in ("model", "plan", "job") if key in entry}
    marks = {p: mark for p, mark in document.marks.items() if p[:1] != ("jobs",)}
    marks |= {p[2:]: mark for p, mark in document.marks.items() if p[:2] == place}
    scenario = from_document(Document({**shared, **own}, marks))
    part = _part(scenario.cluster, len(chosen), document.where((*place, "gpus")))
    tenant = Tenant(str(entry.get("name", f"job {place[1]}")), replace(scenario, cluster=part, perturb=()), tuple(chosen))
    return scenario, tenant


def _part(cluster: Cluster, gpus: int, where: str) -> Cluster:
    """What a job sees of a cluster: so many GPUs, in whole nodes or in a part of one."""
    if gpus <= cluster.gpus_per_node:
        return replace(cluster, nodes=1, gpus_per_node=gpus)
    if gpus % cluster.gpus_per_node:
        near = gpus // cluster.gpus_per_node * cluster.gpus_per_node
        message = f"jobs: {gpus} GPUs are neither whole nodes of {cluster.gpus_per_node} nor a part of one"
        raise UserError(message, where=where, hint=f"gpus: {near} or {near + cluster.gpus_per_node}")
    return replace(cluster, nodes=gpus // cluster.gpus_per_node)


def _clashes(document: Document, tenants: Sequence[Tenant], cluster: Cluster) -> list[Fault]:
    """GPUs that do not exist, or that two jobs have."""
    faults: list[Fault] = []
    owner: dict[int, str] = {}
    for i, tenant in enumerate(tenants):
        where = document.where(("jobs", i, "gpus"))
        beyond = [gpu for gpu in tenant.gpus if gpu >= cluster.gpus]
        twice = sorted(gpu for gpu, times in Counter(tenant.gpus).items() if gpu in owner or times > 1)
        if beyond:
            message = f"jobs: {tenant.name} has GPU {max(beyond)}, but {cluster.name} has {cluster.gpus}"
            faults.append(Fault(message, f"GPUs are 0 to {cluster.gpus - 1}; give the cluster more nodes", where))
        if twice:
            whose = owner.get(twice[0], tenant.name)
            message = f"jobs: GPU {twice[0]} of {tenant.name} belongs to {whose} too"
            faults.append(Fault(message, "give each GPU to one job", where))
        owner |= dict.fromkeys(tenant.gpus, tenant.name)
    return faults
