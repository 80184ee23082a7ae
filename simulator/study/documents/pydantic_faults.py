"""What pydantic finds, as faults in plain words: the place, the offending value, and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from ...errors import Fault, did_you_mean, either, shown
from .document import Document, Place
from .other_names import OPTIONS, OTHER_NAMES, plain
from .pydantic_twins import Judge, judge
from .strict import SoFar, Strict, Text

MOST_HINTED = 1000
"""Faults of a file for which it is worked out what was meant: nobody reads more."""


def judged(schema: type[Strict], document: Document, at: Place = ()) -> tuple[Any, list[tuple[Place, Fault]]]:
    """The data at a place as `schema`, or None and every fault by its place."""
    try:
        return judge(schema).model_validate(document.at(at)), []
    except ValidationError as error:
        details = [_Detail(detail, judge(schema), document, at) for detail in error.errors(include_url=False)]
        found = [found for detail in details[:MOST_HINTED] for found in detail.faults()]
        return None, found + [found for detail in details[MOST_HINTED:] for found in detail.faults(hinted=False)]


class _Detail:
    """One finding of pydantic's."""

    def __init__(self, detail: ErrorDetails, schema: type[Judge], document: Document, at: Place) -> None:
        self.kind, self.value, self.context = detail["type"], detail.get("input"), detail.get("ctx", {})
        self.schema, self.document, self.message = schema, document, detail["msg"]
        self.within: Place = tuple(detail["loc"])
        self.place: Place = (*at, *self.within)
        self.field = _field(schema, self.within)

    def faults(self, *, hinted: bool = True) -> Iterator[tuple[Place, Fault]]:
        """The finding as one fault, or as several where fields contradict each other; with or without looking for what was meant
        by an unknown key."""
        if self.kind == "contradictions":
            for name, message, hint in self.context["found"]:
                place = (*self.place, *(int(part) if part.isdecimal() else part for part in name.split(".") if part))
                text = f"{_dotted(place)}{message}"
                yield place, Fault(text, hint, self.document.where_of_several(place, message))
            return
        message, hint = self._words() if hinted or self.kind != "extra_forbidden" else (": unknown key", "")
        yield self.place, Fault(f"{_dotted(self.place)}{message}", hint, self.document.where(self.place))

    def _words(self) -> tuple[str, str]:
        """What is wrong, after the name of the field, and a hint."""
        if self.kind == "extra_forbidden":
            return self._unknown()
        if self.kind == "invalid_key":
            return f": {shown(self.value)} cannot be a key", "keys are words"
        if self.kind == "missing":
            return " is missing", _how(self.field)
        if self.kind == "refused":
            return f": {self.context['fault']}", self.context["hint"]
        if self.value is None:
            return " has no value", "give it one, or leave it out"
        if self.kind == "literal_error":
            return self._no_choice()
        for bound, side, words in _BOUNDS:
            if bound in self.context:
                return f": {shown(self.value)} is {side}", f"{words} {self.context[bound]:.12g}"
        wanted, hint = _wanted(self.kind, self.value)
        return f" should be {wanted or self.message}, not {shown(self.value)}", hint or _how(self.field)

    def _no_choice(self) -> tuple[str, str]:
        word, choices = shown(self.value).strip("'"), _choices(self.field)
        later = {plain(legal): legal for legal in _legal(self.field) if legal not in choices}
        if plain(word) in later:
            return f": {later[plain(word)]} is not modelled yet", f"use {either(choices)}"
        return f": {shown(self.value)} is none of the choices", did_you_mean(word, choices)

    def _unknown(self) -> tuple[str, str]:
        key, owner = str(self.place[-1]), _model(_annotation(self.schema, self.within[:-1]))
        if key in owner.of.not_yet:
            return f": {owner.of.not_yet[key]}", owner.of.instead
        if len(self.within) == 1 and plain(key) in OPTIONS:
            return ": unknown key", f"it is an option of the command: {OPTIONS[plain(key)]}"
        known = [*_fields(owner), *owner.of.before]
        paths, meant = _shortest_paths(self.schema), OTHER_NAMES.get(plain(key), key)
        meant = meant if meant in paths or meant in known else key
        elsewhere = None if meant in known else paths.get(meant)
        if elsewhere:
            return ": unknown key", f"did you mean {_dotted(elsewhere)!r}?"
        return ": unknown key", did_you_mean(meant, known)


_BOUNDS = (
    ("ge", "too small", "at least"),
    ("gt", "too small", "more than"),
    ("le", "too large", "at most"),
    ("lt", "too large", "less than"),
    ("min_length", "empty", "at least this many characters:"),
    ("max_length", "too long", "at most this many characters:"),
)
_THOUSANDS = re.compile(r"[0-9]{1,3}(,[0-9]{3})+")
_KILO = re.compile(r"([0-9]{1,6}) ?[kK]")
_SAYS = {**dict.fromkeys(("yes", "on", "y", 1), "true"), **dict.fromkeys(("no", "off", "n", 0), "false")}


