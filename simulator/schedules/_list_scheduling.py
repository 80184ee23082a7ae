"""Shared parts of the cost-aware schedules: durations in integer ticks, execution of slots on ranks, and W that fill gaps.

A cost-aware schedule builds an order by simulating it for the given durations. Chains of F and I determine its length. No other
slot waits for a W, so W fill the gaps between F and I. Where a gap is shorter than a W, the rank either idles or starts the W
and delays the slot that it waited for. The rule is that of zero-bubble schedules (Qi et al., arXiv 2401.10241, section 3.1):
a rank idles as long as its idle time does not exceed that of the rank that idled most; then it starts the W.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate, cycle
from math import inf, lcm
from typing import NamedTuple

from ..program.slot import Shape, Slot

MOST_PARTS, MOST_TICKS = 1_000_000, 1 << 50
"""Durations are exact if their ratios to the longest have denominators up to the first number, and the longest then has at most
the second number of ticks."""
ROUNDED = 1 << 36
"""Ticks of the longest duration otherwise: so few that the last bits of a float, which change with the unit of the durations,
hardly ever change a tick."""
TOLERANCE = 1e-13
HALVES = {"F": 2, "I": -1, "W": -1}
"""Change of a rank's memory by a slot, in halves of an activation."""


class Ticks(NamedTuple):
    """Durations in integer ticks: of each kind for every stage, and of a crossing between ranks."""

    forward: tuple[int, ...]
    input_gradient: tuple[int, ...]
    weight_gradient: tuple[int, ...]
    crossing: int

    @property
    def uniform(self) -> bool:
        """F = I = W on all stages, and no latency."""
        return not self.crossing and len({*self.forward, *self.input_gradient, *self.weight_gradient}) == 1

    def never(self, microbatches: int) -> int:
        """A time, in ticks, that exceeds twice the makespan of any order.

        At any time before the end a slot runs or a transfer is under way, because slots start as soon as their inputs arrive.
        So the sum of all slots and crossings bounds the makespan.
        """
        slots = sum(self.forward) + sum(self.input_gradient) + sum(self.weight_gradient)
        return 2 * microbatches * (slots + 2 * len(self.forward) * self.crossing) + 1


def ticks(shape: Shape) -> Ticks:
    """The durations in ticks, chosen so that each duration is an integer where their ratios are rational."""
    durations = shape.durations
    kinds = [[durations.of(Slot(kind, stage, 0)) for stage in range(shape.stages)] for kind in ("F", "I", "W")]
    unit = max(durations.comm, *(max(kind) for kind in kinds)) or 1.0
    in_unit = _ticks_in([length / unit for length in (durations.comm, *kinds[0], *kinds[1], *kinds[2])])
    forward, input_gradient, weight_gradient = (tuple(round(length / unit * in_unit) for length in kind) for kind in kinds)
    return Ticks(forward, input_gradient, weight_gradient, round(durations.comm / unit * in_unit))


def _ticks_in(lengths: list[float]) -> int:
    """The number of ticks per unit that makes all given lengths integers."""
    common = 1
    for length in dict.fromkeys(lengths):
        fraction = Fraction(length).limit_denominator(MOST_PARTS)
        common = lcm(common, fraction.denominator)
        if abs(fraction - Fraction(length)) > TOLERANCE or common > MOST_TICKS:
            return ROUNDED
    return common


class Outcome(NamedTuple):
    """Orders, and the times in ticks that result from executing them."""

    span: int
    """The longest time of a rank from its first start to its last end."""
    makespan: int
    idle: tuple[int, ...]
    """Idle time of each rank between its slots."""
    orders: Sequence[Sequence[Slot]]
    held: int = 0
    """The peak memory of a rank in halves of an activation, where it was counted."""

    @property
    def times(self) -> tuple[int, int]:
        return self.span, self.makespan


def best_outcome(first: Outcome, others: Iterable[Outcome]) -> Outcome:
    """The best outcome. One outcome replaces another if it is shorter in span or makespan and longer in neither."""
    for other in others:
        if other.span <= first.span and other.makespan <= first.makespan:
            first = other if other.times != first.times else first
    return first


