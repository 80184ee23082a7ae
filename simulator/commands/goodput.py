"""`trainsim goodput`: how much of its time a long run makes progress."""

from __future__ import annotations

from typing import Any

import click

from ..errors import Fault, UserError
from ._show import json_option, long_option, print_json, print_notes, print_pairs, progress, scenario_argument

PLACES = {
    "checkpoint_interval": "checkpoint.interval",
    "checkpoint": "checkpoint.kind",
    "node_bandwidth": "checkpoint.node",
    "storage_bandwidth": "checkpoint.storage",
    "detection": "recovery.detection",
    "restart": "recovery.restart",
    "spares": "recovery.spares",
    "repair": "recovery.repair",
    "straggler_mtbf": "stragglers.gpu",
    "straggler_speed": "stragglers.speed",
    "straggler_lasts": "stragglers.lasts",
    "days": "days",
}
BEST = "best"
MTBF_HELP = 'Mean time between failures of one gpu, nic or switch, or of the job: "50000 h", "nic=200000 h". May be repeated.'
NODE_HELP = "Rate at which a node reads and writes checkpoints.  [default: 2 GB/s, assumed]"
INTERVAL_HELP = 'Training between two checkpoints, such as "30 min".  [default: best]'


@click.command("goodput", short_help="Show the fraction of time in which a long run makes progress.")
@scenario_argument
@click.option("--mtbf", "mtbf", multiple=True, metavar="[KIND=]TIME", help=MTBF_HELP)
@click.option("--checkpoint-interval", metavar="TIME|best", help=INTERVAL_HELP)
@click.option(
    "--checkpoint", metavar="sync|async", help="Training waits for the storage, or only for a copy to the host.  [default: sync]"
)
@click.option("--node-bandwidth", metavar="RATE", help=NODE_HELP)
@click.option("--storage-bandwidth", metavar="RATE", help="Rate of the storage in total.  [default: no limit]")
@click.option("--detection", metavar="TIME", help="Time until a failure is noticed.  [default: 5 min, assumed]")
@click.option("--restart", metavar="TIME", help="Time of a restart, without reading the checkpoint.  [default: 10 min, assumed]")
@click.option("--spares", type=int, help="Number of spare nodes.  [default: always enough]")
@click.option("--repair", metavar="TIME", help="Mean time to repair a node.  [default: 24 h, assumed]")
@click.option("--straggler-mtbf", metavar="TIME", help="Mean time between two slow spells of one GPU.  [default: none]")
@click.option("--straggler-speed", type=float, help="Speed of a slow GPU.  [default: 0.8]")
@click.option("--straggler-lasts", metavar="TIME", help="Time that a slow spell lasts.  [default: 1 h]")
@click.option("--days", type=int, help="Number of days that the report covers.  [default: 30]")
@long_option
@json_option
def command(
    scenario: str, settings: tuple[str, ...], trust: bool, mtbf: tuple[str, ...], long: bool, as_json: bool, **options: Any
) -> None:
    """Say how much of its time a long run of SCENARIO makes progress, between failures, checkpoints and restarts.

    For example: trainsim goodput llama3-70b-64xh100 --mtbf gpu=50000h

    Either --mtbf (how often something fails) or --checkpoint-interval (how often a checkpoint is written) is needed. A time
    between failures may also be given as a count, such as gpu="148 in 54 d of 16384". The best interval of the model is printed
    with those of Young and of Daly. ETTR is the effective training time ratio; goodput also counts stragglers.
    """
    from ..simulation.runnable import load_one
    from ..study.goodput import goodput_of, written

    given = written({**_failures(mtbf), **_placed(options)})
    with progress("simulating"):
        run = load_one(scenario, settings, trust=trust).simulate(long=long)
        found = goodput_of(run, given, long=long)
    print_notes(run.notes)
    if as_json:
        print_json(found.as_dict())
        return
    print_pairs(found.summary)


def _failures(mtbf: tuple[str, ...]) -> dict[str, Any]:
    """The values of --mtbf by their places; a value without a kind is that of a GPU."""
    from ..config.document import Mark

    faults, found = list[Fault](), dict[str, Any]()
    for one in mtbf:
        kind, equals, text = one.rpartition("=")
        kind = kind.strip() if equals else "gpu"
        where = f"--mtbf {one}"
        if f"mtbf.{kind}" in found:
            faults.append(Fault(f"{kind} occurs twice", "give one time for each kind of component", where))
        found[f"mtbf.{kind}"] = (text.strip(), Mark(where))
    if faults:
        raise UserError(faults=faults)
    return found


def _placed(options: dict[str, Any]) -> dict[str, Any]:
    """The values of the other options that were given, by their places."""
    from ..config.document import Mark

    given = {name: value for name, value in options.items() if value is not None and value != BEST}
    return {PLACES[name]: (value, Mark(f"--{name.replace('_', '-')}")) for name, value in given.items()}
