"""Clusters as people write them: what goes wrong is said all at once, with what to write instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import simulator as sim
from tests.hardware.shapes import drawn

from ..commandline import trainsim

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
    "a graph in pieces": (
        {"shape": "explicit", **GRAPH, "nodes": 2,
         "links": [{**LINK, "to": "s0"}, {**LINK, "from": "s0", "to": "g2", "one_way": True}]},
        ["no way leads from 'g0' to 'g1'", "no way leads from 'g2' to 'g0'", "no way leads from 'g0' to 'g3'"],
    ),
    "switches with too few ports": (
        {"shape": "fat-tree", "nodes": 100, "radix": 4}, ["radix: no fat tree of 200 NICs has switches of 4 ports", "radix: 10"],
    ),
    "switches with an odd number of ports": ({"shape": "fat-tree", "radix": 17}, ["has switches of 17 ports", "radix: 18"]),
    "groups with too few cables": (
        {"shape": "dragonfly", "dragonfly": {"nics_per_router": 1, "routers_per_group": 2, "global_links": 1}},
        ["dragonfly: 4 groups cannot each be joined to every other: a group has 2 global links", "at most 3 groups"],
    ),
    "sites of too few ports": (
        {"shape": "wan", "nodes": 40, "radix": 4, "dragonfly": {"nics_per_router": 1, "routers_per_group": 1, "global_links": 2},
         "wan": {"sites": ["fat-tree", "dragonfly"], "bandwidth": "1 Gbit/s", "latency": "1 ms"}},
        ["radix: no fat tree of 40 NICs has switches of 4 ports", "dragonfly: 40 groups cannot"],
    ),
    "many nodes each joined to each": (
        {"shape": "fully-connected", "nodes": 2000}, ["nodes: 2000 points cannot all be joined with all", "at most 1024"],
    ),
    "many GPUs each joined to each": (
        {"intra_node": "fully-connected 9 GB/s", "gpus_per_node": 2000}, ["gpus_per_node: 2000 points cannot all be joined"],
    ),
    "a long ring": ({"shape": "ring", "nodes": 5000}, ["nodes: 5000 points in a row are too many", "at most 4096"]),
    "a long torus": ({"shape": "torus", "nodes": 5000, "dims": [5000, 1]}, ["dims: 5000 points in a row are too many"]),
    "nodes without a fabric": ({"shape": "nvswitch"}, ["shape: nvswitch is a single node, and inline has 4", "rail-optimized"]),
    "several things": (
        {"shape": "torus", "dims": [3, 2], "spines": 2, "box": {"sockets": 1}},
        ["dims: [3, 2] is a torus", "spines: a cluster of shape torus has none", "box: a cluster"],
    ),
}  # fmt: skip


SCENARIO = """model: llama3-8b
cluster:
  gpu: h100
  gpus_per_node: 8
  nodes: 100
  intra_node: NVSwitch 450 GB/s
  inter_node: 8x400 Gbit/s
  shape: {shape}
plan: {{tp: 8, pp: 0, schedule: foo}}
"""
SWITCHES = {
    "fat-tree\n  radix: 4": "9:3: cluster.radix: no fat tree of 800 NICs",
    "dragonfly\n  dragonfly: {nics_per_router: 1, routers_per_group: 2}": "9:3: cluster.dragonfly: 400 groups cannot",
    "ring\n  oversubscription: 2": "9:3: cluster.oversubscription: a cluster of shape ring has none",
}


@pytest.mark.parametrize("shape", SWITCHES)
def test_faults_of_a_shape_have_a_place_and_come_with_the_others(shape: str, tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(SCENARIO.format(shape=shape), encoding="utf-8")
    said = trainsim("run", file, "--json")
    assert said.code == 2
    found = [f"{fault['where']}: {fault['message']}" for fault in said.record["faults"]]
    expected = [SWITCHES[shape], "10:15: plan.pp: 0 is too small", "plan.schedule: no schedule 'foo'"]
    assert [words for words in expected if not any(words in line for line in found)] == []


@pytest.mark.parametrize("command", [("topology",), ("collective", "all_reduce", "-b", "1M", "-e", "1M", "--cluster")])
def test_commands_that_take_a_cluster_tell_where_its_shape_is_wrong(command: tuple[str, ...], tmp_path: Path) -> None:
    """Each vertex and link at its own line."""
    file = tmp_path / "mine.yaml"
    gpus = "".join(f"  - {{name: {name}, kind: gpu}}\n" for name in "abc")
    links = "  - {from: a, to: b, capacity: 9 GB/s, latency: 1 us}\n"
    text = f"gpu: h100\ngpus_per_node: 3\nshape: explicit\nvertices:\n{gpus}links:\n{links}"
    file.write_text(text, encoding="utf-8")
    assert f"{file}:7:5: cluster.vertices.2: no way leads from 'a' to 'c'" in trainsim(*command, file).err
    file.write_text(text + links.replace("from: a", "from: x"), encoding="utf-8")
    assert f"{file}:10:6: cluster.links.1.from: no vertex 'x'" in trainsim(*command, file).err


def test_nodes_that_were_asked_for_are_those_that_a_shape_is_judged_by(tmp_path: Path) -> None:
    """Too many of them are refused at the shape's place; a file that has too many itself is built with fewer."""
    file = tmp_path / "mine.yaml"
    told = "gpu: h100\ngpus_per_node: 8\nnodes: {nodes}\nintra_node: NVSwitch 450 GB/s\ninter_node: 8x400 Gbit/s\n"
    told += "shape: fat-tree\nradix: 8\n"
    asked = ("collective", "all_reduce", "-b", 8, "-e", 8, "--cluster", file)
    fault = f"{file}:7:1: cluster.radix: no fat tree of 1600 NICs has switches of 8 ports"
    file.write_text(told.format(nodes=4), encoding="utf-8")
    for command in (("topology", file, "--nodes", 200), (*asked, "--nodes", 200), (*asked, "--gpus", 1600)):
        assert fault in trainsim(*command).err, command
    file.write_text(told.format(nodes=200), encoding="utf-8")
    assert fault in trainsim(*asked).err
    assert trainsim(*asked, "--nodes", 4).code == 0


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
        cluster.link_named("laef0")
    assert "write a link source>target, such as leaf0>node0/nic0" in caught.value.hint
    with pytest.raises(sim.UserError) as caught:
        cluster.link_named("qqqq")
    assert "write a link source>target, such as node0/gpu0>" in caught.value.hint


def test_a_vertex_is_no_link_but_has_some() -> None:
    """An inline cluster has no name that a command could take."""
    with pytest.raises(sim.UserError) as caught:
        sim.cluster({**BASE, "shape": "leaf-spine", "nodes_per_pod": 2}).link_named("leaf0")
    assert "did you mean 'leaf0'" not in caught.value.hint
    assert "leaf0 is a vertex; write a link source>target, such as leaf0>" in caught.value.hint
    assert "trainsim topology" not in caught.value.hint
    with pytest.raises(sim.UserError) as caught:
        sim.cluster("dgx-h100", nodes=2).link_named("leaf0")
    assert "`trainsim topology NAME|FILE --json` lists all" in caught.value.hint
