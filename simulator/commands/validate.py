"""`trainsim validate`: predicted beside measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ._show import json_option, print_json, print_table, progress

if TYPE_CHECKING:
    from ..study.validate import Report


@click.command("validate", short_help="Compare predictions with a table of measurements.")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--kind", required=True, help="What the rows are: collectives or kernels.")
@json_option
def command(file: Path | None, kind: str, as_json: bool) -> None:
    """Predict every row of FILE, a .csv or .csv.gz of measurements, and show how far off each source is.

    Rows that cannot be predicted are listed with the reason. The prediction of a row never sees what was measured.
    """
    from ..study.validate import validate

    with progress("predicting"):
        report = validate(kind.lower(), file)
        record = report.as_dict()
    print_json(record) if as_json else _tell(report, record)


def _tell(report: Report, record: dict[str, Any]) -> None:
    reasons: dict[str, int] = {}
    for row in report.rows:
        if row.skipped:
            reasons[row.skipped] = reasons.get(row.skipped, 0) + 1
    lines = [*record["sources"].items(), ("all", record["overall"])]
    cells = [[name, f"{s['n']:,}", *map(_percent, (s["median"], s["p90"], s["bias"]))] for name, s in lines]
    print_table(["source", "rows", "median", "p90", "bias"], cells, right=(1, 2, 3, 4))
    for reason, count in reasons.items():
        click.echo(f"skipped {count:,}: {reason}")


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:+.1%}" if value < 0 else f"{value:.1%}"
