"""Interleaved 1F1B (Megatron-LM): each of P ranks holds V chunks of the model, which divides the pipeline bubble by V.

Microbatches run in groups of g: a rank runs a group through its first chunk, then through its second, and so on. The makespan
is M(F + B) + (P - 1)(F + B)/V for M >= P. With `group` the domain is Megatron's: P <= g <= M, and M mod g is 0 or at least P.
Without it, torch's: g = M / rounds for rounds = max(1, M // P), which must divide M; where P divides M the two agree on g = P.
Reference: Narayanan et al., arXiv 2104.04473, section 2.2.

With one chunk per rank this is 1F1B, with a shorter warm-up and other exchanges.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from ..errors import OutsideDomain
from ..program.slot import Exchange, Shape, Slot, several

OPTIONS = ("group",)
ALTERNATES = True
WITH_ONE = {"chunks": "1f1b"}


def refuse(shape: Shape) -> None:
    ranks, microbatches, group = shape.ranks, shape.microbatches, shape.group
    if group is None:
        smallest = smallest_group(shape)
        refuse_rounds("interleaved", shape, {"group": smallest} if smallest else None)
        return
    if ranks > microbatches:
        reason = f"interleaved in groups needs at least as many microbatches as ranks: {microbatches} < {ranks}"
        raise OutsideDomain(reason, nearest={"microbatches": ranks, "group": ranks})
    if not _legal(group, shape):
        nearest = _nearest(group, (g for g in range(ranks, microbatches + 1) if _legal(g, shape)))
        reason = f"a group must be {ranks} to {microbatches}, and leave over none or at least {ranks} microbatches: not {group}"
        raise OutsideDomain(reason, nearest={"group": nearest})


def refuse_rounds(name: str, shape: Shape, other: dict[str, int] | None = None) -> None:
    """Refuses a number of microbatches that torch's rounds do not divide; `other` is what makes it legal all the same."""
    ranks, microbatches = shape.ranks, shape.microbatches
    rounds = max(1, microbatches // ranks)
    if microbatches % rounds:
        nearest = _nearest(microbatches, (m for m in range(1, microbatches + ranks + 1) if m % max(1, m // ranks) == 0))
        reason = f"{name} takes equal rounds of about {ranks} microbatches: {microbatches} do not divide into {rounds}"
        raise OutsideDomain(reason, nearest={"microbatches": nearest}, other=other)


def smallest_group(shape: Shape) -> int | None:
    """The smallest group of Megatron's domain, which keeps the fewest activations; None for fewer microbatches than ranks."""
    return next((group for group in range(shape.ranks, shape.microbatches + 1) if _legal(group, shape)), None)


def _legal(group: int, shape: Shape) -> bool:
    rest = shape.microbatches % group if group else 0
    return shape.ranks <= group <= shape.microbatches and (rest == 0 or rest >= shape.ranks)


def _nearest(wanted: int, legal: Iterable[int]) -> int:
    return min(legal, key=lambda value: (abs(value - wanted), value))


def group_of(shape: Shape) -> int:
    return shape.group or shape.microbatches // max(1, shape.microbatches // shape.ranks)


def order(rank: int, shape: Shape) -> Iterator[Slot]:
    return alternating(*passes(rank, shape), warm_up_of(rank, shape))


def alternating(forward: Sequence[Slot], backward: Sequence[Slot], warm_up: int) -> Iterator[Slot]:
    """`warm_up` F first, then F and B alternately, then the remaining B."""
    rest = forward[warm_up:]
    return chain(forward[:warm_up], chain.from_iterable(zip(rest, backward, strict=False)), backward[len(rest) :])


def warm_up_of(rank: int, shape: Shape) -> int:
    """Forward passes of a rank before its first backward pass."""
    if shape.chunks == 1:
        return min(shape.ranks - 1 - rank + shape.barriers, shape.microbatches)
    return min(2 * (shape.ranks - 1 - rank) + (shape.chunks - 1) * group_of(shape), shape.chunks * shape.microbatches)


def passes(rank: int, shape: Shape) -> tuple[list[Slot], list[Slot]]:
    """A rank's forward slots and its backward slots, each in order: group by group, chunk by chunk."""
    group = group_of(shape)
    rounds = [range(first, min(first + group, shape.microbatches)) for first in range(0, shape.microbatches, group)]
    stages = range(rank, shape.chunks * shape.ranks, shape.ranks)
    microbatches = [microbatch for each in rounds for _ in stages for microbatch in each]
    forward = [stage for each in rounds for stage in stages for _ in each]
    backward = [stage for each in rounds for stage in reversed(stages) for _ in each]
    return several("F", forward, microbatches), several("B", backward, microbatches)


def exchanges(rank: int, shape: Shape) -> Iterator[Exchange]:
    """The transfers that Megatron-LM batches where transfers do not overlap compute.

    Reimplemented after snapshot d98e8a6 of NVIDIA/Megatron-LM: forward_backward_pipelining_without_interleaving and
    forward_backward_pipelining_with_interleaving in megatron/core/pipeline_parallel/schedules.py, whose calls of
    p2p_communication.py are the exchanges. The ends of the pipeline need no special case, because a value that stays on its
    rank is not sent.
    """
    forward, backward = passes(rank, shape)
    if shape.chunks == 1:
        return _without_interleaving(forward, backward, warm_up_of(rank, shape))
    return _with_interleaving(rank, shape, forward, backward, warm_up_of(rank, shape))


def in_flight(rank: int, shape: Shape) -> int:
    return min(warm_up_of(rank, shape) + 1, shape.chunks * shape.microbatches)


def _without_interleaving(forward: Sequence[Slot], backward: Sequence[Slot], warm_up: int) -> Iterator[Exchange]:
    """Single transfers in warm-up and cool-down; in between, each send is batched with the next receive from that neighbour."""
    total = len(forward)
    done: Slot | None = None
    for slot in forward[:warm_up]:
        yield Exchange(done, receives=(slot,))
        yield Exchange(slot, sends=(slot,))
        done = slot
    yield Exchange(done, receives=tuple(forward[warm_up : warm_up + 1]))
    for i in range(total - warm_up):
        yield Exchange(forward[warm_up + i], sends=(forward[warm_up + i],), receives=(backward[i],))
        done = backward[i]
        yield Exchange(done, sends=(done,), receives=tuple(forward[warm_up + i + 1 : warm_up + i + 2]))
    for slot in backward[total - warm_up :]:
        yield Exchange(done, receives=(slot,))
        yield Exchange(slot, sends=(slot,))
        done = slot


def _with_interleaving(
    rank: int, shape: Shape, forward: Sequence[Slot], backward: Sequence[Slot], warm_up: int
) -> Iterator[Exchange]:
    """All pending transfers together, after every slot of warm-up and cool-down and every slot in between."""
    total = len(forward)
    inputs = [_received(forward, k, shape, is_first=rank == 0) for k in range(total)]
    gradients = [_received(backward, k, shape, is_first=rank == shape.ranks - 1) for k in range(total)]
    yield Exchange(None, receives=tuple(forward[:1]))
    for k in range(warm_up):
        first_backward = backward[:1] if k == warm_up - 1 < total - 1 else ()
        yield Exchange(forward[k], sends=(forward[k],), receives=(*inputs[k], *first_backward))
    for k in range(warm_up, total):
        sends = (forward[k], backward[k - warm_up])
        yield Exchange(backward[k - warm_up], sends=sends, receives=(*inputs[k], *gradients[k - warm_up]))
    if warm_up == total:
        yield Exchange(forward[-1], receives=tuple(backward[:1]))
    for k in range(total - warm_up, total):
        yield Exchange(backward[k], sends=(backward[k],), receives=gradients[k])


def _received(passes: Sequence[Slot], k: int, shape: Shape, *, is_first: bool) -> tuple[Slot, ...]:
    """The slot whose input is received after a rank's k-th pass of one direction: that of the next pass.

    The first rank of a direction receives what the last rank of the direction sends after pass k - (P - 1): the input of the
    next chunk.
    """
    if not is_first or k + 1 == len(passes):
        return tuple(passes[k + 1 : k + 2])
    if k < shape.ranks - 1:
        return ()
    kind, stage, microbatch = passes[k - (shape.ranks - 1)]
    fed = stage + (shape.ranks if kind == "F" else -shape.ranks)
    return (Slot(kind, fed, microbatch),) if 0 <= fed < shape.stages else ()
