"""Groups whose nodes hold different numbers of their ranks, and groups whose ranks have another order than their GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simulator as sim
from simulator.collectives import Lanes, ring, tree
from simulator.config import catalog
from simulator.costs.collectives.link_constants import LAWS

KINDS = ("all_reduce", "reduce_scatter", "all_gather")


def time_s(kind: str, gpus: Any, nodes: int = 2, **cluster: Any) -> float:
    found = sim.collective(kind, sim.cluster("dgx-h100", nodes=nodes, **cluster), [10**9], gpus=np.array(gpus))
    return found.rows[0].time_s


@pytest.mark.parametrize("fabric", ["", "ideal"])
@pytest.mark.parametrize("kind", KINDS)
def test_more_ranks_in_one_node_do_not_take_its_nics_away(kind: str, fabric: str) -> None:
    """Eight and four ranks have four NICs between them, as four and four have, which may run in layers, in half of the time."""
    few = time_s(kind, [*range(4), *range(8, 12)], fabric=fabric)
    more = time_s(kind, [*range(8), *range(8, 12)], fabric=fabric)
    assert few / 2 < more < 2 * few


@pytest.mark.parametrize("kind", KINDS)
def test_the_numbers_of_ranks_do_not_matter(kind: str) -> None:
    usual = time_s(kind, range(16))
    for order in ([x for i in range(8) for x in (i, i + 8)], [*range(15, -1, -1)], np.random.default_rng(1).permutation(16)):
        assert time_s(kind, order) == usual


@pytest.mark.parametrize("nics", [8, 4])
def test_an_all_to_all_waits_for_the_node_whose_nics_have_most_to_send(nics: int) -> None:
    """Of two ranks and six, each of the two sends 6/8 of its payload to another node, where each of four and four sends 4/8."""
    network = {"inter_node": f"{nics}x400 Gbit/s"}
    even = time_s("alltoall", [*range(0, 8, 2), *range(8, 16, 2)], **network)
    uneven = time_s("alltoall", [0, 4, *range(8, 14)], **network)
    sent_by_nic = (6 / 8) / (4 / 8)
    assert uneven / even == pytest.approx(sent_by_nic, rel=0.02)


@pytest.mark.parametrize("size_bytes", [2**10, 2**20])
def test_an_all_to_all_of_racks_serves_the_peers_of_the_rank_with_most(size_bytes: int) -> None:
    """Of 64 consecutive ranks in racks of 72, eight have 56 peers in another rack; of 32 and 32 each has 32."""
    racks = sim.cluster("gb200-nvl72", nodes=2)
    even, uneven = (
        sim.collective("alltoall", racks, [size_bytes], gpus=[*first, *range(72, last)])
        for first, last in ((range(32), 104), (range(64, 72), 128))
    )
    assert uneven.rows[0].time_s - even.rows[0].time_s > (56 - 32) * LAWS.peer_s
    assert (even.heading[1][1], uneven.heading[1][1]) == (
        "64 GPUs, 32 on each of 2 nodes of gb200-nvl72",
        "64 GPUs, up to 56 on each of 2 nodes of gb200-nvl72",
    )


def test_a_placement_that_swaps_ranks_of_a_group_changes_nothing() -> None:
    base: dict[str, Any] = {
        "model": {"layers": 8, "hidden": 2048, "heads": 16, "ffn_hidden": 8192, "vocab": 32000},
        "cluster": {"name": "dgx-h100", "nodes": 2},
        "job": {"sequence_length": 2048, "global_batch": 16},
    }
    swapped = [0, 1, 2, 3, 4, 5, 6, 8, 7, *range(9, 16)]
    times = [
        sim.scenario({**base, "plan": {"sharding": "zero1", **placed}}).simulate().metrics.step_time_s
        for placed in ({}, {"placement": swapped}, {"placement": [*range(15, -1, -1)]})
    ]
    assert times[0] == times[1] == times[2]


sizes = st.lists(st.integers(1, 6), min_size=2, max_size=6)


@settings(deadline=None)
@given(sizes)
def test_every_lane_has_a_nic_of_its_own_in_every_node(of_nodes: list[int]) -> None:
    nodes = np.repeat(np.arange(len(of_nodes)), of_nodes)
    lanes = Lanes.of(nodes)
    assert lanes.number == min(of_nodes)
    enters, leaves = set(), set()
    for lane in range(lanes.number):
        order = lanes.order(lane)
        assert sorted(order.tolist()) == [*range(len(nodes))]
        for here, following in zip(order.tolist(), np.roll(order, -1).tolist(), strict=True):
            if nodes[here] != nodes[following]:
                leaves.add(here)
                enters.add(following)
    assert len(enters) == len(leaves) == lanes.number * len(of_nodes)


@settings(deadline=None)
@given(sizes, st.sampled_from([ring, tree]))
def test_every_rank_gets_what_every_rank_has(of_nodes: list[int], algorithm: Any) -> None:
    """Each round passes on what its source has; a repeated round does so as often as it says."""
    nodes = np.repeat(np.arange(len(of_nodes)), of_nodes)
    known = np.eye(len(nodes), dtype=bool)
    for r in algorithm.rounds("all_reduce", nodes):
        for _ in range(r.repeats):
            before = known.copy()
            np.logical_or.at(known, r.edges.target, before[r.edges.source])
    assert known.all()


@settings(deadline=None)
@given(sizes)
def test_the_trees_of_uneven_nodes_send_each_payload_once_up_and_once_down(of_nodes: list[int]) -> None:
    """Between nodes, and from every rank to the next one of its node."""
    nodes = np.repeat(np.arange(len(of_nodes)), of_nodes)
    if len(set(of_nodes)) == 1:
        return
    across = inside = 0.0
    for r in tree.rounds("all_reduce", nodes):
        sent = r.edges.share * float(r.fraction * r.repeats)
        leaves = nodes[r.edges.source] != nodes[r.edges.target]
        across, inside = across + sent[leaves].sum(), inside + sent[~leaves].sum()
    if min(of_nodes) > 1:
        assert across == pytest.approx(2 * (len(of_nodes) - 1))
        assert inside == pytest.approx(2 * (len(nodes) - len(of_nodes)))


WAN: dict[str, Any] = {
    "gpu": "h100", "gpus_per_node": 8, "nodes": 3, "intra_node": "NVSwitch 450 GB/s", "inter_node": "8x400 Gbit/s",
    "shape": "wan", "wan": {"sites": 2, "bandwidth": "800 Gbit/s", "latency": "5 ms"}, "fabric": "ideal",
}  # fmt: skip


@pytest.mark.parametrize("name", ["ring", "hierarchical_pipelined", "auto"])
def test_a_piece_that_goes_round_passes_the_long_link_twice(name: str) -> None:
    cluster = sim.scenario({"model": "llama3-8b", "cluster": WAN, "job": {"global_batch": 24}}).cluster
    taken = [
        sim.collective("all_gather", cluster, [2**20], algorithm=name, fidelity=fidelity).rows[0].time_s
        for fidelity in ("fluid", "stepwise")
    ]
    assert taken[0] > 0.0099
    assert taken[0] == pytest.approx(taken[1], rel=0.01)


def test_a_site_without_nodes_is_refused() -> None:
    sites = {"sites": ["leaf-spine", "leaf-spine", "torus"], "bandwidth": "800 Gbit/s", "latency": "5 ms"}
    with pytest.raises(sim.UserError, match="3 sites cannot share 2 nodes"):
        sim.scenario({"model": "llama3-8b", "cluster": {**WAN, "nodes": 2, "wan": sites}})
    assert "torus" in catalog.files("shapes")
