"""Bytes matrices as CSV: row i holds what rank i has for every rank, as plain numbers and without a header."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..engine.task import Array
from ..errors import Fault, UserError, shown
from ..files import check_count, read_bounded

MOST_BYTES = 2**26
"""Limit on a file."""
MOST_CELLS, MOST_LINES = 5_000_000, 100_000
"""A matrix of 2,000 ranks has 4 million numbers."""
MOST_HELD_BYTES = 2**40
"""Most that one rank can have for another."""
NUMBER = re.compile(r"\+?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
ROWS = "a row for each rank, with what it has for every rank: as many numbers as rows, commas between them, no header"
CELL = f"a plain number from 0 to {MOST_HELD_BYTES:,}, such as 1048576 or 1.5e6"

Row = tuple[int, list[str]]
"""The number of a line, and its cells."""


def read(path: Path) -> Array:
    """The matrix of a file. Raises with file:line for every row and every cell that is wrong."""
    rows = [(line, cells) for line, cells in enumerate(_lines(path), 1) if cells not in ([], [""])]
    if not rows:
        raise UserError("there is no matrix in the file", where=str(path), hint=ROWS)
    header, rows = (rows[:1], rows[1:]) if len(rows) > 1 and _is_header(rows[0][1]) else ([], rows)
    found = [(line, f"{shown(cells[0])} ...: a header, which such a matrix has not", ROWS) for line, cells in header]
    found += sorted([*_misshapen(rows), *_wrong(rows)])
    if found:
        raise UserError(faults=[Fault(message, hint, f"{path}:{line}") for line, message, hint in found])
    return np.array([[float(cell) for cell in cells] for _, cells in rows])


def _lines(path: Path) -> list[list[str]]:
    """The cells of every line."""
    raw = read_bounded(path, MOST_BYTES, "a matrix of bytes", f"a CSV: {ROWS}")
    check_count(raw, b",", MOST_CELLS, path, "a matrix of bytes")
    check_count(raw, b"\n\r", MOST_LINES, path, "a matrix of bytes")
    try:
        text = raw.decode("utf-8-sig")
        return [[cell.strip() for cell in next(csv.reader([line]), [])] for line in text.splitlines()]
    except UnicodeDecodeError as error:
        where = f"{path}:{raw[: error.start].count(10) + 1}"
        raise UserError("not a text file", where=where, hint=f"a CSV: {ROWS}") from None
    except csv.Error as error:
        raise UserError(f"not a CSV: {error}", where=str(path), hint=ROWS) from None


def _is_header(cells: list[str]) -> bool:
    """Whether a row holds words."""
    return len(cells) > 1 and not any(re.match(r"[-+.0-9]|$", cell) for cell in cells)


def _misshapen(rows: list[Row]) -> Iterator[tuple[int, str, str]]:
    """Rows that are not as long as there are rows: all at once if they are all alike, else those that are not like most."""
    lengths = Counter(len(cells) for _, cells in rows)
    (usual, _), *others = lengths.most_common()
    if not others and usual != len(rows):
        yield rows[0][0], f"{_count(len(rows), 'row')} of {_count(usual, 'number')}: not square", ROWS
    wanted = len(rows) if len(rows) in lengths else usual
    for line, cells in rows:
        if others and len(cells) != wanted:
            yield line, f"{_count(len(cells), 'number')} in this row, where {wanted:,} should be", ROWS


def _wrong(rows: list[Row]) -> Iterator[tuple[int, str, str]]:
    """Cells that are no number of bytes."""
    for line, cells in rows:
        for number, cell in enumerate(cells, 1):
            if NUMBER.fullmatch(cell) is None or float(cell) > MOST_HELD_BYTES:
                yield line, f"cell {number}: {shown(cell) if cell else 'nothing'}, which is no number of bytes", CELL


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'s' * (n != 1)}"
