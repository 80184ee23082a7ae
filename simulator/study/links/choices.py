"""Which algorithm a library takes for a collective on a cluster: what the fabric's file lays down, else what NCCL would."""

from __future__ import annotations

from functools import cache

from ...binding.conduct import Choose, takes
from ...costs import theory, tuner
from ...costs.links import Across, Inside
from ...costs.theory import Call
from ...costs.tuner import Choice
from ...engine.task import Array
from ...hardware.cluster import Cluster
from .. import catalog
from .cluster_links import fabrics_of, links_of
from .timing import can_add_up, is_known

IN_SWITCHES = {"nvls": ("nvls", "nvls_tree"), "sharp": ("sharp",)}
"""What a library has for all-reduces where switches add up, inside nodes and between them."""


def choices_of(cluster: Cluster) -> tuple[Choice, ...]:
    """What the files of a cluster's fabrics lay down; that of the network between nodes comes first."""
    if not is_known(cluster):
        return ()
    within, between, _ = fabrics_of(cluster, cluster.fabric or None, curves=False)
    return within.choices if between is None or between is within else between.choices + within.choices


def told_on(cluster: Cluster) -> Choose | None:
    """What is laid down for the groups of a cluster; None if nothing is."""
    lines = choices_of(cluster)

    def told(kind: str, nodes: Array, payload_bytes: int) -> str | None:
        over = len(set(nodes.tolist()))
        able = (line for line in lines if serves(line.algorithm, cluster, kind, nodes, over))
        return tuner.told(able, kind, payload_bytes, over)

    return told if lines else None


def serves(name: str, cluster: Cluster, kind: str, nodes: Array, over: int) -> bool:
    """Whether an algorithm can serve such a group on a cluster, whose switches may have to add up for that."""
    if not takes(catalog.module("collectives", name), kind, nodes):
        return False
    needs = next((ability for ability, names in IN_SWITCHES.items() if name in names), None)
    return needs is None or (can_add_up(cluster, needs, len(nodes), over) and (over > 1 or needs != "sharp"))


def chosen_on(cluster: Cluster) -> Choose | None:
    """What NCCL would take on a cluster; None on links at their face value, of which its constants know nothing."""
    if not is_known(cluster):
        return None

    @cache
    def links() -> tuple[Inside, Across | None]:
        inside, across, _ = links_of(cluster, cluster.fabric or None, curves=False)
        return inside, across

    def chosen(kind: str, nodes: Array, payload_bytes: int) -> str | None:
        if kind != "all_reduce":
            return None
        call = Call(kind, payload_bytes, len(nodes), len(set(nodes.tolist())))
        name = theory.taken(call, *links())
        return "nvls_tree" if name == "nvls" and call.nodes > 1 else name

    return chosen
