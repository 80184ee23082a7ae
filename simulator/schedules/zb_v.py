"""ZB-V: zero-bubble schedule of two chunks per rank in a V, with the activation memory of 1F1B.

The first and the last stage are on the first rank. A microbatch passes forward through F0 and F1 and backward through I1 and
I0, where 0 and 1 number the chunks of a rank. After a warm-up all ranks alternate one I and one F. I0 precedes I1, and F1
precedes F0, so that the older microbatch goes first. W fill gaps, and run when the memory of a rank is full. For F = I = W, no
latency and M >= 2P - 1 every rank is busy from its first slot to its last: the span is 2 M (F + I + W) for chunks of F, I and
W, and the makespan is (P - 1)F longer. At most the chunks of P microbatches are alive.

For other durations the order is found by trial: with and without W that delay an F or an I1, then with more idle time for the
ranks that had less of it. The block 4-2-4-2 of V-ZB, executed by readiness, replaces the result if it is shorter in span or
makespan and longer in neither. The block is also used where stages are so uneven that the warm-up would exceed the memory
limit. References: Qi et al., arXiv 2401.10241, and arXiv 2405.15362 (V-ZB).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, product
from math import inf
from typing import NamedTuple

from ..program.slot import Shape, Slot, snaked
from ._building_block import Block, Execution, PlanExecutor, shortest, unrolled
from ._list_scheduling import Outcome, RankStates, Ticks, best_outcome, ticks

CHUNKS = 2
COST_AWARE = True
BLOCK = Block((4, 2, 4, 2))
EXECUTIONS = (Execution("nowhere", None), Execution("nowhere", inf), Execution("until the last start", None))
TIES = ((1,), (0, 1, 0), (0, 1, 1, 0, 1, 0, 0))
WHOLE, HALF = 2, 1
"""Memory is counted in halves of an activation."""

placement = snaked


def in_flight(rank: int, shape: Shape) -> int:
    return 2 * min(shape.ranks, shape.microbatches)


def orders(shape: Shape) -> Sequence[Sequence[Slot]]:
    lengths = ticks(shape)
    rules = [DelayRule(forward, i1) for forward, i1 in product((True, False), repeat=2)]
    trials = [trial for rule in rules if (trial := _tried(lengths, shape, rule))]
    if not trials:
        return shortest(BLOCK, shape, CHUNKS * shape.ranks, EXECUTIONS).orders
    best, rule, has_ties = min(trials, key=lambda trial: trial.outcome.times)
    busiest = max(sum(kind[rank] + kind[-1 - rank] for kind in lengths[:3]) for rank in range(shape.ranks))
    if best.span > busiest * shape.microbatches:
        tied = (_tried(lengths, shape, rule._replace(ties=ties)) for ties in (TIES if has_ties else ()))
        plan = unrolled(BLOCK, shape.ranks, shape.microbatches)
        planned = (PlanExecutor(plan, lengths, CHUNKS * shape.ranks, execution).outcome() for execution in EXECUTIONS)
        outcomes = chain((trial and trial.outcome for trial in tied), planned)
        best = best_outcome(best, (outcome for outcome in outcomes if outcome))
    return best.orders


class Trial(NamedTuple):
    """The best order that is found with a rule."""

    outcome: Outcome
    rule: DelayRule
    has_ties: bool
    """Whether tie rules matter."""


def _tried(lengths: Ticks, shape: Shape, rule: DelayRule) -> Trial | None:
    """The best order with a rule: built again with more idle time for the ranks that idled less, as long as the result improves.

    Counting half an activation as freed by I lets W wait longer, which is tried first. Where a rank then holds too many chunks,
    I frees nothing. None if a rank still does: stages are so uneven that the warm-up exceeds the memory limit. Where an order
    would come out the same, it is not built again.
    """
    has_ties = False
    for waiting in (HALF, WHOLE):
        first = VOrderBuilder(lengths, shape, rule, waiting)
        best, headroom = first.outcome(), _headroom(first)
        has_ties |= first.states.tied
        would_change = any(room >= idle for room, idle in zip(headroom, first.states.delayed_at, strict=True))
        while best and would_change:
            another = VOrderBuilder(lengths, shape, rule, waiting, headroom)
            again, headroom = another.outcome(), _headroom(another)
            has_ties |= another.states.tied
            if not again or again.times >= best.times:
                break
            best = again
        if best:
            return Trial(best, rule, has_ties)
    return None


def _headroom(built: VOrderBuilder) -> list[int]:
    """More idle time for the ranks that idled less, so that all of them may idle equally long."""
    idle = built.states.idle
    return [max(idle) - each for each in idle]


class DelayRule(NamedTuple):
    """The slots that a W may delay in order to keep a rank from idling."""

    forward: bool
    """Whether a W may delay an F, if the rank would otherwise become the most idle one."""
    i1: bool
    """Whether a W may delay an I1, if the rank would otherwise become the most idle one. For an I0 it always may."""
    ties: tuple[int, ...] = (0,)
    """Tie rules, used in turn: with 1, a rank that would be as idle as the most idle one counts as the most idle."""


class VOrderBuilder:
    """Builds an order by executing the warm-up and then I and F alternately on all ranks. Passes are F0, F1, I1 and I0."""

    def __init__(self, lengths: Ticks, shape: Shape, rule: DelayRule, waiting: int, headroom: list[int] | None = None) -> None:
        self.ranks, self.microbatches = shape.ranks, shape.microbatches
        self.may_delay = (rule.forward, rule.forward, rule.i1, True)
        """Pass -> whether a W may delay its slots."""
        self.crossing = lengths.crossing
        self.waiting = waiting
        """Halves of an activation that count as held between I and W."""
        self.most_alive = 0
        self.states = RankStates(lengths, self.ranks, headroom, rule.ties)
        self.counts = [[0] * 4 for _ in range(self.ranks)]
        self.never = lengths.never(self.microbatches)
        self.arrivals = [[[self.never] * self.microbatches for _ in range(4)] for _ in range(self.ranks)]
        self.arrivals[0][0] = [0] * self.microbatches

    def outcome(self) -> Outcome | None:
        """None if a rank held more than 2P chunks."""
        self._warm_up()
        for _ in range(2 * self.microbatches):
            if self.most_alive > 2 * self.ranks:
                return None
            self._run_gradients()
            self._run_forwards()
        return self.states.outcome() if self.most_alive <= 2 * self.ranks else None

    def _warm_up(self) -> None:
        """Runs microbatch 0 to the last stage, and meanwhile as many other F as time and memory allow."""
        for rank in range(self.ranks):
            self._run(rank, 0)
        for rank in reversed(range(self.ranks)):
            while self._has_time_for_another(rank):
                for before in range(rank + 1):
                    self._run(before, 0)
            self._run(rank, 1)
        chunk = 0
        for rank in range(1, self.ranks):
            while self._is_behind(rank):
                for after in reversed(range(rank, self.ranks)):
                    if self.counts[after][chunk] < self.microbatches:
                        self._run(after, chunk)
                chunk = 1 - chunk

    def _has_time_for_another(self, rank: int) -> bool:
        """Whether another F0 ends before the F1 arrives, with memory left for the F of ranks after the first before their I."""
        taken = self.counts[rank][0]
        if taken >= self.microbatches or taken + 2 * (rank + 1) > 2 * self.ranks or rank == self.ranks - 1:
            return False
        return self.states.time[rank] + self.states.lengths.forward[rank] <= self.arrivals[rank][1][0]

    def _is_behind(self, rank: int) -> bool:
        """Whether a rank has run fewer F than the one before it, which runs its I1 first."""
        (f0, f1, *_), (before_f0, before_f1, *_) = self.counts[rank], self.counts[rank - 1]
        return f0 + f1 < before_f0 + before_f1 or f1 <= before_f1 < self.microbatches

    def _run_gradients(self) -> None:
        """Runs an I on every rank: the I0 up the ranks, then the I1 down."""
        takes_i0 = [self._takes_i0(rank) for rank in range(self.ranks)]
        for rank in reversed(range(self.ranks)):
            if takes_i0[rank]:
                self._run(rank, 3)
        for rank in range(self.ranks):
            if not takes_i0[rank]:
                self._run(rank, 2)

    def _takes_i0(self, rank: int) -> bool:
        """Whether the next I of a rank is an I0."""
        *_, i1, i0 = self.counts[rank]
        if i0 >= i1:
            return False
        return rank == self.ranks - 1 or i1 >= self.microbatches or self._is_ready(rank, 3)

    def _run_forwards(self) -> None:
        """Runs an F on every rank that has one ready."""
        for rank, (f0, f1, *_) in enumerate(self.counts):
            if f1 < f0 and self._is_ready(rank, 1):
                self._run(rank, 1)
            elif f0 < self.microbatches and self._is_ready(rank, 0):
                self._run(rank, 0)

    def _is_ready(self, rank: int, kind: int) -> bool:
        return self.arrivals[rank][kind][self.counts[rank][kind]] < self.never

    def _run(self, rank: int, kind: int) -> None:
        """Runs the next slot of a pass, after the W that free memory for it or fill the gap before it."""
        microbatch = self.counts[rank][kind]
        if kind < 2:
            while self.states.waiting[rank] and self._held(rank, self.waiting) + WHOLE > WHOLE * 2 * self.ranks:
                self.states.run_weight(rank)
        ready = self.arrivals[rank][kind][microbatch]
        if ready > self.states.time[rank]:
            self.states.fill_gap(rank, ready, self.states.patience(rank) if self.may_delay[kind] else inf)
        stage = rank if kind in (0, 3) else 2 * self.ranks - 1 - rank
        end = self.states.run(rank, Slot("F" if kind < 2 else "I", stage, microbatch), ready)
        self.counts[rank][kind] += 1
        if kind < 2:
            self.most_alive = max(self.most_alive, self._held(rank, WHOLE) // WHOLE)
        to = rank + 1 if kind in (0, 2) else rank - 1
        if 0 <= to < self.ranks:
            self.arrivals[to][kind][microbatch] = end + self.crossing
        elif kind < 3:
            self.arrivals[rank][kind + 1][microbatch] = end

    def _held(self, rank: int, waiting: int) -> int:
        """Halves of activations that a rank holds, if those that wait for their W count `waiting` halves each."""
        f0, f1, i1, i0 = self.counts[rank]
        return WHOLE * (f0 + f1 - i1 - i0) + waiting * len(self.states.waiting[rank])
