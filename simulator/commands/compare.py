"""`trainsim compare`: what differs between scenarios, and between their results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..errors import Infeasible, UserError
from ._show import json_option, long_option, picture_path, print_json, print_table, progress, say, trust_option

if TYPE_CHECKING:
    from ..study.compare import Comparison

FEWEST = 2
MOST_OPERATORS = 8
"""Operators that are listed, those whose time differs most."""
NO_CHANGE = ("+0.0%", "-0.0%")


@click.command("compare", short_help="Show what differs between scenarios and their steps.")
@click.argument("scenarios", nargs=-1, required=True)
@click.option("--allow-oom", is_flag=True, help="Simulate plans that do not fit in memory.")
@click.option("--gantt", metavar="FILE", callback=picture_path, help="Draw the timelines, one below another on one time axis.")
@trust_option
@long_option
@json_option
def command(scenarios: tuple[str, ...], allow_oom: bool, gantt: str | None, trust: bool, long: bool, as_json: bool) -> None:
    """Simulate two or more SCENARIOS and show the fields that differ, and the results that differ.

    Results are the metrics, the time of every stage, and the time of every operator and axis of communication on a mean rank.
    What is equal in all is left out.
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
        from ..figures.gantt import gantts

        save(gantts(found.runs), gantt)
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
    listed = {name: found.result[name] for name in shown if _change(found.result[name]) not in NO_CHANGE}
    for title, differing in (("Scenarios differ in", found.scenario), ("Results differ in", listed)):
        if differing:
            rows = [[name, *map(_shown, values), _change(values)] for name, values in differing.items()]
            print_table(["", *found.runs, "change"], rows, right=range(1, len(found.runs) + 2), title=title)
            say()
    if less := len(found.result) - len(listed):
        say(f"{less} more results differ, by less than 0.05%, or are operators that differ less; --json has them.")


def _shown(value: Any) -> str:
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _difference(values: tuple[Any, ...]) -> float:
    """Between the largest and the smallest; a run without such a value has zero."""
    numbers = [value or 0.0 for value in values]
    return float(max(numbers) - min(numbers))


def _change(values: tuple[Any, ...]) -> str:
    """By how much the last differs from the first, where both are numbers."""
    first, last = values[0], values[-1]
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (first, last))
    return f"{last / first - 1:+.1%}" if numbers and first else ""
