"""The table of a sweep in SQLite, into which each outcome is committed as it comes: one row for each hash of a scenario.

The hash is that of the scenario with all that its names stand for, of the files that it names, and of the version of the program:
an outcome of another version is never taken. A new file is made under another name, with an empty table, and renamed. From then
on every row is a transaction of its own, so that a table always holds whole rows, however the program ends.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

from ..config.document import Document
from ..config.named_parts import located, resolved
from ..config.scenario import NAMED
from ..errors import OutputFailed, SimulatorError, UserError
from ..files import atomic, named, read_bounded
from ..study.sweep import COLUMNS, Outcome
from ._saved_outcomes import version

MOST_BYTES = 2**28
SQL_TYPES = {"str": "TEXT NOT NULL", "str | None": "TEXT", "float | None": "REAL", "int | None": "INTEGER"}
SCHEMA = (
    "CREATE TABLE sweep (hash TEXT PRIMARY KEY, version TEXT NOT NULL, fields TEXT NOT NULL, "
    + ", ".join(f"{one.name} {SQL_TYPES[str(one.type)]}" for one in fields(Outcome))
    + ")"
)
INSERT = f"INSERT OR REPLACE INTO sweep VALUES ({', '.join('?' * (3 + len(COLUMNS)))})"
SELECT = f"SELECT {', '.join(COLUMNS)} FROM sweep WHERE hash = ?"


class SweepStore:
    """The outcomes in a file. This process alone writes to it."""

    def __init__(self, path: str, *, resume: bool) -> None:
        self._path = Path(path)
        if self._path.exists() and not resume:
            raise UserError(f"{named(path)} exists", hint="--resume goes on with it; or name another file")
        with self._errors():
            if not self._path.exists():
                with atomic(path) as temporary, closing(sqlite3.connect(temporary)) as new:
                    new.execute(SCHEMA)
            self._database = sqlite3.connect(path, isolation_level=None, timeout=0)
            self._database.execute("PRAGMA trusted_schema = OFF")
            self._database.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._database.execute("BEGIN EXCLUSIVE")
            stored = self._database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
            self._database.execute("COMMIT")
        if stored != [(SCHEMA,)]:
            raise UserError(f"{named(path)} is no table of a sweep of this version", hint="name another file")

    def get(self, key: str) -> Outcome | None:
        """The outcome of a scenario, or None. A simulation that took too long for its limits is done anew."""
        with self._errors():
            row = self._database.execute(SELECT, (key,)).fetchone()
        return row and Outcome(*row)

    def add(self, key: str, point: dict[str, Any], outcome: Outcome) -> None:
        """Commits the outcome of a scenario, with the values of the fields that were swept."""
        with self._errors():
            self._database.execute(INSERT, (key, version(), json.dumps(point), *asdict(outcome).values()))

    def close(self) -> None:
        self._database.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turns errors of SQLite into errors of ours."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", None)
            if code == sqlite3.SQLITE_NOTADB:
                raise UserError(f"{named(self._path)} is no SQLite database", hint="name another file") from None
            if code == sqlite3.SQLITE_BUSY:
                raise UserError(
                    f"another program writes to {named(self._path)}", hint="wait for it, or name another file"
                ) from None
            kind: type[SimulatorError] = OutputFailed if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR) else UserError
            raise kind(f"cannot write {named(self._path)}: {error}") from None


def scenario_key(document: Document) -> str:
    """The hash of a scenario, of the files that it names, and of the version of the program."""
    for part in NAMED:
        document = resolved(document, part)
    document = located(document)
    digest = sha256(version().encode())
    digest.update(json.dumps(document.data, sort_keys=True, default=repr).encode())
    for file in sorted(_files(document.data)):
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
