"""Collisions of single flows: where the graph of a cluster hashes them onto one link, and by a law where no graph is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import simulator as sim
from simulator.costs.collectives.curves import uncontended_time
from simulator.costs.collectives.theory import Call
from simulator.units import GB, GIB

from ..small_scenarios import time_collective
from ..validate.described import links_in

HALL = {"gpu": "h100", "gpus_per_node": 8, "intra_node": "NVSwitch 450 GB/s", "inter_node": "8x400 Gbit/s", "fabric": "ndr-ib"}
SHAPES = ("leaf-spine", "rail-optimized")


def rate(nodes: int, **more: Any) -> float:
    """GB/s of a sendrecv of 1 GiB from every GPU to the next."""
    (row,) = time_collective("sendrecv", sim.cluster({**HALL, "nodes": nodes, **more}), [GIB])
    return row.bus_gb_per_s


@pytest.mark.parametrize("routing", ["spray", "ecmp"])
@pytest.mark.parametrize("shape", SHAPES)
def test_t7_10_on_one_leaf_nothing_collides(shape: str, routing: str) -> None:
    """However many nodes it has, and however flows are routed: there are no uplinks."""
    rates = [rate(nodes, shape=shape, nodes_per_pod=64, routing=routing) for nodes in (2, 4, 16, 64)]
    assert rates == pytest.approx([rates[0]] * 4, rel=1e-6)
    assert rates[0] > 40


@pytest.mark.parametrize("shape", [*SHAPES, "fat-tree"])
def test_sprayed_flows_do_not_collide(shape: str) -> None:
    pods = {} if shape == "fat-tree" else {"nodes_per_pod": 4}
    assert rate(32, shape=shape, **pods) == pytest.approx(rate(2, shape=shape, **pods), rel=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_hashed_flows_in_node_order_meet_nowhere(shape: str) -> None:
    """From every leaf one flow leads to the next, and one comes in."""
    rates = [rate(nodes, shape=shape, nodes_per_pod=4, routing="ecmp") for nodes in (2, 8, 64)]
    assert rates == pytest.approx([rates[0]] * 3, rel=1e-6)


@pytest.mark.parametrize("nodes", [8, 16])
def test_t7_10_hashed_flows_that_meet_on_an_uplink_share_it(nodes: int) -> None:
    """To and fro between pods: several flows leave each leaf, and the graph says which of them take the same link."""
    wide = {"shape": "leaf-spine", "nodes_per_pod": nodes // 2, "oversubscription": 8}
    order = np.arange(nodes).reshape(2, -1).T.ravel() * 8
    times = {}
    for routing in ("spray", "ecmp"):
        cluster = sim.cluster({**HALL, "nodes": nodes, **wide, "routing": routing})
        (row,) = time_collective("sendrecv", cluster, [GIB], gpus=order)
        route = cluster.route(order, np.roll(order, -1))
        flows = np.bincount(route[route >= 0], minlength=cluster.wiring.links)
        times[routing] = row.time_s
        if routing == "ecmp":
            fullest = (flows / cluster.wiring.capacity_bytes_per_s).max() * GIB
            alone = GIB / (rate(2, shape="leaf-spine", nodes_per_pod=2) * GB)
            assert flows.max() > 1
            assert row.time_s == pytest.approx(max(fullest, alone), rel=0.01)
    assert times["ecmp"] > times["spray"]


def test_adaptive_networks_do_not_collide_however_they_are_routed() -> None:
    wide = {"shape": "leaf-spine", "nodes_per_pod": 4, "routing": "ecmp", "fabric": "efa"}
    assert rate(4, **wide) == pytest.approx(rate(2, **wide), rel=1e-6)


def test_a_pair_has_nobody_to_collide_with() -> None:
    far = {"shape": "leaf-spine", "nodes_per_pod": 1, "routing": "ecmp"}
    assert rate(2, **far) == pytest.approx(rate(2, shape="leaf-spine", nodes_per_pod=2), rel=1e-6)


def test_where_no_topology_is_known_one_is_assumed() -> None:
    """Four nodes share a leaf, and flows beyond are hashed; a cluster tells its own links."""
    found = links_in("H100-SXM", "nvlink4-nvswitch", 64, 8, network="ndr-ib")
    seconds = uncontended_time(Call("sendrecv", GIB, 64, 8), found.inside, found.across, found.curves).seconds
    own = rate(8, shape="leaf-spine", nodes_per_pod=8)
    assert own == pytest.approx(GIB / seconds / GB * 2 ** (2 / 3), rel=0.01)
