"""Scenarios from files: read, extended, changed by settings, resolved and checked in one pass.

A scenario may extend another and be changed by `--set`; its model, cluster and GPU may be names, paths or mappings, and a
mapping with a `name` starts from the file of that name. A relative path is looked for beside the file that names it, then
in the current folder. What is wrong is reported all at once, by place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import MOST_SHOWN, Fault, UserError, described, shown
from . import catalog
from .document import Document, Mark, beside, placed
from .named_parts import read_or_import
from .scenario import from_document
from .tenancy import tenancy
from .trust import Trust
from .yaml_source import parse, read, scalar

if TYPE_CHECKING:
    from .scenario import Scenario
    from .tenancy import Tenancy


def load(path: str | Path, settings: Iterable[str] = (), *, trust: bool = False) -> Scenario | Tenancy:
    """The scenario in a file (or of a name in the catalog), changed by settings such as "plan.tp=4".

    Code that files name (`module:name`, `file.py:name`) is refused, unless `trust` says that it may be imported.
    """
    if not isinstance(path, (str, Path)):
        raise UserError(f"{shown(path)} is no file and no name", hint='load("scenario.yaml")')
    name = str(path)
    file = Path(name) if isinstance(path, Path) or catalog.is_file(name) else catalog.find("scenarios", name)
    document = read_or_import(file, "scenarios")
    return _understood(_with_settings(_extended(document, (file.resolve(),)), settings), Trust(trust))


def from_mapping(data: Mapping[str, Any], settings: Iterable[str] = (), *, trust: bool = False) -> Scenario | Tenancy:
    """The scenario of a mapping such as a YAML file holds; `trust` is for the files that it names."""
    return _understood(_with_settings(_extended(Document.of(data), ()), settings), Trust(trust))


def scenario(data: Mapping[str, Any], *, trust: bool = False) -> Scenario | Tenancy:
    """A scenario (or several jobs on one cluster) from a mapping such as a YAML file holds.

    With `trust` the files that it names may name code, which is imported.
    """
    if not isinstance(data, Mapping):
        raise UserError(f"a scenario is a mapping, not {shown(data)}", hint='a file is read by load("scenario.yaml")')
    return from_mapping(data, trust=trust)


def _understood(document: Document, trust: Trust) -> Scenario | Tenancy:
    """One job, or several that share a cluster."""
    if "jobs" not in document.data:
        return from_document(document, trust)

    return tenancy(document, trust)


def _extended(document: Document, seen: tuple[Path, ...]) -> Document:
    """A document laid over the one that it extends, unless that is one of those that led to it."""
    if "extends" not in document.data:
        return document
    base, mark = document.at(("extends",)), document.mark(("extends",))
    with placed(document.where(("extends",))):
        if not isinstance(base, str):
            raise UserError(f"extends: {shown(base)} is no file and no name", hint="extends: base.yaml")
        path = beside(base, mark)
        file = Path(path) if catalog.is_path(base) or catalog.is_file(path) else catalog.find("scenarios", base)
        if file.resolve() in seen:
            raise UserError(f"extends: {shown(base)} leads back to this file", hint="extend a file that does not extend this one")
        return _extended(read(file), (*seen, file.resolve())).overlaid(document.without(("extends",)))


def _with_settings(document: Document, settings: Iterable[str]) -> Document:
    if isinstance(settings, (str, bytes, Mapping)) or not isinstance(settings, Iterable):
        hint = f"[{shown(settings)}]" if isinstance(settings, str) else '["plan.tp=4", "job.global_batch=64"]'
        raise UserError(f"settings is {described(settings)}, not a list of settings", hint=f"write it like {hint}")
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
    name, equals, text = setting.partition("=") if isinstance(setting, str) else ("", "", "")
    place, text = tuple(part.strip() for part in name.split(".")), text.strip()
    if not equals or not all(place):
        raise UserError(f"--set {described(setting)} sets nothing", hint="write it like --set plan.tp=4")
    origin = f"--set {name.strip()}"
    mark = Mark(f"{origin}={text if len(text) <= MOST_SHOWN else shown(text)}")
    try:
        value = parse(f"value: {text}", origin).data["value"] if text[:1] in tuple("[{\"'") else scalar(text)
    except UserError as error:  # whose lines and columns are not those of what was typed
        raise UserError(faults=[replace(fault, where=str(mark)) for fault in error.faults]) from None
    with placed(origin):
        return document.changed(place, value, mark)
