"""Which links a step waits for: the exposed time of every rank, by the links that limit what it waits for.

`metrics/idle.py` says which transfer or collective each exposed instant is spent on. While the latency of that passes, nothing
moves and no link is to blame; then it is the links that limit it, as `limiting_links` finds them. So latency and links together
are the exposed time, on every rank, to the nanosecond. While such links are full it is the wire that takes the time; while they
are not, what moves over them goes as fast as it ever does: as the library was measured, or as its rounds follow each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from ...engine.fold import refine
from ...engine.task import Array, offsets
from ...metrics import Observation
from ...metrics.idle import exposed
from ...program.program import HOST
from ..result import Result
from .limiting_links import Limit, limited


@dataclass(frozen=True, slots=True)
class Wait:
    """What ranks wait for."""

    links: tuple[str, ...]
    """The kinds of links that limit together; none for latency, in which no byte moves."""
    waited_s: float
    """Mean over ranks."""
    full_s: float
    """The part of it in which the links are full."""
    waited_by_axis_s: dict[str, float]
    """The whole by whose collectives and transfers are waited for."""


@dataclass(frozen=True, slots=True)
class WaitedLink:
    """A link that ranks wait for; with it stand all links of its kind that carry the same at the same times."""

    name: str
    kind: str
    alike: int
    """How many they are, this one among them."""
    capacity_bytes_per_s: float
    """Mean over the step."""
    waited_s: float
    """How long a rank, on average, waits for something that one of them limits."""
    full_s: float
    """The part of it in which that one is full."""


@dataclass(frozen=True, eq=False)
class Waiting:
    """The exposed time of the measured steps, in columns: class of ranks, axis, limit, and nanoseconds on each of its ranks."""

    observed: Observation
    which: Array
    axis: Array
    """By its place in the observation's axes."""
    limit: Array
    """By its place in `limits`."""
    ns: Array
    limits: tuple[tuple[int, ...], ...]
    """The links of the cluster that limit together, of one communicator where several are alike; none for latency."""
    full: tuple[bool, ...]
    """For each limit whether its links are full, or only the fullest of those that are crossed."""
    behaviour: Array
    """For each link of the cluster a number, equal for links that carry the same at the same times."""

    @property
    def axes(self) -> list[str]:
        """The axes that anything could be waited for."""
        return [axis for axis in self.observed.axes if axis != HOST]

    def ns_of(self, entries: Array) -> Array:
        """Nanoseconds of some entries together, on each rank of every class."""
        ns = np.zeros(len(self.observed.labels), dtype=np.int64)
        np.add.at(ns, self.which[entries], self.ns[entries])
        return ns

    def mean_s(self, limits: Sequence[int], axis: str | None = None) -> float:
        """What is waited while one of these limits something, along one axis or all: seconds, mean over ranks."""
        entries = np.isin(self.limit, limits)
        if axis is not None:
            entries &= self.axis == self.observed.axes.index(axis)
        return self.observed.mean_s(self.ns_of(entries))

    def full_s(self, limits: Sequence[int]) -> float:
        """What is waited while one of these limits something and is full: seconds, mean over ranks."""
        return self.mean_s([limit for limit in limits if self.full[limit]])

    def by_axis_s(self, limits: Sequence[int]) -> dict[str, float]:
        """The same for every axis along which something is waited for, the longest first."""
        found = {axis: self.mean_s(limits, axis) for axis in self.axes}
        return {axis: found[axis] for axis in sorted(found, key=lambda axis: -found[axis]) if found[axis]}

    def limits_of_groups(self, group_of_link: Array) -> dict[int, list[int]]:
        """Of groups of links: the limits in which a link of the group has part."""
        limits_of: dict[int, list[int]] = {}
        for limit, links in enumerate(self.limits):
            for group in np.unique(group_of_link[list(links)]).tolist():
                limits_of.setdefault(group, []).append(limit)
        return limits_of


def waiting(result: Result) -> Waiting:
    """What the measured steps wait for."""
    observed, timeline = result.observation, result.engine_timeline
    graph, times = timeline.expansion.graph, timeline.times
    pieces, axis = exposed(observed)
    flows = np.unique(pieces.task[graph.footprint[pieces.task] >= 0])
    of = limited(graph, times, flows, uncontended=result.scenario.fidelity.collectives == "closed")
    links_of, behaviour = _links_of_limits(result)
    number: dict[tuple[tuple[int, ...], bool], int] = {((), False): 0}
    limit_of = np.array([number.setdefault((links_of(limit), limit.full), len(number)) for limit in of.limits], dtype=np.int64)
    first, last = (np.searchsorted(of.flow, pieces.task, side=side) for side in ("left", "right"))
    count = last - first
    piece = np.repeat(np.arange(len(count)), count)
    entry = np.arange(len(piece)) - np.repeat(offsets(count)[:-1] - first, count)
    moving_ns = np.minimum(pieces.until_ns[piece], of.until_ns[entry]) - np.maximum(pieces.from_ns[piece], of.from_ns[entry])
    moving_ns = np.maximum(moving_ns, 0)
    still_ns = pieces.until_ns - pieces.from_ns
    np.subtract.at(still_ns, piece, moving_ns)
    which, axis = (np.concatenate([column, column[piece]]) for column in (pieces.which, axis))
    limit = np.concatenate([np.zeros(len(count), dtype=np.int64), limit_of[of.limit[entry]]])
    columns, where = np.unique(np.stack([which, axis, limit]), axis=1, return_inverse=True)
    ns = np.zeros(columns.shape[1], dtype=np.int64)
    np.add.at(ns, where.ravel(), np.concatenate([still_ns, moving_ns]))
    which, axis, limit = columns[:, ns > 0]
    limits, full = zip(*number, strict=True)
    return Waiting(observed, which, axis, limit, ns[ns > 0], limits, full, behaviour)


def _links_of_limits(result: Result) -> tuple[Callable[[Limit], tuple[int, ...]], Array]:
    """What gives the cluster's links of a limit, and for each link of the cluster that of the simulated graph."""
    simulated, links = result.engine_timeline.expansion.skeleton, result.scenario.cluster.wiring.links
    if len(simulated.link_profile) == links:
        return attrgetter("links"), np.arange(links)
    whole = result.bound.skeleton
    partition = refine(whole)
    first = np.unique(partition.communicator, return_index=True)[1]

    def links_of(limit: Limit) -> tuple[int, ...]:
        communicator, pattern = divmod(limit.footprint, whole.patterns)
        crossed = whole.footprints.row(int(first[communicator]) * whole.patterns + pattern)
        return tuple(crossed[np.isin(partition.link[crossed], limit.links)].tolist())

    return links_of, partition.link
