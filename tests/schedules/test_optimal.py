"""The search for the best order: equal to trying them all where that can be done, and never better than its own bound."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import OutsideDomain
from simulator.program.layout import lay_out
from simulator.program.slot import Durations, Goal, Shape, Slot
from simulator.schedules import _cp_sat, _job_shop, _search, optimal
from simulator.study.schedule import evaluate

from .test_records import RECORDS, records

needs_ortools = pytest.mark.skipif(not _cp_sat.installed(), reason="OR-tools is not installed")
ZB_1_5B = Durations(18.522, 18.086, 9.337, comm=0.601)
ZB_28B = Durations(10.419, 10.207, 7.715, comm=0.408)
"""Profiled milliseconds of the zero-bubble paper, Table 9."""
UNIT = Durations()
GOALS = [Goal(objective, count) for objective in ("makespan", "span") for count in ("fw", "half")]  # type: ignore[arg-type]
CAPS = [0.5, 0.75, 1.0, 1.5, 2.0]


def checked(shape: Shape) -> optimal.Certificate:
    """The certificate, after the evaluator has confirmed the value, the cap and the declared bound on activations."""
    certificate = optimal.certificate(shape)
    result = evaluate(lay_out(optimal, shape))
    value = result.makespan if shape.goal.objective == "makespan" else max(result.span_per_rank)
    assert certificate.value == pytest.approx(value, rel=1e-9)
    held = result.peaks["peak" if shape.goal.memory_count == "fw" else "peak_half"]
    assert max(held) <= shape.memory_limit * shape.ranks + 1e-9
    assert all(peak <= optimal.in_flight(rank, shape) for rank, peak in enumerate(result.peaks["peak"]))
    assert certificate.lower_bound <= certificate.value
    assert certificate.proven == (certificate.lower_bound == certificate.value) == (certificate.status == "proven optimal")
    assert certificate.gap == pytest.approx(1 - certificate.lower_bound / certificate.value, abs=1e-12)
    return certificate


# Every order there is


@cache
def rank_orders(microbatches: int, fifo: bool) -> tuple[tuple[tuple[str, int], ...], ...]:
    """All orders of F, I and W in which a microbatch's F is before its I, and that before its W."""

    def grow(done: tuple[tuple[str, int], ...]) -> Iterator[tuple[tuple[str, int], ...]]:
        if len(done) == 3 * microbatches:
            yield done
        for m in range(microbatches):
            kind = "FIW-"[sum(other == m for _, other in done)]
            if kind != "-" and (not fifo or sum(other == kind for other, _ in done) == m):
                yield from grow((*done, (kind, m)))

    return tuple(grow(()))


def fits(order: tuple[tuple[str, int], ...], limit: float, count: str) -> bool:
    step = {"F": 1.0, "I": 0.0, "W": -1.0} if count == "fw" else {"F": 1.0, "I": -0.5, "W": -0.5}
    held = [sum(step[kind] for kind, _ in order[: n + 1]) for n in range(len(order))]
    return max(held) <= limit


def value(orders: tuple[tuple[tuple[str, int], ...], ...], durations: Durations, objective: str) -> float:
    """Makespan or span, by starting whatever can start until nothing can; infinite for a deadlock."""
    ends: dict[tuple[int, str, int], float] = {}
    at, free, first = [0] * len(orders), [0.0] * len(orders), [inf] * len(orders)
    last, moved = len(orders) - 1, True
    while moved:
        moved = False
        for rank, order in enumerate(orders):
            while at[rank] < len(order):
                kind, m = order[at[rank]]
                source = {"F": (rank - 1, "F", m), "I": (rank + 1, "I", m), "W": (rank, "I", m)}[kind]
                if kind == "I" and rank == last:
                    source = (rank, "F", m)
                if kind == "F" and not rank:
                    ready = 0.0
                elif source in ends:
                    ready = ends[source] + durations.comm * (source[0] != rank)
                else:
                    break
                start = max(free[rank], ready)
                first[rank] = min(first[rank], start)
                free[rank] = ends[rank, kind, m] = start + durations.of(Slot(kind, rank, m))
                at[rank] += 1
                moved = True
    if any(n < len(order) for n, order in zip(at, orders, strict=True)):
        return inf
    return max(free) if objective == "makespan" else max(end - begin for end, begin in zip(free, first, strict=True))


def best_of_all(shape: Shape, fifo: bool = False) -> float:
    limit, count = shape.memory_limit * shape.ranks, shape.goal.memory_count
    fitting = [order for order in rank_orders(shape.microbatches, fifo) if fits(order, limit, count)]
    return min(value(orders, shape.durations, shape.goal.objective) for orders in product(fitting, repeat=shape.ranks))


