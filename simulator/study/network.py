"""What the network did in a step: bytes and busy time of every link, those that ranks wait for, and one link over time.

Bytes are exact: every collective puts its wire bytes, weighted, on each link of its footprint. Over time the bytes of a
collective are spread evenly between the end of its latency and its own end. Links that behave alike are looked at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from ..binding.bind import Bound
from ..engine.fold import Partition, refine, verify
from ..engine.task import RATE_BITS, WEIGHT_BITS, Array
from ..engine.timeline import Timeline
from ..hardware.cluster import Cluster
from ..units import seconds
from .waiting import Wait, WaitedLink, Waiting, waited_links, waits

if TYPE_CHECKING:
    from .run import Run


@dataclass(frozen=True, slots=True)
class LinkUse:
    """One link in one step."""

    name: str
    kind: str
    bytes: float
    capacity_bytes_per_s: float
    busy_s: float
    """While anything was on its way over it."""
    utilisation: float
    """Bytes over what it could have carried in the step."""


@dataclass(frozen=True)
class Traffic:
    """The bytes of one step on the links of a cluster, whenever they move."""

    cluster: Cluster
    bound: Bound
    """With every link in its footprints."""
    iteration: int

    @cached_property
    def bytes(self) -> Array:
        """Of every link, in the order of the cluster's wiring."""
        skeleton, alike = self.bound.skeleton, self._alike.communicator
        carried = np.zeros((len(alike), skeleton.patterns))
        for communicator, program, rows in self._turns(set(_first_of(alike).tolist())):
            work = skeleton.tariff.work[skeleton.kind[communicator]][skeleton.templates[program].charge[rows]]
            pattern = skeleton.tariff.pattern[skeleton.kind[communicator]][skeleton.templates[program].charge[rows]]
            np.add.at(carried[communicator], pattern, work / (1 << RATE_BITS))
        of_foot = carried[_first_of(alike)[alike]].ravel()
        each = of_foot[skeleton.feet.row_of] * skeleton.foot_weight / (1 << WEIGHT_BITS)
        return np.bincount(skeleton.feet.idx, weights=each, minlength=self.cluster.wiring.links)

    @cached_property
    def _alike(self) -> Partition:
        """Communicators that do the same at the same times, and links that carry the same."""
        partition = refine(self.bound.skeleton)
        verify(self.bound.skeleton, partition)
        return partition

    def kind_of(self, link: int) -> str:
        """What a link joins: `nic > leaf`."""
        wiring = self.cluster.wiring
        return f"{wiring.vertex_kind(int(wiring.source[link]))} > {wiring.vertex_kind(int(wiring.target[link]))}"

    @cached_property
    def kinds(self) -> tuple[Array, tuple[str, ...]]:
        """The kind of every link, a number, and the names of the kinds in the order of their first links."""
        wiring = self.cluster.wiring
        first = np.array([run.first for run in wiring.vertices])
        source, target = (np.searchsorted(first, ends, side="right") - 1 for ends in (wiring.source, wiring.target))
        _, begin, which = np.unique(source * len(first) + target, return_index=True, return_inverse=True)
        order = np.argsort(begin)
        return np.argsort(order)[which], tuple(self.kind_of(int(begin[i])) for i in order)

    @cached_property
    def _first(self) -> tuple[Array, Array, Array]:
        """Of every communicator in use: its number, and the slot of it at its first member, and that rank."""
        communicator, slot, rank = self.bound.skeleton.members
        number, at = np.unique(communicator, return_index=True)
        return number, slot[at], rank[at]

    @cached_property
    def _first_rank(self) -> dict[int, int]:
        number, _, rank = self._first
        return dict(zip(number.tolist(), rank.tolist(), strict=True))

    def _turns(self, wanted: set[int] | None = None) -> Iterator[tuple[int, int, Array]]:
        """(communicator, its first member's program, the rows of that program that are its turns in the observed step)."""
        skeleton = self.bound.skeleton
        rows_of: dict[tuple[int, int], Array] = {}
        for communicator, slot, rank in zip(*(column.tolist() for column in self._first), strict=True):
            if wanted is not None and communicator not in wanted:
                continue
            program = int(skeleton.program[rank])
            if (program, slot) not in rows_of:
                rows = skeleton.templates[program].rows_of(slot)
                rows_of[program, slot] = rows[self.bound.labels[program].iteration[rows] == self.iteration]
            yield communicator, program, rows_of[program, slot]


