"""JSON that others wrote, parsed: whatever is wrong with it is the input's fault, told with its place where there is one."""

from __future__ import annotations

import json
from typing import Any

from ..errors import UserError


def parsed(text: str | bytes, where: str) -> Any:
    """The value of a JSON text; `where` stands for its file in messages."""
    try:
        return json.loads(text)
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
