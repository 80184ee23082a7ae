"""Plain data and where each value of it came from; documents laid over one another."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UserError
from . import catalog

MOST_DIGITS = 9
"""Of an index of a list."""
Place = tuple[str | int, ...]
"""Where a value stands in a document: the keys and indices from the root."""


class Mark(NamedTuple):
    """A position in a file; without a line, a setting of the command line; without a file, a value from Python."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Document:
    """Plain data, and the mark of every place in it."""

    data: Any
    marks: Mapping[Place, Mark] = field(default_factory=dict)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Document:
        """Values from Python, which have no place in any file."""
        return cls(dict(data), dict.fromkeys(_places(data), Mark("")))

    def mark(self, place: Place) -> Mark | None:
        """The nearest mark: of the value itself, or of what holds it."""
        for length in range(len(place), -1, -1):
            if place[:length] in self.marks:
                return self.marks[place[:length]]
        return None

    def where(self, place: Place) -> str:
        """The nearest mark as text, for messages."""
        return str(self.mark(place) or "")

    def where_of_several(self, place: Place, message: str) -> str:
        """Where fields go wrong that are legal one by one: at the settings that `message` speaks of, or else at this place."""
        mark, words = self.mark(place), set(re.findall(r"\w+", message))
        if mark is None or not mark.line:
            return str(mark or "")
        settings = {mark: None for p, mark in self.marks.items() if p and not mark.line and mark.file and str(p[-1]) in words}
        return ", ".join(map(str, settings)) or str(mark)

    def at(self, place: Place) -> Any:
        """The value at a place, or None."""
        value = self.data
        for part in place:
            if isinstance(value, list) and isinstance(part, int):
                value = value[part] if part < len(value) else None
            else:
                value = value.get(part) if isinstance(value, dict) else None
        return value

    def under(self, place: Place) -> Document:
        """What stands at a place, as a document of its own."""
        marks = {p[len(place) :]: mark for p, mark in self.marks.items() if p[: len(place)] == place}
        return Document(self.at(place), marks)

    def overlaid(self, over: Document, at: Place = ()) -> Document:
        """This document with `over` written over it at a place: mappings merge, everything else is replaced."""
        marks = {**self.marks, **{(*at, *place): mark for place, mark in over.marks.items()}}
        return Document(_assigned(self.data, at, over.data, at), marks)

    def changed(self, place: Place, value: Any, mark: Mark) -> Document:
        """This document with a value of another origin at a place."""
        new = Document(value, dict.fromkeys(_places(value), mark))
        return self.overlaid(new, tuple(int(part) if _is_index(part) else part for part in place))

    def without(self, place: Place) -> Document:
        """This document with nothing at a place."""
        return Document(_without(self.data, place), self.marks)


def _is_index(part: str | int) -> bool:
    """Whether a part of a place that somebody typed counts the entries of a list."""
    return str(part).isdecimal() and len(str(part)) <= MOST_DIGITS


def _without(data: dict[str, Any], place: Place) -> dict[str, Any]:
    head, rest = str(place[0]), place[1:]
    return {key: _without(value, rest) if key == head else value for key, value in data.items() if rest or key != head}


def _places(value: Any) -> Iterator[Place]:
    """Every place in a value that holds something itself: where mappings merge, only what they bring."""
    if isinstance(value, Mapping) and value:
        yield from ((key, *place) for key, inner in value.items() for place in _places(inner))
        return
    yield ()
    if isinstance(value, list):
        yield from ((i, *place) for i, inner in enumerate(value) for place in _places(inner))


def _assigned(data: Any, place: Place, value: Any, whole: Place) -> Any:
    """`data` with `value` laid over what stands at a place."""
    if not place:
        return _merged(data, value)
    head, rest = place[0], place[1:]
    if isinstance(data, list):
        if not isinstance(head, int) or head >= len(data):
            raise UserError(f"no {'.'.join(map(str, whole))}", hint=f"the list there has {len(data)} entries, counted from 0")
        return [*data[:head], _assigned(data[head], rest, value, whole), *data[head + 1 :]]
    if data is None and isinstance(head, int):
        name = ".".join(str(part) for part in whole[: len(whole) - len(place)])
        raise UserError(f"no {'.'.join(map(str, whole))}", hint=f"there is no list yet: write all of it, such as {name}=[...]")
    inner = _named(data)
    return {**inner, str(head): _assigned(inner.get(str(head)), rest, value, whole)}


def _merged(base: Any, over: Any) -> Any:
    if not isinstance(over, dict):
        return over
    inner = _named(base)
    return {**inner, **{key: _merged(inner.get(key), value) for key, value in over.items()}}


def _named(data: Any) -> dict[str, Any]:
    """A mapping to write keys into: a name becomes a mapping that starts from it."""
    return data if isinstance(data, dict) else {"name": data} if isinstance(data, str) else {}


@contextmanager
def placed(where: str) -> Iterator[None]:
    """Faults that have no place of their own get this one."""
    try:
        yield
    except UserError as error:
        raise UserError(faults=[replace(fault, where=fault.where or where) for fault in error.faults]) from None


def beside(name: str, mark: Mark | None) -> str:
    """A relative path as seen from the file that holds it; as it is if it is only found from the current folder."""
    if mark is None or not mark.line:
        return name
    path = str(Path(mark.file).parent / name)
    return name if catalog.is_file(name) and not catalog.is_file(path) else path
