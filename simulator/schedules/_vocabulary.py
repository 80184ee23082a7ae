"""Vocabulary parallelism: every rank holds a share of the embedding and of the head, as two stages of its own.

The F of a share of the head is the pass that its authors call S (logits and their local sums), its B their T; F and B of a share
of the embedding look tokens up and add up gradients. A layout gets these slots in two ways.

With `vocab-1` and `vocab-2` they are inserted into the order of the schedule, on all ranks at the same times: the times of a
schedule without them, which has a spare interval at the loss for each barrier (`Shape.barriers`). A slot of a share is placed
before all slots that start at its time or later. So ranks never wait in a cycle: in the order of these times, everything that a
slot needs is earlier. S follows the last stage's F by the length of a backward pass, in which the output is broadcast. T goes
with the next S. Tokens are looked up one microbatch ahead, and the gradients of the embedding are added up one microbatch later.

With `interlaced` all ranks run S and T of a microbatch together, between any two pairs of F and B. A gradient then needs as many
of these rounds as there are ranks to pass all stages, an activation half as many, so the first rank holds 3P/2 microbatches.

Reference: Yeung et al., arXiv 2411.05288, and their code: vocab_parallel_schedule.py and interlaced_schedule.py in
megatron/core/pipeline_parallel of github.com/sail-sg/VocabularyParallelism (6191c3b), and zerobubble/scheduler/passes.py of the
branch v-half-vocab of github.com/sail-sg/zero-bubble-pipeline-parallelism (92895b9). Interlaced is after Lin et al., OSDI 2024.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import inf

from ..program.layout import Layout
from ..program.slot import BACKWARD, FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Box, Slot, slots_of

BARRIERS = {"vocab-1": 2, "vocab-2": 1}
"""Reductions over all ranks, one after the other, between F and the backward pass of the last stage."""
INTERLACED = "interlaced"
Times = dict[Slot, tuple[float, float]]
"""Slot -> its start and its end."""
Cut = tuple[float, int, int]
"""Time, microbatch and kind of a slot that all ranks have. At equal times slots of earlier microbatches go first."""
S, T, LOOK_UP, ADD_UP = range(4)
"""The kinds of slots of shares."""


def with_vocabulary(layout: Layout, scheme: str) -> Layout:
    """The layout with two more stages on every rank, first all shares of the embedding, then all shares of the head."""
    ranks, microbatches = range(layout.shape.ranks), layout.shape.microbatches
    if scheme == INTERLACED:
        orders = [tuple[Box, ...](_interlaced(rank, len(ranks), microbatches)) for rank in ranks]
    else:
        times = _times(layout)
        cuts = sorted(_cuts(layout, times, two_barriers=BARRIERS[scheme] > 1))
        orders = [tuple(_inserted(layout, rank, times, cuts)) for rank in ranks]
    placements = ((*layout.placement, *ranks, *ranks),)
    return replace(layout, placements=placements, orders=tuple(orders), defined_exchanges=(), shares=2 * len(ranks))


def _times(layout: Layout) -> Times:
    """The times of all slots, each as early as the order of its rank and its input allow."""
    durations, last, times = layout.shape.durations, layout.stages - 1, Times()
    left = [[slot for box in order for slot in slots_of(box)][::-1] for order in layout.orders]
    free = [0.0] * len(left)
    while any(left):
        for rank, slots in enumerate(left):
            while slots:
                source = _source(slots[-1], last)
                if source and source not in times:
                    break
                crossing = durations.comm if source and layout.placement[source.stage] != rank else 0.0
                start = max(free[rank], times[source][1] + crossing) if source else free[rank]
                slot = slots.pop()
                free[rank] = start + durations.of(slot)
                times[slot] = start, free[rank]
    return times


def _source(slot: Slot, last: int) -> Slot | None:
    """The slot whose result a slot needs."""
    kind, stage, microbatch = slot
    if kind == WEIGHT_GRADIENT:
        return Slot(INPUT_GRADIENT, stage, microbatch)
    if kind == FORWARD:
        return Slot(FORWARD, stage - 1, microbatch) if stage else None
    return Slot(kind, stage + 1, microbatch) if stage < last else Slot(FORWARD, last, microbatch)


def _cuts(layout: Layout, times: Times, *, two_barriers: bool) -> Iterator[Cut]:
    """The times of the slots of shares. With two barriers T makes the gradient that the last stage waits for."""
    last, count = layout.stages - 1, layout.shape.microbatches
    back = BACKWARD if Slot(BACKWARD, last, 0) in times else INPUT_GRADIENT
    never = (inf, inf)
    losses = []
    for m in range(count):
        (start, end), ended = times[Slot(back, last, m)], times[Slot(FORWARD, last, m)][1]
        next_forward, _ = times.get(Slot(FORWARD, last, m + 1), never)
        losses.append(min(ended + end - start, next_forward, start))
    for m, (loss, next_loss) in enumerate(zip(losses, [*losses[1:], inf], strict=True)):
        yield loss, m, S
        yield min(next_loss, times[Slot(back, last, m)][0]) if two_barriers else next_loss, m, T
        yield times[Slot(FORWARD, 0, m - 1)][0] if m else -inf, m, LOOK_UP
        yield times.get(Slot(back, 0, m + 1), never)[1], m, ADD_UP


def _inserted(layout: Layout, rank: int, times: Times, cuts: Sequence[Cut]) -> Iterator[Box]:
    """The boxes of a rank with the slots of its shares."""
    embedding, left = layout.stages + rank, iter([*cuts, (inf, 0, -1)])
    time, microbatch, kind = next(left)
    for box in [*layout.orders[rank], None]:
        start = times[slots_of(box)[0]][0] if box else inf
        while kind >= 0 and time <= start:
            share = embedding if kind in (LOOK_UP, ADD_UP) else embedding + layout.shape.ranks
            yield Slot(FORWARD if kind in (S, LOOK_UP) else BACKWARD, share, microbatch)
            time, microbatch, kind = next(left)
        if box:
            yield box


def _interlaced(rank: int, ranks: int, microbatches: int) -> Iterator[Slot]:
    """The slots of a rank if all ranks run S and T of a microbatch together."""
    first, warm_up = min(3 * ranks // 2, microbatches), min(3 * ranks // 2 - rank, microbatches)
    losses_alone = min(ranks - rank, microbatches)
    without_forward = max(0, warm_up - losses_alone - (ranks - rank - 1) // 2)
    embedding, head = ranks + rank, 2 * ranks + rank
    forward, backward = ([Slot(kind, rank, m) for m in range(microbatches)][::-1] for kind in (FORWARD, BACKWARD))
    look_ups = (Slot(FORWARD, embedding, m) for m in range(microbatches))
    yield from islice(look_ups, first - warm_up + 1)
    for _ in range(warm_up):
        yield from islice(look_ups, 1)
        yield forward.pop()
    for m in range(microbatches):
        if m >= losses_alone:
            has_forward = m >= losses_alone + without_forward and forward
            pair = [backward.pop(), *([forward.pop()] if has_forward else [])]
            yield from pair[::-1] if (ranks - rank) % 2 == 0 else pair
        yield from (Slot(FORWARD, head, m), Slot(BACKWARD, head, m))
        if m >= ranks - 1:
            yield from islice(look_ups, 1)
        if m > ranks:
            yield Slot(BACKWARD, embedding, m - ranks - 1)
    yield from backward[::-1]
    yield from (Slot(BACKWARD, embedding, m) for m in range(max(0, microbatches - ranks - 1), microbatches))
