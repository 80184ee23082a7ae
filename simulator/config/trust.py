"""Code that a scenario names: refused where a file names it, unless files are trusted; imported once where it is trusted.

What was typed (`--set plan.schedule=mine.py:order`) or written in Python has no line in any file, and is trusted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..errors import Fault, UserError, shown
from . import catalog, user_code
from .document import Document, Mark, Place, beside, placed

if TYPE_CHECKING:
    from .user_code import Code

FIELDS: tuple[Place, ...] = (("plan", "schedule"), ("cluster", "shape"))
"""What may name code. Nothing else that stands in a file is imported: `catalog.module` imports only what the catalog has."""
REFUSED = "read it first; if you trust it, add --trust (in Python trust=True)"


class Trust:
    """Whether files may name code, and what was imported so far."""

    def __init__(self, files: bool = False) -> None:
        self.files = files
        self.refused = False
        self._imported: dict[str, Code] = {}

    def refuse(self, document: Document, fields: Iterable[Place] = FIELDS) -> Document:
        """The document, if nothing in it is code that may not be imported; else nothing is imported any more."""
        found = {place: document.at(place) for place in fields}
        faults = [
            Fault(f"{'.'.join(map(str, place))}: {shown(name)} is code, which a file may not run", REFUSED, document.where(place))
            for place, name in found.items()
            if catalog.is_code(name) and not self.files and _of_file(document.mark(place))
        ]
        self.refused |= bool(faults)
        if faults:
            raise UserError(faults=faults)
        return document

    def admit(self, document: Document) -> Document:
        """The document with code in place of its names; as it is if any was refused."""
        for place in FIELDS:
            name, mark = document.at(place), document.mark(place)
            if not self.refused and catalog.is_code(name):
                document = document.changed(place, self._import(document, place), mark or Mark(""))
        return document

    def _import(self, document: Document, place: Place) -> Code:
        where, colon, attribute = str(document.at(place)).rpartition(":")
        name = (beside(where, document.mark(place)) if where.endswith(".py") else where) + colon + attribute
        if name not in self._imported:
            with placed(document.where(place)):
                try:
                    self._imported[name] = user_code.imported(name)
                except UserError as error:
                    raise _in_field(error, place) from None
        return self._imported[name]


def _of_file(mark: Mark | None) -> bool:
    return mark is not None and mark.line > 0


def _in_field(error: UserError, place: Place) -> UserError:
    """What went wrong with code, told of the field that names it."""
    fault = error.faults[0]
    at = f"{fault.where}: " if fault.where else ""
    return UserError(f"{'.'.join(map(str, place))}: {at}{fault.message}", hint=fault.hint)
