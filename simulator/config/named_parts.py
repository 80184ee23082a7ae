"""Names and paths in a document, replaced by what they stand for: files of the catalog, or one's own beside the document."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from ..errors import Fault, UserError, shown
from ..fields import Declared
from . import catalog
from .document import Document, Place, beside, placed
from .reader import BARE, Boundary, examined
from .yaml_source import read

MOST_DIGITS = 18
"""Of a number of a line or a column."""
Step = Callable[[Document], Document]
"""A document with something in it replaced by what it stands for; raises `UserError` for what stands for nothing."""
PATHS: tuple[tuple[Place, Callable[[str], bool]], ...] = (
    (("cluster", "fabric"), catalog.is_path),
    (("plan", "schedule"), catalog.is_table),
)
"""Where a path may stand in a scenario besides those of its named parts, and which text is one."""


def resolved(
    document: Document,
    place: Place,
    kind: str,
    needed: Iterable[str] | None = None,
    meant: Callable[[str], str] | None = None,
) -> Document:
    """The document with a name, a path or a mapping with a name replaced by the contents of its file.

    What a file describes is called by the file's `name`, or else as the file is.
    A mapping that has all keys that are `needed` may go by a name that no file has. `meant` is asked what else a name may mean.
    """
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
            if not meant:
                raise
            file = catalog.find(kind, meant(name))
        base = read(file)
    named = Document({"name": file.stem, **base.data}, base.marks)
    marks = {at: mark for at, mark in document.under(place).marks.items() if at != ("name",) or at not in base.marks}
    over = Document({key: v for key, v in inner.items() if key != "name"}, marks if inner else {})
    return document.overlaid(named.overlaid(over), place)


def understood(
    document: Document,
    names: Iterable[tuple[Place, Step]],
    paths: Iterable[Step],
    schema: type[Declared],
    at: Place = (),
    boundary: Boundary = BARE,
) -> Any:
    """What stands at a place of a document as `schema`, and the document: its names, in this order, and then its paths replaced
    by what they stand for. Raises `UserError` with all that is wrong, in the order of reading.
    """
    faults: list[Fault] = []
    unresolved: list[Place] = []
    for place, resolve in names:
        try:
            document = resolve(document)
        except UserError as error:
            faults += error.faults
            unresolved.append(place)
            document = document.without(place)
    for locate in paths:
        try:
            document = locate(document)
        except UserError as error:
            faults += error.faults
    value, found = examined(schema, document, at, boundary)
    faults += [fault for place, fault in found if place not in unresolved]
    if faults:
        raise UserError(faults=sorted(faults, key=_reading_order))
    return value, document


def _reading_order(fault: Fault) -> list[tuple[int, str]]:
    """Faults of a file from its top to its bottom."""
    return [(int(part) if part.isdecimal() and len(part) <= MOST_DIGITS else 0, part) for part in re.split(r"(\d+)", fault.where)]


def located(document: Document) -> Document:
    """The document with the paths of a fabric and of a table as seen from where trainsim runs."""
    for place, is_path in PATHS:
        name, mark = document.at(place), document.mark(place)
        if isinstance(name, str) and is_path(name) and mark:
            document = document.changed(place, beside(name, mark), mark)
    return document
