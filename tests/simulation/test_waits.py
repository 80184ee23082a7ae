"""Which links a step waits for: together all that is exposed, to the nanosecond; the slow link by its name."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulator as sim
from simulator.commands.network import _limit, _wait_rows
from simulator.config.tenancy import Tenancy
from simulator.engine import des
from simulator.engine.task import WEIGHT_BITS, Profile, TaskGraph
from simulator.metrics.idle import exposed
from simulator.simulation.network.limiting_links import TOLERANCE, limits_of_flows
from simulator.simulation.network.link_use import Network
from simulator.simulation.network.traffic import mean
from simulator.simulation.network.waits import Wait
from simulator.simulation.run import Run
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.units import show_s

from ..commandline import SMALL, trainsim
from ..engine.make import random_graph
from ..engine.progressive_filling import fill
from ..small_scenarios import scenario, small_cluster

PLANS = {
    "tensor": sim.Plan(tp=4, dp=1),
    "pipeline": sim.Plan(tp=1, pp=4, dp=1),
    "data": sim.Plan(tp=1, dp=16),
    "replicas near": sim.Plan(tp=2, pp=4, dp=2, sharding="zero1"),
    "replicas far": sim.Plan(tp=2, pp=4, dp=2, rank_order="tp-cp-ep-pp-dp"),
    "all at once": sim.Plan(tp=2, pp=2, dp=4, overlap=sim.Overlap(dp=True, tp=True, pp=True)),
    "one after the other": sim.Plan(tp=2, pp=2, dp=4, overlap=sim.Overlap(dp=False, tp=False, pp=False)),
    "steps into each other": sim.Plan(tp=2, pp=2, dp=4, schedule="zb_h1", optimizer="post-validated"),
}
NARROW: dict[str, Any] = {"shape": "leaf-spine", "oversubscription": 8}
PUBLIC = sim.framework("megatron-core-2025")


def of_plan(name: str, **more: Any) -> Scenario:
    plan = PLANS[name]
    gpus = plan.tp * plan.pp * (plan.dp or 1)
    cluster = small_cluster(gpus // 4, **more.pop("cluster", {}))
    return scenario(plan=plan, cluster=cluster, job=sim.Job(sequence_length=128, global_batch=16), **more)


def waits_of(network: Network) -> dict[tuple[str, ...], dict[str, float]]:
    return {wait.links: wait.waited_by_axis_s for wait in network.waits}


@pytest.mark.thinned(4)
@pytest.mark.parametrize("way", ["fluid", "closed", pytest.param("stepwise", marks=pytest.mark.slow), "launched"])
@pytest.mark.parametrize("name", PLANS)
def test_t4_7_latency_and_links_are_the_exposed_time(name: str, way: str) -> None:
    """On every class of ranks and along every axis; latency is what of it comes before or after the bytes that are waited for."""
    more = {"framework": PUBLIC} if way == "launched" else {"fidelity": sim.Fidelity(collectives=way)}
    run = of_plan(name, cluster=NARROW, **more).simulate()
    waiting, seen = run.network.waiting, run.observation
    graph, times = run.engine_timeline.expansion.graph, run.engine_timeline.times
    pieces, axis = exposed(seen)
    lasted_ns = pieces.until_ns - pieces.from_ns
    moves_ns, ends_ns = times.start_ns[pieces.task] + graph.solo_ns[pieces.task], times.end_ns[pieces.task]
    moving_ns = (np.minimum(pieces.until_ns, ends_ns) - np.maximum(pieces.from_ns, moves_ns)).clip(0)
    latency_ns = np.where(graph.work[pieces.task] > 0, lasted_ns - moving_ns, lasted_ns)
    for place, of in enumerate(seen.axes):
        if of not in waiting.axes:
            continue
        along = waiting.axis == place
        np.testing.assert_array_equal(waiting.ns_of(along), run.time_by_cause.of(of))
        still_ns = np.zeros(len(seen.labels), dtype=np.int64)
        np.add.at(still_ns, pieces.which[axis == place], latency_ns[axis == place])
        np.testing.assert_array_equal(waiting.ns_of(along & (waiting.limit == 0)), still_ns)
    assert set(waiting.axes) == set(seen.axes) - {"host"}
    told = sum(wait.waited_s for wait in run.network.waits)
    assert told == pytest.approx(sum(run.metrics.exposed_s.values()), rel=1e-12)
    assert told > 0 or "host" in seen.axes
    for wait in (*run.network.waits, *run.network.waited_links(1000)):
        assert 0 <= wait.full_s <= wait.waited_s
    for of_class in run.network.classes:
        assert 0 <= of_class["full_s"] <= of_class["waited_s"]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("fabric", [NARROW, {}, {"fabric": "ndr-ib"}])
def test_folded_or_not_the_same_is_waited_for(name: str, fabric: dict[str, Any]) -> None:
    of = of_plan(name, cluster=fabric)
    once, again = (of.simulate(folding=folding).network for folding in (True, False))
    folded, whole = waits_of(once), waits_of(again)
    assert folded.keys() == whole.keys()
    for links, waited_s in folded.items():
        assert waited_s == pytest.approx(whole[links], rel=1e-9)
    full_s = {wait.links: wait.full_s for wait in again.waits}
    assert {wait.links: wait.full_s for wait in once.waits} == pytest.approx(full_s, rel=1e-9)


@pytest.mark.parametrize("changes", [False, True])
@given(seed=st.integers(0, 2**32 - 1))
def test_t4_5_what_limits_a_flow_is_full_and_gives_nobody_more(changes: bool, seed: int) -> None:
    """At both ends of every interval, against rates from `fill`; or the flow has what it asks for, and they are its fullest."""
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, flows=True)
    if changes:
        halved = tuple(Profile((0, 300), (p.value[0], p.value[0] // 2)) for p in graph.profiles)
        graph = replace(graph, profiles=halved)
    times = des.simulate(graph)
    flows = np.flatnonzero(graph.footprint >= 0)
    moves_ns = times.start_ns + graph.solo_ns
    found = limits_of_flows(graph, times, flows)
    routes = graph.routes()
    lasted = np.zeros(len(graph), dtype=np.int64)
    np.add.at(lasted, found.flow, found.until_ns - found.from_ns)
    np.testing.assert_array_equal(lasted[flows], (times.end_ns - moves_ns)[flows])
    for flow, limit, *ends in zip(found.flow, found.limit, found.from_ns, found.until_ns - 1, strict=True):
        footprint, links, fills = found.limits[limit]
        assert footprint == graph.footprint[flow]
        for now in ends:
            moving = [f for f in flows.tolist() if moves_ns[f] <= now < times.end_ns[f]]
            room = {i: p.value[int(now >= 300 and changes)] << WEIGHT_BITS for i, p in enumerate(graph.profile_of_link)}
            rate = fill({f: (routes[graph.footprint[f]], cap_at(graph, f, now)) for f in moving}, dict(room))
            load = {link: sum(rate[f] * w for f in moving for of, w in routes[graph.footprint[f]] if of == link) for link in room}
            top = {link: max([rate[f] for f in moving if link in dict(routes[graph.footprint[f]])], default=0) for link in room}
            crossed = [link for link, _ in routes[footprint]]
            full = [x for x in crossed if load[x] > (1 - TOLERANCE) * room[x] and rate[flow] > (1 - TOLERANCE) * top[x]]
            fullest = max(load[x] / room[x] for x in crossed)
            expected = full or [x for x in crossed if load[x] / room[x] >= (1 - TOLERANCE) * fullest]
            assert sorted(links) == sorted(expected)
            assert fills == bool(full)
            assert full or rate[flow] == cap_at(graph, flow, now)


def cap_at(graph: TaskGraph, flow: int, now: int) -> int:
    """The cap that a flow has at a time."""
    profile = -1 if graph.cap_profile is None else int(graph.cap_profile[flow])
    return int(graph.cap[flow]) if profile < 0 else graph.profiles[profile].at(now)


def test_seconds_from_the_plan_alone() -> None:
    """Two GPUs a node apart reduce four bytes of gradient per parameter once, after all else: as much over each of four links."""
    hidden, layers, vocab, ffn = 512, 4, 4096, 2048
    model = sim.model({"layers": layers, "hidden": hidden, "heads": 8, "ffn_hidden": ffn, "vocab": vocab})
    cluster = small_cluster(2, gpus_per_node=1, inter_node="1x400 Gbit/s")
    plan = sim.Plan(dp=2, overlap=sim.Overlap(dp=False))
    network = scenario(model, cluster, plan).simulate().network
    norm = 2 * hidden
    parameters = layers * (4 * hidden**2 + 2 * hidden * ffn + 2 * norm) + 2 * vocab * hidden + norm
    waits = waits_of(network)
    assert waits.keys() == {("nic > leaf", "leaf > nic"), ()}
    assert waits["nic > leaf", "leaf > nic"] == {"dp": pytest.approx(4 * parameters / 50e9, rel=1e-6)}
    assert [(of.name, of.alike) for of in network.waited_links()] == [("node0/nic0>leaf0", 2), ("leaf0>node0/nic0", 2)]
    waited_s = {of["kind"]: of["waited_s"] for of in network.classes}
    assert waited_s == {kind: waits["nic > leaf", "leaf > nic"]["dp"] if "leaf" in kind else 0.0 for kind in waited_s}


def test_links_that_many_share_are_waited_for_though_each_alone_fills_others() -> None:
    """Four rings across two leaves: a NIC has half of an uplink's rate, but four rings share the uplink."""
    plan = sim.Plan(tp=4, dp=4, overlap=sim.Overlap(dp=False))
    of = scenario(plan=plan, cluster=small_cluster(4, shape="leaf-spine", oversubscription=4))
    network = of.simulate().network
    uplink = network.link(of.cluster.link_named("leaf0>spine"))
    waits = waits_of(network)
    assert waits["leaf > spine", "spine > leaf"]["dp"] == pytest.approx(uplink.bytes / uplink.capacity_bytes_per_s, rel=1e-4)
    assert not any("dp" in waited_s for links, waited_s in waits.items() if links and "leaf > spine" not in links)
    wide = scenario(plan=plan, cluster=small_cluster(4, shape="leaf-spine")).simulate().network
    assert "dp" in waits_of(wide)["nic > leaf", "leaf > nic"]


