"""The content of a Gantt chart: a timeline reduced to rows of bars with a kind, a number and a shade."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..config import catalog
from ..engine.timeline import Times
from ..errors import UserError, must_be
from ..program.labels import Labels
from ..program.operations import HOST, OFFLOAD
from ..program.slot import KINDS as SLOT_KINDS
from ..program.slot import Pair, slots_of
from ..simulation.run import Run
from ..study.schedule import Evaluation
from ..study.schedule_verbs import brief
from ..units import counted, seconds, show_s
from .shown_ranks import Kinds, kinds_of, perturbed, shown_ranks, stages_of

MOST_ROWS = 64
UNIT_OF_SCHEDULES = "in the unit of the durations of slots"


class Kind(NamedTuple):
    """The appearance of a kind of bar."""

    name: str
    colours: tuple[str, ...]
    """Colours of the first chunk of a rank, and of later chunks."""
    height: float = 0.0
    """Height as a fraction of its row's space for slots; 0 for communication, which lies below that space."""
    hatch: tuple[str, str] | None = None
    """Pattern and colour of the hatch."""


# Lightness decreases from forward over input gradients and backward to weight gradients, all tints of one kind above those of the
# next, so that kinds stay apart for colour-blind readers and in grey.
KINDS = {
    "F": Kind("forward", ("#c6e1ff", "#a3caff", "#9bc6ff", "#94c3ff"), 1.0),
    "B": Kind("backward", ("#db493e", "#c43d34", "#b63931", "#ac352d"), 1.0),
    "I": Kind("input gradients", ("#e0a722", "#cf961e", "#c48c17", "#bd8517"), 1.0),
    "W": Kind("weight gradients", ("#00534f", "#004340", "#043835", "#04302d"), 0.66, ("////", "#8fb8b4")),
    "optimizer": Kind("optimizer", ("#4d4d4d",), 1.0, ("xx", "white")),
    "tp": Kind("tensor parallel", ("#7b3fa0",)),
    "pp": Kind("pipeline transfers", ("#00897b",)),
    "dp": Kind("data parallel", ("#c2185b",)),
    "cp": Kind("context parallel", ("#8d6e00",)),
    "ep": Kind("expert parallel", ("#3949ab",)),
    OFFLOAD: Kind("copies to and from hosts", ("#4e2a00",)),
    HOST: Kind("launches of the host", ("#9e9e9e",)),
}


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a row, of one of the `KINDS`."""

    start: float
    end: float
    kind: str
    text: str = ""
    shade: int = 0
    """The chunk of the slot: later chunks are drawn darker."""
    half: str = ""
    """`upper` or `lower` half of the row, if another bar has the other half at the same time."""
    waits: float = 0.0
    """Share of a slot's whole span in which none of its kernels runs."""


@dataclass(frozen=True, slots=True)
class Row:
    label: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Held:
    """The smallest and the largest number of activation chunks that a rank holds, from each time on."""

    times: tuple[float, ...]
    fewest: tuple[int, ...]
    most: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """Rows under one time axis."""

    title: str
    unit: str
    rows: tuple[Row, ...]
    end: float
    darker: str
    """What a darker shade of a slot means, in words; empty if there is one shade."""
    held: Held | None = None
    since: str = ""
    """The instant at which the time axis starts, or its unit, in words."""
    note: str = ""
    """What the rows leave out, in words."""


def chart_of_run(run: Run, ranks: Iterable[int] | None = None) -> Chart:
    """One row per rank over the training steps that are measured, by default as `shown_ranks` chooses them."""
    kinds = kinds_of(run)
    shown = shown_ranks(run, MOST_ROWS, kinds) if ranks is None else None
    chosen = list(shown.ranks if shown else must_be(ranks, Iterable, "ranks", "several ranks", "ranks=[0, 1]"))
    if not chosen:
        raise UserError("no rank is chosen", hint="ranks=[0, 1], or leave it out")
    if len(chosen) > MOST_ROWS:
        raise UserError(f"{len(chosen)} rows are more than a chart can show", hint=f"choose at most {MOST_ROWS} ranks")
    m, s, seen = run.metrics, run.scenario, run.observation
    title = (
        f"{s.model.name} on {run.gpus:,} x {s.cluster.gpu.name}, {catalog.called(s.plan.schedule)}: "
        f"{show_s(m.step_time_s)} per step, {m.bubble_fraction:.1%} pipeline bubble, {m.mfu:.1%} MFU"
    )
    roles = [run.coordinate(rank) for rank in chosen]
    named = [_named(run, rank, role, kinds, chosen) for rank, role in zip(chosen, roles, strict=True)]
    rows = tuple(_row_of_rank(run, *row) for row in zip(chosen, roles, named, strict=True))
    copies = Counter(stage.number for stage in run.program.stages if not stage.share)
    darker = _darker(1 + max(stage.chunk for stage in run.program.stages), max(copies.values(), default=1))
    lasts_s = seconds(seen.until_ns - seen.from_ns)
    note = f"{shown.left_out} are drawn" if shown and shown.left_out else ""
    return Chart(title, "s", rows, lasts_s, darker, since=seen.window.text, note=note)


def _darker(shades: int, directions: int) -> str:
    """What a darker shade of a slot means."""
    chunks, other = shades > directions, directions > 1
    return " and ".join(["later chunks"] * chunks + ["the other direction"] * other)


