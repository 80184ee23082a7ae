"""No table of any command is wider than a page: its widest text goes on in further lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.commands._show import COLUMNS, print_table
from simulator.config import catalog

from ..commandline import SMALL, trainsim

SPACE = "tp: [1, 2]\npp: [1, 2]\nmicrobatch: [1]\nschedule: [1f1b, interleaved]\nchunks: [2]\nrecompute: [selective]\n"
COMMANDS = {
    "run": "run SCENARIO --costs",
    "what if": "run SCENARIO --what-if plan.tp=4 --what-if plan.pp=4",
    "memory": "memory SCENARIO --explain",
    "remedies": "memory SCENARIO --remedies",
    "search": "search SCENARIO --space SPACE --workers 1",
    "sweep": "sweep SCENARIO --over plan.tp=1,64 --over plan.recompute=none,full --over job.microbatch_size=1,2 --workers 1",
    "explain": "explain SCENARIO",
    "compare": "compare SCENARIO llama3-70b-64xh100 memory-llama3-8b-8xh100 gemma3-27b-32xh100",
    "network": "network SCENARIO",
    "topology": "topology l40s-pcie",
    "schedules": "schedule --compare 1f1b,zb-v,interleaved --ranks 4 --microbatches 8",
    "defaults": "catalog defaults",
    **{f"catalog {kind}": f"catalog {kind}" for kind in ("scenarios", "models", "clusters", "gpus", "frameworks", "schedules")},
}
SLOW = {
    "run deepseek": "run deepseek-v3-2048xh100 --costs",
    **{f"memory {name}": f"memory {name} --explain" for name in catalog.files("scenarios")},
}


@pytest.mark.parametrize(
    "line", [*COMMANDS.values(), *(pytest.param(line, marks=pytest.mark.slow) for line in SLOW.values())], ids=[*COMMANDS, *SLOW]
)
def test_no_output_of_a_command_is_wider_than_a_page(line: str, tmp_path: Path) -> None:
    files = {"SCENARIO": SMALL, "SPACE": SPACE}
    for name, text in files.items():
        (tmp_path / f"{name.lower()}.yaml").write_text(text)
    said = trainsim(*(tmp_path / f"{word.lower()}.yaml" if word in files else word for word in line.split()))
    assert said.code == 0, said.err
    assert max(map(len, said.out.splitlines())) <= COLUMNS


def test_the_widest_text_gives_way_first_and_numbers_never(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [["a name of 35 letters, with its spaces", "word " * 30 + "x" * 130, "7" * 30], ["", "", "8"]]
    print_table(["name", "about", "number"], rows, right=(2,), title="A title " * 20)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= COLUMNS
    assert len([line for line in lines if line.startswith("A title")]) == 2
    assert sum("a name of 35 letters, with its spaces" in line for line in lines) == 1
    assert "".join(lines).count("word") == 30
    assert "".join(lines).count("x") == 130
    assert lines[-1].split() == ["8"]


def test_a_table_that_fits_is_left_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name", "number"], [["a", "1     "], ["b  c", "2 +10%"]], right=(1,))
    assert capsys.readouterr().out == "name  number\na     1\nb  c  2 +10%\n"
