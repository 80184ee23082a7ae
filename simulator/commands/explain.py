"""`trainsim explain`: why a step takes as long as it does, and what to change."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING

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
    say,
    scenario_argument,
    text_columns,
)
from ._what_if import changed_steps, check_what_ifs, print_what_if, what_if_options

if TYPE_CHECKING:
    from ..advise.explanation import Explanation

MOST_IDLE = 8
"""Most causes of idle time that are listed."""
MOST_LISTED = 5
"""Most stages, and most links, of the path that are listed."""


@click.command("explain", short_help="Say why a step is slow, and what to change.")
@scenario_argument
@click.option("--allow-oom", is_flag=True, help="Explain a plan that does not fit in memory.")
@picture_option("--waterfall", help="Draw the waterfall.")
@click.option(
    "--report",
    metavar="FILE.html",
    callback=checked_path((".html",)),
    help="Write an HTML report as `run` does, with this explanation.",
)
@what_if_options
@long_option
@json_option
def command(
    scenario: str, settings: tuple[str, ...], trust: bool, allow_oom: bool, long: bool, as_json: bool,
    waterfall: str | None, report: str | None, what_ifs: tuple[str, ...], tornado: str | None,
) -> None:  # fmt: skip
    """Say in words and numbers why a training step of SCENARIO takes as long as it does, and what would make it shorter.

    The waterfall removes one cause after another and simulates the step again; what a cause adds is the difference, and what
    remains above the model's flop at peak is the pipeline bubble. The critical path is the chain of tasks that waited for each
    other. Changes are simulated plans that fit in memory and differ from this one in one decision. Splits of the layers are tried
    as far as 30 s of estimated work allow, or all of them with --long.
    """
    from ..advise.explanation import explain
    from ..simulation.runnable import load_one

    with progress("simulating"):
        loaded = load_one(scenario, settings, trust=trust)
        check_what_ifs(scenario, settings, what_ifs, tornado, trust=trust)
        run = loaded.simulate(allow_oom=allow_oom, long=long)
        found = explain(run, long=long)
    if waterfall:
        from ..figures.drawing import save
        from ..figures.waterfall_plot import waterfall_plot

        save(waterfall_plot(run, found.waterfall), waterfall)
    if report:
        from ..report.page import report as write_report

        write_report(run, report, explanation=found)
    changes = changed_steps(scenario, settings, what_ifs, run, tornado, trust=trust, allow_oom=allow_oom, long=long)
    print_notes(run.notes)
    if as_json:
        print_json({**found.as_dict(), **({"what_if": changes.as_list()} if changes else {})})
        return
    _print(found)
    if changes:
        print_what_if(changes)


def _print(found: Explanation) -> None:
    from ..units import show_s

    metrics = found.run.metrics
    say(f"A step takes {show_s(metrics.step_time_s)}, MFU {metrics.mfu:.1%}. It is longer than its flop at peak because of:")
    for number, loss in enumerate(found.losses, 1):
        _paragraph(f"{number:>2}. ", f"{loss.cause}: {loss.text}.")
    say()
    rows = [
        [
            bar.cause,
            f"{found.waterfall.fraction(bar):z.2%}",
            *("" if s is None else show_s(s) for s in (bar.seconds, bar.alone_s)),
        ]
        for bar in found.waterfall.bars
    ]
    title = "Waterfall: causes removed one after another, from the step down to its flop at peak"
    print_table(["cause", "of the step", "seconds", "removed alone"], rows, right=(1, 2, 3), title=title)
    say()
    path = found.path
    parts = ", ".join(f"{name} {show_s(value)}" for name, value in path.by_category.items())
    _paragraph("", f"Critical path, {len(path.segments):,} operations: {parts}.")
    stages = {stage: took for stage, took in path.by(lambda segment: segment.stage).items() if stage >= 0}
    if len(stages) > 1:
        _paragraph("", f"Stages on the path: {_listed([(f'stage {stage}', took) for stage, took in stages.items()])}.")
    if path.by_link:
        _paragraph("", f"Full links on the path: {_listed(list(path.by_link.items()))}.")
    say()
    rows = [
        [cause.text, f"{seconds / metrics.step_time_s:.2%}", show_s(seconds)] for cause, seconds in found.idle.largest.items()
    ]
    print_table(
        ["idle", "of the step", "seconds"],
        rows[:MOST_IDLE],
        right=(1, 2),
        title="Time without kernels of the model, mean over ranks",
    )
    if len(rows) > MOST_IDLE:
        say(f"{len(rows) - MOST_IDLE} more causes are shorter; --json has them, and those of every rank.")
    say()
    if found.splits:
        _paragraph("layers    ", f"{found.splits.text(metrics.step_time_s)}.")
    if not found.best:
        say("No change that was tried makes the step shorter.")
    for number, change in enumerate(found.best, 1):
        _paragraph(f"change {number}  ", change.text)


def _listed(taken_s: Sequence[tuple[str, float]]) -> str:
    """Names with seconds, and how many more there are than are listed."""
    from ..units import show_s

    more = [f"and {len(taken_s) - MOST_LISTED:,} more"] if len(taken_s) > MOST_LISTED else []
    return ", ".join([*(f"{name}: {show_s(took)}" for name, took in taken_s[:MOST_LISTED]), *more])


def _paragraph(start: str, text: str) -> None:
    """Text wrapped to the width of the page, behind a number."""
    behind = " " * len(start)
    say(
        fill(text, text_columns(), initial_indent=start, subsequent_indent=behind, break_on_hyphens=False, break_long_words=False)
    )
