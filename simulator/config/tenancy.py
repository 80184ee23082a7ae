"""Tenancy: several jobs on one cluster, each with its own model and its own GPUs, all sharing the fabric."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

from ..errors import Fault, UserError, did_you_mean, shown
from ..fields import keys
from ..hardware.cluster import Cluster
from ..plan.plan import Plan
from .cluster_file import MOST_GPUS
from .document import Document, Place
from .named_parts import CODE, Trust, reading_order, resolved
from .scenario import CLUSTER, OF_A_JOB, Perturb, Scenario, ScenarioFile, from_document

KEYS = ("name", *OF_A_JOB, "gpus")
SHARED = tuple(key for key in keys(ScenarioFile) if key not in OF_A_JOB)
"""The sections that all jobs share."""
STEPWISE: Place = ("fidelity", "collectives")


@dataclass(frozen=True)
class Tenant:
    """A job and its GPUs, as GPU numbers of the whole cluster."""

    name: str
    scenario: Scenario
    """The scenario of the job on its part of the cluster alone."""
    gpus: tuple[int, ...]


@dataclass(frozen=True)
class Tenancy:
    """A cluster and the jobs on it."""

    cluster: Cluster
    tenants: tuple[Tenant, ...]
    perturb: tuple[Perturb, ...] = ()
    """Perturbations, whose ranks are GPU numbers of the whole cluster."""


def tenancy(document: Document, trust: Trust) -> Tenancy:
    """The jobs of a document. Raises `UserError` with the faults of all jobs."""
    entries = document.at(("jobs",))
    faults = _beside_jobs(document)
    tenants: dict[int, Tenant] = {}
    whole, free, counted = None, 0, True
    if not isinstance(entries, list) or not entries:
        hint = "jobs: [{name: a, gpus: 8, ...}]"
        raise UserError(faults=[*faults, Fault("jobs should be a list of jobs", hint, document.where(("jobs",)))])
    with suppress(UserError):  # no code is imported before all jobs were checked; each job then raises its own refusals again
        trust.refuse(document, [("jobs", i, *place) for i in range(len(entries)) for place in CODE])
        trust.refuse(resolved(document, CLUSTER))
    for i, entry in enumerate(entries):
        place: Place = ("jobs", i)
        try:
            whole, tenant = _tenant(document, place, entry, free, trust)
        except UserError as error:
            faults += error.faults
            counted = False
            continue
        free = max(free, max(tenant.gpus) + 1)
        if counted or isinstance(entry["gpus"], list):
            tenants[i] = tenant
    faults += _misnamed(document, entries)
    if whole is not None and whole.fidelity.collectives == "stepwise":
        hint = "fluid or closed; stepwise simulates one job at a time"
        faults.append(Fault("fidelity.collectives: stepwise is not supported for several jobs", hint, document.where(STEPWISE)))
    if whole is not None:
        faults += _clashes(document, tenants, whole.cluster)
    if faults or whole is None:
        raise UserError(faults=sorted(dict.fromkeys(faults), key=reading_order))
    return Tenancy(whole.cluster, tuple(tenants.values()), whole.perturb)


def _beside_jobs(document: Document) -> list[Fault]:
    """Faults of keys beside `jobs` that all jobs would ignore."""
    faults: list[Fault] = []
    for key in document.data:
        where = document.where((key,))
        if key in OF_A_JOB:
            faults.append(Fault(f"{key}: it has no effect beside jobs", f"write it for each job, such as jobs.0.{key}", where))
        elif key not in (*SHARED, "jobs"):
            faults.append(Fault(f"{key}: unknown key", did_you_mean(str(key), (*SHARED, "extends", "jobs")), where))
    return faults


def _tenant(document: Document, place: Place, entry: Any, free: int, trust: Trust) -> tuple[Scenario, Tenant]:
    """The scenario of a job on the whole cluster, and the job on its own GPUs: those listed, or a number from the first free GPU
    on."""
    if not isinstance(entry, Mapping) or set(entry) - set(KEYS) or "gpus" not in entry or "model" not in entry:
        hint = "{name: a, model: .., plan: {..}, job: {..}, gpus: 8}"
        message = f"{shown(entry)} is not a job"
        if isinstance(entry, Mapping):
            unknown, missing = sorted(map(str, set(entry) - set(KEYS))), [key for key in ("model", "gpus") if key not in entry]
            faults = [f"unknown key {shown(key)}" for key in unknown] + [f"{key} is missing" for key in missing]
            nearest = [did_you_mean(key, KEYS) for key in unknown]
            message, hint = ", ".join(faults), "; ".join(dict.fromkeys([*nearest, f"a job is like {hint}"]))
        raise UserError(f"jobs.{place[1]}: {message}", where=document.where(place), hint=hint)
    gpus, at = entry["gpus"], document.where((*place, "gpus"))
    if type(gpus) is int and gpus > MOST_GPUS:
        raise UserError(f"jobs: {shown(gpus)} GPUs are more than one simulation takes", where=at, hint=f"at most {MOST_GPUS}")
    chosen = list(range(free, free + gpus)) if type(gpus) is int else gpus if isinstance(gpus, list) else []
    wrong = [g for g in chosen if type(g) is not int or g < 0]
    if wrong or not chosen:
        said = f"{shown(wrong[0])} is not a number of a GPU" if wrong else f"{shown(gpus)} are not GPUs"
        raise UserError(f"jobs: gpus: {said}", where=at, hint="how many, such as 8, or a list of their numbers: [0, 1, 2, 3]")
    shared = {key: value for key, value in document.data.items() if key in SHARED}
    own = {key: entry[key] for key in OF_A_JOB if key in entry}
    marks = {p: mark for p, mark in document.marks.items() if p[:1] != ("jobs",)}
    marks |= {p[2:]: mark for p, mark in document.marks.items() if p[:2] == place}
    scenario = from_document(Document({**shared, **own}, marks), trust)
    if scenario.plan.offloading.copies:
        where = document.where((*place, "plan", "offload"))
        raise UserError("jobs: plan.offload is not modelled for several jobs", where=where, hint="none")
    part, by_node = _part(scenario.cluster, chosen, at)
    alone = replace(scenario, cluster=part, plan=_renumbered(scenario.plan, chosen, by_node), perturb=())
    return scenario, Tenant(_name_of(entry, int(place[1])), alone, by_node)


def _name_of(entry: Mapping[str, Any], number: int) -> str:
    """The name of a job; a job without a name is called by its index in the list."""
    name = entry.get("name")
    return f"job {number}" if name is None else str(name)


def _misnamed(document: Document, entries: Sequence[Any]) -> list[Fault]:
    """Faults of job names that are not text, or that repeat an earlier name: the result could not distinguish such jobs."""
    faults: list[Fault] = []
    names: set[str] = set()
    for i, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            continue
        name, where = _name_of(entry, i), document.where(("jobs", i, "name"))
        if type(entry.get("name", "")) not in (str, int, float, type(None)):
            faults.append(Fault(f"jobs: name: {shown(entry['name'])} is not a name", "a word, such as a", where))
        elif name in names:
            faults.append(Fault(f"jobs: two are called {name!r}", "give each job a unique name", where))
        names.add(name)
    return faults


def _part(cluster: Cluster, chosen: Sequence[int], where: str) -> tuple[Cluster, tuple[int, ...]]:
    """The part of a cluster that a job uses, as nodes of equally many GPUs, and the GPUs of the job node by node.

    If the job has unequal numbers of GPUs on its nodes, they count as several smaller nodes.
    """
    gpus, of_node = len(chosen), Counter(gpu // cluster.gpus_per_node for gpu in chosen)
    if len(set(of_node.values())) > 1 and gpus > cluster.gpus_per_node and gpus % cluster.gpus_per_node:
        near = gpus // cluster.gpus_per_node * cluster.gpus_per_node
        message = f"jobs: {gpus} GPUs are neither whole nodes of {cluster.gpus_per_node} nor a part of one"
        raise UserError(message, where=where, hint=f"gpus: {near} or {near + cluster.gpus_per_node}")
    first, each = {node: at for at, node in enumerate(of_node)}, gcd(*of_node.values())
    by_node = sorted(chosen, key=lambda gpu: first[gpu // cluster.gpus_per_node])
    return replace(cluster, nodes=gpus // each, gpus_per_node=each), tuple(by_node)


def _renumbered(plan: Plan, chosen: Sequence[int], by_node: Sequence[int]) -> Plan:
    """The plan of a job whose GPUs were chosen in one order and are numbered in another; an illegal placement is not changed."""
    if tuple(chosen) == tuple(by_node) or (plan.placement and not set(plan.placement) <= {*range(len(chosen))}):
        return plan
    number = {gpu: at for at, gpu in enumerate(by_node)}
    return replace(plan, placement=tuple(number[chosen[at]] for at in plan.placement or range(len(chosen))))


def _clashes(document: Document, tenants: Mapping[int, Tenant], cluster: Cluster) -> list[Fault]:
    """Faults for GPUs that do not exist or that two jobs claim. Jobs with unknown GPUs are left out: after a job that could not
    be built, the GPUs of a job that states only a number are unknown."""
    faults: list[Fault] = []
    job_of_gpu: dict[int, str] = {}
    for i, tenant in tenants.items():
        where = document.where(("jobs", i, "gpus"))
        beyond = [gpu for gpu in tenant.gpus if gpu >= cluster.gpus]
        twice = sorted(gpu for gpu, times in Counter(tenant.gpus).items() if gpu in job_of_gpu or times > 1)
        if beyond:
            message = f"jobs: {tenant.name} has GPU {max(beyond)}, but {cluster.name} has {cluster.gpus}"
            faults.append(Fault(message, f"GPUs are 0 to {cluster.gpus - 1}; give the cluster more nodes", where))
        if twice and twice[0] in job_of_gpu:
            message = f"jobs: GPU {twice[0]} of {tenant.name} belongs to {job_of_gpu[twice[0]]} too"
            faults.append(Fault(message, "give each GPU to one job", where))
        elif twice:
            faults.append(Fault(f"jobs: GPU {twice[0]} is listed twice for {tenant.name}", "list each GPU once", where))
        job_of_gpu |= dict.fromkeys(tenant.gpus, tenant.name)
    return faults
