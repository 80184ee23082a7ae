"""Options of commands that simulate many scenarios: workers, shards, and earlier results."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ..errors import UserError
from ._show import Count, not_empty

if TYPE_CHECKING:
    from ..study.pool import Workers
    from ..study.shard import Shard

MOST_WORKERS = 256
SQLITE = ".sqlite"
WORKERS_HELP = "Simulate in this number of processes.  [default: one per core]"
EXECUTOR_HELP = (
    "Where to simulate: processes of this machine, or the workers of the Dask scheduler at dask://HOST:PORT. "
    "The two exchange pickles, so the address is trusted like code.  [default: processes]"
)
SHARD_HELP = "Simulate one of N equal parts, such as 3/8. Its file is written beside FILE: FILE.3-of-8.sqlite."
MERGE_HELP = "Merge the files of all shards into FILE, then continue as with --resume."


def work_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of a command that simulates many scenarios, and may keep their results in SQLite."""
    for option in (
        click.option("--merge", is_flag=True, help=MERGE_HELP),
        click.option("--shard", metavar="I/N", callback=not_empty, help=SHARD_HELP),
        click.option("--resume", is_flag=True, help="Continue a table in SQLite: only missing rows are simulated."),
        click.option("--executor", metavar="NAME", help=EXECUTOR_HELP),
        click.option("--workers", type=Count(1, MOST_WORKERS), help=WORKERS_HELP),
    ):
        command = option(command)
    return command


def workers_of(options: dict[str, Any], tasks: int) -> Workers:
    """The workers for this many scenarios."""
    from ..study.pool import PROCESSES, Workers, cores

    executor, number = options["executor"], options["workers"]
    if number and executor not in (None, PROCESSES):
        raise UserError("--workers is the number of processes of this machine", hint="a cluster has its own number: leave it out")
    return Workers(max(1, min(number or cores(), tasks)), executor)


def shard_of_options(options: dict[str, Any], file: str | None, example: str) -> Shard:
    """The shard to simulate. Raises `UserError` for options that need a table in SQLite, if none is named."""
    from ..study.shard import WHOLE, shard_of

    needs = [f"--{name}" for name in ("resume", "shard", "merge") if options[name]]
    if needs and not str(file).lower().endswith(SQLITE):
        raise UserError(f"{needs[0]} needs a table in SQLite", hint=f"{example} FILE{SQLITE} {needs[0]}")
    if options["merge"] and options["shard"]:
        raise UserError("--merge takes all shards at once, --shard simulates one", hint="one of the two")
    return shard_of(options["shard"]) if options["shard"] else WHOLE
