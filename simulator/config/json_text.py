"""JSON that others wrote, parsed: whatever is wrong with it is the input's fault, told with its place where there is one."""

from __future__ import annotations

import json
from typing import Any

from ..errors import UserError, shown


def parsed(text: str | bytes, where: str, *, unique: bool = False) -> Any:
    """The value of a JSON text; `where` stands for its file in messages. With `unique` no key may stand twice in an object."""
    try:
        return json.loads(text, object_pairs_hook=_unique) if unique else json.loads(text)
    except UserError as error:
        raise UserError(error.faults[0].message, where=where, hint=error.hint) from None
    except json.JSONDecodeError as error:
        at = f"{where}:{error.lineno}:{error.colno}"
        raise UserError(f"not JSON: {error.msg}", where=at, hint="whole JSON, as the program that wrote it left it") from None
    except RecursionError:
        raise UserError("not JSON that can be read: nested too deeply", where=where, hint="a few levels at most") from None
    except UnicodeDecodeError:
        raise UserError("not a text file", where=where, hint="JSON is written in UTF-8") from None
    except ValueError:  # what remains: Python refuses to convert thousands of digits
        hint = "numbers of a few dozen digits at most"
        raise UserError("not JSON that can be read: a number of thousands of digits", where=where, hint=hint) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise UserError(f"{shown(twice)} stands twice in one object", hint="remove one of the two")
    return found
