"""Deadlocks: every unfinished stream, the task at its head, and what that task waits for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import Blocked, Deadlock
from .task import TaskGraph

SHOWN = 32
"""The number of streams that the message draws; the exception holds all of them."""


def deadlock(graph: TaskGraph, end: Sequence[int]) -> Deadlock:
    """The error for a run that stopped with tasks left (`end` is -1 for those)."""
    blocked: list[Blocked] = []
    streams = graph.streams.lists()
    position = [{task: i for i, task in enumerate(tasks)} for tasks in streams]
    stream_of: dict[int, list[int]] = {}
    for stream, tasks in enumerate(streams):
        for task in tasks:
            stream_of.setdefault(task, []).append(stream)
    heads = [next((i for i, task in enumerate(tasks) if end[task] < 0), len(tasks)) for tasks in streams]
    for stream, tasks in enumerate(streams):
        done = heads[stream]
        if done == len(tasks):
            continue
        head = tasks[done]
        behind = [streams[s][heads[s]] for s in stream_of[head] if position[s][head] > heads[s]]
        waits_for = [p for p in dict.fromkeys(graph.preds.row(head).tolist()) if end[p] < 0]
        blocked.append(Blocked(stream, done, len(tasks), head, tuple(dict.fromkeys((*waits_for, *behind)))))
    left = sum(1 for at in end if at < 0)
    return Deadlock(
        f"deadlock: {left} of {len(end)} tasks can never start\n{grid(blocked, str, str)}",
        blocked=blocked,
        hint="two streams wait for each other: give both the same order of their common tasks",
    )


def grid(blocked: Sequence[Blocked], stream_name: Callable[[int], str], task_name: Callable[[int], str]) -> str:
    """The unfinished streams drawn under one another, an arrow at each blocked head."""
    names = [stream_name(b.stream) for b in blocked[:SHOWN]]
    width = max((len(name) for name in names), default=0)
    lines = []
    for name, b in zip(names, blocked, strict=False):
        wants = ", ".join(task_name(task) for task in b.waits_for[:4]) or "bytes that never move: its rate is zero"
        more = f" and {len(b.waits_for) - 4} more" if len(b.waits_for) > 4 else ""
        lines.append(f"  stream {name:>{width}}  {b.done:>5}/{b.length} done -> {task_name(b.head)} waits for {wants}{more}")
    if len(blocked) > SHOWN:
        lines.append(f"  ... and {len(blocked) - SHOWN} streams more")
    return "\n".join(lines)
