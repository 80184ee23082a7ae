"""Escaping of text from outside before output: one function per medium, used where text leaves the program.

A name in a file, a trace or a table may hold any string: sequences that move a terminal's cursor or set its title, HTML,
mathematical notation that matplotlib would typeset, a formula that a spreadsheet would compute. Inside the program names stay as
they were written.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from html import escape

_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")
_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
"""First characters of a cell that a spreadsheet reads as a formula, including their full-width forms."""
NAME, TEXT = "text-align:left;white-space:nowrap", "text-align:left;white-space:pre-wrap"
"""Styles of the two columns of a summary in a notebook; spaces align the numbers of neighbouring rows."""


def terminal(text: str, *, lines: bool = False) -> str:
    """Text for a terminal: unprintable characters are escaped like in Python (`\\x1b`), line breaks too unless `lines`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or (lines and c == "\n") else character(c) for c in text)


def character(c: str) -> str:
    """A character as Python writes it in ASCII (`\\x1b`)."""
    return c.encode("unicode_escape").decode("ascii")


def html(text: str) -> str:
    """Text for HTML, between tags and in quoted attributes."""
    return escape(terminal(text), quote=True)


class Summarised(ABC):
    """Base of values that print as their summary: names with values."""

    @property
    @abstractmethod
    def summary(self) -> list[tuple[str, str]]:
        """Names and values, the most requested first."""

    def __repr__(self) -> str:
        rows = [(terminal(name), terminal(text)) for name, text in self.summary]
        width = max((len(name) for name, _ in rows), default=0)
        return "\n".join([type(self).__name__, *(f"  {name:<{width}}  {text}" for name, text in rows)])

    def _repr_html_(self) -> str:
        rows = (
            f"<tr><th style='{NAME}'>{html(name)}</th><td style='{TEXT}'>{html(text)}</td></tr>" for name, text in self.summary
        )
        return f"<table>{''.join(rows)}</table>"


def figure(text: str) -> str:
    """Text for matplotlib without markup: a dollar sign starts no formula, and a leading underscore hides no legend label."""
    shown = terminal(text).replace("$", r"\$")
    return f"\u200b{shown}" if shown.startswith("_") else shown


def json(text: str) -> str:
    """JSON as `json.dumps` writes it, with the remaining unprintable character escaped for a terminal."""
    return text.replace("\x7f", r"\u007f")


def yaml(text: str) -> str:
    """Text as a scalar of YAML, in quotes and on one line."""
    return '"' + terminal(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def csv_cell(text: str) -> str:
    """Text for a cell of a CSV file, on one line. Text that a spreadsheet would read as a formula starts with an apostrophe."""
    shown = terminal(text)
    is_formula = shown.lstrip().startswith(_FORMULA) and not _NUMBER.fullmatch(shown.strip())
    return f"'{shown}" if is_formula else shown
