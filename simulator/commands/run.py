"""`trainsim run`: the time of a training step, and its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from textwrap import fill
from typing import TYPE_CHECKING, Any

import click

from ..errors import UserError, shown
from ..simulation import ENGINES, MOST_STEPS
from ._show import (
    LONGEST,
    Count,
    Numbers,
    RankList,
    checked_folder,
    checked_path,
    json_option,
    long_option,
    picture_option,
    print_json,
    print_notes,
    print_pairs,
    print_table,
    progress,
    say,
    scenario_argument,
    text_columns,
)
from ._what_if import changed_steps, check_what_ifs, print_what_if, what_if_options

if TYPE_CHECKING:
    from ..simulation.jobs import SharedRun
    from ..simulation.op_costs import OpCost
    from ..simulation.run import Run

ENGINE_HELP = (
    "des: event loop of SimPy. heap: the same without SimPy. replay: longest path, where no link is shared. compiled: numba. "
    "All give equal results; auto picks one."
)
COSTS_HELP = (
    "List all kernels and collectives (of each job by itself): time, increase over the time in a short burst, model, "
    "provenance, standard error."
)
TRACE_HELP = "Write a trace of one rank of each kind for ui.perfetto.dev."
HTA_HELP = "Write traces in the format of PyTorch's profiler, for tools such as HTA: a file for one rank of each kind."
REPORT_HELP = "Write one HTML file with figures, timeline, memory, network and costs."
STEPS_HELP = "Simulate this number of steps from time zero and report their mean.  [default: one step of a long run]"


@click.command("run", short_help="Simulate a training step.")
@scenario_argument
@click.option("--engine", type=click.Choice(ENGINES, case_sensitive=False), default="auto", show_default=True, help=ENGINE_HELP)
@click.option("--no-fold", "folding", is_flag=True, flag_value=False, default=True, help="Simulate every rank, without folding.")
@click.option("--steps", type=Count(1, MOST_STEPS), help=STEPS_HELP)
@click.option("--allow-oom", is_flag=True, help="Simulate a plan that does not fit in memory.")
@picture_option("--gantt", help="Draw the timeline.")
@click.option(
    "--gantt-ranks", metavar="RANKS", type=RankList(), help="Ranks to draw, such as 0,8-11.  [default: one of each kind]"
)
@click.option(
    "--gantt-window",
    metavar="MS:MS",
    type=Numbers(":", "100:250", 0, LONGEST, ascending=True),
    help="Part of the time axis, in ms.",
)
@click.option("--gantt-size", metavar="WxH", type=Numbers("x", "14x6", 2, 100), help="Width and height in inches, such as 14x6.")
@click.option("--gantt-title", metavar="TEXT", help="Title of the timeline.")
@click.option("--trace", metavar="FILE.json[.gz]", callback=checked_path((".json", ".json.gz")), help=TRACE_HELP)
@click.option("--hta", metavar="FOLDER", callback=checked_folder, help=HTA_HELP)
@click.option("--report", metavar="FILE.html", callback=checked_path((".html",)), help=REPORT_HELP)
@click.option("--costs", is_flag=True, help=COSTS_HELP)
@what_if_options
@long_option
@json_option
def command(
    scenario: str, settings: tuple[str, ...], trust: bool, gantt: str | None, trace: str | None, hta: str | None,
    report: str | None, costs: bool, as_json: bool, gantt_ranks: list[int] | None, gantt_window: tuple[float, float] | None,
    gantt_size: tuple[float, float] | None, gantt_title: str | None, what_ifs: tuple[str, ...], tornado: str | None,
    **options: Any,
) -> None:  # fmt: skip
    """Simulate a training step of SCENARIO, a YAML file or a name that `trainsim catalog scenarios` lists.

    The interval printed with the step time contains the measured step for nine in ten published runs. `--costs` lists the
    standard error of every kernel and collective. Sample latency is the time from the start of a microbatch's first forward pass
    to the end of its last one, the mean over microbatches.

    A scenario with `jobs` runs several jobs at once on one cluster, and reports how much each job slows down.
    """
    from ..simulation.runnable import RunnableJobs, load
    from ..simulation.simulate import simulate_scenario
    from ..units import MS_PER_S, show_s

    look = {"ranks": gantt_ranks, "window_s": gantt_window, "size_in": gantt_size, "title": gantt_title}
    look = {name: value for name, value in look.items() if value is not None}
    if look and not gantt:
        raise UserError("options of the timeline need a file to draw it in", hint="add --gantt timeline.png")
    if gantt_window is not None:
        look["window_s"] = (gantt_window[0] / MS_PER_S, gantt_window[1] / MS_PER_S)
    with progress("simulating") as expect:
        found = load(scenario, settings, trust=trust)
        if isinstance(found, RunnableJobs):
            files = {"gantt": gantt, "trace": trace, "hta": hta, "report": report, "tornado": tornado}
            _refuse_extras({**options, **files, "what-if": what_ifs or None})
            patience = {"allow_oom": options["allow_oom"], "long": options["long"]}
            result: Run | SharedRun = found.simulate(**patience)
            listed = [(t.name, simulate_scenario(t.scenario, **patience)) for t in found.tenants if costs]
        else:
            check_what_ifs(scenario, settings, what_ifs, tornado, trust=trust)
            result = run = found.simulate(**options, expect=expect)
            listed = [("", run)] if costs else []
    written, changes = list[tuple[str, str]](), None
    if not isinstance(found, RunnableJobs):
        with progress("drawing"):
            written = [("took", show_s(run.wall_s)), *_write(run, (gantt, trace, hta, report), look)]
        patience = {"allow_oom": options["allow_oom"], "long": options["long"]}
        changes = changed_steps(scenario, settings, what_ifs, run, tornado, trust=trust, **patience)
        written += [("tornado", tornado)] if tornado else []
    print_notes(result.notes)
    if as_json:
        print_json({**_with_costs(result.as_dict(), listed), **({"what_if": changes.as_list()} if changes else {})})
        return
    print_pairs([*result.summary, *written])
    for name, one in listed:
        _list_costs(one, name)
    if changes:
        print_what_if(changes)


def _with_costs(record: dict[str, Any], listed: Sequence[tuple[str, Run]]) -> dict[str, Any]:
    """A record with the costs of its run, or of each of its jobs run by itself."""
    costs = [{"costs": [asdict(cost) for cost in (*run.kernel_costs, *run.collective_costs)]} for _, run in listed]
    if not costs:
        return record
    if "jobs" not in record:
        return {**record, **costs[0]}
    return {**record, "jobs": [{**job, **own} for job, own in zip(record["jobs"], costs, strict=True)]}


def _list_costs(run: Run, title: str) -> None:
    """Prints a table of all kernels and collectives, with standard errors; models are numbered, and named below it."""
    from ..units import US_PER_S, show_digits

    costs = (*run.kernel_costs, *run.collective_costs)
    number = {model: i for i, model in enumerate(dict.fromkeys(c.model for c in costs), 1)}
    rows = [
        [c.name, c.shape, c.ranks, f"{c.calls:,}", f"{show_digits(c.seconds_each * US_PER_S)}{_over_burst(c)}",
         f"{c.seconds / run.program.ranks * US_PER_S:,.0f}", str(number[c.model]),
         c.provenance + "*" * _beyond(c), f"{c.sigma:.0%}"]
        for c in costs
    ]  # fmt: skip
    names = "op, shape, pp, calls, us each, us per rank, model, provenance, std error"
    print_table(names.split(", "), rows, right=(3, 4, 5, 6, 8), title=title)
    if any(map(_beyond, costs)):
        say("* extrapolated: beyond the shapes that were measured")
    for model, i in number.items():
        say(fill(model, text_columns(), initial_indent=f"model {i:>2}  ", subsequent_indent=" " * 10, break_on_hyphens=False))


def _beyond(cost: OpCost) -> bool:
    """Whether a kernel lies beyond the measured sizes; for collectives the provenance says so."""
    return cost.extrapolated and not cost.axis


def _over_burst(cost: OpCost) -> str:
    """The time of a kernel relative to that in a short burst of launches; blank if they are equal."""
    more = f"{cost.over_burst - 1:+.0%}"
    return "     " if cost.over_burst == 1 else f" {more:>4}"


def _refuse_extras(options: dict[str, Any]) -> None:
    """Raises `UserError` for these options, none of which applies to several jobs on one cluster."""
    usual = {"engine": "auto", "folding": True}
    extra = [name for name, value in options.items() if name not in ("allow_oom", "long") and value != usual.get(name)]
    if extra:
        flags = ", ".join(f"--{'no-fold' if name == 'folding' else name}" for name in extra)
        raise UserError(f"{flags}: not for several jobs on one cluster", hint="leave it out, or run one of the jobs by itself")


def _check_window(run: Run, window_s: tuple[float, float] | None) -> None:
    """Refuses a window of the time axis that ends before it begins; the message has the unit of the option."""
    from ..units import MS_PER_S, seconds

    end_ms = seconds(run.observation.until_ns - run.observation.from_ns) * MS_PER_S
    if window_s is not None and window_s[0] * MS_PER_S >= end_ms:
        begins, until = (f"{at * MS_PER_S:.12g}" for at in window_s)
        message = f"--gantt-window {begins}:{until} shows nothing: the timeline ends at {end_ms:,.4g} ms"
        raise UserError(message, hint=f"a start below that, such as --gantt-window 0:{end_ms / 2:.3g}")


def _write(run: Run, places: Sequence[str | None], look: dict[str, Any]) -> list[tuple[str, str]]:
    """Writes the requested figures (timeline, trace, traces of ranks, report); returns their kinds and paths."""
    from ..units import counted

    gantt_file, trace_file, hta_folder, report_file = places
    written = []
    if gantt_file:
        from ..figures.drawing import save
        from ..figures.gantt import gantt

        _check_window(run, look.get("window_s"))
        save(gantt(run, **look), gantt_file)
        written.append(("timeline", gantt_file))
    if trace_file:
        from ..figures.trace import trace

        events = trace(run, trace_file)
        written.append(("trace", f"{trace_file}, {events:,} events: open it in ui.perfetto.dev"))
    if hta_folder:
        from ..figures.kineto import kineto, of_other_runs

        files = kineto(run, hta_folder)
        written.append(("traces", f"{hta_folder}, of {counted(len(files), 'rank')}: load the folder in HTA"))
        if others := of_other_runs(hta_folder, files):
            more = f"{counted(len(others), 'trace')} that this run did not write, such as {others[0]}"
            print_notes([f"the folder {shown(hta_folder)} holds {more}; HTA reads all of them"])
    if report_file:
        from ..report.page import report

        written.append(("report", f"{report_file}, {report(run, report_file).bars:,} operations: open it in a browser"))
    return written
