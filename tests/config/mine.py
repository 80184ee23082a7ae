"""Schedules of somebody's own, right and wrong. Tests copy this file, and run it from where they put it."""

from __future__ import annotations

from dataclasses import dataclass

import beside  # noqa: F401

from simulator.program.slot import Pair, Slot


@dataclass
class Remark:
    text: str


def gpipe(rank, shape):
    for kind in "FB":
        for microbatch in range(shape.microbatches):
            yield kind, rank, microbatch


def listed(rank, shape):
    return [Slot(*slot) for slot in gpipe(rank, shape)]


def stuck(rank, shape):
    yield from (Slot("F", rank, m) for m in (range(shape.microbatches) if rank else [0]))
    if rank == 0:
        yield Slot("B", 0, 0)
        yield from (Slot("F", 0, m) for m in range(1, shape.microbatches))
        yield from (Slot("B", 0, m) for m in range(1, shape.microbatches))
    else:
        yield from (Slot("B", rank, m) for m in reversed(range(shape.microbatches)))


def raises(rank, shape):
    yield Slot("F", rank, 0)
    return 1 // 0


class Mute(Exception):
    """An exception whose message cannot be made."""

    def __str__(self):
        raise LookupError


def mutes(rank, shape):
    raise Mute


def leaves(rank, shape):
    raise SystemExit(0)


def imports(rank, shape):
    import no_such_module  # noqa: F401


def number(rank, shape):
    yield 3


def text(rank, shape):
    yield "F00"


def half(rank, shape):
    yield Slot("F", rank, 0.5)


def kind(rank, shape):
    yield Slot("X", rank, 0)


def unhashable(rank, shape):
    yield Slot(["F"], rank, 0)


def single(rank, shape):
    yield Pair(Slot("F", rank, 0), None)


def nothing(rank, shape):
    return None


def empty(rank, shape):
    return []


def endless(rank, shape):
    while True:
        yield Slot("F", rank, 0)


def short(rank, shape):
    yield from list(gpipe(rank, shape))[:-1]


def twice(rank, shape):
    yield from [*gpipe(rank, shape), ("F", rank, 0)]


def backwards(rank, shape):
    yield from reversed(list(gpipe(rank, shape)))


def foreign(rank, shape):
    yield from gpipe(0, shape)


def outside(rank, shape):
    yield Slot("F", 99, -1)


def alone(rank):
    yield Slot("F", rank, 0)


constant = 3


class Placed:
    order = staticmethod(gpipe)
    placement = staticmethod(lambda shape: [0, 7])


class Unplaced:
    order = staticmethod(gpipe)
    placement = staticmethod(lambda shape: 1 // 0)


class Choosy:
    order = staticmethod(gpipe)
    refuse = staticmethod(lambda shape: 1 // 0)


def far(rank, shape):
    yield Slot("F", 10**30, 0)


def doubled(rank, shape):
    """Pairs of two forward slots, which no rank runs side by side."""
    for first in range(0, shape.microbatches, 2):
        yield Pair(Slot("F", rank, first), Slot("F", rank, first + 1))
    for microbatch in range(shape.microbatches):
        yield Slot("B", rank, microbatch)


def turned(rank, shape):
    for microbatch in range(shape.microbatches):
        yield Pair(Slot("B", rank, microbatch), Slot("F", rank, microbatch))


class _Elsewhere:
    """An order that is right, with placements that are not."""

    order = staticmethod(gpipe)

    def __init__(self, found=(), chunks=1):
        self.found, self.CHUNKS = found, chunks

    def placements(self, shape):
        return self.found


UNEQUAL, NOWHERE, WORDED = _Elsewhere([[0, 1], [1]]), _Elsewhere([]), _Elsewhere([[0, 1]], chunks="two")
