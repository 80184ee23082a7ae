"""The table of a sweep in SQLite: an outcome for each scenario, by its hash."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields

from ..config.document import Document
from ..errors import InvariantBroken
from ..study.grid import Grid
from ..study.program_version import version
from ..study.sweep import TOO_LONG, Effort, Outcome
from ._result_store import Table, opened_store
from ._scenario_key import ScenarioKeys

SQL_TYPES = {"str": "TEXT NOT NULL", "str | None": "TEXT", "float | None": "REAL", "int | None": "INTEGER"}
TABLE = Table(
    "sweep",
    {
        "version": "TEXT NOT NULL",
        "fields": "TEXT NOT NULL",
        **{one.name: SQL_TYPES[str(one.type)] for one in fields(Outcome)},
    },
    better=f"status = '{TOO_LONG}'",
)
Simulated = Callable[[Iterator[tuple[int, Document]]], Iterator[tuple[int, Outcome]]]
"""A function that simulates points, a few ahead, and yields their numbers and outcomes as they come."""


class StoredSweep:
    """The outcomes of points of a grid, in a file. Only the numbers of their rows are kept in memory."""

    def __init__(self, path: str, found: Grid, numbers: range, effort: Effort, *, resume: bool, merge: bool) -> None:
        self._found, self._numbers, self._effort = found, numbers, effort
        self._rows = array("q", [0]) * len(numbers)
        self._keys = ScenarioKeys()
        self._under_way: dict[str, list[int]] = {}
        self._store = opened_store(path, TABLE, resume=resume, merge=merge)

    def fill(self, simulated: Simulated) -> None:
        """Simulates every point that is not in the file yet, and those that were refused as too long if long work is done."""
        keys: dict[int, str] = {}
        for number, outcome in simulated(self._missing(keys)):
            key = keys.pop(number)
            point = self._found.fields(self._found.point(number))
            self._store.add([(key, version(), json.dumps(point), *asdict(outcome).values())])
            for same in self._under_way.pop(key):
                self._know(same, key)

    def _missing(self, keys: dict[int, str]) -> Iterator[tuple[int, Document]]:
        for number in self._numbers:
            document = self._found.document(self._found.point(number))
            key = self._keys.key(document, self._effort.steps)
            stored = self._store.number(key)
            if stored is not None and not (self._effort.long and self._at(stored).status == TOO_LONG):
                self._know(number, key)
            elif key in self._under_way:  # two points may be the same scenario, written in two ways
                self._under_way[key].append(number)
            else:
                keys[number], self._under_way[key] = key, [number]
                yield number, document

    def _know(self, number: int, key: str) -> None:
        stored = self._store.number(key)
        if stored is None:
            raise InvariantBroken(f"the outcome of point {number} was committed and is gone")
        self._rows[self._numbers.index(number)] = stored

    def _at(self, row: int) -> Outcome:
        return Outcome(*self._store.at(row)[2:])

    def result(self, number: int) -> Outcome:
        """The outcome of a point."""
        return self._at(self._rows[self._numbers.index(number)])

    def close(self) -> None:
        self._store.close()
