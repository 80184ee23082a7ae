"""Collective algorithms, one file each: who sends how much to whom, in what order.

An algorithm is a module with `KINDS`, the collectives that it knows, and a pure function `rounds(kind, nodes)`: given the
node of every rank of a group (members of a node stand together), the rounds of messages that carry one payload. A message of
a round leaves when both its ends are done with their part in the round before. The payload of a gather or a scatter is the whole
tensor; that of an all-to-all is what one rank holds before (and after) it; a broadcast starts at the first member.
Everything else follows from the rounds:

- alone, each round takes the latency of its slowest message and the time of its busiest link; a round that repeats goes
  round a ring, and takes the mean latency of its messages;
- with `PIPELINED = True` the payload is cut so fine that all rounds are under way at once: latencies add up, and the busiest
  link of all rounds together sets the pace;
- under contention all messages of all rounds are one weighted fluid.

What a module may say besides: `takes(kind, nodes)`, whether a group can be served at all (absent: every group);
`alike(kind, nodes)`, whether all ranks have equal parts (absent: they have, but for the root of a broadcast); and
`IN_NETWORK = True`, where switches reduce and copy. There an edge stands for what its source sends into the network and its
target takes out of it, no matter whose bytes they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, eq=False, slots=True)
class Edges:
    """Directed edges between the members of a group, by position in the group, each with its share of the bytes."""

    source: Array
    target: Array
    share: Array

    @classmethod
    def of(cls, source: Array, target: Array, share: float = 1.0) -> Edges:
        return cls(source, target, np.full(len(source), share))

    @property
    def key(self) -> tuple[bytes, ...]:
        """Equal for equal edges."""
        return tuple(np.ascontiguousarray(column).tobytes() for column in (self.source, self.target, self.share))


@dataclass(frozen=True, eq=False, slots=True)
class Round:
    """Messages that go together: along each edge its share of `fraction` of the payload; `repeats` times in a row."""

    edges: Edges
    fraction: Fraction
    repeats: int = 1


def steps(rounds: Sequence[Round]) -> int:
    """Messages that follow one another."""
    return sum(r.repeats for r in rounds)


def wire_fraction(rounds: Sequence[Round]) -> Fraction:
    """Bytes per byte of payload that an edge of share 1 in every round carries."""
    return sum((r.fraction * r.repeats for r in rounds), Fraction(0))


def joined(parts: Sequence[tuple[Edges, float]]) -> Edges:
    """Several sets of edges as one, each with a factor on its shares; edges that occur more than once are added up."""
    source, target = (np.concatenate([getattr(e, name) for e, _ in parts]) for name in ("source", "target"))
    share = np.concatenate([e.share * factor for e, factor in parts])
    n = int(max(source.max(initial=-1), target.max(initial=-1))) + 1
    key, which = np.unique(source * n + target, return_inverse=True)
    return Edges(key // max(n, 1), key % max(n, 1), np.bincount(which, weights=share, minlength=len(key)))
