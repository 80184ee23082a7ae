"""`trainsim explain`: why a step takes as long as it does, and what to change."""

from __future__ import annotations

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
"""Largest number of causes of idle time that are listed separately."""


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

    The waterfall removes one cause after another and simulates the step again; a cause adds the difference, and the remainder
    above the time of the model's flop at peak is the pipeline bubble. The critical path is the chain of tasks that waited for
    each other. Changes are simulated plans that fit in memory and differ from this one in one decision. Splits of the layers are
    tried as far as 30 s of estimated work allow, or all of them with --long.
    """
    from ..advise.explanation import explain
    from ..advise.neighbours import expected_work
    from ..simulation.runnable import load_one

    with progress("simulating"):
        loaded = load_one(scenario, settings, trust=trust)
        check_what_ifs(scenario, settings, what_ifs, tornado, trust=trust)
        run = loaded.simulate(allow_oom=allow_oom, long=long)
    work = expected_work(run, long=long)
    if work.is_long:
        print_notes([work.text])
    with progress("explaining") as expect:
        expect(work.effort)
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
    from ..advise.shown_parts import WATERFALL, idle_rows, path_sentences, waterfall_rows
    from ..units import show_s

    metrics = found.run.metrics
    say(f"A step takes {show_s(metrics.step_time_s)}, MFU {metrics.mfu:.1%}. It is longer than its flop at peak because of:")
    for number, loss in enumerate(found.losses, 1):
        _paragraph(f"{number:>2}. ", f"{loss.cause}: {loss.text}.")
    say()
    title = "Waterfall: causes removed one after another, from the step down to its flop at peak"
    print_table(WATERFALL, waterfall_rows(found.waterfall), right=(1, 2, 3), title=title)
    say()
    for sentence in path_sentences(found.path):
        _paragraph("", sentence)
    say()
    rows = [
        ["  " * row.part + row.text, f"{row.seconds / metrics.step_time_s:.2%}", show_s(row.seconds)]
        for row in idle_rows(found.idle, MOST_IDLE)
    ]
    title = "Time without kernels of the model, mean over ranks"
    print_table(["idle", "of the step", "seconds"], rows, right=(1, 2), title=title)
    say()
    if found.splits:
        _paragraph("layers    ", f"{found.splits.text(metrics.step_time_s)}.")
    if not found.best:
        say("No change that was tried makes the step shorter.")
    for number, change in enumerate(found.best, 1):
        _paragraph(f"change {number}  ", change.text)


def _paragraph(start: str, text: str) -> None:
    """Text wrapped to the width of the page, after a number."""
    behind = " " * len(start)
    say(
        fill(text, text_columns(), initial_indent=start, subsequent_indent=behind, break_on_hyphens=False, break_long_words=False)
    )
