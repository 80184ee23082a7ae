"""Pipeline parallelism: transfers of activations and gradients between the ranks of neighbouring stages.

A transfer is ready when the producing slot has ended, with its tensor collective. Receives are posted beforehand, so that the
transfer does not wait for the receiver; the first operation of the consumer waits for the arrival. Each directed edge and kind
(activation, gradient) is a stream of its own at both ends, in the sender's order: fewer streams deadlock half of the public
schedules.

Blocking transfers: without overlap the compute of a rank waits for the sends and receives of the rank.

The layout defines the exchanges. An exchange begins when the slot before the exchange has ended, or both slots of a pair; its
sends leave then, and the compute stream continues when the sends have left their edges and all receives of the exchange have
arrived. The receives were posted beforehand, so that no sender waits for the other side, and no schedule can wait in a circle
because of its sends.

The program is the program with overlap, plus waits: same transfers, and the same order on every edge unless exchanges send in
another order, which the receiver then follows. A wait is an operation of length zero on the compute stream and, after the sends,
on their edges: the sender waits until an edge is free again, not until the data has arrived.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...frozen import replace
from ...program.layout import Layout
from ...program.operations import COMPUTE, Communicator, Transfer, Wait
from ...program.program import ACTIVATION, END, GRADIENT, WAIT, Body, Key, Program, Step
from ...program.slot import FORWARD, WEIGHT_GRADIENT, Exchange, Slot

SEND, RECEIVE = "send", "receive"
"""Phases of the two ends of a transfer."""
SENT = (ACTIVATION, GRADIENT)
"""First elements of the keys of values that stages on different ranks send to each other."""
ENDED = "ended"
"""First element of the keys of slots that exchanges wait for."""
Instance = tuple[str, int, int]
"""The phase, stage and microbatch of a slot's step."""


def pipeline(program: Program, payload_bytes: int) -> Program:
    """Adds both ends of every transfer between stages on different ranks: receives first, in each sender's order, and each send
    right after the producing step."""
    ranks = [stage.rank for stage in program.stages]
    edges: dict[tuple[str, int, int], str] = {}
    posted: list[list[Step]] = [[] for _ in program.orders]
    orders: list[list[Step]] = []
    for rank, steps in enumerate(program.orders):
        orders.append(order := [])
        for step in steps:
            order.append(step)
            for _, key in step.outputs:
                if key[0] in SENT and 0 <= int(key[1]) < len(ranks) and (target := ranks[int(key[1])]) != rank:
                    kind, stage, microbatch = str(key[0]), int(key[1]), int(key[2])
                    edge = edges.setdefault((kind, rank, target), f"{kind} {rank}>{target}")
                    posted[target].append(Step(f"{RECEIVE} {edge}", RECEIVE, stage, microbatch, (), ((END, key),)))
                    order.append(Step(f"{SEND} {edge}", SEND, step.stage, step.microbatch, (key,), (), step.iteration))
    if not edges:
        return program
    bodies = dict(program.bodies)
    for edge in edges.values():
        for end in (SEND, RECEIVE):
            name, sends = f"{end} {edge}", end == SEND
            op = Transfer(name=name, streams=(edge,), communicator=edge, payload_bytes=payload_bytes, sends=sends)
            bodies[name] = Body((op,))
    new = (Communicator(name, "pp", ("pp",), (source, target)) for (_, source, target), name in edges.items())
    program = replace(program, bodies=bodies).with_communicators(*sorted(new, key=lambda c: c.name))
    return replace(program, orders=tuple((*first, *order) for first, order in zip(posted, orders, strict=True)))


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
    together = _together(steps)
    exchanged: dict[Instance | None, list[Step]] = {}
    sent: set[Key] = set()
    for exchange in layout.exchanges(rank):
        after = exchange.after and _instance(exchange.after, layout)
        sent.update(_key(slot, layout) for slot in exchange.sends)
        before = together.get(after, (after,)) if after else ()
        new = _steps_of_exchange(exchange, before, sends, receives, layout, bodies)
        exchanged.setdefault(before[-1] if before else None, []).extend(new)
    awaited = {key for of in exchanged.values() for step in of for key in step.after if key[0] == ENDED}
    posted = len(receives)
    last = {(step.phase, step.stage, step.microbatch): at for at, step in enumerate(steps)}  # a slot may be of several steps
    yield from steps[:posted]
    yield from exchanged.pop(None, ())
    for at, step in enumerate(steps[posted:], posted):
        if step.phase == SEND and (step.after[0][0], step.stage, step.microbatch) in sent:
            continue
        slot = (step.phase, step.stage, step.microbatch)
        if at != last[slot]:
            yield step
            continue
        ended = _end_key(slot)
        yield step._replace(outputs=(*step.outputs, (END, ended))) if ended in awaited else step
        yield from exchanged.get(slot, ())


def _together(steps: tuple[Step, ...]) -> dict[Instance, tuple[Instance, ...]]:
    """The slots of the pair of each slot that runs in a pair, itself included."""
    pairs: dict[int, tuple[Instance, ...]] = {}
    for step in steps:
        if step.pair >= 0:
            pairs[step.pair] = (*pairs.get(step.pair, ()), (step.phase, step.stage, step.microbatch))
    return {slot: pair for pair in pairs.values() for slot in pair}


def _steps_of_exchange(
    exchange: Exchange,
    before: Sequence[Instance],
    own: dict[Key, Step],
    receives: dict[Key, Step],
    layout: Layout,
    bodies: dict[str, Body],
) -> Iterator[Step]:
    """The sends of an exchange, ready when the slots before it have ended, and the wait for the exchange; no step if empty.

    Both slots of a pair stand before its exchange: either of them may end last.
    """
    sends = [own[key] for slot in exchange.sends if (key := _key(slot, layout)) in own]
    arrived = tuple(key for slot in exchange.receives if (key := _key(slot, layout)) in receives)
    if not sends and not arrived:
        return
    for send in sends:
        yield send._replace(after=(*send.after, *map(_end_key, before)))
    edges = tuple(dict.fromkeys(op.streams[0] for send in sends for op in bodies[send.body].ops))
    name = f"wait for {', '.join(edges) or RECEIVE}"
    bodies.setdefault(name, Body((Wait(name="wait for transfers", streams=(COMPUTE, *edges)),)))
    first = sends[0] if sends else receives[arrived[0]]
    yield Step(name, WAIT, first.stage, first.microbatch, after=arrived)


def _instance(slot: Slot, layout: Layout) -> Instance:
    """The phase, stage and microbatch of a slot's step."""
    return slot.kind, layout.instance(slot.stage, slot.microbatch), slot.microbatch


def _key(slot: Slot, layout: Layout) -> Key:
    """The kind of value, stage and microbatch that identify the input of a slot, and likewise its result, within a rank.

    Weight gradients stay on their rank: no value that crosses has their key.
    """
    kind = {FORWARD: ACTIVATION, WEIGHT_GRADIENT: WEIGHT_GRADIENT}.get(slot.kind, GRADIENT)
    return (kind, *_instance(slot, layout)[1:])


def _end_key(slot: Instance) -> Key:
    return (ENDED, *slot)
