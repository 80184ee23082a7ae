"""An exchange by classes of messages loads every link as the same exchange does message by message."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simulator as sim
from simulator.binding import exchange_classes
from simulator.binding.exchange_classes import classes_of
from simulator.binding.uncontended import UncontendedLinks
from simulator.collectives import Edges, Everyone
from simulator.hardware.cluster import Cluster


def written_out(members: int) -> Edges:
    every = Everyone(members)
    return Edges(every.source, every.target, every.share)


def compare(cluster: Cluster, gpus: np.ndarray) -> None:
    links = UncontendedLinks(cluster)
    by_class = links.routed(Everyone(len(gpus)), gpus[None])
    one_by_one = links.routed(written_out(len(gpus)), gpus[None])
    for name in ("group", "link", "share", "longest_s"):
        assert np.array_equal(getattr(by_class, name), getattr(one_by_one, name)), name
    assert by_class.mean_s == pytest.approx(one_by_one.mean_s, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "nodes", "classes"),
    [
        ("dgx-h100", 48, 2), ("dgx-h100", 100, 4), ("aws-p5", 40, 3), ("two-sites-h100", 64, 2), ("polaris", 80, 10),
        ("gb200-nvl72", 8, 1), ("alps-gh200", 80, 20),
    ],
)  # fmt: skip
def test_every_link_carries_the_same_messages(name: str, nodes: int, classes: int) -> None:
    cluster = sim.cluster(name, nodes=nodes)
    gpus = np.arange(cluster.gpus)
    found = classes_of(cluster, gpus)
    assert found is not None
    assert len(found.first) == classes
    assert found.messages < len(gpus) ** 2 / 2
    compare(cluster, gpus)


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_for_any_nodes_and_places(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(["rail-optimized", "leaf-spine", "fat-tree"]))
    cluster = sim.cluster(
        {"gpu": "h100", "gpus_per_node": 4, "nodes": data.draw(st.integers(6, 16)), "intra_node": "NVSwitch 450 GB/s",
         "shape": shape, "inter_node": f"{data.draw(st.sampled_from([1, 2, 4]))}x400 Gbit/s",
         **({} if shape == "fat-tree" else {"nodes_per_pod": data.draw(st.sampled_from([2, 3, 4, 8]))})}
    )  # fmt: skip
    nodes = data.draw(st.lists(st.integers(0, cluster.nodes - 1), min_size=2, unique=True))
    places = data.draw(st.lists(st.integers(0, 3), min_size=1, unique=True))
    gpus = (np.array(nodes)[:, None] * 4 + np.array(sorted(places))).ravel()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange_classes, "LEAST_RANKS", 2)
        compare(cluster, gpus)


def test_where_routes_do_not_follow_from_classes_there_are_none() -> None:
    cluster = sim.cluster("dgx-h100", nodes=64)
    assert classes_of(cluster, np.arange(cluster.gpus)) is not None
    assert classes_of(cluster, np.arange(cluster.gpus - 1)) is None
    hashed = sim.cluster("dgx-h100", nodes=64, routing="ecmp")
    assert classes_of(hashed, np.arange(hashed.gpus)) is None
    assert classes_of(sim.cluster("dgx-h100", nodes=1), np.arange(8)) is None


def test_sixteen_thousand_gpus_exchange_without_being_asked_twice() -> None:
    table = sim.collective("alltoall", sim.cluster("dgx-h100", nodes=2048), [2**30])
    assert table.gpus == 16_384
    assert table.rows[0].time_s > 16_383 / 16_384 * 2**30 / 50e9
