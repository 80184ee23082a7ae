"""Schedules: durations of boxes, placements of stages, and what a layout refuses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from simulator.errors import UserError
from simulator.program.layout import Layout, check, lay_out
from simulator.program.slot import Durations, Exchange, Pair, Shape, Slot, looped, slots_of, snaked

shapes = st.builds(Shape, st.integers(1, 5), st.integers(1, 6), st.integers(1, 3))
seconds = st.floats(0.1, 10)


class AllForwardFirst:
    """All forward slots of a rank, then all backward ones; with copies of the model if there are several directions."""

    def __init__(self, directions: int = 1) -> None:
        self.directions = directions

    def placements(self, shape: Shape) -> list[tuple[int, ...]]:
        return [looped(shape) if d % 2 == 0 else looped(shape)[::-1] for d in range(self.directions)]

    def order(self, rank: int, shape: Shape) -> Iterator[Slot]:
        for kind in "FB":
            for m in range(shape.microbatches):
                placement = self.placements(shape)[m * self.directions // shape.microbatches]
                yield from (Slot(kind, stage, m) for stage, of in enumerate(placement) if of == rank)


@given(seconds, seconds, seconds, st.integers(0, 3))
def test_a_backward_slot_lasts_as_long_as_both_of_its_parts_and_a_pair_as_both_of_its_slots(
    forward: float, inputs: float, weights: float, stage: int
) -> None:
    durations = Durations(forward, inputs, tuple(weights * (1 + s) for s in range(4)))
    parts = [durations.of(Slot(kind, stage, 0)) for kind in "IW"]
    assert durations.of(Slot("B", stage, 0)) == sum(parts)
    pair = Pair(Slot("F", stage, 1), Slot("B", stage, 0))
    assert durations.of(pair) == sum(map(durations.of, slots_of(pair)))
    assert replace(durations, backward=1.0).of(Slot("B", stage, 0)) == replace(durations, pair=1.0).of(pair) == 1.0


@given(shapes)
def test_placements_give_every_rank_as_many_stages_and_a_snake_turns_on_the_spot(shape: Shape) -> None:
    for placement in (looped(shape), snaked(shape)):
        assert sorted(placement) == sorted([*range(shape.ranks)] * shape.chunks)
    steps = [abs(a - b) for a, b in zip(snaked(shape), snaked(shape)[1:], strict=False)]
    assert all(step == (0 if (i + 1) % shape.ranks == 0 else 1) for i, step in enumerate(steps))


@given(shapes, st.integers(1, 2))
def test_instances_of_stages_are_numbered_by_direction_and_chunks_in_forward_order(shape: Shape, directions: int) -> None:
    assume(directions == 1 or shape.ranks % 2 == 0)
    layout = lay_out(AllForwardFirst(directions), shape)
    assert len(layout.placement) == directions * shape.stages
    chunks: dict[int, list[int]] = {}
    for instance, rank in enumerate(layout.placement):
        chunks.setdefault(rank, []).append(layout.chunk(instance))
    assert all(found == [*range(len(found))] for found in chunks.values())
    for rank, order in enumerate(layout.orders):
        slots = [slot for box in order for slot in slots_of(box)]
        assert {layout.placement[layout.instance(slot.stage, slot.microbatch)] for slot in slots} <= {rank}


@given(shapes)
def test_a_sample_has_every_kind_of_every_stage_once(shape: Shape) -> None:
    sample = lay_out(AllForwardFirst(), shape).sampled
    assert sample.shape.microbatches == 1
    assert sorted(map(str, sum(sample.orders, ()))) == sorted(f"{s}{kind}0" for s in range(shape.stages) for kind in "FB")


def broken(layout: Layout, order: list[Slot]) -> Layout:
    return replace(layout, orders=(tuple(order), *layout.orders[1:]))


@given(shapes, st.data())
def test_a_slot_that_is_left_out_doubled_or_moved_is_refused(shape: Shape, data: st.DataObject) -> None:
    layout = lay_out(AllForwardFirst(), shape)
    order = [slot for box in layout.orders[0] for slot in slots_of(box)]
    at = data.draw(st.integers(0, len(order) - 1))
    faults = {
        "needs F and B": [*order[:at], *order[at + 1 :]],
        "occurs twice": [*order, order[at]],
        "is outside": [*order, Slot("F", shape.stages, 0)],
        "is not a kind of slot": [*order, Slot("X", 0, 0)],
        "before": order[::-1],
    }
    for message, changed in faults.items():
        with pytest.raises(UserError, match=message):
            check(broken(layout, changed))


@pytest.mark.parametrize("ranks", [1, 3, 5])
def test_two_copies_of_a_stage_on_one_rank_are_refused(ranks: int) -> None:
    """Of an odd number of ranks the middle one has the middle stage of both directions, and would reduce it with itself."""
    with pytest.raises(UserError) as error:
        lay_out(AllForwardFirst(2), Shape(ranks, 4))
    middle = ranks // 2
    assert [fault.message for fault in error.value.faults] == [f"stage {middle} stands on rank {middle} in two directions"]
    assert "even number of ranks" in error.value.faults[0].hint


EARLY, LATE = Slot("F", 1, 0), Slot("F", 1, 2)
ONCE = Exchange(LATE, (EARLY, LATE))


@pytest.mark.parametrize(("exchanges", "message"), [
    ([Exchange(EARLY, (EARLY,)), ONCE], "exchanges of rank 1 send 1F0 twice"),
    ([Exchange(LATE, (EARLY, EARLY))], "exchanges of rank 1 send 1F0 twice"),
    ([Exchange(EARLY, (LATE,))], "exchanges of rank 1 send 1F2 behind 1F0, when it has not run"),
    ([Exchange(None, (EARLY,))], "exchanges of rank 1 send 1F0 before the first slot, when it has not run"),
    ([ONCE, Exchange(None, (), (Slot("F", 0, 0),))], "exchanges of rank 1 name 0F0, which it does not run"),
    ([Exchange(Slot("B", 0, 0), (EARLY,))], "exchanges of rank 1 name 0B0, which it does not run"),
])  # fmt: skip
def test_exchanges_send_what_the_rank_has_and_once(exchanges: list[Exchange], message: str) -> None:
    layout = lay_out(AllForwardFirst(), Shape(2, 3))
    check(replace(layout, defined_exchanges=((), (ONCE, Exchange(None, (), (EARLY,))))))
    with pytest.raises(UserError) as error:
        check(replace(layout, defined_exchanges=((), tuple(exchanges))))
    assert [fault.message for fault in error.value.faults] == [message]
