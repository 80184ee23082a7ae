"""Outcomes of long validations, saved as they come: one JSON object a line, by the scenario and by the version of the program.

A validation that was stopped continues with the same file. The version is a hash of the code and of all data that predictions
read, so that outcomes of another version are never used. An incomplete line is removed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import atomic, check_folder, decoded, not_written, parsed_json, read_bounded
from ..study.program_version import version

MOST_BYTES = 2**28
DIGITS = 16
KEYS = ("version", "scenario", "outcome")
BEGIN = '{"version": "'


class SavedOutcomes:
    """The outcomes in a file, to which others are added. A scenario is identified by its text."""

    def __init__(self, path: Path) -> None:
        check_folder(path)
        self._path = path
        lines = _lines(path) if path.exists() else ()
        self._known = {line["scenario"]: line["outcome"] for line in lines if line["version"] == version()}

    def get(self, scenario: str) -> Any:
        """The outcome of a scenario by this version of the program, or None."""
        return self._known.get(_key(scenario))

    def add(self, scenario: str, outcome: Any) -> None:
        """Appends the outcome of a scenario to the file."""
        line = json.dumps(dict(zip(KEYS, (version(), _key(scenario), outcome), strict=True)))
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
        except OSError as error:
            raise not_written(self._path, error) from None


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The complete lines of a file of outcomes. An incomplete last line is removed from the file."""
    text = decoded(read_bounded(path, MOST_BYTES, "a file of outcomes"), path, "name another file")
    whole, _, rest = text.rpartition("\n")
    for number, line in enumerate(whole.splitlines() if whole else (), 1):
        where = f"{path}:{number}"
        found = parsed_json(line, where) if line.startswith(BEGIN) else None
        if not isinstance(found, dict) or tuple(found) != KEYS or not isinstance(found["scenario"], str):
            raise _foreign(where)
        yield found
    if rest and rest[: len(BEGIN)] != BEGIN[: len(rest)]:
        raise _foreign(str(path))
    if rest:
        with atomic(path) as part:
            part.write_text(text.removesuffix(rest), encoding="utf-8")


def _foreign(where: str) -> UserError:
    return UserError("no outcome of a validation", where=where, hint="--save takes a new file, or one that it wrote")


def _key(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:DIGITS]
