"""Every file in hardware/shapes, on clusters of many proportions: routes lead, are short, and cross what covers their links."""

from __future__ import annotations

from typing import Any

import networkx as nx
import pytest

import simulator as sim
from simulator.errors import UserError
from simulator.hardware.cluster import Cluster
from simulator.study import catalog
from tests.hardware.paths import assert_leads, pairs_of, routes

SHAPES = sorted(map(catalog.plain, catalog.files("shapes")))
PROPORTIONS: dict[str, dict[str, Any]] = {
    "one node": {"nodes": 1, "gpus_per_node": 8},
    "one node without NICs": {"nodes": 1, "gpus_per_node": 4, "inter_node": None},
    "one pod": {"nodes": 3, "gpus_per_node": 4, "inter_node": "4x400 Gbit/s"},
    "pods": {"nodes": 4, "gpus_per_node": 4, "inter_node": "4x400 Gbit/s", "nodes_per_pod": 2},
    "pods, oversubscribed, the last one not full": {
        "nodes": 5,
        "gpus_per_node": 4,
        "inter_node": "4x400 Gbit/s",
        "nodes_per_pod": 2,
        "oversubscription": 4,
    },
    "two GPUs to a NIC": {"nodes": 4, "gpus_per_node": 4, "inter_node": "2x200 Gbit/s", "nodes_per_pod": 2},
    "three NICs for eight GPUs": {"nodes": 4, "gpus_per_node": 8, "inter_node": "3x200 Gbit/s", "nodes_per_pod": 2},
    "one NIC": {"nodes": 4, "gpus_per_node": 4, "inter_node": "100 Gbit/s", "nodes_per_pod": 3},
    "four NICs to a GPU": {"nodes": 3, "gpus_per_node": 2, "inter_node": "8x100 Gbit/s"},
    "one GPU to a node": {"nodes": 6, "gpus_per_node": 1, "inter_node": "100 Gbit/s", "nodes_per_pod": 2},
}


def build(shape: str, proportions: dict[str, Any]) -> Cluster:
    cluster: Cluster = sim.cluster({"gpu": "h100", "intra_node": "NVSwitch 450 GB/s", "shape": shape, **proportions})
    _ = cluster.wiring
    return cluster


def cases() -> list[Any]:
    """Shapes on the proportions that they allow: each allows one node, and all but `nvswitch` several."""
    found = []
    for shape in SHAPES:
        for what, proportions in PROPORTIONS.items():
            try:
                found.append(pytest.param(build(shape, proportions), id=f"{shape}, {what}"))
            except UserError:
                assert proportions["nodes"] > 1
    return found


CASES = cases()


def test_only_the_single_switch_refuses_several_nodes() -> None:
    assert {"nvswitch", "rail-optimized", "leaf-spine"} <= set(SHAPES)
    for shape in set(SHAPES) - {"nvswitch"}:
        assert build(shape, PROPORTIONS["one pod"]).wiring.links
    with pytest.raises(UserError, match="single node") as caught:
        build("nvswitch", PROPORTIONS["one pod"])
    assert "rail-optimized" in caught.value.hint


@pytest.mark.parametrize("cluster", CASES)
def test_the_graph_is_whole_and_its_links_are_the_columns(cluster: Cluster) -> None:
    graph, wiring = cluster.graph, cluster.wiring
    assert nx.is_strongly_connected(graph)
    assert graph.number_of_edges() == wiring.links == len(wiring.capacity_bytes_per_s)
    assert {link for _, _, link in graph.edges(data="link")} == set(range(wiring.links))
    assert graph.number_of_nodes() == sum(run.count for run in wiring.vertices)


@pytest.mark.parametrize("cluster", CASES)
def test_routes_lead_from_gpu_to_gpu(cluster: Cluster) -> None:
    pairs = pairs_of(cluster)
    for (s, t), links in zip(pairs, routes(cluster, pairs), strict=True):
        assert_leads(cluster, links, s, t)


@pytest.mark.parametrize("cluster", CASES)
def test_no_route_is_longer_than_the_shortest_and_a_hop_over_the_nvswitch(cluster: Cluster) -> None:
    """Within a node or a rail, and wherever there are no rails, it is a shortest path; PXN costs two links more at most."""
    shortest = dict(nx.all_pairs_shortest_path_length(cluster.graph))
    pairs = pairs_of(cluster)
    name = cluster.wiring.vertex_name
    for (s, t), links in zip(pairs, routes(cluster, pairs), strict=True):
        relayed = len(links) > 2 and cluster.wiring.vertex_kind(int(cluster.wiring.target[links[0]])) == "nvswitch"
        assert len(links) - 2 * relayed <= shortest[name(s)][name(t)] <= len(links)
        assert not relayed or cluster.shape_name != "leaf-spine"


@pytest.mark.parametrize("cluster", CASES)
def test_a_flow_over_a_covered_link_crosses_one_of_its_covers(cluster: Cluster) -> None:
    covers: dict[int, set[int]] = {}
    for link, cover in cluster.wiring.covered.tolist():
        covers.setdefault(link, set()).add(cover)
    assert bool(covers) == (cluster.nodes > 1)
    for links in routes(cluster, pairs_of(cluster, most=2000)):
        for link in links:
            assert link not in covers or covers[link] & set(links)


@pytest.mark.parametrize("cluster", [case for case in CASES if case.values[0].nodes > 1])
def test_nobody_pays_for_a_nic_that_carries_nothing(cluster: Cluster) -> None:
    """Routes use every link of the fabric, and the NICs of a node add up to what was asked for."""
    wiring = cluster.wiring
    used = {link for links in routes(cluster, pairs_of(cluster, most=5000)) for link in links}
    ends = [{wiring.vertex_kind(int(end)) for end in pair} for pair in zip(wiring.source, wiring.target, strict=True)]
    assert used >= {link for link, kinds in enumerate(ends) if "nvswitch" not in kinds}
    out = [link for link in range(wiring.links) if wiring.link_name(link).startswith("node0/nic") and "leaf" in ends[link]]
    assert sum(wiring.capacity_bytes_per_s[out]) == pytest.approx(cluster.nics_per_node * cluster.nic.bytes_per_s)
