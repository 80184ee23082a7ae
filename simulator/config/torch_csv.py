"""Schedules as the compute-only CSV of torch.distributed.pipelining: a row per rank, a cell per box; written, and read with care.

A cell is a slot such as `3F0` (stage, F B I or W, microbatch) or an overlapped pair such as `(0F8;7B0)OVERLAP_F_B`. An empty
cell is a step in which torch's generators let the rank rest; it has no meaning here, where a slot starts as soon as it can.
Ranks, microbatches, chunks and placement are those that the rows show. Reference: `_Action` and `_load_csv` of
torch/distributed/pipelining/schedules.py, torch 2.13.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..errors import Fault, OutsideDomain, UserError, nearest, shown
from ..files import atomic, check_count, read_bounded
from ..program.slot import BACKWARD, FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Box, Layout, Pair, Shape, Slot, slots_of

OVERLAPPED = "OVERLAP_F_B"
MOST_BYTES = 2**26
MOST_CELLS = 1_000_000
"""Of a file; as many take some 7 s and 600 MB."""
_SLOT = re.compile(r"([0-9]{1,7})([FBIW])([0-9]{1,7})")
_PAIR = re.compile(rf"\(([^();]*);([^();]*)\){OVERLAPPED}")
_COMMUNICATION = re.compile(r"[0-9]+(SEND_[FB]|RECV_[FB]|UNSHARD|RESHARD|REDUCE_GRAD)[0-9]*")
CELL = f"a cell is stage, F B I or W, microbatch, such as 0F0, or a pair such as (0F8;7B0){OVERLAPPED}"
ROWS = "a row for each rank, from rank 0 on, in which every stage and microbatch has F and B, or F, I and W"
COMPUTE_ONLY = 'write the table before communication is added: torch calls it format="compute_only"'
ONE_RANK = "torch.distributed.pipelining gives every stage one rank"


@dataclass(frozen=True, slots=True)
class Table:
    """A schedule of one shape, as a file holds it: what `program.slot` calls a schedule."""

    name: str
    ranks_of_stages: tuple[int, ...]
    microbatches: int
    rows: tuple[tuple[Box, ...], ...]

    @property
    def CHUNKS(self) -> int:  # noqa: N802
        return len(self.ranks_of_stages) // len(self.rows)

    @property
    def shape(self) -> Shape:
        """The one that the table is for."""
        return Shape(len(self.rows), self.microbatches, self.CHUNKS)

    def refuse(self, shape: Shape) -> None:
        if (shape.ranks, shape.microbatches) != (len(self.rows), self.microbatches):
            asked = f"not {shape.ranks} and {shape.microbatches}"
            reason = f"{self.name} is a table of {len(self.rows)} ranks and {self.microbatches} microbatches, {asked}"
            raise OutsideDomain(reason, nearest={"ranks": len(self.rows), "microbatches": self.microbatches})

    def placement(self, shape: Shape) -> tuple[int, ...]:
        return self.ranks_of_stages

    def orders(self, shape: Shape) -> tuple[tuple[Box, ...], ...]:
        return self.rows


def write(layout: Layout, path: str | Path) -> None:
    """Writes the orders of a schedule. Raises `UserError` for one that a table of one placement cannot tell."""
    content = text(layout)
    with atomic(path) as temporary:
        temporary.write_text(content, encoding="ascii")


def text(layout: Layout) -> str:
    """The table of a schedule."""
    if len(layout.placements) > 1:
        both = " and ".join(str(placement[0]) for placement in layout.placements)
        message = f"a schedule of {len(layout.placements)} directions has no such table: {ONE_RANK}"
        raise UserError(message, hint=f"here stage 0 is on ranks {both}: choose a schedule of one direction")
    return "".join(",".join(map(_cell, order)) + "\n" for order in layout.orders)


def _cell(box: Box) -> str:
    return f"{box}{OVERLAPPED}" if isinstance(box, Pair) else str(box)


def read(path: str | Path) -> Table:
    """The schedule in a file. Raises `UserError` with every fault, each with its line and cell."""
    rows = _content(Path(path)).rstrip().split("\n")
    cells, faults = _parsed(rows)
    if not faults:
        faults = _Check(cells).faults()
    if faults:
        raise UserError(faults=[Fault(f.message, f.hint, f"{path}:{f.where}") for f in faults])
    return _table(str(path), cells)


class Cell(NamedTuple):
    """Where a box stands in the file: both counted from 1."""

    line: int
    number: int
    box: Box

    @property
    def rank(self) -> int:
        return self.line - 1


def _table(name: str, cells: list[Cell]) -> Table:
    placed = {slot.stage: cell.rank for cell in cells for slot in slots_of(cell.box)}
    microbatches = 1 + max(slot.microbatch for cell in cells for slot in slots_of(cell.box))
    rows: list[list[Box]] = [[] for _ in range(cells[-1].line)]
    for cell in cells:
        rows[cell.rank].append(cell.box)
    return Table(name, tuple(placed[stage] for stage in sorted(placed)), microbatches, tuple(map(tuple, rows)))


def _content(path: Path) -> str:
    raw = read_bounded(path, MOST_BYTES, "a schedule", _neighbour)
    check_count(raw, b",;\n\r", MOST_CELLS, path, "a schedule")
    try:
        content = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        content, line = "", raw[: error.start].count(b"\n") + 1
        raise UserError("not a text file", where=f"{path}:{line}", hint=CELL) from None
    if "\0" in content:
        raise UserError("not a text file", where=f"{path}:{content[: content.index(chr(0))].count(chr(10)) + 1}", hint=CELL)
    if not content.strip().strip(","):
        raise UserError("there is no schedule in the file", where=str(path), hint=ROWS)
    return content.replace("\r\n", "\n").replace("\r", "\n")


def _neighbour(path: Path) -> str:
    """What there is instead of a missing file."""
    try:
        names = sorted(p.name for p in path.parent.iterdir() if p.name.lower().endswith(".csv"))
    except (OSError, ValueError):
        return f"there is no folder {shown(str(path.parent))}"
    close = nearest(path.name, names)
    return f"did you mean {close!r}?" if close else "name a file that `trainsim schedule ... --csv FILE` or torch has written"


def _parsed(rows: list[str]) -> tuple[list[Cell], list[Fault]]:
    """The boxes in reading order, and the cells that hold none."""
    cells: list[Cell] = []
    faults: list[Fault] = []
    for line, row in enumerate(rows, 1):
        before = len(cells) + len(faults)
        for number, content in enumerate(_split(row), 1):
            box = _box(content)
            if isinstance(box, Fault):
                faults.append(_at(line, number, box.message, box.hint))
            elif box is not None:
                cells.append(Cell(line, number, box))
        if before == len(cells) + len(faults):
            faults.append(Fault(f"rank {line - 1} has nothing to do", ROWS, str(line)))
    return cells, faults


def _split(row: str) -> list[str]:
    """The cells of a row; what is no CSV is one cell."""
    try:
        return [cell.strip() for cell in next(csv.reader([row]), [])]
    except csv.Error:
        return [row]


def _at(line: int, number: int, message: str, hint: str = "") -> Fault:
    return Fault(f"cell {number}: {message}", hint, str(line))


def _box(content: str) -> Box | Fault | None:
    """What a cell says: None if it is empty."""
    if not content:
        return None
    if found := _SLOT.fullmatch(content):
        return _slot(found)
    if pair := _PAIR.fullmatch(content):
        forward, backward = (_SLOT.fullmatch(part.strip()) for part in pair.groups())
        if forward and backward and forward[2] == FORWARD and backward[2] in (BACKWARD, INPUT_GRADIENT):
            return Pair(_slot(forward), _slot(backward))
        return Fault(f"{shown(content)} is no pair", f"first a forward, then a backward: (0F8;7B0){OVERLAPPED}")
    if _COMMUNICATION.fullmatch(content):
        return Fault(f"{shown(content)} is no computation", COMPUTE_ONLY)
    return Fault(f"{shown(content)} is no slot", CELL)


def _slot(found: re.Match[str]) -> Slot:
    return Slot(found[2], int(found[1]), int(found[3]))


_BEFORE = {BACKWARD: FORWARD, INPUT_GRADIENT: FORWARD, WEIGHT_GRADIENT: INPUT_GRADIENT}


class _Check:
    """What must hold of all cells together: the same as `program.slot.check`, with the places in the file."""

    def __init__(self, cells: list[Cell]) -> None:
        self.cells = cells
        self.first: dict[Slot, Cell] = {}
        self.home: dict[int, Cell] = {}
        for cell in cells:
            for slot in slots_of(cell.box):
                self.first.setdefault(slot, cell)
                self.home.setdefault(slot.stage, cell)

    def faults(self) -> list[Fault]:
        gaps = list(self._gaps())
        return gaps or sorted([*self._slots(), *self._missing(), *self._uneven()], key=lambda fault: int(fault.where))

    def _gaps(self) -> Iterator[Fault]:
        """Stages and microbatches are numbered from 0 without a gap."""
        microbatches: dict[int, Cell] = {}
        for slot, cell in self.first.items():
            microbatches.setdefault(slot.microbatch, cell)
        for what, found in (("stage", self.home), ("microbatch", microbatches)):
            if (last := max(found)) >= len(found):
                gap = next(number for number in range(last) if number not in found)
                hint = f"{what}s are numbered from 0 without a gap"
                yield _at(found[last].line, found[last].number, f"{what} {last}, but there is no {what} {gap}", hint)

    def _slots(self) -> Iterator[Fault]:
        """Each slot once, on the rank of its stage, after what it needs of its own stage."""
        done: set[Slot] = set()
        strangers: set[tuple[int, int]] = set()
        for cell in self.cells:
            for slot in slots_of(cell.box):
                first, home = self.first[slot], self.home[slot.stage]
                need = slot._replace(kind=_BEFORE.get(slot.kind, ""))
                if slot in done:
                    yield _at(cell.line, cell.number, f"{slot} again", f"line {first.line}, cell {first.number} has it already")
                elif home.rank != cell.rank and (slot.stage, cell.rank) not in strangers:
                    strangers.add((slot.stage, cell.rank))
                    message = f"{slot} is on rank {cell.rank}, and stage {slot.stage} on rank {home.rank}"
                    yield _at(cell.line, cell.number, message, f"{ONE_RANK}; line {home.line}, cell {home.number} came first")
                elif need in self.first and need not in done:
                    yield _at(cell.line, cell.number, f"{slot} stands before {need}", f"{need} comes first")
                done.add(slot)

    def _missing(self) -> Iterator[Fault]:
        microbatches = 1 + max(slot.microbatch for slot in self.first)
        for stage in sorted(self.home):
            for microbatch in range(microbatches):
                has = "".join(kind for kind in "FBIW" if Slot(kind, stage, microbatch) in self.first)
                if has not in ("FB", "FIW"):
                    message = f"stage {stage} has {', '.join(has) or 'nothing'} for microbatch {microbatch}"
                    yield Fault(message, "it needs F and B, or F, I and W", str(self.home[stage].line))

    def _uneven(self) -> Iterator[Fault]:
        """Every rank has as many stages as the others."""
        held = Counter(cell.rank for cell in self.home.values())
        chunks = Counter(held.values()).most_common(1)[0][0]
        for rank in range(self.cells[-1].line):
            if held[rank] != chunks:
                stages = f"{held[rank]} stage{'s' * (held[rank] != 1)}"
                yield Fault(f"rank {rank} has {stages}, others have {chunks}", "give every rank as many", str(rank + 1))
