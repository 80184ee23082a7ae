"""The timeline of a run as plain data for a page: the operations of some ranks, packed, with their slots and their memory.

Slots repeat each other: the operations of a slot on a stream are a *word*, a list of entries (pause before it, duration, label,
whether it is part of the other slot of a pair), and a stream is a list of (word, pause before it, slot). Words, entries and
labels are stored once. All times are nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engine.task import Array
from ..figures.bars import KINDS, step_spans_ns
from ..figures.shown_ranks import candidates, kinds_of, left_out, perturbed, spread, spread_within, stages_of
from ..program.labels import Labels
from ..program.operations import COMPUTE
from ..program.slot import KINDS as SLOT_KINDS
from ..simulation.run import Run
from ..units import NS_PER_S, show_bytes

MOST_BARS = 300_000
"""Number of operations above which fewer ranks are shown: a page of more than a few MB is slow to open and to send."""
MOST_RANKS = 64
MOST_POINTS = 20_000
"""Total number of points of memory curves above which each curve is reduced to its maximum and minimum in equal spans."""
SPANS = 600


@dataclass(frozen=True, eq=False, slots=True)
class TimelineData:
    """The data that a page draws, with their captions."""

    packed: dict[str, Any]
    ranks: tuple[int, ...]
    bars: int
    """Number of operations that take time, of all shown ranks."""
    left_out: str
    """How many of the pipeline ranks and kinds of ranks are shown, if they were chosen by default and some are left out."""


class _Numbers(dict[Any, int]):
    """Values, numbered as they come."""

    def __missing__(self, value: Any) -> int:
        self[value] = number = len(self)
        return number


def timeline_data(run: Run, ranks: Iterable[int] | None = None) -> TimelineData:
    """The operations of the measured steps on some ranks, by default as many of the ranks of a timeline as a page can show."""
    kinds = kinds_of(run)
    shown = run.existing(ranks) if ranks is not None else _bearable(run, candidates(run, kinds))
    words, entries, labels = _Numbers(), _Numbers(), _Numbers()
    packed = [_rank(run, rank, kinds.others(rank, shown), (words, entries, labels)) for rank in shown]
    memory = _memory_curves(run, shown)
    observed = run.observation
    data = {
        "lastsNs": observed.until_ns - observed.from_ns,
        "capacityBytes": run.scenario.cluster.gpu.memory_bytes,
        "kinds": {key: {"name": kind.name, "colours": kind.colours} for key, kind in KINDS.items()},
        "labels": [*labels],
        "entries": [number for entry in entries for number in entry],
        "words": [*words],
        "ranks": [{**one, "memory": curve} for one, curve in zip(packed, memory, strict=True)],
    }
    bars = sum(one["bars"] for one in packed)
    return TimelineData(data, tuple(shown), bars, left_out(kinds, shown) if ranks is None else "")


def _bearable(run: Run, ranks: Sequence[int]) -> list[int]:
    """As many of the ranks as a page can show, and at least one."""
    changed = perturbed(run)
    rows = {rank: len(run.labels[run.coordinate(rank)].step) for rank in spread(ranks, MOST_RANKS, changed)}
    return spread_within(rows, MOST_BARS, changed)


def first_of_pipeline(run: Run) -> list[int]:
    """The first rank of every pipeline coordinate."""
    timeline = run.engine_timeline
    pipeline = np.array([labels.pipeline for labels in run.labels])[timeline.skeleton.program[timeline.class_of]]
    return [int(rank) for rank in np.unique(pipeline, return_index=True)[1]]


def rank_name(run: Run, rank: int) -> str:
    """A rank by its place in the pipeline, if there is one, and by its number."""
    pipeline = run.labels[run.coordinate(rank)].pipeline
    return f"pipeline rank {pipeline} (rank {rank})" if run.program.ranks > 1 else f"rank {rank}"


def _rank(run: Run, rank: int, others: int, numbers: tuple[_Numbers, _Numbers, _Numbers]) -> dict[str, Any]:
    """A rank with its slots, and its streams with the operations that take time."""
    timeline, labels = run.engine_timeline, run.labels[run.coordinate(rank)]
    times, from_ns = timeline.rank_times(rank), run.observation.from_ns
    start, end = times.start_ns - from_ns, times.end_ns - from_ns
    lasting = np.flatnonzero(run.observation.counts(labels.iteration) & (end > start))
    streams = labels.stream[lasting]
    named = [COMPUTE, *sorted(set(streams.tolist()) - {COMPUTE}, key=lambda name: (labels.lanes.index(name), name))]
    lanes = []
    for name in named:
        rows = lasting[streams == name]
        rows = rows[np.argsort(start[rows], kind="stable")]
        axis = next((labels.axes[op] for op in labels.op[rows].tolist()), "")
        lanes.append({"name": name, "axis": axis, "runs": _runs(labels, rows, start, end, numbers)})
    changed = ", perturbed" if rank in perturbed(run) else ""
    return {
        "rank": rank,
        "name": rank_name(run, rank),
        "about": f"{stages_of(run, run.coordinate(rank))}{changed}" + f"; {others:,} more like it" * (others > 0),
        "steps": _steps(run, rank, labels),
        "lanes": [lane for lane in lanes if lane["runs"]],
        "bars": len(lasting),
    }


def _steps(run: Run, rank: int, labels: Labels) -> list[list[Any]]:
    """All steps of a program: phase, stage, microbatch, chunk, half of the row (1 or 2 for the two of a pair), the span of its
    kernels, which is empty for steps without, and the place of the other step of its pair."""
    spans = step_spans_ns(labels, run.engine_timeline.rank_times(rank), labels.is_compute)
    first, last = ((column - run.observation.from_ns).tolist() for column in spans)
    found: list[list[Any]] = []
    other = _others(labels)
    for at, (step, begins, ends) in enumerate(zip(labels.steps, first, last, strict=True)):
        stage = run.program.stages[step.stage] if step.stage >= 0 else None
        half = 0 if step.pair < 0 else 1 if step.phase == "F" else 2
        kind = step.phase if step.phase in SLOT_KINDS else "optimizer" if step.phase in ("optimizer", "local norm") else ""
        span = [begins, ends] if kind and ends > begins and step.iteration in run.observation.window.iterations else [0, 0]
        where = stage.number if stage else -1, step.microbatch, stage.chunk if stage else 0
        found.append([kind or step.phase, *where, half, *span, *([other[at]] if at in other else [])])
    return found


def _others(labels: Labels) -> dict[int, int]:
    """Step -> the other step of its pair, for steps that have one."""
    pairs: dict[tuple[int, int], list[int]] = {}
    for at, step in enumerate(labels.steps):
        if step.pair >= 0:
            pairs.setdefault((step.iteration, step.pair), []).append(at)
    return {at: other for one, two in (of for of in pairs.values() if len(of) == 2) for at, other in ((one, two), (two, one))}


def _runs(labels: Labels, rows: Array, start: Array, end: Array, numbers: tuple[_Numbers, _Numbers, _Numbers]) -> list[int]:
    """Rows of a stream, in their order, as (word, pause before it, step) one after the other."""
    words, entries, known = numbers
    steps, kinds, payloads = labels.step[rows].tolist(), labels.kind[rows].tolist(), labels.payload_bytes[rows].tolist()
    begins, ends, other = start[rows].tolist(), end[rows].tolist(), _others(labels)
    found: list[int] = []
    word: list[int] = []
    before = gap = 0
    of = -1
    for at, row in enumerate(rows.tolist()):
        step, pause = steps[at], begins[at] - before
        if word and step != of and other.get(of) != step:
            found += [words[tuple(word)], gap, of]
            word = []
        if not word:
            of, gap, pause = step, pause, 0
        text = labels.block(row) if not payloads[at] else f"{labels.block(row)}, {show_bytes(payloads[at])}"
        word.append(entries[pause, ends[at] - begins[at], known[f"{text} ({kinds[at]})"], int(step != of)])
        before = ends[at]
    return [*found, words[tuple(word)], gap, of] if word else found


def _memory_curves(run: Run, ranks: list[int]) -> list[list[list[int]]]:
    """For each rank the times and the bytes that it holds from each time on, both as differences to the ones before."""
    curves = [run.role_memory_over_time(run.coordinate(rank)) for rank in ranks]
    if sum(len(times) for times, _ in curves) > MOST_POINTS:
        curves = [_reduced(*curve) for curve in curves]
    columns = ((np.rint(times * NS_PER_S), held) for times, held in curves)
    return [[np.diff(column.astype(np.int64), prepend=0).tolist() for column in curve] for curve in columns]


def _reduced(times: Array, held: Array) -> tuple[Array, Array]:
    """The maximum and then the minimum of a curve in each of equal spans of time, with its exact peak and end."""
    if len(times) <= 2 * SPANS:
        return times, held
    edges = np.linspace(times[0], times[-1], SPANS + 1)[:-1]
    begins = np.unique(np.searchsorted(times, edges))
    most, least = np.maximum.reduceat(held, begins), np.minimum.reduceat(held, begins)
    half = np.append(np.diff(times[begins]), times[-1] - times[begins[-1]]) / 2
    return (
        np.append(np.stack([times[begins], times[begins] + half], axis=1).ravel(), times[-1]),
        np.append(np.stack([most, least], axis=1).ravel(), held[-1]),
    )
