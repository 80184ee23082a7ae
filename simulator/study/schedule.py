"""A bare schedule in unit times: makespan, bubble by the three definitions of the papers, and peak activations.

A slot is a task on the stream of its rank. A crossing between ranks is a task with the given latency on a stream of its own; a
crossing within a rank is free. The engine is that of training steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from itertools import pairwise
from math import fsum, lcm
from typing import Any

import numpy as np

from ..config import catalog
from ..engine import heap
from ..engine.task import UNCAPPED, Csr, TaskGraph
from ..engine.timeline import grid
from ..errors import Deadlock, UserError
from ..escape import Summarised
from ..program.layout import Layout
from ..program.slot import Box, Durations, Pair, Slot, slots_of
from ..units import counted

MOST_TICKS = 1 << 60
"""Largest total length of all boxes and crossings, in ticks."""
MOST_BOXES_WITH_MEMORY = 20_000
"""Most boxes for which the record of an evaluation includes the memory over time; longer records are of no use to readers."""


@dataclass(frozen=True, repr=False)
class Evaluation(Summarised):
    """A schedule with the start and end of every box, in the unit of its durations."""

    layout: Layout
    starts: tuple[tuple[float, ...], ...]
    ends: tuple[tuple[float, ...], ...]
    peaks: dict[str, list[float]] = field(default_factory=dict)
    name: str = ""
    """The name of the schedule, if the user gave a name."""
    certificate: Any = None
    """The certificate of a searched schedule: its distance from the best possible makespan."""

    @property
    def durations(self) -> Durations:
        return self.layout.shape.durations

    @property
    def busy(self) -> list[float]:
        """Busy time of each rank."""
        return [float(sum(self.durations.of(box) for box in boxes)) for boxes in self.layout.orders]

    @property
    def makespan(self) -> float:
        """Time from the first start to the last end over all ranks: the step time with a synchronised optimizer."""
        return max(e[-1] for e in self.ends if e) - min(s[0] for s in self.starts if s)

    @property
    def span_per_rank(self) -> list[float]:
        """Time from the first start to the last end of each rank."""
        return [e[-1] - s[0] if e else 0.0 for s, e in zip(self.starts, self.ends, strict=True)]

    @property
    def bubble_ratio(self) -> float:
        """Idle fraction of the makespan, over all ranks."""
        busy = self.busy
        return 1 - sum(busy) / len(busy) / self.makespan

    def memory_curve(self, rank: int) -> tuple[list[float], list[int]]:
        """Times at which a rank's number of held chunks of activations changes, and the number held from each time on.

        A chunk is held from the start of its F to the end of its B or W. Chunks freed and taken at one instant are one step, so
        that no entry exceeds the rank's `peak`.
        """
        times, alive, held = [0.0], [0], 0
        for box, start, end in zip(self.layout.orders[rank], self.starts[rank], self.ends[rank], strict=True):
            kinds = [slot.kind for slot in slots_of(box)]
            for time, change in ((start, kinds.count("F")), (end, -kinds.count("B") - kinds.count("W"))):
                held += change
                if times[-1] == time:
                    alive[-1] = held
                elif change:
                    times.append(time)
                    alive.append(held)
        return times, alive

    def as_dict(self) -> dict[str, Any]:
        """The content of `trainsim schedule --json`."""
        busy, span, shape, orders = self.busy, max(self.span_per_rank), self.layout.shape, self.layout.orders
        sizes = {"ranks": shape.ranks, "chunks": shape.chunks, "microbatches": shape.microbatches}
        is_short = sum(map(len, orders)) <= MOST_BOXES_WITH_MEMORY
        curves = (self.memory_curve(rank) for rank in range(len(orders)))
        return {
            **({"schedule": self.name, "shape": sizes} if self.name else {}),
            "makespan": self.makespan,
            "span": span,
            "span_per_rank": self.span_per_rank,
            "span_bubble": span - max(busy),
            "bubble_ratio": self.bubble_ratio,
            "bubble_overhead": self.makespan / max(busy) - 1,
            "busy_per_rank": busy,
            **self.peaks,
            "memory": [[[time, held] for time, held in zip(*curve, strict=True)] for curve in curves] if is_short else None,
            "transfers": crossings(self.layout),
            "placement": list(self.layout.placement),
            "ranks": [[["FB", *map(list, box)] if isinstance(box, Pair) else list(box) for box in boxes] for boxes in orders],
            **({} if self.certificate is None else {"certificate": asdict(self.certificate)}),
        }

    @property
    def summary(self) -> list[tuple[str, str]]:
        """The most important numbers, with their names."""
        shape, busy, spans = self.layout.shape, self.busy, self.span_per_rank
        sizes = f"{counted(shape.ranks, 'rank')} x {counted(shape.chunks, 'chunk')}, {counted(shape.microbatches, 'microbatch')}"
        longest, overhead = max(spans), self.makespan / max(busy) - 1
        return [
            ("schedule", f"{catalog.called(self.name)}, {sizes}" if self.name else sizes),
            ("makespan", f"{self.makespan:.6g} from the first start to the last end"),
            (
                "longest span",
                f"{longest:.6g} on one rank, from its first start to its last end, {longest - max(busy):.6g} of it idle",
            ),
            ("bubble ratio", f"{self.bubble_ratio:.4%} of the makespan idle, mean over ranks"),
            ("bubble overhead", f"{overhead:.4%} longer than the work of the busiest rank"),
            ("transfers", f"{crossings(self.layout):,} between ranks"),
        ]


def evaluate(layout: Layout, name: str = "", certificate: Any = None) -> Evaluation:
    """The evaluation of a laid-out schedule with the durations of its shape. Raises `Deadlock` if its order is impossible."""
    durations = layout.shape.durations
    boxes = [(rank, box) for rank, order in enumerate(layout.orders) for box in order]
    lengths = [durations.of(box) for _, box in boxes]
    if not any(lengths):
        raise UserError("no slot has a length", hint="give F, B, I or W one")
    crossed = crossings(layout)
    per_unit = _ticks_per_unit({*lengths, *([durations.comm] if crossed else [])}, fsum(lengths) + durations.comm * crossed)
    graph = _graph(layout, boxes, [round(x * per_unit) for x in map(_exact, lengths)], round(_exact(durations.comm) * per_unit))
    try:
        times = heap.simulate(graph)
    except Deadlock as deadlock:
        raise _explained(deadlock, boxes, graph) from None
    cuts = np.cumsum([len(order) for order in layout.orders])
    starts, ends = (
        tuple(tuple(of_rank.tolist()) for of_rank in np.split(column / float(per_unit), cuts)[:-1])
        for column in (times.start_ns, times.end_ns)
    )
    return Evaluation(layout, starts, ends, peaks(layout), name, certificate)


def _exact(duration: float) -> Fraction:
    """A duration as the exact value of its decimal text: 0.1 is a tenth."""
    return Fraction(repr(float(duration)))


def _ticks_per_unit(durations: Iterable[float], total: float) -> Fraction:
    """Ticks per unit of time. All durations are whole numbers of ticks if their `total` is then at most `MOST_TICKS`. Otherwise
    the total is `MOST_TICKS`: a tick is far below 1e-9 of it, and no time comes near the largest value of a column of times.
    """
    common = lcm(*(_exact(duration).denominator for duration in durations))
    return min(Fraction(common), MOST_TICKS / Fraction(total))


def _graph(layout: Layout, boxes: list[tuple[int, Box]], lengths: list[int], comm: int) -> TaskGraph:
    """A task per box on the stream of its rank, and a task per crossing."""
    task_of = {slot: i for i, (_, box) in enumerate(boxes) for slot in slots_of(box)}
    durations, preds = list(lengths), [list[int]() for _ in boxes]
    streams = [list[int]() for _ in layout.orders]
    for task, (rank, box) in enumerate(boxes):
        streams[rank].append(task)
        for source in filter(None, (_needs(slot, layout, task_of) for slot in slots_of(box))):
            before = task_of[source]
            if boxes[before][0] != rank and comm:
                durations.append(comm)
                preds.append([before])
                before = len(durations) - 1
                streams.append([before])
            preds[task].append(before)
    n = len(durations)
    none, zero, empty = np.full(n, -1), np.zeros(n, dtype=np.int64), np.zeros(0, dtype=np.int64)
    ticks, uncapped, no_footprints = np.array(durations, dtype=np.int64), np.full(n, UNCAPPED), Csr.from_lists([])
    rows = Csr.from_lists(streams), Csr.from_lists(preds)
    return TaskGraph(ticks, zero, none, none, zero, uncapped, *rows, no_footprints, empty, empty, empty, ())


def _needs(slot: Slot, layout: Layout, task_of: dict[Slot, int]) -> Slot | None:
    """The slot whose result a slot needs: the previous stage in a forward pass, the next stage in a backward pass."""
    kind, stage, microbatch = slot
    if kind == "F":
        return Slot("F", stage - 1, microbatch) if stage else None
    if kind == "W":
        return Slot("I", stage, microbatch)
    if stage == layout.stages - 1:
        return Slot("F", stage, microbatch)
    whole = Slot("B", stage + 1, microbatch)
    return whole if whole in task_of else Slot("I", stage + 1, microbatch)


def _explained(deadlock: Deadlock, boxes: list[tuple[int, Box]], graph: TaskGraph) -> Deadlock:
    def task_name(task: int) -> str:
        return str(boxes[task][1]) if task < len(boxes) else f"the arrival of {boxes[int(graph.preds.row(task)[0])][1]}"

    ranks = boxes[-1][0] + 1 if boxes else 0
    on_ranks = [b for b in deadlock.blocked if b.stream < ranks]
    text = f"{str(deadlock).splitlines()[0]}\n{grid(on_ranks, lambda s: f'rank {s}', task_name)}"
    return Deadlock(text, blocked=deadlock.blocked, hint="give two ranks the same order of the slots that they exchange")


def crossings(layout: Layout) -> int:
    """Number of transfers between ranks: activations forward, gradients back, each as large as one microbatch's share."""
    stages = layout.stages
    hops = [sum(a != b for a, b in pairwise(placement)) for placement in layout.placements]
    passed = (layout.instance(0, microbatch) // stages for microbatch in range(layout.shape.microbatches))
    return 2 * sum(hops[direction] for direction in passed)


def peaks(layout: Layout) -> dict[str, list[float]]:
    """Largest number of activation chunks that each rank holds, by three counts.

    `peak` counts from F to the end of B or W; `peak_at_I` releases a chunk already at I; `peak_half` releases a half at I and a
    half at W. In an overlapped pair F counts first.
    """
    release: dict[str, dict[str, float]] = {
        "peak": {"B": 1, "W": 1},
        "peak_at_I": {"B": 1, "I": 1},
        "peak_half": {"B": 1, "I": 0.5, "W": 0.5},
    }
    found: dict[str, list[float]] = {}
    for name, freed in release.items():
        found[name] = []
        for order in layout.orders:
            alive = most = 0.0
            for slot in (slot for box in order for slot in slots_of(box)):
                alive += 1 if slot.kind == "F" else -freed.get(slot.kind, 0)
                most = max(most, alive)
            found[name].append(most if most % 1 else int(most))
    return found
