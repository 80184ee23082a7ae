"""Batteries for plug-ins: the requirements of every schedule, built-in or user-defined.

    from simulator.testing import check_schedule
    check_schedule(my_module)

Each check raises `UserError` (or `Deadlock`) that says what is wrong and at which shape.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

from .config import catalog
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
