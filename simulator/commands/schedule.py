"""`trainsim schedule`: a pipeline schedule by itself, in unit times."""

from __future__ import annotations

import click

from ._show import checked_path, json_option, print_json, print_pairs, print_table

MOST_SLOTS = 4_000_000


@click.command("schedule")
@click.argument("name")
@click.option("--ranks", type=click.IntRange(1, 4096), required=True, help="Pipeline ranks P.")
@click.option("--microbatches", type=click.IntRange(1, 1_000_000), required=True, help="Microbatches M.")
@click.option("--chunks", type=click.IntRange(1, 1024), default=1, show_default=True, help="Stages per rank V.")
@click.option("--group", type=click.IntRange(1), help="Microbatches per round of an interleaved schedule, as Megatron counts.")
@click.option(
    "--F", "forward", type=click.FloatRange(0), default=1.0, show_default=True, help="Duration of a forward slot (one chunk)."
)
@click.option("--B", "backward", type=click.FloatRange(0), help="Of a whole backward slot.  [default: I + W]")
@click.option(
    "--I", "input_gradient", type=click.FloatRange(0), default=1.0, show_default=True, help="Of an input-gradient slot."
)
@click.option(
    "--W", "weight_gradient", type=click.FloatRange(0), default=1.0, show_default=True, help="Of a weight-gradient slot."
)
@click.option("--FB", "pair", type=click.FloatRange(0), help="Of an overlapped pair.  [default: F + B]")
@click.option("--comm", type=click.FloatRange(0), default=0.0, show_default=True, help="Latency of a crossing between ranks.")
@click.option("--plot", "plot_file", metavar="FILE", callback=checked_path((".png", ".svg", ".pdf")), help="Draw the schedule.")
@json_option
def command(
    name: str,
    ranks: int,
    microbatches: int,
    chunks: int,
    group: int | None,
    forward: float,
    backward: float | None,
    input_gradient: float,
    weight_gradient: float,
    pair: float | None,
    comm: float,
    plot_file: str | None,
    as_json: bool,
) -> None:
    """Evaluate schedule NAME (or `module:function`, or `file.py:function`): its order, bubble and memory."""
    from ..errors import UserError
    from ..program.slot import Shape, lay_out
    from ..study import catalog
    from ..study.evaluate import Durations, evaluate

    if ranks * chunks * microbatches > MOST_SLOTS:
        raise UserError(f"{ranks * chunks * microbatches:,} slots are more than one evaluation takes", hint="fewer microbatches")
    schedule = catalog.module("schedules", name)
    chunks = min(chunks, getattr(schedule, "MOST_CHUNKS", chunks))
    layout = lay_out(schedule, Shape(ranks, microbatches, chunks, group))
    result = evaluate(layout, Durations(forward, input_gradient, weight_gradient, backward, pair, comm))
    record = {"schedule": name, "shape": {"ranks": ranks, "chunks": chunks, "microbatches": microbatches}, **result.as_dict()}
    if plot_file:
        from ..figures.gantt import gantt, save

        title = (
            f"{name}, P={ranks} V={chunks} M={microbatches}: makespan {result.makespan:.6g}, bubble {record['bubble_ratio']:.2%}"
        )
        save(gantt(result, title=title), plot_file)
    if as_json:
        print_json(record)
        return
    print_pairs(
        [
            ("schedule", f"{name}, {ranks} ranks x {chunks} chunks, {microbatches} microbatches"),
            ("makespan", f"{result.makespan:.6g}"),
            ("span", f"{record['span']:.6g} at the longest rank, {record['span_bubble']:.6g} of it idle"),
            (
                "bubble",
                f"{record['bubble_ratio']:.4%} of the makespan (ratio), {record['bubble_overhead']:.4%} over the work (overhead)",
            ),
            *([("picture", plot_file)] if plot_file else []),
        ]
    )
    rows = [
        [str(rank), f"{record['busy_per_rank'][rank]:.6g}", f"{record['span_per_rank'][rank]:.6g}", str(record["peak"][rank])]
        for rank in range(ranks)
    ]
    print_table(["rank", "busy", "span", "peak chunks"], rows, right=range(4))
