"""Annotations of the fields of a dataclass: limits, units, choices and meaning, declared once for files and Python alike.

A field is one line, such as `tp: Annotated[Degree, "GPUs that share every layer"] = 1`. The reader of files, the JSON Schema, the
messages of faults and `help()` all take it from there. A plain string is the meaning. A `Dimension` says that files write the
value with a unit, and the suffix of that unit is left out of the key: `kernel_s` is `kernel: 5 us` in a file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass
from functools import cache
from inspect import Parameter, Signature
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import shown
from .units import BYTES, BYTES_OR_NONE, BYTES_PER_SECOND, FLOP_PER_SECOND, HERTZ, LATENCY, SECONDS, WATTS, Dimension

Contradiction = tuple[str, str, str]
"""(field, what is wrong, hint) of fields that are each legal but inconsistent with each other."""
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a number."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None


@dataclass(frozen=True, slots=True)
class Length:
    """Bounds of the length of a text or a list."""

    least: int = 0
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number that the simulator calculates with as a float."""


@dataclass(frozen=True, slots=True)
class Key:
    """The key of a field in files, if not the field's name without its unit; empty for a field that files do not have."""

    name: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """Text with a grammar of its own, which `config` supplies under this name: a schedule, a fabric, a bandwidth of links."""

    kind: str


@dataclass(frozen=True, slots=True)
class Only:
    """The only value of a field that is modelled so far."""

    value: int | bool
    what: str


@dataclass(frozen=True, slots=True)
class Later:
    """Planned words of a field that are not modelled yet."""

    words: tuple[str, ...]
    what: str = "{}"


@dataclass(frozen=True, slots=True)
class Noun:
    """The noun for the choices of a field, for the fault of an unknown word."""

    name: str


@dataclass(frozen=True, slots=True)
class Written:
    """The format of a field in a written file, and another field with which this field is written even at its default."""

    format: str = ".4g"
    with_field: str = ""


@dataclass(frozen=True, slots=True)
class Usual:
    """A default that is computed from the other values of a file."""

    of: Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Also:
    """An additional rule for a dataclass, which applies where another dataclass contains it."""

    rule: Callable[[Any], Iterator[Contradiction]]


def once(find: Callable[[T], R]) -> Callable[[T], R]:
    """`cache` for functions of classes, which mypy does not accept as hashable."""
    return cache(find)


NO_KEY = Key()
LEAST_FACTOR = 0.001
Degree = Annotated[int, Limits(ge=1, le=2**20)]
Size = Annotated[int, Limits(ge=1, le=2**24)]
Name = Annotated[str, Length(1, 1000)]
Fraction = Annotated[float, Limits(ge=LEAST_FACTOR, le=1)]
Share = Annotated[float, Limits(gt=0, le=1)]
Bytes = Annotated[float, BYTES]
BytesOrNone = Annotated[float, BYTES_OR_NONE]
BytesPerSecond = Annotated[float, BYTES_PER_SECOND]
Latency = Annotated[float, LATENCY]
FlopPerSecond = Annotated[float, FLOP_PER_SECOND]
Watts = Annotated[float, WATTS]
Hertz = Annotated[float, HERTZ]
Seconds = Annotated[float, SECONDS]


class Declared:
    """A frozen dataclass whose annotations are its schema."""

    __slots__ = ()

    comments: ClassVar[Mapping[str, Any]] = {}
    """Keys of a file that only people read, with their types."""
    not_yet: ClassVar[Mapping[str, str]] = {}
    """Known keys that are not modelled yet: refused with a reason instead of a suggestion for a typo."""
    instead: ClassVar[str] = "leave it out"
    """The hint for such a key."""
    before: ClassVar[tuple[str, ...]] = ()
    """Keys of the format that are removed before all other keys are checked."""

    @classmethod
    def prepared(cls, data: Any) -> Any:
        """The data of a file in the form that is checked."""
        return data

    @classmethod
    def gaps(cls, given: Mapping[str, Any]) -> Iterator[Contradiction]:
        """Faults of fields that may not be left out beside the given values."""
        return iter(())

    def contradictions(self) -> Iterator[Contradiction]:
        """Faults of the fields in combination."""
        return iter(())


def with_word(data: Any, fields_of: Callable[[str], Mapping[str, Any] | None]) -> Any:
    """The data of a field that may be a word or a mapping. A key set beside a word, as in `plan.sharding.group=8` over
    `sharding: zero1`, turns the word into the `name` of a mapping, which is replaced by the fields that `fields_of` returns for
    the word (None for an unknown word)."""
    word = data.get("name") if isinstance(data, dict) else None
    fields = fields_of(word) if isinstance(word, str) else None
    return data if fields is None else {**fields, **{key: data[key] for key in data if key != "name"}}


@dataclass(frozen=True, slots=True)
class Form:
    """An annotation in parts: the type, the notes beside the type, and whether the value may be None."""

    kind: Any
    origin: Any
    """The type without its parameters."""
    optional: bool
    notes: tuple[Any, ...]
    members: tuple[Form, ...]
    """The types inside a container (for a mapping its keys and its values), or the alternatives of a union."""
    choices: tuple[str, ...]
    """The legal words; empty if all words are legal."""
    record: type[Declared] | None
    """The dataclass that the field holds, alone or in a list."""
    meaning: str
    text: Text | None
    dimension: Dimension | None
    usual: Usual | None
    only: Only | None
    written: Written
    whole: bool
    limits: tuple[Limits | Length, ...]
    """The bounds of a number, or of the length of a text or a list."""

    def note(self, annotation: type[T]) -> T | None:
        """The note of a class, the outermost if there are several."""
        return _note(self.notes, annotation)


