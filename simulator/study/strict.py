"""How the boundary checks: strict schemas, and fields that are text with a grammar of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError, core_schema

from ..errors import UserError, either, shown
from ..units import Dimension, parse

Contradiction = tuple[str, str, str]
"""(field, what is wrong, hint): fields that are well formed one by one and do not go together."""


class Strict(BaseModel):
    """Unknown keys, wrong types and numbers in quotes are faults."""

    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=(), defer_build=True)
    """Checks are built when they are first used, which takes a while: so defaults are made by `model_construct`, without any."""
    not_yet: ClassVar[dict[str, str]] = {}
    """Keys of the contract whose time has not come: refused with a reason instead of a guess at a typo."""

    def contradictions(self) -> Iterator[Contradiction]:
        """What is wrong with the fields together."""
        return iter(())

    @model_validator(mode="after")
    def _agrees(self) -> Strict:
        found = list(self.contradictions())
        if found:
            raise PydanticCustomError("contradictions", "contradictions", {"found": found})
        return self


@dataclass(frozen=True, slots=True)
class Text:
    """Annotates a field that is written as text: a function reads it, or raises `UserError`."""

    read: Callable[[Any], Any]
    about: str
    example: str

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
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