@pytest.mark.thinned(4)
@pytest.mark.parametrize("link", ["node1/nic2>leaf2", "leaf5>node2/nic1", "node3/gpu0>node3/nvswitch", "leaf1>spine"])
@pytest.mark.parametrize("from_s", [0.0, 1e-9])
@pytest.mark.parametrize("fabric", ["ideal", "ndr-ib"])
def test_a_slow_link_is_waited_for_by_name(link: str, from_s: float, fabric: str) -> None:
    """Whether it is slow all the time, or becomes so."""
    slow = sim.Perturb(link=link, capacity=0.02, from_s=from_s)
    plan = sim.Plan(tp=4, dp=4, overlap=sim.Overlap(dp=False))
    of = scenario(plan=plan, cluster=small_cluster(4, fabric=fabric), perturb=(slow,))
    first, *others = of.simulate().network.waited_links()
    assert (first.name, first.alike) == (link, 1)
    assert others[0].waited_s < 0.6 * first.waited_s
    undisturbed = scenario(plan=plan, cluster=small_cluster(4, fabric=fabric)).simulate().network
    assert undisturbed.waited_links()[0].alike > 1


def test_the_wait_for_a_single_link_is_also_that_of_the_rank_that_waits_longest() -> None:
    """The slow link is on the way between two stages of one of four replicas: the mean says little of the rank behind it."""
    slow = sim.Perturb(link="node1/nic2>leaf2", capacity=0.02)
    run = scenario(plan=sim.Plan(pp=4, dp=4), cluster=small_cluster(4, fabric="ideal"), perturb=(slow,)).simulate()
    first = next(one for one in run.network.waited_links() if one.name == "node1/nic2>leaf2")
    assert 2 * first.waited_s < first.longest_s < run.metrics.step_time_s
    waiting = run.network.waiting
    limits = [i for i, links in enumerate(waiting.limits) if run.scenario.cluster.link_named(first.name) in links]
    assert first.longest_s == pytest.approx(max(waiting.ns_of(np.isin(waiting.limit, limits))) / 1e9, rel=1e-12)


