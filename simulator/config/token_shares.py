"""Shares of the tokens that every expert receives, read from a file: the same in all layers, or those of each layer.

A CSV table has the columns `expert` and `tokens`, with a row for each expert in any order; a column `layer` before them gives
each layer with experts its own rows. A JSON file is a list of numbers, the first of them for expert 0, or a list of such lists,
one for each layer with experts. Only the ratios within a layer matter, so that counts of tokens serve as well as fractions. The
numbers of layers in a table may be any: they give the order.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import Fault, UserError, shown
from ..files import check_count, decoded, parsed_json, read_bounded
from ..plan.plan import Shares

ENDINGS = (".csv", ".json")
COLUMNS, LAYER = ["expert", "tokens"], "layer"
MOST_BYTES = 2**22
MOST_SHARES = 2**16
MOST_TOKENS = 2**53
FORMAT = "a CSV table with the columns expert and tokens (before them layer, if layers differ), or a JSON list of numbers"


def is_file(routing: object) -> bool:
    """Whether a routing is named by the path of a file of shares."""
    return isinstance(routing, str) and routing.lower().endswith(ENDINGS)


def read(path: str | Path) -> Shares:
    """The share of every expert in order; a list for each layer if the file has several. Raises `UserError` with every fault,
    each with its line.
    """
    raw = read_bounded(path, MOST_BYTES, "shares of tokens", f"name {FORMAT}")
    check_count(raw, b",\n\r", 4 * MOST_SHARES, path, "shares of tokens")
    text = decoded(raw, path, FORMAT)
    if str(path).lower().endswith(".json"):
        return checked(parsed_json(text, str(path)), str(path))
    rows = [(number, row) for number, row in enumerate(csv.reader(text.splitlines()), 1) if row]
    header = [name.strip() for name in rows[0][1]] if rows else []
    if header not in (COLUMNS, [LAYER, *COLUMNS]):
        raise UserError(f"the columns are {', '.join(map(shown, header)) or 'missing'}", where=f"{path}:1", hint=FORMAT)
    found: dict[int, dict[int, float]] = {}
    faults: list[Fault] = []
    for number, row in rows[1:]:
        fault = _fault(row, len(header), found)
        if fault:
            faults.append(Fault(*fault, f"{path}:{number}"))
        else:
            found.setdefault(int(row[0]) if len(header) > len(COLUMNS) else 0, {})[int(row[-2])] = float(row[-1])
    most = max((max(of) for of in found.values()), default=0)
    for layer, of in found.items() if not faults else ():
        missing = sorted({*range(most + 1)} - {*of})
        if missing:
            where = f" in layer {layer}" if len(header) > len(COLUMNS) else ""
            faults.append(Fault(f"expert {missing[0]} has no row{where}", "a row for each expert, from 0 on", str(path)))
    if faults:
        raise UserError(faults=faults)
    layers = [[of[expert] for expert in sorted(of)] for _, of in sorted(found.items())] or [[]]
    return checked(layers if len(header) > len(COLUMNS) else layers[0], str(path))


def _fault(row: Sequence[str], columns: int, found: dict[int, dict[int, float]]) -> tuple[str, str] | None:
    """The fault of a row of a table, and a hint."""
    if len(row) != columns:
        return f"{len(row)} cells", "two: expert and tokens" if columns == len(COLUMNS) else "three: layer, expert and tokens"
    for what, cell in zip((LAYER, "expert")[-columns + 1 :], row, strict=False):
        if not _is_number(cell.strip()):
            return f"{shown(cell)} is no {what}", f"{what}s are numbered from 0 on"
    layer, expert = int(row[0]) if columns > len(COLUMNS) else 0, int(row[-2])
    if expert in found.get(layer, {}):
        return f"expert {expert} occurs twice", "one row for each expert"
    try:
        float(row[-1])
    except ValueError:
        return f"{shown(row[-1])} is not a number of tokens", "a number such as 0.25 or 4096"
    return None


def _is_number(cell: str) -> bool:
    return cell.isascii() and cell.isdecimal() and len(cell) < 9 and int(cell) < MOST_SHARES


def checked(values: Any, where: str = "") -> Shares:
    """Shares of a list, or of a list for each layer. Raises `UserError` for anything else."""
    if isinstance(values, (list, tuple)) and any(isinstance(of, (list, tuple)) for of in values):
        return tuple(_checked(of, where) for of in values)
    return _checked(values, where)


def _checked(values: Any, where: str) -> tuple[float, ...]:
    """Shares of one layer."""
    if not isinstance(values, (list, tuple)) or not values:
        raise UserError(
            f"{shown(values)} is not a list of shares", where=where, hint="a number for each expert, such as [4, 3, 2, 1]"
        )
    for expert, value in enumerate(values):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0 <= value <= MOST_TOKENS:
            hint = "a number of tokens or a fraction, at least 0"
            raise UserError(f"{shown(value)} is not a share of expert {expert}", where=where, hint=hint)
    if not any(values):
        raise UserError("no expert receives a token", where=where, hint="at least one share above 0")
    return tuple(float(value) for value in values)
