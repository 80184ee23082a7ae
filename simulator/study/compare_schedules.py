"""Schedules beside one another on equal terms: every rank has the same share of the model, however a schedule cuts it.

The durations given are those of a rank's whole share of one microbatch. A schedule with V chunks per rank runs stages of a
V-th of them; one that splits sequences into k parts runs k times as many units, each a k-th. A crossing between ranks costs
its latency whatever passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import Deadlock, OutsideDomain
from ..program.slot import Durations, PerStage, Shape, as_taken, lay_out
from .schedule import Evaluation, crossings, evaluate

TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Entry:
    """A schedule that takes the shape, evaluated at every latency."""

    name: str
    results: tuple[Evaluation, ...]

    @property
    def chunks(self) -> int:
        """Stages of a rank, of one copy of the model."""
        layout = self.results[0].layout
        return layout.stages // layout.shape.ranks

    @property
    def splits(self) -> int:
        return self.results[0].layout.shape.splits

    @property
    def copies(self) -> int:
        """Copies of the parameters: one for each direction of microbatches."""
        return len(self.results[0].layout.placements)

    @property
    def peak_microbatches(self) -> float:
        """Activations of the fullest rank, in microbatches of its whole share."""
        return max(self.results[-1].peaks["peak"]) / (self.chunks * self.splits)

    def as_dict(self, places: Sequence[int]) -> dict[str, Any]:
        """The row of the table; `places` are the schedule's ranks among the others, at each latency."""
        records = [result.as_dict() for result in self.results]
        at = [
            {"comm": result.durations.comm, "place": place, **{key: record[key] for key in ("makespan", "span", "bubble_ratio")}}
            for result, record, place in zip(self.results, records, places, strict=True)
        ]
        transfers = crossings(self.results[-1].layout)
        sizes = {"chunks": self.chunks, "splits": self.splits, "copies": self.copies}
        return {"schedule": self.name, **sizes, "at": at, "peak_microbatches": self.peak_microbatches, "transfers": transfers}


@dataclass(frozen=True, slots=True)
class Refused:
    """A schedule that does not take the shape, and why."""

    name: str
    reason: str
    nearest: Mapping[str, int]


def compare(schedules: Mapping[str, Any], shape: Shape) -> tuple[list[Entry], list[Refused]]:
    """Evaluates schedules by name, without latency and with that of the shape; the fastest first.

    The shape's durations are those of a rank's share: one number, or one for each of P equal parts of the model in forward
    order.
    """
    entries: list[Entry] = []
    refused: list[Refused] = []
    for name, schedule in schedules.items():
        try:
            entries.append(Entry(name, _evaluated(schedule, shape)))
        except OutsideDomain as refusal:
            refused.append(Refused(name, refusal.reason, refusal.nearest))
        except Deadlock as deadlock:
            refused.append(Refused(name, f"deadlock: {str(deadlock).splitlines()[0]}", {}))
    return sorted(entries, key=lambda entry: entry.results[-1].makespan), refused


def cut(schedule: Any, shape: Shape) -> Shape:
    """The shape that a schedule makes of ranks, whole microbatches, and the durations of a rank's share."""
    splits = shape.splits if "splits" in getattr(schedule, "OPTIONS", ()) else 1
    taken = as_taken(schedule, shape)
    durations = of_a_stage(shape.durations, taken.chunks, splits)
    return replace(taken, splits=splits, microbatches=shape.microbatches * splits, durations=durations)


def _evaluated(schedule: Any, shape: Shape) -> tuple[Evaluation, ...]:
    of_stages = cut(schedule, shape)
    latencies = dict.fromkeys((0.0, shape.durations.comm))
    shapes = (replace(of_stages, durations=replace(of_stages.durations, comm=comm)) for comm in latencies)
    return tuple(evaluate(lay_out(schedule, each)) for each in shapes)


def of_a_stage(durations: Durations, chunks: int, splits: int) -> Durations:
    """Durations of a rank's share cut into those of one chunk of one part of a sequence."""

    def part(duration: PerStage) -> PerStage:
        if isinstance(duration, tuple):
            return tuple(value / (chunks * splits) for value in duration for _ in range(chunks))
        return duration / (chunks * splits)

    return Durations(
        forward=part(durations.forward),
        input_gradient=part(durations.input_gradient),
        weight_gradient=part(durations.weight_gradient),
        backward=None if durations.backward is None else part(durations.backward),
        pair=None if durations.pair is None else durations.pair / (chunks * splits),
        comm=durations.comm,
    )


def places(entries: Sequence[Entry]) -> list[list[int]]:
    """Of every entry its place at each latency, from 1; those that are equally fast share one."""
    spans = [[result.makespan for result in entry.results] for entry in entries]
    return [[1 + sum(other[i] < own * (1 - TOLERANCE) for other in spans) for i, own in enumerate(mine)] for mine in spans]
