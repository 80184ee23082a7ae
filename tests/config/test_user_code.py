"""Schedules that people bring along: right ones run, wrong ones are bad input, and a deadlock is drawn."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import simulator as sim
from simulator.config import catalog
from simulator.errors import MOST_LISTED, Deadlock, UserError
from simulator.program.layout import lay_out
from simulator.program.slot import Shape, Slot

from ..commandline import SMALL, Said, trainsim

MINE = Path(__file__).with_name("mine.py")
WRONG = {
    "raises": ("raised ZeroDivisionError at mine.py:", "order(rank, shape)"),
    "leaves": ("raised SystemExit at mine.py:", "order(rank, shape)"),
    "mutes": ("raised Mute at mine.py:", "order(rank, shape)"),
    "imports": ("raised ModuleNotFoundError at mine.py:", "order(rank, shape)"),
    "number": ("yields 3 on rank 0", "yield Slot("),
    "text": ("yields 'F00' on rank 0", "yield Slot("),
    "half": ("microbatch=0.5", "yield Slot("),
    "kind": ("kind='X'", "F, B, I or W"),
    "unhashable": ("kind=['F']", "yield Slot("),
    "single": ("yields None on rank 0", "Pair(forward, backward)"),
    "nothing": ("raised TypeError", "yields slots"),
    "empty": ("has nothing: it needs F and B", ""),
    "endless": ("does not stop", "yield each slot once"),
    "short": ("it needs F and B", ""),
    "twice": ("0F0 occurs twice", ""),
    "backwards": ("before 0F", ""),
    "foreign": ("is placed on rank 0", ""),
    "outside": ("is outside 2 stages", ""),
    "alone": ("raised TypeError", "order(rank, shape)"),
    "constant": ("is 3, not a function", "order(rank, shape)"),
    "Placed": ("the placement is [0, 7]", "a rank from 0 to 1"),
    "Unplaced": ("placement of", "order(rank, shape)"),
    "Choosy": ("refuse of", "order(rank, shape)"),
    "far": ("which is not a slot", "yield Slot("),
    "doubled": ("which is not a pair", "first a forward slot, then a backward one"),
    "turned": ("which is not a pair", "first a forward slot, then a backward one"),
    "UNEQUAL": ("the placement is [1]", "a rank from 0 to 1"),
    "NOWHERE": ("gives 0 placements", "one to 64 of them"),
    "WORDED": ("CHUNKS of", "a whole number from 1"),
    "gpipes": ("has no 'gpipes'", "did you mean 'gpipe'?"),
}


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("")
    (tmp_path / "mine.py").write_bytes(MINE.read_bytes())
    (tmp_path / "scenario.yaml").write_text(SMALL)
    return tmp_path / "mine.py"


def alone(name: str, *options: str) -> Said:
    return without_note(trainsim("schedule", name, "--ranks", 2, "--microbatches", 4, *options))


def without_note(said: Said) -> Said:
    """What was said, but for the line that tells what is imported."""
    return replace(said, err="".join(line for line in said.err.splitlines(True) if not line.startswith("note: imports ")))


def in_scenario(mine: Path, name: str, *options: str) -> Said:
    """A scenario beside the file that names it."""
    scenario = mine.parent / "scenario.yaml"
    scenario.write_text(SMALL.replace("pp: 2", f"pp: 2, schedule: 'mine.py:{name}'"))
    return without_note(trainsim("run", scenario, "--trust", *options))


@pytest.mark.parametrize("name", ["gpipe", "listed"])
def test_a_schedule_of_ones_own_is_as_good_as_ours(name: str, mine: Path) -> None:
    ours, theirs = alone("gpipe", "--json").record, alone(f"{mine}:{name}", "--json").record
    assert {**theirs, "schedule": "gpipe"} == ours
    assert theirs["ranks"][1][0] == ["F", 1, 0]
    times = [run.record["step_time_s"] for run in (in_scenario(mine, name, "--json"), in_scenario(mine, "gpipe", "--json"))]
    assert times[0] == times[1]


def test_a_schedule_can_come_from_a_module(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(mine.parent)
    monkeypatch.setitem(sys.modules, "mine", None)
    monkeypatch.delitem(sys.modules, "mine")
    assert alone("mine:gpipe").out.splitlines()[1:] == alone("mine.py:gpipe").out.splitlines()[1:]
    assert alone("simulator.schedules.naive:order").code == 0


@pytest.mark.parametrize("schedule", [catalog.module("schedules", "gpipe"), SimpleNamespace(order=lambda rank, shape: [
    *(("F", rank, m) for m in range(shape.microbatches)), *(("B", rank, m) for m in range(shape.microbatches))])])  # fmt: skip
def test_a_schedule_can_be_an_object(schedule: object) -> None:
    model = sim.model({"layers": 4, "hidden": 512, "heads": 8, "vocab": 1000})
    plan, job = sim.Plan(tp=4, pp=2, schedule=schedule), sim.Job(512, 8)  # type: ignore[arg-type]
    run = sim.simulate(model, sim.cluster("dgx-h100", nodes=1), plan, job)
    assert isinstance(run.as_dict()["scenario"]["plan"]["schedule"], str)
    assert run.metrics.bubble_fraction > 0


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_schedule_is_bad_input(name: str, mine: Path) -> None:
    message, hint = WRONG[name]
    for said in (alone(f"{mine}:{name}"), in_scenario(mine, name)):
        assert said.code == 2
        assert message in said.err
        assert hint in said.err
        assert not said.out
        assert "Traceback" not in said.err
    assert f"{mine.parent / 'scenario.yaml'}:3:22: plan.schedule: " in in_scenario(mine, name).err


@pytest.mark.parametrize("name", ["raises", "short"])
def test_a_wrong_schedule_is_one_json_value(name: str, mine: Path) -> None:
    for said in (alone(f"{mine}:{name}", "--json"), in_scenario(mine, name, "--json")):
        assert said.code == 2
        assert said.record["faults"]


def test_every_fault_of_a_schedule_is_counted_and_in_the_json(mine: Path) -> None:
    """On each of two ranks each of four microbatches."""
    assert alone(f"{mine}:backwards").err.startswith("error: 8 faults\n")
    said = trainsim("schedule", f"{mine}:backwards", "--ranks", 8, "--microbatches", 8)
    assert said.err.count(" before ") == MOST_LISTED
    assert said.err.endswith(f"... and {64 - MOST_LISTED} faults more\n")
    faults = trainsim("schedule", f"{mine}:backwards", "--ranks", 8, "--microbatches", 8, "--json").record["faults"]
    assert len(faults) == 64
    assert all(" before " in fault["message"] for fault in faults)


FILES = {
    "exits.py": ("import sys\nsys.exit(4)\n", "raised SystemExit at exits.py:2"),
    "divides.py": ("x = 1 / 0\n", "raised ZeroDivisionError at divides.py:1"),
    "broken.py": ("x = 1\ndef (\n", "broken.py:2: not Python: invalid syntax"),
    "null.py": ("x = '\0'\n", "null byte"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_cannot_be_loaded_is_bad_input(name: str, tmp_path: Path) -> None:
    text, message = FILES[name]
    (tmp_path / name).write_text(text)
    said = alone(f"{tmp_path / name}:order")
    assert said.code == 2
    assert message in said.err
    assert "Traceback" not in said.err


PLACED = """\
CHUNKS = 2
def placement(shape):
    return [*range(shape.ranks), *reversed(range(shape.ranks))]
