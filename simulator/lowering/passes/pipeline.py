"""Pipeline parallelism: what one rank produces and another consumes is sent.

A transfer is ready when the producing slot has ended, with its tensor collective; receives are posted beforehand, so the
transfer waits for nobody; the consumer's first operation waits for its arrival. Each directed edge and kind (activation,
gradient) is a stream of its own at both ends, in the sender's order: fewer streams deadlock half of the public schedules.

Blocking transfers: without overlap a rank's compute waits for what the rank sends and receives.

The layout says what is exchanged at once. An exchange begins when the slot before it has ended; its sends leave then, and
the compute stream goes on when they have left their edges and all that is to be received has arrived. Its receives were
posted beforehand, so that no sender waits for the other side, and no schedule can wait in a circle because of its sends.

The program is the one with overlap and waits added to it: same transfers, same order on every edge. A wait is an operation
of no length on the compute stream and, behind the sends, on their edges: what the sender waits for is that an edge is free
again, not that the data has arrived.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ...program.program import ACTIVATION, COMPUTE, END, GRADIENT, Body, Communicator, Key, Program, Step, Transfer, Wait
from ...program.slot import FORWARD, Exchange, Layout, Slot

SEND, RECEIVE = "send", "receive"
"""Phases of the two ends of a transfer."""
WAIT = "wait"
"""Phase of a step that waits for transfers."""
ENDED = "ended"
"""What the keys of slots that exchanges come after begin with."""


@dataclass(frozen=True, slots=True)
class _Passage:
    """One value that changes ranks."""

    key: Key
    source: int
    target: int
    producer: Step

    @property
    def edge(self) -> str:
        return f"{self.key[0]} {self.source}>{self.target}"


def pipeline(program: Program, payload_bytes: int) -> Program:
    """Adds both ends of every transfer between stages on different ranks."""
    passages = [list(_passages(program, rank)) for rank in range(len(program.orders))]
    if not any(passages):
        return program
    edges = {p.edge: Communicator(p.edge, "pp", ("pp",), (p.source, p.target)) for ps in passages for p in ps}
    bodies = dict(program.bodies)
    for name in edges:
        for sends in (True, False):
            end = _end_name(name, sends)
            op = Transfer(name=end, streams=(name,), communicator=name, payload_bytes=payload_bytes, sends=sends)
            bodies[end] = Body((op,))
    program = replace(program, bodies=bodies).with_communicators(*(edges[name] for name in sorted(edges)))
    return replace(program, orders=_posted(program, passages))


def _passages(program: Program, rank: int) -> Iterator[_Passage]:
    for step in program.orders[rank]:
        for _, key in step.outputs:
            if key[0] in (ACTIVATION, GRADIENT) and 0 <= int(key[1]) < len(program.stages):
                target = program.stages[int(key[1])].rank
                if target != rank:
                    yield _Passage(key, rank, target, step)


def _end_name(edge: str, sends: bool) -> str:
    return f"{SEND if sends else RECEIVE} {edge}"


def _send(p: _Passage) -> Step:
    return replace(p.producer, body=_end_name(p.edge, True), phase=SEND, after=(p.key,), outputs=(), waits=(), pair=-1)


def _receive(p: _Passage) -> Step:
    stage, microbatch = int(p.key[1]), int(p.key[2])
    return Step(_end_name(p.edge, False), RECEIVE, stage, microbatch, outputs=((END, p.key),))


def _posted(program: Program, passages: Sequence[Sequence[_Passage]]) -> tuple[tuple[Step, ...], ...]:
    """Receives first, in each sender's order; a send right after the step that produces."""
    orders = []
    for rank, steps in enumerate(program.orders):
        posted = [_receive(p) for ps in passages for p in ps if p.target == rank]
        sends: dict[Step, list[Step]] = {}
        for p in passages[rank]:
            sends.setdefault(p.producer, []).append(_send(p))
        orders.append((*posted, *(s for step in steps for s in (step, *sends.get(step, ())))))
    return tuple(orders)


def blocking(program: Program, layout: Layout) -> Program:
    """Adds, rank by rank, the waits for every exchange; what is sent in one leaves together."""
    bodies = dict(program.bodies)
    orders = tuple(tuple(_waiting(steps, rank, layout, bodies)) for rank, steps in enumerate(program.orders))
    return replace(program, bodies=bodies, orders=orders)


def _waiting(steps: tuple[Step, ...], rank: int, layout: Layout, bodies: dict[str, Body]) -> Iterator[Step]:
    """The steps of a rank, its sends moved into their exchanges, and a wait at the end of each of those."""
    sends: dict[Key, Step] = {(step.after[0][0], step.stage, step.microbatch): step for step in steps if step.phase == SEND}
    receives = {step.outputs[0][1]: step for step in steps if step.phase == RECEIVE}
    exchanged: dict[tuple[str, int, int] | None, list[Step]] = {}
    sent: set[Key] = set()
    for exchange in layout.exchanges(rank):
        after = exchange.after and _instance(exchange.after, layout)
        sent.update(_key(slot, layout) for slot in exchange.sends)
        exchanged.setdefault(after, []).extend(_exchanged(exchange, sends, receives, layout, bodies))
    posted = len(receives)
    yield from steps[:posted]
    yield from exchanged.pop(None, ())
    for step in steps[posted:]:
        if step.phase == SEND and (step.after[0][0], step.stage, step.microbatch) in sent:
            continue
        behind = exchanged.get((step.phase, step.stage, step.microbatch), ())
        ended = (END, _ended((step.phase, step.stage, step.microbatch)))
        yield replace(step, outputs=(*step.outputs, ended)) if behind else step
        yield from behind


def _exchanged(
    exchange: Exchange, own: dict[Key, Step], receives: dict[Key, Step], layout: Layout, bodies: dict[str, Body]
) -> Iterator[Step]:
    """The sends of an exchange, ready when the slot before it has ended, and the wait for all of it; nothing if it is empty."""
    sends = [own[key] for slot in exchange.sends if (key := _key(slot, layout)) in own]
    arrived = tuple(key for slot in exchange.receives if (key := _key(slot, layout)) in receives)
    if not sends and not arrived:
        return
    begins = (_ended(_instance(exchange.after, layout)),) if exchange.after else ()
    for send in sends:
        yield replace(send, after=(*send.after, *begins))
    edges = tuple(op.streams[0] for send in sends for op in bodies[send.body].ops)
    name = f"wait for {', '.join(edges) or RECEIVE}"
    bodies.setdefault(name, Body((Wait(name="wait for transfers", streams=(COMPUTE, *edges)),)))
    first = sends[0] if sends else receives[arrived[0]]
    yield Step(name, WAIT, first.stage, first.microbatch, after=arrived)


def _instance(slot: Slot, layout: Layout) -> tuple[str, int, int]:
    """The phase, stage and microbatch of a slot's step."""
    return slot.kind, layout.instance(slot.stage, slot.microbatch), slot.microbatch


def _key(slot: Slot, layout: Layout) -> Key:
    """What tells the input of a slot, and likewise its result, from all others of its rank."""
    return (ACTIVATION if slot.kind == FORWARD else GRADIENT, *_instance(slot, layout)[1:])


def _ended(transferred: tuple[str, int, int]) -> Key:
    return (ENDED, *transferred)
