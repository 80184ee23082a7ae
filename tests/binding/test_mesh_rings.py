"""Rings follow the links of a mesh and use them all; behind a switch everything is as it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulator as sim
from simulator.binding.mesh_rings import MOST_RINGS, ClusterRounds, LinkCounts, cycles
from simulator.collectives import hierarchical, joined, ring
from simulator.config.fabric_files import IDEAL
from simulator.hardware.cluster import Cluster

from ..small_scenarios import time_collective

S = 2**30
CUBE_MESH = {"gpu": "v100-32gb", "gpus_per_node": 8, "intra_node": "cube-mesh 6x25 GB/s", "fabric": "ideal"}
NICS = {"inter_node": "4x100 Gbit/s", "shape": "rail-optimized", "nodes_per_pod": 16}


def cube_mesh(nodes: int = 1) -> Cluster:
    return sim.cluster({**CUBE_MESH, "nodes": nodes, **(NICS if nodes > 1 else {"shape": "cube-mesh"})})


def joined_fully(n: int) -> LinkCounts:
    return [[int(i != j) for j in range(n)] for i in range(n)]


@given(st.integers(3, 7), st.integers(0, 2**32))
def test_cycles_go_through_all_and_share_no_link(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    half = np.triu(rng.integers(0, 3, (n, n)), 1)
    counts = half + half.T
    found = cycles(counts.tolist())
    left = counts.copy()
    for cycle in found:
        assert cycle[0] == 0, "the root of a broadcast stays the root"
        assert sorted(cycle) == list(range(n))
        for one, other in zip(cycle, (*cycle[1:], 0), strict=True):
            left[one, other] -= 1
            left[other, one] -= 1
    assert (left >= 0).all()


@pytest.mark.parametrize(("n", "most"), [(3, 1), (5, 2), (6, 2), (7, 3), (8, 3)])
def test_all_that_there_are_where_everybody_is_joined(n: int, most: int) -> None:
    assert len(cycles(joined_fully(n))) == most


def test_none_where_there_is_none() -> None:
    line = [[int(abs(i - j) == 1) for j in range(5)] for i in range(5)]
    assert cycles(line) == []
    assert cycles([]) == []


def test_a_cube_mesh_of_six_links_has_three_both_ways_and_all_links_are_equally_busy() -> None:
    cluster = cube_mesh()
    (r,) = ClusterRounds(cluster).rounds(ring, "all_reduce", np.arange(8))
    busy = np.zeros(cluster.wiring.links)
    for path, share in zip(cluster.route(r.edges.source, r.edges.target), r.edges.share, strict=True):
        np.add.at(busy, path[path >= 0], share)
    per_byte = busy / cluster.wiring.capacity_bytes_per_s
    assert per_byte == pytest.approx([1 / 150e9] * len(busy))


@pytest.mark.parametrize("kind, passes", [("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1)])
def test_a_ring_in_a_cube_mesh_uses_six_links(kind: str, passes: int) -> None:
    cluster = cube_mesh()
    latency_s = passes * 7 * cluster.nvlink.latency_s
    expected = passes * 7 / 8 * S / 150e9 + latency_s
    for fidelity in ("fluid", "stepwise"):
        found = time_collective(kind, cluster, [S], algorithm="ring", fidelity=fidelity)[0]
        assert found.time_s == pytest.approx(expected, rel=1e-5)


def test_a_quad_of_it_and_two_of_it() -> None:
    quad = time_collective("all_reduce", cube_mesh(), [S], gpus=np.arange(4), algorithm="ring")[0]
    assert quad.bus_gb_per_s > 49, "two links of 25 GB/s at least"
    two = time_collective("all_reduce", cube_mesh(2), [S], algorithm="hierarchical")[0]
    inside_s, across_s = 2 * 7 / 8 * S / 150e9, S / 8 / (12.5e9 / 2)
    assert two.time_s == pytest.approx(inside_s + across_s, rel=2e-3)


def test_every_rank_sends_and_receives_what_it_did() -> None:
    for nodes in (1, 3):
        cluster, gpus = cube_mesh(nodes), np.arange(8 * nodes)
        for algorithm in (ring, hierarchical):
            for kind in ("all_reduce", "all_gather"):
                plain = algorithm.rounds(kind, gpus // 8)
                laid = ClusterRounds(cluster).rounds(algorithm, kind, gpus)
                sums = []
                for rounds in (plain, laid):
                    edges = joined([(r.edges, float(r.fraction * r.repeats)) for r in rounds])
                    sums.append([np.bincount(end, edges.share) for end in (edges.source, edges.target)])
                np.testing.assert_allclose(sums[0], sums[1])


@pytest.mark.parametrize("nodes", [1, 3])
def test_the_lanes_of_a_mesh_are_together_its_rounds(nodes: int) -> None:
    """A lane for each of six orders, and over nodes for each ring of each of them."""
    plans, gpus = ClusterRounds(cube_mesh(nodes)), np.arange(8 * nodes)
    for algorithm, rings in ((ring, 1 if nodes == 1 else 8), (hierarchical, 1)):
        rounds, lanes = (getattr(plans, how)(algorithm, "all_reduce", gpus) for how in ("rounds", "lanes"))
        assert len(lanes) == 6 * rings
        for at, r in enumerate(rounds):
            whole, parts = (joined([(x.edges, float(x.fraction)) for x in some]) for some in ([r], [lane[at] for lane in lanes]))
            for name in ("source", "target", "share"):
                np.testing.assert_allclose(getattr(whole, name), getattr(parts, name), rtol=1e-12)


def test_a_broadcast_starts_at_its_root_and_nothing_returns_there() -> None:
    (r,) = ClusterRounds(cube_mesh()).rounds(ring, "broadcast", np.arange(8))
    assert 0 not in r.edges.target
    assert np.bincount(r.edges.source, r.edges.share, 8)[0] == pytest.approx(1)


def test_behind_a_switch_and_on_uneven_groups_all_is_as_it_was() -> None:
    switched = replace(sim.cluster("dgx-h100", nodes=2), fabric=IDEAL)
    for cluster, gpus in ((switched, np.arange(16)), (cube_mesh(2), np.arange(11)), (cube_mesh(), np.arange(2))):
        plain = ring.rounds("all_reduce", gpus // 8)
        laid = ClusterRounds(cluster).rounds(ring, "all_reduce", gpus)
        assert [r.edges.key for r in plain] == [r.edges.key for r in laid]


def test_a_search_without_rings_or_with_too_many_ends() -> None:
    """Of 7 and 8 GPUs with links to the others only, no ring has all; two cliques have one link in common."""
    halves = [[int((i < 7) != (j < 7)) for j in range(15)] for i in range(15)]
    cliques = [[int(i != j and (i < 8) == (j < 8)) for j in range(16)] for i in range(16)]
    cliques[7][8] = cliques[8][7] = 1
    assert cycles(halves) == cycles(cliques) == []
    many = [[0 if i == j else 450 for j in range(8)] for i in range(8)]
    assert len(cycles(many)) == MOST_RINGS


def test_a_link_that_hardly_carries_anything_is_in_no_ring(tmp_path: Path) -> None:
    lines = ["gpu: h100", "gpus_per_node: 8", "nodes: 1", "shape: explicit", "vertices:"]
    lines += [f"  - {{name: g{i}, kind: gpu}}" for i in range(8)] + ["links:"]
    for i in range(8):
        for j in range(i + 1, 8):
            rate = 1 if (i, j) == (0, 1) else 450
            lines.append(f"  - {{from: g{i}, to: g{j}, capacity: {rate} GB/s, latency: 1 us}}")
    (tmp_path / "mesh.yaml").write_text("\n".join(lines))
    cluster = sim.cluster(str(tmp_path / "mesh.yaml"))
    (row,) = sim.collective("all_reduce", cluster, [2**30], algorithm="ring").rows
    assert row.bus_gb_per_s > 450, "several rings, none of which waits for the slow link"
