"""What a scenario names, replaced by what it stands for: models, clusters, GPUs, frameworks, and files beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..fields import Declared, required
from ..workload.model import Model
from . import catalog, file_references, gpu_files
from .cluster_file import ClusterFile
from .document import Document, Place
from .file_references import Step, beside
from .grammar import BOUNDARY
from .trust import Trust

NAMED: tuple[tuple[Place, str], ...] = (
    (("model",), "models"),
    (("cluster",), "clusters"),
    (gpu_files.PLACE, "gpus"),
    (("framework",), "frameworks"),
)
"""What may be a name in a scenario, and of which kind. A cluster's file may name its GPU: so the order matters."""
FABRIC: Place = ("cluster", "fabric")
SCHEDULE: Place = ("plan", "schedule")


def understood(
    document: Document, named: Iterable[tuple[Place, str]], schema: type[Declared], at: Place = (), *, trust: Trust
) -> Any:
    """What stands at a place of a document as `schema`, its names resolved, and the document with what they stand for.

    Raises `UserError` with all that is wrong, in the order of reading.
    """
    names = ((place, _resolves(place, kind)) for place, kind in named)
    paths = (_located, gpu_files.profiled, trust.refuse, trust.admit)
    return file_references.understood(document, names, paths, schema, at, BOUNDARY)


def _resolves(place: Place, kind: str) -> Step:
    return lambda document: resolved(document, place, kind)


def resolved(document: Document, place: Place, kind: str) -> Document:
    """The document with a name, a path or a mapping with a name replaced by the contents of its file."""
    if kind == "gpus":
        return gpu_files.resolved(document, place)
    return file_references.resolved(document, place, kind, required(DESCRIBED_BY[kind]) if kind in DESCRIBED_BY else None)


DESCRIBED_BY: Mapping[str, type[Declared]] = {"models": Model, "clusters": ClusterFile}
"""What a mapping describes that needs no file to start from if it has all required keys: its name is then only a name."""


def _located(document: Document) -> Document:
    """The document with the paths of a fabric and of a table as seen from where trainsim runs."""
    name, mark = document.at(FABRIC), document.mark(FABRIC)
    if isinstance(name, str) and catalog.is_path(name) and mark:
        document = document.changed(FABRIC, beside(name, mark), mark)
    name, mark = document.at(SCHEDULE), document.mark(SCHEDULE)
    if isinstance(name, str) and catalog.is_table(name) and mark:
        document = document.changed(SCHEDULE, beside(name, mark), mark)
    return document