def test_a_link_that_recovers_is_waited_for_until_then() -> None:
    """Then it limits its ring no more than the other links do. After the rings there is only the optimizer."""
    plan = sim.Plan(tp=4, dp=4, overlap=sim.Overlap(dp=False))

    def run(until_s: float | None = None) -> Run:
        slow = sim.Perturb(link="node1/nic2>leaf2", capacity=0.02, until_s=until_s)
        return scenario(plan=plan, cluster=small_cluster(4), perturb=(slow,)).simulate()

    always = run()
    always_s = waits_of(always.network)["nic > leaf",]["dp"]
    until_s = always.metrics.step_time_s - always_s / 2
    recovered_s = waits_of(run(until_s).network)["nic > leaf",]["dp"]
    assert always_s - recovered_s == pytest.approx(always_s / 2 - always.metrics.optimizer_s, abs=3e-9)


def test_t4_6_a_closed_collective_waits_for_the_links_that_it_fills_alone() -> None:
    """Four rings through one uplink, each as fast as its NICs: two of them would fill the uplink."""
    plan = sim.Plan(tp=4, dp=4, overlap=sim.Overlap(dp=False))
    closed = sim.Fidelity(collectives="closed")
    of = scenario(plan=plan, cluster=small_cluster(4, shape="leaf-spine", oversubscription=4), fidelity=closed)
    waits = waits_of(of.simulate(folding=False).network)
    assert [links for links, waited_s in waits.items() if links and "dp" in waited_s] == [("nic > leaf", "leaf > nic")]


