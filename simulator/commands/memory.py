"""`trainsim memory`: the memory of every pipeline rank, by class and over time, and every term of one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..errors import Infeasible
from ..units import GIB, show_bytes, show_s
from ._advice import print_remedies
from ._show import (
    Count,
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
)

if TYPE_CHECKING:
    from ..study.memory_explained import MemoryExplained
    from ..study.step_views import MemoryReport


@click.command("memory", short_help="Show the memory of every pipeline rank.")
@scenario_argument
@click.option("--explain", is_flag=True, help="Show every term of one rank at its peak, with its formula.")
@click.option("--rank", type=Count(0), help="Pipeline rank to explain.  [default: the fullest]")
@picture_option("--plot", help="Draw the memory over time.")
@click.option("--remedies", "listing", is_flag=True, help="List changes that make the plan fit, by their step time.")
@long_option
@json_option
def command(
    scenario: str, settings: tuple[str, ...], trust: bool, explain: bool, rank: int | None, plot: str | None,
    listing: bool, long: bool, as_json: bool,
) -> None:  # fmt: skip
    """Show the memory of every pipeline rank of SCENARIO by class, and the time of its peak. Exit code 3 if it does not fit.

    With --explain the term of an operator is the memory that it keeps for its gradients: mostly its input.
    """
    from ..advise.remedies import remedies
    from ..simulation.runnable import load_one
    from ..study.step_views import memory

    if rank is not None and not explain:
        raise click.UsageError("--rank selects the rank for --explain, and has no effect without it")
    with progress("simulating") as expect:
        report = memory(load_one(scenario, settings, trust=trust), long=long, expect=expect)
        found = remedies(report.run.scenario, long=long) if listing else ()
    if plot is not None:
        from ..figures.drawing import save
        from ..figures.memory_plot import memory_plot

        save(memory_plot(report.run), plot)
    lacking = _lacking(report)
    if as_json:
        listed = {"remedies": [one.as_dict() for one in found]} if listing else {}
        told = {"infeasible": str(lacking)} if lacking else {}
        print_json({**(report.explain(rank) if explain else report).as_dict(), **listed, **told})
    else:
        _print_terms(report.explain(rank)) if explain else _print_table(report)
        print_pairs([("picture", plot)]) if plot else None
        print_remedies(found) if found else None
    print_notes(report.run.notes)
    if lacking and as_json:
        raise click.exceptions.Exit(Infeasible.exit_code)
    if lacking:
        raise lacking


def _lacking(report: MemoryReport) -> Infeasible | None:
    """The error for memory that GPUs or hosts lack."""
    from ..simulation.memory_check import remedies

    if report.host_over_gib:
        return Infeasible(f"out of host memory by {report.host_over_gib:.1f} GiB", hint="offload less")
    if report.over_gib:
        return Infeasible(f"out of memory by {report.over_gib:.1f} GiB", hint=remedies(report.run.scenario))
    return None


def _print_table(report: MemoryReport) -> None:
    from ..simulation.memory_check import host_summary

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
        "in flight",
        "working set",
        "context",
        "NCCL",
        "fragmentation",
        "peak",
        "at",
    ]
    title = f"{report.run.scenario.model.name}, one GPU of each pipeline rank, of {show_bytes(report.capacity_bytes)}"
    print_table(headers, rows, right=range(len(headers)), title=title)
    say("in flight: activations, logits, buffers of microbatches; --explain lists all")
    say(report.verdict)
    if report.run.host_bytes:
        print_pairs([("host memory", host_summary(report.run.scenario, report.run.memory))])


def _print_terms(shown: MemoryExplained) -> None:
    total_bytes = shown.memory.total_bytes
    rows = []
    for kind, items in shown.classes.items():
        rows.append([kind.value, "", *_amount(sum(item.size_bytes for item in items), total_bytes)])
        rows += [[f"  {item.what}", item.formula, *_amount(item.size_bytes, total_bytes)] for item in items]
    rows.append(["total", "", *_amount(total_bytes, total_bytes)])
    title = f"{shown.run.scenario.model.name}, a GPU of pipeline rank {shown.memory.rank} at its peak"
    print_table(["term", "formula", "GiB", "share"], rows, right=(2, 3), title=title)
    print_pairs(shown.summary)


def _amount(size_bytes: int, total_bytes: int) -> tuple[str, str]:
    """A number of bytes in GiB, and its share of the total."""
    return f"{size_bytes / GIB:,.2f}", f"{size_bytes / total_bytes:.1%}"
