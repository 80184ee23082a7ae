"""Copies of frozen dataclasses with other values in some fields."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any


class Plain:
    """A base of frozen dataclasses with a `__dict__`, and without `__post_init__` or cached properties.

    Such values are copied by copying their fields, several times as fast as by calling their class.
    """


if TYPE_CHECKING:
    from dataclasses import replace as replace
else:

    def replace(value: Any, /, **changes: Any) -> Any:
        """As `dataclasses.replace`, which is used for all values that are not `Plain`."""
        if not isinstance(value, Plain):
            return dataclasses.replace(value, **changes)
        new = object.__new__(type(value))
        fields = new.__dict__
        fields.update(value.__dict__)
        count = len(fields)
        fields.update(changes)
        if len(fields) != count:
            raise TypeError(f"{type(value).__name__} has not all of the fields {', '.join(changes)}")
        return new
