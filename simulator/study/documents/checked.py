"""What stands in a document as a schema, if it is plainly right: every value of just the type that is asked for, within limits.

Whatever is not, pydantic judges: it may still be right, and if it is wrong it is told in words. Loading pydantic takes as long
as all the rest of a short command, so nothing here does. What is read here pydantic would take too, and for the same value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from ...errors import Fault, UserError
from .document import Document, Place
from .strict import Field, SoFar, Strict, Text, fields, once, required, said

Reader = Callable[[Any], Any]
"""A value of a file as what it stands for, or `_NotPlain`."""


MOST_EXACT = 2**53
"""Beyond this not every whole number is a float."""


class _NotPlain(Exception):
    pass


def validated(schema: type[Strict], document: Document, at: Place = ()) -> Any:
    """The data at a place of a document as `schema`, or a `UserError` with every fault and its place."""
    value, found = examined(schema, document, at)
    if found:
        raise UserError(faults=[fault for _, fault in found])
    return value


def examined(schema: type[Strict], document: Document, at: Place = ()) -> tuple[Any, list[tuple[Place, Fault]]]:
    """The data at a place as `schema`, or None and every fault by its place."""
    value = plainly(schema, document.at(at))
    if value is not None:
        return value, []
    from .pydantic_faults import judged

    return judged(schema, document, at)


def plainly(schema: type[Strict], data: Any) -> Strict | None:
    """Data as `schema`, or None if it is not plainly right; so too where somebody's own code that checks it goes wrong."""
    try:
        return _mapping(schema, data)
    except (_NotPlain, ValueError, AssertionError):
        return None


def _mapping(schema: type[Strict], data: Any) -> Strict:
    data, known = schema.prepared(data), _by_key(schema)
    if type(data) is not dict or not data.keys() <= known.keys() or not _needed(schema) <= data.keys():
        raise _NotPlain
    made = schema(**{name: read(data[key]) for key, (name, read) in known.items() if key in data})
    if next(made.contradictions(), None):
        raise _NotPlain
    return made


@once
def _by_key(schema: type[Strict]) -> dict[str, tuple[str, Reader]]:
    return {said(schema, name, "alias") or name: (name, _reader(hint)) for name, hint in fields(schema).items()}


@once
def _needed(schema: type[Strict]) -> frozenset[str]:
    return frozenset(said(schema, name, "alias") or name for name in required(schema))


def _reader(hint: Any) -> Reader:
    """What reads a field with such an annotation."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind is Annotated:
        return _annotated(_reader(inner[0]), hint.__metadata__)
    if kind in (Union, UnionType):
        return partial(_the_one, tuple(map(_reader, inner)))
    if kind is Literal:
        return partial(_word, inner)
    if kind is list:
        return partial(_list, _reader(inner[0]))
    if kind is dict:
        return partial(_mapping_of, _reader(inner[1]))
    if kind is float:
        return _number
    if kind is str:
        return _words
    if kind in (int, bool, type(None)):
        return partial(_exactly, kind)
    return partial(_mapping, kind) if isinstance(kind, type) and issubclass(kind, Strict) else _unknown


def _annotated(read: Reader, notes: Sequence[Any]) -> Reader:
    for note in notes:
        if isinstance(note, Text):
            read = partial(_text, note.read)
        elif isinstance(note, SoFar):
            read = partial(_so_far, read, note.values)
        elif isinstance(note, Field):
            read = partial(_limited, read, note) if note.limits() else read
    return read


def _limited(read: Reader, limits: Field, data: Any) -> Any:
    value = read(data)
    wrong = (
        (limits.ge is not None and not value >= limits.ge)
        or (limits.gt is not None and not value > limits.gt)
        or (limits.le is not None and not value <= limits.le)
        or (limits.lt is not None and not value < limits.lt)
        or (limits.min_length is not None and len(value) < limits.min_length)
        or (limits.max_length is not None and len(value) > limits.max_length)
        or (limits.allow_inf_nan is False and not math.isfinite(value))
        or limits.pattern is not None  # which Python and pydantic do not quite read alike
    )
    if wrong:
        raise _NotPlain
    return value


def _text(read: Reader, data: Any) -> Any:
    try:
        return read(data)
    except UserError:
        raise _NotPlain from None


def _so_far(read: Reader, values: tuple[Any, ...], data: Any) -> Any:
    value = read(data)
    if value not in values:
        raise _NotPlain
    return value


def _the_one(readers: tuple[Reader, ...], data: Any) -> Any:
    """What the only reader that takes a value makes of it: where several do, pydantic weighs them."""
    taken = []
    for read in readers:
        with suppress(_NotPlain):
            taken.append(read(data))
    if len(taken) != 1:
        raise _NotPlain
    return taken[0]


def _word(words: tuple[Any, ...], data: Any) -> Any:
    if type(data) is not str or data not in words:
        raise _NotPlain
    return data


def _list(read: Reader, data: Any) -> list[Any]:
    return [read(value) for value in _exactly(list, data)]


def _mapping_of(read: Reader, data: Any) -> dict[str, Any]:
    return {_words(key): read(value) for key, value in _exactly(dict, data).items()}


def _words(data: Any) -> str:
    """Text; but not halves of characters, as bytes become that are no Unicode."""
    text: str = _exactly(str, data)
    text.encode()
    return text


def _number(data: Any) -> float:
    if type(data) is not float and (type(data) is not int or abs(data) > MOST_EXACT):
        raise _NotPlain
    return float(data)


def _exactly(kind: type[Any], data: Any) -> Any:
    if type(data) is not kind:
        raise _NotPlain
    return data


def _unknown(data: Any) -> Any:
    raise _NotPlain
