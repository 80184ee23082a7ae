"""What `trainsim topology` says of a cluster, and the pictures that it draws."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

import simulator as sim
from simulator.config import catalog
from simulator.figures.topology_plot import topology_plot
from simulator.hardware.cluster import Cluster
from simulator.hardware.measure import bisection, diameter, link_classes, route_classes, switches
from simulator.study.cluster_facts import topology
from simulator.units import GB
from tests.commandline import trainsim
from tests.hardware.shapes import INSIDES, PROPORTIONS, SHAPES, SMALL_ROUTERS, build, nodes_of
from tests.small_scenarios import scenario, small_cluster


def test_ways_of_a_dgx() -> None:
    found = route_classes(sim.cluster("dgx-h100", nodes=4, nodes_per_pod=2))
    assert [(way.gpus, way.hops, way.inside) for way in found] == [
        (7, (2, 2), True), (1, (4, 4), False), (7, (6, 6), False), (2, (6, 6), False), (14, (8, 8), False),
    ]  # fmt: skip
    assert sum(way.gpus for way in found) == 31
    assert found[0].bytes_per_s == (450 * GB, 450 * GB)
    assert found[1].classes == ("pcie up", "nic up", "nic down", "pcie down")
    assert found[1].latency_s[0] == pytest.approx(1.8e-6)


def test_ways_over_like_links_are_told_apart_by_whether_they_leave_the_node() -> None:
    """In a graph that a file lists, links inside nodes and between nodes may be of one kind."""
    cluster = sim.cluster("docs/clusters/triangle.yaml")
    assert [(way.gpus, way.inside, way.bytes_per_s) for way in route_classes(cluster)] == [
        (1, True, (450 * GB, 450 * GB)), (4, False, (50 * GB, 50 * GB)),
    ]  # fmt: skip


def test_a_shape_of_ones_own_keeps_its_name() -> None:
    said = trainsim("run", "docs/clusters/one_switch.yaml", "--trust", "--json").record
    assert said["gpus"] == 128
    shown = trainsim("compare", "docs/clusters/llama3-8b.yaml", "docs/clusters/one_switch.yaml", "--trust", "--json").record
    assert "docs/clusters/one_switch.py:OneSwitch" in shown["scenario"]["cluster.shape"].values()


@pytest.mark.parametrize("shape", SHAPES)
def test_ways_reach_every_gpu_and_the_diameter_is_the_longest_shortest_way(shape: str) -> None:
    many = "many small nodes" if shape in ("rail-optimized", "fat-tree", "torus") else "one node"
    cluster = build(shape, PROPORTIONS[many])
    assert sum(way.gpus for way in route_classes(cluster)) == cluster.gpus - 1
    name = cluster.wiring.vertex_name
    shortest = dict(nx.all_pairs_shortest_path_length(cluster.graph))
    longest = max(shortest[name(a)][name(b)] for a in range(cluster.gpus) for b in range(cluster.gpus))
    assert diameter(cluster).hops == longest


def test_the_diameter_is_told_with_the_length_of_routes_and_the_sample() -> None:
    """GPUs reach the NICs of their nodes over NVLink, so that routes are longer than the shortest path."""
    shown = dict(topology(sim.cluster("dgx-h100", nodes=4, nodes_per_pod=2), listed=False).summary)
    said = "6 links by shortest paths, sampled from 16 of 32 GPUs; the routes of traffic have up to 8"
    assert shown["diameter"] == said
    one = dict(topology(sim.cluster("dgx-h100", nodes=1), listed=False).summary)
    assert one["diameter"] == "2 links by shortest paths"


def test_classes_of_links_say_what_they_join_in_the_words_of_the_network() -> None:
    run = scenario(cluster=small_cluster(2)).simulate()
    joined = [end for one in link_classes(run.scenario.cluster.wiring) for end in one.ends]
    assert sorted(joined) == sorted(row["kind"] for row in run.network.classes)
    lines = trainsim("topology", "dgx-h100", "--nodes", 2).out.splitlines()
    assert any(line.startswith("nvlink up") and "gpu > nvswitch" in line for line in lines)


def test_a_single_gpu_has_no_bisection() -> None:
    cluster = sim.cluster("dgx-h100", nodes=1, gpus_per_node=1)
    assert bisection(cluster).bytes_per_s is None
    assert route_classes(cluster) == []
    assert diameter(cluster).hops == 0
    assert "no other GPU" in trainsim("topology", "dgx-h100", "--nodes", 1).out


@pytest.mark.parametrize("dims", [[4, 8], [8, 4], [2, 4, 4], [4, 2, 4], [4, 4, 2], [3, 4], [4, 3]], ids=str)
@pytest.mark.parametrize("inside", [True, False], ids=["GPUs", "nodes"])
def test_the_bisection_of_a_torus_does_not_depend_on_the_order_of_its_sides(dims: list[int], inside: bool) -> None:
    """Cut across its longest even side k, a torus of n points has 2n/k links each way on the cut."""
    points = int(np.prod(dims))
    each = 120 * GB / (2 * len(dims))
    cluster = {
        "gpu": "h100",
        "gpus_per_node": points,
        "nodes": 1,
        "intra_node": "torus 120 GB/s",
        "shape": "torus",
        "node_dims": dims,
    }
    if not inside:
        cluster = {
            "gpu": "h100", "gpus_per_node": 1, "nodes": points, "intra_node": "NVSwitch 450 GB/s",
            "inter_node": "960 Gbit/s", "shape": "torus", "dims": dims,
        }  # fmt: skip
    longest = max(side for side in dims if side % 2 == 0)
    assert bisection(sim.cluster(cluster)).bytes_per_s == pytest.approx(2 * points / longest * each)


COUNTED: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "a fat tree of four ports": ({"shape": "fat-tree", "radix": 4, "nodes": 16}, {"edge": 8, "aggregation": 8, "core": 4}),
    "a fat tree of eight ports": ({"shape": "fat-tree", "radix": 8, "nodes": 128}, {"edge": 32, "aggregation": 32, "core": 16}),
    "a dragonfly": (
        {"shape": "dragonfly", "nodes": 72, "dragonfly": {"nics_per_router": 2, "routers_per_group": 4, "global_links": 2}},
        {"router": 36},
    ),
    "leaves and spines": ({"shape": "leaf-spine", "nodes": 32, "nodes_per_pod": 8}, {"leaf": 4, "spine": 8}),
    "as many spines as told": (
        {"shape": "leaf-spine", "nodes": 32, "nodes_per_pod": 8, "spines": 2, "routing": "ecmp"},
        {"leaf": 4, "spine": 2},
    ),
    "a torus": ({"shape": "torus", "nodes": 12, "dims": [4, 3]}, {"router": 12}),
}


@pytest.mark.parametrize("what", COUNTED)
def test_switches_are_counted_as_textbooks_count_them(what: str) -> None:
    """However traffic is routed; where it is sprayed the graph has fewer vertices."""
    written, expected = COUNTED[what]
    box = {"gpu": "h100", "gpus_per_node": 1, "intra_node": "NVSwitch 450 GB/s", "inter_node": "400 Gbit/s"}
    for routing in [{}] if {"routing", "dims"} & set(written) else [{}, {"routing": "ecmp"}]:
        assert switches(sim.cluster({**box, **written, **routing})) == expected


def test_the_command_tells_switches_from_the_vertices_of_the_graph(tmp_path: Path) -> None:
    file = tmp_path / "tree.yaml"
    file.write_text(
        "gpu: h100\ngpus_per_node: 1\nnodes: 16\nintra_node: NVSwitch 450 GB/s\n"
        "inter_node: 400 Gbit/s\nshape: fat-tree\nradix: 4\n"
    )
    record = trainsim("topology", file, "--json").record
    assert record["switches"] == {"edge": 8, "aggregation": 8, "core": 4}
    assert (record["vertices"]["agg"], record["vertices"]["core"]) == (4, 1)
    assert "8 edge, 8 aggregation, 4 core" in trainsim("topology", file).out
    assert "count as one" in trainsim("topology", file).out
    assert "count as one" not in trainsim("topology", "dgx-h100", "--nodes", 2).out


def test_classes_of_links_are_counted_by_rate() -> None:
    found = {(of.name, of.count, of.bytes_per_s) for of in link_classes(sim.cluster("dgx-h100", nodes=33).wiring)}
    assert ("leaf-spine up", 16, 1600 * GB) in found
    assert ("nic down", 264, 50 * GB) in found


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", catalog.files("clusters"))
def test_the_command_shows_every_cluster(name: str) -> None:
    record = trainsim("topology", name, "--json").record
    classes = {of["name"] for of in record["link_classes"]}
    assert {link["class"] for link in record["links"]} == classes
    assert sum(of["count"] for of in record["link_classes"]) == len(record["links"])
    assert record["bisection_bytes_per_s"] > 0
    assert record["diameter_links"] >= 2 or record["nodes"] == 1
    assert sum(way["gpus"] for way in record["ways"]) == record["gpus"] - 1
    text = trainsim("topology", name).out
    assert "bisection" in text
    assert "each way" in text


@pytest.mark.slow
def test_a_hundred_thousand_gpus_are_shown_too() -> None:
    assert "2.5 PB/s" in trainsim("topology", "dgx-h100", "--nodes", 12_500).out.replace("2500 TB/s", "2.5 PB/s")


PICTURES: dict[str, Any] = {
    **{
        shape: (build, shape, PROPORTIONS["many small nodes"])
        for shape in SHAPES
        if shape not in ("nvswitch", "cube-mesh", "pcie")
    },
    **{f"nodes, each {kind}": (nodes_of, kind, 2) for kind in INSIDES},
    "a node": (sim.cluster, "dgx-h100"),
    "a rack": (sim.cluster, "gb200-nvl72"),
    "large": (lambda name: sim.cluster(name, nodes=64), "dgx-h100"),
}


def pixels(figure: Any) -> bytes:
    data = BytesIO()
    figure.savefig(data, format="png", metadata={"Software": None})
    return data.getvalue()


@pytest.mark.parametrize(
    "what", [what if what in ("a node", "ring") else pytest.param(what, marks=pytest.mark.slow) for what in PICTURES]
)
def test_pictures(what: str) -> None:
    """Every vertex stands in a place of its own, and the same cluster is the same picture."""
    make, *args = PICTURES[what]
    cluster: Cluster = make(*args)
    first, again = topology_plot(cluster), topology_plot(cluster)
    assert (first.get_suptitle() or first.axes[0].get_title(loc="left")).startswith(cluster.name)
    assert pixels(first) == pixels(again)
    width, height = first.get_size_inches()
    assert 2 <= width <= 17
    assert 1 <= height <= 13


def test_vertices_do_not_stand_on_each_other() -> None:
    from simulator.figures.vertex_positions import positions

    for shape in ("rail-optimized", "fat-tree", "dragonfly", "torus", "wan", "explicit", "ring"):
        centre = positions(build(shape, PROPORTIONS["many small nodes"])).centre
        apart = np.abs(centre[:, None] - centre[None]).max(axis=2) + 9 * np.eye(len(centre))
        assert apart.min() > 0.3


@pytest.mark.slow
def test_a_heat_map_takes_numbers_or_names() -> None:
    cluster = sim.cluster("dgx-h100", nodes=2)
    by_number = topology_plot(cluster, {0: 0.5, 40: 1.0})
    by_name = topology_plot(cluster, {cluster.wiring.link_name(0): 0.5, cluster.wiring.link_name(40): 1.0})
    drawn = pixels(by_number)
    assert drawn == pixels(by_name) != pixels(topology_plot(cluster))
    load = np.full(cluster.wiring.links, np.nan)
    load[[0, 40]] = 0.5, 1.0
    assert pixels(topology_plot(cluster, load)) == drawn
    assert by_number.axes[1].get_xlabel() == "utilisation of a link (%), at most 100%"
    assert pixels(topology_plot(sim.cluster("dgx-h100", nodes=64), {0: 0.5})) != pixels(
        topology_plot(sim.cluster("dgx-h100", nodes=64))
    )


@pytest.mark.parametrize("shape", ["torus", "dragonfly"])
def test_links_between_switches_of_one_kind_are_coloured_in_large_pictures_too(shape: str) -> None:
    """Arches over their bar, as hot as what they stand for: half of the nodes talk, the other half does not."""
    proportions = {"nodes": 64, "gpus_per_node": 1, "inter_node": "400 Gbit/s"}
    cluster = build(shape, proportions, **({"dragonfly": SMALL_ROUTERS} if shape == "dragonfly" else {}))
    first = [run for run in cluster.wiring.vertices if run.kind in ("router", "hub")][-1]
    own = (cluster.wiring.source >= first.first) & (cluster.wiring.target >= first.first)
    assert own.any()
    load = np.where(own & (cluster.wiring.source < first.first + first.count // 2), 1.0, 0.0)
    arches = [line for line in topology_plot(cluster, load).axes[0].lines if len(line.get_xdata()) == 17]
    colours = [line.get_color() for line in arches]
    assert len(colours) == 24
    assert len(set(colours[:10])) == len(set(colours[-10:])) == 1
    assert colours[0] != colours[-1]
    assert len({line.get_color() for line in topology_plot(cluster).axes[0].lines if len(line.get_xdata()) == 17}) == 1


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_the_command_writes_a_picture(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"dgx.{suffix}"
    said = trainsim("topology", "dgx-h100", "--nodes", 2, "--plot", file)
    assert file.stat().st_size > 1000
    assert ["picture", str(file)] in [line.split() for line in said.out.splitlines()]
