"""Schemas as pydantic knows them, which judges what is not plainly right, and writes the JSON Schema of a scenario."""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, create_model, model_validator
from pydantic import Field as PydanticField
from pydantic_core import PydanticCustomError

from .strict import Field, Strict, fields, once


class Judge(BaseModel):
    """A schema's twin, whose verdict is the schema itself."""

    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=(), defer_build=True)
    of: ClassVar[type[Strict]] = Strict

    @model_validator(mode="before")
    @classmethod
    def _prepared(cls, data: Any) -> Any:
        return cls.of.prepared(data)

    @model_validator(mode="after")
    def _agrees(self) -> Any:
        made = self.of(**{name: getattr(self, name) for name in self.model_fields_set})
        found = list(made.contradictions())
        if found:
            raise PydanticCustomError("contradictions", "contradictions", {"found": found})
        return made


@once
def judge(schema: type[Strict]) -> type[Judge]:
    """The twin of a schema, of the same name and with the same fields."""
    base = type(schema.__name__, (Judge,), {"of": schema, "__module__": schema.__module__})
    twins: dict[str, Any] = {name: (_twin(hint), _default(schema, name)) for name, hint in fields(schema).items()}
    return create_model(schema.__name__, __base__=base, __module__=schema.__module__, __doc__=schema.__doc__, **twins)


def rebuilt(schema: type[Strict]) -> type[Judge]:
    """The twin, complete with all that it holds: not every pydantic completes what is only a default before it is written out."""
    for inner in (schema, *_within(schema)):
        judge(inner).model_rebuild(force=True)
    return judge(schema)


def _within(hint: Any) -> Iterator[type[Strict]]:
    """Schemas in the fields of a schema, or in an annotation, and in those."""
    if isinstance(hint, type) and issubclass(hint, Strict):
        for field in fields(hint).values():
            yield from _within(field)
        yield hint
    else:
        for inner in get_args(hint):
            yield from _within(inner)


def _default(schema: type[Strict], name: str) -> Any:
    value = getattr(schema, name, ...)
    return judge(type(value)).model_construct() if isinstance(value, Strict) else value


def _twin(hint: Any) -> Any:
    """An annotation with twins for schemas, and pydantic's words for our limits."""
    kind, inner = get_origin(hint), get_args(hint)
    if kind is Annotated:
        notes = [PydanticField(**note.given()) if isinstance(note, Field) else note for note in hint.__metadata__]
        return Annotated[(_twin(inner[0]), *notes)]
    if kind in (Union, UnionType):
        return Union[tuple(map(_twin, inner))]  # noqa: UP007
    if kind in (list, dict):
        return kind[tuple(map(_twin, inner))]
    return judge(hint) if isinstance(hint, type) and issubclass(hint, Strict) else hint
