"""Interleaved 1F1B: each rank holds several chunks of the model, and the bubble shrinks by their number.

Microbatches go in groups of g; a rank takes a group through its first chunk, then through the second, and so on. Makespan
M(F + B) + (P - 1)(F + B)/V for M >= P. With `group` the domain is Megatron's: P <= g <= M, and M mod g is 0 or at least P.
Without it, torch's: g = M / rounds for rounds = max(1, M // P), which must divide M; where P divides M the two agree on
g = P. Reference: Narayanan et al., arXiv 2104.04473, section 2.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..errors import OutsideDomain
from ..program.slot import Exchange, Shape, Slot
from ._delayed import one_by_one
from ._megatron_exchanges import with_interleaving, without_interleaving

OPTIONS = ("group",)
WITH_ONE = {"chunks": "1f1b"}


def refuse(shape: Shape) -> None:
    ranks, microbatches, group = shape.ranks, shape.microbatches, shape.group
    if group is None:
        rounds = max(1, microbatches // ranks)
        if microbatches % rounds:
            nearest = _nearest(microbatches, (m for m in range(1, microbatches + ranks + 1) if m % max(1, m // ranks) == 0))
            reason = f"interleaved takes equal rounds of about {ranks} microbatches: {microbatches} do not divide into {rounds}"
            raise OutsideDomain(reason, nearest={"microbatches": nearest})
        return
    if ranks > microbatches:
        reason = f"interleaved in groups needs at least as many microbatches as ranks: {microbatches} < {ranks}"
        raise OutsideDomain(reason, nearest={"microbatches": ranks, "group": ranks})
    if not _legal(group, shape):
        nearest = _nearest(group, (g for g in range(ranks, microbatches + 1) if _legal(g, shape)))
        reason = f"a group must be {ranks} to {microbatches}, and leave over none or at least {ranks} microbatches: not {group}"
        raise OutsideDomain(reason, nearest={"group": nearest})


def _legal(group: int, shape: Shape) -> bool:
    rest = shape.microbatches % group if group else 0
    return shape.ranks <= group <= shape.microbatches and (rest == 0 or rest >= shape.ranks)


def _nearest(wanted: int, legal: Iterable[int]) -> int:
    return min(legal, key=lambda value: (abs(value - wanted), value))


def group_of(shape: Shape) -> int:
    return shape.group or shape.microbatches // max(1, shape.microbatches // shape.ranks)


def order(rank: int, shape: Shape) -> Iterator[Slot]:
    return one_by_one(*_forward_and_backward(rank, shape), warm_up_of(rank, shape))


def warm_up_of(rank: int, shape: Shape) -> int:
    """Forward passes of a rank before its first backward pass."""
    if shape.chunks == 1:
        return min(shape.ranks - 1 - rank, shape.microbatches)
    return min(2 * (shape.ranks - 1 - rank) + (shape.chunks - 1) * group_of(shape), shape.chunks * shape.microbatches)


def _forward_and_backward(rank: int, shape: Shape) -> tuple[list[Slot], list[Slot]]:
    """A rank's forward slots and its backward slots, each in order: group by group, chunk by chunk."""
    group = group_of(shape)
    rounds = [range(first, min(first + group, shape.microbatches)) for first in range(0, shape.microbatches, group)]
    passes = [(chunk, microbatch) for microbatches in rounds for chunk in range(shape.chunks) for microbatch in microbatches]
    forward = [Slot("F", chunk * shape.ranks + rank, m) for chunk, m in passes]
    backward = [Slot("B", (shape.chunks - 1 - chunk) * shape.ranks + rank, m) for chunk, m in passes]
    return forward, backward


def exchanges(rank: int, shape: Shape) -> Iterator[Exchange]:
    forward, backward = _forward_and_backward(rank, shape)
    if shape.chunks == 1:
        return without_interleaving(forward, backward, warm_up_of(rank, shape))
    return with_interleaving(rank, shape, forward, backward, warm_up_of(rank, shape))


def in_flight(rank: int, shape: Shape) -> int:
    return min(warm_up_of(rank, shape) + 1, shape.chunks * shape.microbatches)
