"""`trainsim schedule`: a pipeline schedule by itself, in unit times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ._show import Count, Duration, checked_path, json_option, print_json, print_pairs, print_table

if TYPE_CHECKING:
    from ..program.slot import Shape
    from ..study.evaluate import Evaluation

MOST_SLOTS = 4_000_000


@click.command("schedule", short_help="Evaluate a pipeline schedule: order, bubble, memory.")
@click.argument("name")
@click.option("--ranks", type=Count(1, 4096), required=True, help="Pipeline ranks P.")
@click.option("--microbatches", type=Count(1, 1_000_000), required=True, help="Microbatches M.")
@click.option("--chunks", type=Count(1, 1024), default=1, show_default=True, help="Stages per rank V.")
@click.option("--group", type=Count(1), help="Microbatches per round of an interleaved schedule, as Megatron counts.")
@click.option("--F", "forward", type=Duration(), default=1.0, show_default=True, help="Of a forward slot (one chunk).")
@click.option("--B", "backward", type=Duration(), help="Of a whole backward slot.  [default: I + W]")
@click.option("--I", "input_gradient", type=Duration(), default=1.0, show_default=True, help="Of an input-gradient slot.")
@click.option("--W", "weight_gradient", type=Duration(), default=1.0, show_default=True, help="Of a weight-gradient slot.")
@click.option("--FB", "pair", type=Duration(), help="Of an overlapped pair.  [default: F + B]")
@click.option("--comm", type=Duration(), default=0.0, show_default=True, help="Of a crossing between ranks.")
@click.option("--plot", "plot_file", metavar="FILE", callback=checked_path((".png", ".svg", ".pdf")), help="Draw the schedule.")
@json_option
def command(name: str, plot_file: str | None, as_json: bool, **options: Any) -> None:
    """Evaluate schedule NAME (or `module:function`, or `file.py:function`): its order, bubble and memory.

    Durations have no unit; only their ratios matter. Options that a schedule has no use for are ignored.
    """
    from ..program.slot import Durations, Shape, as_taken, lay_out
    from ..study import catalog
    from ..study.evaluate import evaluate

    sizes = {field: options.pop(field) for field in ("ranks", "microbatches", "chunks", "group")}
    schedule = catalog.module("schedules", name)
    shape = as_taken(schedule, Shape(**sizes, durations=Durations(**options)))
    _must_be_small(shape)
    result = evaluate(lay_out(schedule, shape))
    sizes = {"ranks": shape.ranks, "chunks": shape.chunks, "microbatches": shape.microbatches}
    record = {"schedule": name, "shape": sizes, **result.as_dict()}
    if plot_file:
        from ..figures.gantt import gantt, save

        title = f"{name}, P={shape.ranks} V={shape.chunks} M={shape.microbatches}: makespan {result.makespan:.6g}"
        save(gantt(result, title=f"{title}, bubble {record['bubble_ratio']:.2%}"), plot_file)
    if as_json:
        print_json(record)
    else:
        _tell(name, result, record, plot_file)


def _must_be_small(shape: Shape) -> None:
    """Raises `OutsideDomain` if the shape is too large to evaluate."""
    from ..errors import OutsideDomain

    slots = shape.stages * shape.microbatches
    if slots > MOST_SLOTS:
        reason = f"{slots:,} slots are more than one evaluation takes: at most {MOST_SLOTS:,}"
        nearest = {"microbatches": max(1, MOST_SLOTS // shape.stages)}
        raise OutsideDomain(reason, nearest=nearest if shape.stages <= MOST_SLOTS else {"chunks": MOST_SLOTS // shape.ranks})


def _tell(name: str, result: Evaluation, record: dict[str, Any], plot_file: str | None) -> None:
    shape, ratio, overhead = result.layout.shape, record["bubble_ratio"], record["bubble_overhead"]
    pairs = [
        ("schedule", f"{name}, {shape.ranks} ranks x {shape.chunks} chunks, {shape.microbatches} microbatches"),
        ("makespan", f"{result.makespan:.6g}"),
        ("span", f"{record['span']:.6g} at the longest rank, {record['span_bubble']:.6g} of it idle"),
        ("bubble", f"{ratio:.4%} of the makespan (ratio), {overhead:.4%} over the work (overhead)"),
    ]
    print_pairs([*pairs, *([("picture", plot_file)] if plot_file else [])])
    columns = zip(record["busy_per_rank"], record["span_per_rank"], record["peak"], strict=True)
    rows = [[str(rank), f"{busy:.6g}", f"{span:.6g}", str(peak)] for rank, (busy, span, peak) in enumerate(columns)]
    print_table(["rank", "busy", "span", "peak chunks"], rows, right=range(4))
