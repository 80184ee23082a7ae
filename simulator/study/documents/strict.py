"""How the boundary checks: strict schemas, and fields that are text with a grammar of its own.

A schema is a class with annotated fields. `checked` reads what is plainly right; what is not, pydantic judges (`pydantic_twins`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, TypeVar, get_origin, get_type_hints

from ...errors import UserError, either, shown
from ...units import Dimension, parse

Contradiction = tuple[str, str, str]
"""(field, what is wrong, hint): fields that are well formed one by one and do not go together."""


T = TypeVar("T")


class Strict:
    """Unknown keys, wrong types and numbers in quotes are faults. A default stands in the class; nothing changes once made."""

    not_yet: ClassVar[dict[str, str]] = {}
    """Keys of the contract whose time has not come: refused with a reason instead of a guess at a typo."""
    instead: ClassVar[str] = "leave it out"
    """What to do about such a key."""
    before: ClassVar[tuple[str, ...]] = ()
    """Keys of the format that are taken out before the rest is checked."""

    def __init__(self, **values: Any) -> None:
        """Of values that were checked; the others are those of the class."""
        vars(self).update(values)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} does not change: make another")

    def __getattr__(self, name: str) -> Any:
        factory = said(type(self), name, "default_factory") if name in fields(type(self)) else None
        if factory is None:
            raise AttributeError(f"{type(self).__name__} has no {name}")
        return factory()

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return ((name, getattr(self, name)) for name in fields(type(self)))

    @classmethod
    def prepared(cls, data: Any) -> Any:
        """What stands in a file, as it is checked."""
        return data

    def contradictions(self) -> Iterator[Contradiction]:
        """What is wrong with the fields together."""
        return iter(())


@dataclass(frozen=True, slots=True)
class Field:
    """Annotates a field: its limits, its key where that is no name in Python, what it is, what makes its default."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None
    allow_inf_nan: bool | None = None
    alias: str | None = None
    description: str | None = None
    default_factory: Callable[[], Any] | None = None

    def given(self) -> dict[str, Any]:
        """What of it was said."""
        every = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in every.items() if value is not None}

    def limits(self) -> set[str]:
        """What of it some values do not keep to."""
        return self.given().keys() - {"alias", "description", "default_factory"}


def once(found: Callable[[type[Strict]], T]) -> Callable[[type[Strict]], T]:
    """Finds what follows from a schema only once."""
    return cache(found)  # type: ignore[return-value]


@once
def fields(schema: type[Strict]) -> Mapping[str, Any]:
    """The fields of a schema, and what they are annotated with."""
    hints = get_type_hints(schema, include_extras=True)
    return {name: hint for name, hint in hints.items() if get_origin(hint) is not ClassVar}


def said(schema: type[Strict], name: str, what: str) -> Any:
    """What the annotations of a field say about one thing, the last of them first; None if nothing."""
    notes = getattr(fields(schema)[name], "__metadata__", ())
    found = (getattr(note, what) for note in reversed(notes) if isinstance(note, Field))
    return next((one for one in found if one is not None), None)


def required(schema: type[Strict]) -> Iterator[str]:
    """The fields without a default."""
    return (name for name in fields(schema) if not hasattr(schema, name) and said(schema, name, "default_factory") is None)


@dataclass(frozen=True, slots=True)
class Text:
    """Annotates a field that is written as text: a function reads it, or raises `UserError`."""

    read: Callable[[Any], Any]
    about: str
    example: str

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import PydanticCustomError, core_schema

        def checked(value: Any) -> Any:
            try:
                return self.read(value)
            except UserError as error:
                fault = error.faults[0]
                raise PydanticCustomError("refused", "refused", {"fault": fault.message, "hint": fault.hint}) from None

        return core_schema.no_info_plain_validator_function(checked)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {"type": "string", "description": self.about, "examples": [self.example]}


def quantity(dimension: Dimension) -> Text:
    """A number with a unit."""
    return Text(partial(parse, dimension=dimension), f"{dimension.name}, with a unit", dimension.example)


@dataclass(frozen=True, slots=True)
class SoFar:
    """Annotates a field of which only some legal values are modelled yet."""

    values: tuple[str | int | bool, ...]
    what: str = ""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import PydanticCustomError, core_schema

        def checked(value: Any) -> Any:
            if value not in self.values:
                fault = f"{self.what or value} is not modelled yet"
                raise PydanticCustomError("refused", "refused", {"fault": fault, "hint": f"use {self.choices}"})
            return value

        return core_schema.no_info_after_validator_function(checked, handler(source))

    @property
    def choices(self) -> str:
        """The values that are, in words."""
        return either(value if isinstance(value, str) else shown(value) for value in self.values)
