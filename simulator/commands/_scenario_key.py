"""The hash of a scenario: of everything that its names refer to, of the files that it names, and of the version of the program.

A result of another version is never used. Where a solver searches for the schedule, the version of the solver is a part of the
hash. Names are resolved once for all scenarios that contain them. Code is found as an import finds it, and read without being
run; the files that the code itself imports or opens are not part of the hash.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from importlib.machinery import PathFinder
from importlib.metadata import version as version_of
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..config import catalog, user_code
from ..config.document import Document, beside, dotted
from ..config.named_parts import CODE, MAY_BE_PATHS, resolved
from ..config.scenario import NAMED
from ..config.shipped_fits import PROFILE
from ..errors import UserError
from ..files import read_bounded
from ..study.program_version import version

MOST_BYTES = 2**28
SOLVER = "ortools"
"""The package that searches for schedules with a certificate: without it they are the best of some known orders."""
OF_NAMES = tuple(dict.fromkeys(part.place[0] for part in NAMED))


class ScenarioKeys:
    """Hashes of scenarios before their names are resolved."""

    def __init__(self) -> None:
        self._of_names: dict[str, str] = {}

    def key(self, document: Document, steps: int | None = None) -> str:
        """The hash of a scenario that is simulated for so many steps; None for as many as the scenario itself needs."""
        named, rest = _part(document, named=True), _part(document, named=False)
        places = sorted((str(place), str(mark)) for place, mark in named.marks.items())
        text = json.dumps([named.data, places], sort_keys=True, default=repr)
        if text not in self._of_names:
            for part in NAMED:
                named = resolved(named, part)
            self._of_names[text] = _digest(named)
        parts = (version(), self._of_names[text], _digest(rest), *([] if steps is None else [f"steps {steps}"]))
        return sha256(" ".join(parts).encode()).hexdigest()


def _part(document: Document, *, named: bool) -> Document:
    """The top-level fields of a document that may be names (`named`), or the others."""
    data = {name: value for name, value in document.data.items() if (name in OF_NAMES) == named}
    return Document(data, {place: mark for place, mark in document.marks.items() if place[:1] and place[0] in data})


def _digest(document: Document) -> str:
    data = json.dumps(document.data, sort_keys=True, default=repr)
    return sha256(f"{data} {of_files(document)}".encode()).hexdigest()


def of_files(document: Document) -> str:
    """The hash of the files that fields of a document name (tables, shares, fabrics, profiles and code), and of its solver."""
    digest = sha256(_solver_of(document.at(("plan", "schedule"))).encode())
    for name, path in _files(document):
        content = read_bounded(path, MOST_BYTES, "a file of a scenario") if Path(path).is_file() else b""
        digest.update(f"{name} {sha256(content).hexdigest()} ".encode())
    return digest.hexdigest()


def _solver_of(schedule: Any) -> str:
    """The version of the solver that searches for a schedule of the catalog; empty for other schedules."""
    if not isinstance(schedule, str) or catalog.is_code(schedule) or catalog.is_table(schedule):
        return ""
    with suppress(UserError):  # there is no such schedule
        if hasattr(catalog.module("schedules", schedule), "certificate"):
            return f"{SOLVER} {version_of(SOLVER) if find_spec(SOLVER) else 'is not there'}"
    return ""


def _files(document: Document) -> Iterator[tuple[str, str]]:
    """A label and the path of every file that a field names, relative to the file that contains the name, as for the reader."""
    for place, is_path in {**MAY_BE_PATHS, PROFILE: bool}.items():
        name = document.at(place)
        if isinstance(name, str) and is_path(name):
            path = beside(name, document.mark(place))
            yield f"{dotted(place)}: {path}", path
    for place in CODE:
        name = document.at(place)
        if not catalog.is_code(name):
            continue
        where, _ = user_code.divided(name)
        if where.endswith(".py"):
            path = beside(where, document.mark(place))
            yield f"{dotted(place)}: {path}", path
        else:
            yield from ((f"{dotted(place)}: {where}", path) for path in _sources(where))


def _sources(module: str) -> Iterator[str]:
    """The files of a module and of its parent packages, searched in the current folder first, as in an import."""
    names, folders = module.split("."), [str(Path().resolve()), *sys.path]
    if not all(map(str.isidentifier, names)):
        return
    for number, name in enumerate(names):
        spec = PathFinder.find_spec(name, folders)
        if spec is None and not number:
            with suppress(ValueError):
                spec = find_spec(name)  # by a finder without folders, such as that of a package installed for editing
        if spec is None:
            return
        if spec.has_location and spec.origin:
            yield spec.origin
        folders = list(spec.submodule_search_locations or ())
