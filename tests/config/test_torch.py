"""What torch.distributed.pipelining itself says of our tables, and what we say of those that it makes.

The loader and the validator are torch's own (2.13), over a stage that is a stand-in, as torch's visualizer has it.
"""

from __future__ import annotations

import csv
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import pytest

from simulator.config import catalog, torch_csv
from simulator.errors import OutsideDomain, UserError
from simulator.program.layout import Layout, lay_out
from simulator.program.slot import Pair, Shape
from simulator.study.schedule import evaluate

pytestmark = [pytest.mark.slow, pytest.mark.torch]

WANTED = "2.13"
SHAPES = [Shape(ranks, microbatches, 2) for ranks, microbatches in ((1, 2), (2, 4), (4, 8), (4, 12), (8, 32))]
NAMES = sorted(set(catalog.files("schedules")) - {"optimal"})


@pytest.fixture(scope="module")
def torch() -> Any:
    """The module of torch's schedules."""
    try:
        found = version("torch")
    except PackageNotFoundError:
        pytest.skip("torch is not installed here: pip install -e '.[torch-check]'")
    if not found.startswith(WANTED):
        pytest.skip(f"torch {found} is here, and these tests call what is private in {WANTED}")
    return import_module("torch.distributed.pipelining.schedules")


def runtime(torch: Any, ranks: int, stages: int, microbatches: int) -> Any:
    """The runtime that loads tables, with a stage that only knows its numbers."""
    stage = mock.create_autospec(import_module("torch.distributed.pipelining.stage").PipelineStage, instance=True)
    stage.group_rank, stage.group_size, stage.num_stages, stage.submod = 0, ranks, stages, None
    return torch._PipelineScheduleRuntime([stage], microbatches)


def laid_out(name: str) -> list[Layout]:
    found = []
    for shape in SHAPES:
        try:
            found.append(lay_out(catalog.module("schedules", name), shape))
        except OutsideDomain:
            continue
    assert found, f"{name} takes none of the shapes"
    return found


def loaded(torch: Any, layout: Layout, file: Path) -> Any:
    """The runtime after it has read a table, checked it and added communication."""
    run = runtime(torch, len(layout.orders), layout.stages, layout.shape.microbatches)
    run._load_csv(str(file), format="compute_only")
    return run


@pytest.mark.parametrize("name", NAMES)
def test_torch_loads_and_validates_our_tables(name: str, torch: Any, tmp_path: Path) -> None:
    for layout in laid_out(name):
        if len(layout.placements) > 1:
            pytest.skip(f"{name} has two directions, which a table of torch cannot say")
        file = tmp_path / "a.csv"
        torch_csv.write(layout, file)
        run = loaded(torch, layout, file)
        assert run.stage_index_to_group_rank == dict(enumerate(layout.placement))
        theirs = [[str(action) for action in run.pipeline_order[rank]] for rank in range(len(layout.orders))]
        assert theirs == [[torch_csv._cell(box) for box in order] for order in layout.orders]
        run._dump_csv(str(tmp_path / "b.csv"), format="compute_only")
        again = torch_csv.read(tmp_path / "b.csv")
        assert (again.rows, again.ranks_of_stages) == (layout.orders, layout.placement)


@pytest.mark.parametrize("name", NAMES)
def test_torch_runs_our_tables_dry(name: str, torch: Any) -> None:
    """Sends and receives can be put in, and the whole makes progress to its end. Its dry run knows no pairs: they are two."""
    for layout in laid_out(name):
        if len(layout.placements) > 1:
            pytest.skip(f"{name} has two directions")
        actions = {
            rank: [torch._Action.from_str(str(slot)) for box in order for slot in (box if isinstance(box, Pair) else (box,))]
            for rank, order in enumerate(layout.orders)
        }
        placed = layout.placement.__getitem__
        stages = layout.stages
        filled = torch._add_send_recv(actions, stage_to_rank=placed, num_stages=stages)
        sends = sum("SEND" in str(action) for order in filled.values() for action in order)
        assert torch._simulate_comms_compute(filled, placed, stages)
        assert sends == evaluate(layout).as_dict()["transfers"]


