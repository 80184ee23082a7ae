"""`trainsim validate`: predictions compared with measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ._show import json_option, not_empty, print_json, print_table, progress, say

if TYPE_CHECKING:
    from ..validate.report import ComparedRow, Report

FEW_ROWS = 20
"""Largest number of rows of a table that is shown row by row."""
MOST_RUNS = 8
LONG_HELP = "Allow tables of kernels or collectives that take more than 30 s. Rows of training are simulated without it, too."
BEYOND = "beyond the measured sizes"


@click.command("validate", short_help="Compare predictions with a table of measurements.")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--kind", required=True, help="Kind of the rows: collectives, kernels or training.")
@click.option("--rows", "with_rows", is_flag=True, help=f"Show every row.  [default: of tables of up to {FEW_ROWS}]")
@click.option(
    "--gpu",
    default="",
    callback=not_empty,
    help="GPU for rows of kernels that name none, or an unknown one: a name or a YAML file.",
)
@click.option(
    "--profile", default="", callback=not_empty, help="Profile written by `trainsim calibrate fit`, for kernels of its GPU."
)
@click.option("--save", type=click.Path(path_type=Path), help="Save outcomes of training to this file, and resume from it.")
@click.option("--show", "shown_id", metavar="ID", help="Print the scenario that a row of training becomes, and stop.")
@click.option("--long", is_flag=True, help=LONG_HELP)
@json_option
def command(
    file: Path | None,
    kind: str,
    with_rows: bool,
    gpu: str,
    profile: str,
    save: Path | None,
    shown_id: str | None,
    long: bool,
    as_json: bool,
) -> None:
    """Predict every row of FILE, a .csv or .csv.gz of measurements, and show how far off each source is.

    Kernels and collectives take seconds. Each row of training is a run: on two cores the rows that ship take one to four minutes,
    and a thousand rows two to eight. --save keeps finished rows.

    Without FILE the published training runs that ship are predicted (`trainsim catalog published`). Rows that cannot be predicted
    are listed with line and reason. The prediction of a row never uses its measurement. An `interval` of --json extends two
    standard errors to each side; that of a step includes the error of the model as a whole. Rows of training are steps of whole
    runs, simulated on all cores; a note names what a row states and the simulation leaves out.
    """
    from ..validate.report import Own, kind_named, rows_of, validate

    kind = kind_named(kind)
    if shown_id is not None:
        if gpu or profile or save or with_rows:
            raise click.UsageError("--show prints a scenario and predicts nothing: leave out --rows, --gpu, --profile and --save")
        from ..validate.row_scenario import of_row, scenario_text

        found = of_row(kind, rows_of(kind, file), shown_id)
        print_json(found.scenario) if as_json else say(scenario_text(found), nl=False)
        return
    from ._saved_outcomes import SavedOutcomes

    with progress("predicting") as expect:
        own = Own(gpu, profile) if gpu or profile else None
        report = validate(kind, file, own, long=long, saved=SavedOutcomes(save) if save else None, expect=expect)
        record = report.as_dict()
    for note in report.unread:
        say(note, err=True)
    print_json(record) if as_json else _print_report(report, record, with_rows=with_rows, has_lines=file is not None)


def _print_report(report: Report, record: dict[str, Any], *, with_rows: bool, has_lines: bool) -> None:
    """Prints a report. Rows of a table are named by their lines, others by their ids."""

    def places(rows: Sequence[int]) -> str:
        return _lines([report.lines[row] for row in rows]) if has_lines else ", ".join(str(report.rows[row].id) for row in rows)

    if with_rows or len(report.rows) <= FEW_ROWS:
        cells = []
        for row in report.rows:
            if not row.skipped:
                times = ("" if value is None else f"{value:,.2f}" for value in (row.measured, row.predicted))
                cells.append([str(row.id), row.source_key, *times, _percent(row.error), _provenance(row)])
        unit = report.rows[0].unit
        headers = ["id", "source", f"measured ({unit})", f"predicted ({unit})", "error", "provenance"]
        if not any(line[-1] for line in cells):
            headers, cells = headers[:-1], [line[:-1] for line in cells]
        print_table(headers, cells, right=(2, 3, 4))
        say()
    _print_sources(record)
    if known := Counter(row.provenance for row in report.rows if row.provenance):
        beyond = sum(BEYOND in _provenance(row) for row in report.rows)
        counts = [f"{count:,} {how}" for how, count in known.most_common()]
        say(f"provenance: {', '.join(counts)}" + (f"; {beyond:,} {BEYOND}" if beyond else ""))
    if unmeasured := [i for i, row in enumerate(report.rows) if row.measured is None]:
        say(f"not compared {len(unmeasured):,}: no measured time, {places(unmeasured)}")
    for word, texts in (("note on", [row.note for row in report.rows]), ("skipped", [row.skipped for row in report.rows])):
        for text in dict.fromkeys(filter(None, texts)):
            rows = [i for i, said in enumerate(texts) if said == text]
            say(f"{word} {len(rows):,}: {text}, {places(rows)}")


def _print_sources(record: dict[str, Any]) -> None:
    """Prints the scores of every source, of all rows, and of the rows that are also scored separately."""
    lines = [*record["sources"].items(), ("all", record["overall"])]
    if has_memory := any("memory" in scores for _, scores in lines):
        over = record["overall"]["over_sources"]
        lines += [(f"mean over {over['sources']} sources", over)]
    lines += [(f"apart: {group}", scores) for group, scores in record.get("apart", {}).items()]
    cells = [[name, *_scores(of), *(_scores(of.get("memory", {})) if has_memory else ())] for name, of in lines]
    headers = ["rows", "median", "p90", "bias"]
    memory = ["memory rows", *headers[1:]] if has_memory else []
    print_table(["source", *headers, *memory], cells, right=range(1, 1 + len(headers) + len(memory)))


def _scores(of: Mapping[str, Any]) -> list[str]:
    return [f"{of['n']:,}", *(_percent(of[key]) for key in ("median", "p90", "bias"))] if of else [""] * 4


def _provenance(row: ComparedRow) -> str:
    """The provenance of a prediction; that of a collective already implies whether it lies beyond what was measured."""
    provenance = row.provenance or ""
    return f"{provenance}, {BEYOND}" if row.extrapolated and provenance not in ("extrapolated", "theoretical") else provenance


def _lines(lines: Sequence[int]) -> str:
    """Line numbers of a table, with ranges for consecutive ones."""
    runs = ([line for _, line in run] for _, run in groupby(enumerate(lines), lambda one: one[1] - one[0]))
    shown = [f"{run[0]:,}-{run[-1]:,}" if len(run) > 1 else f"{run[0]:,}" for run in runs]
    more = f" and {len(shown) - MOST_RUNS:,} more" if len(shown) > MOST_RUNS else ""
    return f"line{'s' * (len(lines) > 1)} {', '.join(shown[:MOST_RUNS])}{more}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:+.1%}" if value < 0 else f"{value:.1%}"
