"""The links of a machine as the columns of a table of collectives describe it."""

from __future__ import annotations

from simulator.fabrics.policy import Links, links_of
from simulator.hardware.cluster import Cluster
from simulator.measurements.measured_cluster import COLUMNS, cluster_of


def columns(gpu: str, inside: str, gpus: int, nodes: int = 1, **more: object) -> dict[str, str]:
    """A row's description of its machine."""
    said = {"gpu": gpu, "inside": inside, "gpus": gpus, "nodes": nodes, **more}
    return {column: str(said.get(column, "")) for column in COLUMNS}


def links_on(cluster: Cluster) -> Links:
    """The measured links of a cluster."""
    found = links_of(cluster)
    assert found
    return found


def links_in(gpu: str, inside: str, gpus: int, nodes: int = 1, **more: object) -> Links:
    """The links that a row describes."""
    cluster, _, _ = cluster_of(columns(gpu, inside, gpus, nodes, **more))
    return links_on(cluster)
