"""Exposed communication by limiting links: the time that every rank waits, and the links that limit the awaited flow.

`metrics/idle.py` finds the transfer or collective that a rank waits for at each exposed instant. During its latency no bytes
move, and no link limits it; afterwards its limit is the links that `limiting_links` finds. Latency and links together add up to
the exposed time of every rank, to the nanosecond. While the limiting links are full, the wire takes the time; otherwise the flow
runs at its cap, which is the rate that the library was measured at, or that its rounds allow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from ...engine.fold import refine
from ...engine.task import Array, distinct, offsets
from ...metrics import Observation
from ...metrics.idle import exposed
from ...program.operations import HOST
from ...units import seconds
from ..result import Result
from .limiting_links import Limit, limits_of_flows


@dataclass(frozen=True, slots=True)
class Wait:
    """Exposed time of ranks by the kinds of the limiting links."""

    links: tuple[str, ...]
    """The kinds of links that limit together; none for latency, in which no byte moves."""
    waited_s: float
    """Mean over ranks."""
    full_s: float
    """The part of `waited_s` in which the links are full."""
    waited_by_axis_s: dict[str, float]
    """`waited_s` by the axis of the collectives and transfers that ranks wait for."""


@dataclass(frozen=True, slots=True)
class WaitedLink:
    """A link that ranks wait for. It represents all links of its kind that carry the same traffic at the same times."""

    name: str
    kind: str
    alike: int
    """Number of links that it represents, including itself."""
    capacity_bytes_per_s: float
    """Mean over the step."""
    waited_s: float
    """Mean over ranks of the time waited for collectives and transfers that one of these links limits."""
    full_s: float
    """The part of `waited_s` in which that link is full."""
    longest_s: float
    """As `waited_s`, of the rank that waits longest."""


@dataclass(frozen=True, eq=False)
class Waiting:
    """The exposed time of the measured steps in columns: class of ranks, axis, limit, and nanoseconds on each rank of it."""

    observed: Observation
    which: Array
    axis: Array
    """Index in the axes of the observation."""
    limit: Array
    """Index in `limits`."""
    ns: Array
    limits: tuple[tuple[int, ...], ...]
    """The links of the cluster that limit together, for one of several equivalent communicators; none for latency."""
    full: tuple[bool, ...]
    """For each limit, whether its links are full, or only the fullest links that are crossed."""
    behaviour: Array
    """For each link of the cluster a number, equal for links that carry the same at the same times."""

    @property
    def axes(self) -> list[str]:
        """The axes whose collectives and transfers ranks can wait for."""
        return [axis for axis in self.observed.axes if axis != HOST]

    def ns_of(self, entries: Array) -> Array:
        """The sum of nanoseconds of some entries, on each rank of every class."""
        ns = np.zeros(len(self.observed.labels), dtype=np.int64)
        np.add.at(ns, self.which[entries], self.ns[entries])
        return ns

    def mean_s(self, limits: Sequence[int], axis: str | None = None) -> float:
        """The time waited while one of the given limits applies, along one axis or all: seconds, mean over ranks."""
        entries = np.isin(self.limit, limits)
        if axis is not None:
            entries &= self.axis == self.observed.axes.index(axis)
        return self.observed.mean_s(self.ns_of(entries))

    def longest_s(self, limits: Sequence[int]) -> float:
        """The time waited while one of the given limits applies: seconds per step, of the rank that waits longest."""
        ns = self.ns_of(np.isin(self.limit, limits))
        return seconds(int(ns.max(initial=0))) / self.observed.window.steps

    def full_s(self, limits: Sequence[int]) -> float:
        """The time waited while one of the given limits applies and is full: seconds, mean over ranks."""
        return self.mean_s([limit for limit in limits if self.full[limit]])

    def by_axis_s(self, limits: Sequence[int]) -> dict[str, float]:
        """The time waited under the given limits by axis, the longest first: seconds, mean over ranks."""
        waited_s = {axis: self.mean_s(limits, axis) for axis in self.axes}
        return {axis: waited_s[axis] for axis in sorted(waited_s, key=lambda axis: -waited_s[axis]) if waited_s[axis]}

    def limits_of_groups(self, group_of_link: Array) -> dict[int, list[int]]:
        """Group of links -> the limits that include a link of the group."""
        limits_of: dict[int, list[int]] = {}
        for limit, links in enumerate(self.limits):
            for group in distinct(group_of_link[list(links)]).tolist():
                limits_of.setdefault(group, []).append(limit)
        return limits_of


def waiting(result: Result) -> Waiting:
    """The exposed time of the measured steps by limits."""
    observed, timeline = result.observation, result.engine_timeline
    graph, times = timeline.expansion.graph, timeline.times
    pieces, axis = exposed(observed)
    flows = distinct(pieces.task[graph.footprint[pieces.task] >= 0])
    limited = limits_of_flows(graph, times, flows, uncontended=result.scenario.fidelity.collectives == "closed")
    links_of, behaviour = links_of_limits(result)
    number: dict[tuple[tuple[int, ...], bool], int] = {((), False): 0}
    numbers = [number.setdefault((links_of(limit), limit.full), len(number)) for limit in limited.limits]
    limit_of = np.array(numbers, dtype=np.int64)
    first, last = (np.searchsorted(limited.flow, pieces.task, side=side) for side in ("left", "right"))
    count = last - first
    piece = np.repeat(np.arange(len(count)), count)
    entry = np.arange(len(piece)) - np.repeat(offsets(count)[:-1] - first, count)
    begin_ns = np.maximum(pieces.from_ns[piece], limited.from_ns[entry])
    moving_ns = np.maximum(np.minimum(pieces.until_ns[piece], limited.until_ns[entry]) - begin_ns, 0)
    still_ns = pieces.until_ns - pieces.from_ns
    np.subtract.at(still_ns, piece, moving_ns)
    which, axis = (np.concatenate([column, column[piece]]) for column in (pieces.which, axis))
    limit = np.concatenate([np.zeros(len(count), dtype=np.int64), limit_of[limited.limit[entry]]])
    columns, where = np.unique(np.stack([which, axis, limit]), axis=1, return_inverse=True)
    ns = np.zeros(columns.shape[1], dtype=np.int64)
    np.add.at(ns, where.ravel(), np.concatenate([still_ns, moving_ns]))
    which, axis, limit = columns[:, ns > 0]
    limits, full = zip(*number, strict=True)
    return Waiting(observed, which, axis, limit, ns[ns > 0], limits, full, behaviour)


def links_of_limits(result: Result) -> tuple[Callable[[Limit], tuple[int, ...]], Array]:
    """A function that maps a limit to links of the cluster, and the link of the simulated graph for each link of the cluster."""
    simulated, links = result.engine_timeline.expansion.skeleton, result.site.cluster.wiring.links
    if len(simulated.link_profile) == links and not result.bound.copies:
        return attrgetter("links"), np.arange(links)
    whole, bound = result.bound_rank_by_rank.skeleton, result.bound
    partition = refine(whole)
    first = np.unique(partition.communicator, return_index=True)[1]
    class_of = np.arange(len(simulated.link_profile))  # of each simulated link, among all links of the cluster
    if bound.copies:
        class_of = partition.link[bound.copies.links[np.unique(refine(bound.merged).link, return_index=True)[1]]]

    def links_of(limit: Limit) -> tuple[int, ...]:
        communicator, pattern = divmod(limit.footprint, whole.patterns)
        crossed = whole.footprints.row(int(first[communicator]) * whole.patterns + pattern)
        return tuple(crossed[np.isin(partition.link[crossed], class_of[list(limit.links)])].tolist())

    return links_of, partition.link
