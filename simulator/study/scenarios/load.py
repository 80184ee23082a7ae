"""Scenarios from files: read, extended, changed by settings, resolved and checked in one pass.

A scenario may extend another and be changed by `--set`; its model, cluster and GPU may be names, paths or mappings, and a
mapping with a `name` starts from the file of that name. A relative path is looked for beside the file that names it, then
in the current folder. What is wrong is reported all at once, by place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import Fault, UserError, shown
from .. import catalog
from ..documents.document import Document, Mark, Place
from ..documents.source import parse, read, scalar
from ..gpus.names import meant

if TYPE_CHECKING:
    from ..documents.strict import Strict
    from ..jobs import Tenancy
    from .scenario import Scenario

NAMED: tuple[tuple[Place, str], ...] = (
    (("model",), "models"),
    (("cluster",), "clusters"),
    (("cluster", "gpu"), "gpus"),
    (("framework",), "frameworks"),
)
"""What may be a name in a scenario, and of which kind. A cluster's file may name its GPU: so the order matters."""
PROFILE: Place = ("cluster", "gpu", "profile")
FABRIC: Place = ("cluster", "fabric")
PYTHON: tuple[Place, ...] = (("plan", "schedule"), ("cluster", "shape"))
"""What may be `file.py:name`."""


def load(path: str | Path, settings: Iterable[str] = ()) -> Scenario | Tenancy:
    """The scenario in a file (or of a name in the catalog), changed by settings such as "plan.tp=4"."""
    if not isinstance(path, (str, Path)):
        raise UserError(f"{shown(path)} is no file and no name", hint='load("scenario.yaml")')
    name = str(path)
    file = Path(name) if isinstance(path, Path) or catalog.is_file(name) else catalog.find("scenarios", name)
    return _understood(_with_settings(_extended(read(file), (file.resolve(),)), settings))


def load_one(path: str | Path, settings: Iterable[str] = ()) -> Scenario:
    """The same where several jobs on one cluster have no place."""
    from .scenario import Scenario

    found = load(path, settings)
    if not isinstance(found, Scenario):
        raise UserError(f"{path} holds several jobs", hint="`trainsim run` runs them; this takes one")
    return found


def from_mapping(data: Mapping[str, Any], settings: Iterable[str] = ()) -> Scenario | Tenancy:
    """The scenario of a mapping such as a YAML file holds."""
    return _understood(_with_settings(_extended(Document.of(data), ()), settings))


def _understood(document: Document) -> Scenario | Tenancy:
    """One job, or several that share a cluster."""
    if "jobs" not in document.data:
        return from_document(document)
    from ..jobs import tenancy

    return tenancy(document)


def _extended(document: Document, seen: tuple[Path, ...]) -> Document:
    """A document laid over the one that it extends, unless that is one of those that led to it."""
    if "extends" not in document.data:
        return document
    base, mark = document.at(("extends",)), document.mark(("extends",))
    with _placed(document.where(("extends",))):
        if not isinstance(base, str):
            raise UserError(f"extends: {shown(base)} is no file and no name", hint="extends: base.yaml")
        beside = _beside(base, mark)
        file = Path(beside) if catalog.is_path(base) or catalog.is_file(beside) else catalog.find("scenarios", base)
        if file.resolve() in seen:
            raise UserError(f"extends: {shown(base)} leads back to this file", hint="extend a file that does not extend this one")
        return _extended(read(file), (*seen, file.resolve())).overlaid(document.without(("extends",)))


@contextmanager
def _placed(where: str) -> Iterator[None]:
    """Faults that have no place of their own get this one."""
    try:
        yield
    except UserError as error:
        raise UserError(faults=[replace(fault, where=fault.where or where) for fault in error.faults]) from None


def _beside(name: str, mark: Mark | None) -> str:
    """A relative path as seen from the file that holds it; as it is if it is only found from the current folder."""
    if mark is None or not mark.line:
        return name
    path = str(Path(mark.file).parent / name)
    return name if catalog.is_file(name) and not catalog.is_file(path) else path


def _with_settings(document: Document, settings: Iterable[str]) -> Document:
    faults: list[Fault] = []
    for setting in settings:
        try:
            document = _set(document, setting)
        except UserError as error:
            faults += error.faults
    if faults:
        raise UserError(faults=faults)
    return document


def _set(document: Document, setting: str) -> Document:
    """The document with one field changed, as `--set` writes it."""
    name, equals, text = str(setting).partition("=")
    place, text = tuple(part.strip() for part in name.split(".")), text.strip()
    if not equals or not all(place):
        raise UserError(f"--set {shown(setting)} sets nothing", hint="write it like --set plan.tp=4")
    origin = f"--set {name.strip()}"
    value = parse(f"value: {text}", origin).data["value"] if text[:1] in tuple("[{\"'") else scalar(text)
    with _placed(origin):
        return document.changed(place, value, Mark(f"{origin}={text}"))


