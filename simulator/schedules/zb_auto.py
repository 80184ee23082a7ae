"""ZB-auto: zero-bubble order for given durations and a limit of memory; ZB-1p and ZB-2p are its limits 1 and 2.

Every rank runs some F ahead, then F and I by turns, with W in the gaps: those that fit, those that a rank must run to stay
within its memory, and those that keep it from idling more than any other rank. Three choices have no best
answer: how many F run ahead, whether a rank holds an F back while the rank behind it has enough, and whether it ever idles while
a W could run. All combinations are tried, and the shortest span is kept (then the shortest makespan, then the least memory); the
ranks that idled less in it may then idle as much as the longest, if that helps.

An activation counts a whole from its F, and its I and its W free a half each: `shape.memory_limit` x P is never exceeded.
With M <= P and a limit of 1 or more the makespan is (M + P - 1)(F + I) + W for equal stages without latency. Reference: Qi et
al., arXiv 2401.10241, section 3.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import floor
from typing import Any, NamedTuple

from ..errors import OutsideDomain
from ..program.slot import Shape, Slot
from ._list_scheduling import Outcome, Ranks, Ticks, no_worse, slots, ticks

CHUNKS = 1
COST_AWARE = True
OPTIONS = ("memory_limit",)
TOLERANCE = 1e-9
WHOLE, HALF = 2, 1
"""Memory is counted in halves of an activation."""


FITTING, FILLING, RAMPED = "fitting", "filling", "ramped"


class Manner(NamedTuple):
    """One answer to each of the choices."""

    ahead: str
    """FITTING F ahead end before the first gradient arrives, the last of FILLING ones may end later, and of RAMPED ones there are
    at most as many as make an even ramp, from what the memory of the first rank holds down to the last rank."""
    holds_back: bool
    """An F waits if the next rank has one in store and would rather not be kept waiting for the I after it."""
    idles: bool
    """A rank idles rather than be late with what arrives before a W would end, as long as others idle more."""


MANNERS = tuple(Manner(*choices) for choices in product((FILLING, FITTING, RAMPED), (False, True), (True, False)))


def refuse(shape: Shape) -> None:
    if halves(shape) < WHOLE:
        reason = f"zb-auto needs memory for one microbatch: {shape.memory_limit:g} x {shape.ranks} ranks is less"
        nearest: dict[str, Any] = {"memory_limit": 1 / shape.ranks}
        raise OutsideDomain(reason, nearest=nearest)


def halves(shape: Shape) -> int:
    """Half activations that a rank may hold; more than those of all microbatches are as good as no limit."""
    return floor(min(WHOLE * shape.microbatches, WHOLE * shape.memory_limit * shape.ranks * (1 + TOLERANCE)))


def orders(shape: Shape) -> Iterator[Iterator[Slot]]:
    line = Line(ticks(shape), shape.ranks, shape.microbatches, halves(shape))
    first = min((line.carried_out(manner) for manner in MANNERS), key=lambda outcome: (outcome.times, outcome.held))
    most = max(first.idle)
    headroom = [most - idle for idle in first.idle]
    return slots(no_worse(first, (line.carried_out(manner, headroom) for manner in MANNERS if manner.idles)))


def in_flight(rank: int, shape: Shape) -> int:
    """Of the limit's halves, an activation whose I is still to run takes two: there is one at the end of any F."""
    return min(shape.microbatches, halves(shape) - 1)


