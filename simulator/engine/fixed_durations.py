"""Fixed durations: an uncontended transfer becomes a task of known length.

This is exact, and cheap: the flows of one stream never overlap, so a link that only flows of one stream cross gives each of them
its uncontended rate. Only transfers that may contend remain as flows. With `every` all transfers get fixed durations, contended
or not: that is the fidelity `closed`, which leaves contention out on purpose, also that of ranks which fold into one.
"""

from __future__ import annotations

import numpy as np

from ..errors import UserError
from .task import WEIGHT_BITS, Array, TaskGraph


def with_fixed_durations(graph: TaskGraph, *, every: bool = False) -> TaskGraph:
    """The same graph with every uncontended transfer (or every transfer) turned into a fixed duration."""
    flowing = (graph.footprint >= 0) & (graph.work > 0)
    if not flowing.any():
        return graph
    steady_link = np.array([profile.steady for profile in graph.profiles], dtype=bool)[graph.link_profile]
    steady = ~_any_link(graph, ~steady_link)[np.maximum(graph.footprint, 0)]
    if graph.cap_profile is not None:
        steady &= graph.cap_profile < 0
    if every and not steady[flowing].all():
        raise UserError(
            "closed collectives cannot follow a link whose capacity changes during the step",
            hint="use fidelity.collectives: fluid, or perturb the link for the whole step",
        )
    shared = _any_link(graph, shared_links(graph, flowing))[np.maximum(graph.footprint, 0)]
    chosen = flowing & steady if every else flowing & steady & ~shared
    weight = graph.single_weight if every and graph.single_weight is not None else graph.footprint_weight
    rate = np.minimum(graph.cap[chosen], _uncontended_rate(graph, weight)[graph.footprint[chosen]])
    solo_ns = graph.solo_ns.copy()
    solo_ns[chosen] += -(-graph.work[chosen] // rate)
    return graph.with_columns(
        solo_ns=solo_ns, footprint=np.where(chosen, -1, graph.footprint), work=np.where(chosen, 0, graph.work)
    )


def shared_links(graph: TaskGraph, flowing: Array) -> Array:
    """For each link, whether flows of different streams cross it, so that two of them may overlap."""
    owner = np.full(len(graph), np.iinfo(np.int64).max)
    np.minimum.at(owner, graph.streams.idx, graph.streams.row_of)
    lowest = np.full(len(graph.footprints), np.iinfo(np.int64).max)
    highest = np.full(len(graph.footprints), -1)
    np.minimum.at(lowest, graph.footprint[flowing], owner[flowing])
    np.maximum.at(highest, graph.footprint[flowing], owner[flowing])
    used = highest[graph.footprints.row_of] >= 0
    link, footprint = graph.footprints.idx[used], graph.footprints.row_of[used]
    first = np.full(len(graph.link_profile), np.iinfo(np.int64).max)
    last = np.full(len(graph.link_profile), -1)
    np.minimum.at(first, link, lowest[footprint])
    np.maximum.at(last, link, highest[footprint])
    shared: Array = (last >= 0) & (first != last)
    return shared


def _uncontended_rate(graph: TaskGraph, weight: Array) -> Array:
    """For each footprint, the rate that its links allow without contention."""
    capacity = np.array([profile.value[0] for profile in graph.profiles], dtype=np.int64)[graph.link_profile]
    rate = np.full(len(graph.footprints), np.iinfo(np.int64).max)
    np.minimum.at(rate, graph.footprints.row_of, (capacity[graph.footprints.idx] << WEIGHT_BITS) // weight)
    return rate


def _any_link(graph: TaskGraph, links: Array) -> Array:
    """For each footprint, whether it crosses one of `links`."""
    crosses = np.zeros(len(graph.footprints), dtype=bool)
    crosses[graph.footprints.row_of[links[graph.footprints.idx]]] = True
    return crosses