def _wanted(kind: str, value: Any) -> tuple[str, str]:
    """What a field of some type should be, and the legal value that is nearest to what it is."""
    if kind.startswith("int"):
        return "a whole number", _whole(value)
    if kind.startswith("bool"):
        word = _SAYS.get(value.lower() if isinstance(value, str) else value) if isinstance(value, (str, int)) else None
        return "true or false", f"write {word}" if word else ""
    words = {
        "float_type": "a number",
        "finite_number": "a finite number",
        "string_type": "text",
        "string_unicode": "text in UTF-8",
        "list_type": "a list",
    }
    return words.get(kind, "a mapping" if kind in ("model_type", "dict_type") else ""), ""


def _whole(value: Any) -> str:
    """The whole numbers next to what somebody wrote."""
    if isinstance(value, str) and "," in value and not _THOUSANDS.fullmatch(value.strip()):
        parts = [part.strip() for part in value.split(",") if part.strip()]
        return f"one value at a time: write {either(parts)}" if parts and all(map(str.isdecimal, parts)) else ""
    if isinstance(value, str) and (thousands := _KILO.fullmatch(value.strip())):
        return f"write {int(thousands[1]) * 1024}"
    text = value.replace(",", "").replace("_", "").strip() if isinstance(value, str) else ""
    if text.isdecimal() and len(text) <= 15:
        return f"write {int(text)}, without quotes" if text == value else f"write {int(text)}"
    if isinstance(value, float) and abs(value) < 2**53:
        return f"write {either(sorted({max(1, int(value)), max(1, -int(-value // 1))}))}"
    return "int(...) makes it one" if hasattr(value, "__index__") and not isinstance(value, bool) else ""


def _how(field: FieldInfo | None) -> str:
    """How to write a field: by example, by its description, by its keys or by its limits."""
    if field is None:
        return ""
    described = [inner.description for inner in (field, *_metadata(field, FieldInfo)) if inner.description]
    bounds = [bound for inner in (field, *_metadata(field, FieldInfo)) for bound in inner.metadata]
    least = [
        f"at least {bound.ge}" if hasattr(bound, "ge") else f"above {bound.gt}" for bound in bounds if _has(bound, "ge", "gt")
    ]
    most = [f"at most {bound.le}" if hasattr(bound, "le") else f"below {bound.lt}" for bound in bounds if _has(bound, "le", "lt")]
    by_example = [f'write it like "{text.example}"' for text in _metadata(field, Text)]
    keys = ", ".join(_fields(_model(field.annotation)))
    listed = "a list of mappings with the keys" if get_origin(field.annotation) is list else "its keys:"
    return (by_example or described or [", ".join([*least, *most]) or (f"{listed} {keys}" if keys else "")])[0]


def _has(bound: Any, *names: str) -> bool:
    return any(hasattr(bound, name) for name in names)


def _choices(field: FieldInfo | None) -> list[str]:
    """The legal words of a field; those that are modelled, if some are not yet."""
    if field is None:
        return []
    return [str(value) for sofar in _metadata(field, SoFar) for value in sofar.values] or _legal(field)


def _legal(field: FieldInfo | None) -> list[str]:
    """All words that the contract has for a field."""
    annotations = (field.annotation, *get_args(field.annotation)) if field else ()
    return [str(word) for a in annotations if get_origin(a) is Literal for word in get_args(a)]


def _metadata(field: FieldInfo, kind: type[Any]) -> Iterator[Any]:
    inner = [getattr(a, "__metadata__", ()) for a in get_args(field.annotation)]
    return (m for m in (*field.metadata, *(m for metadata in inner for m in metadata)) if isinstance(m, kind))


def _dotted(place: Place) -> str:
    return ".".join(str(part) for part in place)


def _field(schema: type[Judge], place: Place) -> FieldInfo | None:
    """The field at a place of a schema."""
    if not place or isinstance(place[-1], int):
        return None
    owner = _model(_annotation(schema, place[:-1]))
    return next((f for name, f in owner.model_fields.items() if (f.alias or name) == place[-1]), None)


def _annotation(schema: Any, place: Place) -> Any:
    """The annotation at a place of a schema."""
    for part in place:
        if isinstance(part, int):
            schema = next(iter(get_args(schema)), Any)
        else:
            field = _field(_model(schema), (part,))
            schema = field.annotation if field else Any
    return schema


def _model(annotation: Any) -> type[Judge]:
    """The schema class in an annotation; `Judge` itself if there is none."""
    if isinstance(annotation, type) and issubclass(annotation, Judge):
        return annotation
    return next((m for m in map(_model, get_args(annotation)) if m is not Judge), Judge)


def _fields(model: type[Judge]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


@cache
def _shortest_paths(model: type[Judge]) -> Mapping[str, tuple[str, ...]]:
    """The shortest path to a field of every name that is below a schema."""
    found: dict[str, tuple[str, ...]] = {}
    for path in sorted(_paths(model), key=len):
        found.setdefault(path[-1], path)
    return found


def _paths(model: type[Judge]) -> Iterator[tuple[str, ...]]:
    """Every field below a schema, except in lists."""
    for name, field in model.model_fields.items():
        yield (field.alias or name,)
        if get_origin(field.annotation) is not list:
            yield from ((field.alias or name, *path) for path in _paths(_model(field.annotation)))
