"""The compiled engine against the event loop: the same integers, or a refusal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine import des
from simulator.engine.compiled import event_loop, machine_code
from simulator.engine.task import FULL_SPEED, RATE_BITS, UNCAPPED, Profile, TaskGraph
from simulator.engine.timeline import Times
from simulator.errors import Deadlock, UserError
from simulator.simulation import choose_engine

from .make import ONE, Build, gb_per_s, random_graph, steady

needs_numba = pytest.mark.skipif(not event_loop.INSTALLED, reason="numba, the extra 'fast', is not installed")
seeds = st.integers(0, 2**32)


def outcome(simulate: Callable[[TaskGraph], Times], graph: TaskGraph) -> tuple[object, ...]:
    """All starts and ends, or who is stuck: some flows are on links without capacity."""
    try:
        times = simulate(graph)
    except Deadlock as deadlock:
        return deadlock.blocked, str(deadlock)
    return times.start_ns.tolist(), times.end_ns.tolist()


def assert_equal_to_des(graph: TaskGraph) -> None:
    assert outcome(event_loop.simulate, graph) == outcome(des.simulate, graph)


@needs_numba
@settings(deadline=None)
@given(seeds, st.booleans())
def test_streams_gangs_and_flows(seed: int, flows: bool) -> None:
    assert_equal_to_des(random_graph(np.random.default_rng(seed), flows=flows))


@needs_numba
@settings(deadline=None)
@given(seeds)
def test_links_that_change(seed: int) -> None:
    """At times at which flows end, too, and down to nothing for a while."""
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, flows=True)
    ends = np.append(des.simulate(graph).end_ns, 100)
    profiles = [
        Profile(
            (0, *(since := sorted(set(rng.choice(ends[ends > 0], 3).tolist())))),
            (profile.value[0], *(rng.integers(0, 3, len(since)) * 10 << RATE_BITS).tolist()[:-1], 5 << RATE_BITS),
        )
        for profile in graph.profiles
    ]
    assert_equal_to_des(replace(graph, profiles=tuple(profiles)))


@needs_numba
@settings(deadline=None)
@given(seeds, st.integers(2, 40), st.sampled_from([3, 60, 1 << 30, 900 << RATE_BITS]))
def test_many_flows_at_a_time(seed: int, n_links: int, most: int) -> None:
    """With ties, roundings, caps, light and heavy weights, and several that begin and end at once."""
    rng = np.random.default_rng(seed)
    b = Build(links=steady(*rng.integers(1, most + 1, n_links).tolist()))
    for task in range(150):
        links = sorted(rng.choice(n_links, int(rng.integers(1, min(n_links, 5) + 1)), replace=False).tolist())
        route = [(link, int(rng.choice([ONE // 64, ONE, ONE, 3 * ONE]))) for link in links]
        cap = UNCAPPED if rng.random() < 0.7 else int(rng.integers(1, most + 1))
        b.task(int(rng.integers(0, 2)), on=task % 40, work=int(rng.integers(1, 9)), route=route, cap=cap)
    assert_equal_to_des(b.graph())


@needs_numba
def test_nothing_and_next_to_nothing() -> None:
    assert_equal_to_des(Build().graph())
    b = Build()
    b.task(0, on="p", work=3, route=[], cap=gb_per_s(1))
    b.task(0, on="p")
    assert_equal_to_des(b.graph())


@needs_numba
def test_a_deadlock_is_the_same() -> None:
    b = Build(links=steady(0))
    first = b.task(1, on="p", after=[1])
    b.task(1, on="q", after=[first])
    b.task(1, on="r", work=1, route=[0])
    with pytest.raises(Deadlock):
        event_loop.simulate(b.graph())
    assert_equal_to_des(b.graph())


@needs_numba
def test_what_outgrows_64_bits_on_the_way_goes_to_the_event_loop() -> None:
    b = Build(links=steady(1))
    for _ in range(4):
        b.task(0, on="p", work=1 << 36, route=[0])
    assert event_loop.why_not(b.graph()) == ""
    assert_equal_to_des(b.graph())


@needs_numba
def test_refusals() -> None:
    b = Build(speeds=[Profile((0, 5), (FULL_SPEED, FULL_SPEED // 2))])
    b.task(10, on="p", speed=0)
    assert "speed" in event_loop.why_not(b.graph())
    with pytest.raises(UserError, match="compiled engine"):
        event_loop.simulate(b.graph())
    b = Build(links=steady(1 << 46))
    b.task(0, on="p", work=1, route=[0])
    assert "64 bits" in event_loop.why_not(b.graph())


def test_without_numba_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "INSTALLED", False)
    monkeypatch.setattr(machine_code, "_llvm", lambda: pytest.fail("LLVM comes with numba"))
    machine_code._made_from.cache_clear()
    choose_engine.load()
    assert not event_loop.is_kept()
    assert event_loop.why_not(Build().graph()) == "numba is not installed"
    with pytest.raises(UserError, match="numba is not installed"):
        event_loop.simulate(Build().graph())
