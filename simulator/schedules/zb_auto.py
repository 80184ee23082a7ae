"""ZB-auto: zero-bubble order computed for given durations and a memory limit; limits 1 and 2 are ZB-1p and ZB-2p.

Every rank runs some F ahead, then F and I alternately. W fill the gaps: those that fit, those that a rank must run to stay
within its memory, and those that keep a rank from idling more than any other rank. Three choices have no best answer: how many
F run ahead, whether a rank delays an F while the next rank has enough inputs, and whether a rank ever idles while a W could
run. All combinations are tried, and the orders of ZB-H1 and ZB-H2 if they fit into the memory. The shortest span is kept, then
the shortest makespan, then the least memory. Last, the ranks that idled less may idle as long as the rank that idled most, if
that helps.

An activation counts whole from its F on; its I and its W free one half each. `shape.memory_limit` x P is never exceeded.
With M <= P and a limit of 1 or more the makespan is (M + P - 1)(F + I) + W for equal stages without latency. Reference: Qi et
al., arXiv 2401.10241, section 3.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import floor
from typing import Any, NamedTuple

from ..errors import OutsideDomain
from ..program.slot import Shape, Slot
from . import zb_h1, zb_h2
from ._list_scheduling import Outcome, RankStates, Ticks, best_outcome, executed, ticks

CHUNKS = 1
COST_AWARE = True
OPTIONS = ("memory_limit",)
TOLERANCE = 1e-9
WHOLE, HALF = 2, 1
"""Memory is counted in halves of an activation."""


FITTING, FILLING, RAMPED = "fitting", "filling", "ramped"


class Choices(NamedTuple):
    """One combination of the three choices."""

    ahead: str
    """Number of F before the first I. FITTING: all end before the first gradient arrives. FILLING: the last may end later.
    RAMPED: as FILLING, but at most a number that falls evenly over the ranks from what memory holds on the first rank."""
    holds_back: bool
    """An F waits if the next rank has another F ready, and the F would delay the I that follows it."""
    idles: bool
    """A rank idles, rather than run a W that would delay the next slot, as long as other ranks idle more."""


CHOICES = tuple(Choices(*choices) for choices in product((FILLING, FITTING, RAMPED), (False, True), (True, False)))


def refuse(shape: Shape, name: str = "zb-auto") -> None:
    if allowed(shape) < 1:
        reason = f"{name} needs memory for one microbatch: {shape.memory_limit:g} x {shape.ranks} ranks is less"
        nearest: dict[str, Any] = {"memory_limit": 1 / shape.ranks}
        raise OutsideDomain(reason, nearest=nearest)


def allowed(shape: Shape, parts: int = 1) -> int:
    """Activations that a rank may hold, in units of 1/parts of an activation; at most those of all microbatches."""
    return floor(min(parts * shape.microbatches, parts * shape.memory_limit * shape.ranks * (1 + TOLERANCE)))


def orders(shape: Shape) -> Sequence[Sequence[Slot]]:
    lengths, halves = ticks(shape), allowed(shape, WHOLE)
    built = (OrderBuilder(lengths, shape, halves, choices).outcome() for choices in CHOICES)
    known = (found for found in _known(lengths, shape) if found.held <= halves)
    first = min((*built, *known), key=lambda found: (found.times, found.held))
    most = max(first.idle)
    headroom = [most - idle for idle in first.idle]
    others = (OrderBuilder(lengths, shape, halves, choices, headroom).outcome() for choices in CHOICES if choices.idles)
    return best_outcome(first, others).orders


def _known(lengths: Ticks, shape: Shape) -> Iterator[Outcome]:
    """The orders of other schedules that hold W back by a fixed number of microbatches."""
    for schedule in (zb_h1, zb_h2) if shape.microbatches >= 2 * shape.ranks else (zb_h1,):
        yield executed([list(schedule.order(rank, shape)) for rank in range(shape.ranks)], lengths)


def in_flight(rank: int, shape: Shape) -> int:
    """The memory limit in halves, less one: the activation whose F has just ended holds two halves, others at least one."""
    return min(shape.microbatches, allowed(shape, WHOLE) - 1)


class OrderBuilder:
    """Executes one combination of choices on all ranks, under a memory limit in halves of an activation."""

    def __init__(self, lengths: Ticks, shape: Shape, halves: int, choices: Choices, headroom: list[int] | None = None) -> None:
        self.lengths, self.halves, self.choices = lengths, halves, choices
        self.ranks, self.microbatches = shape.ranks, shape.microbatches
        self.states = RankStates(lengths, self.ranks, headroom)
        self.arrivals: list[list[int]] = [[0] * self.microbatches for _ in range(self.ranks + 1)]
        """Rank -> microbatch -> arrival of the input of its F, in ticks."""
        self.forwards = [0] * self.ranks
        self.held = [0] * self.ranks
        self.most_held = 0
        """`held` counts the halves of activations on each rank now; `most_held` is the peak over ranks and time."""

    def outcome(self) -> Outcome:
        """Runs the F ahead, then for every further microbatch an F down the ranks and an I up the ranks, with W in the gaps."""
        for rank, ahead in enumerate(self._ahead()):
            for _ in range(ahead):
                self._forward(rank)
        self._gradients(0)
        for microbatch in range(1, self.microbatches):
            for rank in self._ranks_with_f_next():
                self._forward(rank)
            self._gradients(microbatch)
        return self.states.outcome()._replace(held=self.most_held)

    def _ahead(self) -> list[int]:
        """Number of F of each rank before its first I, limited by memory and by the time until that I."""
        forward, input_gradient, crossing = self.lengths.forward, self.lengths.input_gradient, self.lengths.crossing
        began = [sum(forward[:rank]) + rank * crossing for rank in range(self.ranks)]
        most = min(self.microbatches, self.halves // WHOLE)
        counts, gradient = [1] * self.ranks, 0
        for rank in reversed(range(self.ranks)):
            time, each = began[rank] + forward[rank], forward[rank]
            if rank < self.ranks - 1:
                while counts[rank] < most and time + (each - 1 if self.choices.ahead == FITTING else 0) < gradient:
                    counts[rank], time = counts[rank] + 1, time + each
            gradient = max(time, gradient) + input_gradient[rank] + crossing
        for rank in range(1, self.ranks):
            arrived = counts[rank - 1] if counts[rank - 1] == self.microbatches else max(1, counts[rank - 1] - 1)
            counts[rank] = min(counts[rank], arrived)
        if self.choices.ahead == RAMPED:
            counts = [min(count, -(-most * (self.ranks - rank) // self.ranks)) for rank, count in enumerate(counts)]
        return counts

    def _forward(self, rank: int) -> None:
        """Runs the next F of a rank, after the W that free memory for it."""
        microbatch = self.forwards[rank]
        while self.held[rank] + WHOLE > self.halves:
            self.states.run_weight(rank)
            self.held[rank] -= HALF
        arrival = self.arrivals[rank][microbatch]
        self._wait(rank, arrival)
        end = self.states.run(rank, Slot("F", rank, microbatch), arrival)
        self.arrivals[rank + 1][microbatch] = end + self.lengths.crossing
        self.forwards[rank] += 1
        self.held[rank] += WHOLE
        self.most_held = max(self.most_held, self.held[rank])

    def _gradients(self, microbatch: int) -> None:
        """Runs the I of a microbatch on all ranks."""
        arrival = 0
        for rank in reversed(range(self.ranks)):
            self._wait(rank, arrival)
            arrival = self.states.run(rank, Slot("I", rank, microbatch), arrival) + self.lengths.crossing
            self.held[rank] -= HALF

    def _wait(self, rank: int, arrival: int) -> None:
        """Fills the gap before an arrival with W. The first rank, once its F are done, never idles while a W can run, because
        no rank waits for its I."""
        idles = self.choices.idles and (rank or self.forwards[0] < self.microbatches)
        patience = self.states.patience(rank) if idles else -1
        self.held[rank] -= HALF * self.states.fill_gap(rank, arrival, patience)

    def _ranks_with_f_next(self) -> list[int]:
        """The ranks that run an F before the next I: those after the last rank that can wait."""
        unfinished = [rank for rank, done in enumerate(self.forwards) if done < self.microbatches]
        waiting = max((rank for rank in unfinished[:-1] if self._can_wait(rank)), default=-1) if self.choices.holds_back else -1
        return [rank for rank in unfinished if rank > waiting]

    def _can_wait(self, rank: int) -> bool:
        """Whether the next rank has an F ready, and an F now would delay the next I on this rank."""
        if self.forwards[rank] < self.forwards[rank + 1] + 2:
            return False
        now, lengths = self.states.time, self.lengths
        gradient = now[rank + 1] + lengths.forward[rank + 1] + lengths.input_gradient[rank + 1] + lengths.crossing
        forced = max(0, self.held[rank] + WHOLE - self.halves)
        end = now[rank] + lengths.forward[rank] + forced * lengths.weight_gradient[rank]
        most_wait = self.states.most_idle - self.states.idle[rank]
        return now[rank] >= gradient or (end > gradient and gradient - now[rank] <= most_wait)
