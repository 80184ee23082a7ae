"""`trainsim demo`: a first result, without a scenario file."""

from __future__ import annotations

import click

from ..files import make_folder
from ..units import show_s
from ._show import checked_folder, json_option, print_json, print_pairs, progress

SCENARIO = "llama3-70b-64xh100"


@click.command("demo", short_help="Show a first result, without a scenario file.")
@click.option(
    "--out",
    default="results/_scratch/demo",
    show_default=True,
    metavar="FOLDER",
    callback=checked_folder,
    help="Folder for the files.",
)
@json_option
def command(out: str, as_json: bool) -> None:
    """Simulate Llama-3 70B on 64 H100s, draw its timeline, and write its trace and its report."""
    from ..figures.drawing import save
    from ..figures.gantt import gantt
    from ..figures.trace import trace
    from ..report.page import report
    from ..simulation.runnable import load_one

    folder = make_folder(out)
    picture, trace_file, page = folder / "timeline.png", folder / "trace.json.gz", folder / "report.html"
    with progress("simulating"):
        run = load_one(SCENARIO).simulate()
    with progress("drawing"):
        save(gantt(run), picture)
        trace(run, trace_file)
        report(run, page)
    if as_json:
        print_json(run.as_dict() | {"files": [str(picture), str(trace_file), str(page)]})
        return
    files = [("timeline", str(picture)), ("trace", f"{trace_file}: open it in ui.perfetto.dev")]
    files.append(("report", f"{page}: open it in a browser"))
    print_pairs([*run.summary, ("took", show_s(run.wall_s)), *files])
