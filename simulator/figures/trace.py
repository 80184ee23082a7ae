"""The trace of a run as Chrome JSON, for ui.perfetto.dev: a process per rank, a thread per stream, slots around their kernels.

Times are microseconds with nanoseconds as decimals. Arrows join the two ends of a transfer; a counter shows the memory of each
rank. The trace shows the measured steps, from their start on the first rank; `otherData` describes them. Where steps overlap, a
launch or a gather of a measured step may precede its first kernel. Perfetto drops events before time zero, so the trace then
begins with the first of them, and `steps_begin_us` of `otherData` is the start of the steps. Viewers are slow above a million
events, so by default one rank of each class is written.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..config import derived
from ..errors import UserError, must_be
from ..files import atomic
from ..program.operations import COMPUTE, Transfer
from ..simulation.run import Run
from ..units import NS_PER_US, US_PER_S
from .bars import KINDS, step_spans_ns
from .shown_ranks import perturbed, spread_within, stages_of

MOST_EVENTS = 1_000_000


def trace(run: Run, path: str | Path, *, ranks: Iterable[int] | None = None) -> int:
    """Writes the trace of `ranks` (by default the first rank of each class) and returns the number of events."""
    must_be(run, Run, "run", "a run", 'trace(sim.simulate(model, cluster, plan, job), "trace.json.gz")')
    must_be(path, (str, Path), "path", "the path of a file", 'trace(run, "trace.json.gz")')
    chosen = run.existing(ranks) if ranks is not None else _representatives(run)
    arrows, zero_ns = _arrows(run, chosen), first_ns(run, chosen)
    events = chain.from_iterable(events_of(run, rank, arrows[rank], zero_ns) for rank in chosen)
    begin_us, count = (run.observation.from_ns - zero_ns) / NS_PER_US, 0
    with atomic(path) as temporary, _writer(temporary, zipped=str(path).endswith(".gz")) as out:
        about = {"scenario": run.scenario.as_dict(), "measured": run.observation.window.text, "steps_begin_us": begin_us}
        out.write('{"displayTimeUnit":"ms","otherData":' + json.dumps(about) + ',"traceEvents":[\n')
        for count, event in enumerate(events, 1):
            if count > MOST_EVENTS:
                raise UserError("the trace has over a million events", hint="choose fewer ranks: trace(run, path, ranks=[0])")
            out.write(",\n" * (count > 1) + json.dumps(event, separators=(",", ":")))
        out.write("\n]}\n")
    return count


@contextmanager
def _writer(path: Path, *, zipped: bool) -> Iterator[IO[str]]:
    """A file to write text to. Equal texts give equal files: a zipped one contains neither its name nor a time."""
    if not zipped:
        with open(path, "w", encoding="utf-8") as out:
            yield out
        return
    with open(path, "wb") as raw, gzip.GzipFile("", "wb", 5, raw, mtime=0) as packed, TextIOWrapper(packed, "utf-8") as out:
        yield out


def _representatives(run: Run) -> list[int]:
    """The first rank of each class, or of as many classes as a viewer supports, from the first to the last. If there is room the
    ranks of a whole pipeline are among them: arrows join them."""
    timeline = run.engine_timeline
    classes, first = np.unique(timeline.class_of, return_index=True)
    events = {
        rank: 2 * len(timeline.expansion.tasks_of(which)) for rank, which in zip(first.tolist(), classes.tolist(), strict=True)
    }
    pipelines = derived.mesh_of(run.scenario).groups(("pp",))
    first_pipeline = pipelines[(pipelines == 0).any(axis=1)].ravel().tolist()
    return spread_within(dict(sorted(events.items())), MOST_EVENTS, [*perturbed(run), *first_pipeline])


def _arrows(run: Run, ranks: Iterable[int]) -> dict[int, set[int]]:
    """For each rank the transfers with an arrow: transfers with both a sender and a receiver in the trace.

    Ranks of one class share their tasks, so only the first rank of each class gets arrows.
    """
    timeline = run.engine_timeline
    ends: dict[bool, dict[int, int]] = {True: {}, False: {}}
    for rank in ranks:
        labels = run.labels[run.coordinate(rank)]
        for row, task in enumerate(timeline.tasks_of(rank).tolist()):
            op = labels.ops[int(labels.op[row])]
            if isinstance(op, Transfer):
                ends[op.sends].setdefault(task, rank)
    shown: dict[int, set[int]] = {rank: set() for rank in ranks}
    for task in ends[True].keys() & ends[False].keys():
        shown[ends[True][task]].add(task)
        shown[ends[False][task]].add(task)
    return shown


def first_ns(run: Run, ranks: Iterable[int], *, without: str = "") -> int:
    """The start of the measured steps in nanoseconds of the simulation, or of the first of their operations on some ranks, if
    that is earlier; operations on the stream `without` do not count."""
    observed, first = run.observation, run.observation.from_ns
    for rank in ranks:
        labels, times = run.labels[run.coordinate(rank)], run.engine_timeline.rank_times(rank)
        shown = observed.counts(labels.iteration) & (times.end_ns > times.start_ns) & (labels.stream != without)
        first = min(first, int(times.start_ns[shown].min(initial=first)))
    return first


def events_of(run: Run, rank: int, arrows: set[int], zero_ns: int) -> Iterator[dict[str, Any]]:
    """The events of one rank, with an end of the arrow of each transfer in `arrows`; `zero_ns` is their time zero."""
    timeline, coordinate = run.engine_timeline, run.coordinate(rank)
    labels, times, tasks = run.labels[coordinate], timeline.rank_times(rank), timeline.tasks_of(rank)
    lanes = {name: i for i, name in enumerate(dict.fromkeys([COMPUTE, *sorted(set(labels.stream.tolist()))]))}
    named: list[tuple[str, int, dict[str, Any]]] = [
        ("process_name", 0, {"name": f"rank {rank} ({stages_of(run, coordinate)})"}),
        ("process_sort_index", 0, {"sort_index": rank}),
    ]
    for name, lane in lanes.items():
        named += [("thread_name", lane, {"name": name}), ("thread_sort_index", lane, {"sort_index": lane})]
    yield from ({"ph": "M", "name": kind, "pid": rank, "tid": lane, "args": args} for kind, lane, args in named)
    yield from _slots(run, rank, len(lanes), zero_ns)
    kinds, blocks = labels.kind.tolist(), labels.blocks
    for row in np.flatnonzero(run.observation.counts(labels.iteration)).tolist():
        start, end = int(times.start_ns[row]) - zero_ns, int(times.end_ns[row]) - zero_ns
        if end == start:
            continue
        op, step = labels.ops[labels.op[row]], labels.steps[labels.step[row]]
        lane = lanes[op.streams[0]]
        args = {"phase": step.phase, "stage": step.stage, "microbatch": step.microbatch, "task": int(tasks[row])}
        if not labels.is_compute[row]:
            args["payload_bytes"] = int(labels.payload_bytes[row])
            args["arrival_us"] = (int(times.arrival_ns[row]) - zero_ns) / NS_PER_US
        yield _slice(blocks[row], kinds[row], (rank, lane), (start, end), args)
        if isinstance(op, Transfer) and int(tasks[row]) in arrows:
            where = {"pid": rank, "tid": lane, "ts": start / NS_PER_US}
            arrow = {"name": "transfer", "cat": "transfer", "id": int(tasks[row]), **where}
            yield {"ph": "s", **arrow} if op.sends else {"ph": "f", "bp": "e", **arrow}
    seconds, held = run.role_memory_over_time(coordinate)
    begin_us = (run.observation.from_ns - zero_ns) / NS_PER_US
    for at, value in zip(seconds.tolist(), held.tolist(), strict=True):
        yield {"ph": "C", "name": "memory", "pid": rank, "ts": begin_us + at * US_PER_S, "args": {"bytes": value}}


def _slots(run: Run, rank: int, lanes: int, zero_ns: int) -> Iterator[dict[str, Any]]:
    """A slice around the kernels of each slot: on the compute thread, or, for slots that run side by side, on another thread
    after all `lanes`, because slices of one thread must be nested or disjoint."""
    labels = run.labels[run.coordinate(rank)]
    first, last = (
        (column - zero_ns).tolist() for column in step_spans_ns(labels, run.engine_timeline.rank_times(rank), labels.is_compute)
    )
    measured = run.observation.window.iterations
    shown = [i for i, step in enumerate(labels.steps) if last[i] > first[i] and step.iteration in measured]
    ends: list[list[int]] = [[]]
    """Thread -> the ends of the slices that are open there, each inside the one before it."""
    for i in sorted(shown, key=lambda i: (first[i], -last[i])):
        step = labels.steps[i]
        for open_ends in ends:
            while open_ends and open_ends[-1] <= first[i]:
                open_ends.pop()
        at = next((at for at, open_ends in enumerate(ends) if not open_ends or last[i] <= open_ends[-1]), len(ends))
        lane = lanes + at - 1 if at else 0
        if at == len(ends):
            ends.append([])
            yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": lane, "args": {"name": "slots beside others"}}
            yield {"ph": "M", "name": "thread_sort_index", "pid": rank, "tid": lane, "args": {"sort_index": lane}}
        ends[at].append(last[i])
        kind = KINDS.get(step.phase)
        name = f"{kind.name} {step.microbatch}" if kind and step.microbatch >= 0 else step.phase
        args = {"stage": step.stage, "microbatch": step.microbatch}
        yield _slice(name, "slot", (rank, lane), (first[i], last[i]), args)


def _slice(name: str, kind: str, thread: tuple[int, int], span_ns: tuple[int, int], args: Mapping[str, Any]) -> dict[str, Any]:
    """An event with a time span, on a thread (process, number)."""
    (pid, tid), (start, end) = thread, span_ns
    at = {"pid": pid, "tid": tid, "ts": start / NS_PER_US, "dur": (end - start) / NS_PER_US}
    return {"ph": "X", "name": name, "cat": kind, **at, "args": args}
