"""Tables of measurements as CSV, plain or gzipped: reading rows, checking columns, and converting cells."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from itertools import islice
from pathlib import Path

from ..errors import ALIKE, Fault, UserError, did_you_mean, nearest, shown
from ..files import decoded, read_unzipped
from ..units import counted

MOST_BYTES, MOST_ROWS, MOST_COLUMNS = 2**25, 200_000, 64
"""Largest numbers of bytes, rows and columns of a table."""
Row = Mapping[str, str]
TRUTH = {"true": True, "yes": True, "causal": True, "false": False, "no": False, "full": False}
MOST_COUNT, MOST_CHARACTERS = 2**62, 4000
"""Largest count, and most characters in a cell (Python converts no more digits)."""
NO_VALUE = ("nan", "n/a", "na", "#n/a", "<na>", "null")
"""Words that programs write for a cell without a value."""
SEPARATORS = {";": "a semicolon", "\t": "a tab", "|": "a bar"}
LEAST_US = 1e-6
"""Least time of a measurement, in microseconds: nothing on a GPU is faster."""


class TableRow(dict[str, str]):
    """A row of a table, by the names of its columns."""

    line = 0
    """The line of the table on which the row begins, counted from 1; 0 for a row that is in no file."""


def read(path: Path) -> list[TableRow]:
    """The rows of a .csv or .csv.gz file."""
    raw = read_unzipped(path, MOST_BYTES, "a table of measurements")
    content = decoded(raw, path, "a table is CSV in UTF-8, plain or gzipped")
    table, read = csv.DictReader(StringIO(content, newline=None), strict=True), 1
    try:
        table.fieldnames = names = [name.strip() for name in table.fieldnames or ()]
        if len(names) > MOST_COLUMNS:
            raise UserError(f"a table of {len(names):,} columns", where=f"{path}:1", hint=f"at most {MOST_COLUMNS}")
        rows, beyond = list[TableRow](), dict[int, int]()
        for row in islice(table, MOST_ROWS + 1):
            cells = TableRow((key, value or "") for key, value in row.items() if isinstance(key, str))
            cells.line = table.line_num - sum(value.count("\n") for value in cells.values())
            if any(more := row.get(None) or ()):
                beyond[cells.line] = len(names) + len(more)
            rows.append(cells)
            read = table.line_num
    except csv.Error as error:
        hint = "a header, then one measurement to a line; a quote is closed in its cell, and doubled inside of one"
        raise UserError(f"no table: {error}", where=f"{path}:{read + 1}", hint=hint) from None
    if len(rows) > MOST_ROWS:
        raise UserError(f"a table of more than {MOST_ROWS:,} rows", where=str(path), hint="cut it into several")
    if not rows:
        raise UserError("a table without rows", where=str(path), hint="a header, then one measurement to a line")
    if long := [row.line for row in rows if any(len(cell) > MOST_CHARACTERS for cell in row.values())]:
        hint = f"at most {MOST_CHARACTERS:,} characters"
        raise UserError(faults=[Fault("a cell that is too long", hint, f"{path}:{line}") for line in long])
    if wrong := _not_a_header(names, content):
        raise UserError(
            wrong, where=f"{path}:1", hint="a header of names with commas between them, then one measurement to a line"
        )
    if beyond:
        hint = "a number has no commas, and a dot before its decimals; text with a comma is in quotes"
        what = [(f"{cells} cells for {counted(len(names), 'column')}", f"{path}:{line}") for line, cells in beyond.items()]
        raise UserError(faults=[Fault(message, hint, where) for message, where in what])
    if twice := [name for name in dict.fromkeys(names) if name and names.count(name) > 1]:
        raise UserError(faults=[Fault(f"column {name!r} twice", "which of them counts?", f"{path}:1") for name in twice])
    return rows


def _not_a_header(names: Sequence[str], content: str) -> str:
    """The reason why the first line is no header of columns with commas between them; empty for one that may be."""
    if names and names[0].startswith("#"):
        return f"no header: the table begins with a comment, {shown(names[0])}"
    first = content.lstrip("\ufeff").partition("\n")[0]
    other = next((word for mark, word in SEPARATORS.items() if len(names) == 1 and mark in first), "")
    return f"no commas between columns, but {other}" if other else ""


def described(row: Row, columns: Iterable[str]) -> dict[str, str]:
    """The cells of some columns. Those that the table lacks, and those that say that there is no value, are blank."""
    cells = {column: row.get(column) or "" for column in columns}
    return {column: "" if cell.strip().lower() in NO_VALUE else cell for column, cell in cells.items()}


def check_header(needed: Iterable[str], rows: Sequence[Row], name: str) -> None:
    """Raises `UserError` for all required columns that a table lacks, or one error for a file that is no such table at all."""
    missing = [column for column in needed if column not in rows[0]]
    is_alike = len(rows[0]) > 1 and any(nearest(column, rows[0], cutoff=ALIKE) for column in missing)
    if missing and missing == [*needed] and not is_alike:
        first = shown(",".join(rows[0]))
        raise UserError(f"not such a table: it begins with {first}", where=f"{name}:1", hint=f"a header with {', '.join(needed)}")
    if missing:
        hints = {column: did_you_mean(column, rows[0], cutoff=ALIKE) for column in missing}
        raise UserError(faults=[Fault(f"no column {column!r}", hint, f"{name}:1") for column, hint in hints.items()])


def with_gpu(rows: Sequence[Row], gpu: str) -> list[Row]:
    """Rows with the column `gpu` added, where the table lacks the column and the GPU is known."""
    if not gpu:
        return list(rows)
    found = [TableRow({**row, "gpu": row.get("gpu", gpu)}) for row in rows]
    for made, row in zip(found, rows, strict=True):
        made.line = line_of(row)
    return [*found]


def line_of(row: Row) -> int:
    """The line of a table on which a row begins; 0 for a row that is in no file."""
    return row.line if isinstance(row, TableRow) else 0


def count(row: Row, column: str) -> int:
    """The whole number in a cell. Raises `UserError` for any other content."""
    value = number(row[column])
    if not (1 <= value <= MOST_COUNT and value == int(value)):
        raise UserError(f"{column}: {shown(row[column])} is not a count")
    return int(value)


def time_us(row: Row) -> float | None:
    """The measured microseconds of a row, or None if the cell holds no time."""
    value = number(row.get("time_us", ""))
    return value if value >= LEAST_US else None


def number(text: str) -> float:
    """The number in a cell, or NaN for other text."""
    try:
        value = math.nan if "_" in text else float(text)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def truth(text: str) -> bool | None:
    """Whether attention is causal, by a cell: 1, true or causal; 0, false or full; None for any other text."""
    words = text.strip().lower()
    return {0.0: False, 1.0: True}.get(number(words), TRUTH.get(words))
