"""Results in SQLite, committed one by one as they come by a single writing process: one row for each hash of a scenario.

A new file is made under another name, with an empty table, and renamed. From then on every result is a transaction of its own, so
that a file holds whole rows however the program ends. Committed results are kept; all others are computed again. Every row has a
checksum, so that a row that a disk or another program has changed is never taken for a result.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from ..errors import OutputFailed, SimulatorError, UserError
from ..files import atomic, named
from ..study.shard import shard_files

CHECKSUM = "checksum"
DIGITS = 16
OUT_OF_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
PRIMARY = 0xFF
"""Bits of an error code of SQLite that hold its primary code; the other bits hold details."""
SETTINGS = (
    "trusted_schema = OFF",
    "locking_mode = EXCLUSIVE",  # set before the journal, which then needs no shared memory: network file systems have none
    "journal_mode = WAL",
    "synchronous = NORMAL",
)


@dataclass(frozen=True)
class Table:
    """A kind of results: its name, its columns with their types, and the rule for two rows of one hash.

    Before its own columns a table has one for the hash, and behind them one for the checksum.
    """

    name: str
    columns: Mapping[str, str]
    better: str
    """A condition in SQL under which the row of a shard, `excluded`, replaces an existing row."""

    @cached_property
    def schema(self) -> str:
        columns = ", ".join(f"{name} {kind}" for name, kind in self.columns.items())
        return f"CREATE TABLE {self.name} (hash TEXT PRIMARY KEY, {columns}, {CHECKSUM} TEXT NOT NULL)"

    @cached_property
    def insert(self) -> str:
        places = ", ".join("?" * (len(self.columns) + 2))
        changes = ", ".join(f"{name} = excluded.{name}" for name in (*self.columns, CHECKSUM))
        return f"INSERT INTO {self.name} VALUES ({places}) ON CONFLICT (hash) DO UPDATE SET {changes}"

    def select(self, condition: str) -> str:
        return f"SELECT * FROM {self.name} WHERE {condition}"


Row = tuple[Any, ...]


def _checksum(row: Row) -> str:
    """The checksum of a row with its hash. Numbers count as floats: SQLite may return a whole number as either."""
    values = [float(value) if isinstance(value, (int, float)) else value for value in row]
    return sha256(json.dumps(values).encode()).hexdigest()[:DIGITS]


class ResultStore:
    """The rows in a file. Only this process writes to the file, and no other reads it meanwhile."""

    def __init__(self, path: str | Path, table: Table, *, resume: bool) -> None:
        self._path, self._table = Path(path), table
        if self._path.exists() and not resume:
            raise UserError(f"{named(path)} exists", hint="--resume continues it; or name another file")
        with self._errors():
            if not self._path.exists():
                with atomic(path) as temporary, closing(sqlite3.connect(temporary)) as new:
                    new.execute(table.schema)
            self._database = sqlite3.connect(path, isolation_level=None, timeout=0)
        try:
            self._begin()
        except BaseException:
            self._database.close()
            raise

    def _begin(self) -> None:
        """Locks the file for this process. Raises `UserError` unless it holds a table of this kind, as it was written."""
        with self._errors():
            for setting in SETTINGS[:2]:
                self._database.execute(f"PRAGMA {setting}")
            self._database.execute("BEGIN EXCLUSIVE")
            stored = self._database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
            self._database.execute("COMMIT")
        if stored != [(self._table.schema,)]:
            message = f"{named(self._path)} is not a table of a {self._table.name} of this version"
            raise UserError(message, hint="name another file")
        with self._errors():
            for setting in SETTINGS[2:]:
                self._database.execute(f"PRAGMA {setting}")
            (state,) = self._database.execute("PRAGMA integrity_check(1)").fetchone()
        if state != "ok":
            raise self._damaged(" ".join(state.split()))

    def number(self, key: str) -> int | None:
        """The number of the row of a hash, which never changes; None if there is no row."""
        with self._errors():
            row = self._database.execute(f"SELECT rowid FROM {self._table.name} WHERE hash = ?", (key,)).fetchone()
        return row and int(row[0])

    def at(self, number: int) -> Row:
        """The row with a number."""
        with self._errors():
            return self._checked(self._database.execute(self._table.select("rowid = ?"), (number,)).fetchone())[1:]

    def get(self, key: str) -> Row | None:
        """The row of a hash, or None."""
        with self._errors():
            row = self._database.execute(self._table.select("hash = ?"), (key,)).fetchone()
        return None if row is None else self._checked(row)[1:]

    def add(self, rows: Sequence[Row]) -> None:
        """Commits rows together, each with its hash first. A row takes the place of one with the same hash."""
        with self._transaction():
            self._database.executemany(self._table.insert, ((*row, _checksum(row)) for row in rows))

    def merge(self) -> None:
        """Adds the rows of all shards of this file. A row here is replaced only under the condition of the table."""
        for file in shard_files(self._path):
            with closing(ResultStore(file, self._table, resume=True)) as shard, self._transaction():
                self._database.executemany(f"{self._table.insert} WHERE {self._table.better}", shard.rows())

    def rows(self) -> Iterable[Row]:
        """All rows, each with its hash first and its checksum last."""
        with self._errors():
            for row in self._database.execute(f"SELECT * FROM {self._table.name}"):
                yield *self._checked(row), row[-1]

    def _checked(self, row: Row | None) -> Row:
        """A row with its hash, without its checksum. Raises `UserError` if it is not as it was written, or not there."""
        *values, checksum = row or (None,)
        if row is None or checksum != _checksum(tuple(values)):
            raise self._damaged("a row is not as it was written")
        return tuple(values)

    def _damaged(self, how: str) -> UserError:
        hint = "name another file; what this one holds is computed again"
        return UserError(f"{named(self._path)} is damaged: {how}", hint=hint)

    def close(self) -> None:
        """Closes the file so that no journal is left beside it."""
        with closing(self._database), suppress(sqlite3.Error):  # else the next process to open it reads the journal
            self._database.execute("PRAGMA journal_mode = DELETE")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._errors(), self._database:
            self._database.execute("BEGIN IMMEDIATE")
            yield

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turns errors of SQLite into errors of this package."""
        try:
            yield
        except UnicodeDecodeError:
            raise self._damaged("it has bytes that are not text in UTF-8") from None
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & PRIMARY
            if code == sqlite3.SQLITE_NOTADB:
                raise UserError(f"{named(self._path)} is not an SQLite database", hint="name another file") from None
            if code == sqlite3.SQLITE_CORRUPT:
                raise self._damaged(str(error)) from None
            if code == sqlite3.SQLITE_BUSY:
                raise UserError(
                    f"another program writes to {named(self._path)}", hint="wait for it, or name another file"
                ) from None
            kind: type[SimulatorError] = OutputFailed if code in OUT_OF_ROOM else UserError
            raise kind(f"cannot write {named(self._path)}: {error}") from None


def opened_store(path: str | Path, table: Table, *, resume: bool, merge: bool) -> ResultStore:
    """A file of results, new or resumed; `merge` resumes with the rows of all shards of the file."""
    if merge:
        shard_files(path)
    store = ResultStore(path, table, resume=resume or merge)
    if merge:
        try:
            store.merge()
        except BaseException:
            store.close()
            raise
    return store
