"""Explicit graphs: what their links say is said nowhere else, and has its face value."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import simulator as sim
from simulator.config.load import cluster as cluster_of
from simulator.errors import UserError
from simulator.fabrics.policy import links_of
from simulator.hardware.options import LinkSpec
from simulator.units import GB
from tests.hardware.shapes import drawn

from ..commandline import trainsim

TRIANGLE = (Path(__file__).parents[2] / "docs/clusters/triangle.yaml").read_text(encoding="utf-8")
GRAPH: dict[str, Any] = {"gpu": "h100", "gpus_per_node": 2, "nodes": 2, "shape": "explicit", **drawn(4)}


@pytest.mark.parametrize(
    ("key", "value"), [("intra_node", "NVSwitch 450 GB/s"), ("inter_node", "8x400 Gbit/s"), ("fabric", "ndr-ib")]
)
def test_rates_beside_those_of_the_links_are_refused(key: str, value: str, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(f'{TRIANGLE}{key}: "{value}"\n', encoding="utf-8")
    said = trainsim("collective", "all_reduce", "--cluster", file, "-b", "16M", "-e", "16M")
    assert (said.code, said.out) == (2, "")
    assert f"{file}:{len(TRIANGLE.splitlines()) + 1}:1: cluster.{key}: the links of an explicit graph" in said.err
    with pytest.raises(UserError, match=rf"cluster\.{key}: the links of an explicit graph"):
        sim.cluster({**GRAPH, key: value})


def test_null_and_an_ideal_fabric_say_nothing_else_than_the_links(tmp_path: Path) -> None:
    file, args = tmp_path / "cluster.yaml", ("-b", "16M", "-e", "16M", "--json")
    file.write_text(f"{TRIANGLE}intra_node: null\ninter_node: null\nfabric: ideal\n", encoding="utf-8")
    plain = trainsim("collective", "all_reduce", "--cluster", "docs/clusters/triangle.yaml", *args).record
    assert trainsim("collective", "all_reduce", "--cluster", file, *args).record["rows"] == plain["rows"]


def test_the_shape_says_that_links_have_their_face_value() -> None:
    cluster = cluster_of(GRAPH)
    assert links_of(cluster) is None
    assert links_of(replace(cluster, nvlink=LinkSpec(450 * GB, 0.0))) is None


def test_a_shape_of_ones_own_need_not_state_the_rates_of_its_nics() -> None:
    """Its links have their face value then."""
    cluster = cluster_of("dgx-h100", nodes=2)
    assert links_of(cluster) is not None
    assert links_of(replace(cluster, nics_per_node=0)) is None


def test_a_graph_beside_its_name_needs_no_file_of_that_name() -> None:
    assert cluster_of({**GRAPH, "name": "mine"}) == replace(cluster_of(GRAPH), name="mine")
    assert cluster_of({**GRAPH, "name": "folder/mine"}).name == "folder/mine"
    with pytest.raises(UserError, match="no cluster 'mine'"):
        cluster_of({"name": "mine", "shape": "explicit", "nodes": 1})
