"""Use of the network in a step: bytes and busy time of every link, the links that ranks wait for, and one link over time.

Bytes are exact: every collective puts its weighted wire bytes on each link of its footprint. Over time, the bytes of a
collective are spread evenly between the end of its latency and its own end. Links with equal traffic are computed once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np

from ...engine.task import RATE_BITS, WEIGHT_BITS, Array, distinct
from ...engine.timeline import Timeline
from ...units import NS_PER_S, seconds, show_s
from ..result import Result
from .traffic import Traffic, first_of, ratio
from .waits import Wait, WaitedLink, Waiting, waiting


@dataclass(frozen=True, slots=True)
class LinkUse:
    """One link in one step."""

    name: str
    kind: str
    bytes: float
    capacity_bytes_per_s: float
    """Mean over the step."""
    busy_s: float
    """Seconds in which bytes were on their way over the link."""
    utilisation: float
    """Bytes divided by the bytes that the link could have carried in the step."""


@dataclass(frozen=True)
class Network(Traffic):
    """The traffic of the measured training steps of a run, over time.

    Bytes are counted per step. Times start with the first rank's first measured step: where consecutive steps overlap, what
    moves after the end of a step is also shown at its beginning, since the step before does the same.
    """

    timeline: Timeline
    begin_ns: int
    end_ns: int
    waiting: Waiting
    """The exposed time of every rank by the links that it waits for."""

    def __repr__(self) -> str:
        return f"Network({self.cluster!r}, {self.cluster.wiring.links:,} links over {show_s(self.step_s)})"

    @property
    def step_s(self) -> float:
        return seconds(self.end_ns - self.begin_ns) / self.steps

    @cached_property
    def capacity_bytes_per_s(self) -> Array:
        """Mean capacity of every link in the step."""
        return self.capacity(self.begin_ns, self.end_ns)

    @cached_property
    def utilisation(self) -> Array:
        """Utilisation of every link: bytes divided by the bytes that it could have carried in the step."""
        return ratio(self.bytes, self.capacity_bytes_per_s * self.step_s)

    def busiest(self, count: int = 10) -> list[LinkUse]:
        """The links with the highest utilisation; of equal ones the first."""
        order = np.argsort(-np.round(self.utilisation, 12), kind="stable")[:count]
        return [self.link(int(i)) for i in order if self.bytes[i] > 0]

    def link(self, link: int) -> LinkUse:
        kind, names = self.kinds
        return LinkUse(
            self.cluster.wiring.link_name(link),
            names[kind[link]],
            float(self.bytes[link]),
            float(self.capacity_bytes_per_s[link]),
            float(self.busy_s[link]),
            float(self.utilisation[link]),
        )

    @cached_property
    def classes(self) -> list[dict[str, Any]]:
        """Links that join the same kinds of vertices: how many, their bytes, the mean over them of the seconds that they are
        busy (`busy_s`) and of their utilisation, the highest utilisation, and the seconds that a mean rank waits for
        flows that such links limit (`waited_s`), and the part of `waited_s` in which the links are full (`full_s`)."""
        which, names = self.kinds
        limits_of = self.waiting.limits_of_groups(which)
        return [
            {
                "kind": name,
                "links": int((which == i).sum()),
                "bytes": float(self.bytes[which == i].sum()),
                "busy_s": float(self.busy_s[which == i].mean()),
                "utilisation": float(self.utilisation[which == i].mean()),
                "highest_utilisation": float(self.utilisation[which == i].max()),
                "waited_s": self.waiting.mean_s(limits_of.get(i, [])),
                "full_s": self.waiting.full_s(limits_of.get(i, [])),
            }
            for i, name in enumerate(names)
        ]

    @cached_property
    def waits(self) -> list[Wait]:
        """The waits of ranks by kinds of links, the longest first. They add up to the exposed communication of the step."""
        (kind, names), waiting = self.kinds, self.waiting
        limits_of: dict[tuple[int, ...], list[int]] = {}
        for limit, links in enumerate(waiting.limits):
            limits_of.setdefault(tuple(distinct(kind[list(links)]).tolist()), []).append(limit)
        listed = [
            Wait(tuple(names[i] for i in kinds), waiting.mean_s(limits), waiting.full_s(limits), waiting.by_axis_s(limits))
            for kinds, limits in limits_of.items()
        ]
        return sorted((wait for wait in listed if wait.waited_s), key=lambda wait: -wait.waited_s)

    def waited_links(self, count: int = 10) -> list[WaitedLink]:
        """The links that ranks wait for longest; of links with equal traffic the first."""
        (kind, names), waiting, rate = self.kinds, self.waiting, self.capacity_bytes_per_s
        limits_of = waiting.limits_of_groups(self._alike)
        rows = zip(*(column.tolist() for column in np.unique(self._alike, return_index=True, return_counts=True)), strict=True)
        longest = sorted(
            (-waiting.mean_s(limits_of[which]), link, alike, which) for which, link, alike in rows if which in limits_of
        )
        name, found = self.cluster.wiring.link_name, []
        for negated_s, i, alike, which in longest[:count]:
            limits = limits_of[which]
            of_ranks_s = -negated_s, waiting.full_s(limits), waiting.longest_s(limits)
            found.append(WaitedLink(name(i), names[kind[i]], alike, float(rate[i]), *of_ranks_s))
        return found

    @property
    def _alike(self) -> Array:
        """A number for every link, equal for links of one kind that carry the same traffic at the same times."""
        kind, names = self.kinds
        alike: Array = self.waiting.behaviour * len(names) + kind
        return alike

    def links_like(self, link: int) -> Array:
        """All links of the same kind with the same traffic at the same times, including the link itself."""
        return np.flatnonzero(self._alike == self._alike[link])

    @cached_property
    def busy_s(self) -> Array:
        """Seconds per step in which bytes are on their way over each link."""
        footprints, patterns, alike = self.skeleton.footprints, self.skeleton.patterns, self.partition
        first, spans_ns = first_of(alike.link), self._spans_ns
        looked_at = np.flatnonzero(np.isin(footprints.idx, first))
        footprint = footprints.row_of[looked_at]
        pairs = np.stack(
            [alike.link[footprints.idx[looked_at]], alike.communicator[footprint // patterns] * patterns + footprint % patterns]
        )
        busy = np.zeros(len(first))
        for link, crossing in groupby(np.unique(pairs, axis=1).T.tolist(), key=itemgetter(0)):
            spans = [spans_ns[footprint] for _, footprint in crossing if footprint in spans_ns]
            if spans:
                within = np.concatenate(spans, axis=1).clip(self.begin_ns, self.end_ns)
                busy[link] = seconds(_covered_ns(within, self.begin_ns)) / self.steps
        return busy[alike.link]

    def _moves(self, wanted: set[int]) -> Iterator[tuple[int, Array]]:
        """For each communicator its number, and for each turn that moves bytes (a column) pattern, begin and end in ns, work."""
        times = self.timeline.times
        for communicator, rank, rows in self.turns(wanted, all_steps=True):
            pattern, latency_ns, work = self.charges(communicator, rank, rows)
            tasks = self.timeline.tasks_of(rank)[rows]
            end_ns = times.end_ns[tasks]
            begin_ns = np.minimum(times.start_ns[tasks] + latency_ns, end_ns - 1)
            yield communicator, np.stack([pattern, begin_ns, end_ns, work])[:, work > 0]

    @cached_property
    def _spans_ns(self) -> dict[int, Array]:
        """Footprint, by the class of its communicator -> begin and end of the movement of bytes of each turn, in nanoseconds."""
        alike, patterns, spans_ns = self.partition.communicator, self.skeleton.patterns, {}
        for communicator, moves in self._moves(set(first_of(alike).tolist())):
            for pattern in distinct(moves[0]).tolist():
                spans_ns[int(alike[communicator] * patterns + pattern)] = moves[1:3, moves[0] == pattern]
        return spans_ns

    def series(self, link: int, bins: int = 200) -> tuple[Array, Array]:
        """Edges of equal bins of the step in seconds, and the mean bytes/s over the link in each."""
        edges = np.linspace(self.begin_ns, self.end_ns, bins + 1)
        carried = np.zeros(bins)
        for begin, end, size in self.flows(link):
            inside = np.clip(np.minimum(edges[1:], end) - np.maximum(edges[:-1], begin), 0, None)
            carried += size * inside / (end - begin)
        width_s = seconds(1) * (edges[1] - edges[0])
        return (edges - self.begin_ns) * seconds(1), carried / width_s

    def flows(self, link: int) -> Iterator[tuple[int, int, float]]:
        """(when its first byte may move, end, bytes) of every transfer that crosses a link, in nanoseconds."""
        skeleton = self.skeleton
        crossing = skeleton.footprints.idx == link
        footprint, weight = skeleton.footprints.row_of[crossing], skeleton.footprint_weight[crossing] / (1 << WEIGHT_BITS)
        share_of = dict(zip(footprint.tolist(), weight.tolist(), strict=True))
        for communicator, moves in self._moves(set((footprint // skeleton.patterns).tolist())):
            for pattern, begin_ns, end_ns, work in moves.T.tolist():
                if share := share_of.get(communicator * skeleton.patterns + pattern):
                    yield begin_ns, end_ns, share * float(work) / (1 << RATE_BITS)


def _covered_ns(spans: Array, after: int) -> int:
    """Length of the union of spans (a row of begins and one of ends) after a time, in nanoseconds."""
    begin, end = np.maximum(spans[:, np.argsort(spans[0], kind="stable")], after)
    reached = np.maximum.accumulate(np.concatenate([[after], end[:-1]]))
    return int(np.maximum(end - np.maximum(begin, reached), 0).sum())


def network(result: Result) -> Network:
    """The traffic of the measured steps on every link, and the links that ranks waited for."""
    observed, bound = result.observation, result.bound_rank_by_rank
    window, from_ns = observed.window, observed.from_ns
    end_ns = from_ns + round(observed.step_s * window.steps * NS_PER_S)
    counted = result.site.cluster, bound.every_link, bound.labels, window.iterations, window.steps
    return Network(*counted, result.engine_timeline, from_ns, end_ns, waiting(result))
