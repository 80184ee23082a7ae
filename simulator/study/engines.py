"""Which engine runs a graph: the event loop, and what is quicker where it is proven to give the same."""

from __future__ import annotations

from importlib.util import find_spec

from ..binding.stepwise import Counts
from ..engine.replay import replay, why_not
from ..engine.task import TaskGraph
from ..engine.timeline import Times
from . import effort

MANY_TASKS = 500_000
"""From so many on the compiled engine is quicker, although it loads for a second, and compiles for ten on its first use."""
MANY_TASKS_ANEW = 2_000_000
"""The same where its machine code cannot be kept, so that each use compiles."""


def run(graph: TaskGraph, engine: str = "auto") -> tuple[Times, str, str]:
    """Times, the engine that made them, and why that one."""
    if engine == "replay":
        return replay(graph), "replay", "replay because it was asked for, and nothing shares a link"
    obstacle = why_not(graph)
    if engine == "auto" and not obstacle:
        return replay(graph), "replay", "replay because nothing shares a link"
    if engine == "compiled":
        return _compiled(graph, "compiled because it was asked for")
    if engine == "des":
        return _looped(graph), "des", "des because it was asked for"
    if len(graph) < MANY_TASKS:
        return _looped(graph), "des", f"des because {obstacle}"
    from ..engine import compiled

    slow = compiled.why_not(graph)
    if not slow and len(graph) < MANY_TASKS_ANEW:
        slow = compiled.why_slow_to_begin()
    if slow:
        return _looped(graph), "des", f"des because {obstacle}, and not compiled because {slow}"
    return _compiled(graph, f"compiled because {obstacle}, and {len(graph):,} tasks are many")


def _looped(graph: TaskGraph) -> Times:
    from ..engine import des

    return des.simulate(graph)


def _compiled(graph: TaskGraph, reason: str) -> tuple[Times, str, str]:
    from ..engine import compiled

    times, slow = compiled.simulate(graph), compiled.why_slow_to_begin()
    return times, "compiled", f"{reason}; it was compiled for this run alone ({slow})" if slow else reason


def must_end(tasks: int, engine: str, *, long: bool = False, expect: effort.Expect = effort.nobody) -> None:
    """Raises `UserError` for more tasks than anybody would wait for unasked."""
    by = quickest(engine)
    more = "" if by == "compiled" else "; the compiled engine, with the extra 'fast', takes a third of the time"
    what, hint = f"{tasks:,} tasks, because too few ranks behave alike,", "fewer GPUs or microbatches, or fewer disturbances"
    effort.check(effort.of_tasks(tasks, by), what, hint + more, long=long, expect=expect)


def must_send(counts: Counts, *, long: bool = False, expect: effort.Expect = effort.nobody) -> None:
    """Raises `UserError` for more messages of stepwise than anybody would wait for unasked."""
    hint = "fidelity fluid, or fewer GPUs and microbatches"
    effort.check(effort.of_messages(*counts), f"{counts.messages:,} messages of stepwise", hint, long=long, expect=expect)


def quickest(engine: str) -> str:
    """The engine that many tasks would go through."""
    return "compiled" if engine in ("auto", "compiled") and find_spec("numba") is not None else "des"
