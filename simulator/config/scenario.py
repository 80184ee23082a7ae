"""Scenarios: model, cluster, plan, job and all further input of a run as frozen values, and the schema of scenario files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar

from .. import escape
from ..costs.kernels.fit_choice import known_library
from ..errors import UserError, did_you_mean, shown
from ..fields import LEAST_FACTOR, Contradiction, Declared, Limits, Name, Seconds, documented
from ..hardware.cluster import Cluster
from ..plan.mesh import Mesh
from ..plan.plan import Fidelity, Plan, Shares
from ..plan.stage_layers import readable
from ..units import show_s
from ..workload.framework import Framework
from ..workload.job import Job
from ..workload.model import Model
from . import catalog, cluster_file, token_shares
from .cluster_file import MOST_GPUS, ClusterFile, text_of
from .document import Document, Mark, Place
from .json_schema import object_schema
from .named_parts import Named, Trust, located, read_with_parts
from .reader import Grammar, Grammars
from .shipped_fits import GPU, profiled, shipped
from .suggestions import meant

ROUTINGS = ("balanced", "drawn")
EXAMPLE = '{rank: 13, speed: 0.8} or {link: "node0/nic3>leaf3", capacity: 0.5}'


@documented
@dataclass(frozen=True, slots=True)
class Perturb(Declared):
    """A change of speed of a GPU, or of capacity of a link, for an interval of time. A GPU has a speed, a link a capacity."""

    rank: Annotated[
        int | None,
        Limits(ge=0),
        "number of the GPU whose speed changes, which is that of its rank without plan.placement; left out for a link",
    ] = None
    speed: Annotated[
        float | None,
        Limits(ge=LEAST_FACTOR, le=100),
        "constant factor on the speed of the GPU, such as 0.8; random factors are not modelled yet",
    ] = None
    link: Annotated[Name | None, "link whose capacity changes, written as source>target; left out for a GPU"] = None
    capacity: Annotated[
        float | None,
        Limits(ge=0, le=100),
        "constant factor on the bandwidth of the link, 0 for an outage; random factors are not modelled yet",
    ] = None
    from_s: Annotated[Seconds, "simulated time at which the change begins"] = 0.0
    until_s: Annotated[Seconds | None, "simulated time at which the change ends; left out for no end"] = None

    not_yet: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("random", "seed", "distribution", "probability", "jitter"), "random perturbations are not modelled yet"
    )

    def contradictions(self) -> Iterator[Contradiction]:
        of_rank, of_link = self.rank is not None, self.link is not None
        if of_rank == of_link:
            yield "", f" names {'both a rank and a link' if of_rank else 'neither a rank nor a link'}", EXAMPLE
        elif (self.speed is not None, self.capacity is not None) != (of_rank, of_link):
            yield "", " gives a rank a speed, or a link a capacity, and nothing else", EXAMPLE
        if self.until_s is not None and self.until_s <= self.from_s:
            message = f": {show_s(self.until_s)} is not after {show_s(self.from_s)}, where it starts"
            yield "until", message, "leave it out for no end"
        if self.capacity == 0 and self.until_s is None:
            yield "capacity", ": a link without capacity for ever stops the step", "give until, or a small capacity"
        if self.capacity and self.capacity < LEAST_FACTOR:
            yield "capacity", f": {self.capacity} is too small", f"at least {LEAST_FACTOR}, or 0 with an until"

    @property
    def text(self) -> str:
        """The change in words: `rank 13 at 0.6 of its speed, from 1 s until 3 s`."""
        return self.text_with(None)

    def text_with(self, placement: Sequence[int] | None) -> str:
        """The change in words, where the ranks run on these GPUs: `GPU 13 (rank 2) at 0.6 of its speed`."""
        what = "capacity" if self.rank is None else "speed"
        factor = self.capacity if self.rank is None else self.speed
        what = f"{self.target(placement)} at {factor:g} of its {what}"
        begins = f", from {show_s(self.from_s)}" if self.from_s else ""
        return what + begins + ("" if self.until_s is None else f"{' ' if begins else ', '}until {show_s(self.until_s)}")

    def target(self, placement: Sequence[int] | None) -> str:
        """The changed element: a link, a rank, or, if a list places the ranks, a GPU with the rank on it."""
        if self.rank is None:
            return str(self.link)
        if placement is None or self.rank not in placement:
            return f"rank {self.rank:,}"
        return f"GPU {self.rank:,} (rank {placement.index(self.rank):,})"


@dataclass(frozen=True)
class Scenario:
    """All input of a run."""

    model: Model
    cluster: Cluster
    plan: Plan = field(default_factory=Plan)
    job: Job = field(default_factory=Job)
    fidelity: Fidelity = field(default_factory=Fidelity)
    perturb: tuple[Perturb, ...] = ()
    framework: Framework = field(default_factory=Framework)
    marks: Mapping[Place, Mark] = field(default_factory=dict, compare=False, repr=False)
    """The file positions of the values, for messages."""
    read: tuple[object, ...] = field(default=(), compare=False, repr=False)
    """Sections that were made, and already checked, by the reader of files."""

    @cached_property
    def schedule(self) -> Any:
        """The schedule that the plan names: a module of the catalog, the table of a file, or the user's object."""
        return catalog.module("schedules", self.plan.schedule)

    def __repr__(self) -> str:
        return f"Scenario({escape.terminal(self.model.name)} on {self.cluster!r}, {self.plan!r})"

    def as_dict(self) -> dict[str, Any]:
        """The scenario as plain data, for records of results; the schedule has the name that the user gave."""
        schedule = self.plan.schedule
        named = str(schedule) if isinstance(schedule, str) else catalog.called(schedule)
        return {
            "model": self.model.name,
            "cluster": self._cluster(),
            "plan": {**asdict(replace(self.plan, schedule=named)), "overlap": self._overlap()},
            "job": asdict(self.job),
            "framework": asdict(self.framework),
            "fidelity": asdict(self.fidelity),
            "perturb": [asdict(p) for p in self.perturb],
        }

    def _cluster(self) -> dict[str, Any]:
        """The cluster, with everything that makes its links or the kernels of its GPU differ from the entries of the catalog."""
        cluster, gpu = self.cluster, self.cluster.gpu
        found: dict[str, Any] = {"name": cluster.name, "gpu": gpu.name, "nodes": cluster.nodes, "gpus": cluster.gpus}
        found |= {"fabric": cluster.fabric.label} if cluster.fabric else {}
        found |= {"profile": gpu.profile, "profile_hash": gpu.profile_hash} if gpu.profile else {}
        found |= {"site_scalar": gpu.site_scalar} if gpu.site_scalar != 1 else {}
        return found

    def _overlap(self) -> dict[str, Any]:
        """The operations that overlap with compute, by the plan or else by the framework."""
        used = self.plan.overlap.over(self.framework.overlap)
        return {axis: getattr(used, axis, said) for axis, said in asdict(self.plan.overlap).items()}


