"""`trainsim memory`: the memory of every pipeline rank, by class and over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ._show import json_option, long_option, print_json, print_notes, print_table, progress, set_option, trust_option

if TYPE_CHECKING:
    from ..study.runs.run import Run


@click.command("memory", short_help="Show the memory of every pipeline rank.")
@click.argument("scenario")
@set_option
@trust_option
@long_option
@json_option
def command(scenario: str, settings: tuple[str, ...], trust: bool, long: bool, as_json: bool) -> None:
    """Show the memory of every pipeline rank of SCENARIO by class, and the time of its peak. Exit code 3 if it does not fit."""
    from ..errors import Infeasible
    from ..study.scenarios.load import load_one
    from ..units import GIB

    with progress("simulating") as expect:
        run = load_one(scenario, settings, trust=trust).simulate(allow_oom=True, long=long, expect=expect)
    over_gib = max(0.0, (run.peak_memory_bytes - run.scenario.cluster.gpu.memory_bytes) / GIB)
    _print_record(run, over_gib) if as_json else _print_table(run)
    print_notes(run.notes)
    if over_gib and as_json:
        raise click.exceptions.Exit(Infeasible.exit_code)
    if over_gib:
        from ..study.fits import remedies

        raise Infeasible(f"out of memory by {over_gib:.1f} GiB", hint=remedies(run.scenario))


def _print_record(run: Run, over_gib: float) -> None:
    from ..study.runs.run import memory_record

    curves = [(rank.rank, *run.memory_over_time(rank.rank)) for rank in run.memory]
    record = {
        "peak_memory_bytes": run.peak_memory_bytes,
        "capacity_bytes": run.scenario.cluster.gpu.memory_bytes,
        "fits": run.fits,
        "over_gib": over_gib,
        "memory_by_stage": [memory_record(rank) for rank in run.memory],
        "over_time": [{"rank": rank, "time_s": times, "bytes": held} for rank, times, held in curves],
    }
    print_json(record)


def _print_table(run: Run) -> None:
    from ..units import show_bytes, show_s

    rows = []
    for rank in run.memory:
        tensors = (rank.parameters_bytes, rank.gradients_bytes, rank.optimizer_bytes, rank.activations_bytes)
        classes = (*tensors, rank.context_bytes, rank.nccl_bytes, rank.fragmentation_bytes, rank.total_bytes)
        times, held = run.memory_over_time(rank.rank)
        rows.append([str(rank.rank), *map(show_bytes, classes), show_s(float(times[int(held.argmax())]))])
    headers = ["rank", "parameters", "gradients", "optimizer", "activations", "context", "NCCL", "fragmentation", "peak", "at"]
    have = show_bytes(run.scenario.cluster.gpu.memory_bytes)
    title = f"{run.scenario.model.name}, one GPU of each pipeline rank, of {have}"
    print_table(headers, rows, right=range(len(headers)), title=title)
