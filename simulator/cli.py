"""The command line: one file per command in `commands/`, found by name, and one way to report errors.

Exit codes: 0 done, 2 bad input, 3 cannot run (does not fit, deadlock), 130 interrupted, 143 terminated, 1 the result could not
be written, or a bug of ours. With `--json` an error too is one JSON object on stdout.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import click

from . import __version__, escape
from .commands._show import on_stderr
from .errors import Infeasible, InvariantBroken, OutputFailed, OutsideDomain, SimulatorError, UserError, cut, did_you_mean, shown
from .files import OUT_OF_ROOM, moved, nowhere

INTERRUPTED, TERMINATED = 130, 143
COMMANDS = Path(__file__).parent / "commands"
MEANINGS = {
    "simulate": "run", "train": "run", "step": "run", "list": "catalog", "models": "catalog", "optimize": "search",
    "tune": "search", "plan": "advise", "recommend": "advise", "diff": "compare", "fit": "calibrate", "bench": "calibrate",
}  # fmt: skip
"""Words for commands that look different from their names."""
EXAMPLES = {
    "SCENARIO": "a YAML file, or a name that `trainsim catalog scenarios` lists, such as llama3-70b-64xh100",
    "SCENARIOS...": "two or more YAML files, or names that `trainsim catalog scenarios` lists",
    "CLUSTER": "a YAML file, or a name that `trainsim catalog clusters` lists, such as dgx-h100",
    "MODEL": "a YAML file, or a name that `trainsim catalog models` lists, such as llama3-8b",
    "OP": "a kernel such as gemm, attention or rmsnorm",
    "KIND": "all_reduce, reduce_scatter, all_gather, alltoall, broadcast or sendrecv",
}
"""Hints for arguments that are left out."""
MOST_NEW_OBJECTS = 100_000
"""Objects between two garbage collections."""
SOON_S = 0.05
"""Time after which a signal that was forgotten is sent again."""


class Commands(click.Group):
    """The files of `commands/`, imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(path.stem for path in COMMANDS.glob("[a-z]*.py"))

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        known = self.list_commands(ctx)
        if name not in known and not name.startswith("-"):  # click reports an unknown option
            raise UserError(f"no command {shown(name)}", hint=did_you_mean(name, known, meanings=MEANINGS))
        command: click.Command | None = import_module(f"simulator.commands.{name}").command if name in known else None
        return command


@click.command(
    cls=Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(__version__, prog_name="trainsim")
@click.pass_context
def cli(context: click.Context) -> None:
    """Simulate the training of large models on GPU clusters.

    Start with `trainsim demo`, or describe your own run in a scenario file and `trainsim run` it. `trainsim explain`
    says why a step is slow, `trainsim advise` which plan to begin with. Names of models, clusters and schedules are
    those that `trainsim catalog` lists.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main() -> None:
    """Runs the command line and exits with its code."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # there are none, and the search for them takes time
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # there are no large matrices, and threads take time to start
    received = _stop_on_signals()
    gc.set_threshold(MOST_NEW_OBJECTS, 50, 50)  # a run makes many objects and little garbage
    _keep_stdout()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # characters that the terminal cannot show are escaped
            stream.reconfigure(errors="backslashreplace")
    code = run(sys.argv[1:])
    with suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
    sys.stdout = sys.stderr  # for what code of users prints when the process ends
    if received and code == 0:  # other code may have swallowed the exception of the handler
        on_stderr("stopped: all output was written before, or is the best that was found until then")
        code = INTERRUPTED if received[0] == signal.SIGINT else TERMINATED
    gc.freeze()  # all objects end with the process: a last garbage collection would only take time
    if code == INTERRUPTED:  # after an interrupt within `exec`, as in the creation of a dataclass, `python -m` would raise again
        _flush_and_end(code)
    sys.exit(code)


def _flush_and_end(code: int) -> None:
    """Flushes the output and ends the process with a code, without any cleanup."""
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code)


def _keep_stdout() -> None:
    """Keeps stdout for the result. The descriptor that usually is stdout becomes stderr, because code of users may start programs
    and call libraries that write there, now or when the process ends."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout = moved(sys.stdout, sys.stderr)


class _Terminated(BaseException):
    """SIGTERM was received. Unwinding the stack removes temporary files."""


def _stop_on_signals() -> list[int]:
    """Ends the program in order on the first Ctrl-C or SIGTERM, or when its terminal is closed; returns the signals received, to
    which later ones are added. The second is ignored, as the first is under way; the third ends it at once, in case the first
    does not. Python prints and forgets what is raised within a finalizer: there the signal is sent again."""
    received: list[int] = []
    lost: list[int] = []

    def stop(number: int, frame: object) -> None:
        if not lost:
            received.append(number)
        if lost or len(received) == 1:
            lost.clear()
            raise KeyboardInterrupt if number == signal.SIGINT else _Terminated
        if len(received) > 2:
            os._exit(128 + number)

    def forgotten(unraisable: sys.UnraisableHookArgs) -> None:
        if not isinstance(unraisable.exc_value, (KeyboardInterrupt, _Terminated)):
            sys.__unraisablehook__(unraisable)
            return
        lost.append(received[0])
        again = threading.Timer(SOON_S, _signal_main_thread, [received[0]])
        again.daemon = True
        again.start()

    sys.unraisablehook = forgotten
    hung_up = getattr(signal, "SIGHUP", None)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    if hung_up is not None and signal.getsignal(hung_up) != signal.SIG_IGN:  # `nohup` ignores SIGHUP
        signal.signal(hung_up, stop)
    return received


def _signal_main_thread(number: int) -> None:
    """Sends a signal to the main thread, also where that waits."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, number)
    else:
        signal.raise_signal(number)


