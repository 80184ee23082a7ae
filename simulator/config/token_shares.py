"""Shares of the tokens that every expert receives, read from a file.

A CSV table has the columns `expert` and `tokens`, with a row for each expert in any order. A JSON file is a list of numbers, the
first of them for expert 0. Only their ratios matter, so that counts of tokens serve as well as fractions.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import Fault, UserError, shown
from ..files import check_count, decoded, parsed_json, read_bounded

ENDINGS = (".csv", ".json")
COLUMNS = ["expert", "tokens"]
MOST_BYTES = 2**22
MOST_SHARES = 2**16
MOST_TOKENS = 2**53
FORMAT = "a CSV table with the columns expert and tokens, or a JSON list of numbers"
LAYERS = "the mean over the layers: shares that differ from layer to layer are not modelled yet"


def is_file(routing: object) -> bool:
    """Whether a routing is named by the path of a file of shares."""
    return isinstance(routing, str) and routing.lower().endswith(ENDINGS)


def read(path: str | Path) -> tuple[float, ...]:
    """The share of every expert, from the first on. Raises `UserError` with every fault, each with its line."""
    raw = read_bounded(path, MOST_BYTES, "shares of tokens", f"name {FORMAT}")
    check_count(raw, b",\n\r", 3 * MOST_SHARES, path, "shares of tokens")
    text = decoded(raw, path, FORMAT)
    if str(path).lower().endswith(".json"):
        return checked(parsed_json(text, str(path)), str(path))
    rows = [(number, row) for number, row in enumerate(csv.reader(text.splitlines()), 1) if row]
    header = [name.strip() for name in rows[0][1]] if rows else []
    if header != COLUMNS:
        hint = LAYERS if "layer" in header else FORMAT
        raise UserError(f"the columns are {', '.join(map(shown, header)) or 'missing'}", where=f"{path}:1", hint=hint)
    found: dict[int, float] = {}
    faults: list[Fault] = []
    for number, row in rows[1:]:
        fault = _fault(row, found)
        if fault:
            faults.append(Fault(*fault, f"{path}:{number}"))
        else:
            found[int(row[0])] = float(row[1])
    missing = sorted({*range(max(found, default=0) + 1)} - {*found})
    if missing and not faults:
        faults.append(Fault(f"expert {missing[0]} has no row", "a row for each expert, from 0 on", str(path)))
    if faults:
        raise UserError(faults=faults)
    return checked([found[expert] for expert in sorted(found)], str(path))


def _fault(row: Sequence[str], found: dict[int, float]) -> tuple[str, str] | None:
    """What is wrong with a row of a table, and a hint."""
    expert = row[0].strip()
    if len(row) != len(COLUMNS):
        return f"{len(row)} cells", "two: expert and tokens"
    if not (expert.isascii() and expert.isdecimal() and len(expert) < 9 and int(expert) < MOST_SHARES):
        return f"{shown(row[0])} is no expert", "experts are numbered from 0 on"
    if int(expert) in found:
        return f"expert {int(expert)} stands twice", "one row for each expert"
    try:
        float(row[1])
    except ValueError:
        return f"{shown(row[1])} is no number of tokens", "a number such as 0.25 or 4096"
    return None


def checked(values: Any, where: str = "") -> tuple[float, ...]:
    """Shares of a list. Raises `UserError` for what is no list of shares."""
    if not isinstance(values, (list, tuple)) or not values:
        raise UserError(
            f"{shown(values)} is no list of shares", where=where, hint="a number for each expert, such as [4, 3, 2, 1]"
        )
    for expert, value in enumerate(values):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0 <= value <= MOST_TOKENS:
            hint = "a number of tokens or a fraction, at least 0"
            raise UserError(f"{shown(value)} is no share of expert {expert}", where=where, hint=hint)
    if not any(values):
        raise UserError("no expert receives a token", where=where, hint="at least one share above 0")
    return tuple(float(value) for value in values)
