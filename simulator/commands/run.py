"""`trainsim run`: a scenario in, the time of a step and what it is made of out."""

from __future__ import annotations

import click

from ._show import checked_path, json_option, print_json, print_pairs, progress, set_option


@click.command("run")
@click.argument("scenario")
@set_option
@click.option(
    "--engine",
    type=click.Choice(["auto", "des", "replay"]),
    default="auto",
    show_default=True,
    help="des is the event loop; replay, where nothing shares a link, gives the same; auto picks.",
)
@click.option("--no-fold", is_flag=True, help="Simulate every rank, alike or not.")
@click.option(
    "--steps", type=click.IntRange(1, 1000), default=1, show_default=True, help="Training steps in a row; the last is measured."
)
@click.option("--allow-oom", is_flag=True, help="Simulate a plan that does not fit in memory.")
@click.option("--gantt", "gantt_file", metavar="FILE", callback=checked_path((".png", ".svg", ".pdf")), help="Draw the timeline.")
@click.option(
    "--trace",
    "trace_file",
    metavar="FILE",
    callback=checked_path((".json", ".json.gz")),
    help="Write a trace for ui.perfetto.dev.",
)
@json_option
def command(
    scenario: str,
    settings: tuple[str, ...],
    engine: str,
    no_fold: bool,
    steps: int,
    allow_oom: bool,
    gantt_file: str | None,
    trace_file: str | None,
    as_json: bool,
) -> None:
    """Simulate a training step of SCENARIO: a YAML file, or a name that `trainsim catalog scenarios` lists."""
    from ..study.load import load

    with progress("simulating"):
        run = load(scenario, settings).simulate(engine=engine, folding=not no_fold, steps=steps, allow_oom=allow_oom)
        record = run.as_dict()
    written = []
    with progress("drawing"):
        if gantt_file:
            from ..figures.gantt import gantt, save

            save(gantt(run), gantt_file)
            written.append(("timeline", gantt_file))
        if trace_file:
            from ..figures.trace import trace

            events = trace(run, trace_file)
            written.append(("trace", f"{trace_file}, {events:,} events: open it in ui.perfetto.dev"))
    if as_json:
        print_json(record)
    else:
        print_pairs([*run.summary, *written])
