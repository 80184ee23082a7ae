"""Bare schedules for tests: evaluated by the product, and by a second way that shares nothing with it."""

from __future__ import annotations

from typing import Any

from simulator.config import catalog
from simulator.program.layout import Layout, lay_out
from simulator.program.slot import Box, Durations, Shape, slots_of
from simulator.study.schedule import Evaluation, evaluate


def layout(
    name: str, ranks: int, microbatches: int, chunks: int = 1, *, durations: Durations | None = None, **more: Any
) -> Layout:
    shape = Shape(ranks, microbatches, chunks, durations=durations or Durations(), **more)
    return lay_out(catalog.module("schedules", name), shape)


def result(name: str, ranks: int, microbatches: int, chunks: int = 1, **more: Any) -> Evaluation:
    """`more`: fields of the shape, and durations."""
    options = {field: more.pop(field) for field in ("group", "splits") if field in more}
    return evaluate(layout(name, ranks, microbatches, chunks, durations=Durations(**more), **options))


def plain(of: Layout) -> list[list[Any]]:
    """The orders as the records write them."""
    return [[_plain(box) for box in order] for order in of.orders]


def _plain(box: Box) -> list[Any]:
    slots = slots_of(box)
    return ["FB", *map(list, slots)] if len(slots) == 2 else list(box)


def makespan(of: Layout) -> int | None:
    """The makespan for F = I = W = 1 and no latency; None if the ranks wait for each other for ever."""
    ends: dict[tuple[str, int, int], int] = {}
    free, at = [0] * len(of.orders), [0] * len(of.orders)
    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(of.orders):
            while at[rank] < len(order):
                slots = slots_of(order[at[rank]])
                arrivals = [_arrival(slot.kind, slot.stage, slot.microbatch, of.stages - 1, ends) for slot in slots]
                if None in arrivals:
                    break
                free[rank] = max([free[rank], *(time or 0 for time in arrivals)]) + sum(2 if s.kind == "B" else 1 for s in slots)
                ends |= {("B" if s.kind == "I" else s.kind, s.stage, s.microbatch): free[rank] for s in slots}
                at[rank] += 1
                moved = True
    return max(free) if at == [len(order) for order in of.orders] else None


def _arrival(kind: str, stage: int, microbatch: int, last: int, ends: dict[tuple[str, int, int], int]) -> int | None:
    if kind == "F":
        return ends.get(("F", stage - 1, microbatch)) if stage else 0
    if kind == "W":
        return ends.get(("B", stage, microbatch))
    return ends.get(("B", stage + 1, microbatch) if stage < last else ("F", stage, microbatch))
