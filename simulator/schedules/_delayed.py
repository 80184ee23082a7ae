"""Orders of one forward and one backward pass by turns, and the weave of the zero-bubble schedules with W that come later.

Qi et al., arXiv 2401.10241: weight gradients wait for nobody's input and nobody waits for them, so they fill what would be
bubbles. Schedules of this kind differ in how many forward passes a rank runs first and for how long it delays the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..program.slot import Slot


def one_by_one(forward: Sequence[Slot], backward: Sequence[Slot], warm_up: int) -> Iterator[Slot]:
    """`warm_up` F first, then F and B by turns, then the B that are left."""
    yield from forward[:warm_up]
    for i, slot in enumerate(backward):
        yield from forward[warm_up + i : warm_up + i + 1]
        yield slot


def weave(passes: Sequence[Slot], warm_up: int, delay: int) -> Iterator[Slot]:
    """The fused `passes` of a rank with B split: `warm_up` F first, then F I and the W of `delay` backward passes ago."""
    forward = [slot for slot in passes if slot.kind == "F"]
    backward = [slot for slot in passes if slot.kind == "B"]
    total = len(forward)
    yield from forward[:warm_up]
    for i in range(total):
        yield from forward[warm_up + i : warm_up + i + 1]
        yield backward[i]._replace(kind="I")
        if i >= delay:
            yield backward[i - delay]._replace(kind="W")
    for slot in backward[max(0, total - delay) :]:
        yield slot._replace(kind="W")


def most_alive(total: int, warm_up: int, delay: int) -> int:
    """The most chunks that a rank holds, from F to the end of W."""
    return min(total, warm_up + 1 + delay)
