"""`trainsim memory`: what every pipeline rank holds, by class and over time."""

from __future__ import annotations

import click

from ._show import json_option, print_json, print_table, progress, set_option


@click.command("memory")
@click.argument("scenario")
@set_option
@json_option
def command(scenario: str, settings: tuple[str, ...], as_json: bool) -> None:
    """Bytes of every pipeline rank of SCENARIO by class, and when they peak. Exit code 3 if they do not fit."""
    from ..errors import Infeasible
    from ..study.load import load
    from ..study.run import memory_record
    from ..units import GIB, show_bytes, show_s

    with progress("simulating"):
        run = load(scenario, settings).simulate(allow_oom=True)
    have = run.scenario.cluster.gpu.memory_bytes
    over_gib = max(0.0, (run.peak_memory_bytes - have) / GIB)
    curves = [run.memory_over_time(rank.rank) for rank in run.memory]
    if as_json:
        print_json(
            {
                "peak_memory_bytes": run.peak_memory_bytes,
                "capacity_bytes": have,
                "fits": run.fits,
                "over_gib": over_gib,
                "memory_by_stage": [memory_record(rank) for rank in run.memory],
                "over_time": [{"rank": r.rank, "time_s": t, "bytes": b} for r, (t, b) in zip(run.memory, curves, strict=True)],
            }
        )
    else:
        rows = [
            [
                str(r.rank),
                *(
                    show_bytes(x)
                    for x in (r.parameters_bytes, r.gradients_bytes, r.optimizer_bytes, r.activations_bytes, r.total_bytes)
                ),
                show_s(float(times[int(held.argmax())])),
            ]
            for r, (times, held) in zip(run.memory, curves, strict=True)
        ]
        headers = ["rank", "parameters", "gradients", "optimizer", "activations", "peak", "at"]
        print_table(
            headers,
            rows,
            right=range(7),
            title=f"{run.scenario.model.name}, one GPU of each pipeline rank, of {show_bytes(have)}",
        )
    if not run.fits:
        raise (
            Infeasible(f"out of memory by {over_gib:.1f} GiB", hint="more tp, pp or zero1, or a smaller microbatch")
            if not as_json
            else click.exceptions.Exit(3)
        )