def {order}
def alone(rank, shape):
    return order(rank, shape)
"""
BY_RANK = """order(rank, shape):
    for kind, stages in (("F", (rank, 2 * shape.ranks - 1 - rank)), ("B", (2 * shape.ranks - 1 - rank, rank))):
        for stage in stages:
            yield from ((kind, stage, m) for m in range(shape.microbatches))
"""
FOR_ALL = """orders(shape):
    return [list(by_rank(rank, shape)) for rank in range(shape.ranks)]
def by_""" + BY_RANK.replace("order(", "rank(")


@pytest.mark.parametrize(("order", "name"), [(BY_RANK, "order"), (FOR_ALL, "orders")])
def test_a_file_is_a_schedule_and_its_order_brings_the_other_names(
    order: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every rank has two stages, placed as a V; the order alone would be on the wrong ranks."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "placed_v.py").write_text(PLACED.format(order=order))
    records = {given: alone(given, "--json").record for given in ("placed_v.py", f"placed_v.py:{name}", f"placed_v:{name}")}
    sys.modules.pop("placed_v", None)
    for given, record in records.items():
        assert record["schedule"] == given
        assert {**record, "schedule": ""} == {**records["placed_v.py"], "schedule": ""}
        assert record["ranks"][1][0] == ["F", 1, 0]
        assert ["F", 2, 0] in record["ranks"][1]
    if name == "order":
        assert "is placed on rank" in alone("placed_v.py:alone", "--chunks", 2).err


def test_a_function_is_taken_where_a_file_has_both(tmp_path: Path) -> None:
    both = BY_RANK.replace("2 * shape.ranks - 1 - rank", "rank + shape.ranks")
    (tmp_path / "both.py").write_text(f"def {both}def orders(shape):\n    return 1 / 0\n")
    assert alone(f"{tmp_path / 'both.py'}:order", "--chunks", 2).code == 0
    for name in ("both.py", "both.py:orders"):
        assert "ZeroDivisionError" in alone(str(tmp_path / name)).err


@pytest.mark.parametrize("name", ["copy.py", "copy.py:order"])
def test_a_copy_of_1f1b_exchanges_as_1f1b_does(name: str, tmp_path: Path) -> None:
    ours = Path(catalog.module("schedules", "1f1b").__file__).read_text()
    (tmp_path / "copy.py").write_text(ours)
    said = alone(str(tmp_path / name))
    assert said.code == 2
    assert "copy.py:10: a file by itself belongs to no package" in said.err
    assert "from simulator.schedules import interleaved" in said.err
    (tmp_path / "copy.py").write_text(ours.replace("from . import", "from simulator.schedules import") + "\nbare = order\n")
    shape = Shape(ranks=4, microbatches=8)
    named = [catalog.typed("schedules", f"{tmp_path / of}") for of in (name, "copy.py:bare")]
    known = [catalog.module("schedules", "1f1b"), *named]
    megatrons, theirs, bare = (lay_out(each, shape).defined_exchanges for each in known)
    assert megatrons == theirs
    assert theirs
    assert not bare


@pytest.mark.parametrize(
    "name", ["placement", "placements", "refuse", "in_flight", "exchanges", "certificate", "OPTIONS", "VOCABULARY"]
)
@pytest.mark.parametrize("value", ["3", "None", "(3,)"])
def test_another_name_of_a_file_that_is_not_what_it_should_be_is_bad_input(name: str, value: str, tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(f"from simulator.schedules.gpipe import order\n{name} = {value}\n")
    said = alone(str(tmp_path / "odd.py"))
    assert said.code == 2
    assert f"{name} of " in said.err
    assert "hint: " in said.err


def test_a_file_without_an_order_says_how_to_name_another_function(mine: Path) -> None:
    said = alone(str(mine))
    assert f"{mine} has no order" in said.err
    assert f"name it: {mine}:function" in said.err


@pytest.mark.parametrize("name", [":order", "mine:", "no.such.module:order", "nope.py:order", "mine.py", "x.csv", ":", ".py"])
def test_a_name_that_leads_nowhere_is_bad_input(name: str, mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(mine.parent)
    said = alone(name)
    assert said.code == 2
    assert "hint: " in said.err


def test_a_deadlock_is_drawn_by_rank(mine: Path) -> None:
    said = alone(f"{mine}:stuck")
    assert said.code == 3
    assert said.err.startswith("cannot run: deadlock: ")
    assert "rank 0      1/8 done -> 0B0 waits for 1B0" in said.err
    assert "rank 1      1/8 done -> 1F1 waits for 0F1" in said.err
    record = alone(f"{mine}:stuck", "--json").record
    assert "0B0 waits for 1B0" in record["infeasible"]


def test_a_deadlock_of_a_training_step_is_drawn_by_rank_and_stream(mine: Path) -> None:
    said = in_scenario(mine, "stuck")
    assert said.code == 3
    assert said.err.startswith("cannot run: deadlock: ")
    for rank in (0, 1):
        assert f"rank {rank} compute" in said.err or f"stream  rank {rank}" in said.err
    assert " -> " in said.err
    assert " waits for " in said.err
    assert in_scenario(mine, "stuck", "--json").record["over_gib"] == 0
    with pytest.raises(Deadlock) as stuck:
        sim.load(mine.parent / "scenario.yaml", trust=True).simulate()
    assert stuck.value.blocked


def test_a_file_is_read_anew_and_leaves_nothing_behind(mine: Path) -> None:
    path = list(sys.path)
    shape = Shape(1, 1)
    mine.write_text("def order(rank, shape):\n    yield 'F', 0, 0\n    yield 'B', 0, 0\n")
    assert lay_out(catalog.typed("schedules", f"{mine}:order"), shape).orders == ((Slot("F", 0, 0), Slot("B", 0, 0)),)
    mine.write_text("def order(rank, shape):\n    return 1 / 0\n")
    with pytest.raises(UserError, match="ZeroDivisionError"):
        lay_out(catalog.typed("schedules", f"{mine}:order"), shape)
    assert sys.path == path
    assert not [name for name in sys.modules if name.startswith("_outside")]