length = st.integers(1, 9).map(float)


@needs_ortools
@settings(max_examples=20, deadline=None)
@given(st.data(), st.sampled_from(GOALS))
def test_as_good_as_the_best_of_all_orders(data: st.DataObject, goal: Goal) -> None:
    """Of all: also of those that let one microbatch overtake another."""
    ranks = data.draw(st.sampled_from([1, 2, 2, 2]))
    stages = st.tuples(*[length] * ranks)
    durations = Durations(data.draw(stages), data.draw(stages), data.draw(stages), comm=data.draw(st.sampled_from([0.0, 1.5])))
    shape = Shape(ranks, 2, memory_limit=data.draw(st.sampled_from([1.0, 1.5, 2.0])), durations=durations, goal=goal)
    if ranks == 2:
        shape = replace(shape, memory_limit=data.draw(st.sampled_from([0.5, 0.75, 1.0])))
    certificate = checked(shape)
    assert certificate.proven
    assert certificate.value == pytest.approx(best_of_all(shape), rel=1e-9)


@needs_ortools
@pytest.mark.parametrize("goal", GOALS, ids=str)
@pytest.mark.parametrize("durations", [UNIT, Durations(2.0, 4.0, 1.0, comm=0.5), Durations(5.0, 6.0, 4.0, comm=1.0)], ids=str)
@pytest.mark.parametrize(("ranks", "microbatches", "limit"), [(2, 3, 0.5), (2, 3, 0.75), (2, 3, 1.0), (3, 2, 0.5), (3, 2, 2 / 3)])
def test_as_good_as_the_best_of_all_orders_of_more(
    ranks: int, microbatches: int, limit: float, durations: Durations, goal: Goal
) -> None:
    shape = Shape(ranks, microbatches, memory_limit=limit, durations=durations, goal=goal)
    certificate = checked(shape)
    assert certificate.proven
    assert certificate.value == pytest.approx(best_of_all(shape, fifo=True), rel=1e-9)


# Bounds


@pytest.mark.slow
@given(st.data(), st.sampled_from(GOALS), st.sampled_from(CAPS))
@settings(max_examples=30, deadline=None)
def test_no_list_schedule_beats_the_analytic_bound(data: st.DataObject, goal: Goal, limit: float) -> None:
    ranks, microbatches = data.draw(st.integers(2, 5)), data.draw(st.integers(1, 9))
    stages = st.tuples(*[st.integers(0, 9).map(float)] * ranks)
    durations = Durations(data.draw(stages), data.draw(stages), data.draw(stages), comm=data.draw(st.sampled_from([0.0, 1.5])))
    shape = Shape(ranks, microbatches, memory_limit=limit, durations=durations, goal=goal)
    shop, _ = optimal._shop_of(shape)
    head, tail = _job_shop.heads(shop), _job_shop.tails(shop)
    bound = _job_shop.lower_bound(shop, head, tail)
    for orders in _job_shop.list_schedules(shop, tail):
        assert shop.fits(orders)
        ends = _job_shop.ends_of(shop, orders)
        whole = _job_shop.value_of(shop, orders)
        assert ends is not None
        assert whole is not None
        assert bound <= whole
        for rank, kind, k in product(range(ranks), range(3), range(microbatches)):
            end = ends[rank][kind][k]
            assert head[rank][kind][k] + shop.lengths[kind][rank] <= end
            assert end + tail[rank][kind][k] <= whole


@pytest.mark.thinned(3)
@pytest.mark.parametrize("durations", [UNIT, ZB_1_5B, ZB_28B], ids=["unit", "1.5B", "28.3B"])
@pytest.mark.parametrize(("ranks", "microbatches"), [(4, 8), (8, 16), (8, 32), (16, 64)])
def test_the_analytic_bound_settles_a_cap_of_p_alone(ranks: int, microbatches: int, durations: Durations) -> None:
    """ZB-H1 is optimal with the memory of 1F1B: M (F + I + W) + (P - 1)(F + I - W) where latency is free."""
    certificate = checked(Shape(ranks, microbatches, durations=durations))
    assert certificate.proven
    assert certificate.source == "list schedule"
    if durations == UNIT:
        assert certificate.value == 3 * microbatches + ranks - 1


# Proofs by search


@pytest.mark.thinned(3)
@needs_ortools
@pytest.mark.parametrize("goal", GOALS, ids=str)
@pytest.mark.parametrize("limit", CAPS)
@pytest.mark.parametrize("durations", [UNIT, ZB_1_5B], ids=["unit", "1.5B"])
def test_proves_4_ranks_of_8_microbatches(durations: Durations, limit: float, goal: Goal) -> None:
    certificate = checked(Shape(4, 8, memory_limit=limit, durations=durations, goal=replace(goal, time_limit_s=10.0)))
    assert certificate.proven


