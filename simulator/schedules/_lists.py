"""List schedules of a line: whenever a rank is free it starts one of the jobs that are ready, by a rule; the best of many rules.

The rules differ in what goes first (the job with the longest tail, or one kind before another), in how long a rank would
rather wait for an I or F on its way than start something less urgent, and in how many microbatches it takes in ahead of
their I: any number that the cap allows, or few more than the ranks behind it, as in 1F1B and the zero-bubble schedules
(arXiv 2401.10241).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from ._line import KINDS, F, I, Line, Table, W, Words

FIRST = ("tail", "IFW", "FIW")
PATIENCE = (0.0, 0.3, 0.6, 1.0)
AHEAD = (None, (1, 1), (1, 2), (2, 1), (2, 2), (3, 1))


class Manner(NamedTuple):
    """A rule of a list schedule."""

    first: str
    patience: float
    """Longest wait for a more urgent job, in durations of the job that is put off."""
    ahead: tuple[int, int] | None
    """(a, b): a rank with n ranks behind it takes in a n + b microbatches at most before their I."""


class _State:
    """The progress of each rank."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.words = [""] * line.ranks
        self.counts = [[0, 0, 0] for _ in line.late]
        self.arrived: Table = [[[], [], []] for _ in line.late]
        self.arrived[0][F] = [0] * line.microbatches
        self.free = [0] * line.ranks
        self.events = [(0, rank) for rank in range(line.ranks)]

    def offered(self, rank: int, ahead: int) -> Iterator[tuple[int, int]]:
        """(arrival, kind) of the jobs that the rank could run next."""
        rule, (f, i, w), arrived = self.line.rule, self.counts[rank], self.arrived[rank]
        held = (f + 1) * rule.adds - i * rule.i_frees - w * rule.w_frees
        if f < len(arrived[F]) and f - i < ahead and held <= rule.most:
            yield arrived[F][f], F
        if i < len(arrived[I]):
            yield arrived[I][i], I
        if w < i:
            yield 0, W

    def start(self, rank: int, kind: int, now: int) -> None:
        end = now + self.line.lengths[kind][rank]
        self.free[rank] = end
        self.words[rank] += KINDS[kind]
        self.counts[rank][kind] += 1
        heapq.heappush(self.events, (end, rank))
        if kind == W:
            return
        turns = kind == F and rank == self.line.ranks - 1
        other = rank if turns else rank + 1 if kind == F else rank - 1
        if other >= 0:
            arrival = end if turns else end + self.line.comm
            self.arrived[other][I if turns else kind].append(arrival)
            heapq.heappush(self.events, (arrival, other))


def listed(line: Line, manner: Manner, tail: Table) -> Words:
    """The list schedule by one rule."""
    state = _State(line)
    behind = [line.ranks - 1 - rank for rank in range(line.ranks)]
    ahead = [manner.ahead[0] * n + manner.ahead[1] if manner.ahead else line.microbatches for n in behind]
    while state.events:
        now, rank = heapq.heappop(state.events)
        if state.free[rank] > now:
            continue
        offers = list(state.offered(rank, ahead[rank]))
        urgency = {
            kind: tail[rank][kind][state.counts[rank][kind]] if manner.first == "tail" else -manner.first.index(KINDS[kind])
            for _, kind in offers
        }
        ready = [kind for arrival, kind in offers if arrival <= now]
        if not ready:
            continue
        chosen = max(ready, key=lambda kind: (urgency[kind], -kind))
        until = now + manner.patience * line.lengths[chosen][rank]
        more_urgent = [arrival for arrival, kind in offers if now < arrival < until and urgency[kind] > urgency[chosen]]
        if chosen == I or not more_urgent:
            state.start(rank, chosen, now)
    return tuple(state.words)


def all_listed(line: Line, tail: Table) -> Iterator[Words]:
    """The list schedules by all rules that can be carried out: taking in few microbatches may starve a rank behind."""
    for ahead, first, patience in product(AHEAD, FIRST, PATIENCE):
        words = listed(line, Manner(first, patience, ahead), tail)
        if all(len(word) == 3 * line.microbatches for word in words):
            yield words