def from_document(document: Document) -> Scenario:
    """The scenario of a document, or the faults of all its sections together."""
    from .convert import scenario
    from .schema import ScenarioSchema

    return scenario(*understood(document, NAMED, ScenarioSchema))


def understood(document: Document, named: Iterable[tuple[Place, str]], schema: type[Strict], at: Place = ()) -> Any:
    """What stands at a place of a document as `schema`, its names resolved, and the document with what they stand for.

    Raises `UserError` with all that is wrong, in the order of reading.
    """
    from ..documents.checked import examined

    faults: list[Fault] = []
    unresolved: list[Place] = []
    for place, kind in named:
        try:
            document = resolved(document, place, kind)
        except UserError as error:
            faults += error.faults
            unresolved.append(place)
            document = document.without(place)
    try:
        document = profiled(document)
    except UserError as error:
        faults += error.faults
    value, found = examined(schema, _located(document), at)
    faults += [fault for place, fault in found if place not in unresolved]
    if faults:
        raise UserError(faults=sorted(faults, key=_reading_order))
    return value, document


def _reading_order(fault: Fault) -> list[tuple[int, str]]:
    """Faults of a file from its top to its bottom."""
    return [(int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", fault.where)]


def profiled(document: Document) -> Document:
    """The document with the path of its GPU's profile as seen from where trainsim runs; a file that is not there is refused,
    and one of another GPU: its kernels would be taken for this one's."""
    document = _with_fabric(document)
    name, mark = document.at(PROFILE), document.mark(PROFILE)
    if not isinstance(name, str) or not mark:
        return document
    path = _beside(name, mark)
    if not catalog.is_file(path):
        raise UserError(f"no file {shown(name)}", where=document.where(PROFILE), hint="`trainsim calibrate fit` writes one")
    _same_gpu(document, path)
    return document.changed(PROFILE, path, mark)


def _with_fabric(document: Document) -> Document:
    """The document with the path of its fabric as seen from where trainsim runs."""
    name, mark = document.at(FABRIC), document.mark(FABRIC)
    if not isinstance(name, str) or not catalog.is_path(name) or not mark:
        return document
    return document.changed(FABRIC, _beside(name, mark), mark)


def _same_gpu(document: Document, path: str) -> None:
    """Refuses a profile whose GPU has another name."""
    from ..gpus import kernel_fits

    (measured, _), name = kernel_fits.load(Path(path)), document.at((*PROFILE[:-1], "name"))
    if name is None:
        whose, hint = "a GPU without a name", f"call it what it is: gpu: {{name: {measured}, ...}}"
    else:
        whose = shown(str(name)).strip("'")
        hint = f"give it a profile of {whose}: `trainsim calibrate fit TABLE.csv --gpu {whose}`"
    if name is None or catalog.plain(measured) != catalog.plain(str(name)):
        raise UserError(f"{shown(path)} holds kernels of {measured}, not of {whose}", where=document.where(PROFILE), hint=hint)


def _located(document: Document) -> Document:
    """The document with the paths of Python files and tables as seen from where trainsim runs."""
    for place in PYTHON:
        name, mark = document.at(place), document.mark(place)
        if isinstance(name, str) and ".py:" in name and mark:
            path, _, attribute = name.rpartition(":")
            document = document.changed(place, f"{_beside(path, mark)}:{attribute}", mark)
        elif isinstance(name, str) and catalog.is_table(name) and mark:
            document = document.changed(place, _beside(name, mark), mark)
    return document


def resolved(document: Document, place: Place, kind: str) -> Document:
    """The document with a name, a path or a mapping with a name replaced by the contents of its file."""
    value = document.at(place)
    inner = value if isinstance(value, dict) else {}
    name, at = (inner.get("name"), (*place, "name")) if inner else (value, place)
    if "name" in inner and not isinstance(name, str):
        message = f"{'.'.join(map(str, at))} should be a name or a path, not {shown(name)}"
        raise UserError(message, where=document.where(at), hint=f"`trainsim catalog {kind}` lists them")
    if not isinstance(name, str):
        return document
    with _placed(document.where(at)):
        try:
            file = catalog.find(kind, _beside(name, document.mark(at)) if catalog.is_path(name) else name)
        except UserError:
            if _complete(inner, kind):
                return document
            if kind != "gpus":
                raise
            file = catalog.find(kind, meant(name))
        base = read(file)
    named = Document({**base.data, "name": file.stem}, base.marks)
    over = Document({key: v for key, v in inner.items() if key != "name"}, document.under(place).marks if inner else {})
    return document.overlaid(named.overlaid(over), place)


def _complete(data: Mapping[str, Any], kind: str) -> bool:
    """Whether a mapping needs no file to start from: its name is then only a name."""
    from ..documents.strict import required
    from .clusters import ClusterSchema, GpuSchema
    from .schema import ModelSchema

    schemas: dict[str, type[Strict]] = {"models": ModelSchema, "clusters": ClusterSchema, "gpus": GpuSchema}
    return kind in schemas and all(name in data for name in required(schemas[kind]))
