"""What commands share: JSON or tables on stdout, progress on stderr, options that several have."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from ..errors import OutsideDomain

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object or array, and nothing else.")
set_option = click.option(
    "--set", "settings", multiple=True, metavar="FIELD=VALUE", help="Override a field, such as plan.tp=4. Repeat for more."
)
LONGEST = 2**40
"""The longest unitless duration."""
PATIENCE_S = 1.0
"""Work that takes longer shows that it is going on."""


def print_json(record: Any) -> None:
    """One JSON value on stdout."""
    click.echo(json.dumps(record, allow_nan=False, default=_plain))


def _plain(value: Any) -> Any:
    """numpy numbers and arrays as JSON has them."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no JSON")


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Names and values under one another."""
    rows = list(pairs)
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        click.echo(f"{click.style(name.ljust(width), bold=True)}  {value}")


def print_table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[int] = (), title: str = "") -> None:
    """A table: rich on a terminal, aligned plain text elsewhere."""
    rows = [list(row) for row in rows]
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table(title=title or None, title_justify="left")
        for i, header in enumerate(headers):
            table.add_column(header, justify="right" if i in right else "left")
        for row in rows:
            table.add_row(*row)
        Console().print(table)
        return
    if title:
        click.echo(title)
    widths = [max(len(row[i]) for row in [list(headers), *rows]) for i in range(len(headers))]
    for row in [list(headers), *rows]:
        cells = [cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))]
        click.echo("  ".join(cells).rstrip())


def print_notes(notes: Iterable[str]) -> None:
    """What somebody should know besides the result: on stderr."""
    for note in notes:
        click.echo(f"note: {note}", err=True)


@contextmanager
def progress(message: str) -> Iterator[None]:
    """A spinner on stderr while work goes on: only on a terminal, and only once it takes long."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    status = Console(stderr=True).status(message)
    timer = threading.Timer(PATIENCE_S, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        status.stop()


class Count(click.IntRange):
    """A whole number within limits; outside of them the nearest legal one is told."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number = int(click.INT.convert(value, param, ctx))
        least = int(max(number, self.min or 0))
        legal = least if self.max is None else int(min(least, self.max))
        if legal != number:
            option, name = (param.opts[0], str(param.name)) if param else ("the number", "number")
            hint = f"nearest legal: {option} {legal}"
            raise OutsideDomain(f"{option} {number} is out of range", nearest={name: legal}, hint=hint)
        return number


class Duration(click.types.FloatParamType):
    """A duration without a unit."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not 0 <= number <= LONGEST:
            self.fail(f"{value!r} is no duration: a number from 0 to {LONGEST}", param, ctx)
        return number


class Positive(click.types.FloatParamType):
    """A number above zero, and not above the most."""

    name = "number"

    def __init__(self, most: float = LONGEST) -> None:
        self.most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not 0 < number <= self.most:
            self.fail(f"{value!r} should be a number above 0, and at most {self.most:,}", param, ctx)
        return number


def checked_path(suffixes: tuple[str, ...]) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    """A callback that refuses a file name with an ending that we cannot write, before any work is done."""

    def check(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
        if value is not None and not value.lower().endswith(suffixes):
            raise click.BadParameter(f"{value!r} should end in {', '.join(suffixes)}", ctx=ctx, param=param)
        return value

    return check