def test_the_wire_takes_the_time_or_the_library_does() -> None:
    """Face-value links are full while anything moves; where a library gets less out of them than they carry they never are, one
    of a tenth of the rate neither, out of which it gets a tenth; but an uplink is that many share, slower than each may go.
    """
    plan = sim.Plan(tp=4, dp=4, overlap=sim.Overlap(dp=False))
    rings = ("nic > leaf", "leaf > nic")

    def full_part(links: tuple[str, ...], cluster: dict[str, Any], **more: Any) -> float:
        network = scenario(plan=plan, cluster=small_cluster(4, **cluster), **more).simulate().network
        wait = next(wait for wait in network.waits if wait.links == links)
        assert wait.waited_s > 0
        return wait.full_s / wait.waited_s

    assert full_part(rings, {}) == 1
    assert full_part(rings, {"fabric": "ndr-ib"}) == 0
    slow = sim.Perturb(link="node1/nic2>leaf2", capacity=0.1)
    assert full_part(("nic > leaf",), {}, perturb=(slow,)) == 1
    assert full_part(("nic > leaf",), {"fabric": "ndr-ib"}, perturb=(slow,)) == 0
    uplinks = ("leaf > spine", "spine > leaf")
    assert full_part(uplinks, {**NARROW, "fabric": "ndr-ib"}) == 1


SLOW = "node1/nic2>leaf2"


