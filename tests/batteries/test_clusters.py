"""Every file in topologies: it loads at several sizes, its graph is whole, every pair of GPUs is joined, sources are given."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest

import simulator as sim
from simulator.config import catalog
from simulator.config.document import read
from simulator.hardware import measure
from simulator.hardware.cluster import Cluster
from simulator.units import GB
from tests.hardware.paths import assert_leads, pairs_of, routes

FILES = catalog.files("clusters")
SOURCED = {
    "gpus_per_node", "shape", "intra_node", "inter_node", "pcie", "nodes_per_pod", "oversubscription", "latency", "dragonfly",
    "box", "host", "wan",
}  # fmt: skip
"""Fields with facts from the world."""


def data_of(name: str) -> dict[str, Any]:
    return read(FILES[name]).data


def sizes(name: str) -> list[int]:
    """One node, two, a full pod, and one node more than a pod; one alone where there is no fabric."""
    data = data_of(name)
    pod = data.get("nodes_per_pod", 32)
    if "wan" in data:
        return [len(data["wan"]["sites"]), 5]
    return sorted({1, 2, pod, pod + 1}) if "inter_node" in data else [1]


CASES = [pytest.param(name, nodes, id=f"{name} of {nodes}") for name in FILES for nodes in sizes(name)]


def test_there_are_clusters_to_test() -> None:
    assert {"dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200", "gb200-nvl72", "aws-p5", "polaris", "dgx1-v100"} <= set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_loads_as_its_file_says(name: str) -> None:
    cluster, data = sim.cluster(name), data_of(name)
    assert (cluster.name, cluster.nodes, cluster.gpus_per_node) == (name, data["nodes"], data["gpus_per_node"])
    assert cluster.gpus == data["nodes"] * data["gpus_per_node"]
    assert cluster.gpu.name == data["gpu"]


@pytest.mark.parametrize("name", FILES)
def test_every_rate_and_size_has_a_source(name: str) -> None:
    data = data_of(name)
    sourced = SOURCED & set(data)
    assert sourced == set(data["sources"])
    assert all(len(text) > 10 for text in data["sources"].values())


@pytest.mark.parametrize("name", FILES)
def test_rates_fall_from_the_gpu_outwards(name: str) -> None:
    cluster = sim.cluster(name)
    assert 10 * GB <= cluster.nvlink.bytes_per_s <= cluster.gpu.memory_bytes_per_s / 2
    if cluster.nics_per_node:
        assert cluster.rail_bytes_per_s <= cluster.pcie.bytes_per_s <= cluster.nvlink.bytes_per_s


@pytest.mark.parametrize("name, nodes", CASES)
class TestGraph:
    def graph(self, name: str, nodes: int) -> tuple[Cluster, nx.DiGraph[str]]:
        cluster = sim.cluster(name, nodes=nodes)
        return cluster, cluster.graph

    def test_is_frozen(self, name: str, nodes: int) -> None:
        _, graph = self.graph(name, nodes)
        with pytest.raises(nx.NetworkXError):
            graph.add_edge("node0/gpu0", "node0/gpu1")

    def test_is_whole(self, name: str, nodes: int) -> None:
        cluster, graph = self.graph(name, nodes)
        assert nx.is_strongly_connected(graph)
        kinds = [kind for _, kind in graph.nodes(data="kind")]
        assert kinds.count("gpu") == cluster.gpus
        assert kinds.count("nvswitch") == (nodes if cluster.inside_name == "nvswitch" else 0)
        assert kinds.count("nic") == (nodes * cluster.rails if nodes > 1 else 0)
        if cluster.shape_name in ("rail-optimized", "leaf-spine") and nodes > 1:
            assert kinds.count("spine") == (cluster.nodes > cluster.nodes_per_pod)

    def test_half_of_the_nodes_reach_the_other_half_at_their_full_rate(self, name: str, nodes: int) -> None:
        """The files are of fabrics without oversubscription; only sites far apart are joined by less."""
        cluster, _ = self.graph(name, nodes)
        wan = cluster.options.wan
        half = wan.link.bytes_per_s if wan else nodes // 2 * cluster.nics_per_node * cluster.nic.bytes_per_s
        if nodes > 1 and nodes % 2 == 0:
            assert measure.bisection(cluster).bytes_per_s == pytest.approx(half)

    def test_links_have_capacity_and_latency_the_same_both_ways(self, name: str, nodes: int) -> None:
        cluster, graph = self.graph(name, nodes)
        assert graph.number_of_edges() == cluster.wiring.links
        for a, b, link in graph.edges(data=True):
            assert link["capacity_bytes_per_s"] > 0
            assert link["latency_s"] > 0
            back = graph.edges[b, a]
            assert (back["capacity_bytes_per_s"], back["latency_s"]) == (link["capacity_bytes_per_s"], link["latency_s"])

    def test_every_pair_is_routable(self, name: str, nodes: int) -> None:
        cluster, _ = self.graph(name, nodes)
        pairs = pairs_of(cluster)
        for (s, t), links in zip(pairs, routes(cluster, pairs), strict=True):
            assert_leads(cluster, links, s, t)

    def test_links_are_found_by_their_names(self, name: str, nodes: int) -> None:
        cluster, graph = self.graph(name, nodes)
        rng = np.random.default_rng(1)
        for link in rng.integers(0, cluster.wiring.links, 20).tolist():
            assert cluster.link_named(cluster.wiring.link_name(link)) == link
            assert graph.nodes[cluster.wiring.link_name(link).split(">")[0]]["kind"] == cluster.wiring.vertex_kind(
                int(cluster.wiring.source[link])
            )
