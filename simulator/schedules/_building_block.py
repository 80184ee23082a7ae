"""Building blocks: the slots of one microbatch in cells of unit length, repeated every six cells.

Two chunks per rank in a V: a microbatch passes the ranks forth and back (F0, F1), and so do its gradients (I1, I0). The cells
between neighbouring ranks in each of the four passes decide how long activations are held, and so the memory: a chunk is
alive for as many microbatches as six cells fit into its life. On every rank the four passes fall on different cells modulo
six, and the W fill the other two. Reference: Qi et al., arXiv 2405.15362, "Pipeline Parallelism with Controllable Memory".

An unrolled block has idle cells at both ends, where microbatches are few. Before the first gradient is through and after the
last microbatch has set out, slots are pulled into earlier idle cells, as long as no rank holds more than the block does.
"""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

PASSES = 4
"""F0, F1, I1, I0, in the order in which a microbatch takes them; F0 and I1 go down the ranks, F1 and I0 up."""
WEIGHT = 4
"""The fifth row of a plan: its W, in the order of their I."""
INTERVAL = 6


class Block(NamedTuple):
    """Cells from rank to rank in the four passes, and idle cells between F1 and I1 and between I1 and I0."""

    steps: tuple[int, int, int, int]
    at_top: int = 0
    at_bottom: int = 0

    def first(self, ranks: int) -> list[tuple[int, int, int, int]]:
        """Rank -> the cells of microbatch 0."""
        last = ranks - 1
        forth, back, down, up = self.steps
        turned = forth * last + 1
        loss = turned + back * last + 1 + self.at_top
        home = loss + down * last + 1 + self.at_bottom
        return [(forth * r, turned + back * (last - r), loss + down * r, home + up * (last - r)) for r in range(ranks)]


Row = list[list[int]]
"""Pass (or WEIGHT) -> microbatch (or W) -> cell, of one rank."""


class Plan(NamedTuple):
    """Cells of all slots, and between which cells the block repeats without being changed."""

    rows: list[Row]
    steady_from: int
    steady_until: int


def unrolled(block: Block, ranks: int, microbatches: int) -> Plan:
    """The block once for each microbatch, every W in the first idle cell after its I, pulled together at both ends."""
    first = block.first(ranks)
    rows = [[[cell + INTERVAL * m for m in range(microbatches)] for cell in cells] for cells in first]
    for row in rows:
        row.append(_idle_cells_after(sorted(row[2] + row[3]), {cell for cells in row for cell in cells}))
    plan = Plan(rows, first[0][3], INTERVAL * (microbatches - 1))
    _pull(plan)
    return plan


def _idle_cells_after(gradients: list[int], taken: set[int]) -> list[int]:
    """A cell for each W, in the order of the gradients."""
    found, cell = [], 0
    for gradient in gradients:
        cell = max(cell, gradient) + 1
        while cell in taken:
            cell += 1
        found.append(cell)
    return found


class _Line(NamedTuple):
    """One rank cell by cell."""

    taken: bytearray
    alive: list[int]
    """Chunks of activations held in each cell."""


def _pull(plan: Plan) -> None:
    """Moves slots of both ends into earlier idle cells, in the order of their cells."""
    rows = plan.rows
    end = max(cells[-1] for row in rows for cells in row) + 1
    lines = [_line(row, end) for row in rows]
    most = max(max(line.alive) for line in lines)
    movable = [
        (cell, rank, kind, number)
        for rank, row in enumerate(rows)
        for kind, cells in enumerate(row)
        for number, cell in enumerate(cells)
        if cell < plan.steady_from or cell + (rank > 0) > plan.steady_until
    ]
    for cell, rank, kind, number in sorted(movable):
        taken, alive = lines[rank]
        to = _ready(rows, rank, kind, number)
        if kind in (0, 1):
            full = next((at for at in range(cell - 1, to - 1, -1) if alive[at] >= most), to - 1)
            to = full + 1
        to = taken.find(0, to, cell)
        if to < 0:
            continue
        taken[cell], taken[to], rows[rank][kind][number] = 0, 1, to
        change = 1 if kind in (0, 1) else -1 if kind == WEIGHT else 0
        if change:
            alive[to:cell] = [count + change for count in alive[to:cell]]


def _line(row: Row, end: int) -> _Line:
    taken, changes = bytearray(end + 1), [0] * (end + 1)
    for kind, cells in enumerate(row):
        for cell in cells:
            taken[cell] = 1
            changes[cell] += 1 if kind in (0, 1) else -1 if kind == WEIGHT else 0
    return _Line(taken, list(accumulate(changes)))


def _ready(rows: list[Row], rank: int, kind: int, number: int) -> int:
    """The first cell in which a slot's input is there and the slot before it of its kind is through."""
    row = rows[rank]
    before = row[kind][number - 1] if number else -1
    if kind == WEIGHT:
        return 1 + max(before, sorted(row[2] + row[3])[number])
    source = rank - 1 if kind in (0, 2) else rank + 1
    if 0 <= source < len(rows):
        before = max(before, rows[source][kind][number])
    return 1 + (max(before, row[kind - 1][number]) if kind else before)
