"""Critical path of a step: the chain of tasks that each waited for the one before, from the end of the step back to its start.

The path begins at the event that closes the measured steps and goes back, at each task to the predecessor (streams included) for
which it waited longest, by end plus tail, until the time of the event that opens them. Its segments follow one another without a
gap, so that their lengths add up to the measured window of the rank at which it ends. Where bytes wait for full links, a segment
names the link.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..metrics.idle import latest_predecessors
from ..program.labels import Labels
from ..program.operations import HOST
from ..simulation.network.limiting_links import limits_of_flows
from ..simulation.network.waits import links_of_limits
from ..simulation.result import Result
from ..units import seconds

COMPUTE, OPTIMIZER, LAUNCH = "compute", "optimizer", "launches"


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of the path, spent on one operation of one rank; of a collective, the first of its ranks is named."""

    rank: int
    stage: int
    """Number of the stage in model order; -1 outside stages."""
    phase: str
    microbatch: int
    op: str
    category: str
    """`compute`, `optimizer` or `launches`; for communication its axis."""
    link: str
    """The full link that bytes of the operation wait for, the first of several; "" if none is full, or no byte moves."""
    from_ns: int
    until_ns: int

    @property
    def length_ns(self) -> int:
        return self.until_ns - self.from_ns


@dataclass(frozen=True)
class CriticalPath:
    """The segments of the path of a run, in the order of time."""

    segments: tuple[Segment, ...]
    steps: int
    """Number of training steps that the path spans."""

    @property
    def length_ns(self) -> int:
        return sum(segment.length_ns for segment in self.segments)

    def by(self, of: Callable[[Segment], Any]) -> dict[Any, float]:
        """Seconds of the path per step by a property of its segments, the longest first."""
        total_ns: dict[Any, int] = defaultdict(int)
        for segment in self.segments:
            total_ns[of(segment)] += segment.length_ns
        return {key: seconds(ns / self.steps) for key, ns in sorted(total_ns.items(), key=lambda item: -item[1])}

    @cached_property
    def by_link(self) -> dict[str, float]:
        """Seconds of the path per step in which it waits for full links."""
        return {link: took for link, took in self.by(lambda segment: segment.link).items() if link}

    @cached_property
    def by_category(self) -> dict[str, float]:
        return self.by(lambda segment: segment.category)

    def as_list(self) -> list[dict[str, Any]]:
        """Every segment as plain data."""
        names = ("rank", "stage", "phase", "microbatch", "op", "category", "link", "from_ns", "until_ns")
        return [{name: getattr(segment, name) for name in names} for segment in self.segments]


def critical_path(result: Result) -> CriticalPath:
    """The critical path of the measured steps of a run."""
    observed = result.observation
    times, window = observed.timeline.times, observed.window
    latest = latest_predecessors(observed)
    closing = int(np.argmax(window.end_ns))
    begin_ns, high_ns = int(window.begin_ns[closing]), int(window.end_ns[closing])
    task = _closing_task(result, closing)
    if window.iterations.start > 0:
        task = int(latest[task])
    found: list[tuple[int, int, int]] = []
    while task >= 0 and high_ns > begin_ns:
        before = int(latest[task])
        arrived_ns = int(times.arrival_ns[before]) if before >= 0 else 0
        low_ns = max(begin_ns, min(high_ns, arrived_ns, int(times.start_ns[task])) if before >= 0 else 0)
        if high_ns > low_ns:
            found.append((task, low_ns, high_ns))
        task, high_ns = before, low_ns
    pieces = _by_link(result, found[::-1])
    first = np.unique(observed.timeline.class_of, return_index=True)[1].tolist()
    return CriticalPath(tuple(one for piece in pieces for one in _segments(result, first, *piece)), window.steps)


def _by_link(result: Result, found: Sequence[tuple[int, int, int]]) -> Iterator[tuple[int, int, int, str]]:
    """Tasks with their times on the path, cut where another link begins to limit them: task, from, until, and the full link."""
    timeline = result.engine_timeline
    graph, tasks = timeline.expansion.graph, np.array([task for task, _, _ in found], dtype=np.int64)
    flows = np.unique(tasks[graph.footprint[tasks] >= 0])
    closed = result.scenario.fidelity.collectives == "closed"
    limited = limits_of_flows(graph, timeline.times, flows, uncontended=closed)
    links_of, _ = links_of_limits(result)
    names = [
        result.site.cluster.wiring.link_name(links[0]) if limit.full and (links := links_of(limit)) else ""
        for limit in limited.limits
    ]
    first, last = (np.searchsorted(limited.flow, tasks, side=side).tolist() for side in ("left", "right"))
    for (task, low, high), *entries in zip(found, first, last, strict=True):
        for entry in range(*entries):
            begin, end = max(low, int(limited.from_ns[entry])), min(high, int(limited.until_ns[entry]))
            link = names[int(limited.limit[entry])]
            if end > begin and link:
                if begin > low:
                    yield task, low, begin, ""
                yield task, begin, end, link
                low = end
        if high > low:
            yield task, low, high, ""


def _closing_task(result: Result, which: int) -> int:
    """The task whose end (or, where steps overlap, whose start) closes the window of a class of ranks."""
    observed = result.observation
    times, expansion = observed.timeline.times, observed.timeline.expansion
    if observed.window.iterations.start == 0:
        return int(np.argmax(times.arrival_ns))
    labels, tasks = observed.labels[which], expansion.tasks_of(which)
    first = np.flatnonzero(labels.is_compute & (labels.iteration == observed.window.iterations.stop))
    return int(tasks[first[np.argmin(times.start_ns[tasks[first]])]])


def _segments(result: Result, first: Sequence[int], task: int, low_ns: int, high_ns: int, link: str) -> Iterator[Segment]:
    """The segments of one task of the path: one, or where its rows were merged one for each. `first` are ranks by class."""
    expansion = result.observation.timeline.expansion
    which = int(expansion.origin[0][task])
    labels, rank = result.observation.labels[which], first[which]
    row, merged = int(expansion.origin[1][task]), expansion.template_of(which).merged
    rows = np.array([row]) if merged is None else np.flatnonzero(merged.of_row == merged.of_row[row])
    start_ns = result.observation.timeline.class_times(which).start_ns[rows].tolist() if len(rows) > 1 else [low_ns]
    ends_ns = [*start_ns[1:], high_ns]
    from_ns = result.observation.from_ns
    for row, begin, end in zip(rows.tolist(), [low_ns, *start_ns[1:]], ends_ns, strict=True):
        begin, end = max(low_ns, begin), min(high_ns, end)
        if end > begin:
            step = labels.steps[int(labels.step[row])]
            stage = int(labels.stage[row])
            at = begin - from_ns, end - from_ns
            yield Segment(rank, stage, step.phase, step.microbatch, labels.block(row), _category(labels, row), link, *at)


def _category(labels: Labels, row: int) -> str:
    if labels.is_compute[row]:
        return OPTIMIZER if labels.phase[row] == "optimizer" else COMPUTE
    axis = str(labels.axis[row])
    return LAUNCH if axis == HOST else axis or "wait"
