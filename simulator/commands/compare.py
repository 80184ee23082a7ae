"""`trainsim compare`: what differs between scenarios, and between their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from textwrap import fill
from typing import TYPE_CHECKING, Any

import click

from ..errors import Infeasible, UserError
from ..units import GIB, counted, show_bytes, show_digits, show_flop_rate, show_hertz, show_rate, show_s
from ._show import (
    json_option,
    long_option,
    page_columns,
    picture_option,
    print_json,
    print_table,
    progress,
    say,
    text_columns,
    trust_option,
)

if TYPE_CHECKING:
    from ..study.compare import Comparison

FEWEST = 2
MOST_OPERATORS = 8
"""Number of operators that are listed: those whose time differs most."""
LEAST_SPREAD = 0.0005
"""Smallest spread of a result over the runs, as a fraction of its largest magnitude, that is listed."""
WIDEST = 40
"""Number of characters of a value, and of the name of a run, that a table shows."""
UNITS: Mapping[str, Callable[[float], str]] = {
    "bytes_per_s": show_rate,
    "flop_per_s": show_flop_rate,
    "per_s": show_digits,
    "per_gpu": show_digits,
    "s": show_s,
    "bytes": show_bytes,
    "gib": lambda value: show_bytes(value * GIB),
    "w": "{:g} W".format,
    "hz": show_hertz,
    **dict.fromkeys(("mfu", "hfu", "fraction"), "{:.2%}".format),
}
"""Text formats of quantities, by the unit that a name ends in, the longest first."""


@click.command("compare", short_help="Show what differs between scenarios and their steps.")
@click.argument("scenarios", nargs=-1, required=True)
@click.option("--allow-oom", is_flag=True, help="Simulate plans that do not fit in memory.")
@picture_option("--gantt", help="Draw the timelines, one below another on one time axis.")
@trust_option
@long_option
@json_option
def command(scenarios: tuple[str, ...], allow_oom: bool, gantt: str | None, trust: bool, long: bool, as_json: bool) -> None:
    """Simulate two or more SCENARIOS and show the fields that differ, and the results that differ.

    Results are the metrics, the time of every stage, and the time of every operator and axis of communication on a mean rank.
    Values that are equal in all runs are left out; in a table of three or more runs, `=` marks a value equal to the first run's.
    """
    from ..simulation.runnable import load_one
    from ..study.compare import compare

    if len(scenarios) < FEWEST:
        raise UserError("one scenario alone cannot be compared", hint="name two or more: trainsim compare A.yaml B.yaml")
    with progress("simulating"):
        runs = {}
        for number, name in enumerate(scenarios, 1):
            title = name if name not in runs else f"{name} ({number})"
            try:
                runs[title] = load_one(name, trust=trust).simulate(allow_oom=allow_oom, long=long)
            except Infeasible as error:
                raise Infeasible(f"{name}: {error}", hint=error.hint, over_bytes=error.over_bytes) from None
        found = compare(runs)
    if gantt:
        from ..figures.drawing import save
        from ..figures.gantt import gantt as drawn

        save(drawn(found), gantt)
    if as_json:
        print_json(found.as_dict())
        return
    _print(found)
    if gantt:
        say(f"timelines  {gantt}")


def _print(found: Comparison) -> None:
    if not found.scenario and not found.result:
        say("Nothing differs.")
        return
    operators = [name for name in found.result if name.startswith("operator ")]
    largest = sorted(operators, key=lambda name: -_difference(found.result[name]))[:MOST_OPERATORS]
    shown = [name for name in found.result if name not in operators] + largest
    stages = [len(run.program.stages) for run in found.runs.values()]
    if len({*stages}) > 1:  # a stage of one run is no stage of another
        shown = [name for name in shown if not name.startswith("stage ")]
    listed = {name: found.result[name] for name in shown if _spread(found.result[name]) >= LEAST_SPREAD}
    runs = [_cut(name) for name in found.runs]
    for what, differing in (("Scenarios differ in", found.scenario_in_words), ("Results differ in", listed)):
        for columns in _tables(runs, differing):
            headers, *rows = zip(*columns, strict=True)
            print_table(headers, rows, right=range(1, len(columns)), title=f"{what} (changes are from {runs[0]})")
            say()
    alike, fewer = len(shown) - len(listed), len(operators) - len(largest)
    left_out = [f"{counted(alike, 'result')} with a difference below {LEAST_SPREAD:.2%}"] if alike else []
    if len({*stages}) > 1:
        left_out.append(f"the times of stages, of which the runs have {', '.join(map(str, stages[:-1]))} and {stages[-1]}")
    left_out += [f"{counted(fewer, 'operator')} with a smaller difference than the {MOST_OPERATORS} above"] if fewer else []
    if left_out:
        say(fill(f"Not listed: {', and '.join(left_out)}; --json has them.", text_columns(), break_on_hyphens=False))


def _tables(runs: list[str], differing: Mapping[str, tuple[Any, ...]]) -> Iterator[list[list[str]]]:
    """Columns of tables that fit on a page: names, then the values of runs; each run after the first also has its changes."""
    if not differing:
        return
    first, *others = ([run, *(_shown(name, values[i]) for name, values in differing.items())] for i, run in enumerate(runs))
    reference = [["", *differing], first]
    table = reference
    for number, values in enumerate(others, 1):
        columns = [values, ["change", *(_change(of[0], of[number]) for of in differing.values())]]
        too_wide = sum(max(map(len, column)) + 2 for column in (*table, *columns)) - 2 > page_columns()
        if too_wide and len(table) > len(reference):
            yield table
            table = reference
        table = [*table, *columns]
    yield table


def _shown(name: str, value: Any) -> str:
    """A value in words; a number in the unit that its name ends in."""
    if value is None:
        return "-"
    if _is_number(value) and (show := _unit(name)):
        return show(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    return text if len(text) <= WIDEST or name.startswith("perturb.") else f"{text[: WIDEST - 3]}..."


def _unit(name: str) -> Callable[[float], str] | None:
    """The text format of the quantity of a dotted name: of its last part that ends in a unit."""
    endings = (show for part in reversed(name.split(".")) for unit, show in UNITS.items() if f"_{part}".endswith(f"_{unit}"))
    return next(endings, None)


def _cut(name: str) -> str:
    """The name of a run in the head of a column; only the end of a long name, because paths differ there."""
    return name if len(name) <= WIDEST else f"...{name[3 - WIDEST :]}"


def _difference(values: tuple[Any, ...]) -> float:
    """Difference of the largest and the smallest value; a run without such a value counts as zero."""
    numbers = [value or 0.0 for value in values]
    return float(max(numbers) - min(numbers))


def _spread(values: tuple[Any, ...]) -> float:
    """The difference as a fraction of the largest magnitude; 1 for values that are not numbers."""
    if not all(value is None or _is_number(value) for value in values):
        return 1.0
    largest = float(max(abs(value or 0.0) for value in values))
    return _difference(values) / largest if largest else 0.0


def _change(first: Any, other: Any) -> str:
    """The difference of a value from that of the first run, if both are numbers; `=` if the two are equal."""
    if first == other:
        return "="
    return f"{other / first - 1:+.1%}" if _is_number(first) and _is_number(other) and first else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
