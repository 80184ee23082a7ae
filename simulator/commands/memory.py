"""`trainsim memory`: the memory of every pipeline rank, by class and over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..errors import Infeasible
from ..units import show_bytes, show_s
from ._show import json_option, long_option, print_json, print_notes, print_table, progress, scenario_argument

if TYPE_CHECKING:
    from ..study.step_views import MemoryReport


@click.command("memory", short_help="Show the memory of every pipeline rank.")
@scenario_argument
@long_option
@json_option
def command(scenario: str, settings: tuple[str, ...], trust: bool, long: bool, as_json: bool) -> None:
    """Show the memory of every pipeline rank of SCENARIO by class, and the time of its peak. Exit code 3 if it does not fit."""
    from ..simulation.memory_check import remedies
    from ..simulation.runnable import load_one
    from ..study.step_views import memory

    with progress("simulating") as expect:
        report = memory(load_one(scenario, settings, trust=trust), long=long, expect=expect)
    print_json(report.as_dict()) if as_json else _print_table(report)
    print_notes(report.run.notes)
    if report.over_gib and as_json:
        raise click.exceptions.Exit(Infeasible.exit_code)
    if report.over_gib:
        raise Infeasible(f"out of memory by {report.over_gib:.1f} GiB", hint=remedies(report.run.scenario))


def _print_table(report: MemoryReport) -> None:
    rows = []
    for rank, (times, held) in zip(report.run.memory, report.curves, strict=True):
        tensors = (rank.parameters_bytes, rank.gradients_bytes, rank.optimizer_bytes, rank.activations_bytes, rank.working_bytes)
        classes = (*tensors, rank.context_bytes, rank.nccl_bytes, rank.fragmentation_bytes, rank.total_bytes)
        rows.append([str(rank.rank), *map(show_bytes, classes), show_s(float(times[int(held.argmax())]))])
    headers = [
        "rank",
        "parameters",
        "gradients",
        "optimizer",
        "activations",
        "working set",
        "context",
        "NCCL",
        "fragmentation",
        "peak",
        "at",
    ]
    title = f"{report.run.scenario.model.name}, one GPU of each pipeline rank, of {show_bytes(report.capacity_bytes)}"
    print_table(headers, rows, right=range(len(headers)), title=title)
