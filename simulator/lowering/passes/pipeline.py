"""Pipeline parallelism: what one rank produces and another consumes is sent.

A transfer is ready when the producing slot has ended, with its tensor collective; receives are posted beforehand, so the
transfer waits for nobody; the consumer's first operation waits for its arrival. Each directed edge and kind (activation,
gradient) is a stream of its own at both ends, in the sender's order: fewer streams deadlock half of the public schedules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ...program.program import ACTIVATION, END, GRADIENT, Body, Communicator, Key, Program, Step, Transfer

SEND, RECEIVE = "send", "receive"
"""Phases of the two ends of a transfer."""


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
