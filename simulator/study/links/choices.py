"""Which algorithm a library takes for a collective on a cluster: what the fabric's file lays down, else what NCCL would."""

from __future__ import annotations

import math
import re
from functools import cache

from ...binding.conduct import Choose, takes
from ...costs import tuner
from ...costs.tuner import Choice, Group
from ...engine.task import Array
from ...hardware.cluster import Cluster
from ...units import GB
from .. import catalog
from .cluster_links import fabrics_of, links_of
from .timing import can_add_up, is_known, switch_abilities

PCIE = "pcie"
IN_SWITCHES = {"nvls": ("nvls", "nvls_tree"), "sharp": ("sharp",)}
"""What a library has for all-reduces where switches add up, inside nodes and between them."""
GENERATIONS = ((100, "blackwell"), (90, "hopper"), (80, "ampere"), (0, "volta"))
"""From which architecture on NCCL has constants of their own; those of AMD, whose library has others, are taken as Ampere's."""

RATES = (("blackwell", 800 * GB), ("hopper", 400 * GB), ("ampere", 200 * GB), ("volta", 0.0))
"""From which rate of NVLink on a GPU is of a generation."""


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
    def seen(ranks: int, nodes: int) -> tuple[Group, tuple[str, ...]]:
        return group_on(cluster, ranks, nodes), able_on(cluster, ranks, nodes)

    def chosen(kind: str, nodes: Array, payload_bytes: int) -> str | None:
        if kind != "all_reduce":
            return None
        group, able = seen(len(nodes), len(set(nodes.tolist())))
        return tuner.chosen(payload_bytes, group, able)

    return chosen


def able_on(cluster: Cluster, ranks: int, nodes: int) -> tuple[str, ...]:
    """What NCCL chooses from for an all-reduce of so many ranks on so many nodes."""
    at_switch = can_add_up(cluster, "nvls", ranks, nodes)
    between = nodes > 1 and "sharp" in switch_abilities(cluster)
    return ("ring", "tree", *("nvls", "nvls_tree") * at_switch, *("sharp",) * between)


def group_on(cluster: Cluster, ranks: int, nodes: int) -> Group:
    """What NCCL sees between so many ranks on so many nodes of a cluster."""
    inside, across, _ = links_of(cluster, cluster.fabric or None, curves=False)
    per_node = ranks / nodes
    nics = min(across.nics, math.ceil(per_node)) * across.nic_bytes_per_s if across else math.inf
    link = PCIE if cluster.inside_name.startswith(PCIE) else "nvlink"
    return Group(ranks, nodes, generation(cluster.gpu.architecture, inside.bytes_per_s), link, inside.rate(per_node), nics)


def generation(architecture: str, link_bytes_per_s: float) -> str:
    """The constants of NCCL for GPUs of an architecture, such as sm_90; for a GPU that names none, by the rate of its links."""
    number = re.match(r"sm_?(\d{1,9})", architecture)
    if number:
        return next(name for least, name in GENERATIONS if int(number[1]) >= least)
    return "ampere" if architecture else next(name for name, rate in RATES if link_bytes_per_s >= rate)
