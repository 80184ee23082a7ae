"""What a collective library does on a cluster: which algorithms it has there, and how long they take alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...binding.conduct import AUTO, Conduct, serving, takes
from ...engine.task import Array
from ...errors import OutsideDomain, UserError, did_you_mean
from ...hardware.cluster import Cluster
from .. import catalog
from .choices import IN_SWITCHES, choices_of, chosen_on, told_on
from .timing import IDEAL, MEASURED_AS, can_add_up, switch_abilities, timing_on

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
SAY_SO = {"nvls": "nvls_efficiency under inside:", "sharp": "sharp: true under across:"}
"""How the file of a fabric says that switches add up."""


def conduct_on(cluster: Cluster, algorithm: str = AUTO) -> Conduct:
    """How collectives are done on a cluster: by the algorithm named, or as its library would."""
    known, wanted = catalog.files("collectives"), catalog.plain(algorithm).replace("-", "_")
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
    return Conduct(modules, choices, wanted, timing_on(cluster), told, chosen)


def must_serve(conduct: Conduct, cluster: Cluster, kind: str, nodes: Array) -> None:
    """Raises `OutsideDomain` if an algorithm was asked for that cannot do a kind for a group over these nodes."""
    name = conduct.algorithm
    if name == AUTO or len(nodes) < 2:
        return
    if serving({name: conduct.algorithms[name]}, kind, nodes):
        _must_add_up(name, cluster, len(set(nodes.tolist())))
        return
    every = {other: catalog.module("collectives", other) for other in catalog.files("collectives")}
    able = serving(every, kind, nodes)
    knows = kind in every[name].KINDS
    counts = [n for n in range(2, 2 * len(nodes)) if knows and takes(every[name], kind, np.zeros(n, dtype=np.int64))]
    near = min(counts, key=lambda n: abs(n - len(nodes)), default=0)
    reason = f"{name} does no {MEASURED_AS.get(kind, kind)}" + (f" over {len(nodes)} ranks" if knows else "")
    hint = f"these do: {', '.join(sorted(able))}" + (f"; {name} does with --gpus {near}" if near else "")
    raise OutsideDomain(reason, nearest={"gpus": near} if near else None, hint=hint)


def _must_add_up(name: str, cluster: Cluster, nodes: int) -> None:
    """Raises `OutsideDomain` if an algorithm needs switches that add up, and a cluster is not known to have them."""
    needs = [ability for ability, names in IN_SWITCHES.items() if name in names]
    if not needs or can_add_up(cluster, needs[0], nodes):
        return
    from ..scenarios.api import cluster as named

    needed, over = needs[0] if nodes > 1 else "nvls", f"{nodes} node{'s' * (nodes > 1)}"
    grown = [replace(found, nodes=max(nodes, found.nodes)) for found in map(named, catalog.files("clusters"))]
    able = ", ".join(found.name for found in grown if can_add_up(found, needed, nodes))
    bare = ", or take fabric: ideal" if can_add_up(replace(cluster, fabric=IDEAL), needed, nodes) else ""
    raise OutsideDomain(
        f"{name} needs switches that add up, and {cluster.name} is not known to have them for {over}",
        hint=f"those of {able} do; or say so in a fabric of your own ({SAY_SO[needed]}){bare}",
    )