@needs_ortools
@pytest.mark.slow
@pytest.mark.parametrize("goal", GOALS, ids=str)
@pytest.mark.parametrize("limit", CAPS)
@pytest.mark.parametrize("durations", [UNIT, ZB_1_5B, ZB_28B], ids=["unit", "1.5B", "28.3B"])
def test_proves_8_ranks_of_16_microbatches(durations: Durations, limit: float, goal: Goal) -> None:
    assert checked(Shape(8, 16, memory_limit=limit, durations=durations, goal=goal)).proven


@needs_ortools
@pytest.mark.skipif(not RECORDS.exists(), reason="the recorded solutions of the integer program are not beside this checkout")
def test_no_worse_than_the_recorded_integer_programs() -> None:
    compared = 0
    for record in records("ZB-ILP"):
        forward, backward, weight, comm = map(float, record["cost_fbwc"])
        shape = Shape(
            record["P"],
            record["M"],
            memory_limit=record["mem_limit_in_P_MB"],
            durations=Durations(forward, backward, weight, comm=comm),
            goal=Goal("span", "half"),
        )
        certificate = checked(shape)
        assert certificate.proven
        assert certificate.value <= record["reported_cost"] + 1e-9
        compared += 1
    assert compared


@needs_ortools
def test_long_lines_are_searched_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of long lines (half of it, repeated blocks, windows) on one that the solver can also settle whole."""
    shape = Shape(4, 12, memory_limit=0.5, durations=ZB_1_5B)
    shop, _ = optimal._shop_of(shape)
    whole = optimal.certificate(shape)
    assert whole.proven
    monkeypatch.setattr(_search, "MOST_JOBS_AT_ONCE", 30)
    monkeypatch.setattr(_search, "WINDOW_JOBS", 40)
    search = _search.start_search(shop, 30.0)
    _search.offer_known_orders(search, ())
    assert search.best.orders
    search.offer(_first_in_first_out(shop), "one at a time")
    _search.improve(search)
    assert search.best.value == search.bound == _job_shop.value_of(shop, optimal.solve(shape)[0])


def _first_in_first_out(shop: _job_shop.JobShop) -> tuple[str, ...]:
    return ("FIW" * shop.microbatches,) * shop.ranks


@needs_ortools
def test_the_pieces_are_bounds_and_orders_on_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a poor order, windows alone make a better one; the bound of two halves does not exceed the best value."""
    shop, _ = optimal._shop_of(Shape(3, 12, memory_limit=2 / 3))
    best = optimal.certificate(Shape(3, 12, memory_limit=2 / 3))
    monkeypatch.setattr(_search, "WINDOW_JOBS", 40)
    assert best.proven
    poor = _search.start_search(shop, 30.0)
    assert poor.offer(_first_in_first_out(shop), "one at a time")
    before = _job_shop.value_of(shop, _first_in_first_out(shop))
    _search._solve_windows(poor, 10.0)
    assert before is not None
    assert best.value <= poor.best.value < before
    halved = _search.start_search(shop, 30.0)
    _search.offer_known_orders(halved, ())
    halved.bound = 0
    _search._solve_half(halved)
    assert 0 < halved.bound <= best.value


# Time, interruption, and no solver


def test_without_time_the_best_list_schedule_stands() -> None:
    certificate = checked(Shape(8, 16, memory_limit=0.5, durations=ZB_28B, goal=Goal(time_limit_s=0.0)))
    assert certificate.status in ("time limit", f"no solver: best heuristic; {optimal.INSTALL}")
    assert 0 < certificate.gap < 0.2


INTERRUPTED = """
import os, signal, threading, json
from dataclasses import asdict
from simulator.program.layout import lay_out
from simulator.program.slot import Durations, Goal, Shape
from simulator.schedules import optimal
threading.Timer({after}, os.kill, (os.getpid(), signal.SIGINT)).start()
shape = Shape(16, 64, memory_limit=0.75, durations=Durations(18.522, 18.086, 9.337, comm=0.601), goal=Goal(time_limit_s=60.0))
lay_out(optimal, shape)
print(json.dumps(asdict(optimal.certificate(shape))))
"""


@needs_ortools
@pytest.mark.slow
@pytest.mark.parametrize("after", [4.0, 8.0])
def test_ctrl_c_keeps_the_best_so_far(after: float) -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED.format(after=after)], capture_output=True, text=True, check=True)
    certificate = json.loads(done.stdout)
    assert certificate["status"] == "interrupted"
    assert not certificate["proven"]
    assert 0 < certificate["lower_bound"] < certificate["value"]


