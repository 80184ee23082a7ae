"""Collective algorithms, one file each: who sends how much to whom, in what order.

An algorithm is a module with `KINDS`, the collectives that it knows, and a pure function `rounds(kind, nodes)`: given the
node of every rank of a group (members of a node stand together), the rounds of messages that carry one payload. A message of
a round leaves when both its ends are done with their part in the round before; when a round repeats, as soon as there is
what its source passes on. The payload of a gather or a scatter is the whole tensor; that of an all-to-all is what one rank
holds before (and after) it; a broadcast starts at the first member. Everything else follows from the rounds:

- uncontended, each round takes the latency of its slowest message and the time of its busiest link; a round that repeats goes
  round a ring, and takes the mean latency of its messages;
- with `PIPELINED = True` the payload is cut so fine that all rounds are under way at once: latencies add up, and the busiest
  link of all rounds together limits the rate. Cut into a number of pieces, it takes the latencies once, and then, tick by tick,
  the time of the busiest link of the rounds that pieces are in (`windows`): one piece takes the sum over the rounds, and ever
  more come ever nearer to the limit;
- under contention all messages of all rounds are one weighted fluid.

An all-to-all may be uneven: its module takes `rounds(kind, nodes, matrix)`, where entry (i, j) is what rank i has for rank j,
in any unit, and the payload is what a rank holds on average.

What a module may say besides: `takes(kind, nodes)`, whether a group can be served at all (absent: every group);
`alike(kind, nodes)`, whether all ranks have equal parts (absent: they have, but for the root of a broadcast);
`lanes(kind, nodes)`, the rounds in parts that wait for nothing of one another, such as several rings (absent: they are one);
`RINGS = True`, where inside nodes every rank talks to the next: on meshes binding puts neighbours side by side; and
`IN_NETWORK = True`, where switches reduce and copy. There an edge stands for what its source sends into the network and its
target takes out of it, no matter whose bytes they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, groupby
from itertools import pairwise as neighbours
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Edges:
    """Directed edges between the members of a group, by position in the group, each with its share of the bytes."""

    source: Array
    target: Array
    share: Array

    @classmethod
    def of(cls, source: Array, target: Array, share: float = 1.0) -> Edges:
        return cls(source, target, np.full(len(source), share))

    @classmethod
    def to_next(cls, n: int) -> Edges:
        """From each of n members to the next one, and from the last to the first."""
        member = np.arange(n)
        return cls.of(member, (member + 1) % n)

    @cached_property
    def key(self) -> tuple[bytes, ...]:
        """Equal for equal edges."""
        return tuple(np.ascontiguousarray(column).tobytes() for column in (self.source, self.target, self.share))


@dataclass(frozen=True, eq=False, slots=True)
class Round:
    """Messages that go together: along each edge its share of `fraction` of the payload; `repeats` times in a row."""

    edges: Edges
    fraction: Fraction
    repeats: int = 1


def is_pipelined(algorithm: ModuleType) -> bool:
    """Whether an algorithm cuts its payload into pieces."""
    return bool(getattr(algorithm, "PIPELINED", False))


def steps(rounds: Sequence[Round]) -> int:
    """Messages that follow one another."""
    return sum(r.repeats for r in rounds)


def wire_fraction(rounds: Sequence[Round]) -> Fraction:
    """Bytes per byte of payload that an edge of share 1 in every round carries."""
    return sum((r.fraction * r.repeats for r in rounds), Fraction(0))


def windows(rounds: Sequence[Round], pieces: int | None) -> Iterator[tuple[tuple[Round, ...], int]]:
    """What is under way together as so many pieces follow one another through the rounds, and for how many ticks.

    In a tick every message under way carries one piece. Cut infinitely fine (None) there is one tick, of all rounds.
    """
    if pieces is None:
        yield tuple(rounds), 1
        return
    if pieces == 1:
        yield from (((replace(r, repeats=1),), r.repeats) for r in rounds)
        return
    cuts = list(accumulate((r.repeats for r in rounds), initial=0))

    def under_way(tick: int) -> tuple[int, ...]:
        first, last = max(0, tick - pieces + 1), min(tick + 1, cuts[-1])
        return tuple(max(0, min(last, end) - max(first, begin)) for begin, end in neighbours(cuts))

    ticks = range(cuts[-1] + pieces - 1 if rounds else 0)
    for counts, alike in groupby(map(under_way, ticks)):
        together = tuple(replace(r, repeats=count) for r, count in zip(rounds, counts, strict=True) if count)
        yield together, sum(1 for _ in alike)


def joined(parts: Sequence[tuple[Edges, float]]) -> Edges:
    """Several sets of edges as one, each with a factor on its shares; edges that occur more than once are added up."""
    source, target = (np.concatenate([getattr(e, name) for e, _ in parts]) for name in ("source", "target"))
    share = np.concatenate([e.share * factor for e, factor in parts])
    n = int(max(source.max(initial=-1), target.max(initial=-1))) + 1
    key, which = np.unique(source * n + target, return_inverse=True)
    return Edges(key // max(n, 1), key % max(n, 1), np.bincount(which, weights=share, minlength=len(key)))