def executed(orders: Sequence[Sequence[Slot]], lengths: Ticks) -> Outcome:
    """The outcome of given orders of F, I and W with a stage on each rank, where every slot starts as soon as it can. Memory is
    counted in halves of an activation: two from the F on, one from the I to the W."""
    ranks, states = len(orders), RankStates(lengths, len(orders))
    ends: dict[Slot, int] = {}
    left = [deque(order) for order in orders]
    while any(left):
        for rank, waiting in enumerate(left):
            while waiting and (ready := _ready(waiting[0], ends, ranks, lengths.crossing)) is not None:
                slot = waiting.popleft()
                ends[slot] = states.run_weight(rank) if slot.kind == "W" else states.run(rank, slot, ready)
    held = (accumulate(HALVES[slot.kind] for slot in order) for order in orders)
    return states.outcome()._replace(held=max(max(of) for of in held))


def _ready(slot: Slot, ends: Mapping[Slot, int], ranks: int, crossing: int) -> int | None:
    """The time at which the input of a slot arrives; None if the slot that makes it has not run."""
    kind, stage, microbatch = slot
    if kind == "W" or (kind == "F" and not stage):
        return 0
    of_rank = kind == "I" and stage == ranks - 1
    before = Slot("F" if of_rank else kind, stage if of_rank else stage + (1 if kind == "I" else -1), microbatch)
    end = ends.get(before)
    return end if end is None or of_rank else end + crossing


class RankStates:
    """The state of all ranks during execution: time, idle time, executed slots, and W that wait to run."""

    def __init__(self, lengths: Ticks, ranks: int, headroom: Sequence[int] | None = None, ties: Sequence[int] = (0,)) -> None:
        self.lengths = lengths
        self.time = [0] * ranks
        self.began = [-1] * ranks
        self.idle = [0] * ranks
        self.most_idle = 0
        self.headroom = headroom or [0] * ranks
        """Idle time that each rank may have, in ticks, even if no rank has idled that long yet."""
        self.ties = cycle(ties)
        """Tie rules, used in turn: 0 lets a rank become as idle as the most idle one, 1 does not."""
        self.tied = False
        """Whether a rank became as idle as it may. If none did, tie rules do not matter."""
        self.delayed_at: list[float] = [inf] * ranks
        """Rank -> the least idle time at which it ran a W that delayed a slot. A rank that may not idle so long runs the same."""
        self.orders: list[list[Slot]] = [[] for _ in range(ranks)]
        self.waiting: list[deque[tuple[int, int]]] = [deque() for _ in range(ranks)]
        """(stage, microbatch) of the W that could run, the oldest first."""

    def run(self, rank: int, slot: Slot, ready: int) -> int:
        """Runs an F or I as soon as its input is ready, and returns its end."""
        kind, stage, microbatch = slot
        if kind == "F":
            length = self.lengths.forward[stage]
        else:
            length = self.lengths.input_gradient[stage]
            self.waiting[rank].append((stage, microbatch))
        return self._run(rank, slot, length, ready)

    def run_weight(self, rank: int, ready: int = 0) -> int:
        """Runs the W that has waited longest, not before `ready`, and returns its end."""
        stage, microbatch = self.waiting[rank].popleft()
        return self._run(rank, Slot("W", stage, microbatch), self.lengths.weight_gradient[stage], ready)

    def _run(self, rank: int, slot: Slot, length: int, ready: int) -> int:
        start = self.time[rank]
        if ready > start:
            if self.began[rank] >= 0:
                self.idle[rank] += ready - start
                self.most_idle = max(self.most_idle, self.idle[rank])
            start = ready
        if self.began[rank] < 0:
            self.began[rank] = start
        self.orders[rank].append(slot)
        self.time[rank] = end = start + length
        return end

    def fill_gap(self, rank: int, ready: int, patience: float) -> int:
        """Runs W until `ready`: those that fit, and one more if the rank would otherwise have idled more than `patience` ticks in
        all. Returns their number."""
        queue, ran = self.waiting[rank], 0
        while queue and self.time[rank] < ready:
            gap = ready - self.time[rank]
            if self.lengths.weight_gradient[queue[0][0]] > gap:
                idle = self.idle[rank] + gap
                if idle <= patience:
                    self.tied |= idle == patience
                    break
                self.delayed_at[rank] = min(self.delayed_at[rank], idle)
            self.run_weight(rank)
            ran += 1
        return ran

    def patience(self, rank: int) -> int:
        """The total idle time up to which a rank does not become the most idle one, in ticks."""
        return max(self.most_idle, self.headroom[rank]) - next(self.ties)

    def outcome(self) -> Outcome:
        for rank, queue in enumerate(self.waiting):
            while queue:
                self.run_weight(rank)
        span = max(end - began for end, began in zip(self.time, self.began, strict=True))
        return Outcome(span, max(self.time), tuple(self.idle), self.orders)