def test_a_program_that_is_terminated_waits_for_no_solver() -> None:
    class Ended(BaseException):
        pass

    class Slow:
        def __init__(self) -> None:
            self.stopped = threading.Event()

        def solve(self, model: object) -> bool:
            return self.stopped.wait(30)

        def stop_search(self) -> None:
            self.stopped.set()

    def end(number: int, frame: object) -> None:
        raise Ended

    before, began = signal.signal(signal.SIGTERM, end), time.monotonic()
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    try:
        with pytest.raises(Ended):
            _cp_sat._until_ctrl_c(Slow(), None)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert time.monotonic() - began < 15


def test_ctrl_c_is_told_to_the_handler_from_before() -> None:
    """It stops the commands that go on with other work."""
    search = _search.start_search(_job_shop.JobShop(2, ((1, 1), (1, 1), (1, 1)), 0, _job_shop.MemoryCap(4, 1, 0, 1), (0, 0)), 1.0)
    told: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: told.append(number))
    try:
        with _search._stops_on_ctrl_c(search):
            signal.raise_signal(signal.SIGINT)
            raise AssertionError("nothing stopped this")
    finally:
        signal.signal(signal.SIGINT, before)
    assert told == [signal.SIGINT]
    assert search.interrupted


def test_without_a_solver_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ortools", "ortools.sat.python.cp_model"):
        monkeypatch.setitem(sys.modules, name, None)
    shape = Shape(4, 8, memory_limit=0.5, goal=Goal(memory_count="fw", time_limit_s=7.0))
    certificate = checked(shape)
    assert certificate.status == "no solver: best heuristic; pip install 'cluster-training-simulator[search]'"
    assert certificate.value == 41
    assert certificate.lower_bound == 40
    assert checked(Shape(4, 8, goal=Goal(time_limit_s=7.0))).proven


def test_the_solver_is_loaded_only_when_it_is_needed() -> None:
    code = """
import sys
from simulator.program.slot import Shape
from simulator.schedules import optimal
assert optimal.certificate(Shape(4, 8)).proven
assert not any(name.startswith("ortools") for name in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
@needs_ortools
def test_the_same_search_gives_the_same_order() -> None:
    shape = Shape(8, 16, memory_limit=0.5, goal=Goal(memory_count="fw"))
    orders, certificate = optimal.solve(shape)
    optimal.solve.cache_clear()
    assert optimal.solve(shape)[0] == orders
    assert certificate.source == "search"


# Shapes


def test_refuses_a_limit_below_one_activation() -> None:
    with pytest.raises(OutsideDomain) as refusal:
        optimal.orders(Shape(3, 4, memory_limit=0.3))
    lay_out(optimal, replace(Shape(3, 4), **refusal.value.nearest))  # type: ignore[arg-type]
    for limit in (0.0, -1.0):
        with pytest.raises(OutsideDomain):
            optimal.refuse(Shape(3, 4, memory_limit=limit))


@pytest.mark.parametrize("ranks", [3, 7, 49, 51])
def test_a_limit_of_one_activation_may_be_written_as_a_fraction(ranks: int) -> None:
    assert optimal.in_flight(0, Shape(ranks, 2, memory_limit=1 / ranks)) == 1


def test_almost_twice_the_limit_is_held_where_halves_are_counted() -> None:
    """Less one, and that is reached: one microbatch after its F, and all others between their I and W."""
    shape = Shape(1, 6, memory_limit=2.0, durations=Durations(1.0, 1.0, 1.0), goal=Goal(memory_count="half"))
    shop, _ = optimal._shop_of(shape)
    assert shop.fits(("FIFIFIWWW" + "FIFIFIWWW",))
    assert not shop.fits(("FIFIFIFWWW" + "IFIFIWWW",))
    assert optimal.in_flight(0, shape) == 3


@pytest.mark.parametrize("unit", [1.0, 1e-6, 1 / 3, 0.012345678901234567])
def test_durations_of_any_unit(unit: float) -> None:
    """What is no short decimal is counted finely enough."""
    durations = Durations(5 * unit, 6 * unit, 4 * unit, comm=unit)
    certificate = checked(Shape(4, 8, memory_limit=0.75, durations=durations, goal=Goal(time_limit_s=20.0)))
    assert certificate.value == pytest.approx(
        checked(Shape(4, 8, memory_limit=0.75, durations=Durations(5.0, 6.0, 4.0, comm=1.0))).value * unit
    )