def _note(notes: tuple[Any, ...], annotation: type[T]) -> T | None:
    return next((note for note in reversed(notes) if isinstance(note, annotation)), None)


@once
def form(hint: Any) -> Form:
    """The parts of an annotation."""
    notes: tuple[Any, ...] = ()
    optional = False
    while True:
        parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else ()
        if get_origin(hint) is Annotated:
            notes, hint = (*hint.__metadata__, *notes), hint.__origin__
        elif type(None) in parts:
            hint, optional = Union[tuple(part for part in parts if part is not type(None))], True  # noqa: UP007
        else:
            break
    origin = get_origin(hint) or hint
    choices = get_args(hint) if origin is Literal else ()
    members = () if choices else tuple(form(inner) for inner in get_args(hint) if inner is not Ellipsis)
    record = hint if isinstance(hint, type) and issubclass(hint, Declared) else None
    return Form(
        hint,
        origin,
        optional,
        notes,
        members,
        choices,
        record=members[0].record if origin in (list, tuple) and members else record,
        meaning=_note(notes, str) or "",
        text=_note(notes, Text),
        dimension=_note(notes, Dimension),
        usual=_note(notes, Usual),
        only=_note(notes, Only),
        written=_note(notes, Written) or Written(),
        whole=_note(notes, Whole) is not None,
        limits=tuple(note for note in notes if isinstance(note, (Limits, Length))),
    )


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """The declaration of a field of a dataclass."""

    name: str
    key: str
    """The key in a file; empty if files do not have the field."""
    form: Form
    default: Any
    """`MISSING` if there is none."""
    required: bool
    """Whether a file must state the field."""


@once
def specs(owner: type[Declared]) -> tuple[FieldSpec, ...]:
    """The fields of a dataclass, as declared."""
    hints = get_type_hints(owner, include_extras=True)
    every: Iterable[dataclasses.Field[Any]] = dataclasses.fields(owner)  # type: ignore[arg-type]
    found = []
    for one in every:
        of, default = form(hints[one.name]), one.default if one.default_factory is MISSING else one.default_factory()
        key, unit = of.note(Key), of.dimension
        name = key.name if key else one.name.removesuffix(unit.suffix) if unit else one.name
        found.append(FieldSpec(one.name, name, of, default, default is MISSING and not of.usual and name != ""))
    return tuple(found)


@once
def keys(owner: type[Declared]) -> Mapping[str, FieldSpec]:
    """The fields that files have, by key."""
    return {spec.key: spec for spec in specs(owner) if spec.key}


def required(owner: type[Declared]) -> list[str]:
    """The keys without a default."""
    return [key for key, spec in keys(owner).items() if spec.required]


def limits_words(field: Form) -> str:
    """The bounds of a number, in words."""
    words = ("at least", "above", "at most", "below")
    bounds = ((limits.ge, limits.gt, limits.le, limits.lt) for limits in field.limits if isinstance(limits, Limits))
    return ", ".join(f"{side} {bound}" for each in bounds for side, bound in zip(words, each, strict=True) if bound is not None)


def type_words(field: Form) -> str:
    """The type of a field, in words: its choices, its unit or its bounds."""
    dimension, only = field.dimension, field.only
    if field.choices:
        kind = f"one of {', '.join(field.choices)}"
    elif dimension:
        kind = f"in {dimension.name}"
    elif field.origin in (Union, UnionType):
        kind = " or ".join(map(type_words, field.members))
    else:
        names = {int: "whole number", float: "number", bool: "true or false", str: "text"}
        kind = names.get(field.kind, getattr(field.kind, "__name__", str(field.origin)))
    parts = [
        kind,
        f"only {shown(only.value)} so far" if only else limits_words(field),
        "or None" if field.optional else "",
    ]
    return ", ".join(filter(None, parts))


class _Documentation:
    """The docstring of a class with the meaning of its fields, composed on access."""

    def __init__(self, about: str | None) -> None:
        self.about = about or ""

    def __get__(self, instance: object, owner: type[Declared]) -> str:
        lines = [self.about, "", "Fields:"]
        for spec in specs(owner):
            default = "" if spec.default is MISSING else f"; default {spec.default!r}"
            lines += [f"    {spec.name} ({type_words(spec.form)}{default})"]
            lines += [f"        {spec.form.meaning}"] if spec.form.meaning else []
        return "\n".join(lines)


class _Signature:
    """The signature of a dataclass without the notes beside the types, which `_Documentation` gives in words."""

    def __get__(self, instance: object, owner: type[Declared]) -> Signature:
        defaults = {one.name: Parameter.empty if one.default is MISSING else one.default for one in specs(owner)}
        return Signature([Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=value) for name, value in defaults.items()])


def documented(owner: type[T]) -> type[T]:
    """The class, with the meaning of its fields shown by `help()`."""
    owner.__doc__ = _Documentation(owner.__doc__)  # type: ignore[assignment]
    owner.__signature__ = _Signature()  # type: ignore[attr-defined]
    return owner
