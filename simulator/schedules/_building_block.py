"""Building blocks: schedules made of the slots of one microbatch, in cells of unit length, repeated every six cells.

Each rank has two chunks in a V: a microbatch passes all ranks in ascending and then in descending order (F0, F1), and so do its
gradients (I1, I0). The number of cells between neighbouring ranks in each of the four passes determines how long activations
are held, and so the memory: a rank starts a microbatch every six cells, so that it holds a sixth as many microbatches as a
chunk lives cells. On every rank the four passes fall on different cells modulo six, and the W fill the other two. Reference: Qi
et al., arXiv 2405.15362, "Pipeline Parallelism with Controllable Memory".

An unrolled block has idle cells at both ends, where microbatches are few. Before the first gradient has passed all ranks and
after the last microbatch has started, slots move into earlier idle cells, as long as no rank holds more than the repeated block
does.

Real durations differ from cells. Between the cells that `Execution.fixed_order` names, a rank keeps the plan: it runs its
slots, W included, in the order of their cells and waits for each. Elsewhere a rank runs the first slot in that order whose
input has arrived and that fits in its memory. An F may overtake another F only if memory for the overtaken one remains, so that
the ranks cannot deadlock. W fill gaps as in all cost-aware schedules.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from itertools import accumulate
from math import inf
from typing import Literal, NamedTuple

from ..errors import InvariantBroken
from ..program.slot import Shape, Slot
from ._list_scheduling import Outcome, RankStates, Ticks, best_outcome, ticks

WAIT = -1
"""The choice of a rank that has nothing to run."""
PASSES = 4
"""F0, F1, I1, I0, in the order in which a microbatch takes them; F0 and I1 go down the ranks, F1 and I0 up."""
WEIGHT = 4
"""The fifth row of a plan: the W of its rank, in the order of their I."""
INTERVAL = 6
"""Cells from a slot of one microbatch to the same slot of the next microbatch."""


class Block(NamedTuple):
    """Cells from rank to rank in the four passes, and idle cells between F1 and I1 and between I1 and I0."""

    steps: tuple[int, int, int, int]
    idle_at_loss: int = 0
    idle_at_turn: int = 0

    def first(self, ranks: int) -> list[tuple[int, int, int, int]]:
        """Rank -> the cells of microbatch 0."""
        last = ranks - 1
        f0, f1, i1, i0 = self.steps
        f1_from = f0 * last + 1
        i1_from = f1_from + f1 * last + 1 + self.idle_at_loss
        i0_from = i1_from + i1 * last + 1 + self.idle_at_turn
        return [(f0 * r, f1_from + f1 * (last - r), i1_from + i1 * r, i0_from + i0 * (last - r)) for r in range(ranks)]


Row = list[list[int]]
"""Pass (or WEIGHT) -> microbatch (or W) -> cell, of one rank."""


class Plan(NamedTuple):
    """Cells of all slots, and the range of cells in which the block repeats unchanged."""

    rows: list[Row]
    steady_from: int
    steady_until: int


def unrolled(block: Block, ranks: int, microbatches: int) -> Plan:
    """The plan of a block: repeated for each microbatch, with every W in the first idle cell after its I, and compacted at both
    ends."""
    first = block.first(ranks)
    rows = [[[cell + INTERVAL * m for m in range(microbatches)] for cell in cells] for cells in first]
    for row in rows:
        taken, cell, weights = {cell for cells in row for cell in cells}, 0, []
        for gradient in sorted(row[2] + row[3]):
            cell = max(cell, gradient) + 1
            while cell in taken:
                cell += 1
            weights.append(cell)
        row.append(weights)
    plan = Plan(rows, first[0][3], INTERVAL * (microbatches - 1))
    _compact(plan)
    return plan


def _compact(plan: Plan) -> None:
    """Moves slots at the beginning and the end of a plan into earlier idle cells, in the order of their cells."""
    rows, holds = plan.rows, (1, 1, 0, 0, -1)  # chunks of activations that each kind of slot adds on its rank
    end = max(cells[-1] for row in rows for cells in row) + 1
    slots = [
        (cell, rank, kind, i) for rank, row in enumerate(rows) for kind, cells in enumerate(row) for i, cell in enumerate(cells)
    ]
    taken, alive = [bytearray(end + 1) for _ in rows], [[0] * (end + 1) for _ in rows]
    for cell, rank, kind, _ in slots:
        taken[rank][cell] = 1
        alive[rank][cell] += holds[kind]
    alive = [list(accumulate(changes)) for changes in alive]
    most = max(map(max, alive))
    movable = [slot for slot in slots if slot[0] < plan.steady_from or slot[0] + (slot[1] > 0) > plan.steady_until]
    for cell, rank, kind, number in sorted(movable):
        to = _ready(rows, rank, kind, number)
        if kind in (0, 1):
            to = 1 + next((at for at in range(cell - 1, to - 1, -1) if alive[rank][at] >= most), to - 1)
        to = taken[rank].find(0, to, cell)
        if to >= 0:
            taken[rank][cell], taken[rank][to], rows[rank][kind][number] = 0, 1, to
            if holds[kind]:
                alive[rank][to:cell] = [count + holds[kind] for count in alive[rank][to:cell]]


def _ready(rows: list[Row], rank: int, kind: int, number: int) -> int:
    """The first cell in which the input of a slot has arrived and the previous slot of its kind has ended."""
    row = rows[rank]
    before = row[kind][number - 1] if number else -1
    if kind == WEIGHT:
        return 1 + max(before, sorted(row[2] + row[3])[number])
    source = rank - 1 if kind in (0, 2) else rank + 1
    if 0 <= source < len(rows):
        before = max(before, rows[source][kind][number])
    return 1 + (max(before, row[kind - 1][number]) if kind else before)


class Execution(NamedTuple):
    """How ranks execute a plan for real durations."""

    fixed_order: Literal["until the last start", "steady", "nowhere"]
    """The cells whose order ranks must keep: all until the last microbatch starts, those in which the block repeats, or none."""
    patience: float | None
    """Total idle time, in ticks, up to which a rank waits rather than start a slot that would delay the awaited one; None
    stands for the idle time of the rank that idled most."""


class _Progress:
    """Progress of one rank in each pass of the plan."""

    def __init__(self, row: Row, stages: tuple[int, ...], lengths: tuple[int, ...], never: int) -> None:
        self.row = [[*cells, inf] for cells in row]
        self.arrivals = [[never] * len(cells) for cells in self.row[:PASSES]]
        self.counts = [0] * PASSES
        self.cells = [cells[0] for cells in self.row[:PASSES]]
        """Cell of the next slot of each pass."""
        self.inputs = [never] * PASSES
        """Arrival time of the input of each of these slots, in ticks; `never` until it is known."""
        self.weight_cells = iter(self.row[WEIGHT])
        self.weight_cell = next(self.weight_cells)
        self.stages, self.lengths = stages, lengths
        self.alive = 0
        self.wake = never


class PlanExecutor:
    """Executes a plan on all ranks. A rank holds at most `most_alive` chunks of activations, from F to the end of W."""

    def __init__(self, plan: Plan, lengths: Ticks, most_alive: int, execution: Execution) -> None:
        self.lengths, self.most_alive = lengths, most_alive
        self.fixed_from = {"until the last start": -1, "steady": plan.steady_from, "nowhere": inf}[execution.fixed_order]
        self.fixed_until = plan.steady_until
        self.patience = execution.patience
        self.never = never = lengths.never(len(plan.rows[0][0]))
        ranks = len(plan.rows)
        self.states = RankStates(lengths, ranks)
        self.ranks = []
        for rank, row in enumerate(plan.rows):
            stages = (rank, 2 * ranks - 1 - rank, 2 * ranks - 1 - rank, rank)
            times = (lengths.forward, lengths.forward, lengths.input_gradient, lengths.input_gradient)
            of_passes = tuple(time[stage] for time, stage in zip(times, stages, strict=True))
            self.ranks.append(_Progress(row, stages, of_passes, never))
        first = self.ranks[0]
        first.arrivals[0][:-1] = [0] * (len(first.row[0]) - 1)
        first.inputs[0] = first.wake = 0
        self.events = [0]
        """Heap of time x ranks + rank: a rank becomes free, or the input that it waits for arrives."""

    def outcome(self) -> Outcome | None:
        """The orders and times; None if the ranks wait for each other."""
        ranks, events, count = self.ranks, self.events, len(self.ranks)
        while events:
            now, at = divmod(heappop(events), count)
            rank = ranks[at]
            if rank.wake != now:
                continue
            job, wake = self._choose(at, now)
            if job == WEIGHT:
                wake = self.states.run_weight(at, now)
                rank.weight_cell = next(rank.weight_cells)
                rank.alive -= 1
            elif job != WAIT:
                wake = self._run(at, job, now)
            rank.wake = wake
            if wake < self.never:
                heappush(events, wake * count + at)
        if any(min(rank.cells) < inf for rank in ranks) or any(self.states.waiting):
            return None
        return self.states.outcome()

    def _exceeds_patience(self, at: int, gap: int) -> bool:
        """Whether a rank that idles for `gap` more ticks exceeds its patience, or the idle time of the rank that idled most."""
        most = self.states.most_idle if self.patience is None else self.patience
        return self.states.idle[at] + gap > most

    def _choose(self, at: int, now: int) -> tuple[int, int]:
        """The pass that a free rank runs next, or WAIT with the first arrival that is known."""
        rank, waiting = self.ranks[at], self.states.waiting[at]
        cell = min(rank.cells)
        if waiting and self.fixed_from <= rank.weight_cell <= self.fixed_until and rank.weight_cell < cell:
            return WEIGHT, 0
        head = rank.cells.index(cell)
        if rank.inputs[head] <= now:
            if head > 1 or rank.alive < self.most_alive:
                return head, 0
            if waiting:
                return WEIGHT, 0
        is_fixed = self.fixed_from <= cell <= self.fixed_until
        job, known = (WAIT, rank.inputs[head] if rank.inputs[head] > now else self.never) if is_fixed else self._overtake(at, now)
        if job == WAIT and waiting:
            fits = now + self.lengths.weight_gradient[waiting[0][0]] <= known
            if fits or (not is_fixed and self._exceeds_patience(at, known - now)):
                return WEIGHT, 0
        return job, known

    def _overtake(self, at: int, now: int) -> tuple[int, int]:
        """A pass that may run although the next slot of the plan cannot, or WAIT, with the first arrival of an overtaken slot."""
        rank, known, forwards = self.ranks[at], self.never, 0
        for kind in sorted(range(PASSES), key=rank.cells.__getitem__):
            overtaken = 0
            if kind < 2:
                forwards += 1
                if forwards == 2:  # the F of the other chunk in earlier cells
                    row, done = rank.row[1 - kind], rank.counts[1 - kind]
                    overtaken = bisect_left(row, rank.cells[kind], done) - done
            if kind > 1 or rank.alive + overtaken < self.most_alive:
                arrival = rank.inputs[kind]
                if arrival <= now:
                    hurries = now + rank.lengths[kind] <= known or self._exceeds_patience(at, known - now)
                    return (kind, 0) if hurries else (WAIT, known)
                known = min(known, arrival)
        return WAIT, known

    def _run(self, at: int, kind: int, now: int) -> int:
        """Runs the next slot of a pass, records the arrival of its output at the next rank, and returns the end of the slot."""
        rank, count = self.ranks[at], len(self.ranks)
        microbatch, stage = rank.counts[kind], rank.stages[kind]
        end = self.states.run(at, Slot("F" if kind < 2 else "I", stage, microbatch), now)
        following = rank.counts[kind] = microbatch + 1
        rank.cells[kind], rank.inputs[kind] = rank.row[kind][following], rank.arrivals[kind][following]
        rank.alive += kind < 2
        to, arrival = at + 1 if kind in (0, 2) else at - 1, end + self.lengths.crossing
        if not 0 <= to < count:
            if kind == PASSES - 1:
                return end
            to, kind, arrival = at, kind + 1, end
        then = self.ranks[to]
        then.arrivals[kind][microbatch] = arrival
        if then.counts[kind] == microbatch:
            then.inputs[kind] = arrival
            if then.wake > arrival >= self.states.time[to] and to != at:
                then.wake = arrival
                heappush(self.events, arrival * count + to)
        return end


def shortest(block: Block, shape: Shape, most_alive: int, executions: Iterable[Execution]) -> Outcome:
    """The shortest execution of a block for the durations of the shape; the order of the paper is one of the candidates.

    Where all slots last one cell, and there are enough microbatches for the block to repeat, that order is returned.
    """
    lengths, plan = ticks(shape), unrolled(block, shape.ranks, shape.microbatches)
    cell = (1,) * shape.stages
    block_outcome = PlanExecutor(plan, Ticks(cell, cell, cell, 0), most_alive, Execution("until the last start", 0)).outcome()
    if block_outcome is None:
        raise InvariantBroken(f"the ranks wait for each other in {block} for {shape}")
    if lengths.uniform and shape.microbatches >= 2 * shape.ranks - 1:
        return block_outcome
    others = (PlanExecutor(plan, lengths, most_alive, execution).outcome() for execution in executions)
    return best_outcome(times_of(block_outcome.orders, lengths), (other for other in others if other))


def times_of(orders: Sequence[Sequence[Slot]], lengths: Ticks) -> Outcome:
    """Times of given orders for a V of two chunks: every slot starts as soon as possible, and W run in the order of their I."""
    ranks, last, states = len(orders), 2 * len(orders) - 1, RankStates(lengths, len(orders))
    arrivals: dict[tuple[str, int, int], int] = {}
    """Slot -> arrival of the output of the previous stage, in ticks."""
    left = [iter(order) for order in orders]
    pending = [next(order, None) for order in left]
    while any(pending):
        for rank in range(ranks):
            while slot := pending[rank]:
                kind, stage, microbatch = slot
                if kind == "W":
                    states.run_weight(rank)
                else:
                    arrival = 0 if slot[:2] == ("F", 0) else arrivals.get(slot)
                    if arrival is None:
                        break
                    end = states.run(rank, slot, arrival)
                    to = stage + 1 if kind == "F" else stage - 1
                    if to > last:
                        arrivals["I", last, microbatch] = end
                    else:
                        arrivals[kind, to, microbatch] = end + (0 if {stage, to} == {ranks - 1, ranks} else lengths.crossing)
                pending[rank] = next(left[rank], None)
    return states.outcome()
