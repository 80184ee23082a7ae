"""`trainsim sweep`: simulation of every scenario of a grid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ._show import (
    checked_path,
    json_option,
    long_option,
    picture_option,
    print_json,
    print_notes,
    print_table,
    progress,
    progress_line,
    say,
    scenario_argument,
)
from ._work_options import SQLITE, shard_of_options, work_options, workers_of

if TYPE_CHECKING:
    import pandas as pd

    from ..config.document import Document
    from ..study.grid import Grid
    from ..study.shard import Shard
    from ..study.sweep import Effort, Outcome

    Points = Iterator[tuple[int, Document]]
    Simulated = Callable[[Points], Iterator[tuple[int, Outcome]]]

MOST_ROWS, MOST_LETTERS = 40, 60
"""Largest number of rows that are printed, and of characters of a reason."""
OVER_HELP = "A field and its values. May be repeated: all combinations are simulated. Lists are in brackets, as in [1,2]."
OUTPUT_HELP = "Write the rows as CSV or Parquet at the end, or as SQLite as they come."


@click.command("sweep", short_help="Simulate every combination of the values of some fields.")
@scenario_argument
@click.option("--over", "over", multiple=True, required=True, metavar="FIELD=VALUE,VALUE,...", help=OVER_HELP)
@click.option(
    "--output", metavar="FILE.csv|parquet|sqlite", callback=checked_path((".csv", ".parquet", SQLITE)), help=OUTPUT_HELP
)
@picture_option("--plot", help="Draw the step times over one field or two.")
@work_options
@long_option
@json_option
def command(
    scenario: str, settings: tuple[str, ...], trust: bool, over: tuple[str, ...], output: str | None, plot: str | None,
    as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Simulate SCENARIO with every combination of the values of some fields, and list the results.

    For example: trainsim sweep llama3-70b-64xh100 --over plan.tp=4,8 --over job.microbatch_size=1,2 --plot sweep.png

    A combination that cannot run is a row with its reason; if it does not fit in memory, the row says by how much. A table in
    SQLite has one row for each hash of a scenario and the program. Rows are committed as they come, and --resume continues a
    sweep that was stopped or killed.
    """
    from ..study.common_steps import NOTE, common_steps
    from ..study.grid import grid
    from ..study.sweep import Effort, outcomes

    shard = _checked(output, plot, len(over), options)
    found = grid(scenario, over, settings, trust=trust)
    numbers = shard.numbers(len(found))
    workers, effort = workers_of(options, len(numbers)), Effort(trust, options["long"], common_steps(found.base, found.axes))
    print_notes([NOTE] if effort.steps else [])
    with progress_line() as tell:
        simulated = partial(_told, tell, len(numbers), partial(outcomes, effort=effort, workers=workers))
        if str(output).lower().endswith(SQLITE):
            output = str(shard.file(str(output)))
            frame = _in_sqlite(found, effort, simulated, output, (numbers, options))
        else:
            frame = _in_memory(found, simulated)
    fields = [axis.name for axis in found.axes]
    _write(frame, fields, output, (plot, ", ".join([Path(scenario).name, *settings])))
    if as_json:
        rows = frame.astype(object).where(frame.notna(), None).to_dict(orient="records")
        over_values = {axis.name: list(axis.values) for axis in found.axes}
        print_json({"over": over_values, "points": len(found), "steps": effort.steps, "rows": rows})
        return
    _print(frame, fields)
    for file in filter(None, (output, plot)):
        say(f"written  {file}")


def _checked(output: str | None, plot: str | None, fields: int, options: dict[str, Any]) -> Shard:
    """The shard of the grid to simulate. Refuses outputs that cannot be written before anything is simulated."""
    from ._result_table import check_parquet

    shard = shard_of_options(options, output, "--output")
    if plot:
        from ..figures.sweep_plot import check_fields

        check_fields(fields)
    check_parquet(output or "")
    return shard


def _told(tell: Callable[[str], None], of: int, simulated: Simulated, points: Points) -> Iterator[tuple[int, Outcome]]:
    """The outcomes of points as they come; shows how many there are."""
    for number, one in enumerate(simulated(points), 1):
        tell(f"simulated {number:,} scenarios of {of:,}")
        yield one


def _in_memory(found: Grid, simulated: Simulated) -> pd.DataFrame:
    """The rows of all points."""
    from ..study.sweep import table

    numbers = range(len(found))
    points = ((number, found.document(found.point(number))) for number in numbers)
    return table(found, numbers, dict(simulated(points)).__getitem__)


def _in_sqlite(found: Grid, effort: Effort, simulated: Simulated, file: str, part: tuple[range, dict[str, Any]]) -> pd.DataFrame:
    """The rows of the points of a shard, each committed to a table as it comes."""
    from ..study.sweep import table
    from ._sweep_store import StoredSweep

    numbers, options = part
    with closing(StoredSweep(file, found, numbers, effort, resume=options["resume"], merge=options["merge"])) as stored:
        stored.fill(simulated)
        return table(found, numbers, stored.result)


def _write(frame: pd.DataFrame, fields: list[str], output: str | None, picture: tuple[str | None, str]) -> None:
    """Writes the table, unless it is in SQLite already, and the picture with its title."""
    from ._result_table import write_table

    if output and not output.lower().endswith(SQLITE):
        write_table(frame, output)
    plot, title = picture
    if plot:
        from ..figures.drawing import save
        from ..figures.sweep_plot import sweep_plot

        with progress("drawing"):
            save(sweep_plot(frame, fields, title), plot)


def _print(frame: pd.DataFrame, fields: list[str]) -> None:
    """Prints the rows in the order of the grid (of many rows only the fastest), and the number of rows of each kind."""
    from ..units import GIB, counted, show_s

    counts = Counter(frame.status)
    listed = frame if len(frame) <= MOST_ROWS else frame.sort_values("step_time_s", kind="stable").head(MOST_ROWS)
    rows = []
    for record in listed.astype(object).where(listed.notna(), None).to_dict(orient="records"):
        numbers = ["", "", "", ""]
        if record["step_time_s"] is not None:
            memory = f"{record['peak_memory_bytes'] / GIB:.1f} GiB"
            numbers = [show_s(record["step_time_s"]), f"{record['tokens_per_s']:,.0f}", f"{record['mfu']:.1%}", memory]
        why = "" if record["reason"] is None else _why(record)
        rows.append([*(str(record[field]) for field in fields), *numbers, why])
    right = range(len(fields), len(fields) + 4)
    print_table([*fields, "step time", "tokens/s", "MFU", "memory", "cannot run"], rows, right=right)
    if len(listed) < len(frame):
        say(f"... and {len(frame) - len(listed):,} rows more, none of them faster; --output FILE.csv has all")
    say(f"{counted(len(frame), 'scenario')}: {', '.join(f'{number:,} {status}' for status, number in sorted(counts.items()))}")


def _why(record: dict[Any, Any]) -> str:
    """The reason of a row, cut to fit on a line."""
    if record["over_gib"] is not None:
        return f"{record['status']}, {record['over_gib']:.1f} GiB over"
    reason = str(record["reason"])
    return reason if len(reason) <= MOST_LETTERS else f"{reason[: MOST_LETTERS - 3]}..."
