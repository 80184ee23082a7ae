"""Names and paths in a document, replaced by what they stand for: files of the catalog, or one's own beside the document."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import Fault, UserError, shown
from ..fields import Declared, required
from . import catalog
from .document import Document, Mark, Place, beside, placed
from .reader import BARE, Boundary, examined
from .yaml_source import read

MOST_DIGITS = 18
"""Of a number of a line or a column."""


class Named(NamedTuple):
    """A part of a scenario that may be a name, a path or a mapping with a name."""

    place: Place
    kind: str
    """In the catalog."""
    schema: type[Declared] | None = None
    """What a mapping describes that needs no file to start from if it has all required keys: its name is then only a name."""
    meant: Callable[[str], str] | None = None
    """The name in the catalog that other words for it mean."""


Step = Callable[[Document], Document]
"""A document with something in it replaced by what it stands for; raises `UserError` for what stands for nothing."""
PATHS: tuple[tuple[Place, Callable[[str], bool]], ...] = (
    (("cluster", "fabric"), catalog.is_path),
    (("plan", "schedule"), catalog.is_table),
)
"""Where a path may stand in a scenario besides those of its named parts, and which text is one."""


@cache
def importers() -> tuple[Any, ...]:
    """What reads the files of other programs."""
    return tuple(catalog.modules("simulator.config.importers").values())


def read_or_import(file: Path, kind: str) -> Document:
    """A file of ours, or what an importer makes of one of another program."""
    document = read(file)
    for importer in importers():
        if importer.recognises(document.data):
            return Document(importer.imported(document.data, kind, str(file)), {(): Mark(str(file), 1, 1)})
    return document


def resolved(document: Document, part: Named) -> Document:
    """The document with the name of a part replaced by the contents of its file, which says the name or else is called by it."""
    place, kind, needed = part.place, part.kind, required(part.schema) if part.schema else None
    value = document.at(place)
    inner = value if isinstance(value, dict) else {}
    name, at = (inner.get("name"), (*place, "name")) if inner else (value, place)
    if "name" in inner and not isinstance(name, str):
        message = f"{'.'.join(map(str, at))} should be a name or a path, not {shown(name)}"
        raise UserError(message, where=document.where(at), hint=f"`trainsim catalog {kind}` lists them")
    if not isinstance(name, str):
        return document
    with placed(document.where(at)):
        try:
            path = beside(name, document.mark(at))
            if catalog.is_path(name) and needed and not catalog.exists(path) and all(key in inner for key in needed):
                return document
            is_file = catalog.is_path(name) or (catalog.written(kind, name) not in catalog.files(kind) and catalog.is_file(path))
            file = catalog.find(kind, path if is_file else name)
        except UserError:
            if needed and all(key in inner for key in needed):
                return document
            if not part.meant:
                raise
            file = catalog.find(kind, part.meant(name))
        base = read_or_import(file, kind)
    named = Document({"name": file.stem, **base.data}, base.marks)
    marks = {at: mark for at, mark in document.under(place).marks.items() if at != ("name",) or at not in base.marks}
    over = Document({key: v for key, v in inner.items() if key != "name"}, marks if inner else {})
    return document.overlaid(named.overlaid(over), place)


def understood(
    document: Document,
    parts: Iterable[Named],
    steps: Iterable[Step],
    schema: type[Declared],
    at: Place = (),
    boundary: Boundary = BARE,
) -> Any:
    """What stands at a place of a document as `schema`, and the document: its named parts replaced by what they stand for, in
    this order, then the steps taken. Raises `UserError` with all that is wrong, in the order of reading.
    """
    faults: list[Fault] = []
    unresolved: list[Place] = []
    for part in parts:
        try:
            document = resolved(document, part)
        except UserError as error:
            faults += error.faults
            unresolved.append(part.place)
            document = document.without(part.place)
    for step in steps:
        try:
            document = step(document)
        except UserError as error:
            faults += error.faults
    value, found = examined(schema, document, at, boundary)
    faults += [fault for place, fault in found if place not in unresolved]
    if faults:
        raise UserError(faults=sorted(faults, key=reading_order))
    return value, document


def reading_order(fault: Fault) -> list[tuple[int, str]]:
    """Faults of a file from its top to its bottom."""
    return [(int(part) if part.isdecimal() and len(part) <= MOST_DIGITS else 0, part) for part in re.split(r"(\d+)", fault.where)]


def located(document: Document) -> Document:
    """The document with the paths of a fabric and of a table as seen from where trainsim runs."""
    for place, is_path in PATHS:
        name, mark = document.at(place), document.mark(place)
        if isinstance(name, str) and is_path(name) and mark:
            document = document.changed(place, beside(name, mark), mark)
    return document
