"""A scenario as its file describes it, and the kinds of text in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from ..fields import Declared
from ..plan.fidelity import Fidelity
from ..plan.plan import Plan
from ..workload.framework import Framework
from ..workload.job import Job
from ..workload.model import Model
from .cluster_file import ClusterFile
from .cluster_of_file import cluster
from .document import Document
from .grammar import BOUNDARY
from .json_schema import object_schema
from .named_parts import NAMED, understood
from .scenario import Perturb, Scenario
from .trust import Trust


@dataclass(frozen=True, slots=True)
class ScenarioFile(Declared):
    """A whole scenario."""

    model: Annotated[Model, "a name such as llama3-70b, a path or a mapping"]
    cluster: Annotated[ClusterFile, "a name such as dgx-h100, a path or a mapping"]
    plan: Annotated[Plan, "how the job is spread over the cluster"] = field(default_factory=Plan)
    job: Annotated[Job, "what is trained per step"] = field(default_factory=Job)
    framework: Annotated[Framework, "a name such as megatron-core-2025, a path or a mapping"] = field(default_factory=Framework)
    fidelity: Annotated[Fidelity, "how finely the run is simulated"] = field(default_factory=Fidelity)
    perturb: Annotated[tuple[Perturb, ...], "slow ranks and links"] = ()

    before: ClassVar[tuple[str, ...]] = ("extends", "jobs")


def from_document(document: Document, trust: Trust) -> Scenario:
    """The scenario of a document, or the faults of all its sections together."""
    found, document = understood(document, NAMED, ScenarioFile, trust=trust)
    read = (found.plan, found.job, found.fidelity, found.framework, *found.perturb)
    sections = (found.plan, found.job, found.fidelity, found.perturb, found.framework)
    return Scenario(found.model, cluster(found.cluster), *sections, document.marks, read)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a scenario file, for editors: models, clusters, GPUs and frameworks also by name."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "trainsim scenario",
        **object_schema(ScenarioFile, BOUNDARY),
    }
    named = {"type": "string", "description": "a name, or a path to a file"}
    cluster = schema["properties"]["cluster"]
    for owner, key in ((cluster, "gpu"), (schema, "model"), (schema, "cluster"), (schema, "framework")):
        section = owner["properties"][key]
        section.pop("required", None)  # which the file of that name may say
        owner["properties"][key] = {"anyOf": [named, section]}
    schema.pop("required")
    schema["properties"]["extends"] = {"type": "string", "description": "a scenario that this one changes"}
    return schema
