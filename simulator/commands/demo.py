"""`trainsim demo`: a first result, without a scenario file."""

from __future__ import annotations

import click

from ..files import make_folder
from ..units import show_s
from ._show import json_option, print_json, print_pairs, progress

SCENARIO = "llama3-70b-64xh100"


@click.command("demo", short_help="Show a first result, without a scenario file.")
@click.option(
    "--out", default="results/_scratch/demo", show_default=True, metavar="FOLDER", help="Folder for the picture and the trace."
)
@json_option
def command(out: str, as_json: bool) -> None:
    """Simulate Llama-3 70B on 64 H100s, draw its timeline and write its trace."""
    from ..figures.drawing import save
    from ..figures.gantt import gantt
    from ..figures.trace import trace
    from ..simulation.runnable import load_one

    folder = make_folder(out)
    picture, trace_file = folder / "timeline.png", folder / "trace.json.gz"
    with progress("simulating"):
        run = load_one(SCENARIO).simulate()
    with progress("drawing"):
        save(gantt(run), picture)
        trace(run, trace_file)
    if as_json:
        print_json(run.as_dict() | {"files": [str(picture), str(trace_file)]})
        return
    files = [("timeline", str(picture)), ("trace", f"{trace_file}: open it in ui.perfetto.dev")]
    print_pairs([*run.summary, ("took", show_s(run.wall_s)), *files])