@dataclass(frozen=True)
class Network(Traffic):
    """The traffic of the observed step of a run, over time."""

    timeline: Timeline
    begin_ns: int
    end_ns: int
    waiting: Waiting
    """The exposed time of every rank by the links that it waits for."""

    @property
    def step_s(self) -> float:
        return seconds(self.end_ns - self.begin_ns)

    @cached_property
    def utilisation(self) -> Array:
        """Of every link: bytes over what it could have carried in the step."""
        able: Array = self.cluster.wiring.capacity_bytes_per_s * self.step_s
        return self.bytes / able if self.step_s else np.zeros(len(able))

    def busiest(self, count: int = 10) -> list[LinkUse]:
        """The links with the highest utilisation; of equal ones the first."""
        order = np.argsort(-np.round(self.utilisation, 12), kind="stable")[:count]
        return [self.link(int(i)) for i in order if self.bytes[i] > 0]

    def link(self, link: int) -> LinkUse:
        wiring = self.cluster.wiring
        return LinkUse(
            wiring.link_name(link),
            self.kind_of(link),
            float(self.bytes[link]),
            float(wiring.capacity_bytes_per_s[link]),
            float(self.busy_s[link]),
            float(self.utilisation[link]),
        )

    @cached_property
    def classes(self) -> list[dict[str, Any]]:
        """Links that join the same kinds of vertices: how many, their bytes, the mean over them of the seconds that they are
        busy (`busy_s`) and of their utilisation, the highest utilisation, and the seconds that ranks, on average, wait for
        what such links limit (`waited_s`)."""
        which, names = self.kinds
        waited_s = self.waiting.behind(which)
        return [
            {
                "kind": name,
                "links": int((which == i).sum()),
                "bytes": float(self.bytes[which == i].sum()),
                "busy_s": float(self.busy_s[which == i].mean()),
                "utilisation": float(self.utilisation[which == i].mean()),
                "highest_utilisation": float(self.utilisation[which == i].max()),
                "waited_s": waited_s.get(i, 0.0),
            }
            for i, name in enumerate(names)
        ]

    @cached_property
    def waits(self) -> list[Wait]:
        """What ranks wait for, the longest first: together the exposed communication of the step."""
        return waits(self.waiting, *self.kinds)

    def waited_links(self, count: int = 10) -> list[WaitedLink]:
        """The links that ranks wait for longest; of links alike the first."""
        return waited_links(self.waiting, self.cluster.wiring, *self.kinds)[:count]

    @cached_property
    def busy_s(self) -> Array:
        """Of every link: how long anything was on its way over it."""
        feet, patterns, alike = self.bound.skeleton.feet, self.bound.skeleton.patterns, self._alike
        first, spans_ns = _first_of(alike.link), self._spans_ns
        seen = np.flatnonzero(np.isin(feet.idx, first))
        foot = feet.row_of[seen]
        same = np.stack([alike.link[feet.idx[seen]], alike.communicator[foot // patterns] * patterns + foot % patterns])
        busy = np.zeros(len(first))
        for link, crossing in groupby(np.unique(same, axis=1).T.tolist(), key=itemgetter(0)):
            spans = [spans_ns[foot] for _, foot in crossing if foot in spans_ns]
            if spans:
                busy[link] = seconds(_covered_ns(np.concatenate(spans, axis=1), self.begin_ns))
        return busy[alike.link]

    @cached_property
    def _spans_ns(self) -> dict[int, Array]:
        """Of every footprint in use, by the class of its communicator: when bytes begin to move, and when they have arrived, of
        each of its turns in the step."""
        skeleton, times, alike = self.bound.skeleton, self.timeline.times, self._alike.communicator
        tariff, found = skeleton.tariff, {}
        for communicator, program, rows in self._turns(set(_first_of(alike).tolist())):
            kind, charge = skeleton.kind[communicator], skeleton.templates[program].charge[rows]
            tasks = self.timeline.tasks_of(self._first_rank[communicator])[rows]
            end = times.end_ns[tasks]
            begin = np.minimum(times.start_ns[tasks] + tariff.latency_ns[kind, charge], end - 1)
            pattern = np.where(tariff.work[kind, charge] > 0, tariff.pattern[kind, charge], -1)
            for of in set(pattern.tolist()) - {-1}:
                at = pattern == of
                found[int(alike[communicator] * skeleton.patterns + of)] = np.stack([begin[at], end[at]])
        return found

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
        """(when its first byte may move, end, bytes) of every transfer that crosses a link in the step, in nanoseconds."""
        skeleton = self.bound.skeleton
        feet = np.flatnonzero(skeleton.feet.idx == link)
        foot_of = skeleton.feet.row_of[feet]
        weight = dict(zip(foot_of.tolist(), (skeleton.foot_weight[feet] / (1 << WEIGHT_BITS)).tolist(), strict=True))
        wanted = set((foot_of // skeleton.patterns).tolist())
        for communicator, program, rows in self._turns(wanted):
            rank = self._first_rank[communicator]
            tasks, charge = self.timeline.tasks_of(rank)[rows], skeleton.templates[program].charge[rows]
            tariff, kind = skeleton.tariff, skeleton.kind[communicator]
            for task, of in zip(tasks.tolist(), charge.tolist(), strict=True):
                share = weight.get(int(communicator * skeleton.patterns + tariff.pattern[kind, of]), 0.0)
                end = int(self.timeline.times.end_ns[task])
                begin = min(int(self.timeline.times.start_ns[task]) + int(tariff.latency_ns[kind, of]), end - 1)
                if share and tariff.work[kind, of]:
                    yield begin, end, share * float(tariff.work[kind, of]) / (1 << RATE_BITS)


def _first_of(classes: Array) -> Array:
    """The first member of each class. Classes are numbered 0, 1, 2 ..."""
    first: Array = np.unique(classes, return_index=True)[1]
    return first


def _covered_ns(spans: Array, after: int) -> int:
    """How much of the time after a moment the spans, a row of begins and one of ends, cover together."""
    begin, end = np.maximum(spans[:, np.argsort(spans[0], kind="stable")], after)
    reached = np.maximum.accumulate(np.concatenate([[after], end[:-1]]))
    return int(np.maximum(end - np.maximum(begin, reached), 0).sum())


@dataclass(frozen=True, slots=True)
class Share:
    """What a job sends over a link in one of its steps."""

    name: str
    bytes: float


@dataclass(frozen=True, slots=True)
class SharedLink:
    """A link that several jobs use."""

    name: str
    capacity_bytes_per_s: float
    utilisation: float
    """By all jobs together, step after step."""
    jobs: tuple[Share, ...]


def shared_links(cluster: Cluster, users: Sequence[tuple[str, float, Array]], count: int) -> list[SharedLink]:
    """The fullest of the links that several users share; of each user its name, seconds per step and bytes on every link."""
    wiring = cluster.wiring
    rate = sum((carried / step_s for _, step_s, carried in users if step_s), np.zeros(wiring.links))
    used = rate / wiring.capacity_bytes_per_s
    several = np.sum([carried > 0 for _, _, carried in users], axis=0) > 1
    order = np.argsort(-np.round(used, 12), kind="stable")
    return [
        SharedLink(
            wiring.link_name(link),
            float(wiring.capacity_bytes_per_s[link]),
            float(used[link]),
            tuple(Share(name, float(carried[link])) for name, _, carried in users if carried[link] > 0),
        )
        for link in order[several[order]][:count].tolist()
    ]


def network(run: Run) -> Network:
    """The network's part in a run."""
    from .assemble import bound_of
    from .waiting import waiting

    seen = run.observation
    bound = bound_of(run.scenario, run.program, every_link=True)
    return Network(run.scenario.cluster, bound, seen.iteration, run.engine_timeline, seen.begin_ns, seen.end_ns, waiting(run))
