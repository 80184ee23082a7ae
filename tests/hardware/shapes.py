"""Clusters of every shape that the catalog has, small enough to look at every pair of GPUs."""

from __future__ import annotations

from typing import Any

import simulator as sim
from simulator.config import catalog, cluster_file
from simulator.errors import UserError
from simulator.hardware.cluster import Cluster

SHAPES = sorted(map(catalog.plain, catalog.files("shapes")))
FABRICS = [name for name in SHAPES if name in cluster_file.shapes_with("fabric") or name == "explicit"]
INSIDES = cluster_file.shapes_with("inside")
HASHED = [name for name in FABRICS if "routing" in catalog.module("shapes", name).OPTIONS]
PROPORTIONS: dict[str, dict[str, Any]] = {
    "one node": {"nodes": 1, "gpus_per_node": 8},
    "one node without NICs": {"nodes": 1, "gpus_per_node": 4, "inter_node": None},
    "one pod": {"nodes": 3, "gpus_per_node": 4, "inter_node": "4x400 Gbit/s"},
    "pods": {"nodes": 4, "gpus_per_node": 4, "inter_node": "4x400 Gbit/s", "nodes_per_pod": 2},
    "pods, oversubscribed, the last one not full": {
        "nodes": 5, "gpus_per_node": 4, "inter_node": "4x400 Gbit/s", "nodes_per_pod": 2, "oversubscription": 4,
    },
    "two GPUs to a NIC": {"nodes": 4, "gpus_per_node": 4, "inter_node": "2x200 Gbit/s", "nodes_per_pod": 2},
    "three NICs for eight GPUs": {"nodes": 4, "gpus_per_node": 8, "inter_node": "3x200 Gbit/s", "nodes_per_pod": 2},
    "one NIC": {"nodes": 4, "gpus_per_node": 4, "inter_node": "100 Gbit/s", "nodes_per_pod": 3},
    "four NICs to a GPU": {"nodes": 3, "gpus_per_node": 2, "inter_node": "8x100 Gbit/s"},
    "one GPU to a node": {"nodes": 6, "gpus_per_node": 1, "inter_node": "100 Gbit/s", "nodes_per_pod": 2},
    "many small nodes": {"nodes": 18, "gpus_per_node": 2, "inter_node": "2x100 Gbit/s", "nodes_per_pod": 4},
}  # fmt: skip
SMALL_ROUTERS = {"nics_per_router": 2, "routers_per_group": 4, "global_links": 2}
WAN = {"sites": ["rail-optimized", "leaf-spine"], "bandwidth": "100 Gbit/s", "latency": "5 ms"}


def build(shape: str, proportions: dict[str, Any], **more: Any) -> Cluster:
    """A cluster of a shape; where the shape cannot be without something, that too."""
    written: dict[str, Any] = {"gpu": "h100", "intra_node": "NVSwitch 450 GB/s", "shape": shape, **proportions}
    if shape == "wan":
        written["wan"] = {**WAN, "sites": 1} if written["nodes"] == 1 else WAN
    if shape == "dragonfly":
        written["dragonfly"] = SMALL_ROUTERS
    if shape == "explicit":
        written = {**written, **drawn(written["nodes"] * written["gpus_per_node"]), "intra_node": None, "inter_node": None}
        written.pop("oversubscription", None)
    cluster: Cluster = sim.cluster({**written, **more})
    _ = cluster.wiring
    return cluster


def drawn(gpus: int) -> dict[str, Any]:
    """A star of GPUs around two switches, which are joined by a link as well."""
    switches = [{"name": f"s{i}", "kind": "switch"} for i in range(2)]
    ends = [(f"g{i}", f"s{k}") for i in range(gpus) for k in range(2)] + [("s0", "s1")]
    links = [{"from": a, "to": b, "capacity": "50 GB/s", "latency": "1 us"} for a, b in ends]
    return {"vertices": [*switches, *({"name": f"g{i}", "kind": "gpu"} for i in range(gpus))], "links": links}


def every(**more: Any) -> dict[str, Cluster]:
    """Shapes on the proportions that they allow, by what they are."""
    found = {}
    for shape in SHAPES:
        for what, proportions in PROPORTIONS.items():
            try:
                found[f"{shape}, {what}"] = build(shape, proportions, **more)
            except UserError:
                assert _may_refuse(shape, proportions), f"{shape} refuses {what}"
    return found


def _may_refuse(shape: str, proportions: dict[str, Any]) -> bool:
    """Shapes of a single node refuse several, and only some have anything to oversubscribe."""
    return (proportions["nodes"] > 1 and shape not in FABRICS) or "oversubscription" in proportions


def nodes_of(inside: str, nodes: int) -> Cluster:
    """Nodes with an inside of some kind: of eight GPUs, or as many as it takes."""
    kind = f"{inside} 6x25 GB/s" if inside == "cube-mesh" else f"{inside} 120 GB/s"
    more: dict[str, Any] = {"inter_node": "4x100 Gbit/s", "shape": "leaf-spine"} if nodes > 1 else {}
    if inside == "pcie":
        more["box"] = {"gpus_per_switch": 4, "bridge": "56 GB/s"}
    found: Cluster = sim.cluster({"gpu": "v100-32gb", "gpus_per_node": 8, "nodes": nodes, "intra_node": kind, **more})
    return found
