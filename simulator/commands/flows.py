"""`trainsim flows`: flows over links, without a cluster or a model."""

from __future__ import annotations

from pathlib import Path

import click

from ._show import json_option, long_option, print_json, print_table, progress


@click.command("flows", short_help="Compute when flows over shared links end.")
@click.argument("cases", type=click.Path(path_type=Path))
@long_option
@json_option
def command(cases: Path, long: bool, as_json: bool) -> None:
    """Compute when each flow of CASES, a JSON file, ends. Flows share links max-min fairly.

    The file holds {"cases": [{"name", "links": [{"capacity_Bps", "latency_s"}], "flows": [{"start_s", "size_B", "route"}]}]},
    where a route lists links by their index.
    """
    from ..study import effort
    from ..study.flows import effort_of, end_times_s, read_cases

    with progress("solving") as expect:
        read = read_cases(cases)
        effort.check(effort_of(read), f"{sum(len(case.flows) for case in read):,} flows", "fewer flows", long=long, expect=expect)
        solved = [(case, end_times_s(case)) for case in read]
    if as_json:
        print_json({"cases": [{"name": case.name, "flows": [{"end_s": end} for end in ends]} for case, ends in solved]})
        return
    rows = [[case.name, str(i), f"{end:.9g}"] for case, ends in solved for i, end in enumerate(ends)]
    print_table(["case", "flow", "end (s)"], rows, right=(1, 2))
