"""`trainsim flows`: flows over links, without a cluster or a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ._show import json_option, long_option, print_json, print_notes, print_table, progress

if TYPE_CHECKING:
    from ..study.flows import Ends


def _as_json(case: Ends) -> dict[str, Any]:
    flows = [{"end_s": end} for end in case.end_s]
    return {"name": case.name, "flows": flows, **({"rounded": True} if case.rounded else {})}


@click.command("flows", short_help="Compute when flows over shared links end.")
@click.argument("cases", type=click.Path(path_type=Path))
@long_option
@json_option
def command(cases: Path, long: bool, as_json: bool) -> None:
    """Compute when each flow of CASES, a JSON file, ends. Flows share links max-min fairly.

    The file holds {"cases": [{"name", "links": [{"capacity_Bps", "latency_s"}], "flows": [{"start_s", "size_B", "route"}]}]},
    where a route lists links by their index. End times are exact. For a case that would take too long, the compiled engine, if
    installed, computes them in 64 bits, rounded to about a millionth.
    """
    from ..study.flows import flows

    with progress("solving") as expect:
        solved = flows(cases, long=long, expect=expect)
    if as_json:
        print_json({"cases": [_as_json(case) for case in solved]})
        return
    rows = [[case.name, str(i), f"{end:.9g}"] for case in solved for i, end in enumerate(case.end_s)]
    print_table(["case", "flow", "end (s)"], rows, right=(1, 2))
    rounded = [case.name for case in solved if case.rounded]
    print_notes(f"{name}: ends are rounded to about a millionth, as the compiled engine computed them" for name in rounded)
