"""Scenarios from files: read, extended, changed by settings, resolved and checked in one pass.

A scenario may extend another and be changed by `--set`; its model, cluster and GPU may be names, paths or mappings, and a
mapping with a `name` starts from the file of that name. What is wrong with it is reported all at once, by place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import Fault, UserError
from . import catalog
from .scenario import Scenario
from .source import Document, Place, parse, read, scalar


def load(path: str | Path, settings: Iterable[str] = ()) -> Scenario:
    """The scenario in a file (or of a name in the catalog), changed by settings such as "plan.tp=4"."""
    name = str(path)
    file = catalog.find("scenarios", name) if not Path(name).exists() else Path(name)
    return from_document(_with_settings(_extended(file, ()), settings))


def from_mapping(data: Mapping[str, Any], settings: Iterable[str] = ()) -> Scenario:
    """The scenario of a mapping such as a YAML file holds."""
    return from_document(_with_settings(Document(dict(data)), settings))


def _extended(file: Path, seen: tuple[Path, ...]) -> Document:
    """A file's document laid over the one that it extends."""
    document = read(file)
    base = document.data.pop("extends", None)
    if base is None:
        return document
    where = document.where(("extends",))
    if not isinstance(base, str):
        raise UserError(f"extends names a file, not {base!r}", where=where)
    beside = file.parent / base
    target = beside if beside.exists() or base.endswith((".yaml", ".yml")) else catalog.find("scenarios", base)
    if target.resolve() in (*seen, file.resolve()):
        raise UserError(f"{file} extends itself, by way of {base}", where=where)
    return _extended(target, (*seen, file.resolve())).overlaid(document)


def _with_settings(document: Document, settings: Iterable[str]) -> Document:
    for setting in settings:
        name, equals, text = setting.partition("=")
        place = tuple(part for part in name.strip().split("."))
        if not equals or not all(place):
            raise UserError(f"--set {setting!r}: write it as plan.tp=4")
        value = parse(f"value: {text}", f"--set {name}").data["value"] if text[:1] in "[{\"'" else scalar(text.strip())
        document = document.overlaid(Document(_nested(place, value), {place: f"--set {setting}"}))
    return document


def _nested(place: tuple[str, ...], value: Any) -> dict[str, Any]:
    for part in reversed(place):
        value = {part: value}
    nested: dict[str, Any] = value
    return nested


def from_document(document: Document) -> Scenario:
    """Names resolved, everything validated, the faults of all sections together."""
    from .schema import ScenarioSchema, validated

    faults: list[Fault] = []
    for place, kind in ((("model",), "models"), (("cluster",), "clusters"), (("cluster", "gpu"), "gpus")):
        try:
            document = resolved(document, place, kind)
        except UserError as error:
            faults += error.faults
            document = _without(document, place)
    try:
        schema = validated(ScenarioSchema, document)
    except UserError as error:
        named = {fault.message for fault in faults}
        unresolved = {"model is missing", "cluster is missing", "cluster.gpu is missing"} if named else set()
        raise UserError("", faults=[*faults, *(f for f in error.faults if f.message not in unresolved)]) from None
    if faults:
        raise UserError("", faults=faults)
    from .convert import scenario

    return scenario(schema, document)


def resolved(document: Document, place: Place, kind: str) -> Document:
    """The document with a name, a path or a mapping with a name replaced by the contents of its file."""
    value: Any = document.data
    for part in place:
        value = value.get(part) if isinstance(value, dict) else None
    name = value.get("name") if isinstance(value, dict) else value
    if not isinstance(name, str) or (isinstance(value, dict) and name == "inline"):
        return document
    where = document.where((*place, "name") if isinstance(value, dict) else place)
    try:
        file = catalog.find(kind, name)
        base = read(file)
    except UserError as error:
        raise UserError("", faults=[Fault(f.message, f.hint, f.where or where) for f in error.faults]) from None
    over = value if isinstance(value, dict) else {}
    base = Document({**base.data, "name": file.stem}, base.marks)
    marks = {p[len(place) :]: m for p, m in document.marks.items() if p[: len(place)] == place}
    filled = base.overlaid(Document({k: v for k, v in over.items() if k != "name"}, marks))
    return document.overlaid(filled, place)


def _without(document: Document, place: Place) -> Document:
    data = dict(document.data)
    if len(place) == 1:
        data.pop(str(place[0]), None)
    elif isinstance(data.get(str(place[0])), dict):
        data[str(place[0])] = {k: v for k, v in data[str(place[0])].items() if k != place[1]}
    return Document(data, document.marks)
