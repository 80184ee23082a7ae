"""Shared parts of commands: JSON or tables on stdout, progress on stderr, common options."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from operator import methodcaller
from textwrap import wrap
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeAlias

import click
from click.core import ParameterSource

from .. import escape
from ..errors import OutsideDomain, UserError, shown
from ..files import check_folder, nowhere

if TYPE_CHECKING:
    from ..simulation.estimated_effort import Effort, Expect

    _PairType: TypeAlias = click.ParamType[tuple[float, float]]
    _ListType: TypeAlias = click.ParamType[list[int]]
else:  # generic in newer versions of click alone
    _PairType = _ListType = click.ParamType

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object or array, and nothing else.")
trust_option = click.option(
    "--trust", is_flag=True, help="Allow files to import and run code that they name (file.py, file.py:name, module:name)."
)
long_option = click.option(
    "--long", is_flag=True, help="Allow work estimated to take more than 30 s or 4 GiB, which is refused otherwise."
)
set_option = click.option(
    "--set", "settings", multiple=True, metavar="FIELD=VALUE", help="Override a field, such as plan.tp=4. May be repeated."
)
COLUMNS, NARROWEST, LEAST_WRAPPED = 120, 60, 20
"""Width of text that is wrapped, the narrowest terminal that it is wrapped for, and the least width of a wrapped column."""
MOST_IN_RANGE = 4096
"""The largest number of ranks that is read; a picture shows fewer."""
LONGEST = 2**40
"""The longest duration without a unit."""
OUTPUTS = f"{__name__}.outputs"
"""Key in the context of a command for the files that it writes, each with the option that names it."""
REFRESH_S, NEARLY = 0.2, 0.99
PATIENCE_S = 1.0
"""Work that takes longer shows a progress bar."""


def scenario_argument(command: Callable[..., None]) -> Callable[..., None]:
    """The argument SCENARIO of a command, with the options that say how it is read."""
    return click.argument("scenario")(set_option(trust_option(command)))


def say(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Prints text on stdout or stderr, without control characters."""
    _echo(escape.terminal(text, lines=True), err=err, nl=nl)


def _echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Prints escaped text in the encoding of the stream itself; click would replace ASCII with another. Styles are for terminals
    that have them and users that want them."""
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    color = False if plain else None
    if err:
        on_stderr(text, lambda line: click.echo(line, file=sys.stderr, nl=nl, color=color))
    else:
        click.echo(text, file=sys.stdout, nl=nl, color=color)


def on_stderr(text: str, write: Callable[[str], None] = lambda text: print(text, file=sys.stderr)) -> None:
    """Writes a message. If stderr cannot be written, the message is dropped: the exit code still says how the program ended."""
    try:
        write(text)
    except OSError:
        sys.stderr = nowhere()


def print_json(record: Any) -> None:
    """Prints one JSON value on stdout; numbers and arrays of numpy become JSON numbers and lists."""
    _echo(escape.json(json.dumps(record, allow_nan=False, default=methodcaller("tolist"))))


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Prints labels and values, one pair per line, in two columns; a value that is wider than a page is wrapped."""
    rows = [(escape.terminal(name), escape.terminal(value)) for name, value in pairs]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        first, *others = _folded(value, max(LEAST_WRAPPED, text_columns() - width - 2))
        _echo(f"{click.style(name.ljust(width), bold=True)}  {first}")
        for other in others:
            _echo(f"{'':{width}}  {other}")


def _folded(text: str, width: int, *, long_words: bool = False, indent: str = "") -> list[str]:
    """The lines of a text, with or without breaks in its long words; one that fits in a line is left as it is."""
    if len(text) <= width:
        return [text]
    return wrap(text, width, break_on_hyphens=False, break_long_words=long_words, subsequent_indent=indent) or [text]


def page_columns() -> int:
    """Width of a page in characters: the width of the terminal, at least 60; 120 if the output is not a terminal, so that what
    another program reads does not depend on where it was started."""
    try:
        columns = os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else 0
    except OSError:  # a stream without a file behind it
        columns = 0
    return max(NARROWEST, columns) if columns else COLUMNS


def text_columns() -> int:
    """Width of wrapped text in characters, limited because long lines are hard to read."""
    return min(COLUMNS, page_columns())


