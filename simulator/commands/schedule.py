"""`trainsim schedule`: one pipeline schedule in unit times, or a comparison of several."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ..config import catalog, torch_csv
from ..errors import UserError, either
from ._show import (
    Count,
    Duration,
    Positive,
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
)

if TYPE_CHECKING:
    from ..study.schedule import Evaluation
    from ..study.schedule_verbs import Comparison

MEMORY_COUNT_HELP = "How a search counts activations: half of each freed at I (half), or all held from F to W (fw)."


class Durations(click.types.FloatParamType):
    """A duration, or one for each stage."""

    name = "duration[,...]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        one = Duration()
        if not isinstance(value, str):
            return one.convert(value, param, ctx)
        numbers = tuple(one.convert(part, param, ctx) for part in value.split(","))
        return numbers if len(numbers) > 1 else numbers[0]


@click.command(
    "schedule", short_help="Evaluate pipeline schedules: order, bubble, memory.", context_settings={"show_default": True}
)
@click.argument("name", required=False)
@click.option("--compare", metavar="A,B,...", help="Compare these schedules at equal work (see above).")
@click.option("--ranks", type=Count(1, 4096), help="Number of pipeline ranks, P.  [required unless NAME is a CSV file]")
@click.option("--microbatches", type=Count(1, 1_000_000), help="Number of microbatches, M.  [required unless NAME is a CSV file]")
@click.option("--chunks", type=Count(1, 1024), default=1, help="Stages per rank, V.")
@click.option("--group", type=Count(1), help="Microbatches per group of an interleaved schedule, as in Megatron-LM.")
@click.option("--splits", type=Count(1, 1024), default=2, help="Parts of each sequence, if it is split.")
@click.option("--memory-limit", type=Positive(), default=1.0, help="Limit of activations, in multiples of P.")
@click.option("--F", "forward", type=Durations(), default=1.0, help="Duration of a forward slot.")
@click.option("--B", "backward", type=Durations(), help="Duration of a backward slot.  [default: I + W]")
@click.option("--I", "input_gradient", type=Durations(), default=1.0, help="Duration of an input-gradient slot.")
@click.option("--W", "weight_gradient", type=Durations(), default=1.0, help="Duration of a weight-gradient slot.")
@click.option("--FB", "pair", type=Duration(), help="Duration of an overlapped pair of slots.  [default: F + B]")
@click.option("--comm", type=Duration(), default=0.0, help="Latency of a transfer between ranks.")
@click.option(
    "--objective",
    type=click.Choice(["makespan", "span"], case_sensitive=False),
    default="makespan",
    help="The time that a searched schedule minimises.",
)
@click.option("--memory-count", type=click.Choice(["fw", "half"], case_sensitive=False), default="half", help=MEMORY_COUNT_HELP)
@click.option("--time-limit", "time_limit_s", type=Positive(), default=60.0, help="Seconds for a search.")
@click.option("--csv", "csv_file", metavar="FILE.csv", callback=checked_path((".csv",)), help="Write the table for PyTorch.")
@picture_option("--plot", "plot_file", help="Draw the schedule.")
@long_option
@json_option
def command(
    name: str | None, compare: str | None, csv_file: str | None, plot_file: str | None, long: bool, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Evaluate the pipeline schedule NAME: the order of its slots, its bubble and its memory.

    NAME is a schedule that `trainsim catalog schedules` lists, a Python file (`file.py`), a function (`module:function` or
    `file.py:function`), or a CSV file. A function called order or orders brings along the other names of its module, such as
    placement, CHUNKS and exchanges; a function of another name stands alone. A CSV file is the compute-only table of
    torch.distributed.pipelining; it determines the ranks, the microbatches and the chunks.

    Durations have no unit: only their ratios matter. F, B, I and W each take one number, or one number for each stage,
    separated by commas. Options that do not apply to a schedule are ignored.

    The bubble ratio is the idle fraction of the makespan: 1 - mean busy time / makespan. The bubble overhead compares the
    makespan with the work of the busiest rank: makespan / busy time - 1.

    With --compare all schedules do the same work. A duration then stands for the whole share of a rank in one microbatch, and
    is divided by the chunks and the splits of each schedule. M counts whole microbatches. Several durations stand for P equal
    parts of the model. `#` is the place by makespan, without and with the latency c of --comm; `activations` is the largest
    number of microbatches whose activations one rank holds; `copies` is the number of copies of the model (2 for schedules of
    two directions).
    """
    names = [*([name] if name else []), *(part.strip() for part in (compare or "").split(",") if part.strip())]
    if name and compare is None:
        _evaluate(name, {**options, "long": long}, csv_file, plot_file, as_json=as_json)
    elif names and csv_file:
        raise UserError("--csv writes one schedule, not several", hint="leave out --compare, or --csv")
    else:
        _compare(names, {**options, "long": long}, plot_file, as_json=as_json)


