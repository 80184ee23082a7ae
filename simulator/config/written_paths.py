"""Paths in a scenario that is written into another folder than those of the files that name them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ..plan.plan import Plan
from . import catalog, user_code
from .document import Document, Mark, Place, beside
from .named_parts import CODE, MAY_BE_PATHS, names_a_file
from .scenario import NAMED
from .shipped_fits import PROFILE


class FileName(NamedTuple):
    """A value of a document that names a file."""

    place: Place
    name: str
    """The path as it is written."""
    path: str
    """The path from the current folder."""
    attribute: str = ""
    """The end of the value behind the path, such as `:order`."""


def with_paths_from(document: Document, folder: Path) -> Document:
    """The document of a scenario before its names are resolved, with every relative path that it names relative to a folder."""
    for value in [*_files(document)]:
        mark = document.mark(value.place) or Mark("")
        document = document.changed(value.place, _path_from(folder, value) + value.attribute, mark)
    return document


def plan_with_paths_from(plan: Plan, folder: Path) -> Plan:
    """A plan of a scenario that was read, whose paths start at the current folder, with the path of its routing from a folder."""
    place: Place = ("plan", "moe", "routing")
    routing = with_paths_from(Document.of({"plan": {"moe": {"routing": plan.moe.routing}}}), folder).at(place)
    return plan if routing == plan.moe.routing else replace(plan, moe=replace(plan.moe, routing=routing))


def _path_from(folder: Path, value: FileName) -> str:
    """A path relative to a folder, or an absolute path where the folder is on another drive."""
    if os.path.isabs(value.name):
        return value.name
    whole = Path(os.path.realpath(Path(value.path).parent)) / Path(value.path).name
    try:
        relative = Path(os.path.relpath(whole, os.path.realpath(folder))).as_posix()
    except ValueError:
        return whole.as_posix()
    return f"./{relative}" if "/" in value.name and "/" not in relative else relative  # a slash sets paths apart from names


def _files(document: Document) -> Iterator[FileName]:
    """The values that name files, by the rules by which the reader finds these files."""
    for part in NAMED:
        at = (*part.place, "name") if isinstance(document.at(part.place), dict) else part.place
        name = document.at(at)
        if isinstance(name, str):
            path = beside(name, document.mark(at))
            if names_a_file(part.kind, name, path) and catalog.exists(path):
                yield FileName(at, name, path)
    for place, is_path in {**MAY_BE_PATHS, PROFILE: bool}.items():
        name = document.at(place)
        if isinstance(name, str) and is_path(name):
            yield FileName(place, name, beside(name, document.mark(place)))
    for place in CODE:
        name = document.at(place)
        file, attribute = user_code.divided(name) if catalog.is_code(name) else ("", "")
        if file.endswith(".py"):
            yield FileName(place, file, beside(file, document.mark(place)), f":{attribute}" if attribute else "")