def print_table(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Sequence[int] = (),
    title: str = "",
) -> None:
    """Prints a table in aligned plain text. Its widest text columns are wrapped to the width of a page, and no character is left
    out: columns that still do not fit go into a further table of the same rows."""
    title, columns = escape.terminal(title), page_columns()
    cells = [[escape.terminal(cell) for cell in row] for row in (headers, *rows)]
    if title:
        say("\n".join(_folded(title, columns)))
    blocks = _blocks(columns, cells, right) if sys.stdout.isatty() else [range(len(cells[0]))]
    for number, block in enumerate(blocks):
        if number:
            say()
        _print_block([[line[at] for at in block] for line in cells], [i for i, at in enumerate(block) if at in right], columns)


def _print_block(cells: list[list[str]], right: Sequence[int], columns: int) -> None:
    """Prints the lines of a table, of which the first has the headers."""
    heads, *rows = _within(columns, cells, right)
    widths = [max(map(len, column)) for column in zip(*heads, *(line for row in rows for line in row), strict=True)]
    for number, row in enumerate((heads, *rows)):
        for line in row:
            padded = [
                cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
            ]
            text = "  ".join(padded).rstrip()
            _echo(text if number else click.style(text, bold=True))


def _blocks(columns: int, cells: list[list[str]], right: Sequence[int]) -> list[Sequence[int]]:
    """The columns of a table in groups that fit on a page, each group after the first column, which names the rows."""
    least = [max(map(len, column)) for column in zip(*cells, strict=True)]
    least = [width if at in right else min(width, LEAST_WRAPPED) for at, width in enumerate(least)]
    blocks = [[0]]
    for at, width in enumerate(least[1:], 1):
        if sum(least[i] + 2 for i in blocks[-1]) + width > columns and len(blocks[-1]) > 1:
            blocks.append([0])
        blocks[-1].append(at)
    return list(blocks)


def _within(columns: int, lines: list[list[str]], right: Sequence[int]) -> list[list[list[str]]]:
    """Wraps the lines of a table to at most `columns` characters, as far as its text columns can shrink, the widest first."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    over = sum(widths) + 2 * (len(widths) - 1) - columns
    if over <= 0:
        return [[line] for line in lines]
    for at in sorted(set(range(len(widths))) - set(right), key=lambda at: -widths[at]):
        narrower = max(min(LEAST_WRAPPED, widths[at]), widths[at] - max(over, 0))
        over, widths[at] = over - (widths[at] - narrower), narrower
    indents = ["  ", *[""] * (len(widths) - 1)]  # in the first column, where a continuation line would look like another row
    folded = [
        [_folded(cell, width, long_words=True, indent=indent) for cell, width, indent in zip(line, widths, indents, strict=True)]
        for line in lines
    ]
    return [[list(parts) for parts in zip_longest(*line, fillvalue="")] for line in folded]


def print_notes(notes: Iterable[str]) -> None:
    """Prints notes on the result to stderr."""
    for note in notes:
        say(f"note: {note}", err=True)


@contextmanager
def progress(message: str) -> Iterator[Expect]:
    """A progress bar on stderr, on a terminal only and only after a while. Yields a function that takes the estimate of the work;
    until it is called the bar shows no percentage."""
    if not sys.stderr.isatty():
        yield lambda effort: None
        return
    expected: list[Effort] = []
    done = threading.Event()
    watch = threading.Thread(target=_show_progress, args=(message, expected, done), daemon=True)
    watch.start()
    try:
        yield expected.append
    finally:
        done.set()
        watch.join()


def _show_progress(message: str, expected: Sequence[Effort], done: threading.Event) -> None:
    """Draws the bar until the work is done: the elapsed time as a fraction of the expected time."""
    if done.wait(PATIENCE_S):
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[estimate]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task, began = bar.add_task(escape.terminal(message), total=None, estimate=""), monotonic() - PATIENCE_S
        while not done.wait(REFRESH_S):
            seconds = max((effort.seconds for effort in expected), default=0.0)
            if seconds > PATIENCE_S:  # with an estimate that was too short, the bar still does not look complete
                estimate = f"of about {seconds:.0f} s"
                bar.update(task, total=seconds, completed=min(monotonic() - began, seconds * NEARLY), estimate=estimate)


@contextmanager
def progress_line() -> Iterator[Callable[[str], None]]:
    """A function that shows how far work is, on one line of stderr, on a terminal only and only after a while. At the end the
    line is empty again."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    began, longest = monotonic(), 0

    def tell(text: str) -> None:
        nonlocal longest
        if monotonic() - began >= PATIENCE_S:
            shown_text = escape.terminal(text)[: _columns_of_stderr() - 1]
            longest = max(longest, len(shown_text))
            _write_over(shown_text, longest)

    try:
        yield tell
    finally:
        if longest:
            _write_over("", longest)
            _write_over("", 0)