def schedule(name: Any) -> str:
    """The name of a schedule, of the catalog or of user code. `Trust` refuses code that was not imported."""
    if not catalog.is_code(name):
        catalog.module("schedules", text_of(name, "1f1b"))
    text: str = name
    return text


def rank_order(text: Any) -> str:
    """Axes in order from the fastest varying to the slowest, such as "tp-dp-pp", with dashes or underscores, in any case."""
    try:
        Mesh.of({}, text_of(text, "tp-cp-ep-dp-pp"))
    except UserError as error:
        raise UserError(error.faults[0].message.removeprefix("rank_order: "), hint=error.hint) from None
    return catalog.plain(text)


def routing(value: Any) -> str | Shares:
    """A value that `exact_routing` accepts, or the word of a routing in any case."""
    return exact_routing(meant(value, ROUTINGS) or value)


def exact_routing(value: Any) -> str | Shares:
    """The word of a routing, the path of a file of shares, which is read here to report its faults, or shares."""
    if isinstance(value, (list, tuple)):
        return token_shares.checked(value)
    text = text_of(value, "balanced")
    if text in ROUTINGS:
        return text
    if not token_shares.is_file(text):
        raise UserError(f"{shown(text)} is not a routing", hint=f"{did_you_mean(text, ROUTINGS)}, or a file (.csv, .json)")
    try:
        token_shares.read(text)
    except UserError as error:
        message = "; ".join(f"{fault.where}: {fault.message}" if fault.where else fault.message for fault in error.faults)
        raise UserError(message, hint=error.faults[0].hint) from None
    return text


def attention(text: Any) -> str:
    """The name of a library of attention kernels with measured fits, or `unfused`. An empty name selects the default of a GPU."""
    return "" if isinstance(text, str) and not text else known_library(text_of(text, "flash_attention"), shipped())


