"""Pipeline parallelism: transfers of activations and gradients between the ranks of neighbouring stages.

A transfer is ready when the producing slot has ended, with its tensor collective. Receives are posted beforehand, so that the
transfer does not wait for the receiver; the first operation of the consumer waits for the arrival. Each directed edge and kind
(activation, gradient) is a stream of its own at both ends, in the sender's order: fewer streams deadlock half of the public
schedules.

Blocking transfers: without overlap the compute of a rank waits for the sends and receives of the rank.

The layout defines the exchanges. An exchange begins when the slot before the exchange has ended; its sends leave then, and the
compute stream continues when the sends have left their edges and all receives of the exchange have arrived. The receives were
posted beforehand, so that no sender waits for the other side, and no schedule can wait in a circle because of its sends.

The program is the program with overlap, plus waits: same transfers, and the same order on every edge unless exchanges send in
another one, in which the receiver then receives. A wait is an operation of length zero on the compute stream and, behind the
sends, on their edges: the sender waits until an edge is free again, not until the data has arrived.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ...frozen import replace
from ...program.layout import Layout
from ...program.operations import COMPUTE, Communicator, Transfer, Wait
from ...program.program import ACTIVATION, END, GRADIENT, WAIT, Body, Key, Program, Step
from ...program.slot import FORWARD, WEIGHT_GRADIENT, Exchange, Slot

SEND, RECEIVE = "send", "receive"
"""Phases of the two ends of a transfer."""
ENDED = "ended"
"""First element of the keys of slots that exchanges wait for."""


class _SentValue(NamedTuple):
    """One value that is sent from rank to rank."""

    key: Key
    edge: str
    source: int
    target: int
    producer: Step
    at: int
    """The place of the producing step among those of its rank."""


def pipeline(program: Program, payload_bytes: int) -> Program:
    """Adds both ends of every transfer between stages on different ranks."""
    sent_values = [list(_sent_values(program, rank)) for rank in range(len(program.orders))]
    if not any(sent_values):
        return program
    ends = {p.edge: (p.source, p.target) for ps in sent_values for p in ps}
    edges = {name: Communicator(name, "pp", ("pp",), of) for name, of in ends.items()}
    bodies = dict(program.bodies)
    for name in edges:
        for sends in (True, False):
            end = _end_name(name, sends)
            op = Transfer(name=end, streams=(name,), communicator=name, payload_bytes=payload_bytes, sends=sends)
            bodies[end] = Body((op,))
    program = replace(program, bodies=bodies).with_communicators(*(edges[name] for name in sorted(edges)))
    return replace(program, orders=_with_transfers(program, sent_values))


def _sent_values(program: Program, rank: int) -> Iterator[_SentValue]:
    """The values that a rank sends, in its order."""
    ranks = [stage.rank for stage in program.stages]
    edges = {(kind, target): f"{kind} {rank}>{target}" for kind in (ACTIVATION, GRADIENT) for target in {*ranks} - {rank}}
    for at, step in enumerate(program.orders[rank]):
        for _, key in step.outputs:
            if key[0] in (ACTIVATION, GRADIENT) and 0 <= int(key[1]) < len(ranks):
                target = ranks[int(key[1])]
                if target != rank:
                    yield _SentValue(key, edges[key[0], target], rank, target, step, at)


def _end_name(edge: str, sends: bool) -> str:
    return f"{SEND if sends else RECEIVE} {edge}"


def _with_transfers(program: Program, sent_values: Sequence[Sequence[_SentValue]]) -> tuple[tuple[Step, ...], ...]:
    """The steps of each rank with receives first, in each sender's order, and each send right after the producing step."""
    posted: list[list[Step]] = [[] for _ in program.orders]
    sends: list[dict[int, list[Step]]] = [{} for _ in program.orders]
    for key, edge, source, target, producer, at in (p for values in sent_values for p in values):
        receive = Step(_end_name(edge, False), RECEIVE, int(key[1]), int(key[2]), (), ((END, key),))
        posted[target].append(receive)
        send = Step(_end_name(edge, True), SEND, producer.stage, producer.microbatch, (key,), (), producer.iteration)
        sends[source].setdefault(at, []).append(send)
    for order, sent, steps in zip(posted, sends, program.orders, strict=True):
        for at, step in enumerate(steps):
            order.append(step)
            order.extend(sent.get(at, ()))
    return tuple(map(tuple, posted))


