"""What a collective library does on a cluster: which algorithms it has there, and how long they take alone."""

from __future__ import annotations

from ..binding.conduct import AUTO, Conduct
from ..errors import UserError, did_you_mean
from ..hardware.cluster import Cluster
from . import catalog
from .timing import switch_abilities, timing_on

LIBRARY = {
    "all_reduce": ("ring", "tree", "hierarchical"),
    "reduce_scatter": ("ring", "hierarchical"),
    "all_gather": ("ring", "hierarchical"),
    "alltoall": ("direct",),
    "broadcast": ("ring", "tree"),
    "sendrecv": ("point_to_point",),
    "exchange": ("point_to_point",),
}
"""What `auto` chooses from everywhere: what collective libraries have."""
IN_SWITCHES = {"nvls": ("nvls", "nvls_tree"), "sharp": ("sharp",)}
"""What it has besides for all-reduces where switches add up."""


def conduct_on(cluster: Cluster, algorithm: str = AUTO) -> Conduct:
    """How collectives are done on a cluster: by the algorithm named, or by the fastest that its library has."""
    known, wanted = catalog.files("collectives"), catalog.plain(algorithm).replace("-", "_")
    if wanted not in (AUTO, *known):
        raise UserError(f"no algorithm {algorithm!r}", hint=did_you_mean(algorithm, [AUTO, *known]))
    able = [name for ability in switch_abilities(cluster) for name in IN_SWITCHES[ability]]
    choices = {**LIBRARY, "all_reduce": (*LIBRARY["all_reduce"], *able)}
    used = {wanted, *(name for names in choices.values() for name in names)} - {AUTO}
    return Conduct({name: catalog.module("collectives", name) for name in sorted(used)}, choices, wanted, timing_on(cluster))
