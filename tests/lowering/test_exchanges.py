"""Exchanges that a schedule defines by itself: what leaves where, in which order, and who waits for what.

Starts are compared with those of `blocking.py`, which shares nothing with the product.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.config import catalog
from simulator.program.layout import Layout, lay_out
from simulator.program.slot import Exchange, Shape, Slot
from simulator.simulation.run import Run

from .test_blocking_transfers import assert_none_waits_for_ever, expected, found, run_of


class Exchanging:
    """All forward slots of a rank, then all backward ones, with the exchanges that it is given."""

    __name__, CHUNKS = "exchanging", 1

    def __init__(self, exchanges: dict[int, list[Exchange]]) -> None:
        self.of = exchanges

    def order(self, rank: int, shape: Shape) -> Iterator[Slot]:
        for kind in "FB":
            yield from (Slot(kind, rank, m) for m in range(shape.microbatches))

    def exchanges(self, rank: int, shape: Shape) -> list[Exchange]:
        return self.of[rank]


def doing(layout: Layout) -> list[list[Any]]:
    """What every rank does: its slots, each with the exchanges behind it."""
    return [
        [thing for slot in order for thing in (slot, *(e for e in layout.exchanges(rank) if e.after == slot))]
        for rank, order in enumerate(layout.orders)
    ]


def assert_as_defined(schedule: Any, shape: Shape) -> Run:
    """Slots start when the exchanges let them, both ends of a transfer are of one microbatch, and all engines agree."""
    layout, run = lay_out(schedule, shape), run_of(schedule, shape)
    assert found(run) == expected(run, layout, doing(layout))
    rows = run.timeline.to_pandas()
    for _, ends in rows[rows.kind.isin(["send", "receive"])].groupby("task"):
        assert sorted(ends.kind) == ["receive", "send"]
        assert ends.microbatch.nunique() == 1
    assert_none_waits_for_ever(schedule, shape)
    return run


def test_a_microbatch_that_is_sent_last_is_received_last() -> None:
    shape, last = Shape(2, 4), 3
    late = {
        rank: [Exchange(Slot(kind, rank, m or last), (Slot(kind, rank, m),)) for m in (1, 2, 3, 0)]
        for rank, kind in enumerate("FB")
    }
    starts = found(assert_as_defined(Exchanging(late), shape))
    for kind, source, target in (("F", 0, 1), ("B", 1, 0)):
        assert starts[Slot(kind, target, 0)] > starts[Slot(kind, source, last)]


def test_several_results_leave_on_one_edge_in_one_exchange() -> None:
    shape = Shape(2, 4)
    both = {
        rank: [Exchange(Slot(kind, rank, m + 1), (Slot(kind, rank, m + 1), Slot(kind, rank, m))) for m in (0, 2)]
        for rank, kind in enumerate("FB")
    }
    assert_as_defined(Exchanging(both), shape)


@settings(max_examples=10)
@given(st.integers(2, 4), st.integers(1, 5), st.data())
def test_exchanges_of_any_order_are_as_defined(ranks: int, microbatches: int, data: st.DataObject) -> None:
    """Every forward result leaves behind some forward slot that has run by then, and likewise backward results."""
    exchanges: dict[int, list[Exchange]] = {rank: [] for rank in range(ranks)}
    for rank in range(ranks):
        for kind in "FB":
            sent_behind = [data.draw(st.integers(m, microbatches - 1)) for m in range(microbatches)]
            for at in sorted(set(sent_behind)):
                sends = [Slot(kind, rank, m) for m in range(microbatches) if sent_behind[m] == at]
                exchanges[rank].append(Exchange(Slot(kind, rank, at), tuple(data.draw(st.permutations(sends)))))
    assert_as_defined(Exchanging(exchanges), Shape(ranks, microbatches))


def test_weight_gradients_in_an_exchange_are_not_sent() -> None:
    """They stay on their rank; what the input gradients of the same microbatch send leaves by itself."""
    shape, order = Shape(2, 4), catalog.module("schedules", "zb-h1").order
    plain, named = (SimpleNamespace(order=order, CHUNKS=1, __name__="mine") for _ in range(2))
    named.exchanges = lambda rank, shape: [Exchange(slot, (slot,)) for slot in order(rank, shape)]
    assert found(run_of(named, shape)) == found(run_of(plain, shape))
