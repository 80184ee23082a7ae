"""Schedules as the compute-only CSV of torch.distributed.pipelining, written and read: a row per rank, a cell per box.

A cell is a slot such as `3F0` (stage, F B I or W, microbatch) or an overlapped pair such as `(0F8;7B0)OVERLAP_F_B`. An empty cell
is a step in which torch's generators leave the rank idle; empty cells are ignored here, since a slot starts as soon as it can.
Ranks, microbatches, chunks and placement follow from the rows. Reference: `_Action` and `_load_csv` of
torch/distributed/pipelining/schedules.py, torch 2.13.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..errors import Fault, OutsideDomain, UserError, shown
from ..files import atomic, check_count, decoded, read_bounded, similar_file
from ..program.slot import BACKWARD, FORWARD, INPUT_GRADIENT, PRECEDED_BY, Box, Pair, Shape, Slot, slots_of

if TYPE_CHECKING:
    from ..program.layout import Layout

OVERLAPPED = "OVERLAP_F_B"
MOST_BYTES = 2**26
MOST_CELLS = 1_000_000
"""Largest number of cells of a file, which take about 7 s and 600 MB."""
_SLOT = re.compile(r"([0-9]{1,7})([FBIW])([0-9]{1,7})")
_PAIR = re.compile(rf"\(([^();]*);([^();]*)\){OVERLAPPED}")
_COMMUNICATION = re.compile(r"[0-9]+(SEND_[FB]|RECV_[FB]|UNSHARD|RESHARD|REDUCE_GRAD)[0-9]*")
CELL = f"a cell is stage, F B I or W, microbatch, such as 0F0, or a pair such as (0F8;7B0){OVERLAPPED}"
ROWS = "a row for each rank, from rank 0 on, in which every stage and microbatch has F and B, or F, I and W"
COMPUTE_ONLY = 'write the table before communication is added: torch calls it format="compute_only"'
ONE_RANK = "torch.distributed.pipelining gives every stage one rank"


@dataclass(frozen=True, slots=True)
class Table:
    """A schedule of one shape read from a file, with the interface of a schedule that `program.slot` defines."""

    name: str
    shape: Shape
    """The shape of the table."""
    ranks_of_stages: tuple[int, ...]
    rows: tuple[tuple[Box, ...], ...]

    @property
    def CHUNKS(self) -> int:  # noqa: N802
        return self.shape.chunks

    @property
    def PAIRS(self) -> bool:  # noqa: N802
        return any(isinstance(box, Pair) for row in self.rows for box in row)

    def refuse(self, shape: Shape) -> None:
        ranks, microbatches = self.shape.ranks, self.shape.microbatches
        if (shape.ranks, shape.microbatches) != (ranks, microbatches):
            asked = f"not {shape.ranks} and {shape.microbatches}"
            reason = f"{self.name} is a table of {ranks} ranks and {microbatches} microbatches, {asked}"
            raise OutsideDomain(reason, nearest={"ranks": ranks, "microbatches": microbatches})

    def placement(self, shape: Shape) -> tuple[int, ...]:
        return self.ranks_of_stages

    def orders(self, shape: Shape) -> tuple[tuple[Box, ...], ...]:
        return self.rows


def write(layout: Layout, path: str | Path) -> None:
    """Writes the orders of a schedule to a file. Raises `UserError` for a schedule that a table of one placement cannot hold."""
    if len(layout.placements) > 1:
        both = " and ".join(str(placement[0]) for placement in layout.placements)
        message = f"a schedule of {len(layout.placements)} directions has no such table: {ONE_RANK}"
        raise UserError(message, hint=f"here stage 0 is on ranks {both}: choose a schedule of one direction")
    with atomic(path) as temporary:
        temporary.write_text("".join(",".join(map(_cell, order)) + "\n" for order in layout.orders), encoding="ascii")


def _cell(box: Box) -> str:
    return f"{box}{OVERLAPPED}" if isinstance(box, Pair) else str(box)


class Place(NamedTuple):
    """The position of a slot in the file: the rank, which gives the line, and the cell, counted from 1."""

    slot: Slot
    rank: int
    cell: int


def read(path: str | Path) -> Table:
    """The schedule in a file. Raises `UserError` with every fault, each with its line and cell."""
    rows, places, faults = _parsed(_content(Path(path)).rstrip().split("\n"))
    first, home, microbatches = dict[Slot, Place](), dict[int, Place](), dict[int, Place]()
    for place in places:
        first.setdefault(place.slot, place)
        home.setdefault(place.slot.stage, place)
        microbatches.setdefault(place.slot.microbatch, place)
    faults = faults or [*_gaps("stage", home), *_gaps("microbatch", microbatches)]
    if not faults:
        found = [*_misplaced(places, first, home), *_missing(first, home, len(microbatches)), *_uneven(home, len(rows))]
        faults = sorted(found, key=lambda fault: int(fault.where))
    if faults:
        raise UserError(faults=[Fault(f.message, f.hint, f"{path}:{f.where}") for f in faults])
    shape = Shape(len(rows), len(microbatches), len(home) // len(rows))
    return Table(str(path), shape, tuple(home[stage].rank for stage in sorted(home)), tuple(map(tuple, rows)))


def _content(path: Path) -> str:
    hint = "name a file that `trainsim schedule ... --csv FILE` or torch has written"
    raw = read_bounded(path, MOST_BYTES, "a schedule", partial(similar_file, ending=".csv", hint=hint))
    check_count(raw, b",;\n\r", MOST_CELLS, path, "a schedule")
    content = decoded(raw.replace(b"\0", b"\xff"), path, CELL)  # NUL is valid UTF-8, but no text
    if not content.strip().strip(","):
        raise UserError("there is no schedule in the file", where=str(path), hint=ROWS)
    return content.replace("\r\n", "\n").replace("\r", "\n")


def _parsed(lines: list[str]) -> tuple[list[list[Box]], list[Place], list[Fault]]:
    """The boxes of every rank, the places of their slots in reading order, and the faults of cells without a slot."""
    rows: list[list[Box]] = []
    places: list[Place] = []
    faults: list[Fault] = []
    for rank, line in enumerate(lines):
        boxes = [(number, _box(content)) for number, content in enumerate(_split(line), 1) if content]
        if not boxes:
            faults.append(Fault(f"rank {rank} has nothing to do", ROWS, str(rank + 1)))
        faults += [_at(rank, number, box.message, box.hint) for number, box in boxes if isinstance(box, Fault)]
        rows.append([box for _, box in boxes if not isinstance(box, Fault)])
        places += [Place(slot, rank, n) for n, box in boxes if not isinstance(box, Fault) for slot in slots_of(box)]
    return rows, places, faults


def _split(row: str) -> list[str]:
    """The cells of a row; a row that is not valid CSV is a single cell."""
    try:
        return [cell.strip() for cell in next(csv.reader([row]), [])]
    except csv.Error:
        return [row]


def _at(rank: int, cell: int, message: str, hint: str) -> Fault:
    return Fault(f"cell {cell}: {message}", hint, str(rank + 1))


def _box(content: str) -> Box | Fault:
    """The box that a cell describes, or the fault of the cell."""
    if slot := _slot(content):
        return slot
    if pair := _PAIR.fullmatch(content):
        forward, backward = map(_slot, pair.groups())
        if forward and backward and forward.kind == FORWARD and backward.kind in (BACKWARD, INPUT_GRADIENT):
            return Pair(forward, backward)
        return Fault(f"{shown(content)} is not a pair", f"first a forward, then a backward: (0F8;7B0){OVERLAPPED}")
    if _COMMUNICATION.fullmatch(content):
        return Fault(f"{shown(content)} is not a computation", COMPUTE_ONLY)
    return Fault(f"{shown(content)} is not a slot", CELL)


def _slot(content: str) -> Slot | None:
    found = _SLOT.fullmatch(content.strip())
    return Slot(found[2], int(found[1]), int(found[3])) if found else None


# Checks of all cells together: the same as `program.layout.check`, with places in the file ----------------------------------


def _gaps(what: str, found: dict[int, Place]) -> Iterator[Fault]:
    """Faults for stages or microbatches whose numbers, counted from 0, have a gap."""
    if found and (last := max(found)) >= len(found):
        gap = next(number for number in range(last) if number not in found)
        message, several = f"{what} {last}, but there is no {what} {gap}", f"{what}{'es' if what.endswith('ch') else 's'}"
        hint = f"{several} are numbered from 0 without a gap"
        yield _at(found[last].rank, found[last].cell, message, hint)


def _misplaced(places: list[Place], first: dict[Slot, Place], home: dict[int, Place]) -> Iterator[Fault]:
    """Faults for slots that occur twice, on the wrong rank, or before a slot of the same stage that they need."""
    done: set[Slot] = set()
    strangers: set[tuple[int, int]] = set()
    for place in places:
        slot, of_stage = place.slot, home[place.slot.stage]
        need = slot._replace(kind=PRECEDED_BY.get(slot.kind, ""))
        if slot in done:
            hint = f"line {first[slot].rank + 1}, cell {first[slot].cell} has it already"
            yield _at(place.rank, place.cell, f"{slot} again", hint)
        elif of_stage.rank != place.rank and (slot.stage, place.rank) not in strangers:
            strangers.add((slot.stage, place.rank))
            message = f"{slot} is on rank {place.rank}, and stage {slot.stage} on rank {of_stage.rank}"
            yield _at(place.rank, place.cell, message, f"{ONE_RANK}; line {of_stage.rank + 1}, cell {of_stage.cell} came first")
        elif need in first and need not in done:
            yield _at(place.rank, place.cell, f"{slot} stands before {need}", f"{need} comes first")
        done.add(slot)


def _missing(first: dict[Slot, Place], home: dict[int, Place], microbatches: int) -> Iterator[Fault]:
    for stage in sorted(home):
        for microbatch in range(microbatches):
            has = "".join(kind for kind in "FBIW" if Slot(kind, stage, microbatch) in first)
            if has not in ("FB", "FIW"):
                message = f"stage {stage} has {', '.join(has) or 'nothing'} for microbatch {microbatch}"
                yield Fault(message, "it needs F and B, or F, I and W", str(home[stage].rank + 1))


def _uneven(home: dict[int, Place], ranks: int) -> Iterator[Fault]:
    """Faults for ranks with more or fewer stages than the others."""
    held = Counter(place.rank for place in home.values())
    chunks = Counter(held.values()).most_common(1)[0][0]
    for rank in range(ranks):
        if held[rank] != chunks:
            stages = f"{held[rank]} stage{'s' * (held[rank] != 1)}"
            yield Fault(f"rank {rank} has {stages}, others have {chunks}", "give every rank as many", str(rank + 1))