def _evaluate(name: str, options: dict[str, Any], csv_file: str | None, plot_file: str | None, *, as_json: bool) -> None:
    """Evaluates one schedule; prints, writes and draws the result."""
    from ..study.schedule_verbs import schedule

    with progress(f"evaluating {catalog.called(name)}"):
        result = schedule(name, **options)
    print_notes(_without_effect(name, options, result))
    if csv_file:
        torch_csv.write(result.layout, csv_file)
    if plot_file:
        from ..figures.drawing import save
        from ..figures.gantt import gantt

        save(gantt(result), plot_file)
    if as_json:
        print_json(result.as_dict())
        return
    written = [(what, file) for what, file in (("table", csv_file), ("picture", plot_file)) if file]
    print_pairs([*result.summary, *_proof(result.certificate), *written])
    columns = zip(result.busy, result.span_per_rank, result.peaks["peak"], strict=True)
    rows = [[str(rank), f"{busy:.6g}", f"{span:.6g}", str(peak)] for rank, (busy, span, peak) in enumerate(columns)]
    print_table(["rank", "busy", "span", "peak chunks"], rows, right=range(4))


def _without_effect(name: str, options: dict[str, Any], result: Evaluation) -> Iterator[str]:
    """Notes on options that do not change the order of this schedule, although another schedule would use them."""
    if options["chunks"] > 1 and result.layout.shape.chunks == 1:
        yield f"{catalog.called(name)} has one chunk on each rank: --chunks {options['chunks']} has no effect"
    limit, by_name = options["memory_limit"], not catalog.is_code(name) and not catalog.is_table(name)
    if limit != 1 and by_name and "memory_limit" not in _options_of(name):
        able = either(other for other in catalog.files("schedules") if "memory_limit" in _options_of(other))
        yield f"{catalog.called(name)} has no memory limit: --memory-limit {limit:g} has no effect; {able} has one"


def _options_of(schedule: str) -> tuple[str, ...]:
    """The options that apply to a schedule of the catalog."""
    return tuple(getattr(catalog.module("schedules", schedule), "OPTIONS", ()))


def _proof(certificate: Any) -> list[tuple[str, str]]:
    """The proven distance of a searched schedule from the best possible one."""
    if certificate is None:
        return []
    bound = f"{certificate.lower_bound:.6g}, and the {certificate.objective} found is {certificate.value:.6g}"
    gap = "" if certificate.proven else f"not proven, gap {certificate.gap:.2%}; "
    return [("lower bound", f"{bound}: {gap}{certificate.status}")]


def _compare(names: list[str], options: dict[str, Any], plot_file: str | None, *, as_json: bool) -> None:
    """Compares several schedules."""
    from ..study.schedule_verbs import compare_schedules

    with progress(f"evaluating {len(names)} schedules"):
        found = compare_schedules(names, **options)
    plot_file = plot_file if found.entries else None
    if plot_file:
        from ..figures.drawing import save
        from ..figures.gantt import gantt

        save(gantt(found), plot_file)
    if as_json:
        print_json(found.as_dict())
        return
    _print_comparison(found)
    if plot_file:
        print_pairs([("picture", plot_file)])


def _print_comparison(found: Comparison) -> None:
    from ..study.schedule import crossings

    headers, rows = ["schedule", "V"], []
    for result in found.entries[0].results if found.entries else ():
        headers += [f"c = {result.durations.comm:g}: #", "makespan", "bubble ratio"]
    for entry, mine in zip(found.entries, found.places, strict=True):
        copies = f" ({entry.copies} copies)" if entry.copies > 1 else ""
        cells = [catalog.called(entry.name) + (f" ({entry.splits} splits)" if entry.splits > 1 else copies), str(entry.chunks)]
        for place, result in zip(mine, entry.results, strict=True):
            shift = mine[0] - place  # number of places that the latency shifts it
            cells.append(f"{place} ({'↑' if shift > 0 else '↓'}{abs(shift)})" if shift else str(place))
            cells += [f"{result.makespan:.6g}", f"{result.bubble_ratio:.2%}"]
        rows.append([*cells, f"{entry.peak_microbatches:g}", f"{crossings(entry.results[0].layout):,}"])
    if rows:
        right = [column for column in range(1, len(headers) + 2) if column not in range(2, len(headers), 3)]
        print_table([*headers, "activations", "transfers"], rows, right=right)
    for name, refusal in found.refused.items():
        nearest = ", ".join(f"{size} {value}" for size, value in refusal.nearest.items())
        say(f"{catalog.called(name)} does not apply: {refusal.reason}" + (f" (nearest legal: {nearest})" if nearest else ""))