def _named(run: Run, rank: int, role: int, kinds: Kinds, drawn: Sequence[int]) -> str:
    """The name of a row: the rank, the number of further ranks like it that are not drawn (or the rank above that it is like),
    its stages, and whether its speed is perturbed."""
    first = next(one for one in drawn if kinds.of_rank[one] == kinds.of_rank[rank])
    others = kinds.others(rank, drawn)
    alike = f" and {others:,} other{'s' * (others > 1)}" if others else ""
    alike = f", like rank {first}" if first != rank else alike
    changed = ", perturbed" if rank in perturbed(run) else ""
    return f"rank {rank}{alike} ({stages_of(run, role)}{changed})"


def _row_of_rank(run: Run, rank: int, role: int, name: str) -> Row:
    """Slots from the start of their first kernel to the end of their last operation, and communication by axis.

    Where steps overlap in time, the ends of the steps before and after are shown too.
    """
    labels, times = run.labels[role], run.engine_timeline.rank_times(rank)
    bars: list[Bar] = []
    first, last = step_spans_ns(labels, times, labels.is_compute | (labels.axis == "tp"))
    waits = 1 - computing_ns(labels, times) / np.maximum(last - first, 1)
    for step, start, end, waiting in zip(labels.steps, first.tolist(), last.tolist(), waits.tolist(), strict=True):
        if step.phase in SLOT_KINDS and end > start:
            half = "" if step.pair < 0 else "upper" if step.phase == "F" else "lower"
            bars.append(Bar(start, end, step.phase, str(step.microbatch), run.program.stages[step.stage].chunk, half, waiting))
        elif step.phase in ("optimizer", "local norm"):
            bars.append(Bar(start, end, "optimizer"))
    communication = np.flatnonzero(~labels.is_compute & (times.end_ns > times.start_ns)).tolist()
    bars += [Bar(int(times.start_ns[row]), int(times.end_ns[row]), labels.axes[labels.op[row]]) for row in communication]
    from_ns, until_ns = run.observation.from_ns, run.observation.until_ns
    bars = [
        replace(bar, start=seconds(max(bar.start, from_ns) - from_ns), end=seconds(min(bar.end, until_ns) - from_ns))
        for bar in bars
        if bar.end > from_ns and bar.start < until_ns
    ]
    return Row(name, tuple(bars))


def computing_ns(labels: Labels, times: Times) -> NDArray[np.float64]:
    """The time in each step of a program in which at least one of its kernels runs."""
    rows = np.flatnonzero(labels.is_compute)
    if not len(rows):
        return np.zeros(len(labels.steps))
    apart = int(times.end_ns.max()) + 1  # offsets the steps so that a running maximum stays within a step
    start, end = (at[rows].astype(np.int64) + apart * labels.step[rows] for at in (times.start_ns, times.end_ns))
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    before = np.concatenate([[0], np.maximum.accumulate(end)[:-1]])
    covered = np.maximum(end - np.maximum(start, before), 0)
    total = np.bincount(labels.step[rows][order], weights=covered, minlength=len(labels.steps))
    return total.astype(np.float64)


def step_spans_ns(labels: Labels, times: Times, counted: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first start and the last end of the counted rows in each step of a program. Without such rows the start is huge."""
    first, last = np.full(len(labels.steps), np.iinfo(np.int64).max), np.zeros(len(labels.steps), dtype=np.int64)
    np.minimum.at(first, labels.step[counted], times.start_ns[counted])
    np.maximum.at(last, labels.step[counted], times.end_ns[counted])
    return first, last


def chart_of_evaluation(result: Evaluation, title: str = "", *, with_memory: bool = True) -> Chart:
    """One row per rank with the boxes of its order. The two slots of an overlapped pair share the height of the row. By default
    the title names the schedule, its shape, and its bubble."""
    layout = result.layout
    if len(layout.orders) > MOST_ROWS:
        raise UserError(f"{len(layout.orders)} rows are more than a chart can show", hint=f"at most {MOST_ROWS} ranks")
    chunks = [layout.chunk(instance) for instance in range(len(layout.placement))]
    rows = []
    for rank, order in enumerate(layout.orders):
        bars: list[Bar] = []
        for box, start, end in zip(order, result.starts[rank], result.ends[rank], strict=True):
            halves = ("upper", "lower") if isinstance(box, Pair) else ("",)
            for slot, half in zip(slots_of(box), halves, strict=True):
                chunk = chunks[layout.instance(slot.stage, slot.microbatch)]
                bars.append(Bar(start, end, slot.kind, str(slot.microbatch), chunk, half))
        rows.append(Row(f"rank {rank}", tuple(bars)))
    held, shape = _held(result) if with_memory else None, layout.shape
    darker = _darker(max(chunks) + 1, len(layout.placements))
    sizes = f"{counted(shape.ranks, 'rank')} x {counted(shape.chunks, 'chunk')}, {counted(shape.microbatches, 'microbatch')}"
    title = title or f"{result.name or 'schedule'}, {sizes}: {brief(result)}"
    return Chart(title, "", tuple(rows), max(e[-1] for e in result.ends if e), darker, held, since=UNIT_OF_SCHEDULES)


def _held(result: Evaluation) -> Held:
    """The memory curves of all ranks at a common set of times."""
    curves = [result.memory_curve(rank) for rank in range(len(result.layout.orders))]
    times = np.unique(np.concatenate([np.array(when) for when, _ in curves]))
    alive = np.array([np.array(held)[np.searchsorted(when, times, side="right") - 1] for when, held in curves])
    return Held(tuple(times.tolist()), tuple(alive.min(axis=0).tolist()), tuple(alive.max(axis=0).tolist()))


def merged(intervals: Sequence[tuple[float, float]], gap: float) -> list[tuple[float, float]]:
    """Intervals, with neighbours merged if the gap between them is below `gap`, which is too small to be seen."""
    joined: list[tuple[float, float]] = []
    for start, end in sorted(intervals):
        if joined and start - joined[-1][1] <= gap:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
