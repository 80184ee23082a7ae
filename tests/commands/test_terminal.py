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
from contextlib import redirect_stdout
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


def on_terminal(columns: int, words: list[str], *, styled: bool = False) -> str:
    """What a command prints on a terminal of so many columns, with or without styles."""
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
    with open(device, "w", encoding="utf-8") as stdout, redirect_stdout(stdout):
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
