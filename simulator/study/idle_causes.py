"""Idle time of a step by cause and place: every idle instant of every rank has one cause.

`metrics/idle.py` distinguishes bubble, imbalance of groups, transfers, launches and the optimizer. This module divides transfers
by the links that are full meanwhile, and the bubble into parts: warm-up until a rank's first backward slot begins, drain after
its last forward slot has ended, and dependency in between. Only the time that the rank would also wait if the slots of all ranks
took as long as those of the median rank counts as one of these; that pipeline is simulated. The excess is stage imbalance, and
names the stage whose rank computes for longest.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..engine.task import Array
from ..metrics import Observation
from ..metrics.idle import BUBBLE, BUSY, OPTIMIZER, imbalance, waits
from ..program.operations import HOST
from ..program.slot import FORWARD, KINDS
from ..simulation.result import Result
from ..simulation.run import Run
from .without import Counterfactual

WARM_UP, DEPENDENCY, DRAIN, STAGE_IMBALANCE, LAUNCHES = "warm-up", "dependency", "drain", "stage imbalance", "launches"
PARTS = (WARM_UP, DEPENDENCY, DRAIN)
"""The parts of a step in which a rank waits for other stages, in the order of time."""


class Cause(NamedTuple):
    """Why time passes: `busy`, a part of the bubble (or `bubble`, if it is not divided), an imbalance of stages or of an axis, an
    axis, `launches` or `optimizer`."""

    name: str
    stage: int = -1
    """For an imbalance, the stage that ranks wait for."""
    rank: int = -1
    """For an imbalance, the rank that others wait for, or one that behaves like it."""
    links: str = ""
    """For an axis, the kinds of the full links that bytes wait for, such as `nic > leaf`; "" if none is full."""

    @property
    def place(self) -> str:
        """Of an imbalance, the stage and the rank that are waited for; "" for other causes."""
        return f"stage {self.stage}, rank {self.rank}" if self.stage >= 0 else f"rank {self.rank}" if self.rank >= 0 else ""

    @property
    def text(self) -> str:
        if self.links:
            return f"{self.name}, waiting for {self.links}"
        return f"{self.name} ({self.place})" if self.place else self.name


@dataclass(frozen=True)
class IdleTime:
    """The measured steps of every class of ranks by cause, in nanoseconds: a column for each cause, which add up to the steps."""

    result: Run
    causes: tuple[Cause, ...]
    ns: Array

    def mean_s(self, name: str) -> float:
        """Seconds of a step due to a cause, in all places together, on a mean rank."""
        chosen = [number for number, cause in enumerate(self.causes) if cause.name == name]
        return self.result.observation.mean_s(self.ns[:, chosen].sum(axis=1))

    @cached_property
    def largest(self) -> dict[Cause, float]:
        """Seconds of a step by cause on a mean rank, the longest first; without busy time, and without what does not occur."""
        means_s = {cause: self.result.observation.mean_s(self.ns[:, number]) for number, cause in enumerate(self.causes)}
        return {cause: s for cause, s in sorted(means_s.items(), key=lambda item: -item[1]) if s and cause.name != BUSY}

    def as_dict(self) -> dict[str, Any]:
        """What is idle on a mean rank, and the nanoseconds of all measured steps on every class of ranks."""
        timeline, step_s = self.result.engine_timeline, self.result.metrics.step_time_s
        mean = [{**cause._asdict(), "seconds": s, "fraction": s / step_s} for cause, s in self.largest.items()]
        first = np.unique(timeline.class_of, return_index=True)[1]
        by_rank = [
            {
                "rank": int(first[which]),
                "alike": int(timeline.multiplicity[which]),
                "ns": {cause.text: ns for cause, ns in zip(self.causes, row.tolist(), strict=True) if ns},
            }
            for which, row in enumerate(self.ns)
        ]
        return {"mean": mean, "by_rank": by_rank}


def idle_time(result: Run) -> IdleTime:
    """The time of a run by cause: one more simulation, where ranks wait for other stages and do not compute for equally long."""
    columns: dict[Cause, Array] = {}
    whole = result.time_by_cause
    for name in (BUSY, HOST, OPTIMIZER):
        columns[Cause(LAUNCHES if name == HOST else name)] = whole.of(name)
    columns |= _transfers(result)
    if whole.of(BUBBLE).any():
        columns |= _bubble(result)
    for axis in whole.causes:
        if (name := imbalance(axis)) in whole.causes and whole.of(name).any():
            columns |= _members(result, axis)
    occurring = {cause: ns for cause, ns in columns.items() if ns.any()}
    return IdleTime(result, tuple(occurring), np.stack(list(occurring.values()), axis=1))


def _transfers(result: Run) -> dict[Cause, Array]:
    """The exposed time of every axis, apart by the kinds of links that are full meanwhile."""
    observed, (kind, names), waiting = result.observation, result.network.kinds, result.network.waiting
    columns: dict[Cause, Array] = defaultdict(lambda: np.zeros(len(observed.labels), dtype=np.int64))
    of_limit = [
        " and ".join(names[i] for i in np.unique(kind[list(links)]).tolist()) if full else ""
        for links, full in zip(waiting.limits, waiting.full, strict=True)
    ]
    for which, axis, limit, ns in zip(
        *(c.tolist() for c in (waiting.which, waiting.axis, waiting.limit, waiting.ns)), strict=True
    ):
        columns[Cause(observed.axes[axis], links=of_limit[limit])][which] += ns
    return columns


def _members(result: Result, axis: str) -> dict[Cause, Array]:
    """The imbalance of an axis by the member of the group that computes meanwhile."""
    observed, timeline = result.observation, result.engine_timeline
    pieces = waits(observed, axis)
    rank_of, row_of = timeline.expansion.origin
    first = np.unique(timeline.class_of, return_index=True)[1]
    columns: dict[Cause, Array] = defaultdict(lambda: np.zeros(len(observed.labels), dtype=np.int64))
    lasted_ns, member = pieces.until_ns - pieces.from_ns, rank_of[pieces.task]
    for which, other, row, ns in np.stack([pieces.which, member, row_of[pieces.task], lasted_ns], axis=1).tolist():
        columns[Cause(imbalance(axis), int(observed.labels[other].stage[row]), int(first[other]))][which] += ns
    return columns


def _bubble(result: Result) -> dict[Cause, Array]:
    """The bubble by its causes; undivided where every message is simulated, because such a run is not simulated again with other
    durations."""
    parts_ns = usual_ns = _by_part(result.observation)
    slot_ns = _slot_ns(result)
    median_ns = _median(slot_ns, result.engine_timeline.multiplicity)
    if (slot_ns != median_ns).any():
        if result.scenario.fidelity.collectives == "stepwise":
            return {Cause(BUBBLE): parts_ns.sum(axis=1)}
        factors = np.where(slot_ns > 0, median_ns / np.maximum(slot_ns, 1), 1.0)
        usual_ns = np.minimum(parts_ns, _by_part(Counterfactual(result).with_slots_scaled(factors)))
    columns = {Cause(part): ns for part, ns in zip(PARTS, usual_ns.T, strict=True)}
    return {**columns, _slowest(result, slot_ns.sum(axis=1)): (parts_ns - usual_ns).sum(axis=1)}


def _slot_ns(result: Result) -> Array:
    """Nanoseconds of the kernels of each class of ranks (rows) in each kind of slot (columns) of the measured steps."""
    ns = np.zeros((len(result.observation.labels), len(KINDS)), dtype=np.int64)
    for which, labels in enumerate(result.observation.labels):
        times, counted = result.engine_timeline.class_times(which), result.observation.counts(labels.iteration)
        for column, kind in enumerate(KINDS):
            rows = labels.is_compute & (labels.phase == kind) & counted
            ns[which, column] = (times.end_ns - times.start_ns)[rows].sum()
    return ns


def _median(ns: Array, multiplicity: Array) -> Array:
    """The value of the median rank in each column; the lower of two for an even number of ranks."""
    order = np.argsort(ns, axis=0, kind="stable")
    reached = np.cumsum(multiplicity[order], axis=0)
    middle = (2 * reached >= reached[-1]).argmax(axis=0)
    found: Array = np.take_along_axis(ns, np.take_along_axis(order, middle[None], axis=0), axis=0)[0]
    return found


def _slowest(result: Result, slot_ns: Array) -> Cause:
    """The stage that takes longest on the rank that computes for longest."""
    which = int(np.argmax(slot_ns))
    labels, times = result.observation.labels[which], result.engine_timeline.class_times(which)
    rows = labels.is_compute & (labels.stage >= 0) & result.observation.counts(labels.iteration)
    of_stage_ns = np.bincount(labels.stage[rows], weights=(times.end_ns - times.start_ns)[rows])
    return Cause(STAGE_IMBALANCE, int(np.argmax(of_stage_ns)), int(np.argmax(result.engine_timeline.class_of == which)))


def _by_part(observed: Observation) -> Array:
    """Nanoseconds of bubble of each class of ranks (rows) in each of the `PARTS` (columns)."""
    pieces = waits(observed)
    ns = np.zeros((len(observed.labels), len(PARTS)), dtype=np.int64)
    for which, labels in enumerate(observed.labels):
        of = pieces.which == which
        if of.any():
            rows = np.flatnonzero(labels.is_compute)
            starts_ns = observed.timeline.class_times(which).start_ns[rows]
            order = np.argsort(starts_ns, kind="stable")
            next_row = np.searchsorted(starts_ns[order], pieces.from_ns[of], side="right")
            in_slot = labels.stage[rows] >= 0
            part = _part_before(labels.phase[rows][order], in_slot[order])
            np.add.at(ns[which], part[next_row], (pieces.until_ns - pieces.from_ns)[of])
    return ns


def _part_before(phase: Array, in_slot: Array) -> Array:
    """The index in `PARTS` of the time before each kernel of a rank, and, behind the last kernel, of the time that follows."""
    part = np.full(len(phase) + 1, PARTS.index(DRAIN))
    begins = np.flatnonzero(in_slot & ~np.append(False, in_slot[:-1]))
    for begin in begins.tolist():
        end = begin + int(np.argmin(np.append(in_slot[begin:], False)))
        kinds = phase[begin:end]
        backward = np.flatnonzero(np.isin(kinds, KINDS) & (kinds != FORWARD))
        first_backward = begin + int(backward[0]) if len(backward) else end - 1
        last_forward = begin + int(np.flatnonzero(kinds == FORWARD)[-1]) if (kinds == FORWARD).any() else begin - 1
        part[begin : last_forward + 1] = PARTS.index(DEPENDENCY)
        part[begin : first_backward + 1] = PARTS.index(WARM_UP)
    return part
