"""Every file in simulator/schedules, found unasked."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from inspect import signature
from types import SimpleNamespace

import numpy as np
import pytest

import simulator as sim
from simulator.config import catalog
from simulator.engine import des
from simulator.engine.fold import fold
from simulator.engine.replay import replay, with_fixed_durations
from simulator.errors import OutsideDomain, UserError
from simulator.program.layout import Layout, lay_out
from simulator.program.slot import Shape, Slot
from simulator.testing import check_schedule

from ..small_scenarios import bound, scenario, small_cluster, small_model

NAMES = sorted(catalog.files("schedules"))


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", NAMES)
def test_battery(name: str) -> None:
    assert check_schedule(catalog.module("schedules", name)) > 10


def test_the_help_of_the_battery_is_short_enough_to_read() -> None:
    assert len(str(signature(check_schedule))) < 200


@pytest.mark.parametrize("name", NAMES)
def test_in_flight_bounds_are_declared_and_reached(name: str) -> None:
    """A bound that nothing ever reaches says too little: some rank of some shape must hold that many."""
    schedule = catalog.module("schedules", name)
    assert hasattr(schedule, "in_flight")
    tight = SimpleNamespace(**vars(schedule))
    tight.in_flight = lambda rank, shape: schedule.in_flight(rank, shape) - 1
    with pytest.raises(UserError, match="in_flight"):
        check_schedule(tight)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chunks", [1, 2])
def test_whole_steps_replay_like_the_event_loop(name: str, chunks: int) -> None:
    """The schedule inside a full program, with tensor and data parallelism around it, closed collectives."""
    plan = sim.Plan(tp=2, pp=2, dp=2, chunks=chunks, schedule=name, sharding="zero1")
    of = scenario(small_model(layers=4), small_cluster(2), plan, sim.Job(64, 8, 1))
    try:
        skeleton = bound(of).skeleton
    except OutsideDomain:
        pytest.skip(f"{name} does not take {chunks} chunks")
    graph = with_fixed_durations(fold(skeleton).graph, every=True)
    one, other = des.simulate(graph), replay(graph)
    np.testing.assert_array_equal(one.start_ns, other.start_ns)
    np.testing.assert_array_equal(one.end_ns, other.end_ns)


GRID = [Shape(ranks, microbatches) for ranks in (2, 3, 4, 8) for microbatches in (2, 4, 8, 9, 16)]


def at_one(name: str) -> dict[Shape, Layout]:
    """What a schedule makes of one chunk and unsplit sequences, where it takes them."""
    found = {}
    for shape in GRID:
        with suppress(OutsideDomain):
            found[shape] = lay_out(catalog.module("schedules", name), shape)
    return found


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", NAMES)
def test_what_comes_to_another_schedule_with_one_chunk_or_split_says_so(name: str) -> None:
    schedule = catalog.module("schedules", name)
    declared = dict(getattr(schedule, "WITH_ONE", {}))
    cuts = ["chunks"] * (not hasattr(schedule, "CHUNKS")) + ["splits"] * ("splits" in getattr(schedule, "OPTIONS", ()))
    assert set(declared) <= set(cuts)
    if not cuts or name == "optimal":
        return
    mine, same = at_one(name), set()
    for other in set(NAMES) - {name, "optimal"}:
        theirs = at_one(other)
        both = mine.keys() & theirs.keys()
        if both and all(mine[s].orders == theirs[s].orders and mine[s].placements == theirs[s].placements for s in both):
            same.add(other)
    assert set(declared.values()) <= same
    assert bool(declared) == bool(same)


def broken(**changes: object) -> SimpleNamespace:
    good = catalog.module("schedules", "gpipe")
    return SimpleNamespace(**{"order": good.order, "CHUNKS": 1, "in_flight": good.in_flight, **changes})


def test_the_battery_takes_the_function_that_a_plan_takes() -> None:
    def order(rank: int, shape: Shape) -> Iterable[Slot]:
        return catalog.module("schedules", "gpipe").order(rank, shape)

    with pytest.raises(UserError, match=r"1 rank x 2 chunks x 1 microbatch") as refused:
        check_schedule(order)
    assert "CHUNKS" in refused.value.hint
    order.CHUNKS = 1  # type: ignore[attr-defined]
    assert check_schedule(order) == check_schedule("gpipe")
    with pytest.raises(UserError, match="not a function"):
        check_schedule(5)


def test_the_battery_can_fail() -> None:
    gpipe = catalog.module("schedules", "gpipe")
    for order in (
        lambda rank, shape: list(gpipe.order(rank, shape))[:-1],
        lambda rank, shape: [*gpipe.order(rank, shape), Slot("F", rank, 0)],
        lambda rank, shape: [Slot("B", rank, 0), *(s for s in gpipe.order(rank, shape) if s != Slot("B", rank, 0))],
        lambda rank, shape: [s._replace(stage=0) for s in gpipe.order(rank, shape)],
    ):
        with pytest.raises(UserError):
            check_schedule(broken(order=order), [Shape(2, 4)])
    with pytest.raises(UserError, match=r"6 ranks x 1 chunk x 2 microbatches: schedule: .*5"):
        check_schedule(broken(order=lambda rank, shape: gpipe.order(min(rank, 4), shape)), [Shape(6, 2)])
    with pytest.raises(UserError, match="in_flight"):
        check_schedule(broken(in_flight=lambda rank, shape: 1))
    with pytest.raises(sim.Deadlock):
        check_schedule(broken(order=_waits_in_a_circle), [Shape(2, 2)])


def _waits_in_a_circle(rank: int, shape: Shape) -> list[Slot]:
    """Rank 0 wants the gradient of microbatch 0 before it sends microbatch 1, rank 1 wants that first."""
    first = [Slot("F", 0, 0), Slot("B", 0, 0), Slot("F", 0, 1), Slot("B", 0, 1)]
    second = [Slot("F", 1, 1), Slot("B", 1, 1), Slot("F", 1, 0), Slot("B", 1, 0)]
    return second if rank else first