@pytest.mark.parametrize("name", ["LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"])
def test_we_read_what_torch_writes(name: str, torch: Any, tmp_path: Path) -> None:
    for ranks, microbatches in ((2, 4), (4, 8), (8, 16)):
        rows = _ops(name, ranks, microbatches, 2)
        table = torch_csv.read(_written(rows, tmp_path / "a.csv"))
        boxes = [[str(action) for action in row if action is not None] for row in rows]
        assert [[torch_csv._cell(box) for box in row] for row in table.rows] == boxes
        run = runtime(torch, ranks, 2 * ranks, microbatches)
        run._load_csv(str(tmp_path / "a.csv"))
        assert dict(enumerate(table.ranks_of_stages)) == run.stage_index_to_group_rank
        assert evaluate(lay_out(table, table.shape)).makespan > 0


def _ops(name: str, ranks: int, microbatches: int, chunks: int | None) -> list[list[Any]]:
    visualizer = import_module("torch.distributed.pipelining._schedule_visualizer")
    ops: list[list[Any]] = visualizer.get_schedule_ops(name, ranks, microbatches, chunks)
    return ops


def _written(rows: list[list[Any]], file: Path) -> Path:
    with file.open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows(rows)
    return file


def test_a_table_that_torch_gets_wrong_is_refused_by_both(torch: Any, tmp_path: Path) -> None:
    """The last rank of its own 1F1B begins with microbatch 1 and ends with one too many."""
    file = _written(_ops("1F1B", 4, 8, None), tmp_path / "a.csv")
    with pytest.raises(AssertionError, match="without first running Forward"):
        runtime(torch, 4, 4, 8)._load_csv(str(file))
    with pytest.raises(UserError):
        torch_csv.read(file)


def test_torch_has_no_table_of_two_directions(torch: Any, tmp_path: Path) -> None:
    layout = lay_out(catalog.module("schedules", "dualpipe"), Shape(4, 8))
    file = tmp_path / "a.csv"
    file.write_text("".join(",".join(map(torch_csv._cell, order)) + "\n" for order in layout.orders))
    with pytest.raises(AssertionError, match="is assigned to both rank"):
        runtime(torch, 4, 4, 8)._load_csv(str(file))
    with pytest.raises(UserError, match="gives every stage one rank"):
        torch_csv.read(file)


def test_what_torch_refuses_we_refuse(torch: Any, tmp_path: Path) -> None:
    """Good tables with a cell dropped, doubled, moved or misspelt; we may be stricter, never laxer."""
    random, refused = Random(1), 0
    for number in range(300):
        name = random.choice(["1f1b", "interleaved", "zb-h1", "dualpipe-v"])
        rows = [[torch_csv._cell(box) for box in order] for order in laid_out(name)[-3].orders]
        row, other = random.choice(rows), random.choice(rows)
        at = random.randrange(len(row))
        match number % 4:
            case 0:
                del row[at]
            case 1:
                other.insert(random.randrange(len(other)), row[at])
            case 2:
                row.insert(random.randrange(len(row)), row.pop(at))
            case 3:
                row[at] = row[at].replace(random.choice("FBIW012345"), random.choice("FBIW012345X;"))
        file = _written(rows, tmp_path / "a.csv")
        ranks, stages = len(rows), len(rows) * (1 if name in ("1f1b", "zb-h1") else 2)
        microbatches = laid_out(name)[-3].shape.microbatches
        try:
            runtime(torch, ranks, stages, microbatches)._load_csv(str(file))
        except (AssertionError, RuntimeError, ValueError, KeyError, TypeError, AttributeError):
            refused += 1
            with pytest.raises((UserError, OutsideDomain)):
                _run(file, ranks, microbatches)
    assert refused > 100


def _run(file: Path, ranks: int, microbatches: int) -> None:
    """Reads a table for a shape and runs it; a deadlock is as good as a refusal."""
    from simulator.errors import Deadlock

    table = torch_csv.read(file)
    try:
        evaluate(lay_out(table, Shape(ranks, microbatches)))
    except Deadlock as deadlock:
        raise UserError("deadlock") from deadlock
