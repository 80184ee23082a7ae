"""Each family of shapes by what is known of it: ways drawn on a whiteboard, rates of links, bisections from textbooks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import simulator as sim
from simulator.hardware.cluster import Cluster
from simulator.hardware.measure import bisection
from simulator.units import GB, MS_PER_S, US_PER_S
from tests.hardware.paths import attributes, pairs_of, route_names, routes
from tests.hardware.shapes import SMALL_ROUTERS, drawn
from tests.small_scenarios import time_collective

NIC = 50 * GB


def of(shape: str, nodes: int, gpus: int = 2, **more: Any) -> Cluster:
    """Nodes of GPUs with a NIC of 50 GB/s each."""
    written = {"gpu": "h100", "gpus_per_node": gpus, "nodes": nodes, "intra_node": "NVSwitch 450 GB/s", "shape": shape}
    cluster: Cluster = sim.cluster({**written, "inter_node": f"{gpus}x400 Gbit/s", **more})
    return cluster


def node_of(intra_node: str, gpus: int = 8, nodes: int = 1, **more: Any) -> Cluster:
    written = {"gpu": "v100-32gb", "gpus_per_node": gpus, "nodes": nodes, "intra_node": intra_node, **more}
    cluster: Cluster = sim.cluster(written)
    return cluster


def fabric_of(cluster: Cluster, a: int, b: int) -> list[str]:
    """The switches between two GPUs."""
    return [name for name in route_names(cluster, a, b) if "/gpu" not in name and "/nic" not in name and "/nvswitch" not in name]


class TestCubeMesh:
    def test_has_the_links_of_a_dgx1(self) -> None:
        """As `nvidia-smi topo -m` prints them: NVLinks from each GPU to each."""
        cluster = node_of("cube-mesh 6x25 GB/s")
        found = np.zeros((8, 8), dtype=int)
        for a, b, rate in cluster.graph.edges(data="capacity_bytes_per_s"):
            found[int(a[-1]), int(b[-1])] = round(rate / (25 * GB))
        assert found.tolist() == [
            [0, 1, 1, 2, 2, 0, 0, 0], [1, 0, 2, 1, 0, 2, 0, 0], [1, 2, 0, 2, 0, 0, 1, 0], [2, 1, 2, 0, 0, 0, 0, 1],
            [2, 0, 0, 0, 0, 1, 1, 2], [0, 2, 0, 0, 1, 0, 2, 1], [0, 0, 1, 0, 1, 2, 0, 2], [0, 0, 0, 1, 2, 1, 2, 0],
        ]  # fmt: skip
        assert found.sum(axis=0).tolist() == [6] * 8

    def test_p100_has_one_link_to_each_neighbour(self) -> None:
        rates = {rate for *_, rate in node_of("cube-mesh 4x20 GB/s").graph.edges(data="capacity_bytes_per_s")}
        assert rates == {20 * GB}

    def test_strangers_talk_through_the_twin_in_the_own_quad(self) -> None:
        assert [len(way) for way in routes(node_of("cube-mesh 150 GB/s"), [(0, 3), (0, 4), (0, 5), (5, 0)])] == [1, 1, 2, 2]
        assert route_names(node_of("cube-mesh 150 GB/s"), 0, 5) == ["node0/gpu0", "node0/gpu1", "node0/gpu5"]

    def test_half_a_server_is_a_quad(self) -> None:
        assert node_of("cube-mesh 6x25 GB/s", gpus=4).wiring.links == 12


class TestBox:
    def test_ways_through_switches_and_sockets(self) -> None:
        cluster = node_of("PCIe 31.5 GB/s", box={"gpus_per_switch": 2})
        assert route_names(cluster, 0, 1) == ["node0/gpu0", "node0/pcie0", "node0/gpu1"]
        assert route_names(cluster, 0, 2) == ["node0/gpu0", "node0/pcie0", "node0/cpu0", "node0/pcie1", "node0/gpu2"]
        assert route_names(cluster, 0, 7) == [
            "node0/gpu0", "node0/pcie0", "node0/cpu0", "node0/cpu1", "node0/pcie3", "node0/gpu7",
        ]  # fmt: skip

    def test_a_bridge_joins_a_pair(self) -> None:
        cluster = node_of("PCIe 31.5 GB/s", gpus=5, box={"bridge": "56 GB/s", "socket": "20 GB/s"})
        assert route_names(cluster, 2, 3) == ["node0/gpu2", "node0/gpu3"]
        assert route_names(cluster, 4, 3) == ["node0/gpu4", "node0/cpu1", "node0/gpu3"]
        assert attributes(cluster, "node0/gpu2", "node0/gpu3")["capacity_bytes_per_s"] == 56 * GB
        assert attributes(cluster, "node0/cpu0", "node0/cpu1")["capacity_bytes_per_s"] == 20 * GB

    def test_a_nic_sits_beside_the_first_of_its_gpus(self) -> None:
        cluster = node_of("PCIe 31.5 GB/s", nodes=2, box={"gpus_per_switch": 4}, shape="leaf-spine", inter_node="1x200 Gbit/s")
        assert route_names(cluster, 0, 9)[:3] == ["node0/gpu0", "node0/pcie0", "node0/nic0"]
        assert route_names(cluster, 7, 9)[:6] == [
            "node0/gpu7", "node0/pcie1", "node0/cpu1", "node0/cpu0", "node0/pcie0", "node0/nic0",
        ]  # fmt: skip


class TestDirect:
    def test_a_gpu_divides_its_rate_among_its_links(self) -> None:
        for kind, each in (("fully-connected 12x25 GB/s", 100), ("ring 300 GB/s", 150), ("torus 300 GB/s", 150)):
            cluster = node_of(kind, gpus=4)
            rates = [rate for *_, rate in cluster.graph.edges(data="capacity_bytes_per_s")]
            assert rates == [pytest.approx(each * GB)] * len(rates)

    def test_the_shorter_way_round(self) -> None:
        ring = of("ring", 6)
        assert fabric_of(ring, 0, 4) == ["node0/router", "node1/router", "node2/router"]
        assert fabric_of(ring, 0, 8) == ["node0/router", "node5/router", "node4/router"]
        assert fabric_of(ring, 0, 6) == ["node0/router", "node1/router", "node2/router", "node3/router"]

    def test_dimension_by_dimension(self) -> None:
        torus = of("torus", 24, dims=[4, 3, 2])
        far = 1 + 4 * 2 + 12
        assert fabric_of(torus, 0, 2 * far) == ["node0/router", "node1/router", "node9/router", "node21/router"]
        link = attributes(torus, "node0/router", "node12/router")
        assert link["capacity_bytes_per_s"] == pytest.approx(
            2 * attributes(torus, "node0/router", "node1/router")["capacity_bytes_per_s"]
        )

    def test_sides_as_equal_as_can_be(self) -> None:
        assert of("torus", 12).graph.has_edge("node0/router", "node4/router")
        assert of("torus", 7).graph.has_edge("node0/router", "node6/router")

    @pytest.mark.parametrize("nodes, shape, more, expected", [
        (8, "ring", {}, 2 * NIC),
        (16, "torus", {"dims": [4, 4]}, 2 * 4 * 2 * NIC / 4),
        (64, "torus", {"dims": [4, 4, 4]}, 2 * 16 * 2 * NIC / 6),
        (8, "fully-connected", {}, 16 * 2 * NIC / 7),
    ])  # fmt: skip
    def test_bisection(self, nodes: int, shape: str, more: dict[str, Any], expected: float) -> None:
        """Links across the middle: two of a ring, two per row of a torus, n^2 / 4 of a full mesh."""
        assert bisection(of(shape, nodes, **more)).bytes_per_s == pytest.approx(expected)


class TestFatTree:
    def test_is_al_fares_tree(self) -> None:
        """k = 4: sixteen NICs, eight edge and eight aggregation switches, four cores."""
        cluster = of("fat-tree", 16, gpus=1, routing="ecmp")
        counts = {run.kind: run.count for run in cluster.wiring.vertices}
        assert (counts["nic"], counts["edge"], counts["agg"], counts["core"]) == (16, 8, 8, 4)
        for kind, ports in (("edge", 4), ("agg", 4), ("core", 4)):
            assert {cluster.graph.out_degree(v) for v, k in cluster.graph.nodes(data="kind") if k == kind} == {ports}

    def test_ways_climb_only_as_high_as_they_must(self) -> None:
        cluster = of("fat-tree", 16, gpus=1)
        assert fabric_of(cluster, 0, 1) == ["edge0"]
        assert fabric_of(cluster, 0, 2) == ["edge0", "pod0/agg", "edge1"]
        assert fabric_of(cluster, 0, 4) == ["edge0", "pod0/agg", "core", "pod1/agg", "edge2"]

    @pytest.mark.parametrize("routing", ["spray", "ecmp"])
    @pytest.mark.parametrize("oversubscription", [1, 2])
    def test_bisection(self, routing: str, oversubscription: int) -> None:
        cluster = of("fat-tree", 16, gpus=1, routing=routing, oversubscription=oversubscription)
        assert bisection(cluster).bytes_per_s == pytest.approx(8 * NIC / oversubscription)

    def test_too_small_a_radix_is_answered_with_the_smallest(self) -> None:
        with pytest.raises(sim.UserError, match="no fat tree of 18 NICs has switches of 4 ports") as caught:
            _ = of("fat-tree", 18, gpus=1, radix=4).wiring
        assert caught.value.hint == "radix: 6"


class TestDragonfly:
    @pytest.mark.parametrize("routing", ["spray", "ecmp"])
    def test_one_link_between_groups(self, routing: str) -> None:
        cluster = of("dragonfly", 18, dragonfly=SMALL_ROUTERS, routing=routing)
        for links in routes(cluster, pairs_of(cluster)):
            classes = [cluster.graph.edges[tuple(cluster.wiring.link_name(link).split(">"))]["link_class"] for link in links]
            assert classes.count("global") <= 1
            assert sum("group" in name for name in classes) <= 2

    @pytest.mark.parametrize("routing", ["spray", "ecmp"])
    def test_groups_share_their_global_links_evenly(self, routing: str) -> None:
        """Eight cables of a group to two others: four to each."""
        cluster = of("dragonfly", 12, dragonfly=SMALL_ROUTERS, routing=routing)
        between: dict[tuple[str, str], float] = {}
        for a, b, link in cluster.graph.edges(data=True):
            if link["link_class"] == "global":
                pair = (a.split("/")[0], b.split("/")[0])
                between[pair] = between.get(pair, 0) + link["capacity_bytes_per_s"]
        assert len(between) == 6
        assert set(between.values()) == {4 * NIC}

    def test_global_ports_lead_nowhere_within_a_group(self) -> None:
        """Two routers of eight NICs share one cable of 50 GB/s, whatever their ports to groups that are not there."""
        ports = {"nics_per_router": 8, "routers_per_group": 2, "global_links": 17}
        spray, ecmp = (of("dragonfly", 2, gpus=8, dragonfly=ports, routing=routing) for routing in ("spray", "ecmp"))
        assert bisection(spray).bytes_per_s == bisection(ecmp).bytes_per_s == NIC
        for nodes in (2, 4, 8):
            sprayed, hashed = (
                time_collective("alltoall", replace(cluster, nodes=nodes), [10**8], algorithm="direct")[0].time_s
                for cluster in (spray, ecmp)
            )
            assert sprayed == pytest.approx(hashed, rel=0.1)

    def test_sprayed_traffic_of_a_group_of_one_router_takes_its_global_ports(self) -> None:
        ports = {"nics_per_router": 2, "routers_per_group": 1, "global_links": 6}
        cluster = of("dragonfly", 3, dragonfly=ports, routing="spray")
        assert attributes(cluster, "group0/router0", "group0/hub")["capacity_bytes_per_s"] == 6 * NIC

    def test_more_groups_than_cables_are_refused(self) -> None:
        ports = {"nics_per_router": 1, "routers_per_group": 2, "global_links": 1}
        with pytest.raises(sim.UserError, match="4 groups cannot each be joined") as caught:
            _ = of("dragonfly", 8, gpus=1, dragonfly=ports).wiring
        assert "at most 3 groups" in caught.value.hint


class TestHashed:
    def test_a_spine_for_every_uplink(self) -> None:
        cluster = of("leaf-spine", 8, nodes_per_pod=4, routing="ecmp", oversubscription=2)
        assert sum(kind == "spine" for _, kind in cluster.graph.nodes(data="kind")) == 4
        assert attributes(cluster, "leaf0", "spine3")["capacity_bytes_per_s"] == pytest.approx(NIC)
        assert of("leaf-spine", 8, nodes_per_pod=4, routing="ecmp", spines=2).wiring.links < cluster.wiring.links

    def test_flows_spread_over_the_spines(self) -> None:
        cluster = of("leaf-spine", 64, nodes_per_pod=32, gpus=1, routing="ecmp", spines=8)
        n = np.arange(32)
        route = cluster.route(np.repeat(n, 32), np.tile(32 + n, 32))
        used, count = np.unique(cluster.wiring.target[route[:, 4]], return_counts=True)
        assert len(used) == 8
        assert 0.8 * 128 < count.min() <= count.max() < 1.2 * 128


class TestWan:
    def test_ways_lead_over_the_gateways(self) -> None:
        wan = {"sites": ["rail-optimized", "fat-tree"], "bandwidth": "100 Gbit/s", "latency": "20 ms"}
        cluster = of("wan", 4, wan=wan)
        assert fabric_of(cluster, 0, 7) == ["site0/leaf0", "site0/gateway", "site1/gateway", "site1/edge1"]
        assert fabric_of(cluster, 0, 3) == ["site0/leaf1"]
        link = attributes(cluster, "site0/gateway", "site1/gateway")
        assert (link["capacity_bytes_per_s"], link["latency_s"]) == (12.5 * GB, 20 / MS_PER_S)
        assert bisection(cluster).bytes_per_s == 12.5 * GB

    def test_every_pair_of_sites_has_a_link(self) -> None:
        cluster = of("wan", 7, wan={"sites": 3, "bandwidth": "1 Gbit/s", "latency": "1 ms"})
        assert sum(name == "wan" for *_, name in cluster.graph.edges(data="link_class")) == 6


class TestExplicit:
    def explicit(self, **more: Any) -> Cluster:
        written = {"gpu": "h100", "gpus_per_node": 4, "shape": "explicit", **drawn(4), **more}
        cluster: Cluster = sim.cluster(written)
        return cluster

    def test_the_shortest_way_by_latency(self) -> None:
        slow = {"from": "g0", "to": "g1", "capacity": "1 GB/s", "latency": "3 us"}
        assert route_names(self.explicit(links=[*drawn(4)["links"], slow]), 0, 1) == ["g0", "s0", "g1"]
        fast = {**slow, "latency": "2 us", "one_way": True}
        cluster = self.explicit(links=[*drawn(4)["links"], fast])
        assert route_names(cluster, 0, 1) == ["g0", "g1"]
        assert route_names(cluster, 1, 0) == ["g1", "s0", "g0"]
        assert attributes(cluster, "g0", "g1")["latency_s"] == 2 / US_PER_S

    @pytest.mark.parametrize("nodes", [1, 2])
    @pytest.mark.parametrize("back", ["g2>g0", "g0>g2"])
    def test_the_bisection_is_that_of_the_slower_direction(self, back: str, nodes: int) -> None:
        a, b = back.split(">")
        links = [("g0", "g1", 9, False), ("g2", "g3", 9, False), (a, b, 1, True), (b, a, 40, True)]
        listed = [{"from": a, "to": b, "capacity": f"{r} GB/s", "latency": "1 us", "one_way": o} for a, b, r, o in links]
        vertices = [{"name": f"g{i}", "kind": "gpu"} for i in range(4)]
        cluster = self.explicit(nodes=nodes, gpus_per_node=4 // nodes, vertices=vertices, links=listed)
        assert bisection(cluster).bytes_per_s == GB

    def test_of_ways_as_short_a_hash_chooses(self) -> None:
        cluster = self.explicit(routing="ecmp")
        middles = {route_names(cluster, a, b)[1] for a, b in pairs_of(cluster)}
        assert middles == {"s0", "s1"}

    def test_gpus_are_numbered_as_they_are_listed(self) -> None:
        assert [self.explicit().wiring.vertex_name(i) for i in range(6)] == ["g0", "g1", "g2", "g3", "s0", "s1"]

    def test_who_is_not_joined_is_named(self) -> None:
        links = [link for link in drawn(4)["links"] if link["from"] != "g3"]
        with pytest.raises(sim.UserError, match=r"vertices\.5: no way leads from 'g0' to 'g3'"):
            routes(self.explicit(links=links), [(0, 3)])

    def test_runs_as_any_cluster_does(self) -> None:
        model = sim.model({"layers": 2, "hidden": 64, "heads": 4, "vocab": 100})
        run = sim.simulate(model, self.explicit(), sim.Plan(tp=2, pp=2), sim.Job(sequence_length=32, global_batch=4))
        assert run.metrics.step_time_s > 0
