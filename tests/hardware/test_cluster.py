"""Clusters: names of vertices and links, what one node lacks, what a spine is worth, and faults in what a person writes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import pytest

import simulator as sim
from simulator.costs.collectives.curves import uncontended_time
from simulator.costs.collectives.theory import Call
from simulator.hardware.cluster import Cluster
from simulator.hardware.measure import route_classes
from simulator.units import GB, US_PER_S
from tests.hardware.paths import attributes
from tests.validate.described import links_in

from ..small_scenarios import time_collective

NIC = 50 * GB


def small(shape: str = "rail-optimized", **changes: Any) -> Cluster:
    """Nodes of four GPUs with a NIC of 50 GB/s each, two nodes to a pod."""
    written = {
        "gpu": "h100", "gpus_per_node": 4, "nodes": 4, "intra_node": "NVSwitch 450 GB/s", "inter_node": "4x400 Gbit/s",
        "shape": shape, "nodes_per_pod": 2,
    }  # fmt: skip
    cluster: Cluster = sim.cluster({**written, **changes})
    return cluster


@pytest.mark.parametrize(
    ("changes", "gb_per_s"),
    [
        ({}, 63),
        ({"inter_node": "4x800 Gbit/s"}, 100),
        ({"inter_node": "2x800 Gbit/s"}, 63),
        ({"inter_node": "32x100 Gbit/s"}, 100),
        ({"inter_node": "6x50 GB/s", "gpus_per_node": 1, "shape": "torus"}, 300),
        ({"inter_node": "4x800 Gbit/s", "pcie": "126 GB/s"}, 126),
        ({"inter_node": "4x800 Gbit/s", "pcie": "31.5 GB/s"}, 31.5),
        ({"inter_node": "4x800 Gbit/s", "intra_node": "PCIe 31.5 GB/s"}, 31.5),
    ],
    ids=str,
)
def test_what_leads_to_nics_is_as_fast_as_they_are_unless_a_cluster_says(changes: dict[str, Any], gb_per_s: float) -> None:
    """A GPU never waits for a link of which nobody said that it is there."""
    assert small(**changes).pcie.bytes_per_s == gb_per_s * GB


def test_a_system_of_gpu_nics_and_shape_reaches_the_rate_of_its_nics() -> None:
    """And takes what tables that name the same links are told."""
    wide = {"gpu": "b300", "gpus_per_node": 8, "intra_node": "NVSwitch 900 GB/s", "inter_node": "8x800 Gbit/s"}
    cluster = small(**wide)
    across = [way.bytes_per_s for way in route_classes(cluster) if not way.inside]
    assert across == [(100 * GB, 100 * GB)] * len(across)
    machine = links_in("B300", "nvlink5-nvswitch", 32, 4, network="xdr-ib", nics_per_node=8, nic_gbit=800)
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast"):
        (row,) = time_collective(kind, cluster, [2**33])
        known = uncontended_time(Call(kind, 2**33, 32, 4), machine.inside, machine.across, machine.curves)
        assert row.time_s == pytest.approx(known.seconds, rel=1e-3), kind


def test_links_are_named_as_the_interface_says() -> None:
    cluster = sim.cluster("dgx-h100", nodes=33)
    wiring = cluster.wiring
    for name in ("node0/nic3>leaf3", "leaf3>node0/nic3", "node32/nic3>leaf11", "leaf11>spine", "node0/gpu7>node0/nvswitch"):
        assert wiring.link_name(cluster.link_named(name)) == name
        assert cluster.graph.has_edge(*name.split(">"))


def test_a_wrong_link_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(sim.UserError, match="no link 'node0/nic3>leaf4'") as caught:
        small().link_named("node0/nic3>leaf4")
    assert "node0/nic3>leaf3" in caught.value.hint
    with pytest.raises(sim.UserError) as caught:
        small().link_named("node0/nick3>leaf3")
    assert "node0/nic3" in caught.value.hint


def test_one_node_has_neither_nics_nor_leaves() -> None:
    wiring = sim.cluster("dgx-h100", nodes=1).wiring
    assert {run.kind: run.count for run in wiring.vertices} == {"gpu": 8, "nvswitch": 1}
    assert wiring.links == 16
    assert len(wiring.covered) == 0


def test_a_rail_optimized_pod_has_a_leaf_per_rail() -> None:
    """Each leaf has one NIC of every node of its pod; the i-th ones together."""
    graph = sim.cluster("dgx-h100", nodes=64).graph
    leaves = [vertex for vertex, kind in graph.nodes(data="kind") if kind == "leaf"]
    assert len(leaves) == 16
    for leaf in leaves:
        nics = [vertex for vertex in graph.successors(leaf) if vertex != "spine"]
        assert len(nics) == 32
        assert {nic.split("/")[1] for nic in nics} == {f"nic{int(leaf.removeprefix('leaf')) % 8}"}


def test_a_leaf_spine_pod_has_one_leaf() -> None:
    graph = small("leaf-spine").graph
    assert sorted(vertex for vertex, kind in graph.nodes(data="kind") if kind == "leaf") == ["leaf0", "leaf1"]
    assert {nic for nic in graph.successors("leaf1") if nic != "spine"} == {f"node{n}/nic{i}" for n in (2, 3) for i in range(4)}


@pytest.mark.parametrize("shape, nics_of_leaf", [("rail-optimized", 2), ("leaf-spine", 8)])
@pytest.mark.parametrize("oversubscription", [1, 2, 3.5])
def test_a_leaf_has_above_it_what_it_has_below_over_the_oversubscription(
    shape: str, nics_of_leaf: int, oversubscription: float
) -> None:
    cluster = small(shape, oversubscription=oversubscription)
    for link in (attributes(cluster, "leaf0", "spine"), attributes(cluster, "spine", "leaf0")):
        assert link["capacity_bytes_per_s"] == pytest.approx(nics_of_leaf * NIC / oversubscription)
        assert link["latency_s"] == cluster.switch_latency_s


def test_all_leaves_are_wired_alike_whatever_is_plugged_in() -> None:
    """A pod that is not full has the uplinks of one that is, and hashed flows find ports of full rate there."""
    sprayed, hashed = (small("leaf-spine", nodes=5, routing=routing) for routing in ("spray", "ecmp"))
    for leaf in ("leaf0", "leaf2"):
        assert attributes(sprayed, leaf, "spine")["capacity_bytes_per_s"] == pytest.approx(8 * NIC)
        assert attributes(hashed, leaf, "spine7")["capacity_bytes_per_s"] == pytest.approx(NIC)
    tree = small("fat-tree", nodes=5, radix=8, routing="ecmp")
    rates = {rate for _, _, rate in tree.graph.edges(data="capacity_bytes_per_s") if rate < 200e9}
    assert sorted(rates) == pytest.approx(sorted({NIC, tree.pcie.bytes_per_s}))


@pytest.mark.parametrize("shape", ["rail-optimized", "leaf-spine"])
@pytest.mark.parametrize("oversubscription", [1, 4])
def test_bisection(shape: str, oversubscription: float) -> None:
    """Half the pods to the other half: the maximal flow is the NICs' rate of a half, over the oversubscription."""
    cluster = small(shape, nodes=8, oversubscription=oversubscription)
    flow: nx.DiGraph[str] = nx.DiGraph()
    for a, b, rate in cluster.graph.edges(data="capacity_bytes_per_s"):
        flow.add_edge(a, b, capacity=rate)
    for gpu in range(cluster.gpus):
        name = cluster.wiring.vertex_name(gpu)
        flow.add_edge(*(("from", name) if gpu < cluster.gpus // 2 else (name, "to")))
    value, _ = nx.maximum_flow(flow, "from", "to")
    assert value == pytest.approx(16 * NIC / oversubscription)


def test_several_nics_of_a_gpu_are_one_of_their_pooled_rate() -> None:
    """AWS p5 has 32 NICs of 100 Gbit/s for 8 GPUs: every GPU sends at 400 Gbit/s."""
    cluster = sim.cluster("dgx-h100", nodes=2, inter_node="32x100 Gbit/s")
    kinds = Counter(kind for _, kind in cluster.graph.nodes(data="kind"))
    assert (kinds["nic"], kinds["leaf"]) == (16, 8)
    assert attributes(cluster, "node0/nic3", "leaf3")["capacity_bytes_per_s"] == pytest.approx(50 * GB)


def test_few_nics_are_shared_by_neighbours() -> None:
    graph = small(inter_node="2x400 Gbit/s").graph
    assert [next(v for v in graph.successors(f"node1/gpu{i}") if "nic" in v) for i in range(4)] == [
        "node1/nic0", "node1/nic0", "node1/nic1", "node1/nic1",
    ]  # fmt: skip


def test_links_carry_the_rates_and_latencies_of_the_file() -> None:
    cluster = small(pcie="31.5 GB/s", latency={"nvlink": "1 us", "pcie": "2 us", "nic": "3 us", "switch": "4 us"})
    expected = {
        ("node0/gpu1", "node0/nvswitch"): (450 * GB, 1 / US_PER_S),
        ("node0/gpu1", "node0/nic1"): (31.5 * GB, 2 / US_PER_S),
        ("node0/nic1", "leaf1"): (50 * GB, 3 / US_PER_S),
        ("leaf1", "spine"): (100 * GB, 4 / US_PER_S),
    }
    for (a, b), (rate, latency) in expected.items():
        for ends in ((a, b), (b, a)):
            link = attributes(cluster, *ends)
            assert link["capacity_bytes_per_s"] == pytest.approx(rate)
            assert link["latency_s"] == pytest.approx(latency)


def test_several_nodes_need_a_fabric() -> None:
    with pytest.raises(sim.UserError, match="inter_node"):
        small(inter_node=None)


def test_clusters_are_frozen() -> None:
    with pytest.raises(AttributeError):
        small().nodes = 5  # type: ignore[misc]


def test_a_shape_may_have_a_wiring_and_routes_of_its_own() -> None:
    leaf = small("leaf-spine")
    own = replace(leaf, shape=SimpleNamespace(wire=lambda cluster: leaf.wiring, route=lambda cluster, s, t: leaf.route(s, t)))
    source, target = np.array([0, 0]), np.array([3, 7])
    assert own.wiring is leaf.wiring
    assert own.route(source, target).tolist() == leaf.route(source, target).tolist()
    assert own.relay(source, target).tolist() == source.tolist()
