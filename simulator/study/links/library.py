"""What a collective library does on a cluster: which algorithms it has there, and how long they take alone."""

from __future__ import annotations

from ...binding.conduct import AUTO, Conduct
from ...errors import UserError, did_you_mean
from ...hardware.cluster import Cluster
from .. import catalog
from .choices import IN_SWITCHES, choices_of, chosen_on, told_on
from .timing import cut_on, switch_abilities, timing_on

LIBRARY = {
    "all_reduce": ("ring", "tree"),
    "reduce_scatter": ("ring",),
    "all_gather": ("ring",),
    "alltoall": ("direct",),
    "broadcast": ("ring",),
    "sendrecv": ("point_to_point",),
    "exchange": ("point_to_point",),
}
"""What `auto` chooses from everywhere: what NCCL has."""
AT_FACE_VALUE = {
    **dict.fromkeys(("all_reduce", "reduce_scatter", "all_gather"), ("hierarchical_pipelined",)),
    "broadcast": ("tree",),
}
"""What `auto` has besides on links at their face value, where it takes the fastest: a library made for them."""


def conduct_on(cluster: Cluster, algorithm: str = AUTO, pieces: int | None = None) -> Conduct:
    """How collectives are done on a cluster: by the algorithm named, or as its library would; in so many pieces."""
    known, wanted = catalog.files("collectives"), catalog.written("collectives", algorithm)
    if wanted not in (AUTO, *known):
        raise UserError(f"no algorithm {algorithm!r}", hint=did_you_mean(algorithm, [AUTO, *known]))
    chosen, told = chosen_on(cluster), told_on(cluster)
    able = [name for ability in switch_abilities(cluster) for name in IN_SWITCHES[ability]]
    more = {"all_reduce": able} if chosen else AT_FACE_VALUE
    choices = {kind: [*names, *more.get(kind, ())] for kind, names in LIBRARY.items()}
    for line in choices_of(cluster):
        choices[line.kind].append(line.algorithm)
    used = {wanted, *(name for names in choices.values() for name in names)} - {AUTO}
    modules = {name: catalog.module("collectives", name) for name in sorted(used)}
    return Conduct(modules, choices, wanted, timing_on(cluster), told, chosen, pieces, cut_on(cluster, pieces))
