"""The JSON Schema of a dataclass, from the same annotations that its reader checks."""

from __future__ import annotations

from typing import Any

from ..fields import Declared, Form, Length, Limits, form, keys, required
from .reader import CONTAINERS, Boundary

TYPES = {int: "integer", float: "number", bool: "boolean", str: "string"}
BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


def object_schema(of: type[Declared], boundary: Boundary) -> dict[str, Any]:
    """The schema of a mapping that is read as a dataclass."""
    fields = {key: _described(spec.form, boundary) for key, spec in keys(of).items()}
    fields |= {key: _described(form(hint), boundary) for key, hint in of.comments.items()}
    needed = required(of)
    return {
        "type": "object",
        "description": " ".join((of.__doc__ or "").partition("\n\n")[0].split()),
        "properties": fields,
        "additionalProperties": False,
        **({"required": needed} if needed else {}),
    }


def _described(of: Form, boundary: Boundary) -> dict[str, Any]:
    """The schema of a field, with its meaning."""
    schema = _value(of, boundary)
    schema |= {"description": of.meaning} if of.meaning else {}
    return {"anyOf": [schema, {"type": "null"}]} if of.optional else schema


def _value(of: Form, boundary: Boundary) -> dict[str, Any]:
    text, dimension, only = of.text, of.dimension, of.only
    if dimension:
        return {"type": "string", "examples": [dimension.example]}
    if text:
        grammar = boundary[text.kind]
        return {"type": list(grammar.types), "examples": [grammar.example]}
    if of.choices:
        return {"enum": list(of.choices)}
    if only:
        return {"const": only.value}
    if of.record and of.record is of.kind:
        return object_schema(of.kind, boundary)
    if of.origin in CONTAINERS and CONTAINERS[of.origin][1]:
        return {"type": "object", "additionalProperties": _described(of.members[1], boundary)}
    if of.members and of.origin not in CONTAINERS:
        return {"anyOf": [_value(inner, boundary) for inner in of.members]}
    bounds = {BOUNDS[side]: getattr(limits, side) for limits in of.limits if isinstance(limits, Limits) for side in BOUNDS}
    length, counted = of.note(Length), "Items" if of.members else "Length"
    bounds |= {f"min{counted}": length.least, f"max{counted}": length.most} if length else {}
    items = {"items": _described(of.members[0], boundary)} if of.members else {}
    kind = "array" if of.members else "integer" if of.whole else TYPES[of.kind]
    return {"type": kind, **items, **{name: bound for name, bound in bounds.items() if bound is not None}}