@pytest.mark.thinned(3)
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(("first", "last"), [(0.0, None), (0.0, 0.5), (0.25, 0.5), (0.75, None), (2.0, None)])
def test_what_a_link_could_carry_is_what_perturbations_left_of_it(steps: int, first: float, last: float | None) -> None:
    """A tenth of its rate in a part of the measured steps, told in parts of them, and all of it in the rest."""

    def run(*perturb: sim.Perturb) -> Run:
        return of_plan("one after the other", perturb=perturb).simulate(steps=steps)

    usual = run().network
    assert usual.begin_ns == 0
    from_s, until_s = first * usual.end_ns * 1e-9, None if last is None else last * usual.end_ns * 1e-9
    slowed = run(sim.Perturb(link=SLOW, capacity=0.1, from_s=from_s, until_s=until_s)).network
    end_s, step_s = slowed.end_ns * 1e-9, slowed.step_s
    assert step_s == pytest.approx(end_s / steps)
    slow_s = max(0.0, min(np.inf if until_s is None else until_s, end_s) - from_s)
    use = slowed.link(slowed.cluster.link_named(SLOW))
    assert use.bytes > 0
    assert use.capacity_bytes_per_s == pytest.approx(50e9 * (end_s - 0.9 * slow_s) / end_s, rel=1e-6)
    assert use.utilisation == pytest.approx(use.bytes / (use.capacity_bytes_per_s * step_s), rel=1e-12)
    assert slow_s > 0 or first > 1
    others = np.arange(slowed.cluster.wiring.links) != slowed.cluster.link_named(SLOW)
    np.testing.assert_array_equal(slowed.capacity_bytes_per_s[others], slowed.cluster.wiring.capacity_bytes_per_s[others])


def test_a_slow_link_is_the_busiest_and_told_with_what_it_carries() -> None:
    network = of_plan("one after the other", perturb=(sim.Perturb(link=SLOW, capacity=0.1),)).simulate().network
    first = network.busiest(1)[0]
    assert (first.name, first.capacity_bytes_per_s) == (SLOW, pytest.approx(5e9))
    told = network.waited_links(1)[0]
    assert (told.name, told.capacity_bytes_per_s) == (SLOW, pytest.approx(5e9))
    assert network.links_like(network.cluster.link_named(SLOW)).tolist() == [network.cluster.link_named(SLOW)]
    of_class = next(of for of in network.classes if of["kind"] == "nic > leaf")
    assert of_class["highest_utilisation"] == first.utilisation


@given(st.data())
def test_the_mean_of_a_profile_is_that_of_its_nanoseconds(data: st.DataObject) -> None:
    since = sorted({0, *data.draw(st.lists(st.integers(1, 60), max_size=4))})
    of = Profile(tuple(since), tuple(data.draw(st.integers(0, 1000)) for _ in since))
    begin = data.draw(st.integers(0, 70))
    end = data.draw(st.integers(begin, 80))
    every = [of.value[max(i for i, at in enumerate(since) if at <= now)] for now in range(begin, max(end, begin + 1))]
    assert mean(of, begin, end) == pytest.approx(np.mean(every), rel=1e-12)


def test_jobs_share_what_a_perturbation_leaves() -> None:
    cluster = {
        "gpu": "h100", "gpus_per_node": 1, "nodes": 4, "intra_node": "NVSwitch 450 GB/s", "inter_node": "400 Gbit/s",
        "shape": "leaf-spine", "nodes_per_pod": 2, "fabric": "ideal",
    }  # fmt: skip
    model = {"layers": 2, "hidden": 512, "heads": 8, "ffn_hidden": 2048, "vocab": 4096}
    entries = [
        {"name": f"{i}", "model": model, "plan": {"dp": 2}, "job": {"global_batch": 2}, "gpus": [i, 2 + i]} for i in (0, 1)
    ]
    perturb = [{"link": "leaf0>spine", "capacity": 0.2}]
    jobs = sim.scenario({"cluster": cluster, "jobs": entries, "perturb": perturb})
    assert isinstance(jobs, Tenancy)
    run = jobs.simulate()
    shared = {link.name: link for link in jobs.shared(run)}
    assert shared["leaf0>spine"].capacity_bytes_per_s == pytest.approx(20e9)
    assert shared["leaf1>spine"].capacity_bytes_per_s == 100e9
    assert shared["leaf0>spine"].utilisation == pytest.approx(5 * shared["leaf1>spine"].utilisation)
    assert shared["leaf0>spine"].utilisation <= 1