def blocking(program: Program, layout: Layout) -> Program:
    """Adds the waits for every exchange, rank by rank; all sends of an exchange leave together."""
    bodies = dict(program.bodies)
    orders = tuple(tuple(_waiting(steps, rank, layout, bodies)) for rank, steps in enumerate(program.orders))
    return replace(program, bodies=bodies, orders=tuple(_received_as_sent(orders)))


def _received_as_sent(orders: Sequence[Sequence[Step]]) -> Iterator[tuple[Step, ...]]:
    """The steps of each rank with the receives of every edge in the order of the sends: both ends of a transfer pair by turn."""
    sends = (step for steps in orders for step in steps if step.phase == SEND)
    place = {send.after[0]: at for at, send in enumerate(sends)}
    for steps in orders:
        of_edge: dict[str, list[Step]] = {}
        for step in steps:
            if step.phase == RECEIVE:
                of_edge.setdefault(step.body, []).append(step)
        turns = {edge: iter(sorted(of, key=lambda step: place[step.outputs[0][1]])) for edge, of in of_edge.items()}
        yield tuple(next(turns[step.body]) if step.phase == RECEIVE else step for step in steps)


def _waiting(steps: tuple[Step, ...], rank: int, layout: Layout, bodies: dict[str, Body]) -> Iterator[Step]:
    """The steps of a rank, with sends moved into their exchanges, and a wait at the end of each exchange."""
    sends: dict[Key, Step] = {(step.after[0][0], step.stage, step.microbatch): step for step in steps if step.phase == SEND}
    receives = {step.outputs[0][1]: step for step in steps if step.phase == RECEIVE}
    exchanged: dict[tuple[str, int, int] | None, list[Step]] = {}
    sent: set[Key] = set()
    for exchange in layout.exchanges(rank):
        after = exchange.after and _instance(exchange.after, layout)
        sent.update(_key(slot, layout) for slot in exchange.sends)
        exchanged.setdefault(after, []).extend(_steps_of_exchange(exchange, sends, receives, layout, bodies))
    posted = len(receives)
    yield from steps[:posted]
    yield from exchanged.pop(None, ())
    for step in steps[posted:]:
        if step.phase == SEND and (step.after[0][0], step.stage, step.microbatch) in sent:
            continue
        behind = exchanged.get((step.phase, step.stage, step.microbatch), ())
        ended = (END, _end_key((step.phase, step.stage, step.microbatch)))
        yield step._replace(outputs=(*step.outputs, ended)) if behind else step
        yield from behind


def _steps_of_exchange(
    exchange: Exchange, own: dict[Key, Step], receives: dict[Key, Step], layout: Layout, bodies: dict[str, Body]
) -> Iterator[Step]:
    """The sends of an exchange, ready when the slot before has ended, and the wait for the exchange; no step if empty."""
    sends = [own[key] for slot in exchange.sends if (key := _key(slot, layout)) in own]
    arrived = tuple(key for slot in exchange.receives if (key := _key(slot, layout)) in receives)
    if not sends and not arrived:
        return
    begins = (_end_key(_instance(exchange.after, layout)),) if exchange.after else ()
    for send in sends:
        yield send._replace(after=(*send.after, *begins))
    edges = tuple(dict.fromkeys(op.streams[0] for send in sends for op in bodies[send.body].ops))
    name = f"wait for {', '.join(edges) or RECEIVE}"
    bodies.setdefault(name, Body((Wait(name="wait for transfers", streams=(COMPUTE, *edges)),)))
    first = sends[0] if sends else receives[arrived[0]]
    yield Step(name, WAIT, first.stage, first.microbatch, after=arrived)


def _instance(slot: Slot, layout: Layout) -> tuple[str, int, int]:
    """The phase, stage and microbatch of a slot's step."""
    return slot.kind, layout.instance(slot.stage, slot.microbatch), slot.microbatch


def _key(slot: Slot, layout: Layout) -> Key:
    """The kind of value, stage and microbatch that identify the input of a slot, and likewise its result, within a rank.

    Weight gradients stay on their rank: no value that crosses has their key.
    """
    kind = {FORWARD: ACTIVATION, WEIGHT_GRADIENT: WEIGHT_GRADIENT}.get(slot.kind, GRADIENT)
    return (kind, *_instance(slot, layout)[1:])


def _end_key(transferred: tuple[str, int, int]) -> Key:
    return (ENDED, *transferred)
