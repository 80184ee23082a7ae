"""A pipeline with one stage per rank as a line of machines: whole durations, a memory cap, and bounds on any order.

Every rank runs M jobs of each of three kinds: F passes down the line, I back up it, and W follows I on its own rank. The
microbatches are interchangeable, so each kind runs in their order at no loss: take any timetable, and give the k-th F (I, W)
that starts on each rank to microbatch k. A job waits for one job before it, all starts and all counts of activations stay
as they were, and the k-th start of a sequence is never before the k-th start of what it waits for, one by one. So an order
is a word in F, I and W for each rank.

The bounds are those of job shops: a *head*, before which a job cannot start, a *tail*, which must follow its end, and the
preemptive schedule of one rank between them (Jackson; Carlier, "The one-machine sequencing problem", 1982). Heads and tails
grow along the line, through the jobs of a kind, and through the cap, which puts F of one microbatch after the W that makes
room for it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

KINDS = "FIW"
F, I, W = range(3)  # noqa: E741
NEVER = -(1 << 60)
"""Before any time of a line, and what does not count: the durations of a line add up to less."""
LOOK_BACK = 192
"""Jobs that a head looks back on: those before them count through the heads of these."""

Table = list[list[list[int]]]
"""A time of each job: rank, kind, microbatch."""
Words = tuple[str, ...]
"""The order of each rank."""


class Rule(NamedTuple):
    """The cap: at most `most`, where F adds, and the ends of I and W free, so much."""

    most: int
    adds: int
    i_frees: int
    w_frees: int


@dataclass(frozen=True)
class Line:
    """What to put in order. The value of a timetable is the largest over ranks of its last end + `late`."""

    microbatches: int
    lengths: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    """Kind -> rank -> duration."""
    comm: int
    rule: Rule
    late: tuple[int, ...]

    @property
    def ranks(self) -> int:
        return len(self.late)

    def needs(self, microbatch: int) -> tuple[tuple[int, int], ...]:
        """The cap on F of a microbatch: it comes after so many I and so many W, by one of these choices at least."""
        return _needs(self.rule, microbatch)

    def fits(self, words: Words) -> bool:
        """Whether an order keeps the cap on every rank."""
        step = {"F": self.rule.adds, "I": -self.rule.i_frees, "W": -self.rule.w_frees}
        for word in words:
            held = 0
            for kind in word:
                held += step[kind]
                if held > self.rule.most:
                    return False
        return True


@cache
def _needs(rule: Rule, microbatch: int) -> tuple[tuple[int, int], ...]:
    over = (microbatch + 1) * rule.adds - rule.most
    if over <= 0:
        return ((0, 0),)
    if not rule.i_frees:
        freed = -(-over // rule.w_frees)
        return ((freed, freed),)
    least = max(0, over - microbatch)  # of I there are at most as many as of F before
    return tuple((over - freed, freed) for freed in range(least, over // 2 + 1))


def ends_of(line: Line, words: Words) -> Table | None:
    """When each job ends if all start as early as their order lets them; None if the ranks wait for each other in a circle."""
    ends: Table = [[[], [], []] for _ in words]
    done, now = [0] * len(words), [0] * len(words)
    waiting = list(range(len(words)))
    while waiting:
        rank = waiting.pop()
        while done[rank] < len(words[rank]):
            kind = KINDS.index(words[rank][done[rank]])
            ready = _ready(line, ends, rank, kind)
            if ready is None:
                break
            now[rank] = max(now[rank], ready) + line.lengths[kind][rank]
            ends[rank][kind].append(now[rank])
            done[rank] += 1
            other = rank + 1 if kind == F else rank - 1
            if kind != W and 0 <= other < len(words):
                waiting.append(other)
    return ends if all(at == len(word) for at, word in zip(done, words, strict=True)) else None


def _ready(line: Line, ends: Table, rank: int, kind: int) -> int | None:
    """When the next job of a kind may start for what comes from elsewhere; None if that has not run."""
    microbatch = len(ends[rank][kind])
    if kind == F and not rank:
        return 0
    if kind == W or (kind == I and rank == len(ends) - 1):
        before, latency = ends[rank][kind - 1], 0
    else:
        before, latency = ends[rank - 1 if kind == F else rank + 1][kind], line.comm
    return before[microbatch] + latency if microbatch < len(before) else None


def value_of(line: Line, words: Words) -> int | None:
    ends = ends_of(line, words)
    return None if ends is None else max(max(own[I][-1], own[W][-1]) + late for own, late in zip(ends, line.late, strict=True))


def heads(line: Line) -> Table:
    """The earliest start of every job that the line and the cap allow."""
    found: Table = [[[], [], []] for _ in line.late]
    lengths = tuple(zip(*line.lengths, strict=True))
    for k in range(line.microbatches):
        needs = line.needs(k)
        for rank, own in enumerate(found):
            start = min(_completion(own, (k, after_i, after_w), lengths[rank]) for after_i, after_w in needs)
            arrival = found[rank - 1][F][k] + lengths[rank - 1][F] + line.comm if rank else 0
            own[F].append(max(start, arrival, 0))
        least_w = min(after_w for _, after_w in needs)
        for rank in reversed(range(line.ranks)):
            own = found[rank]
            start = _completion(own, (k + 1, k, least_w), lengths[rank])
            last = rank == line.ranks - 1
            own[I].append(start if last else max(start, found[rank + 1][I][k] + lengths[rank + 1][I] + line.comm))
            own[W].append(_completion(own, (k + 1, k + 1, k), lengths[rank]))
    return found


def tails(line: Line) -> Table:
    """The least time from the end of every job to the end of all (+ `late`): heads, seen from the end."""
    count, lengths = line.microbatches, tuple(zip(*line.lengths, strict=True))
    found: Table = [[[], [], []] for _ in line.late]  # from the last microbatch on
    later_i, later_w = ([count - n for n in after] for after in _first_after(line))
    for back in range(count):
        k = count - 1 - back
        for rank, own in enumerate(found):
            counts = (later_w[k], later_w[k], back)
            own[W].append(max(line.late[rank], _completion(own, counts, lengths[rank])))
            rest = max(line.late[rank], _completion(own, (later_i[k], back, back + 1), lengths[rank]))
            passed = found[rank - 1][I][back] + lengths[rank - 1][I] + line.comm if rank else rest
            own[I].append(max(rest, passed))
        for rank in reversed(range(line.ranks)):
            own = found[rank]
            rest = _completion(own, (back, back + 1, back + 1), lengths[rank])
            last = rank == line.ranks - 1
            own[F].append(rest if last else max(rest, found[rank + 1][F][back] + lengths[rank + 1][F] + line.comm))
    return [[column[::-1] for column in own] for own in found]


def _first_after(line: Line) -> tuple[list[int], list[int]]:
    """For each microbatch the first F that the cap puts after its I, and after its W."""
    count = line.microbatches
    firsts: tuple[list[int], list[int]] = ([count] * count, [count] * count)
    for k in reversed(range(count)):
        for first, least in zip(firsts, (min(column) for column in zip(*line.needs(k), strict=True)), strict=True):
            first[:least] = [k] * least
    return firsts


def _completion(releases: Sequence[list[int]], counts: tuple[int, int, int], lengths: Sequence[int]) -> int:
    """When a rank is done at the earliest with the first `counts` jobs of each kind; their releases ascend."""
    (a, b, c), (of_a, of_b, of_c) = (n - 1 for n in counts), lengths
    in_a, in_b, in_c = releases
    x, y, z = in_a[a] if a >= 0 else NEVER, in_b[b] if b >= 0 else NEVER, in_c[c] if c >= 0 else NEVER
    work, latest = 0, NEVER
    for _ in range(min(sum(counts), LOOK_BACK)):
        if x >= y and x >= z:
            work, at, a = work + of_a, x, a - 1
            x = in_a[a] if a >= 0 else NEVER
        elif y >= z:
            work, at, b = work + of_b, y, b - 1
            y = in_b[b] if b >= 0 else NEVER
        else:
            work, at, c = work + of_c, z, c - 1
            z = in_c[c] if c >= 0 else NEVER
        latest = max(latest, at + work)
    return latest


def lower_bound(line: Line, head: Table, tail: Table) -> int:
    """No timetable is worth less: the worst rank, between the heads and tails of its jobs."""
    bounds = []
    for rank in range(line.ranks):
        jobs = [
            (head[rank][kind][k], line.lengths[kind][rank], tail[rank][kind][k])
            for kind in (F, I, W)
            for k in range(line.microbatches)
        ]
        bounds += [sum(job) for job in jobs]
        bounds.append(_preemptive(jobs))
    return max(bounds)


def _preemptive(jobs: Iterable[tuple[int, int, int]]) -> int:
    """The value of the best preemptive schedule of (head, length, tail) on one machine: always the longest tail first."""
    coming = sorted(jobs, reverse=True)
    ready: list[tuple[int, int]] = []
    now, worst = 0, NEVER
    while coming or ready:
        if not ready:
            now = max(now, coming[-1][0])
        while coming and coming[-1][0] <= now:
            _, length, tail = coming.pop()
            heapq.heappush(ready, (-tail, length))
        minus_tail, length = heapq.heappop(ready)
        ran = min(length, coming[-1][0] - now) if coming else length
        now += ran
        if ran == length:
            worst = max(worst, now - minus_tail)
        else:
            heapq.heappush(ready, (minus_tail, length - ran))
    return worst
