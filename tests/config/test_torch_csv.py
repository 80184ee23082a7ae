"""The compute-only CSV of torch: written and read back, and every way in which a file can be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulator as sim
from simulator.config import catalog, torch_csv
from simulator.errors import OutsideDomain, UserError
from simulator.program.layout import Layout, lay_out
from simulator.program.slot import Durations, Pair, Shape, Slot
from simulator.study.schedule import evaluate

from ..commandline import SMALL, Said, trainsim

GOOD = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
SHAPES = (Shape(1, 1), Shape(2, 4, 2), Shape(4, 8, 2), Shape(3, 7), Shape(8, 16, 2))


def layouts(name: str) -> list[Layout]:
    found = []
    for shape in SHAPES:
        try:
            found.append(lay_out(catalog.module("schedules", name), shape))
        except OutsideDomain:
            continue
    return found


def parsed(text: str | bytes, folder: Path) -> torch_csv.Table:
    file = folder / "s.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return torch_csv.read(file)


def as_text(layout: Layout, folder: Path) -> str:
    torch_csv.write(layout, folder / "again.csv")
    return (folder / "again.csv").read_text()


@pytest.mark.parametrize("name", sorted(set(catalog.files("schedules")) - {"optimal"}))
def test_what_is_written_is_read_back(name: str, tmp_path: Path) -> None:
    for layout in layouts(name):
        if len(layout.placements) > 1:
            with pytest.raises(UserError, match="2 directions"):
                torch_csv.write(layout, tmp_path / "a.csv")
            continue
        torch_csv.write(layout, tmp_path / "a.csv")
        table = torch_csv.read(tmp_path / "a.csv")
        again = lay_out(table, table.shape)
        assert (again.orders, again.placement) == (layout.orders, layout.placement)
        assert as_text(again, tmp_path) == (tmp_path / "a.csv").read_text()
        durations = Durations(forward=1.3, comm=0.1)
        both = (evaluate(lay_out(table, Shape(*_sizes(table), durations=durations))), evaluate(_with(layout, durations)))
        assert both[0].ends == both[1].ends


def _sizes(table: torch_csv.Table) -> tuple[int, int, int]:
    return table.shape.ranks, table.shape.microbatches, table.shape.chunks


def _with(layout: Layout, durations: Durations) -> Layout:
    return Layout(
        Shape(layout.shape.ranks, layout.shape.microbatches, layout.shape.chunks, durations=durations),
        layout.placements,
        layout.orders,
    )


slots = st.builds(Slot, st.sampled_from("FBIW"), st.integers(0, 99), st.integers(0, 999))
pairs = st.builds(
    Pair,
    st.builds(Slot, st.just("F"), st.integers(0, 99), st.integers(0, 99)),
    st.builds(Slot, st.sampled_from("BI"), st.integers(0, 99), st.integers(0, 99)),
)


@given(st.one_of(slots, pairs))
def test_every_box_has_one_spelling(box: Slot | Pair) -> None:
    assert torch_csv._box(torch_csv._cell(box)) == box


def test_spellings_of_torch_itself() -> None:
    """As its generators dump them: rests, and the pairs of its DualPipeV."""
    assert torch_csv._box("(0F8;7B0)OVERLAP_F_B") == Pair(Slot("F", 0, 8), Slot("B", 7, 0))
    assert torch_csv._cell(Slot("W", 12, 3)) == "12W3"


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        GOOD.replace("\n", "\r\n"),
        GOOD.rstrip(),
        GOOD + "\n\n",
        "\ufeff" + GOOD,
        GOOD.replace("\n1F0", "\n,,1F0").replace("0F1,", " 0F1 ,,"),
        GOOD.replace("0F0", '"0F0"'),
    ],
    ids=["plain", "crlf", "no last newline", "empty lines after", "byte order mark", "rests and blanks", "quotes"],
)
def test_what_torch_or_a_spreadsheet_would_write_is_taken(text: str, tmp_path: Path) -> None:
    table = parsed(text, tmp_path)
    assert as_text(lay_out(table, table.shape), tmp_path) == GOOD


WRONG: dict[str, tuple[str | bytes, list[tuple[str, str]]]] = {
    "no slot": (GOOD.replace("1B0", "1X0"), [("s.csv:2", "cell 2: '1X0' is not a slot")]),
    "small letters": (GOOD.replace("1B0", "1b0"), [("s.csv:2", "cell 2: '1b0' is not a slot")]),
    "no microbatch": (GOOD.replace("0F1", "0F"), [("s.csv:1", "cell 2: '0F' is not a slot")]),
    "more after the slot": (GOOD.replace("0F1", "0F1?"), [("s.csv:1", "cell 2: '0F1?' is not a slot")]),
    "a very large stage": (GOOD.replace("0F1", "9" * 5000 + "F1"), [("s.csv:1", "cell 2")]),
    "communication": ("0F0,0SEND_F0,0RESHARD\n", [("s.csv:1", "is not a computation"), ("s.csv:1", "cell 3: '0RESHARD'")]),
    "half a pair": (GOOD.replace("1B0,1F1", "(1F1;)OVERLAP_F_B"), [("s.csv:2", "cell 2: '(1F1;)OVERLAP_F_B' is not a pair")]),
    "a pair turned round": (GOOD.replace("1B0,1F1", "(1B0;1F1)OVERLAP_F_B"), [("s.csv:2", "is not a pair")]),
    "another kind of pair": (GOOD.replace("1B0,1F1", "(1F1;1B0)OVERLAP_B_F"), [("s.csv:2", "is not a slot")]),
    "several at once": (GOOD.replace("0F1", "zero").replace("1B1", "one"), [("s.csv:1", "'zero'"), ("s.csv:2", "'one'")]),
    "semicolons": (GOOD.replace(",", ";"), [("s.csv:1", "cell 1"), ("s.csv:2", "cell 1")]),
    "a rank at rest": (GOOD.replace("\n1", "\n\n1"), [("s.csv:2", "rank 1 has nothing to do")]),
    "a rank of empty cells": ("0F0,0B0\n,,\n1F0,1B0\n", [("s.csv:2", "rank 1 has nothing to do")]),
    "a stage left out": (GOOD.replace("1F", "2F").replace("1B", "2B"), [("s.csv:2", "cell 1: stage 2, but there is no stage 1")]),
    "a microbatch left out": (
        GOOD.replace("F1", "F2").replace("B1", "B2"),
        [("s.csv:1", "cell 2: microbatch 2, but there is no microbatch 1")],
    ),
    "twice": (GOOD.replace("1B0,", "1B0,1B0,"), [("s.csv:2", "cell 3: 1B0 again")]),
    "backwards": (GOOD.replace("1F0,1B0", "1B0,1F0"), [("s.csv:2", "cell 1: 1B0 stands before 1F0")]),
    "W before I": ("0F0,0W0,0I0\n", [("s.csv:1", "cell 2: 0W0 stands before 0I0")]),
    "missing": (GOOD.replace(",1B1", ""), [("s.csv:2", "stage 1 has F for microbatch 1")]),
    "two backwards": ("0F0,0B0,0I0,0W0\n", [("s.csv:1", "stage 0 has F, B, I, W for microbatch 0")]),
    "on two ranks": ("0F0,0B0,0F1\n1F0,1B0,1F1,1B1,0B1\n", [("s.csv:2", "cell 5: 0B1 is on rank 1, and stage 0 on rank 0")]),
    "uneven": ("0F0,1F0,1B0,0B0\n2F0,2B0\n3F0,3B0\n", [("s.csv:1", "rank 0 has 2 stages, others have 1")]),
    "both": (
        "0F0,0B0,0F0\n1F0\n",
        [("s.csv:1", "cell 3: 0F0 again"), ("s.csv:2", "stage 1 has F for microbatch 0")],
    ),
    "empty": ("", [("s.csv", "no schedule in the file")]),
    "only commas": (",,,\n", [("s.csv", "no schedule in the file")]),
    "not text": (b"0F0,0B0\n\xff\xfe", [("s.csv:2", "not a text file")]),
    "binary": (b"0F0,0B0\n\0\0\0", [("s.csv:2", "not a text file")]),
}


@pytest.mark.parametrize("case", WRONG)
def test_faults_name_line_and_cell(case: str, tmp_path: Path) -> None:
    text, expected = WRONG[case]
    with pytest.raises(UserError) as caught:
        parsed(text, tmp_path)
    faults = caught.value.faults
    assert len(faults) == len(expected), faults
    for fault, (where, message) in zip(faults, expected, strict=True):
        assert fault.where.endswith(where)
        assert message in fault.message
        assert fault.hint


def schedule(*args: object) -> Said:
    return trainsim("schedule", *args)


@pytest.mark.parametrize("case", WRONG)
def test_the_command_says_so_and_exits_2(case: str, tmp_path: Path) -> None:
    text, expected = WRONG[case]
    file = tmp_path / "s.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    said, record = schedule(file), schedule(file, "--json")
    assert (said.code, record.code) == (2, 2)
    assert said.err.startswith("error: ")
    assert "Traceback" not in said.err
    assert "hint: " in said.err
    assert len(record.record["faults"]) == len(expected)


def test_no_such_file(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(GOOD)
    assert "did you mean 'mine.csv'?" in schedule(tmp_path / "mime.csv").err
    assert "there is no folder" in schedule(tmp_path / "no" / "mime.csv").err
    (tmp_path / "folder.csv").mkdir()
    for name in ("mime.csv", "folder.csv", "a\0b.csv"):
        assert schedule(tmp_path / name).code == 2


def test_a_file_knows_its_sizes(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    named = ("interleaved", "--ranks", 2, "--microbatches", 4, "--chunks", 3, "--comm", 0.1)
    written = schedule(*named, "--csv", file, "--json").record
    read = schedule(file, "--comm", 0.1, "--json").record
    assert {**read, "schedule": "interleaved"} == written
    assert read["shape"] == {"ranks": 2, "chunks": 3, "microbatches": 4}
    assert schedule(file, "--ranks", 2, "--microbatches", 4).code == 0
    refused = schedule(file, "--ranks", 3, "--json")
    assert refused.code == 2
    assert refused.record["nearest"] == {"ranks": 2, "microbatches": 4}
    assert "2 ranks and 4 microbatches" in refused.record["refused"]


def test_a_table_that_cannot_run_is_a_deadlock(tmp_path: Path) -> None:
    file = tmp_path / "stuck.csv"
    file.write_text("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n")
    said = schedule(file)
    assert said.code == 3
    assert "rank 0" in said.err


def test_two_directions_are_not_written(tmp_path: Path) -> None:
    said = schedule("dualpipe", "--ranks", 4, "--microbatches", 8, "--csv", tmp_path / "a.csv")
    assert said.code == 2
    assert "2 directions" in said.err
    assert "ranks 0 and 3" in said.err
    assert not list(tmp_path.iterdir())


def test_a_plan_takes_a_table(tmp_path: Path) -> None:
    """The same step as the schedule that the table was written from."""
    file = tmp_path / "mine.csv"
    assert schedule("1f1b", "--ranks", 2, "--microbatches", 4, "--csv", file).code == 0
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(SMALL)
    batch = ["--set", "job.global_batch=16", "--json"]
    theirs, ours = trainsim("run", scenario, "--set", f"plan.schedule={file}", *batch), trainsim("run", scenario, *batch)
    assert theirs.code == 0
    assert theirs.record["step_time_s"] == ours.record["step_time_s"]
    assert theirs.record["scenario"]["plan"]["schedule"] == str(file)
    wrong = trainsim("run", scenario, "--set", f"plan.schedule={file}")
    assert wrong.code == 2
    assert "2 ranks and 4 microbatches" in wrong.err
    with pytest.raises(UserError, match="no file"):
        catalog.module("schedules", "nope.csv")


def test_a_plan_in_python_takes_a_table(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text(GOOD)
    plan = sim.Plan(tp=1, pp=2, dp=1, schedule=str(tmp_path / "s.csv"))
    model = sim.load(_written(tmp_path / "scenario.yaml")).model
    run = sim.simulate(model, sim.cluster("dgx-h100", nodes=2, gpus_per_node=1), plan, sim.Job(1024, 2))
    assert run.metrics.step_time_s > 0


def _written(file: Path) -> Path:
    file.write_text(SMALL)
    return file


def test_numbers_with_a_gap_are_told_in_plain_words(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text("0F0,0F2,0B0,0B2\n", encoding="utf-8")
    with pytest.raises(UserError, match="there is no microbatch 1") as raised:
        torch_csv.read(tmp_path / "s.csv")
    assert raised.value.hint == "microbatches are numbered from 0 without a gap"
