"""DualPipe (DeepSeek-V3): microbatches enter at both ends; a forward and a backward pass overlap to hide communication.

Every rank holds two stages, one of each direction, so every parameter is stored twice. For F = I = W and an overlapped pair
FB = F + B, the span is M(F + B) + (P/2 - 1)(FB + B - 3W), and P + 1 microbatches are alive. P and M must be even, and M at
least 2P. Reference: DeepSeek-V3, arXiv 2412.19437, section 3.2.1 and figure 5, and the public repository of DualPipe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import repeat

from ..errors import OutsideDomain
from ..program.slot import Box, Pair, Shape, Slot
from . import chimera

CHUNKS = 1
PAIRS = True
NEAR, FAR = 0, 1
Step = tuple[str, int]
"""The kind of a slot, and its stream."""


def refuse(shape: Shape) -> None:
    ranks = shape.ranks + shape.ranks % 2
    microbatches = max(2 * ranks, shape.microbatches + shape.microbatches % 2)
    if ranks != shape.ranks or microbatches != shape.microbatches:
        reason = (
            "dualpipe needs an even number of ranks, and an even number of microbatches, at least two per rank:"
            f" not {shape.microbatches} on {shape.ranks}"
        )
        raise OutsideDomain(reason, nearest={"ranks": ranks, "microbatches": microbatches})


placements = chimera.placements


def order(rank: int, shape: Shape) -> Iterator[Box]:
    half = shape.microbatches // 2
    forth, back = range(half), range(half, shape.microbatches)
    if rank < shape.ranks // 2:
        return bidirectional_order(rank, shape.ranks // 2, (forth, back))
    return bidirectional_order(shape.ranks - 1 - rank, shape.ranks // 2, (back, forth))


def in_flight(rank: int, shape: Shape) -> int:
    return shape.ranks + 1


def bidirectional_order(position: int, width: int, streams: tuple[range, range]) -> Iterator[Box]:
    """The boxes of a rank, in the eight steps of the published code of DualPipe and DualPipeV.

    A rank runs two streams of microbatches, and slots of one stream overlap with slots of the other. Of 2w stages the rank at
    `position` p of w holds stage p, which the *near* stream reaches early, and stage 2w - 1 - p, which the *far* stream reaches
    late. In DualPipe the streams are the two directions, in DualPipeV the two halves of the V. Position 0 is the outermost
    rank, where microbatches enter and losses are computed. `streams` holds the microbatches of the near and of the far stream,
    at least 2w each.
    """
    stages = (position, 2 * width - 1 - position)
    numbers = {(kind, stream): iter(streams[stream]) for kind in ("F", "B") for stream in (NEAR, FAR)}
    delayed: deque[Slot] = deque()

    def slot(kind: str, stream: int) -> Slot:
        """The next slot of a kind: microbatches in order, and weight gradients in the order in which they were delayed."""
        if kind == "W":
            return delayed.popleft()
        microbatch = next(numbers["F" if kind == "F" else "B", stream])
        if kind == "I":
            delayed.append(Slot("W", stages[stream], microbatch))
        return Slot(kind, stages[stream], microbatch)

    for first, *second in _steps(position, width, len(streams[NEAR])):
        yield Pair(slot(*first), slot(*second[0])) if second else slot(*first)


def _steps(position: int, width: int, per_stream: int) -> Iterator[tuple[Step, ...]]:
    """The steps of a rank, without microbatch numbers; a step of two slots is an overlapped pair."""
    outer, inner = position + 1, width - 1 - position
    yield from repeat((("F", NEAR),), 2 * inner)
    for _ in range(outer):
        yield (("F", NEAR),)
        yield (("F", FAR),)
    for _ in range(inner):
        yield (("I", FAR),)
        yield (("W", FAR),)
        yield (("F", FAR),)
    for i in range(per_stream - 2 * width + outer):
        if i == 0 and inner == 0:  # the two middle ranks wait for each other here: nothing to hide yet
            yield (("F", NEAR),)
            yield (("B", FAR),)
        else:
            yield ("F", NEAR), ("B", FAR)
        yield ("F", FAR), ("B", NEAR)
    for _ in range(inner):
        yield (("B", FAR),)
        yield ("F", FAR), ("B", NEAR)
    for i in range(2 * outer):
        yield (("B" if i < outer else "I", NEAR if i % 2 else FAR),)
    for _ in range(inner):
        yield (("W", NEAR),)
        yield (("I", NEAR),)
    yield from repeat((("W", NEAR),), outer)
