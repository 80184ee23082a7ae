"""The hash of a scenario: of all that its names stand for, of the files that it names, and of the version of the program.

A result of another version is never taken. What names stand for is looked up once for all scenarios that name the same.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from ..config.document import Document
from ..config.named_parts import located, resolved
from ..config.scenario import NAMED
from ..files import read_bounded
from ..study.program_version import version

MOST_BYTES = 2**28
OF_NAMES = tuple(dict.fromkeys(part.place[0] for part in NAMED))


class ScenarioKeys:
    """Hashes of scenarios before their names are resolved."""

    def __init__(self) -> None:
        self._of_names: dict[str, str] = {}

    def key(self, document: Document) -> str:
        """The hash of a scenario."""
        named, rest = _part(document, named=True), _part(document, named=False)
        places = sorted((str(place), str(mark)) for place, mark in named.marks.items())
        text = json.dumps([named.data, places], sort_keys=True, default=repr)
        if text not in self._of_names:
            for part in NAMED:
                named = resolved(named, part)
            self._of_names[text] = _digest(named)
        return sha256(f"{version()} {self._of_names[text]} {_digest(rest)}".encode()).hexdigest()


def _part(document: Document, *, named: bool) -> Document:
    """The fields at the top of a document that may be names, or the others."""
    data = {name: value for name, value in document.data.items() if (name in OF_NAMES) == named}
    return Document(data, {place: mark for place, mark in document.marks.items() if place[:1] and place[0] in data})


def _digest(document: Document) -> str:
    data = located(document).data
    digest = sha256(json.dumps(data, sort_keys=True, default=repr).encode())
    for file in sorted(_files(data)):
        digest.update(read_bounded(file, MOST_BYTES, "a file of a scenario"))
    return digest.hexdigest()


def _files(value: Any) -> set[str]:
    """The files that a value names, such as a table of a schedule, a file of shares or a module of the user."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return set().union(*map(_files, value))
    path = value.partition(".py:")[0] + ".py" if isinstance(value, str) and ".py:" in value else value
    return {path} if isinstance(path, str) and Path(path).suffix and Path(path).is_file() else set()
