"""Choice of the engine for a task graph: the event loop, or a faster engine that provably gives the same times."""

from __future__ import annotations

import sys

from ..engine import compiled
from ..engine.replay import replay, why_not
from ..engine.task import TaskGraph
from ..engine.timeline import Times

EVENT_LOOP = f"{compiled.__name__}.event_loop"
MANY_TASKS = 500_000
"""Number of tasks from which the compiled engine is faster, although loading takes 1 s and the first compilation 10 s."""
MANY_TASKS_ANEW = 2_000_000
"""Number of tasks from which the compiled engine is faster where its machine code cannot be cached, so that each use compiles."""
MANY_TASKS_AT_ONCE = 2_000
"""Number of tasks from which the compiled engine is faster in a process that has loaded it already."""


def run(graph: TaskGraph, engine: str = "auto") -> tuple[Times, str, str]:
    """The times of a graph, the name of the engine that computed them, and the reason for the choice of the engine."""
    obstacle = why_not(graph)
    if engine == "replay" or (engine == "auto" and not obstacle):
        asked = "it was asked for, and " if engine == "replay" else ""
        return replay(graph), "replay", f"replay because {asked}nothing shares a link"
    if engine == "compiled":
        return _compiled(graph, "compiled because it was asked for")
    reason = "it was asked for" if engine == "des" else obstacle
    loaded = _is_loaded()
    if engine == "auto" and (len(graph) >= MANY_TASKS or (loaded and len(graph) >= MANY_TASKS_AT_ONCE)):
        from ..engine.compiled import event_loop

        slow = event_loop.why_not(graph)
        if not slow and not loaded and len(graph) < MANY_TASKS_ANEW:
            slow = event_loop.why_slow_to_begin()
        if not slow:
            many = "" if len(graph) >= MANY_TASKS else " where it is loaded already"
            return _compiled(graph, f"compiled because {reason}, and {len(graph):,} tasks are many{many}")
        reason += f", and not compiled because {slow}"
    from ..engine import des

    return des.simulate(graph), "des", f"des because {reason}"


def load() -> None:
    """Loads the compiled engine in this process, which is to run many graphs, if its machine code is kept."""
    from ..engine.compiled import event_loop

    if not event_loop.why_slow_to_begin():
        event_loop.load()


def _is_loaded() -> bool:
    """Whether this process has loaded the compiled engine, which to ask does not import it."""
    module = sys.modules.get(EVENT_LOOP)
    return module is not None and bool(module.is_loaded())


def _compiled(graph: TaskGraph, reason: str) -> tuple[Times, str, str]:
    from ..engine.compiled import event_loop

    loaded = event_loop.is_loaded()
    times, slow = event_loop.simulate(graph), "" if loaded else event_loop.why_slow_to_begin()
    return times, "compiled", f"{reason}; it was compiled for this run alone ({slow})" if slow else reason