def run(args: list[str]) -> int:
    """Runs the command line and returns its exit code; only a bug ever shows a traceback."""
    as_json = "--json" in args
    try:
        _check_outputs()
        code = cli.main(args, prog_name="trainsim", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (BrokenPipeError, SystemExit):  # click turns a broken pipe into an exit
        _discard_stdout()
        return 0
    except _Terminated:
        return _say(_Stopped("terminated", TERMINATED), as_json)
    except (KeyboardInterrupt, click.Abort):
        return _say(_Stopped("interrupted", INTERRUPTED), as_json)
    except click.ClickException as error:
        return _say(UserError(cut(error.format_message()), hint=_usage_hint(error, args)), as_json)
    except SimulatorError as error:
        return _say(error, as_json)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in OUT_OF_ROOM:  # files of ours say which they are: this is stdout
            _discard_stdout()
            return _say(OutputFailed(f"cannot write to stdout: {error.strerror}"), as_json=False)
        sys.excepthook(type(error), error, error.__traceback__)
        return _say(InvariantBroken(f"{type(error).__name__}: {error}"), as_json)


def _usage_hint(error: click.ClickException, args: list[str]) -> str:
    """What to write in place of an argument or a required option that was left out; else where all of them are listed."""
    command = getattr(getattr(error, "ctx", None), "command_path", " ".join(["trainsim", *args[:1]]))
    where = f"`{command} --help` lists its arguments and options"
    if not isinstance(error, click.MissingParameter) or error.param is None:
        return where
    meaning = EXAMPLES.get(error.param.make_metavar(error.ctx), "") if error.ctx else ""
    if isinstance(error.param, click.Option):
        meaning = (error.param.help or "").partition(". ")[0].rstrip(".")
        meaning = f"{error.param.opts[0]}: {meaning[:1].lower()}{meaning[1:]}" if meaning else ""
    return f"{meaning}; {where}" if meaning else where


class _Stopped(SimulatorError):
    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def _check_outputs() -> None:
    """Raises `OutputFailed` if the program was started with its stdout closed; without a stderr messages go nowhere."""
    if sys.stderr is None:
        sys.stderr = nowhere()
    if sys.stdout is None:
        sys.stdout = nowhere()
        raise OutputFailed("stdout is closed: there is nowhere to write the result", hint="send it to a file or to /dev/null")


def _discard_stdout() -> None:
    """Discards pending output of stdout, which has no reader."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(error: SimulatorError, as_json: bool) -> int:
    """Prints an error: JSON on stdout; on stderr a panel on a terminal, else plain lines. Returns the exit code."""
    if as_json:
        try:
            print(escape.json(json.dumps(_record(error))), flush=True)
        except OSError:
            _discard_stdout()
    if isinstance(error, _Stopped):
        on_stderr(str(error))
        return error.exit_code
    kind = "cannot run" if isinstance(error, Infeasible) else "bug" if isinstance(error, InvariantBroken) else "error"
    faults = len(getattr(error, "faults", ()))
    shows_hint = error.hint and error.hint not in str(error)
    text = escape.terminal(f"{error}\n    hint: {error.hint}" if shows_hint else str(error), lines=True)
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.panel import Panel
        from rich.text import Text

        Console(stderr=True).print(Panel(Text(text), title=kind, title_align="left", border_style="red"))
    else:
        on_stderr(f"{kind}: {faults} faults\n{text}" if faults > 1 else f"{kind}: {text}")
    return error.exit_code


def _record(error: SimulatorError) -> dict[str, Any]:
    if isinstance(error, OutsideDomain):
        return {"refused": error.reason, "nearest": error.nearest, **({"other": error.other} if error.other else {})}
    if isinstance(error, Infeasible):
        from .units import GIB

        return {"infeasible": str(error), "over_gib": error.over_bytes / GIB, "hint": error.hint}
    faults = [{"where": f.where, "message": f.message, "hint": f.hint} for f in getattr(error, "faults", ())]
    return {"error": str(error), "faults": faults}
