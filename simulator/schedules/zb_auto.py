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

from collections.abc import Sequence
from itertools import product
from math import floor
from typing import Any, NamedTuple

from ..errors import OutsideDomain
from ..program.slot import Shape, Slot
from ._list_scheduling import Outcome, Ranks, Ticks, no_worse, ticks

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


def refuse(shape: Shape, name: str = "zb-auto") -> None:
    if allowed(shape) < 1:
        reason = f"{name} needs memory for one microbatch: {shape.memory_limit:g} x {shape.ranks} ranks is less"
        nearest: dict[str, Any] = {"memory_limit": 1 / shape.ranks}
        raise OutsideDomain(reason, nearest=nearest)


def allowed(shape: Shape, parts: int = 1) -> int:
    """Parts of an activation that a rank may hold; more than those of all microbatches are as good as no limit."""
    return floor(min(parts * shape.microbatches, parts * shape.memory_limit * shape.ranks * (1 + TOLERANCE)))


def orders(shape: Shape) -> Sequence[Sequence[Slot]]:
    lengths, halves = ticks(shape), allowed(shape, WHOLE)
    first = min(
        (Line(lengths, shape, halves, manner).outcome() for manner in MANNERS), key=lambda found: (found.times, found.held)
    )
    most = max(first.idle)
    headroom = [most - idle for idle in first.idle]
    others = (Line(lengths, shape, halves, manner, headroom).outcome() for manner in MANNERS if manner.idles)
    return no_worse(first, others).orders


def in_flight(rank: int, shape: Shape) -> int:
    """Of the limit's halves, an activation whose I is still to run takes two: there is one at the end of any F."""
    return min(shape.microbatches, allowed(shape, WHOLE) - 1)


class Line:
    """A line of ranks at work in one manner, with durations and a limit of memory in halves of an activation."""

    def __init__(self, lengths: Ticks, shape: Shape, halves: int, manner: Manner, headroom: list[int] | None = None) -> None:
        self.lengths, self.halves, self.manner = lengths, halves, manner
        self.ranks, self.microbatches = shape.ranks, shape.microbatches
        self.at_work = Ranks(lengths, self.ranks, headroom)
        self.arrivals: list[list[int]] = [[0] * self.microbatches for _ in range(self.ranks + 1)]
        """When the input of each F is on its rank."""
        self.forwards = [0] * self.ranks
        self.held = [0] * self.ranks
        self.most_held = 0
        """Halves of activations on each rank, and the most that was."""

    def outcome(self) -> Outcome:
        """F ahead, then for every further microbatch an F down the line and an I up the line, W in between."""
        for rank, ahead in enumerate(self._ahead()):
            for _ in range(ahead):
                self._forward(rank)
        self._gradients(0)
        for microbatch in range(1, self.microbatches):
            for rank in self._in_need():
                self._forward(rank)
            self._gradients(microbatch)
        return self.at_work.outcome()._replace(held=self.most_held)

    def _ahead(self) -> list[int]:
        """F of each rank before its first I: those that memory, and the time until then, have room for."""
        forward, input_gradient, crossing = self.lengths.forward, self.lengths.input_gradient, self.lengths.crossing
        began = [sum(forward[:rank]) + rank * crossing for rank in range(self.ranks)]
        most = min(self.microbatches, self.halves // WHOLE)
        counts, gradient = [1] * self.ranks, 0
        for rank in reversed(range(self.ranks)):
            time, each = began[rank] + forward[rank], forward[rank]
            if rank < self.ranks - 1:
                while counts[rank] < most and time + (each - 1 if self.manner.ahead == FITTING else 0) < gradient:
                    counts[rank], time = counts[rank] + 1, time + each
            gradient = max(time, gradient) + input_gradient[rank] + crossing
        for rank in range(1, self.ranks):
            arrived = counts[rank - 1] if counts[rank - 1] == self.microbatches else max(1, counts[rank - 1] - 1)
            counts[rank] = min(counts[rank], arrived)
        if self.manner.ahead == RAMPED:
            counts = [min(count, -(-most * (self.ranks - rank) // self.ranks)) for rank, count in enumerate(counts)]
        return counts

    def _forward(self, rank: int) -> None:
        """The next F of a rank, after as many W as make room for it."""
        microbatch = self.forwards[rank]
        while self.held[rank] + WHOLE > self.halves:
            self.at_work.weight(rank)
            self.held[rank] -= HALF
        arrival = self.arrivals[rank][microbatch]
        self._wait(rank, arrival)
        end = self.at_work.run(rank, Slot("F", rank, microbatch), arrival)
        self.arrivals[rank + 1][microbatch] = end + self.lengths.crossing
        self.forwards[rank] += 1
        self.held[rank] += WHOLE
        self.most_held = max(self.most_held, self.held[rank])

    def _gradients(self, microbatch: int) -> None:
        """I of a microbatch on all ranks."""
        arrival = 0
        for rank in reversed(range(self.ranks)):
            self._wait(rank, arrival)
            arrival = self.at_work.run(rank, Slot("I", rank, microbatch), arrival) + self.lengths.crossing
            self.held[rank] -= HALF

    def _wait(self, rank: int, arrival: int) -> None:
        """On the first rank nobody waits for the last I: once its F are through it never idles if a W can run."""
        idles = self.manner.idles and (rank or self.forwards[0] < self.microbatches)
        patience = self.at_work.patience(rank) if idles else -1
        self.held[rank] -= HALF * self.at_work.until(rank, arrival, patience)

    def _in_need(self) -> list[int]:
        """The ranks that run an F before the next I: where one can wait, so can all before it."""
        needy = [rank for rank, done in enumerate(self.forwards) if done < self.microbatches]
        waits = max((rank for rank in needy[:-1] if self._can_wait(rank)), default=-1) if self.manner.holds_back else -1
        return [rank for rank in needy if rank > waits]

    def _can_wait(self, rank: int) -> bool:
        """Whether the next rank has an F in store, and this one would be late with the I that follows if it ran an F now."""
        if self.forwards[rank] < self.forwards[rank + 1] + 2:
            return False
        now, lengths = self.at_work.time, self.lengths
        gradient = now[rank + 1] + lengths.forward[rank + 1] + lengths.input_gradient[rank + 1] + lengths.crossing
        forced = max(0, self.held[rank] + WHOLE - self.halves)
        end = now[rank] + lengths.forward[rank] + forced * lengths.weight_gradient[rank]
        most_wait = self.at_work.most_idle - self.at_work.idle[rank]
        return now[rank] >= gradient or (end > gradient and gradient - now[rank] <= most_wait)
