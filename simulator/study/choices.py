"""Which algorithm a library takes for a collective on a cluster: what the fabric's file lays down, else what NCCL would."""

from __future__ import annotations

import math
from functools import cache

from ..binding.conduct import Choose, takes
from ..costs import tuner
from ..costs.tuner import Group, Switch
from ..engine.task import Array
from ..hardware.cluster import Cluster
from . import catalog
from .cluster_links import fabrics_of, links_of
from .timing import can_add_up, is_known, switch_abilities

FEWEST_AT_A_SWITCH = 3
"""GPUs of a node for which NCCL lets an NVSwitch add up."""
PCIE = "pcie"
GENERATIONS = ((100, "blackwell"), (90, "hopper"), (80, "ampere"), (0, "volta"))
"""From which architecture on NCCL has constants of their own; those of AMD, whose library has others, are taken as Ampere's."""


def switches_of(cluster: Cluster) -> tuple[Switch, ...]:
    """What the files of a cluster's fabrics lay down; that of the network between nodes comes first."""
    if not is_known(cluster):
        return ()
    within, between, _ = fabrics_of(cluster, cluster.fabric or None, curves=False)
    return within.switches if between is None or between is within else between.switches + within.switches


def told_on(cluster: Cluster) -> Choose | None:
    """What is laid down for the groups of a cluster; None if nothing is."""
    lines = switches_of(cluster)

    def told(kind: str, nodes: Array, payload_bytes: int) -> str | None:
        able = (line for line in lines if takes(catalog.module("collectives", line.algorithm), kind, nodes))
        return tuner.told(able, kind, payload_bytes, len(set(nodes.tolist())))

    return told if lines else None


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
    at_switch = ranks // nodes >= FEWEST_AT_A_SWITCH and can_add_up(cluster, "nvls", nodes)
    between = nodes > 1 and "sharp" in switch_abilities(cluster)
    return ("ring", "tree", *("nvls", "nvls_tree") * at_switch, *("sharp",) * between)


def group_on(cluster: Cluster, ranks: int, nodes: int) -> Group:
    """What NCCL sees between so many ranks on so many nodes of a cluster."""
    inside, across, _ = links_of(cluster, cluster.fabric or None, curves=False)
    per_node = ranks / nodes
    nics = min(across.nics, math.ceil(per_node)) * across.nic_bytes_per_s if across else math.inf
    link = PCIE if cluster.inside_name.startswith(PCIE) else "nvlink"
    return Group(ranks, nodes, generation(cluster.gpu.architecture), link, inside.rate(per_node), nics)


def generation(architecture: str) -> str:
    """The constants of NCCL for GPUs of an architecture, such as sm_90."""
    number = architecture.removeprefix("sm_")
    return next(name for least, name in GENERATIONS if int(number) >= least) if number.isdigit() else "ampere"
