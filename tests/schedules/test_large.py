"""Many microbatches, odd durations, uneven stages, other units: every schedule takes them, and none is worse for its size."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simulator.config import catalog
from simulator.errors import OutsideDomain
from simulator.program.layout import Layout, lay_out
from simulator.program.slot import Durations, Goal, PerStage, Shape
from simulator.schedules import _building_block, v_half, v_min, zb_v
from simulator.schedules._building_block import Block, unrolled
from simulator.schedules._list_scheduling import ROUNDED, Ticks, ticks
from simulator.study.schedule import MOST_TICKS, Evaluation, _ticks_per_unit, evaluate

NAMES = sorted(catalog.files("schedules"))
ODD = Durations(26123456.1, 27123456.3, 24123456.7, comm=300123.0)
"""No ratio of two of them is a short fraction."""
FEW, MANY = 64, 512
TIGHT = 1e-9


def laid_out(name: str, shape: Shape) -> Layout:
    """At the shape, or at the nearest that the schedule takes."""
    schedule = catalog.module("schedules", name)
    shape = replace(shape, goal=Goal(time_limit_s=0.5))
    try:
        return lay_out(schedule, shape)
    except OutsideDomain as refusal:
        return lay_out(schedule, replace(shape, **refusal.nearest))  # type: ignore[arg-type]


def checked(name: str, shape: Shape) -> Evaluation:
    """Every slot is there, in a legal order (as `lay_out` checks), without deadlock and within the declared memory."""
    layout = laid_out(name, shape)
    got, schedule = evaluate(layout), catalog.module("schedules", name)
    assert all(held <= schedule.in_flight(rank, layout.shape) for rank, held in enumerate(got.peaks["peak"]))
    return got


def overhead(of: Evaluation) -> float:
    """The makespan over the work of the busiest rank, below which no schedule is."""
    return of.makespan / max(of.busy) - 1


def is_no_worse_for_its_size(name: str, ranks: int) -> None:
    """More microbatches might run as the fewer do, again and again: a schedule finds nothing worse than that."""
    few, many = (overhead(checked(name, Shape(ranks, count, 2, durations=ODD))) for count in (FEW, MANY))
    assert 0 < many <= few * (1 + TIGHT)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ranks"), [*product(NAMES, (4, 8, 16))])
def test_many_microbatches_of_odd_durations(name: str, ranks: int) -> None:
    is_no_worse_for_its_size(name, ranks)


@pytest.mark.parametrize("microbatches", [180, 184])
def test_zb_v_takes_any_number_of_microbatches(microbatches: int) -> None:
    """Once refused from 184 on, as its times reached what stood for never."""
    assert overhead(checked("zb_v", Shape(8, microbatches, 2, durations=ODD))) < 0.0075


# Only ratios of durations matter.


def scaled(durations: Durations, factor: float) -> Durations:
    def of(length: PerStage) -> PerStage:
        return tuple(x * factor for x in length) if isinstance(length, tuple) else length * factor

    kinds = (durations.forward, durations.input_gradient, durations.weight_gradient)
    return Durations(*map(of, kinds), comm=durations.comm * factor)


units = st.sampled_from([1.0, 1e7])
one_length = st.one_of(
    st.floats(1, 3), st.integers(1, 40).map(lambda n: n / 7), st.integers(10**8, 3 * 10**8).map(lambda n: n / 10**8)
)
"""Any, with ratios that are short fractions, and with digits that are not."""


@st.composite
def durations(draw: Any, stages: int) -> Durations:
    """One of each kind or one for each stage; or such that two W last as long as an F and an I."""
    if draw(st.booleans()):
        forward, gradient, weight = (draw(one_length) for _ in range(3))
        ties = draw(st.booleans())
        kinds: tuple[PerStage, ...] = (forward, gradient, (forward + gradient) / 2 if ties else weight)
    else:
        kinds = tuple(tuple(draw(st.lists(one_length, min_size=stages, max_size=stages))) for _ in range(3))
    return scaled(Durations(*kinds, comm=draw(st.sampled_from([0.0, 0.3, 1 / 3]))), draw(units))


COST_AWARE = [name for name in NAMES if getattr(catalog.module("schedules", name), "COST_AWARE", False)]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", COST_AWARE)
@given(data=st.data(), ranks=st.integers(2, 5), microbatches=st.integers(1, 16), factor=st.floats(1e-12, 1e12))
@settings(max_examples=40)
def test_only_ratios_of_durations_matter(name: str, data: st.DataObject, ranks: int, microbatches: int, factor: float) -> None:
    """Whatever the unit of the durations, the order is the same; that of a search is as good."""
    schedule = catalog.module("schedules", name)
    if hasattr(schedule, "certificate"):
        ranks, microbatches = min(ranks, 3), min(microbatches, 3)
    of = data.draw(durations(schedule.CHUNKS * ranks))
    one, other = (Shape(ranks, microbatches, schedule.CHUNKS, durations=d) for d in (of, scaled(of, factor)))
    if hasattr(schedule, "certificate"):
        assert schedule.certificate(other).value == pytest.approx(schedule.certificate(one).value * factor, rel=TIGHT)
    else:
        assert lay_out(schedule, one).orders == lay_out(schedule, other).orders


@given(st.data(), st.integers(1, 8), st.floats(1e-12, 1e12))
@settings(max_examples=100)
def test_ticks_are_the_same_in_any_unit(data: st.DataObject, stages: int, factor: float) -> None:
    of = data.draw(durations(stages))
    one, other = (ticks(Shape(stages, 1, durations=d)) for d in (of, scaled(of, factor)))
    assert one == other


@pytest.mark.parametrize("name", sorted({*NAMES} - {*COST_AWARE}))
def test_other_schedules_do_not_look_at_durations(name: str) -> None:
    shape = Shape(4, 16, 2)
    assert laid_out(name, shape).orders == laid_out(name, replace(shape, durations=ODD)).orders


counts = st.integers(1, 60)


@given(st.integers(1, 5), st.integers(1, 12), st.tuples(counts, counts, counts, st.integers(0, 20)), st.integers(1, 1 << 80))
@example(4, 12, (1, 1, 1, 0), 1 << 80)
def test_ticks_may_be_as_fine_as_one_likes(ranks: int, microbatches: int, of: tuple[int, ...], fineness: int) -> None:
    """No time is too late: with finer ticks the outcome is the same, in finer ticks."""
    stages, most_alive = zb_v.CHUNKS * ranks, 2 * ranks
    shape = Shape(ranks, microbatches, zb_v.CHUNKS)
    coarse, fine = (Ticks(*((n * each,) * stages for n in of[:3]), of[3] * each) for each in (1, fineness))
    plan = unrolled(zb_v.BLOCK, ranks, microbatches)
    for manner in {*zb_v.EXECUTIONS, *v_half.EXECUTIONS, *v_min.EXECUTIONS}:
        one, other = (_building_block.PlanExecutor(plan, lengths, most_alive, manner).outcome() for lengths in (coarse, fine))
        assert (one is None) == (other is None)
        if one and other:
            assert other == one._replace(
                span=one.span * fineness, makespan=one.makespan * fineness, idle=tuple(idle * fineness for idle in one.idle)
            )
            assert _building_block.times_of(one.orders, fine).makespan <= other.makespan
    one, other = (
        zb_v.VOrderBuilder(lengths, shape, zb_v.DelayRule(True, True), zb_v.WHOLE).outcome() for lengths in (coarse, fine)
    )
    assert (one and (one.makespan * fineness, one.orders)) == (other and (other.makespan, other.orders))


@given(st.integers(1, 6), st.integers(1, 12), st.data())
def test_never_is_later_than_any_order_ends(ranks: int, microbatches: int, data: st.DataObject) -> None:
    lengths = ticks(Shape(ranks, microbatches, 2, durations=data.draw(durations(2 * ranks))))
    drawn = _building_block.shortest(
        Block((4, 2, 4, 2)), Shape(ranks, microbatches, 2, durations=Durations()), 2 * ranks, zb_v.EXECUTIONS
    )
    assert 2 * _building_block.times_of(drawn.orders, lengths).makespan < lengths.never(microbatches)


def test_ticks_are_few_where_ratios_are_no_fractions() -> None:
    """And exact where they are: the longest is then no whole power of two."""
    assert max(ticks(Shape(1, 1, durations=ODD))[1]) == ROUNDED
    assert ticks(Shape(1, 1, durations=Durations(0.3, 0.2, 0.1)))[:3] == ((3,), (2,), (1,))


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=4), st.integers(1, 1 << 30))
def test_the_times_of_an_evaluation_fit_into_its_columns(lengths: list[float], count: int) -> None:
    total = count * sum(lengths)
    assert Fraction(total) * _ticks_per_unit(lengths, total) <= MOST_TICKS


# Uneven stages.


@given(st.integers(2, 6), st.integers(1, 16), st.data(), st.sampled_from([3, 30, 1000]))
@example(ranks=4, microbatches=9, data=None, most=3)
def test_zb_v_takes_stages_of_any_unevenness(ranks: int, microbatches: int, data: st.DataObject | None, most: int) -> None:
    """Where the warm-up of its beat would hold too much the block is carried out; once a traceback."""
    if data is None:
        forward = (2.0, 3.0, 2.0, 1.0, 3.0, 2.0, 2.0, 1.0)
        gradients = (1.0, 3.0, 3.0, 2.0, 1.0, 3.0, 3.0, 1.0), (3.0, 3.0, 2.0, 3.0, 1.0, 2.0, 2.0, 3.0)
        kinds = (forward, *gradients)
    else:
        several = st.lists(st.integers(1, most).map(float), min_size=2 * ranks, max_size=2 * ranks).map(tuple)
        kinds = (data.draw(several), data.draw(several), data.draw(several))
    got = checked("zb_v", Shape(ranks, microbatches, 2, durations=Durations(*kinds)))
    assert got.makespan >= max(got.busy) * (1 - TIGHT)
