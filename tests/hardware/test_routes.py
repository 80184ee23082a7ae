"""Routes, hop by hop, as one would draw them on a whiteboard."""

from __future__ import annotations

import numpy as np

import simulator as sim
from tests.hardware.paths import assert_leads, pairs_of, route_names, routes
from tests.hardware.test_cluster import small


def test_within_a_node_over_the_nvswitch() -> None:
    assert route_names(small(), 1, 3) == ["node0/gpu1", "node0/nvswitch", "node0/gpu3"]


def test_along_a_rail_over_one_leaf() -> None:
    assert route_names(small(), 1, 5) == ["node0/gpu1", "node0/nic1", "leaf1", "node1/nic1", "node1/gpu1"]


def test_along_a_rail_between_pods_over_the_spine() -> None:
    assert route_names(small(), 1, 9) == [
        "node0/gpu1", "node0/nic1", "leaf1", "spine", "leaf5", "node2/nic1", "node2/gpu1",
    ]  # fmt: skip


def test_to_another_rail_by_way_of_the_neighbour_on_it() -> None:
    """PXN: over NVLink to the GPU on the target's rail, and from there along the rail."""
    assert route_names(small(), 0, 7) == [
        "node0/gpu0", "node0/nvswitch", "node0/gpu3", "node0/nic3", "leaf3", "node1/nic3", "node1/gpu3",
    ]  # fmt: skip
    assert route_names(small(), 0, 11) == [
        "node0/gpu0", "node0/nvswitch", "node0/gpu3", "node0/nic3", "leaf3", "spine", "leaf7", "node2/nic3", "node2/gpu3",
    ]  # fmt: skip


def test_gpus_that_share_a_nic_are_on_one_rail() -> None:
    assert route_names(small(inter_node="2x400 Gbit/s"), 0, 5) == [
        "node0/gpu0", "node0/nic0", "leaf0", "node1/nic0", "node1/gpu1",
    ]  # fmt: skip


def test_leaf_spine_never_relays() -> None:
    assert route_names(small("leaf-spine"), 0, 7) == ["node0/gpu0", "node0/nic0", "leaf0", "node1/nic3", "node1/gpu3"]
    assert route_names(small("leaf-spine"), 0, 11) == [
        "node0/gpu0", "node0/nic0", "leaf0", "spine", "leaf1", "node2/nic3", "node2/gpu3",
    ]  # fmt: skip


def test_rails_change_nowhere_in_the_fabric() -> None:
    """Whatever the pair, the two NICs on the way have the same index, and so have the leaves."""
    cluster = small(nodes=6)
    for links in routes(cluster, pairs_of(cluster)):
        names = [cluster.wiring.link_name(link) for link in links]
        out = [int(n.split("/nic")[1].split(">")[0]) for n in names if n.split(">")[1].startswith("leaf") and "/nic" in n]
        back = [int(n.split("/nic")[1]) for n in names if n.startswith("leaf") and "/nic" in n]
        assert out == back


def test_the_other_way_is_as_long() -> None:
    cluster = small(nodes=6)
    pairs = pairs_of(cluster)
    there, back = routes(cluster, pairs), routes(cluster, [(t, s) for s, t in pairs])
    assert [len(links) for links in there] == [len(links) for links in back]


def test_many_pairs_at_once_are_the_pairs_one_by_one() -> None:
    cluster = small()
    pairs = pairs_of(cluster)
    assert routes(cluster, pairs) == [routes(cluster, [pair])[0] for pair in pairs]


def test_no_pairs_have_no_routes() -> None:
    none = np.zeros(0, dtype=np.int64)
    assert len(small().route(none, none)) == 0


def test_a_large_cluster_routes_without_its_graph() -> None:
    """100,000 GPUs: the wiring alone, no search."""
    cluster = sim.cluster("dgx-h100", nodes=12_500)
    pairs = pairs_of(cluster, most=10_000)
    for (s, t), links in zip(pairs, routes(cluster, pairs), strict=True):
        assert_leads(cluster, links, s, t)
    assert "graph" not in vars(cluster)
