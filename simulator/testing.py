"""Batteries for plug-ins: the requirements of every schedule and of every collective algorithm, built-in or user-defined.

    from simulator.testing import check_collective, check_schedule
    check_schedule(my_module)

Each check raises `UserError` (or `Deadlock`) that says what is wrong and at which shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from .collectives import Round
from .config import catalog
from .engine.task import Array
from .errors import Fault, InvariantBroken, OutsideDomain, UserError, must_be
from .program.layout import Layout, as_taken, lay_out
from .program.slot import Durations, Shape
from .study.schedule import evaluate
from .units import counted

SHAPES = tuple(
    Shape(ranks, microbatches, chunks)
    for ranks in (1, 2, 3, 4, 6, 8)
    for chunks in (1, 2, 3, 4)
    for microbatches in (1, 2, 3, 4, 5, 7, 8, 12, 16, 24)
)
"""The grid of shapes that schedules are tried on; shapes that a schedule refuses are skipped."""
SPLITS = (1, 2, 3)
"""Numbers of parts of a sequence that schedules are tried with, if they support them."""
TOLERANCE = 1e-9
GROUPS = ((0,), (0, 0), (0,) * 8, (0,) * 7, (0, 1, 2, 3), (0, 0, 1, 1), (0,) * 4 + (1,) * 4 + (2,) * 4, (0, 0, 0, 1, 1, 2))
"""The node of every rank of the groups that collective algorithms are tried on; groups that an algorithm does not take are
skipped."""
SENT: dict[str, Callable[[Array], float]] = {
    "all_reduce": lambda inside: 1.0,
    "reduce_scatter": lambda inside: float((~inside).mean()),
    "all_gather": lambda inside: float(inside.mean()),
    "alltoall": lambda inside: float(inside.sum() * (~inside).mean()),
    "broadcast": lambda inside: float(inside[0]),
}
"""Payloads that a part of a group has to send to the rest of it, whatever the algorithm, by kind."""
ROOT = 0
"""The rank at which a broadcast starts."""


def check_schedule(schedule: Any, shapes: Iterable[Shape] | None = None) -> int:
    """Lays the schedule out on every different shape that it supports, and runs it; returns the number of shapes.

    The schedule is a module or an object with an order, that function itself, or the name of a schedule. By default the
    shapes are the grid `SHAPES`.
    Every slot must occur once and in order, nothing deadlocks with or without latency, no rank holds more chunks than
    `in_flight` declares, and no rank is busy longer than the makespan.
    """
    if not (hasattr(schedule, "order") or hasattr(schedule, "orders")):
        schedule = catalog.typed("schedules", schedule)
    taken, shapes = 0, SHAPES if shapes is None else shapes
    for shape in _different(schedule, must_be(shapes, Iterable, "shapes", "shapes", "[Shape(ranks=4, microbatches=8)]")):
        try:
            layout = lay_out(schedule, shape)
        except OutsideDomain as refusal:
            _check_refusal(schedule, shape, refusal)
            continue
        except UserError as error:
            raise UserError(faults=[_at(shape, fault) for fault in error.faults]) from None
        taken += 1
        for comm in (0.0, 0.3):
            result = evaluate(replace(layout, shape=replace(layout.shape, durations=Durations(comm=comm))))
            if result.makespan < max(result.busy) * (1 - TOLERANCE):
                raise InvariantBroken(f"{shape}: the makespan {result.makespan} is shorter than the work {max(result.busy)}")
            _check_in_flight(schedule, layout, result.peaks["peak"])
    if not taken:
        raise UserError("the schedule refuses every shape of the grid", hint="give check_schedule shapes that it takes")
    return taken


def _at(shape: Shape, fault: Fault) -> Fault:
    """The fault of a schedule with the shape at which it occurs."""
    sizes = {"rank": shape.ranks, "chunk": shape.chunks, "microbatch": shape.microbatches}
    where = " x ".join(counted(number, what) for what, number in sizes.items())
    hint = "CHUNKS = 1 declares one stage on each rank" if shape.chunks > 1 else ""
    return replace(fault, where=f"{where}: {fault.where}".removesuffix(": "), hint=fault.hint or hint)


def _different(schedule: Any, shapes: Iterable[Shape]) -> Iterable[Shape]:
    """The shapes in the form that the schedule uses, once each, with several splits if it supports them."""
    splits = SPLITS if "splits" in getattr(schedule, "OPTIONS", ()) else (None,)
    return dict.fromkeys(
        as_taken(schedule, shape if parts is None else replace(shape, splits=parts)) for shape in shapes for parts in splits
    )


def _check_in_flight(schedule: Any, layout: Layout, peaks: list[float]) -> None:
    for rank, peak in enumerate(peaks if hasattr(schedule, "in_flight") else ()):
        bound = schedule.in_flight(rank, layout.shape)
        if peak > bound:
            raise UserError(f"{layout.shape}: rank {rank} holds {peak} chunks, and in_flight declares {bound}")


def _check_refusal(schedule: Any, shape: Shape, refusal: OutsideDomain) -> None:
    """Checks that the shape that a refusal names as the nearest legal one is legal."""
    if not refusal.nearest:
        raise UserError(f"{shape} is refused without a nearest legal point: {refusal.reason}")
    names = {field.name for field in fields(Shape)}
    nearest: dict[str, Any] = {name: value for name, value in refusal.nearest.items() if name in names}
    lay_out(schedule, replace(shape, **nearest))


def check_collective(algorithm: Any, groups: Iterable[Sequence[int]] | None = None) -> int:
    """Tries an algorithm on every group that it takes, for every kind that it knows; returns the number of these cases.

    The algorithm is a module or an object with KINDS and rounds(kind, nodes), or a name as for `trainsim collective --algorithm`.
    A group is the node of each of its ranks; by default the groups are `GROUPS`. A rank alone sends nothing. Every message joins
    two ranks of the group. In the end every rank has what it needs, although a message carries only what its sender had before
    the round; and no part of a group sends less than it must. Where switches reduce (IN_NETWORK), messages are not followed.
    """
    found = catalog.typed("collectives", algorithm)
    cases = 0
    for kind in [kind for kind in found.KINDS if kind in SENT]:
        for group in GROUPS if groups is None else groups:
            nodes = np.array(group, dtype=np.int64)
            if len(nodes) > 1 and hasattr(found, "takes") and not found.takes(kind, nodes):
                continue
            cases += 1
            wrong = next(_wrong_rounds(tuple(found.rounds(kind, nodes)), kind, nodes, getattr(found, "IN_NETWORK", False)), "")
            if wrong:
                raise UserError(f"{kind} among ranks on nodes {list(group)}: {wrong}")
    if not cases:
        raise UserError("the algorithm takes no group", hint=f"KINDS are one or several of {', '.join(SENT)}")
    return cases


def _wrong_rounds(rounds: Sequence[Round], kind: str, nodes: Array, in_network: bool) -> Iterator[str]:
    """What is wrong with the rounds of an algorithm."""
    ranks, has = len(nodes), np.eye(len(nodes), dtype=bool)
    if ranks == 1:
        if rounds:
            yield "a rank alone needs no rounds"
        return
    sent = np.zeros((ranks, ranks))
    for r in rounds:
        source, target, share = r.edges.source, r.edges.target, r.edges.share
        if min(source.min(), target.min()) < 0 or max(source.max(), target.max()) >= ranks or (source == target).any():
            yield f"a message does not join two of the ranks 0 to {ranks - 1}"
            return
        np.add.at(sent, (source, target), share * float(r.fraction) * r.repeats)
        for _ in range(min(r.repeats, ranks)):  # after as many repetitions everything has reached whom it can reach
            before = has.copy()
            np.logical_or.at(has, target, before[source])
    lacking = np.argwhere(~has[:, [ROOT]] if kind == "broadcast" else ~has)
    if len(lacking) and not in_network:
        rank, origin = lacking[0].tolist()
        yield f"nothing of rank {origin} reaches rank {rank}"
    for inside in [np.arange(ranks) < size for size in range(1, ranks)] + [np.arange(ranks) == rank for rank in range(ranks)]:
        least, leaves = SENT[kind](inside), float(sent[np.ix_(inside, ~inside)].sum())
        if leaves < least * (1 - TOLERANCE):
            part = ", ".join(map(str, np.flatnonzero(inside).tolist()))
            yield f"rank {part} sends {leaves:.6g} payloads to the others, and {least:.6g} are needed"
