"""Max-min rates: against an exact solver, against themselves solved in one go, and their laws."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine.rates import SharedLinkRates
from simulator.engine.task import UNCAPPED, WEIGHT_BITS

from .progressive_filling import fill

ONE = 1 << WEIGHT_BITS
Flows = dict[int, tuple[list[tuple[int, int]], int]]


def random_flows(rng: np.random.Generator, n_flows: int, n_links: int) -> tuple[Flows, list[int]]:
    capacity = [int(c) for c in rng.integers(1 << 28, 1 << 36, n_links)]
    flows: Flows = {}
    for flow in range(n_flows):
        links = rng.choice(n_links, int(rng.integers(1, min(4, n_links) + 1)), replace=False).tolist()
        cap = UNCAPPED if rng.random() < 0.7 else int(rng.integers(1 << 24, 1 << 34))
        flows[flow] = ([(link, int(rng.choice([ONE // 4, ONE, 2 * ONE]))) for link in sorted(links)], cap)
    return flows, capacity


def exact_rates(flows: Flows, capacity: list[int]) -> dict[int, Fraction]:
    """Progressive filling in rationals, one bottleneck after the other: slow, obvious, and written for this test."""
    rates: dict[int, Fraction] = {}
    while len(rates) < len(flows):
        best: tuple[Fraction, list[int]] | None = None
        for link in range(len(capacity)):
            rising = {f: w for f, (route, _) in flows.items() if f not in rates for at, w in route if at == link}
            if not rising:
                continue
            used = sum(
                rates[f] * Fraction(w, ONE) for f, (route, _) in flows.items() if f in rates for at, w in route if at == link
            )
            level = (capacity[link] - used) / sum(Fraction(w, ONE) for w in rising.values())
            if best is None or level < best[0]:
                best = (level, list(rising))
        low = min((f for f in flows if f not in rates), key=lambda f: flows[f][1])
        if best is None or flows[low][1] < best[0]:
            best = (Fraction(flows[low][1]), [low])
        rates |= dict.fromkeys(best[1], best[0])
    return rates


@pytest.mark.parametrize("seed", range(80))
def test_rates_are_the_exact_ones_but_for_rounding(seed: int) -> None:
    rng = np.random.default_rng(seed)
    flows, capacity = random_flows(rng, int(rng.integers(1, 25)), int(rng.integers(1, 8)))
    got = fill(dict(flows), {link: c << WEIGHT_BITS for link, c in enumerate(capacity)})
    exact = exact_rates(flows, capacity)
    for flow, rate in got.items():
        assert abs(rate - exact[flow]) <= 64, "quanta of 2^-24 bytes/ns"


@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(1, 8))
def test_no_link_is_overfull_and_no_rate_could_be_higher(seed: int, n_flows: int, n_links: int) -> None:
    flows, capacity = random_flows(np.random.default_rng(seed), n_flows, n_links)
    rates = fill(dict(flows), {link: c << WEIGHT_BITS for link, c in enumerate(capacity)})
    used = [0] * n_links
    weight = [0] * n_links
    for flow, (route, _) in flows.items():
        for link, w in route:
            used[link] += w * rates[flow]
            weight[link] += w
    for link in range(n_links):
        assert used[link] <= capacity[link] << WEIGHT_BITS
    for flow, (route, cap) in flows.items():
        fastest_there = [max(rates[f] for f, (r, _) in flows.items() if any(at == link for at, _ in r)) for link, _ in route]
        full = [(capacity[link] << WEIGHT_BITS) - used[link] < 2 * weight[link] for link, _ in route]
        limited = any(is_full and rates[flow] >= top - 1 for is_full, top in zip(full, fastest_there, strict=True))
        assert rates[flow] == cap or limited


@pytest.mark.thinned(2)
@pytest.mark.parametrize("seed", range(40))
def test_solving_again_only_what_changed_gives_what_solving_everything_gives(seed: int) -> None:
    rng = np.random.default_rng(seed)
    flows, capacity = random_flows(rng, 40, 12)
    fabric = SharedLinkRates([route for route, _ in flows.values()], capacity)
    alive: dict[int, None] = {}
    rates: dict[int, int] = {}
    for _ in range(120):
        for flow in rng.choice(40, int(rng.integers(1, 4)), replace=False).tolist():
            if flow in alive:
                fabric.leave(flow)
                del alive[flow], rates[flow]
            else:
                fabric.join(flow, flow, flows[flow][1])
                alive[flow] = None
        if rng.random() < 0.1:
            link = int(rng.integers(0, 12))
            capacity[link] = int(rng.integers(0, 1 << 36))
            fabric.resize(link, capacity[link])
        rates |= dict(fabric.solve())
        room = {link: c << WEIGHT_BITS for link, c in enumerate(capacity)}
        assert rates == fill({flow: flows[flow] for flow in alive}, room)


def alike(rng: np.random.Generator, n_flows: int, n_links: int, most: int) -> tuple[Flows, list[int]]:
    """Flows and links with so few different numbers that many tie, and so small that much is lost in rounding."""
    capacity = [int(c) for c in rng.integers(0, most, n_links)]
    flows: Flows = {}
    for flow in range(n_flows):
        links = sorted(rng.choice(n_links, int(rng.integers(0, min(4, n_links) + 1)), replace=False).tolist())
        cap = UNCAPPED if links and rng.random() < 0.7 else int(rng.integers(0, most))
        flows[flow] = ([(link, int(rng.choice([1, ONE, ONE, ONE, 3 * ONE]))) for link in links], cap)
    return flows, capacity


@given(st.integers(0, 2**32), st.integers(1, 50), st.integers(1, 20), st.sampled_from([2, 5, 50, 1 << 40, 1 << 90]))
def test_every_step_gives_what_filling_anew_gives(seed: int, n_flows: int, n_links: int, most: int) -> None:
    """With ties, remainders and many weights, as flows come and go and links change."""
    rng = np.random.default_rng(seed)
    flows, capacity = alike(rng, n_flows, n_links, min(most, 1 << 60)) if seed % 4 else random_flows(rng, n_flows, n_links)
    scale = max(1, most >> 60)
    capacity = [c * scale for c in capacity]
    fabric = SharedLinkRates([route for route, _ in flows.values()], capacity)
    rates: dict[int, int] = {}
    for _ in range(25):
        for flow in set(rng.integers(0, n_flows, int(rng.integers(1, 6))).tolist()):
            if flow in rates:
                fabric.leave(flow)
                del rates[flow]
            else:
                fabric.join(flow, flow, flows[flow][1])
                rates[flow] = -1
        if rng.random() < 0.2:
            link = int(rng.integers(0, n_links))
            capacity[link] = int(rng.integers(0, min(most, 1 << 60))) * scale
            fabric.resize(link, capacity[link])
        changed = fabric.solve()
        assert changed == sorted((flow, rate) for flow, rate in changed if rates[flow] != rate)
        rates |= dict(changed)
        assert rates == fill({flow: flows[flow] for flow in rates}, {link: c << WEIGHT_BITS for link, c in enumerate(capacity)})


@pytest.mark.parametrize("seed", range(5))
def test_levels_are_hardly_set_twice(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From nothing, 1,000 flows that are all coupled: hardly more looks than links."""
    looks: list[int] = []
    look = SharedLinkRates._set_level
    monkeypatch.setattr(SharedLinkRates, "_set_level", lambda fabric, link: looks.append(link) or look(fabric, link))
    rng = np.random.default_rng(seed)
    routes = [[(link, ONE) for link in rng.choice(300, 4, replace=False).tolist()] for _ in range(1000)]
    fabric = SharedLinkRates(routes, rng.integers(1 << 28, 1 << 36, 300).tolist())
    for flow in range(1000):
        fabric.join(flow, flow, UNCAPPED)
    assert len(fabric.solve()) == 1000
    assert len(looks) < 3 * 300


