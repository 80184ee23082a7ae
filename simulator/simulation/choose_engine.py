"""Choice of the engine for a task graph: the event loop, or a faster engine that provably gives the same times."""

from __future__ import annotations

from ..engine.replay import replay, why_not
from ..engine.task import TaskGraph
from ..engine.timeline import Times

MANY_TASKS = 500_000
"""Number of tasks from which the compiled engine is faster, although loading takes 1 s and the first compilation 10 s."""
MANY_TASKS_ANEW = 2_000_000
"""Number of tasks from which the compiled engine is faster where its machine code cannot be cached, so that each use compiles."""


def run(graph: TaskGraph, engine: str = "auto") -> tuple[Times, str, str]:
    """The times of a graph, the name of the engine that computed them, and the reason for the choice of the engine."""
    obstacle = why_not(graph)
    if engine == "replay" or (engine == "auto" and not obstacle):
        asked = "it was asked for, and " if engine == "replay" else ""
        return replay(graph), "replay", f"replay because {asked}nothing shares a link"
    if engine == "compiled":
        return _compiled(graph, "compiled because it was asked for")
    reason = "it was asked for" if engine == "des" else obstacle
    if engine == "auto" and len(graph) >= MANY_TASKS:
        from ..engine.compiled import event_loop

        slow = event_loop.why_not(graph)
        if not slow and len(graph) < MANY_TASKS_ANEW:
            slow = event_loop.why_slow_to_begin()
        if not slow:
            return _compiled(graph, f"compiled because {reason}, and {len(graph):,} tasks are many")
        reason += f", and not compiled because {slow}"
    from ..engine import des

    return des.simulate(graph), "des", f"des because {reason}"


def _compiled(graph: TaskGraph, reason: str) -> tuple[Times, str, str]:
    from ..engine.compiled import event_loop

    times, slow = event_loop.simulate(graph), event_loop.why_slow_to_begin()
    return times, "compiled", f"{reason}; it was compiled for this run alone ({slow})" if slow else reason
