"""Replay: start and end of every task by the longest path through a graph in which no transfers share a link.

Each uncontended transfer is first replaced by a task of fixed duration. This is exact, and cheap: the flows of one stream never
overlap, so a link with flows of a single stream gives each flow its uncontended rate. Replay is legal only if all durations are
then fixed: no two flows of different streams on one link, no speed that changes. Replay proves this first, or else refuses. The
longest path is what `heap.py` walks where nothing needs its heap.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..errors import UserError
from . import heap
from .task import WEIGHT_BITS, Array, TaskGraph
from .timeline import Times


def with_fixed_durations(graph: TaskGraph, *, every: bool = False) -> TaskGraph:
    """The same graph with a fixed duration for every uncontended transfer.

    With `every`, contended transfers get a fixed duration too: the fidelity `closed` leaves contention out on purpose, also the
    contention among ranks that are folded into one.
    """
    flowing = (graph.footprint >= 0) & (graph.work > 0)
    if not flowing.any():
        return graph
    changing, capacity = graph.changing()[graph.link_profile], np.array(graph.capacity(), dtype=np.int64)
    steady = ~_any_link(graph, changing)[np.maximum(graph.footprint, 0)]
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
    uncontended = np.full(len(graph.footprints), np.iinfo(np.int64).max)
    np.minimum.at(uncontended, graph.footprints.row_of, (capacity[graph.footprints.idx] << WEIGHT_BITS) // weight)
    rate = np.minimum(graph.cap[chosen], uncontended[graph.footprint[chosen]])
    solo_ns = graph.solo_ns.copy()
    solo_ns[chosen] += -(-graph.work[chosen] // rate)
    footprint, work = np.where(chosen, -1, graph.footprint), np.where(chosen, 0, graph.work)
    return replace(graph, solo_ns=solo_ns, footprint=footprint, work=work)


def shared_links(graph: TaskGraph, flowing: Array) -> Array:
    """For each link, whether flows of different streams cross the link, so that two flows may overlap."""
    owner = np.full_like(graph.work, np.iinfo(np.int64).max)
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


def _any_link(graph: TaskGraph, links: Array) -> Array:
    """For each footprint, whether the footprint contains one of `links`."""
    crosses = np.zeros(len(graph.footprints), dtype=bool)
    crosses[graph.footprints.row_of[links[graph.footprints.idx]]] = True
    return crosses


def why_not(graph: TaskGraph) -> str:
    """The reason why replay may not run a graph, or an empty string if replay may."""
    return _refusal(with_fixed_durations(graph))


def _refusal(closed: TaskGraph) -> str:
    """The reason why some durations are not fixed even with fixed uncontended transfers; an empty string if all are fixed."""
    shared = int(((closed.footprint >= 0) & (closed.work > 0)).sum())
    if shared:
        return f"{shared} transfers share links with others that may run at the same time, or cross links that change"
    if closed.sharing:
        return f"the speed of {len(closed.sharing.slowed):,} tasks depends on what else is in progress on their ranks"
    if closed.changing_speed_tasks().any():
        return "the speed of some tasks changes while they run"
    return ""


def replay(graph: TaskGraph) -> Times:
    """Start and end of every task, where all durations are fixed. Raises `UserError` where that would be an approximation."""
    closed = with_fixed_durations(graph)
    if reason := _refusal(closed):
        raise UserError(f"replay is exact only where durations are fixed: {reason}", hint="use --engine des (or auto)")
    return heap.simulate(closed)
