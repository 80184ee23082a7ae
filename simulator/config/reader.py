"""Reading dataclasses from documents: values checked against their annotations, and all faults reported with their places.

Two readers share one walk over the fields. `_Reader` takes the contents of a file and makes the dataclass. `_Checker` takes a
dataclass made in Python and only checks the values: there a quantity is a number in the unit of its field's name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, is_dataclass
from typing import Any, TypeVar

from ..errors import Fault, UserError, did_you_mean, either, shown
from ..fields import Also, Contradiction, Declared, Form, Later, Length, Limits, Noun, form, keys, limits_words, specs
from ..units import checked, counted, parse
from .document import Document, Place, dotted, place_of
from .suggestions import meant, plain, true_or_false, unknown_key, whole_number

MOST_FAULTS_WITH_HINTS = 1000
"""Largest number of faults of a file with a hint at the intended key."""
T = TypeVar("T", bound=Declared)


@dataclass(frozen=True, slots=True)
class Grammar:
    """A kind of text: a function that reads the text, or raises `UserError`."""

    read: Callable[[Any], Any]
    example: str
    types: tuple[str, ...] = ("string",)
    """Types of the text in a JSON Schema."""


Grammars = Mapping[str, Grammar]
"""Grammars by the name in a `Text` annotation. Layers above the dataclasses supply the grammars."""
NO_GRAMMARS: Grammars = {}
WRONG: Any = object()
"""Placeholder for a wrong value whose fault was noted."""


def validated(schema: type[T], document: Document, at: Place = (), grammars: Grammars = NO_GRAMMARS) -> T:
    """The data at a place of a document as `schema`. Raises `UserError` with every fault and its place."""
    value: T
    value, found = examined(schema, document, at, grammars)
    if found:
        raise UserError(faults=[fault for _, fault in found])
    return value


def examined(
    schema: type[Declared], document: Document, at: Place = (), grammars: Grammars = NO_GRAMMARS
) -> tuple[Any, list[tuple[Place, Fault]]]:
    """The data at a place as `schema`, or a partial value, and every fault with its place."""
    reader = _Reader(schema, document, at, grammars)
    return reader.record(schema, document.at(at), at), reader.faults


def faults_in(value: Declared, document: Document, at: Place, grammars: Grammars) -> list[Fault]:
    """Faults of a dataclass made in Python; `document` has the marks of values that were read from files before."""
    checker = _Checker(type(value), document, at, grammars)
    checker.record(type(value), value, at)
    return [fault for _, fault in checker.faults]


class _Reader:
    """Reads the values of one document, and notes every fault."""

    def __init__(self, schema: type[Declared], document: Document, at: Place, grammars: Grammars) -> None:
        self.schema, self.document, self.at, self.grammars = schema, document, at, grammars
        self.faults: list[tuple[Place, Fault]] = []

    def fault(self, place: Place, message: str, hint: str) -> Any:
        """Notes a fault of the value at a place, and returns `WRONG`."""
        self.faults.append((place, Fault(f"{dotted(place)}{message}", hint, self.document.where(place))))
        return WRONG

    def record(self, schema: type[Declared], data: Any, place: Place, field: Form | None = None) -> Any:
        """The dataclass that a mapping describes."""
        data, fields = schema.prepared(data), keys(schema)
        if not isinstance(data, dict):
            return self.fault(place, f" should be a mapping, not {shown(data)}", self._how(field or form(schema)))
        before, given = len(self.faults), dict[str, Any]()
        for key, spec in fields.items():
            left_out = key not in data or (data[key] is None and spec.form.usual is not None)
            if not left_out:
                given[spec.name] = self.value(spec.form, data[key], (*place, key))
            elif spec.required:
                self.fault((*place, key), " is missing", self._how(spec.form))
        self._extra_keys(schema, data, place)
        if len(self.faults) > before or self._contradict(schema.gaps(given), place):
            return WRONG
        for spec in specs(schema):
            if spec.form.usual and spec.name not in given:
                given[spec.name] = spec.form.usual.of(given)
        made = schema(**given)
        also = field.note(Also) if field else None
        found = [*made.contradictions(), *(also.rule(made) if also else ())]
        return WRONG if self._contradict(found, place) else made

    def _extra_keys(self, schema: type[Declared], data: Mapping[Any, Any], place: Place) -> None:
        for key in data:
            if not isinstance(key, str):
                self.fault((*place, key), f": {shown(key)} cannot be a key", "keys are words")
            elif key in schema.comments:
                self.value(form(schema.comments[key]), data[key], (*place, key))
            elif key not in keys(schema) and len(self.faults) >= MOST_FAULTS_WITH_HINTS:
                self.fault((*place, key), ": unknown key", "")
            elif key not in keys(schema):
                self.fault((*place, key), *unknown_key(self.schema, schema, (*place, key)[len(self.at) :], self.at))

    def _contradict(self, found: Iterable[Contradiction], place: Place) -> bool:
        """Notes inconsistent fields, and returns whether there were any."""
        before = len(self.faults)
        for name, message, hint in found:
            at = (*place, *place_of(name))
            where = self.document.where_of_several(at, message)
            self.faults.append((at, Fault(f"{dotted(at)}{message}", hint, where, between=True)))
        return len(self.faults) > before

    def value(self, field: Form, data: Any, place: Place) -> Any:
        """The value for an annotation, checked for its type, its limits and its choices."""
        if data is None and field.optional:
            return None
        try:
            if field.dimension:
                return self.quantity(data, field.dimension)
            if field.text:
                return self.grammars[field.text.kind].read(data)
        except UserError as error:
            return self.fault(place, f": {error.faults[0].message}", error.faults[0].hint)
        if data is None:
            return self.fault(place, " has no value", "give it one, or leave it out")
        data = self.whole(data) if not field.members and _kind(field) is int else data
        value = self._typed(field, data, place)
        return value if value is not WRONG and self._within(field, data, place) else WRONG

    quantity = staticmethod(parse)
    """The function that reads a number with a unit."""

    def choice(self, field: Form, data: Any) -> str | None:
        """The choice that a word means."""
        return meant(data, field.choices)

    @staticmethod
    def whole(data: Any) -> Any:
        """A number that was written with a point or an exponent, such as 1.4e12, as the whole number that it is."""
        return int(data) if isinstance(data, float) and data.is_integer() and abs(data) <= EXACT else data

    lists: Any = list
    """The type, or types, accepted as a list."""

    def _typed(self, field: Form, data: Any, place: Place) -> Any:
        """The value converted to the type of its field."""
        if field.record and field.record is field.kind:
            return self.record(field.kind, data, place, field)
        if field.choices:
            return self._chosen(field, data, place)
        if field.origin in CONTAINERS:
            return self._container(field, data, place)
        if field.members:
            fitting = next((one for one in field.members if _takes(one, data)), None)
            words = next((one.choices for one in field.members if one.choices), ())
            others = [WORDS[_kind(one)] for one in field.members if not one.choices]
            if not fitting and words:
                return self.fault(place, f" should be {either((*words, *others))}, not {shown(data)}", field.meaning)
            if fitting and fitting.choices:
                return self._chosen(fitting, data, place, others)
            return self.value(fitting or field.members[0], data, place)
        if not _takes(field, data):
            return self._mistyped(field, data, place)
        if field.kind is float:
            return self._float(field, data, place)
        if field.kind is str:
            with suppress(UnicodeEncodeError):
                data.encode()
                return data
            return self.fault(place, f" should be text in UTF-8, not {shown(data)}", self._how(field))
        return data

    def _chosen(self, field: Form, data: Any, place: Place, others: Sequence[str] = ()) -> Any:
        """The choice that a word means; `others` are what may stand there in place of a word."""
        word = data if isinstance(data, str) and data in field.choices else self.choice(field, data)
        return self._no_choice(field, data, place, others) if word is None else word

    def _mistyped(self, field: Form, data: Any, place: Place) -> Any:
        kind = _kind(field)
        hint = self._whole_number(field, data) if kind is int else true_or_false(data) if kind is bool else ""
        return self.fault(place, f" should be {WORDS[kind]}, not {shown(data)}", hint or self._how(field))

    def _whole_number(self, field: Form, data: Any) -> str:
        """The whole numbers next to a value, or the limit of the field that they exceed."""
        hint = whole_number(data)
        numbers = map(int, re.findall(r"[0-9]+", hint))
        broken = (_beyond(limits, number) for number in numbers for limits in field.limits)
        return next((legal for _, legal in filter(None, broken)), hint)

    def _how(self, field: Form) -> str:
        """How to write a field: an example, or its meaning with its keys or its limits."""
        if field.text or field.dimension:
            example = self.grammars[field.text.kind].example if field.text else field.dimension and field.dimension.example
            return f'write it like "{example}"'
        listed = "its keys:" if field.record is field.kind else "a list of mappings with the keys"
        keys_or_limits = f"{listed} {', '.join(keys(field.record))}" if field.record else limits_words(field)
        return "; ".join(filter(None, (field.meaning, keys_or_limits)))

    def _float(self, field: Form, data: Any, place: Place) -> Any:
        """A finite number, converted to a float where the field holds a float."""
        if isinstance(data, float) and not math.isfinite(data):
            return self.fault(place, f" should be a finite number, not {shown(data)}", self._how(field))
        try:
            return float(data)
        except OverflowError:
            return self.fault(place, f": {shown(data)} is too {'large' if data > 0 else 'small'}", limits_words(field))

    def _container(self, field: Form, data: Any, place: Place) -> Any:
        """A list converted to a tuple or a list, or a mapping converted to a dict."""
        into, mapped = CONTAINERS[field.origin]
        accepted = dict if mapped else self.lists
        if not isinstance(data, accepted):
            return self._mistyped(field, data, place)
        if mapped:
            for key in data:
                if not isinstance(key, str):
                    return self.fault((*place, key), f": {shown(key)} cannot be a key", "keys are words")
        inner, pairs = field.members[-1], data.items() if mapped else enumerate(data)
        values = {key: self.value(inner, value, (*place, key)) for key, value in pairs}
        if any(value is WRONG for value in values.values()):
            return WRONG
        return values if mapped else into(values.values())

    def _no_choice(self, field: Form, data: Any, place: Place, others: Sequence[str]) -> Any:
        word, later = shown(data).strip("'"), field.note(Later) or Later(())
        coming = {plain(known): known for known in later.words}
        if plain(word) in coming:
            named = later.what.format(coming[plain(word)])
            return self.fault(place, f": {named} is not modelled yet", f"use {either(field.choices)}")
        noun = field.note(Noun)
        none = f"no {noun.name}" if noun else "none of the choices"
        said = true_or_false(data) if WORDS[bool] in others else ""
        return self.fault(place, f": {shown(data)} is {none}", said or ", or ".join((did_you_mean(word, field.choices), *others)))

    def _within(self, field: Form, data: Any, place: Place) -> bool:
        """Whether data satisfies the limits and choices noted beside its type."""
        for limits in field.limits:
            broken = _beyond(limits, data)
            if broken:
                self.fault(place, f": {shown(data)} is {broken[0]}", broken[1])
                return False
        if field.only and data != field.only.value:
            self.fault(place, f": {field.only.what} is not modelled yet", f"use {shown(field.only.value)}")
            return False
        return True


class _Checker(_Reader):
    """Checks a dataclass that was made in Python."""

    quantity = staticmethod(checked)

    def choice(self, field: Form, data: Any) -> str | None:
        """None: values made in Python are used unchanged."""
        return None

    @staticmethod
    def whole(data: Any) -> Any:
        """Unchanged: values made in Python are used as they are."""
        return data

    lists = (list, tuple)

    def record(self, schema: type[Declared], data: Any, place: Place, field: Form | None = None) -> Any:
        if not isinstance(data, schema):
            message = f" is {shown(data)}, not an object of class {schema.__name__}"
            return self.fault(place, message, f"sim.{schema.__name__}(...) makes one")
        before = len(self.faults)
        for key, spec in keys(schema).items():
            value = getattr(data, spec.name)
            if value is not spec.default:
                self.value(spec.form, value, (*place, key))
        return WRONG if len(self.faults) > before or self._contradict(data.contradictions(), place) else data


CONTAINERS: Mapping[Any, tuple[Any, bool]] = {
    list: (list, False),
    tuple: (tuple, False),
    dict: (dict, True),
    Mapping: (dict, True),
}
"""The type into which a container is read, and whether the container is a mapping."""
EXACT = 2**53
"""Size up to which every whole number is one of floating point, so that none stands for another."""
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", list: "a list", dict: "a mapping"}


def _kind(field: Form) -> Any:
    """The type of data that an annotation accepts."""
    if field.choices:
        return str
    if field.origin in CONTAINERS:
        return dict if CONTAINERS[field.origin][1] else list
    return dict if is_dataclass(field.kind) else int if field.whole else field.kind


def _takes(field: Form, data: Any) -> bool:
    """Whether data has the type that an annotation accepts. A whole number is accepted as a number; `true` is not."""
    kind = _kind(field)
    if field.record and isinstance(data, field.record):
        return True
    if kind in (int, float):
        return isinstance(data, int if kind is int else (int, float)) and not isinstance(data, bool)
    return isinstance(data, (list, tuple) if kind is list else kind)


def _beyond(limits: Limits | Length, value: Any) -> tuple[str, str] | None:
    """The limit that a number, or the length of a text or list, exceeds, and the nearest legal value."""
    if isinstance(limits, Length):
        noun = "character" if isinstance(value, str) else "value"
        if len(value) < limits.least:
            return "too short" if value else "empty", f"at least {counted(limits.least, noun)}"
        if limits.most is not None and len(value) > limits.most:
            return "too long", f"at most {counted(limits.most, noun)}"
        return None
    if limits.ge is not None and value < limits.ge:
        return "too small", f"at least {limits.ge:.12g}"
    if limits.gt is not None and value <= limits.gt:
        return "too small", f"more than {limits.gt:.12g}"
    if limits.le is not None and value > limits.le:
        return "too large", f"at most {limits.le:.12g}"
    if limits.lt is not None and value >= limits.lt:
        return "too large", f"less than {limits.lt:.12g}"
    return None
