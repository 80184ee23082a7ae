"""How the program ends when it is stopped, or when there is nowhere to write: with the code that is usual, a line that says why,
no traceback, and nothing half written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..commandline import SMALL

PROGRAM = [sys.executable, "-m", "simulator"]
STOPPED = """
import os, signal, sys
from pathlib import Path

def stopped(path, data):
    path.write_text("half")
    for _ in range({times}):
        os.kill(os.getpid(), signal.{signal})
    raise AssertionError("nobody stopped this")

Path.write_bytes = stopped
from simulator.cli import main
sys.argv = ["trainsim", "run", "s.yaml", "--gantt", "a.png"]
main()
"""
"""A run that is stopped in the middle of writing its picture."""
AGAIN = """
import os, signal, sys
from simulator import cli
from simulator.config import load

said = cli._say
cli._say = lambda *args: (os.kill(os.getpid(), signal.SIGINT), said(*args))[1]
load.load = lambda *args, **named: os.kill(os.getpid(), signal.SIGINT)
sys.argv = ["trainsim", "run", "s.yaml"]
cli.main()
"""
"""A run that is interrupted, and again while it says so."""
SWALLOWED = """
import os, signal, sys
from simulator import cli
from simulator.config import load

whole = load.load

def deaf(*args, **named):
    try:
        os.kill(os.getpid(), signal.{signal})
    except BaseException:
        return whole(*args, **named)

load.load = deaf
sys.argv = ["trainsim", "run", "s.yaml", "--json"]
cli.main()
"""
"""A run of which some code swallows what the interrupt raises, and which goes on to its end."""

IN_A_FINALIZER = """
import os, signal, sys, time
from simulator import cli
from simulator.config import load

class Ends:
    def __del__(self):
        os.kill(os.getpid(), signal.{signal})
        time.sleep(0)

def held(*args, **named):
    Ends()
    time.sleep(60)
    raise AssertionError("nobody stopped this")

load.load = held
sys.argv = ["trainsim", "run", "s.yaml"]
cli.main()
"""
"""A run that is interrupted within a finalizer, where Python prints and forgets what the interrupt raises."""

CHATTY = """
import atexit, os, subprocess, sys
from simulator.schedules.gpipe import order

print("printed")
print("printed past redirections", file=sys.__stdout__)
subprocess.run(["echo", "printed by a program"])
os.write(1, b"printed by a library\\n")
atexit.register(print, "printed at the end")
"""
"""A schedule of a user that writes to stdout in every way."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "s.yaml").write_text(SMALL)
    return tmp_path


@pytest.mark.parametrize(
    ("signal", "times", "code", "says"),
    [
        ("SIGTERM", 1, 143, "terminated"),
        ("SIGTERM", 2, 143, "terminated"),
        ("SIGHUP", 1, 143, "terminated"),
        ("SIGINT", 1, 130, "interrupted"),
    ],
)
def test_a_run_that_is_stopped_while_it_writes_leaves_nothing(
    folder: Path, signal: str, times: int, code: int, says: str
) -> None:
    script = STOPPED.format(signal=signal, times=times)
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stderr.strip() == says
    assert not done.stdout
    assert [path.name for path in folder.iterdir()] == ["s.yaml"]


def test_a_second_interrupt_shows_no_traceback(folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", AGAIN], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr.strip() == "interrupted"


@pytest.mark.parametrize(("signal", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_an_interrupt_that_came_to_nothing_is_still_told(folder: Path, signal: str, code: int) -> None:
    script = SWALLOWED.format(signal=signal)
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "all output was written" in done.stderr
    assert json.loads(done.stdout)["step_time_s"] > 0


@pytest.mark.parametrize(("signal", "code", "says"), [("SIGINT", 130, "interrupted"), ("SIGTERM", 143, "terminated")])
def test_an_interrupt_within_a_finalizer_ends_the_run_without_a_traceback(
    folder: Path, signal: str, code: int, says: str
) -> None:
    script = IN_A_FINALIZER.format(signal=signal)
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (code, "", says)


def test_a_run_in_the_background_outlives_its_terminal(folder: Path) -> None:
    """`nohup` ignores the signal of a terminal that is closed."""
    script = STOPPED.format(signal="SIGHUP", times=1).replace('raise AssertionError("nobody stopped this")', "")
    ignored = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{script}"
    done = subprocess.run([sys.executable, "-c", ignored], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("args", [["catalog"], ["catalog", "--json"], ["--help"], ["schedule", "1f1b", "--ranks", "4", "--json"]])
def test_a_full_disk_behind_stdout_is_no_bug(args: list[str]) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run([*PROGRAM, *args], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    if "schedule" in args:
        assert (done.returncode, done.stderr[:28]) == (2, "error: 1f1b: --microbatches ")
    else:
        assert (done.returncode, done.stderr) == (1, "error: cannot write to stdout: No space left on device\n")


@pytest.mark.parametrize("args", ["catalog models", "catalog models --json", "run s.yaml --json"])
def test_a_closed_stdout_is_said_before_any_work(args: str, folder: Path) -> None:
    command = f"{sys.executable} -m simulator {args} >&-"
    done = subprocess.run(["sh", "-c", command], cwd=folder, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: stdout is closed")


def test_a_closed_stderr_puts_nothing_into_stdout(folder: Path) -> None:
    command = f"{sys.executable} -m simulator run nothing.yaml 2>&-"
    done = subprocess.run(["sh", "-c", command], cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")


def test_a_reader_that_takes_the_first_line_is_no_error(folder: Path) -> None:
    command = f"{sys.executable} -m simulator catalog models --json | head -c 10"
    done = subprocess.run(["sh", "-c", command], cwd=folder, capture_output=True, text=True, check=False, env={**os.environ})
    assert (done.stdout, done.stderr) == ('[{"name": ', "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_where_stderr_cannot_be_written_the_exit_code_still_says_that_the_input_is_bad(tmp_path: Path, more: list[str]) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [*PROGRAM, "run", "nope.yaml", *more], stdout=subprocess.PIPE, stderr=full, cwd=tmp_path, check=False
        )
    assert done.returncode == 2
    assert bool(done.stdout) == bool(more)


@pytest.mark.parametrize(
    "args",
    [
        ["schedule", "chatty.py:order", "--ranks", "2", "--microbatches", "4"],
        ["run", "s.yaml", "--set", "plan.schedule=chatty.py:order"],
        ["sweep", "s.yaml", "--set", "plan.schedule=chatty.py:order", "--over", "plan.tp=1,2", "--workers", "2"],
    ],
)
def test_whatever_code_of_a_user_writes_the_json_is_alone_on_stdout(args: list[str], folder: Path) -> None:
    (folder / "chatty.py").write_text(CHATTY)
    done = subprocess.run([*PROGRAM, *args, "--json"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert json.loads(done.stdout)
    for said in ("printed\n", "past redirections", "by a program", "by a library", "at the end"):
        assert said in done.stderr
