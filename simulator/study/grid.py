"""Grids of scenarios: fields with several values each, and every combination of the values.

A field has its dotted name, as for `--set`. All faults of the fields and of their values are reported together before anything is
simulated: names that do not exist, values of a wrong type. Values that are legal by themselves but inconsistent in combination
are not faults of the grid: these points are reported as unable to run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import prod
from pathlib import Path
from typing import Any

from ..config.document import Document, Mark, Place, place_of
from ..config.load import document_of, document_with, typed
from ..config.named_parts import Trust
from ..config.scenario import from_document
from ..errors import Fault, UserError, described, shown

MOST_POINTS = 100_000
EXAMPLE = "--over plan.tp=1,2,4,8"
CLOSES = {"[": "]", "{": "}", "(": ")"}
Point = tuple[Any, ...]
"""A value for each axis."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A field of a scenario, with the values that it takes in turn."""

    name: str
    values: tuple[Any, ...]
    option: str = ""
    """How the field was given, for messages: `--over` on the command line."""

    @property
    def place(self) -> Place:
        return place_of(self.name)

    def mark(self, value: Any) -> Mark:
        """The origin of a value, for messages."""
        return Mark(f"{self.option} {self.name}={said(value)}".strip())


@dataclass(frozen=True, slots=True)
class Grid:
    """A scenario before its names are resolved, and the fields that vary."""

    base: Document
    axes: tuple[Axis, ...]

    def __len__(self) -> int:
        return prod(len(axis.values) for axis in self.axes)

    def points(self) -> Iterator[Point]:
        """Every combination of values; those of the last axis change fastest."""
        return product(*(axis.values for axis in self.axes))

    def point(self, number: int) -> Point:
        """The combination with a number in the order of `points`."""
        values = []
        for axis in reversed(self.axes):
            number, at = divmod(number, len(axis.values))
            values.append(axis.values[at])
        return tuple(reversed(values))

    def document(self, point: Point) -> Document:
        """The scenario of a point, before its names are resolved."""
        document = self.base
        for axis, value in zip(self.axes, point, strict=True):
            document = document.changed(axis.place, value, axis.mark(value))
        return document

    def fields(self, point: Point) -> dict[str, str | int | float | bool | None]:
        """The values of a point by the name of their field; lists and mappings as text."""
        return {axis.name: value if _is_scalar(value) else said(value) for axis, value in zip(self.axes, point, strict=True)}


def grid(
    scenario: str | Path | Mapping[str, Any],
    over: Iterable[str] | Mapping[str, Sequence[Any]],
    settings: Iterable[str] = (),
    *,
    trust: bool = False,
) -> Grid:
    """The grid of a scenario and of fields such as "plan.tp=1,2,4". Raises `UserError` with every fault of fields and values."""
    base = document_with(scenario, settings) if isinstance(scenario, Mapping) else document_of(scenario, settings)
    axes, faults = axes_of(over)
    found = Grid(base, axes)
    faults += _faults_of_values(found, Trust(trust))
    if faults:
        raise UserError(faults=faults)
    if len(found) > MOST_POINTS:
        raise UserError(f"{len(found):,} points are more than a sweep should have", hint=f"at most {MOST_POINTS:,}: fewer values")
    return found


def said(value: Any) -> str:
    """A value of a field as a user would type it."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float, bool))


def axes_of(over: Iterable[str] | Mapping[str, Sequence[Any]]) -> tuple[tuple[Axis, ...], list[Fault]]:
    """The axes that are well-formed, and the faults of the others."""
    if isinstance(over, (str, bytes)) or not isinstance(over, Iterable):
        hint = 'over={"plan.tp": [1, 2, 4, 8]} or over=["plan.tp=1,2,4,8"]'
        raise UserError(f"over is {described(over)}, not fields with their values", hint=hint)
    axes, faults = list[Axis](), list[Fault]()
    for given in over.items() if isinstance(over, Mapping) else over:
        try:
            axes.append(_axis(given))
        except UserError as error:
            faults += error.faults
    if not axes and not faults:
        raise UserError("no field to sweep over", hint=EXAMPLE)
    places = sorted(axes, key=lambda axis: tuple(map(str, axis.place)))
    for first, second in pairwise(places):
        if first.place == second.place[: len(first.place)]:
            same = first.place == second.place
            wrong = f"{first.name} is swept twice" if same else f"{first.name} holds {second.name}: only one can be swept"
            faults.append(Fault(wrong, "give all values at once, separated by commas"))
    return tuple(axes), faults


def _axis(given: str | tuple[str, Sequence[Any]]) -> Axis:
    """A field and its values, from the text of `--over` or from Python."""
    if isinstance(given, str):
        option, (name, equals, text) = "--over", given.partition("=")
        values: Any = [typed(part, f"--over {name.strip()}") for part in _parts(text)] if equals else None
    else:
        option, (name, values) = "", given
    name = name.strip() if isinstance(name, str) else ""
    if not all(name.split(".")) or isinstance(values, (str, Mapping)) or not isinstance(values, Iterable):
        raise UserError(f"{option} {described(given)} gives no field with values".strip(), hint=f"write it like {EXAMPLE}")
    axis = Axis(name, tuple(values), option)
    if not axis.values:
        raise UserError(f"{option} {name}: no values".strip(), hint=f"write it like {EXAMPLE}")
    seen = [said(value) for value in axis.values]
    if twice := next((text for i, text in enumerate(seen) if text in seen[:i]), None):
        raise UserError(f"{shown(twice)} occurs twice", where=f"{option} {name}".strip(), hint="give each value once")
    return axis


def _parts(text: str) -> list[str]:
    """The parts of a text between commas, apart from commas inside brackets or quotes."""
    parts, open_, quote = [""], list[str](), ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'" and not parts[-1].strip():
            quote = letter
        elif letter in CLOSES:
            open_.append(CLOSES[letter])
        elif open_ and letter == open_[-1]:
            open_.pop()
        elif letter == "," and not open_:
            parts.append("")
            continue
        parts[-1] += letter
    return [part.strip() for part in parts]


def _faults_of_values(grid: Grid, trust: Trust) -> list[Fault]:
    """The faults of each value by itself, tried with the first value of every other field."""
    faults: dict[tuple[str, str], Fault] = {}
    first = tuple(axis.values[0] for axis in grid.axes)
    for number, axis in enumerate(grid.axes):
        for value in axis.values if number == 0 else axis.values[1:]:
            document = grid.document((*first[:number], value, *first[number + 1 :]))
            for fault in _faults(document, trust):
                if not fault.between:
                    faults.setdefault((fault.message, fault.hint), fault)
    return list(faults.values())


def _faults(document: Document, trust: Trust) -> tuple[Fault, ...]:
    """The faults of a scenario when it is read."""
    if "jobs" in document.data:
        return (Fault("several jobs on one cluster cannot be swept", "sweep one of the jobs by itself"),)
    try:
        from_document(document, trust)
    except UserError as error:
        return error.faults
    return ()
