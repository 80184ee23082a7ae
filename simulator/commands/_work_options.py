"""Options of commands that simulate many scenarios: who simulates, which part of them, and which results are there already."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ..errors import UserError
from ._show import Count

if TYPE_CHECKING:
    from ..study.pool import Workers
    from ..study.shard import Shard

MOST_WORKERS = 256
SQLITE = ".sqlite"
WORKERS_HELP = "Simulate in this number of processes.  [default: one per core]"
EXECUTOR_HELP = (
    "Who simulates: processes of this machine, or the workers of the Dask scheduler at dask://HOST:PORT. "
    "Pickles go to and fro, so such an address is trusted like code.  [default: processes]"
)
SHARD_HELP = "Simulate one of N equal parts, as in 3/8. It has a file of its own beside FILE: FILE.3-of-8.sqlite."
MERGE_HELP = "Take what the files of all shards hold into FILE, then go on as with --resume."


def work_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of a command that simulates many scenarios, and may keep their results in SQLite."""
    for option in (
        click.option("--merge", is_flag=True, help=MERGE_HELP),
        click.option("--shard", metavar="I/N", help=SHARD_HELP),
        click.option("--resume", is_flag=True, help="Go on with a table in SQLite: only what it does not hold yet is simulated."),
        click.option("--executor", metavar="NAME", help=EXECUTOR_HELP),
        click.option("--workers", type=Count(1, MOST_WORKERS), help=WORKERS_HELP),
    ):
        command = option(command)
    return command


def workers_of(options: dict[str, Any], tasks: int) -> Workers:
    """Who simulates so many scenarios."""
    from ..study.pool import PROCESSES, Workers, cores

    executor, number = options["executor"], options["workers"]
    if number and executor not in (None, PROCESSES):
        raise UserError("--workers is the number of processes of this machine", hint="a cluster has its own number: leave it out")
    return Workers(max(1, min(number or cores(), tasks)), executor)


def shard_of_options(options: dict[str, Any], file: str | None, example: str) -> Shard:
    """The part that is simulated. Raises `UserError` for options that need a table in SQLite, if none is named."""
    from ..study.shard import WHOLE, shard_of

    needs = [f"--{name}" for name in ("resume", "shard", "merge") if options[name]]
    if needs and not str(file).lower().endswith(SQLITE):
        raise UserError(f"{needs[0]} needs a table in SQLite", hint=f"{example} FILE{SQLITE} {needs[0]}")
    if options["merge"] and options["shard"]:
        raise UserError("--merge takes all shards at once, --shard simulates one", hint="one of the two")
    return shard_of(options["shard"]) if options["shard"] else WHOLE