def test_waits_beyond_the_first_three_are_summed() -> None:
    waits = [Wait((f"{end} > leaf",), 2.0 - i / 4, i / 4, {"dp": 1.0, "pp": 0.5}) for i, end in enumerate("abcde")]
    rows = _wait_rows(SimpleNamespace(waits=waits, step_s=10.0))  # type: ignore[arg-type]
    assert rows[1] == ["b > leaf", "dp, pp", "1.750 s", "17.50%", "250.0 ms"]
    assert [row[0] for row in rows] == ["a > leaf", "b > leaf", "c > leaf", "other links"]
    assert rows[-1] == ["other links", "dp, pp", "2.250 s", "22.50%", "1.750 s"]
    assert rows[0][-1] == "-"


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        ((), "latency"),
        (("nic > leaf",), "nic > leaf"),
        (("gpu > gpu",), "gpu > gpu"),
        (("nic > leaf", "leaf > nic"), "nic <> leaf"),
        (("gpu > nvswitch", "nvswitch > gpu", "nic > leaf"), "gpu <> nvswitch, nic > leaf"),
    ],
)
def test_how_links_are_called(kinds: tuple[str, ...], said: str) -> None:
    assert _limit(kinds) == said


def test_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    record = trainsim("network", file, "--json", "--top", 3).record
    exposed_s = trainsim("run", file, "--json").record["exposed_s"]
    assert sum(wait["waited_s"] for wait in record["waits"]) == pytest.approx(sum(exposed_s.values()), rel=1e-12)
    for axis, seconds in exposed_s.items():
        along = sum(wait["waited_by_axis_s"].get(axis, 0.0) for wait in record["waits"])
        assert along == pytest.approx(seconds, rel=1e-12)
    waited_s = [wait["waited_s"] for wait in record["waits"]]
    assert waited_s == sorted(waited_s, reverse=True)
    assert len(record["waited_links"]) == 3
    assert all(0 <= of["full_s"] <= of["waited_s"] for part in ("waits", "waited_links", "classes") for of in record[part])
    for of in record["classes"]:
        behind = sum(wait["waited_s"] for wait in record["waits"] if of["kind"] in wait["links"])
        assert of["waited_s"] == pytest.approx(behind, rel=1e-12)
    lines = trainsim("network", file, "--top", 3).out.splitlines()
    title = next(i for i, line in enumerate(lines) if line.startswith("communication waits for"))
    assert lines[title + 1].startswith(_limit(tuple(record["waits"][0]["links"])))
    assert show_s(record["waits"][0]["waited_s"]) in lines[title + 1]
    assert all(len(line) <= 120 for line in lines)
    assert any(line.split()[0] == record["waited_links"][0]["name"] for line in lines)
    file.write_text("model: llama3-8b\ncluster: {name: dgx-h100, nodes: 1, gpus_per_node: 1}\njob: {global_batch: 1}")
    lines = trainsim("network", file, "--allow-oom").out.splitlines()
    assert re.fullmatch(r"nothing +- +0\.00% +-", next(line for line in lines if line.startswith("nothing")))


def test_every_listed_link_can_be_asked_for_links_to_hosts_too() -> None:
    busiest = trainsim("network", "offload-llama3-8b-8xh100", "--json", "--top", 100).record["busiest"]
    of_memory = next(use for use in busiest if use["kind"] == "cpu > memory")
    shown = trainsim("network", "offload-llama3-8b-8xh100", "--json", "--link", of_memory["name"], "--bins", 7).record["link"]
    assert {key: shown[key] for key in of_memory} == of_memory
    begins, ends = shown["edges_s"][:-1], shown["edges_s"][1:]
    carried = sum((until - at) * rate for at, until, rate in zip(begins, ends, shown["bytes_per_s"], strict=True))
    assert carried == pytest.approx(of_memory["bytes"], rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["topology", "network"])
def test_a_picture_is_written_before_a_reader_goes_away(tmp_path: Path, command: str) -> None:
    file, picture = tmp_path / "small.yaml", tmp_path / "picture.png"
    file.write_text(SMALL)
    what = "dgx-h100" if command == "topology" else str(file)
    begun = subprocess.Popen(
        [sys.executable, "-m", "simulator", command, what, "--plot", str(picture)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert begun.stdout is not None
    begun.stdout.close()
    begun.wait(60)
    assert picture.stat().st_size > 1000