def _write_over(text: str, columns: int) -> None:
    """Writes text at the beginning of the last line of stderr, over as many columns of what is there."""
    on_stderr(f"\r{text:{columns}}", lambda line: print(line, end="", file=sys.stderr, flush=True))


def _columns_of_stderr() -> int:
    try:
        return max(NARROWEST, os.get_terminal_size(sys.stderr.fileno()).columns)
    except OSError:
        return NARROWEST


class Count(click.IntRange):
    """A whole number within limits; the error for a number outside of them names the nearest legal one."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number = int(click.INT.convert(value, param, ctx))
        legal = int(min(max(number, self.min or 0), math.inf if self.max is None else self.max))
        if legal != number:
            option, name = (param.opts[0], str(param.name)) if param else ("the number", "number")
            hint = f"nearest legal: {option} {legal}"
            raise OutsideDomain(f"{option} {shown(number)} is out of range", nearest={name: legal}, hint=hint)
        return number


class Duration(click.types.FloatParamType):
    """A duration without a unit."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not 0 <= number <= LONGEST:
            self.fail(f"{value!r} is not a duration: a number from 0 to {LONGEST}", param, ctx)
        return number


class Numbers(_PairType):
    """Two numbers with a separator between them, such as 14x6 or 100:250."""

    def __init__(self, separator: str, example: str, least: float, most: float, *, ascending: bool = False) -> None:
        self.name, self.separator, self.example, self.least, self.most = "numbers", separator, example, least, most
        self.ascending = ascending

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, float]:
        try:
            first, second = map(float, str(value).split(self.separator))
        except ValueError:
            self.fail(f"{value!r} should be two numbers, such as {self.example}", param, ctx)
        if not all(self.least <= number <= self.most for number in (first, second)):
            self.fail(f"{value!r} should be two numbers from {self.least:g} to {self.most:,g}", param, ctx)
        if self.ascending and first >= second:
            self.fail(f"{value!r} should be a smaller number and a larger one, such as {self.example}", param, ctx)
        return first, second


class RankList(_ListType):
    """Ranks with commas between them, and ranges of them, such as 0,8-11."""

    name = "ranks"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        ranks: list[int] = []
        for part in str(value).split(","):
            first, _, last = part.partition("-")
            if not (first.isdecimal() and (last or first).isdecimal()) or part.endswith("-"):
                self.fail(f"{part!r} should be a rank or a range of ranks, such as 0,8-11", param, ctx)
            if not 0 <= int(last or first) - int(first) < MOST_IN_RANGE:
                self.fail(f"{part!r} should be an ascending range of at most {MOST_IN_RANGE} ranks", param, ctx)
            ranks += range(int(first), int(last or first) + 1)
        return ranks


class Positive(click.types.FloatParamType):
    """A number above zero, or not below the least, and not above the most."""

    name = "number"

    def __init__(self, most: float = LONGEST, least: float = 0.0) -> None:
        self.most, self.least = most, least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not number > 0 or not self.least <= number <= self.most:
            from_ = f"of at least {self.least:g}" if self.least else "above 0"
            self.fail(f"{value!r} should be a number {from_}, and at most {self.most:,}", param, ctx)
        return number


def checked_path(suffixes: tuple[str, ...]) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    """A callback that refuses, before any work is done, a file with an unknown suffix or in a folder that cannot be written, and
    a file that another option of the same command writes."""

    def check(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
        if value is None:
            return None
        if not value.lower().endswith(suffixes):
            raise click.BadParameter(f"{value!r} should end in {', '.join(suffixes)}", ctx=ctx, param=param)
        check_folder(value)
        option, outputs = param.opts[0], ctx.meta.setdefault(OUTPUTS, {})
        other = outputs.setdefault(os.path.realpath(value), option)
        if other != option:
            raise UserError(f"{option} {shown(value)}: {other} writes this file", hint="name another file")
        return value

    return check


def checked_folder(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Refuses, before any work is done, no name, and a file where a folder is written to."""
    value = not_empty(ctx, param, value)
    if value is not None and os.path.exists(value) and not os.path.isdir(value):
        raise UserError(f"{param.opts[0]} {shown(value)} is a file, and a folder is written", hint="name a folder, new or not")
    return value


def not_empty(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Refuses an empty text, such as that of a variable that is not set in a shell, which would count as an option left out."""
    if value == "" and ctx.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE:
        raise UserError(f"{param.opts[0]} '' names nothing", hint="give it a value, or leave it out")
    return value


def picture_option(*names: str, help: str) -> Callable[..., Any]:
    """The option that names the file of a picture."""
    return click.option(*names, metavar="FILE.png|svg|pdf", callback=checked_path((".png", ".svg", ".pdf")), help=help)
