"""Named parts of a document: names and paths replaced by the contents of their files, and names of code by imported objects.

Files are those of the catalog, or the user's own beside the document. Code named by a file is refused unless files are trusted;
trusted code is imported once. A name that was typed (`--set plan.schedule=mine.py:order`) or written in Python has no line in a
file, and is trusted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import Fault, UserError, shown
from ..fields import Declared, required
from . import catalog, token_shares, user_code
from .document import Document, Mark, Place, beside, dotted, placed, read
from .reader import NO_GRAMMARS, Grammars, examined

MOST_DIGITS = 18
"""Most digits of a line or column number."""
CODE: tuple[Place, ...] = (("plan", "schedule"), ("cluster", "shape"))
"""Fields that may name code. Other fields lead to no import: `catalog.module` imports only modules of the catalog."""

MAY_BE_PATHS: Mapping[Place, Callable[[str], bool]] = {
    ("cluster", "fabric"): catalog.is_path,
    ("plan", "schedule"): catalog.is_table,
    ("plan", "moe", "routing"): token_shares.is_file,
}
"""Fields that may name a file of data, and the function that tells its path from other words."""


class Named(NamedTuple):
    """A part of a scenario that may be a name, a path or a mapping with a name."""

    place: Place
    kind: str
    """The kind of the part in the catalog."""
    schema: type[Declared] | None = None
    """The dataclass of the part. A mapping with all required keys needs no file to start from; its name is then only a label."""
    resolve_alias: Callable[[str], str] | None = None
    """Function from other names of the part to its name in the catalog."""

    def described_by(self, inner: Mapping[str, Any]) -> bool:
        """Whether a mapping has all required keys of the part; an explicit graph needs no inside of a node."""
        return self.schema is not None and {*required(self.schema)} <= {*self.schema.prepared(inner)}


def read_or_import(file: Path, kind: str) -> Document:
    """The document of a file, translated by an importer if another program wrote the file."""
    document = read(file)
    for importer in catalog.modules("simulator.config.importers").values():
        if importer.recognises(document.data):
            return Document(importer.imported(document.data, kind, str(file)), {(): Mark(str(file), 1, 1)})
    return document


def names_a_file(kind: str, name: str, path: str) -> bool:
    """Whether a name is the path of a user's file, which is at `path` from the current folder, and not of the catalog."""
    return catalog.is_path(name) or (catalog.written(kind, name) not in catalog.files(kind) and catalog.is_file(path))


def resolved(document: Document, part: Named) -> Document:
    """The document with a named part replaced by the contents of its file. The default name of the part is the file's stem."""
    place, kind = part.place, part.kind
    value = document.at(place)
    inner = value if isinstance(value, dict) else {}
    name, at = (inner.get("name"), (*place, "name")) if inner else (value, place)
    if ("name" in inner and not isinstance(name, str)) or (isinstance(name, str) and not name.strip()):
        message = f"{dotted(at)} should be a name or a path, not {shown(name)}"
        raise UserError(message, where=document.where(at), hint=f"`trainsim catalog {kind}` lists them")
    if not isinstance(name, str):
        return document
    with placed(document.where(at)):
        try:
            path = beside(name, document.mark(at))
            if catalog.is_path(name) and not catalog.exists(path) and part.described_by(inner):
                return document
            file = catalog.find(kind, path if names_a_file(kind, name, path) else name)
        except UserError:
            if part.described_by(inner):
                return document
            if not part.resolve_alias:
                raise
            file = catalog.find(kind, part.resolve_alias(name))
        base = read_or_import(file, kind)
    mark = document.marks.get(at)
    named = Document({"name": file.stem}, {("name",): mark} if inner and mark else {}).overlaid(base)
    return document.overlaid(named.overlaid(document.under(place).without(("name",))) if inner else named, place)


def read_with_parts(
    document: Document,
    parts: Iterable[Named],
    steps: Iterable[Callable[[Document], Document]],
    schema: type[Declared],
    at: Place = (),
    grammars: Grammars = NO_GRAMMARS,
) -> Any:
    """The value at a place of a document as `schema`, and the document after all replacements: first the named parts in this
    order, then each of the steps, which replace further values. Raises `UserError` with all faults, in the order of reading."""
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
    value, found = examined(schema, document, at, grammars)
    if faults or found:
        faults += [fault for place, fault in found if place not in unresolved]
        raise UserError(faults=sorted(faults, key=reading_order))
    return value, document


def reading_order(fault: Fault) -> list[tuple[int, str]]:
    """Sort key that orders the faults of a file from its top to its bottom."""
    return [(int(part) if part.isdecimal() and len(part) <= MOST_DIGITS else 0, part) for part in re.split(r"(\d+)", fault.where)]


def located(document: Document) -> Document:
    """The document with the paths of a fabric, a schedule table and shares of tokens relative to the current folder."""
    for place, is_path in MAY_BE_PATHS.items():
        name, mark = document.at(place), document.mark(place)
        if isinstance(name, str) and is_path(name) and mark:
            document = document.changed(place, beside(name, mark), mark)
    return document


@dataclass(slots=True)
class Trust:
    """Whether files may name code, whether names outside of files were typed by the user, and the code imported so far."""

    files: bool = False
    typed: bool = True
    refused: bool = False
    imported: dict[str, user_code.Code] = field(default_factory=dict)

    def refuse(self, document: Document, fields: Iterable[Place] = CODE) -> None:
        """Raises `UserError` if a field names code that may not be imported. After a refusal nothing more is imported."""
        faults: list[Fault] = []
        for place in fields:
            name, mark = document.at(place), document.mark(place)
            if catalog.is_code(name) and not self.files and (not self.typed or (mark and mark.line)):
                hint = (
                    "read it first; if you trust it, add --trust (in Python trust=True)" if self.typed else "name one that ships"
                )
                faults.append(Fault(f"{dotted(place)}: {shown(name)} is code, which a file may not run", hint, str(mark or "")))
        if faults:
            self.refused = True
            raise UserError(faults=faults)

    def admit(self, document: Document) -> Document:
        """The document with imported code in place of its names, or the unchanged document if any code was refused."""
        self.refuse(document)
        for place in CODE:
            name = document.at(place)
            if not self.refused and catalog.is_code(name):
                document = document.changed(place, self._import(name, document, place), document.mark(place) or Mark(""))
        return document

    def _import(self, name: str, document: Document, place: Place) -> user_code.Code:
        where, attribute = user_code.divided(name)
        where = beside(where, document.mark(place)) if where.endswith(".py") else where
        name = f"{where}:{attribute}" if attribute else where
        if name not in self.imported:
            try:
                self.imported[name] = user_code.imported(name)
            except UserError as error:
                fault = error.faults[0]
                message = f"{dotted(place)}: {fault.where}{': ' if fault.where else ''}{fault.message}"
                raise UserError(message, where=document.where(place), hint=fault.hint) from None
        return self.imported[name]
