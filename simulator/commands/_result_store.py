"""Results in SQLite, committed one by one as they come by a single writing process: one row for each hash of a scenario.

A new file is made under another name, with an empty table, and renamed. From then on every result is a transaction of its own, so
that a file holds whole rows however the program ends. Committed results are kept; all others are computed again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import OutputFailed, SimulatorError, UserError
from ..files import atomic, named
from ..study.shard import shard_files

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
    """A kind of results: its name, its columns after the hash with their types, and the rule for two rows of one hash."""

    name: str
    columns: Mapping[str, str]
    better: str
    """A condition in SQL under which the row of a shard, `excluded`, replaces an existing row."""

    @cached_property
    def schema(self) -> str:
        columns = ", ".join(f"{name} {kind}" for name, kind in self.columns.items())
        return f"CREATE TABLE {self.name} (hash TEXT PRIMARY KEY, {columns})"

    @cached_property
    def insert(self) -> str:
        places = ", ".join("?" * (1 + len(self.columns)))
        changes = ", ".join(f"{name} = excluded.{name}" for name in self.columns)
        return f"INSERT INTO {self.name} VALUES ({places}) ON CONFLICT (hash) DO UPDATE SET {changes}"

    def select(self, condition: str) -> str:
        return f"SELECT {', '.join(self.columns)} FROM {self.name} WHERE {condition}"


Row = tuple[Any, ...]


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
            for setting in SETTINGS[:2]:
                self._database.execute(f"PRAGMA {setting}")
            self._database.execute("BEGIN EXCLUSIVE")
            stored = self._database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
            self._database.execute("COMMIT")
        if stored != [(table.schema,)]:
            self._database.close()
            raise UserError(f"{named(path)} is not a table of a {table.name} of this version", hint="name another file")
        with self._errors():
            for setting in SETTINGS[2:]:
                self._database.execute(f"PRAGMA {setting}")

    def number(self, key: str) -> int | None:
        """The number of the row of a hash, which never changes; None if there is no row."""
        with self._errors():
            row = self._database.execute(f"SELECT rowid FROM {self._table.name} WHERE hash = ?", (key,)).fetchone()
        return row and int(row[0])

    def at(self, number: int) -> Row:
        """The row with a number."""
        with self._errors():
            return tuple(self._database.execute(self._table.select("rowid = ?"), (number,)).fetchone())

    def get(self, key: str) -> Row | None:
        """The row of a hash, or None."""
        with self._errors():
            row = self._database.execute(self._table.select("hash = ?"), (key,)).fetchone()
        return None if row is None else tuple(row)

    def add(self, rows: Sequence[Row]) -> None:
        """Commits rows together, each with its hash first. A row takes the place of one with the same hash."""
        with self._transaction():
            self._database.executemany(self._table.insert, rows)

    def merge(self) -> None:
        """Adds the rows of all shards of this file. A row here is replaced only under the condition of the table."""
        for file in shard_files(self._path):
            with closing(ResultStore(file, self._table, resume=True)) as shard, self._transaction():
                self._database.executemany(f"{self._table.insert} WHERE {self._table.better}", shard.rows())

    def rows(self) -> Iterable[Row]:
        """All rows, each with its hash first."""
        with self._errors():
            yield from self._database.execute(f"SELECT * FROM {self._table.name}")

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
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & PRIMARY
            if code == sqlite3.SQLITE_NOTADB:
                raise UserError(f"{named(self._path)} is not an SQLite database", hint="name another file") from None
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
