"""Clusters as people write them: what goes wrong is said all at once, with what to write instead."""

from __future__ import annotations

from typing import Any

import pytest

import simulator as sim
from tests.hardware.shapes import drawn

BASE: dict[str, Any] = {
    "gpu": "h100",
    "gpus_per_node": 2,
    "nodes": 4,
    "intra_node": "NVSwitch 450 GB/s",
    "inter_node": "2x400 Gbit/s",
}
GRAPH = drawn(4)
LINK = {"from": "g0", "to": "g1", "capacity": "1 GB/s", "latency": "1 us"}

FAULTS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "sides that are another number": ({"shape": "torus", "dims": [2, 3]}, ["dims: [2, 3] is a torus of 6, not of 4", "[2, 2]"]),
    "an option of another shape": (
        {"shape": "rail-optimized", "radix": 8, "dims": [4]},
        ["radix: a cluster of shape rail-optimized has none", "fat-tree has one", "dims: a cluster", "torus has one"],
    ),
    "spines of sprayed traffic": ({"shape": "leaf-spine", "spines": 4}, ["spines: sprayed traffic", "routing: ecmp"]),
    "an unknown routing": ({"routing": "ecpm"}, ["routing: 'ecpm' is none of the choices", "did you mean 'ecmp'?"]),
    "a torus that is oversubscribed": ({"shape": "torus", "oversubscription": 2}, ["oversubscription: a cluster of shape torus"]),
    "no sites": ({"shape": "wan"}, ["wan is missing", "sites: 2"]),
    "sites of a wrong shape": (
        {"shape": "wan", "wan": {"sites": ["pcie"], "bandwidth": "1 Gbit/s", "latency": "1 ms"}},
        ["wan.sites: 'pcie' cannot be the shape of a site", "fat-tree"],
    ),
    "more sites than nodes": (
        {"shape": "wan", "wan": {"sites": 5, "bandwidth": "1 Gbit/s", "latency": "1 ms"}},
        ["5 sites cannot share 4 nodes", "at most 4 sites"],
    ),
    "a wan without a unit": (
        {"shape": "wan", "wan": {"sites": 2, "bandwidth": 100, "latency": "1 ms"}}, ["wan.bandwidth: 100 is a bare number"],
    ),
    "a cube mesh of five": (
        {"intra_node": "cube-mesh 150 GB/s", "gpus_per_node": 5}, ["cube mesh has 8 GPUs, not 5", "gpus_per_node: 8"],
    ),
    "a cube mesh of five links": (
        {"intra_node": "cube-mesh 5x25 GB/s", "gpus_per_node": 8}, ["no 5 NVLinks to a GPU", "cube-mesh 6x25 GB/s"],
    ),
    "an unknown inside": ({"intra_node": "cube-mehs 5x25 GB/s"}, ["starts with no known kind", "did you mean 'cube-mesh'?"]),
    "a box of no GPUs": ({"intra_node": "PCIe 32 GB/s", "box": {"gpus_per_switch": 0}}, ["box.gpus_per_switch: 0 is too small"]),
    "a graph without vertices": ({"shape": "explicit", "intra_node": None}, ["vertices is missing", "links is missing"]),
    "a graph with strangers": (
        {"shape": "explicit", **GRAPH, "nodes": 2,
         "links": [*GRAPH["links"], {**LINK, "to": "g9"}, {**LINK, "from": "ss0", "to": "g0"}]},
        ["links.9.to: no vertex 'g9'", "links.10.from: no vertex 'ss0'", "did you mean 's0'?"],
    ),
    "a graph with twins": (
        {"shape": "explicit", **GRAPH, "nodes": 2, "vertices": [*GRAPH["vertices"], {"name": "s1", "kind": "switch"}],
         "links": [*GRAPH["links"], {**LINK, "from": "s0", "to": "g0"}, {**LINK, "to": "g0"}]},
        ["vertices: 's1' is there more than once", "'s0' and 'g0' are joined already", "'g0' is joined with itself"],
    ),
    "a graph of another size": ({"shape": "explicit", **GRAPH}, ["4 of them are of kind gpu, and there are 4 nodes of 2 GPUs"]),
    "several things": (
        {"shape": "torus", "dims": [3, 2], "spines": 2, "box": {"sockets": 1}},
        ["dims: [3, 2] is a torus", "spines: a cluster of shape torus has none", "box: a cluster"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", FAULTS)
def test_faults_are_named_all_at_once(what: str) -> None:
    written, expected = FAULTS[what]
    with pytest.raises(sim.UserError) as caught:
        sim.cluster({**BASE, **written})
    assert [words for words in expected if words not in str(caught.value)] == []


def test_nvlink_leaves_the_shape_of_a_single_node_open() -> None:
    def inside(**more: Any) -> str:
        return sim.cluster({**BASE, "intra_node": "NVLink 300 GB/s", **more}).inside_name

    assert inside() == "nvswitch"
    assert inside(nodes=1, shape="ring") == "ring"
    assert inside(shape="ring") == "nvswitch"
    assert inside(nodes=1, gpus_per_node=8, shape="Cube_Mesh") == "cube-mesh"


def test_a_node_by_itself_has_the_shape_of_its_inside() -> None:
    assert sim.cluster({**BASE, "nodes": 1, "intra_node": "fully-connected 4x25 GB/s"}).shape_name == "fully-connected"
    assert sim.cluster({**BASE, "nodes": 1}).shape_name == "nvswitch"


def test_a_link_that_is_meant_is_found() -> None:
    cluster = sim.cluster({**BASE, "shape": "leaf-spine", "nodes_per_pod": 2})
    for wrong, right in (
        ("node0/nic1>leaf1", "node0/nic1>leaf0"), ("node0/nick1>leaf0", "node0/nic1>leaf0"), ("leaf0>spin", "leaf0>spine"),
        ("lief1>node3/nic0", "leaf1>node3/nic0"),
    ):  # fmt: skip
        with pytest.raises(sim.UserError) as caught:
            cluster.link_named(wrong)
        assert f"did you mean {right!r}?" in caught.value.hint
    with pytest.raises(sim.UserError) as caught:
        cluster.link_named("leaf0")
    assert "source>target" in caught.value.hint
