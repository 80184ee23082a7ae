"""Tables on a terminal have every digit and every name that they have in a pipe, however narrow the terminal is."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios
import threading
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from simulator.cli import run
from simulator.commands._show import COLUMNS

from ..commandline import SMALL, trainsim

COMMANDS = {
    "memory": "memory SCENARIO",
    "explained memory": "memory SCENARIO --explain",
    "costs": "run SCENARIO --costs",
    "collective": "collective all_reduce --cluster dgx-h100 --nodes 2 -b 1M -e 1G -f 32",
    "network": "network SCENARIO",
    "schedules": "schedule --compare 1f1b,zb-v,interleaved --ranks 4 --microbatches 8",
    "scenarios": "catalog scenarios",
}
NUMBER = re.compile(r"(?<![\w.])\d[\d,.]*\d|(?<![\w.,])\d")
STYLE = re.compile(r"\x1b\[[0-9;]*m")


def on_terminal(columns: int, words: list[str], *, styled: bool = False, of_stderr: bool = False) -> str:
    """What a command prints on a terminal of so many columns, with or without styles: on stdout, or `of_stderr`."""
    host, device = pty.openpty()
    fcntl.ioctl(device, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    parts: list[bytes] = []

    def read() -> None:
        try:
            while part := os.read(host, 2**16):
                parts.append(part)
        except OSError:  # Linux: the other end is closed
            return

    reader = threading.Thread(target=read)
    reader.start()
    redirect = redirect_stderr if of_stderr else redirect_stdout
    with open(device, "w", encoding="utf-8") as stream, redirect(stream):
        assert run(words) == 0
    reader.join()
    os.close(host)
    text = b"".join(parts).decode().replace("\r\n", "\n")
    return text if styled else STYLE.sub("", text)


def numbers(text: str) -> Counter[str]:
    return Counter(number for line in text.splitlines() if not line.startswith("took") for number in NUMBER.findall(line))


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("line", COMMANDS.values(), ids=COMMANDS)
def test_a_terminal_shows_every_number_of_a_pipe_and_cuts_nothing(line: str, columns: int, tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(SMALL)
    words = [str(scenario) if word == "SCENARIO" else word for word in line.split()]
    piped, shown = trainsim(*words).out, on_terminal(columns, words)
    assert "…" not in shown
    assert not numbers(piped) - numbers(shown)
    assert max(map(len, shown.splitlines())) <= columns


def test_a_terminal_as_wide_as_a_page_shows_what_a_pipe_has() -> None:
    words = COMMANDS["schedules"].split()
    assert on_terminal(COLUMNS, words) == trainsim(*words).out


@pytest.mark.parametrize("columns", [60, 200])
@pytest.mark.parametrize(
    ("words", "last"),
    [
        ("sweep SCENARIO --over plan.tp=1,2,3", "simulated 3 scenarios of 3"),
        ("search SCENARIO --space SPACE", "best of 4 simulated plans: "),
    ],
    ids=["sweep", "search"],
)
def test_how_far_work_is_stands_on_one_line_that_is_empty_at_the_end(
    words: str, last: str, columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("SCENARIO", SMALL), ("SPACE", "tp: [1, 2]\npp: [1, 2]\nmicrobatch: [1]\nschedule: [1f1b]\nsplit: [even]\n"
                                                       "recompute: [none]\n")):  # fmt: skip
        (tmp_path / name).write_text(text)
        words = words.replace(name, str(tmp_path / name))
    monkeypatch.setattr("simulator.commands._show.PATIENCE_S", 0)
    with redirect_stdout(StringIO()):
        shown = on_terminal(columns, [*words.split(), "--workers", "1"], of_stderr=True)
    assert "\n" not in shown
    assert "\\r" not in shown
    first, *lines, cleared, empty = shown.split("\r")
    assert (first, empty) == ("", "")
    assert cleared == " " * max(map(len, lines))
    assert lines[-1].startswith(last)
    assert max(map(len, lines)) < columns


def test_work_of_a_moment_shows_no_progress(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SMALL)
    with redirect_stdout(StringIO()):
        assert on_terminal(80, ["sweep", str(tmp_path / "s.yaml"), "--over", "plan.tp=3", "--workers", "1"], of_stderr=True) == ""