def test_a_change_far_away_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coupled through links that stay free: nobody else is looked at."""
    n = 100
    fabric = SharedLinkRates([[(2 * i, ONE), (2 * i + 1, ONE), (2 * i + 2, ONE)] for i in range(n)], [100, 10] * n + [100])
    for flow in range(n):
        fabric.join(flow, flow, UNCAPPED)
    assert fabric.solve() == [(flow, 10) for flow in range(n)]
    fabric.resize(7, 20)
    looks: list[int] = []
    look = SharedLinkRates._set_level
    monkeypatch.setattr(SharedLinkRates, "_set_level", lambda fabric, link: looks.append(link) or look(fabric, link))
    assert fabric.solve() == [(3, 20)]
    assert looks == [7]


def test_a_flow_without_links_moves_at_its_cap() -> None:
    fabric = SharedLinkRates([[]], [])
    fabric.join(0, 0, 77)
    assert fabric.solve() == [(0, 77)]
    assert fabric.solve() == []


@pytest.mark.parametrize("limits", [(3, 8), (8, 3), (3, 7), (7, 3), (5, 5), (6, 6)])
def test_one_of_two_gets_what_the_other_leaves(limits: tuple[int, int]) -> None:
    """To the last quantum: a link of 10 that two flows share, each with a link of its own."""
    fabric = SharedLinkRates([[(0, ONE), (1, ONE)], [(0, ONE), (2, ONE)]], [10, *limits])
    for flow in range(2):
        fabric.join(flow, flow, UNCAPPED)
    one, two = limits
    expected = (5, 5) if min(limits) >= 5 else (one, 10 - one) if one < two else (10 - two, two)
    assert fabric.solve() == list(enumerate(expected))
