"""The scenario file that a row of training becomes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Any, NamedTuple

import yaml

from .. import escape
from ..config.writer import LINE_WIDTH
from ..errors import UserError, did_you_mean, shown
from ..measurements.csv_tables import Row, described
from ..measurements.training_rows import scenario_of
from . import training
from .training import MEASURED


class Shown(NamedTuple):
    """A row with its scenario, and notes on what the scenario leaves out."""

    row: Row
    scenario: dict[str, Any]
    notes: Sequence[str]


def of_row(kind: str, rows: Sequence[Row], name: str) -> Shown:
    """The row of a name (its id, or its number counted from 0 if it has none) with its scenario."""
    if kind != training.__name__.rpartition(".")[2]:
        raise UserError(f"--show: {kind} become no scenarios", hint="--kind training")
    names = [row.get("id") or str(number) for number, row in enumerate(rows)]
    named = dict(zip(names, rows, strict=True))
    if (times := names.count(name)) > 1:
        raise UserError(f"{times} rows are called {shown(name)}", hint="give each a unique id")
    if name not in named:
        raise UserError(f"no row {shown(name)}", hint=did_you_mean(name, named))
    return Shown(named[name], *scenario_of(described(named[name], training.READS)))


def scenario_text(found: Shown) -> str:
    """The scenario of a row as a file, with its source, its measurements and the properties that the scenario leaves out."""
    comments = "".join(
        f"# {escape.terminal(line)}\n" for text in _about(found) for line in wrap(text, LINE_WIDTH - 2, break_on_hyphens=False)
    )
    return comments + yaml.safe_dump(found.scenario, sort_keys=False, default_flow_style=None, width=LINE_WIDTH)


def _about(found: Shown) -> Iterator[str]:
    row = found.row
    yield ": ".join(filter(None, (row.get("id"), row.get("source_title"), row.get("source_locator"))))
    if measured := ", ".join(f"{column} {row[column]}" for column in MEASURED if row.get(column)):
        yield f"measured: {measured}"
    yield from (f"note: {note}" for note in found.notes)
