"""Pipeline parallelism: what one rank produces and another consumes is sent.

A transfer is ready when the producing slot has ended, with its tensor collective; receives are posted beforehand, so the
transfer waits for nobody; the consumer's first operation waits for its arrival. Each directed edge and kind (activation,
gradient) is a stream of its own at both ends, in the sender's order: fewer streams deadlock half of the public schedules.

Without overlap pairs run one after the other, and a transfer also holds the compute streams at both ends. Then order
matters: all ranks take their slots and transfers in one common order, that of the schedule in unit times, and so cannot
wait for each other in a circle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter

from ...program.op import COMPUTE, Transfer
from ...program.program import ACTIVATION, END, GRADIENT, Body, Communicator, Key, Program, Step

NOMINAL = {"F": 1, "B": 2, "I": 1, "W": 1}
"""Durations of the schedule's own time, by which blocking transfers are ordered."""


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


def pipeline(program: Program, payload_bytes: int, *, overlaps: bool) -> Program:
    """Adds both ends of every transfer between stages on different ranks."""
    passages = [list(_passages(program, rank)) for rank in range(program.ranks)]
    if not any(passages):
        return program
    edges = {p.edge: Communicator(p.edge, "pp", ("pp",), (p.source, p.target)) for ps in passages for p in ps}
    bodies = dict(program.bodies)
    for name in edges:
        for sends in (True, False):
            bodies[_end_name(name, sends)] = Body((_end(name, payload_bytes, sends, overlaps),))
    program = replace(program, bodies=bodies).with_communicators(*(edges[name] for name in sorted(edges)))
    orders = _posted(program, passages) if overlaps else _blocking(program, passages)
    return replace(program, orders=orders)


def _passages(program: Program, rank: int) -> Iterator[_Passage]:
    for step in program.orders[rank]:
        for _, key in step.outputs:
            if key[0] in (ACTIVATION, GRADIENT) and 0 <= int(key[1]) < len(program.stages):
                target = program.stages[int(key[1])].rank
                if target != rank:
                    yield _Passage(key, rank, target, step)


def _end_name(edge: str, sends: bool) -> str:
    return f"{'send' if sends else 'receive'} {edge}"


def _end(edge: str, payload_bytes: int, sends: bool, overlaps: bool) -> Transfer:
    streams = (edge,) if overlaps else (edge, COMPUTE)
    return Transfer(name=_end_name(edge, sends), streams=streams, communicator=edge, payload_bytes=payload_bytes, sends=sends)


def _send(p: _Passage) -> Step:
    return replace(p.producer, body=_end_name(p.edge, True), phase="send", after=(p.key,), outputs=(), waits=(), pair=-1)


def _receive(p: _Passage) -> Step:
    kind = "receive"
    stage, microbatch = int(p.key[1]), int(p.key[2])
    return Step(_end_name(p.edge, False), kind, stage, microbatch, outputs=((END, p.key),))


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


def _blocking(program: Program, passages: Sequence[Sequence[_Passage]]) -> tuple[tuple[Step, ...], ...]:
    """Slots and both ends of every transfer in one order of nominal times, the same on all ranks."""
    starts, ends = _nominal_times(program)
    timed: list[list[tuple[tuple[float, int, str, int], Step]]] = [[] for _ in program.orders]
    for rank, steps in enumerate(program.orders):
        for i, step in enumerate(steps):
            at = starts[rank, i] if (rank, i) in starts else float("inf")
            timed[rank].append(((at, 1, "", i), replace(step, pair=-1)))
    position = {(rank, step): i for rank, steps in enumerate(program.orders) for i, step in enumerate(steps)}
    for ps in passages:
        for p in ps:
            key = (ends[p.source, position[p.source, p.producer]], 0, p.edge, int(p.key[2]))
            timed[p.source].append((key, _send(p)))
            timed[p.target].append((key, _receive(p)))
    return tuple(tuple(step for _, step in sorted(rows, key=lambda row: row[0])) for rows in timed)


def _nominal_times(program: Program) -> tuple[dict[tuple[int, int], float], dict[tuple[int, int], float]]:
    """Start and end of every slot, by (rank, position), at unit durations and without any communication."""
    slots = {(r, i): s for r, steps in enumerate(program.orders) for i, s in enumerate(steps) if s.phase in NOMINAL}
    made_by = {key: at for at, step in slots.items() for _, key in step.outputs}
    before = {
        (r, i): [*([(r, i - 1)] if i else []), *(made_by[key] for key in step.after if key in made_by)]
        for (r, i), step in slots.items()
    }
    starts: dict[tuple[int, int], float] = {}
    ends: dict[tuple[int, int], float] = {}
    try:
        order = list(TopologicalSorter(before).static_order())
    except CycleError:
        return dict.fromkeys(slots, 0.0), dict.fromkeys(slots, 0.0)
    for at in order:
        starts[at] = max((ends[b] for b in before[at]), default=0.0)
        ends[at] = starts[at] + NOMINAL[slots[at].phase]
    return starts, ends
