"""Every file in hardware/shapes, on clusters of many proportions: whole graphs, routes that lead, covers that hold, folding."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

import simulator as sim
from simulator.config import catalog
from simulator.errors import UserError
from simulator.hardware import measure
from simulator.hardware.cluster import Cluster
from tests.hardware.paths import assert_leads, pairs_of, routes
from tests.hardware.shapes import FABRICS, HASHED, INSIDES, PROPORTIONS, SHAPES, build, every, nodes_of
from tests.small_scenarios import both, bound_twice, scenario, small_model

CASES = [pytest.param(cluster, id=what) for what, cluster in every().items()]
CASES += [pytest.param(nodes_of(kind, n), id=f"{n} nodes, each {kind}") for kind in INSIDES for n in (1, 3)]
HASHES = [
    pytest.param(build(shape, PROPORTIONS[what], routing="ecmp", routing_seed=7), id=f"{shape}, {what}, hashed")
    for shape in HASHED
    for what in ("one node", "pods", "two GPUs to a NIC", "many small nodes")
]


def test_only_the_insides_of_nodes_refuse_several() -> None:
    assert {"nvswitch", "rail-optimized", "leaf-spine", "fat-tree", "dragonfly", "torus", "wan", "explicit"} <= set(SHAPES)
    for shape in FABRICS:
        assert build(shape, PROPORTIONS["one pod"]).wiring.links
    for shape in sorted(set(SHAPES) - set(FABRICS)):
        with pytest.raises(UserError, match="single node") as caught:
            build(shape, PROPORTIONS["one pod"])
        assert "rail-optimized" in caught.value.hint


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_says_which_options_it_has(shape: str) -> None:
    module = catalog.module("shapes", shape)
    assert isinstance(module.OPTIONS, tuple)
    assert hasattr(module, "fabric") or hasattr(module, "inside") or (hasattr(module, "wire") and hasattr(module, "route"))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("cluster", CASES + HASHES)
def test_the_graph_is_whole_and_its_links_are_the_columns(cluster: Cluster) -> None:
    graph, wiring = cluster.graph, cluster.wiring
    assert nx.is_strongly_connected(graph)
    assert graph.number_of_edges() == wiring.links == len(wiring.capacity_bytes_per_s)
    assert {link for _, _, link in graph.edges(data="link")} == set(range(wiring.links))
    assert graph.number_of_nodes() == sum(run.count for run in wiring.vertices)
    assert (wiring.capacity_bytes_per_s > 0).all()
    assert (wiring.latency_s > 0).all()


@pytest.mark.thinned(3)
@pytest.mark.parametrize("cluster", CASES + HASHES)
def test_links_are_alike_both_ways(cluster: Cluster) -> None:
    for a, b, link in cluster.graph.edges(data=True):
        back = cluster.graph.edges[b, a]
        assert (back["capacity_bytes_per_s"], back["latency_s"]) == (link["capacity_bytes_per_s"], link["latency_s"])


@pytest.mark.thinned(3)
@pytest.mark.parametrize("cluster", CASES + HASHES)
def test_every_link_has_a_class(cluster: Cluster) -> None:
    wiring = cluster.wiring
    assert len(wiring.link_class) == wiring.links
    assert sorted(set(wiring.link_class.tolist())) == list(range(len(wiring.link_classes)))
    assert all(wiring.link_classes)
    assert sum(of.count for of in measure.link_classes(wiring)) == wiring.links


@pytest.mark.thinned(3)
@pytest.mark.parametrize("cluster", CASES + HASHES)
def test_routes_lead_from_gpu_to_gpu(cluster: Cluster) -> None:
    pairs = pairs_of(cluster)
    for (s, t), links in zip(pairs, routes(cluster, pairs), strict=True):
        assert_leads(cluster, links, s, t)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("cluster", CASES + HASHES)
def test_many_pairs_at_once_are_the_pairs_one_by_one(cluster: Cluster) -> None:
    pairs = pairs_of(cluster, most=60)
    assert routes(cluster, pairs) == [routes(cluster, [pair])[0] for pair in pairs]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("cluster", CASES)
def test_no_route_is_longer_than_the_shortest_and_two_hops(cluster: Cluster) -> None:
    """PXN goes over the NVSwitch first; without relays a neighbour's NIC may be plugged in nearer than one's own."""
    shortest = dict(nx.all_pairs_shortest_path_length(cluster.graph))
    pairs, name = pairs_of(cluster), cluster.wiring.vertex_name
    for (s, t), links in zip(pairs, routes(cluster, pairs), strict=True):
        relayed = len(links) > 2 and cluster.wiring.vertex_kind(int(cluster.wiring.target[links[0]])) == "nvswitch"
        assert shortest[name(s)][name(t)] <= len(links) <= shortest[name(s)][name(t)] + 2
        assert not relayed or cluster.shape_name in ("rail-optimized", "wan")


@pytest.mark.thinned(3)
@pytest.mark.parametrize("cluster", CASES)
def test_the_other_way_is_as_long(cluster: Cluster) -> None:
    pairs = pairs_of(cluster)
    there, back = routes(cluster, pairs), routes(cluster, [(t, s) for s, t in pairs])
    assert [len(links) for links in there] == [len(links) for links in back]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("cluster", CASES + HASHES)
def test_a_flow_over_a_covered_link_crosses_one_of_its_covers(cluster: Cluster) -> None:
    covers: dict[int, set[int]] = {}
    for link, cover in cluster.wiring.covered.tolist():
        covers.setdefault(link, set()).add(cover)
    assert bool(covers) == (cluster.nodes > 1 and cluster.shape_name != "explicit")
    for links in routes(cluster, pairs_of(cluster, most=2000)):
        for link in links:
            assert link not in covers or covers[link] & set(links)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("cluster", CASES + HASHES)
def test_the_relay_is_whose_nic_the_data_leaves_by(cluster: Cluster) -> None:
    wiring, per_node = cluster.wiring, cluster.gpus_per_node
    pairs = [(s, t) for s, t in pairs_of(cluster) if s // per_node != t // per_node]
    source, target = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    relays = cluster.relay(source, target)
    assert (relays // per_node == source // per_node).all()
    if not pairs or cluster.shape_name == "explicit":
        return
    nics = zip(cluster.nic_of(relays).tolist(), cluster.nic_of(target).tolist(), strict=True)
    for links, (nic, into) in zip(routes(cluster, pairs), nics, strict=True):
        by = {wiring.link_classes[wiring.link_class[link]]: wiring.link_name(link) for link in links}
        ends = [by["nic up"].split(">")[0], by["nic down"].split(">")[1]]
        assert ends == [f"node{number // cluster.rails}/nic{number % cluster.rails}" for number in (nic, into)]


@pytest.mark.parametrize("cluster", [case for case in CASES if case.values[0].wiring.covered.size])
def test_nobody_pays_for_a_nic_that_carries_nothing(cluster: Cluster) -> None:
    """Routes use every link of the fabric, and the NICs of a node add up to what was asked for."""
    wiring, n = cluster.wiring, np.arange(cluster.gpus)
    route = cluster.route(np.repeat(n, len(n)), np.tile(n, len(n)))
    used = set(np.unique(route[route >= 0]).tolist())
    classes = [wiring.link_classes[number] for number in wiring.link_class.tolist()]
    assert used >= {link for link, name in enumerate(classes) if not name.startswith(("nvlink", "pcie", "socket"))}
    nics = [link for link, name in enumerate(classes) if name == "nic up" and wiring.link_name(link).startswith("node0/")]
    assert sum(wiring.capacity_bytes_per_s[nics]) == pytest.approx(cluster.nics_per_node * cluster.nic.bytes_per_s)


@pytest.mark.parametrize("cluster", [case for case in CASES if case.values[0].nodes > 1])
def test_the_bisection_among_the_switches_is_that_of_the_whole_graph(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = measure.bisection(cluster)
    assert whole.bytes_per_s
    monkeypatch.setattr(measure, "MOST_CUT", 0)
    switches = measure.bisection(cluster)
    assert switches.bytes_per_s == (None if cluster.shape_name == "explicit" else pytest.approx(whole.bytes_per_s))


@pytest.mark.parametrize("shape", HASHED)
def test_hashed_flows_take_the_same_way_every_time(shape: str) -> None:
    one, again = (build(shape, PROPORTIONS["many small nodes"], routing="ecmp", routing_seed=7) for _ in range(2))
    assert routes(one, pairs_of(one)) == routes(again, pairs_of(again))


@pytest.mark.parametrize("shape", HASHED)
def test_another_seed_is_another_choice(shape: str) -> None:
    one, other = (build(shape, PROPORTIONS["many small nodes"], routing="ecmp", routing_seed=seed) for seed in (0, 1))
    assert routes(one, pairs_of(one)) != routes(other, pairs_of(other))


TINY = {"nodes": 4, "gpus_per_node": 4, "inter_node": "2x100 Gbit/s", "nodes_per_pod": 2}
FOLDED = [pytest.param(build(shape, TINY), id=shape) for shape in FABRICS]
FOLDED += [pytest.param(build(shape, TINY, routing="ecmp"), id=f"{shape}, hashed") for shape in HASHED]
FOLDED += [pytest.param(nodes_of(kind, 2), id=f"nodes, each {kind}") for kind in INSIDES]


@pytest.mark.thinned(6)
@pytest.mark.parametrize("order", ["tp-pp-dp", "dp-pp-tp"])
@pytest.mark.parametrize("cluster", FOLDED)
def test_folded_equals_unfolded(cluster: Cluster, order: str) -> None:
    """Sixteen ranks that reduce, gather and send across everything that there is."""
    plan = sim.Plan(tp=2, pp=2, dp=4, rank_order=order)
    job = sim.Job(sequence_length=64, global_batch=8, dtype="fp16")
    both(*bound_twice(scenario(small_model(layers=2), cluster, plan, job))).assert_equal()


SYMMETRIC = ("rail-optimized", "leaf-spine", "fat-tree", "dragonfly", "torus", "fully-connected")


@pytest.mark.parametrize("shape, pp", [*((shape, pp) for shape in SYMMETRIC for pp in (1, 2)), ("ring", 1)])
def test_symmetric_shapes_fold_to_their_stages(shape: str, pp: int) -> None:
    """Tensor groups that fill nodes, replicas all over the fabric: every stage is a class, whatever joins the nodes.

    Gradients are scattered and gathered in rings, for a tree's root differs from its leaves. Only half of a ring is no ring:
    its replicas are an open chain, whose ends differ from its middle.
    """
    cluster = build(shape, {"nodes": 8, "gpus_per_node": 2, "inter_node": "2x400 Gbit/s", "nodes_per_pod": 4})
    plan = sim.Plan(tp=2, pp=pp, dp=8 // pp, sharding="zero1")
    of = scenario(small_model(layers=2), cluster, plan, sim.Job(sequence_length=64, global_batch=8))
    assert both(*bound_twice(of)).classes == pp
