"""What several jobs on one cluster take: each alone, and all of them together.

All start together and step after step, each at least as long as two steps of the slowest take alone. A job's step is the
mean of those of its steps, after the first, that end while every job still runs; beside it stands what the same job takes
with the fabric to itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from time import perf_counter
from typing import Any

import numpy as np

from .. import escape
from ..binding.bind import Bound, bind
from ..engine import des
from ..engine.close import close
from ..engine.fold import Folded, fold
from ..engine.join import join
from ..engine.skeleton import Skeleton
from ..engine.task import Array
from ..engine.timeline import Timeline
from ..units import seconds, show_s
from . import engines
from .assemble import layout_of, program_of, site_of
from .fits import memory_of, must_fit
from .network.shared_links import SharedLink, shared_links
from .network.traffic import Traffic
from .runs.notes import of_memory
from .scenarios import feasible
from .scenarios.tenancy import Tenancy, Tenant
from .scenarios.unused import unused

LEAST_STEPS, MOST_STEPS = 3, 64


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
    notes: Sequence[str] = ()
    """What somebody should know besides the numbers, in sentences."""

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
        return "\n".join(["SharedRun", *(f"  {escape.terminal(name):<11} {text}" for name, text in self.summary)])


def simulate(tenancy: Tenancy, *, allow_oom: bool = False, long: bool = False) -> SharedRun:
    """Every job alone, then all of them together."""
    began = perf_counter()
    notes: list[str] = []
    for tenant in tenancy.tenants:
        feasible.check(tenant.scenario)
        memory = memory_of(tenant.scenario, layout_of(tenant.scenario))
        if not allow_oom:
            must_fit(tenant.scenario, memory)
        notes += [f"{tenant.name}: {sentence}" for sentence in of_memory(tenant.scenario, memory)]
    alone_s = [_step_s(_run(tenancy, [(tenant, LEAST_STEPS)], long=long)[0], LEAST_STEPS) for tenant in tenancy.tenants]
    horizon_s = 2 * max(alone_s)
    steps = [min(MOST_STEPS, max(LEAST_STEPS, ceil(horizon_s / alone) + 1)) if alone else LEAST_STEPS for alone in alone_s]
    ends_ns = _run(tenancy, list(zip(tenancy.tenants, steps, strict=True)), long=long)
    until_ns = min(int(ends[-1]) for ends in ends_ns)
    runs = [
        JobRun(t.name, len(t.gpus), _step_s(ends, max(2, int((ends <= until_ns).sum()))), alone)
        for t, ends, alone in zip(tenancy.tenants, ends_ns, alone_s, strict=True)
    ]
    notes += unused(tenancy.tenants[0].scenario)
    return SharedRun(tuple(runs), tenancy.cluster.gpus, perf_counter() - began, until_ns, tuple(notes))


def shared(tenancy: Tenancy, run: SharedRun, count: int) -> list[SharedLink]:
    """The links that several jobs use, those first that are fullest at the pace which jobs have among the others."""
    traffic = [Traffic(tenancy.cluster, _bound(tenancy, t, LEAST_STEPS, every_link=True), 1) for t in tenancy.tenants]
    users = [(job.name, job.step_time_s, of.bytes) for job, of in zip(run.jobs, traffic, strict=True)]
    return shared_links(tenancy.cluster.wiring, traffic[0].capacity(0, run.until_ns), users, count)


def _run(tenancy: Tenancy, who: Sequence[tuple[Tenant, int]], *, long: bool) -> list[Array]:
    """When each job's steps end, for so many steps of each, on the whole cluster."""
    bounds = [_bound(tenancy, tenant, steps) for tenant, steps in who]
    folded: Folded = fold(join([bound.skeleton for bound in bounds]), partial(engines.must_end, engine="des", long=long))
    closed = who[0][0].scenario.fidelity.collectives == "closed"
    times = des.simulate(close(folded.expansion.graph, every=closed))
    timeline = Timeline(times, folded.expansion, folded.class_of)
    found, first = [], 0
    for bound in bounds:
        found.append(_ends_ns(timeline, bound, first))
        first += bound.skeleton.ranks
    return found


def _bound(tenancy: Tenancy, tenant: Tenant, steps: int, *, every_link: bool = False) -> Bound:
    of = replace(tenant.scenario, cluster=tenancy.cluster, perturb=tenancy.perturb)
    program = program_of(tenant.scenario, steps)
    return bind(program, feasible.mesh_of(tenant.scenario), site_of(of), gpus=np.array(tenant.gpus), every_link=every_link)


def _ends_ns(timeline: Timeline, bound: Bound, first: int) -> Array:
    """The last arrival of each step of the ranks from `first` on that run a bound program."""
    skeleton: Skeleton = bound.skeleton
    classes, at = np.unique(timeline.class_of[first : first + skeleton.ranks], return_index=True)
    labels = [bound.labels[int(skeleton.program[rank])] for rank in at.tolist()]
    ends = np.zeros(1 + max(int(of.iteration.max(initial=0)) for of in labels), dtype=np.int64)
    for which, of in zip(classes.tolist(), labels, strict=True):
        np.maximum.at(ends, of.iteration, timeline.times.arrival_ns[timeline.expansion.tasks_of(which)])
    return ends


def _step_s(ends_ns: Array, count: int) -> float:
    """The mean step after the first of the first `count`."""
    return seconds(int(ends_ns[count - 1] - ends_ns[0]) / (count - 1))
