"""`trainsim flows` against exact solutions: those of the shared cases, and of two-level Clos networks solved in rationals."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import simulator as sim
from simulator.engine.compiled import event_loop
from simulator.simulation import estimated_effort
from simulator.study.flows import Case, Flow, rounded_scale

from ..commandline import trainsim

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "flows.json"
HOSTS_PER_LEAF = 32
SLOW, FAST = 12_500_000_000, 25_000_000_000
"""Bytes/s."""


def end_times_s(file: Path) -> list[list[float]]:
    """What the command says, case by case."""
    said = trainsim("flows", file, "--json")
    assert said.code == 0, said.err
    return [[flow["end_s"] for flow in case["flows"]] for case in said.record["cases"]]


def fair_rates(capacity: list[Fraction], routes: dict[int, list[int]]) -> dict[int, Fraction]:
    """Max-min rates: the tightest link freezes the flows over it, until none is left."""
    left, rates = list(capacity), {}
    users: dict[int, set[int]] = defaultdict(set)
    for flow, route in routes.items():
        for link in route:
            users[link].add(flow)
    while users:
        tightest = min(users, key=lambda link: left[link] / len(users[link]))
        level = left[tightest] / len(users[tightest])
        for flow in list(users[tightest]):
            rates[flow] = level
            for link in routes[flow]:
                left[link] -= level
                users[link].discard(flow)
                if not users[link]:
                    del users[link]
    return rates


def exact_ends_s(case: dict[str, Any]) -> list[Fraction]:
    """From one arrival or departure to the next, at rates that hold in between."""
    capacity = [Fraction(link["capacity_Bps"]) for link in case["links"]]
    flows = case["flows"]
    starts = [Fraction(f["start_s"]) + sum(Fraction(case["links"][at]["latency_s"]) for at in f["route"]) for f in flows]
    waiting = sorted(range(len(flows)), key=lambda i: starts[i], reverse=True)
    rest: dict[int, Fraction] = {}
    ends, now = [Fraction(0)] * len(flows), Fraction(0)
    while waiting or rest:
        rates = fair_rates(capacity, {i: flows[i]["route"] for i in rest})
        events = [now + rest[i] / rates[i] for i in rest] + [starts[i] for i in waiting[-1:]]
        then = min(events)
        for i in list(rest):
            rest[i] -= rates[i] * (then - now)
            if not rest[i]:
                ends[i] = then
                del rest[i]
        now = then
        while waiting and starts[waiting[-1]] == now:
            new = waiting.pop()
            rest[new] = Fraction(flows[new]["size_B"])
    return ends


def clos(leaves: int, spines: int, flows: int, seed: int) -> dict[str, Any]:
    """Flows between random hosts, over a random spine where their leaves differ, on links of two speeds and some latency."""
    rng = random.Random(seed)
    links: dict[tuple[Any, ...], dict[str, float]] = {}

    def link(*ends: Any) -> int:
        speed = rng.choice([SLOW, FAST]) if "spine" in ends else SLOW
        links.setdefault(ends, {"capacity_Bps": speed, "latency_s": rng.randrange(4) * 1e-6})
        return list(links).index(ends)

    def flow() -> dict[str, Any]:
        source, target = rng.sample(range(leaves * HOSTS_PER_LEAF), 2)
        up, down = source // HOSTS_PER_LEAF, target // HOSTS_PER_LEAF
        spine = rng.randrange(spines)
        middle = [] if up == down else [link("leaf", up, "spine", spine), link("spine", spine, "leaf", down)]
        route = [link("host", source, "leaf", up), *middle, link("leaf", down, "host", target)]
        return {"start_s": rng.randrange(2000) * 1e-6, "size_B": rng.randrange(10**5, 10**8), "route": route}

    built = [flow() for _ in range(flows)]
    return {"name": f"clos {leaves}x{HOSTS_PER_LEAF}", "links": list(links.values()), "flows": built}


@pytest.mark.parametrize("unit", [1, 10**-3, 10**-9], ids="{:g} B/s".format)
@pytest.mark.parametrize("sizes", [[1], [1, 7], [3, 1e-6, 2**40]], ids=str)
def test_links_may_be_as_slow_as_one_likes(unit: float, sizes: list[float], tmp_path: Path) -> None:
    links = [{"capacity_Bps": unit, "latency_s": 0}, {"capacity_Bps": 7 * unit, "latency_s": 0}]
    routes = [[0], [0, 1], [1]]
    case = {
        "name": "slow",
        "links": links,
        "flows": [{"start_s": 0, "size_B": s, "route": r} for s, r in zip(sizes, routes, strict=False)],
    }
    assert_exact(case, tmp_path)


@pytest.mark.parametrize("apart_s", [1e-9, 1e-15, 1e-21])
@pytest.mark.parametrize("size_bytes", [1000, 1, 1e-6])
def test_flows_may_be_as_short_as_one_likes(apart_s: float, size_bytes: float, tmp_path: Path) -> None:
    links = [{"capacity_Bps": 50 * 10**9, "latency_s": 0}]
    flows = [{"start_s": i * apart_s, "size_B": size_bytes * (1 + i / 7), "route": [0]} for i in range(6)]
    assert_exact({"name": "short", "links": links, "flows": flows}, tmp_path)


def assert_exact(case: dict[str, Any], folder: Path) -> None:
    file = folder / "case.json"
    file.write_text(json.dumps({"cases": [case]}), encoding="utf-8")
    assert end_times_s(file)[0] == pytest.approx([float(end) for end in exact_ends_s(case)], rel=1e-12, abs=0)


def test_a_flow_of_no_bytes_or_over_no_link_ends_where_it_starts(tmp_path: Path) -> None:
    flows = [{"start_s": 3, "size_B": 5, "route": []}, {"size_B": 0, "route": [0]}, {"size_B": 5, "route": []}]
    file = tmp_path / "case.json"
    file.write_text(json.dumps({"cases": [{"name": "", "links": [{"capacity_Bps": 2}], "flows": flows}]}), encoding="utf-8")
    assert end_times_s(file) == [[3.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("capacities", "flow", "says"),
    [
        ([1], {"start_s": -1, "size_B": 1}, "flows[0]: start_s should be a number that is not negative, not -1"),
        ([1], {"size_B": "x"}, "flows[0]: size_B should be a number that is not negative, not 'x'"),
        ([1], {"size_B": 10**400}, "size_B should be a number that is not negative, not a number of 401 digits"),
        ([0], {"size_B": 1}, "links[0]: capacity_Bps should be a positive number, not 0"),
        ([1, 1e30], {"size_B": 1}, "cases[0] ('a'): capacity_Bps: 1e+30 is more than 2^96 times as much as 1"),
        ([1e-300], {"size_B": 1e300}, "case 'a': flow 0 ends after more than 1.8e+308 s"),
    ],
)
def test_numbers_that_are_refused(capacities: list[float], flow: dict[str, Any], says: str, tmp_path: Path) -> None:
    file = tmp_path / "case.json"
    links = [{"capacity_Bps": capacity} for capacity in capacities]
    file.write_text(json.dumps({"cases": [{"name": "a", "links": links, "flows": [{**flow, "route": [0]}]}]}), encoding="utf-8")
    said = trainsim("flows", file)
    assert said.code == 2
    assert says in said.err


def test_the_shared_cases_end_when_exact_rationals_say() -> None:
    if not SHARED.exists():
        pytest.skip("needs the table of flows, ../shared/data/flows.json")
    cases = json.loads(SHARED.read_text(encoding="utf-8"))["cases"]
    assert cases
    for case, ends in zip(cases, end_times_s(SHARED), strict=True):
        for flow, end_s in zip(case["flows"], ends, strict=True):
            assert end_s == pytest.approx(float(Fraction(flow["end_exact"])), rel=1e-9, abs=0), case["name"]


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("leaves", "spines", "flows", "seed"), [(2, 1, 40, 1), (4, 2, 64, 2), (8, 4, 96, 3), (10, 8, 128, 4), (10, 2, 128, 5)]
)
def test_flows_over_a_clos_end_when_exact_rationals_say(leaves: int, spines: int, flows: int, seed: int, tmp_path: Path) -> None:
    case = clos(leaves, spines, flows, seed)
    file = tmp_path / "clos.json"
    file.write_text(json.dumps({"cases": [case]}), encoding="utf-8")
    exact = exact_ends_s(case)
    alone = [
        Fraction(f["start_s"]) + Fraction(f["size_B"]) / min(case["links"][at]["capacity_Bps"] for at in f["route"])
        for f in case["flows"]
    ]
    assert sum(end > 1.01 * least for end, least in zip(exact, alone, strict=True)) > flows / 4, "hardly any share a link"
    assert end_times_s(file)[0] == pytest.approx([float(end) for end in exact], rel=1e-9, abs=0)


@pytest.mark.skipif(not event_loop.INSTALLED, reason="numba, the extra 'fast', is not installed")
@pytest.mark.parametrize(("leaves", "spines", "flows", "seed"), [(2, 1, 40, 1), (4, 2, 64, 2), (10, 8, 128, 4)])
def test_a_case_that_takes_too_long_is_computed_in_64_bits(
    leaves: int, spines: int, flows: int, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "clos.json"
    file.write_text(json.dumps({"cases": [clos(leaves, spines, flows, seed)]}), encoding="utf-8")
    (exact,) = sim.flows(file)
    assert not exact.rounded
    monkeypatch.setattr(estimated_effort, "MOST_S", 0)
    (rounded,) = sim.flows(file, long=True)
    assert rounded.rounded
    assert rounded.end_s == pytest.approx(exact.end_s, rel=1e-6, abs=0)
    assert rounded.end_s != exact.end_s
    assert "rounded to about a millionth" in (said := trainsim("flows", file, "--long")).out + said.err
    assert trainsim("flows", file, "--long", "--json").record["cases"][0]["rounded"]
    monkeypatch.setattr(estimated_effort, "find_spec", lambda name: None)
    assert sim.flows(file, long=True) == [exact], "without numba nothing is rounded"


@pytest.mark.parametrize(
    ("links", "flows"),
    [
        ([5e10], [{"size_B": 1.0, "route": [0]}, {"size_B": 1e15, "route": [0]}]),
        ([1e3, 1e15], [{"size_B": 1e9, "route": [0]}, {"size_B": 1e9, "route": [1]}]),
        ([5e10], [{"size_B": 1e6, "route": [0]}, {"size_B": 1e6, "start_s": 1e9, "route": [0]}]),
    ],
    ids=["sizes far apart", "links far apart", "starts far apart"],
)
def test_what_64_bits_cannot_tell_apart_stays_exact(
    links: list[float], flows: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = {"links": [{"capacity_Bps": capacity} for capacity in links], "flows": flows}
    (tmp_path / "case.json").write_text(json.dumps({"cases": [case]}), encoding="utf-8")
    monkeypatch.setattr(estimated_effort, "MOST_S", 0)
    (found,) = sim.flows(tmp_path / "case.json", long=True)
    assert not found.rounded
    assert found.end_s == pytest.approx([float(end) for end in exact_ends_s(case_of(case))], rel=1e-12, abs=0)


def test_a_route_that_crosses_one_link_too_often_for_64_bits_stays_exact() -> None:
    assert rounded_scale(Case("often", (5e10,), (0.0,), (Flow(0.0, 1e6, (0,) * 4096),)))
    assert not rounded_scale(Case("too often", (5e10,), (0.0,), (Flow(0.0, 1e6, (0,) * 4097),)))


def case_of(case: dict[str, Any]) -> dict[str, Any]:
    """With what is left out stated."""
    links = [{"latency_s": 0.0, **link} for link in case["links"]]
    return {"links": links, "flows": [{"start_s": 0.0, **flow} for flow in case["flows"]]}


@pytest.mark.slow
@pytest.mark.skipif(not event_loop.INSTALLED, reason="numba, the extra 'fast', is not installed")
def test_20000_random_flows_are_not_refused(tmp_path: Path) -> None:
    draw = random.Random(1)
    links = [{"capacity_Bps": draw.choice([25e9, 50e9, 100e9]), "latency_s": 1e-6} for _ in range(2000)]
    flows = [
        {"size_B": draw.randint(1 << 20, 1 << 28), "route": draw.sample(range(len(links)), draw.randint(2, 5))}
        for _ in range(20_000)
    ]
    (tmp_path / "random.json").write_text(json.dumps({"cases": [{"links": links, "flows": flows}]}), encoding="utf-8")
    (found,) = sim.flows(tmp_path / "random.json")
    assert found.rounded
    wire_s = max(
        sum(flow["size_B"] for flow in flows if at in flow["route"]) / link["capacity_Bps"] for at, link in enumerate(links[:100])
    )
    assert wire_s < max(found.end_s)
    assert all(
        end_s > flow["size_B"] / min(links[at]["capacity_Bps"] for at in flow["route"])
        for end_s, flow in zip(found.end_s, flows, strict=True)
    )
