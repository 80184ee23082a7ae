"""`trainsim flows`: bare flows over a bare graph."""

from __future__ import annotations

from pathlib import Path

import click

from ._show import json_option, long_option, print_json, print_table, progress


@click.command("flows", short_help="Solve bare flows over a bare graph.")
@click.argument("cases", type=click.Path(path_type=Path))
@long_option
@json_option
def command(cases: Path, long: bool, as_json: bool) -> None:
    """Solve the fluid cases of a JSON file: when each flow ends, sharing links max-min fairly.

    The file holds {"cases": [{"name", "links": [{"capacity_Bps", "latency_s"}], "flows": [{"start_s", "size_B", "route"}]}]},
    where a route lists links by their index.
    """
    from ..study.flows import flows

    with progress("solving") as expect:
        solved = flows(cases, long=long, expect=expect)
    if as_json:
        print_json({"cases": [{"name": case.name, "flows": [{"end_s": end} for end in case.end_s]} for case in solved]})
        return
    rows = [[case.name, str(i), f"{end:.9g}"] for case in solved for i, end in enumerate(case.end_s)]
    print_table(["case", "flow", "end (s)"], rows, right=(1, 2))
