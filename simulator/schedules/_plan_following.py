"""Carrying out a plan of cells for real durations: strictly where it is firm, and by what is ready where it is loose.

Where the plan is firm a rank runs its slots, W among them, in the order of their cells and waits for each. Elsewhere it runs
the first in that order that is ready and that its memory has room for: an F may overtake another F only if room for that one
is left, so that nothing gets stuck. W fill gaps as in all cost-aware schedules.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from ..errors import InvariantBroken
from ..program.slot import Shape
from ._building_block import PASSES, WEIGHT, Block, Plan, Row, unrolled
from ._list_scheduling import Job, Outcome, Ticks, no_worse, ticks

WAIT = -1
"""What a rank does that finds nothing to run."""


class Manner(NamedTuple):
    """How a plan is carried out."""

    is_firm: Callable[[Plan], tuple[float, float]]
    """The first and the last cell of the part that is firm."""
    patience: float | None
    """Idle time up to which a rank waits rather than run what would make it late; None for that of the one most idle."""


def firm(plan: Plan) -> tuple[float, float]:
    """All cells until the last microbatch has set out."""
    return -1, plan.steady_until


def steady(plan: Plan) -> tuple[float, float]:
    """The cells in which the block repeats."""
    return plan.steady_from, plan.steady_until


def nowhere(plan: Plan) -> tuple[float, float]:
    return inf, -1


class _Rank:
    """One rank at work."""

    def __init__(self, row: Row, stages: tuple[int, ...], lengths: tuple[int, ...], never: int) -> None:
        self.row = [[*cells, inf] for cells in row]
        self.arrivals = [[never] * len(cells) for cells in self.row[:PASSES]]
        self.counts = [0] * PASSES
        self.cells = [cells[0] for cells in self.row[:PASSES]]
        """Of the next slot of each pass."""
        self.inputs = [never] * PASSES
        """When they arrive, as far as that is known."""
        self.weight_cells = iter(self.row[WEIGHT])
        self.weight_cell = next(self.weight_cells)
        self.stages, self.lengths = stages, lengths
        self.alive = self.time = self.idle = 0
        self.began = self.wake = never
        self.jobs: list[Job] = []
        self.waiting: deque[tuple[int, int, int]] = deque()
        """(length, stage, microbatch) of the W that could run."""


class Follower:
    """All ranks at work on a plan, each with so many chunks of activations at most, from F to the end of W."""

    def __init__(self, plan: Plan, lengths: Ticks, most_alive: int, manner: Manner) -> None:
        self.lengths, self.most_alive = lengths, most_alive
        self.firm_from, self.firm_until = manner.is_firm(plan)
        self.most_idle = manner.patience or 0
        self.never = never = lengths.never(len(plan.rows[0][0]))
        self.adapts = manner.patience is None
        ranks = len(plan.rows)
        self.ranks = []
        for rank, row in enumerate(plan.rows):
            stages = (rank, 2 * ranks - 1 - rank, 2 * ranks - 1 - rank, rank)
            times = (lengths.forward, lengths.forward, lengths.input_gradient, lengths.input_gradient)
            self.ranks.append(_Rank(row, stages, tuple(time[stage] for time, stage in zip(times, stages, strict=True)), never))
        first = self.ranks[0]
        first.arrivals[0][:-1] = [0] * (len(first.row[0]) - 1)
        first.inputs[0] = first.wake = 0
        self.events = [0]
        """time x ranks + rank: when a rank is free, or what it waits for arrives."""

    def outcome(self) -> Outcome | None:
        """The orders and times; None if the ranks wait for each other."""
        ranks, events, count = self.ranks, self.events, len(self.ranks)
        while events:
            now, at = divmod(heappop(events), count)
            rank = ranks[at]
            if rank.wake != now:
                continue
            job, wake = self._choose(rank, now)
            if job == WEIGHT:
                wake = self._run_weight(rank, now)
            elif job != WAIT:
                wake = self._run(rank, job, now)
                self._pass_on(at, job, wake)
            rank.wake = wake
            if wake < self.never:
                heappush(events, wake * count + at)
        if any(min(rank.cells) < inf or rank.waiting for rank in ranks):
            return None
        span = max(rank.time - rank.began for rank in ranks)
        return Outcome(span, max(r.time for r in ranks), tuple(r.idle for r in ranks), [r.jobs for r in ranks])

    def _choose(self, rank: _Rank, now: int) -> tuple[int, int]:
        """What a free rank runs, or WAIT and the first arrival that it knows of."""
        cell = min(rank.cells)
        if rank.waiting and self.firm_from <= rank.weight_cell <= self.firm_until and rank.weight_cell < cell:
            return WEIGHT, 0
        head = rank.cells.index(cell)
        if rank.inputs[head] <= now:
            if head > 1 or rank.alive < self.most_alive:
                return head, 0
            if rank.waiting:
                return WEIGHT, 0
        is_firm = self.firm_from <= cell <= self.firm_until
        job, known = (WAIT, rank.inputs[head] if rank.inputs[head] > now else self.never) if is_firm else self._around(rank, now)
        if job == WAIT and rank.waiting:
            fits = now + rank.waiting[0][0] <= known
            if fits or (not is_firm and rank.idle + known - now > self.most_idle):
                return WEIGHT, 0
        return job, known

    def _around(self, rank: _Rank, now: int) -> tuple[int, int]:
        """What may run although the head of the plan cannot, or WAIT; the first arrival of what comes before it in the plan."""
        known, forwards = self.never, 0
        for kind in sorted(range(PASSES), key=rank.cells.__getitem__):
            overtaken = 0
            if kind < 2:
                forwards += 1
                overtaken = self._overtaken(rank, kind) if forwards == 2 else 0
            if kind > 1 or rank.alive + overtaken < self.most_alive:
                arrival = rank.inputs[kind]
                if arrival <= now:
                    hurries = now + rank.lengths[kind] <= known or rank.idle + known - now > self.most_idle
                    return (kind, 0) if hurries else (WAIT, known)
                known = min(known, arrival)
        return WAIT, known

    def _overtaken(self, rank: _Rank, kind: int) -> int:
        """F of the other chunk that come before this one in the order of cells."""
        row, at = rank.row[1 - kind], rank.counts[1 - kind]
        return bisect_left(row, rank.cells[kind], at) - at

    def _begin(self, rank: _Rank, now: int) -> None:
        """Notes what a rank has idled before a slot."""
        if rank.began == self.never:
            rank.began = now
        elif now > rank.time:
            rank.idle += now - rank.time
            if self.adapts and rank.idle > self.most_idle:
                self.most_idle = rank.idle

    def _run_weight(self, rank: _Rank, now: int) -> int:
        """Runs a W; its end."""
        self._begin(rank, now)
        length, stage, microbatch = rank.waiting.popleft()
        rank.weight_cell = next(rank.weight_cells)
        rank.alive -= 1
        rank.jobs.append(("W", stage, microbatch))
        rank.time = now + length
        return rank.time

    def _run(self, rank: _Rank, kind: int, now: int) -> int:
        """Runs the next slot of a pass; its end."""
        self._begin(rank, now)
        microbatch, stage = rank.counts[kind], rank.stages[kind]
        following = rank.counts[kind] = microbatch + 1
        rank.cells[kind] = rank.row[kind][following]
        rank.inputs[kind] = rank.arrivals[kind][following]
        if kind < 2:
            rank.alive += 1
            rank.jobs.append(("F", stage, microbatch))
        else:
            rank.waiting.append((self.lengths.weight_gradient[stage], stage, microbatch))
            rank.jobs.append(("I", stage, microbatch))
        rank.time = now + rank.lengths[kind]
        return rank.time

    def _pass_on(self, at: int, kind: int, end: int) -> None:
        """Records, at the rank that continues with a microbatch, when it arrives."""
        microbatch = self.ranks[at].counts[kind] - 1
        to = at + 1 if kind in (0, 2) else at - 1
        arrival = end + self.lengths.crossing
        if not 0 <= to < len(self.ranks):
            if kind == PASSES - 1:
                return
            to, kind, arrival = at, kind + 1, end
        rank = self.ranks[to]
        rank.arrivals[kind][microbatch] = arrival
        if rank.counts[kind] == microbatch:
            rank.inputs[kind] = arrival
            if rank.wake > arrival >= rank.time and to != at:
                rank.wake = arrival
                heappush(self.events, arrival * len(self.ranks) + to)


def shortest(block: Block, shape: Shape, most_alive: int, manners: Iterable[Manner]) -> Outcome:
    """The block in cells as its paper draws it, or what is shorter for the durations of the shape.

    Where all slots last as long as a cell, and microbatches are enough for the block to repeat, the block itself is the answer.
    """
    lengths, plan = ticks(shape), unrolled(block, shape.ranks, shape.microbatches)
    one = (1,) * shape.stages
    drawn = Follower(plan, Ticks(one, one, one, 0), most_alive, Manner(firm, 0)).outcome()
    if drawn is None:
        raise InvariantBroken(f"the ranks wait for each other in {block} for {shape}")
    if lengths.even and shape.microbatches >= 2 * shape.ranks - 1:
        return drawn
    others = (Follower(plan, lengths, most_alive, manner).outcome() for manner in manners)
    return no_worse(repeated(drawn.orders, lengths), (other for other in others if other))


def repeated(orders: Sequence[Sequence[Job]], lengths: Ticks) -> Outcome:
    """Orders of a V of two chunks carried out as they are, every slot as soon as it can."""
    ranks, last = len(orders), 2 * len(orders) - 1
    microbatches = 1 + max(microbatch for _, _, microbatch in orders[0])
    length = {"F": lengths.forward, "I": lengths.input_gradient, "W": lengths.weight_gradient}
    never = lengths.never(microbatches)
    forward, gradient = ([[never] * microbatches for _ in range(last + 2)] for _ in range(2))
    forward[0] = [0] * microbatches
    gradient[last] = forward[last + 1]
    began, time, idle, left = [-1] * ranks, [0] * ranks, [0] * ranks, [iter(order) for order in orders]
    """`forward` and `gradient` say when the input of a slot arrives at its stage."""
    pending = [next(order, None) for order in left]
    while any(pending):
        for rank in range(ranks):
            while job := pending[rank]:
                kind, stage, microbatch = job
                arrival = 0 if kind == "W" else (forward if kind == "F" else gradient)[stage][microbatch]
                if arrival == never:
                    break
                start = max(time[rank], arrival)
                began[rank] = start if began[rank] < 0 else began[rank]
                idle[rank] += start - time[rank] if time[rank] else 0
                time[rank] = end = start + length[kind][stage]
                if kind == "F":
                    forward[stage + 1][microbatch] = end + (0 if stage in (ranks - 1, last) else lengths.crossing)
                elif kind == "I" and stage:
                    gradient[stage - 1][microbatch] = end + (0 if stage == ranks else lengths.crossing)
                pending[rank] = next(left[rank], None)
    span = max(end - begin for end, begin in zip(time, began, strict=True))
    return Outcome(span, max(time), tuple(idle), orders)
