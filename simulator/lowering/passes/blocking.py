"""Blocking transfers: without overlap a rank's compute waits for what the rank sends and receives.

The layout says what is exchanged at once. An exchange begins when the slot before it has ended; its sends leave then, and
the compute stream goes on when they have left their edges and all that is to be received has arrived. Its receives were
posted beforehand, so that no sender waits for the other side, and no schedule can wait in a circle because of its sends.

The program is the one with overlap and waits added to it: same transfers, same order on every edge. A wait is an operation
of no length on the compute stream and, behind the sends, on their edges: what the sender waits for is that an edge is free
again, not that the data has arrived.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...program.program import ACTIVATION, COMPUTE, END, GRADIENT, Body, Key, Program, Step, Wait
from ...program.slot import FORWARD, Exchange, Layout, Slot
from .pipeline import RECEIVE, SEND

WAIT = "wait"
"""Phase of a step that waits for transfers."""
ENDED = "ended"
"""What the keys of slots that exchanges come after begin with."""


@dataclass(frozen=True, slots=True)
class _Rank:
    """The steps of a rank with which transfers begin and end, by the slot that they belong to."""

    sends: dict[Key, Step]
    receives: dict[Key, Step]


def blocking(program: Program, layout: Layout) -> Program:
    """Adds, rank by rank, the waits for every exchange; what is sent in one leaves together."""
    bodies = dict(program.bodies)
    orders = tuple(tuple(_waiting(steps, rank, layout, bodies)) for rank, steps in enumerate(program.orders))
    return replace(program, bodies=bodies, orders=orders)


def _waiting(steps: tuple[Step, ...], rank: int, layout: Layout, bodies: dict[str, Body]) -> Iterator[Step]:
    """The steps of a rank, its sends moved into their exchanges, and a wait at the end of each of those."""
    own = _Rank(
        {(step.after[0][0], step.stage, step.microbatch): step for step in steps if step.phase == SEND},
        {step.outputs[0][1]: step for step in steps if step.phase == RECEIVE},
    )
    exchanged: dict[tuple[str, int, int] | None, list[Step]] = {}
    sent: set[Key] = set()
    for exchange in layout.exchanges(rank):
        after = exchange.after and _instance(exchange.after, layout)
        sent.update(_key(slot, layout) for slot in exchange.sends)
        exchanged.setdefault(after, []).extend(_exchanged(exchange, own, layout, bodies))
    posted = len(own.receives)
    yield from steps[:posted]
    yield from exchanged.pop(None, ())
    for step in steps[posted:]:
        if step.phase == SEND and (step.after[0][0], step.stage, step.microbatch) in sent:
            continue
        behind = exchanged.get((step.phase, step.stage, step.microbatch), ())
        ended = (END, _ended((step.phase, step.stage, step.microbatch)))
        yield replace(step, outputs=(*step.outputs, ended)) if behind else step
        yield from behind


def _exchanged(exchange: Exchange, own: _Rank, layout: Layout, bodies: dict[str, Body]) -> Iterator[Step]:
    """The sends of an exchange, ready when the slot before it has ended, and the wait for all of it; nothing if it is empty."""
    sends = [own.sends[key] for slot in exchange.sends if (key := _key(slot, layout)) in own.sends]
    arrived = tuple(key for slot in exchange.receives if (key := _key(slot, layout)) in own.receives)
    if not sends and not arrived:
        return
    begins = (_ended(_instance(exchange.after, layout)),) if exchange.after else ()
    for send in sends:
        yield replace(send, after=(*send.after, *begins))
    edges = tuple(op.streams[0] for send in sends for op in bodies[send.body].ops)
    name = f"wait for {', '.join(edges) or RECEIVE}"
    bodies.setdefault(name, Body((Wait(name="wait for transfers", streams=(COMPUTE, *edges)),)))
    first = sends[0] if sends else own.receives[arrived[0]]
    yield Step(name, WAIT, first.stage, first.microbatch, after=arrived)


def _instance(slot: Slot, layout: Layout) -> tuple[str, int, int]:
    """The phase, stage and microbatch of a slot's step."""
    return slot.kind, layout.instance(slot.stage, slot.microbatch), slot.microbatch


def _key(slot: Slot, layout: Layout) -> Key:
    """What tells the input of a slot, and likewise its result, from all others of its rank."""
    return (ACTIVATION if slot.kind == FORWARD else GRADIENT, *_instance(slot, layout)[1:])


def _ended(of: tuple[str, int, int]) -> Key:
    return (ENDED, *of)
