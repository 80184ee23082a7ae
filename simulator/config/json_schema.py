"""The JSON Schema of a dataclass, from the same annotations that its reader checks."""

from __future__ import annotations

from typing import Any

from ..fields import Declared, Form, Length, Limits, form, keys, required
from .reader import CONTAINERS, Grammars

TYPES = {int: "integer", float: "number", bool: "boolean", str: "string"}
BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


def object_schema(owner: type[Declared], grammars: Grammars) -> dict[str, Any]:
    """The schema of a mapping that is read as a dataclass."""
    fields = {key: _described(spec.form, grammars) for key, spec in keys(owner).items()}
    fields |= {key: _described(form(hint), grammars) for key, hint in owner.comments.items()}
    needed = required(owner)
    return {
        "type": "object",
        "description": " ".join((owner.__doc__ or "").partition("\n\n")[0].split()),
        "properties": fields,
        "additionalProperties": False,
        **({"required": needed} if needed else {}),
    }


def _described(field: Form, grammars: Grammars) -> dict[str, Any]:
    """The schema of a field, with its meaning."""
    schema = _value(field, grammars)
    schema |= {"description": field.meaning} if field.meaning else {}
    return {"anyOf": [schema, {"type": "null"}]} if field.optional else schema


def _value(field: Form, grammars: Grammars) -> dict[str, Any]:
    text, dimension, only = field.text, field.dimension, field.only
    if dimension:
        return {"type": "string", "examples": [dimension.example]}
    if text:
        grammar = grammars[text.kind]
        return {"type": list(grammar.types), "examples": [grammar.example]}
    if field.choices:
        return {"enum": list(field.choices)}
    if only:
        return {"const": only.value}
    if field.record and field.record is field.kind:
        return object_schema(field.kind, grammars)
    if field.origin in CONTAINERS and CONTAINERS[field.origin][1]:
        return {"type": "object", "additionalProperties": _described(field.members[1], grammars)}
    if field.members and field.origin not in CONTAINERS:
        return {"anyOf": [_value(inner, grammars) for inner in field.members]}
    bounds = {BOUNDS[side]: getattr(limits, side) for limits in field.limits if isinstance(limits, Limits) for side in BOUNDS}
    length, counted = field.note(Length), "Items" if field.members else "Length"
    bounds |= {f"min{counted}": length.least, f"max{counted}": length.most} if length else {}
    items = {"items": _described(field.members[0], grammars)} if field.members else {}
    kind = "array" if field.members else "integer" if field.whole else TYPES[field.kind]
    return {"type": kind, **items, **{name: bound for name, bound in bounds.items() if bound is not None}}
