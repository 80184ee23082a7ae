"""The command line: one file per command in `commands/`, found by name, and one way to report what went wrong.

Exit codes: 0 done, 2 bad input, 3 cannot run (does not fit, deadlock), 130 interrupted, 1 a bug of ours. With `--json` an
error too is one JSON object on stdout.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from .errors import Infeasible, OutsideDomain, SimulatorError, UserError, did_you_mean

INTERRUPTED = 130
COMMANDS = Path(__file__).parent / "commands"


class Commands(click.Group):
    """The files of `commands/`, imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(path.stem for path in COMMANDS.glob("[a-z]*.py"))

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.list_commands(ctx):
            return None
        command: click.Command = import_module(f"simulator.commands.{name}").command
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name = args[0]
        if not name.startswith("-") and name not in self.list_commands(ctx):
            raise UserError(f"no command {name!r}", hint=did_you_mean(name, self.list_commands(ctx)))
        return super().resolve_command(ctx, args)


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="cluster-training-simulator", prog_name="trainsim")
def cli() -> None:
    """Simulate the training of large models on GPU clusters.

    Start with `trainsim demo`, or describe your own run in a scenario file and `trainsim run` it. Names of models,
    clusters and schedules are those that `trainsim catalog` lists.
    """


def main() -> None:
    """Runs the command line and exits with its code."""
    sys.exit(run(sys.argv[1:]))


def run(args: list[str]) -> int:
    """Runs the command line and returns its exit code; nothing but a bug of ours ever shows a traceback."""
    try:
        cli.main(args, prog_name="trainsim", standalone_mode=False)
        sys.stdout.flush()
        return 0
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except (KeyboardInterrupt, click.Abort):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except click.ClickException as error:
        _say(UserError(error.format_message(), hint=_usage_hint(error)), "--json" in args)
        return error.exit_code
    except SimulatorError as error:
        _say(error, "--json" in args)
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _usage_hint(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    return f"`{context.command_path} --help` shows what it takes" if context else ""


def _say(error: SimulatorError, as_json: bool) -> None:
    """An error as JSON on stdout, as a panel on a terminal, or as plain lines on stderr."""
    if as_json:
        print(json.dumps(_record(error)))
    kind = "cannot run" if isinstance(error, Infeasible) else "bug" if error.exit_code == 1 else "error"
    shows_hint = error.hint and error.hint not in str(error)
    text = f"{error}\n    hint: {error.hint}" if shows_hint else str(error)
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.panel import Panel
        from rich.text import Text

        Console(stderr=True).print(Panel(Text(text), title=kind, title_align="left", border_style="red"))
    else:
        print(f"{kind}: {text}", file=sys.stderr)


def _record(error: SimulatorError) -> dict[str, Any]:
    if isinstance(error, OutsideDomain):
        return {"refused": error.reason, "nearest": error.nearest}
    if isinstance(error, Infeasible):
        from .units import GIB

        return {"infeasible": str(error), "over_gib": error.over_bytes / GIB}
    faults = [{"where": f.where, "message": f.message, "hint": f.hint} for f in getattr(error, "faults", ())]
    return {"error": str(error), "faults": faults}
