"""What a scenario names, replaced by what it stands for: models, clusters, GPUs, frameworks, and files beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from .. import catalog
from ..documents import references
from ..documents.document import Document, Place
from ..documents.references import Step, beside
from ..documents.strict import required
from ..gpus import gpu_files
from .code import Trust

if TYPE_CHECKING:
    from ..documents.strict import Strict
    from .scenario import Scenario

NAMED: tuple[tuple[Place, str], ...] = (
    (("model",), "models"),
    (("cluster",), "clusters"),
    (gpu_files.PLACE, "gpus"),
    (("framework",), "frameworks"),
)
"""What may be a name in a scenario, and of which kind. A cluster's file may name its GPU: so the order matters."""
FABRIC: Place = ("cluster", "fabric")
SCHEDULE: Place = ("plan", "schedule")


def from_document(document: Document, trust: Trust) -> Scenario:
    """The scenario of a document, or the faults of all its sections together."""
    from .convert import scenario
    from .schema import ScenarioSchema

    return scenario(*understood(document, NAMED, ScenarioSchema, trust=trust))


def understood(
    document: Document, named: Iterable[tuple[Place, str]], schema: type[Strict], at: Place = (), *, trust: Trust
) -> Any:
    """What stands at a place of a document as `schema`, its names resolved, and the document with what they stand for.

    Raises `UserError` with all that is wrong, in the order of reading.
    """
    names = ((place, _resolves(place, kind)) for place, kind in named)
    return references.understood(document, names, (_located, gpu_files.profiled, trust.refuse, trust.admit), schema, at)


def _resolves(place: Place, kind: str) -> Step:
    return lambda document: resolved(document, place, kind)


def resolved(document: Document, place: Place, kind: str) -> Document:
    """The document with a name, a path or a mapping with a name replaced by the contents of its file."""
    if kind == "gpus":
        return gpu_files.resolved(document, place)
    return references.resolved(document, place, kind, NEEDED.get(kind))


def _of_a_model() -> Iterator[str]:
    from .schema import ModelSchema

    return required(ModelSchema)


def _of_a_cluster() -> Iterator[str]:
    from .clusters import ClusterSchema

    return required(ClusterSchema)


NEEDED = {"models": _of_a_model, "clusters": _of_a_cluster}
"""The keys with which a mapping needs no file to start from: its name is then only a name."""


def _located(document: Document) -> Document:
    """The document with the paths of a fabric and of a table as seen from where trainsim runs."""
    name, mark = document.at(FABRIC), document.mark(FABRIC)
    if isinstance(name, str) and catalog.is_path(name) and mark:
        document = document.changed(FABRIC, beside(name, mark), mark)
    name, mark = document.at(SCHEDULE), document.mark(SCHEDULE)
    if isinstance(name, str) and catalog.is_table(name) and mark:
        document = document.changed(SCHEDULE, beside(name, mark), mark)
    return document