class Line(NamedTuple):
    """A line of ranks with durations and a limit of memory."""

    ticks: Ticks
    ranks: int
    microbatches: int
    halves: int

    def carried_out(self, manner: Manner, headroom: list[int] | None = None) -> Outcome:
        """F ahead, then for every further microbatch an F down the line and an I up the line, W in between."""
        turns = Turns(self, manner, headroom)
        for rank, ahead in enumerate(self.ahead(manner.ahead)):
            for _ in range(ahead):
                turns.forward(rank)
        turns.gradients(0)
        for microbatch in range(1, self.microbatches):
            for rank in turns.in_need():
                turns.forward(rank)
            turns.gradients(microbatch)
        return turns.at_work.outcome()._replace(held=turns.most_held)

    def ahead(self, how: str) -> list[int]:
        """F of each rank before its first I: those that memory, and the time until then, have room for."""
        forward, input_gradient, crossing = self.ticks.forward, self.ticks.input_gradient, self.ticks.crossing
        began = [sum(forward[:rank]) + rank * crossing for rank in range(self.ranks)]
        most = min(self.microbatches, self.halves // WHOLE)
        counts, gradient = [1] * self.ranks, 0
        for rank in reversed(range(self.ranks)):
            time, each = began[rank] + forward[rank], forward[rank]
            if rank < self.ranks - 1:
                while counts[rank] < most and time + (each - 1 if how == FITTING else 0) < gradient:
                    counts[rank], time = counts[rank] + 1, time + each
            gradient = max(time, gradient) + input_gradient[rank] + crossing
        for rank in range(1, self.ranks):
            arrived = counts[rank - 1] if counts[rank - 1] == self.microbatches else max(1, counts[rank - 1] - 1)
            counts[rank] = min(counts[rank], arrived)
        if how == RAMPED:
            counts = [min(count, -(-most * (self.ranks - rank) // self.ranks)) for rank, count in enumerate(counts)]
        return counts


class Turns:
    """The line at work in one manner."""

    def __init__(self, line: Line, manner: Manner, headroom: list[int] | None) -> None:
        self.line, self.manner = line, manner
        self.at_work = Ranks(line.ticks, line.ranks, headroom)
        self.arrivals: list[list[int]] = [[0] * line.microbatches for _ in range(line.ranks + 1)]
        """When the input of each F is on its rank."""
        self.forwards = [0] * line.ranks
        self.held = [0] * line.ranks
        self.most_held = 0
        """Halves of activations on each rank, and the most that was."""

    def forward(self, rank: int) -> None:
        """The next F of a rank, after as many W as make room for it."""
        microbatch = self.forwards[rank]
        while self.held[rank] + WHOLE > self.line.halves:
            self.at_work.weight(rank)
            self.held[rank] -= HALF
        arrival = self.arrivals[rank][microbatch]
        self._wait(rank, arrival)
        end = self.at_work.run(rank, ("F", rank, microbatch), arrival)
        self.arrivals[rank + 1][microbatch] = end + self.line.ticks.crossing
        self.forwards[rank] += 1
        self.held[rank] += WHOLE
        self.most_held = max(self.most_held, self.held[rank])

    def gradients(self, microbatch: int) -> None:
        """I of a microbatch on all ranks."""
        arrival = 0
        for rank in reversed(range(self.line.ranks)):
            self._wait(rank, arrival)
            arrival = self.at_work.run(rank, ("I", rank, microbatch), arrival) + self.line.ticks.crossing
            self.held[rank] -= HALF

    def _wait(self, rank: int, arrival: int) -> None:
        """On the first rank nobody waits for the last I: once its F are through it never idles if a W can run."""
        idles = self.manner.idles and (rank or self.forwards[0] < self.line.microbatches)
        patience = self.at_work.patience(rank) if idles else -1
        self.held[rank] -= HALF * self.at_work.until(rank, arrival, patience)

    def in_need(self) -> list[int]:
        """The ranks that run an F before the next I: where one can wait, so can all before it."""
        needy = [rank for rank, done in enumerate(self.forwards) if done < self.line.microbatches]
        if not self.manner.holds_back:
            return needy
        waits = max((rank for rank in needy[:-1] if self._can_wait(rank)), default=-1)
        return [rank for rank in needy if rank > waits]

    def _can_wait(self, rank: int) -> bool:
        """Whether the next rank has an F in store, and this one would be late with the I that follows if it ran an F now."""
        if self.forwards[rank] < self.forwards[rank + 1] + 2:
            return False
        now, lengths = self.at_work.time, self.line.ticks
        gradient = now[rank + 1] + lengths.forward[rank + 1] + lengths.input_gradient[rank + 1] + lengths.crossing
        if now[rank] >= gradient:
            return True
        forced = max(0, self.held[rank] + WHOLE - self.line.halves)
        end = now[rank] + lengths.forward[rank] + forced * lengths.weight_gradient[rank]
        return end > gradient and gradient - now[rank] <= self.at_work.most_idle - self.at_work.idle[rank]