GRAMMARS: Grammars = {
    "attention": Grammar(attention, "flash_attention"),
    "fabric": Grammar(cluster_file.fabric, "ndr-ib"),
    "inter_node": Grammar(cluster_file.inter_node, "8x400 Gbit/s"),
    "intra_node": Grammar(cluster_file.intra_node, "NVSwitch 450 GB/s"),
    "layout": Grammar(readable, "first=7,last=7", ("string", "array")),
    "rank_order": Grammar(rank_order, "tp-cp-ep-dp-pp"),
    "routing": Grammar(routing, "balanced", ("string", "array")),
    "schedule": Grammar(schedule, "1f1b"),
    "shape": Grammar(cluster_file.shape, "rail-optimized"),
    "sites": Grammar(cluster_file.sites, "[rail-optimized, leaf-spine]", ("integer", "array")),
}  # fmt: skip
"""The grammars of the text fields of a scenario."""
MODEL, CLUSTER = Named(("model",), "models", Model), Named(("cluster",), "clusters", ClusterFile)
FRAMEWORK = Named(("framework",), "frameworks")
OF_A_JOB = ("model", "plan", "job")
"""The sections that each of several `jobs` has for itself. The other sections are of the cluster, and so of all jobs."""
NAMED = (MODEL, CLUSTER, GPU, FRAMEWORK)
"""The parts of a scenario that may be names, in the order of resolution: the file of a cluster may name its GPU."""


@dataclass(frozen=True, slots=True)
class ScenarioFile(Declared):
    """A scenario: all input of a run."""

    model: Annotated[Model, "model to train: a name such as llama3-70b, a path or a mapping"]
    cluster: Annotated[ClusterFile, "cluster to train on: a name such as dgx-h100, a path or a mapping"]
    plan: Annotated[Plan, "distribution of the job over the cluster"] = field(default_factory=Plan)
    job: Annotated[Job, "batch, sequence length and number format of a training step"] = field(default_factory=Job)
    framework: Annotated[Framework, "software: a name such as megatron-core-2025, a path or a mapping"] = field(
        default_factory=Framework
    )
    fidelity: Annotated[Fidelity, "level of detail at which the run is simulated"] = field(default_factory=Fidelity)
    perturb: Annotated[tuple[Perturb, ...], "changes of the speed of ranks and of the capacity of links"] = ()

    before: ClassVar[tuple[str, ...]] = ("extends", "jobs")


def from_document(document: Document, trust: Trust) -> Scenario:
    """The scenario of a document. Raises `UserError` with the faults of all sections together."""
    found, document = read_with_parts(document, NAMED, (located, trust.admit, profiled), ScenarioFile, grammars=GRAMMARS)
    read = (found.model, found.plan, found.job, found.fidelity, found.framework, *found.perturb)
    sections = (found.plan, found.job, found.fidelity, found.perturb, found.framework)
    return Scenario(found.model, cluster_file.cluster(found.cluster), *sections, document.marks, read)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a scenario file, for editors: models, clusters, GPUs and frameworks also by name."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "trainsim scenario",
        **object_schema(ScenarioFile, GRAMMARS),
    }
    named = {"type": "string", "description": "a name, or a path to a file"}
    cluster = schema["properties"]["cluster"]
    for owner, key in ((cluster, "gpu"), (schema, "model"), (schema, "cluster"), (schema, "framework")):
        section = owner["properties"][key]
        section.pop("required", None)  # the named file may have them
        owner["properties"][key] = {"anyOf": [named, section]}
    schema.pop("required")
    schema["properties"]["extends"] = {"type": "string", "description": "a scenario that this one changes"}
    schema["properties"]["jobs"] = _jobs_schema()
    schema["dependentSchemas"] = {"jobs": {"properties": dict.fromkeys(OF_A_JOB, False)}}
    return schema


def _jobs_schema() -> dict[str, Any]:
    """The JSON Schema of `jobs`, whose sections are those of a scenario of one job."""
    number, numbers = {"type": "integer", "minimum": 1, "maximum": MOST_GPUS}, {"type": "integer", "minimum": 0}
    gpus = {
        "anyOf": [number, {"type": "array", "items": numbers, "minItems": 1}],
        "description": "how many, from the first free GPU on, or a list of their numbers",
    }
    name = {"type": ["string", "number", "null"], "description": "name of the job in results"}
    sections = {key: {"$ref": f"#/properties/{key}"} for key in OF_A_JOB}
    job = {
        "type": "object",
        "properties": {"name": name, **sections, "gpus": gpus},
        "additionalProperties": False,
        "required": ["model", "gpus"],
    }
    return {"type": "array", "items": job, "minItems": 1, "description": "several jobs at once, each on its own GPUs"}
