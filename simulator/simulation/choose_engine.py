"""Choice of the engine for a task graph: the event loop, or a faster engine that provably gives the same times."""

from __future__ import annotations

import gc
import sys

from ..engine import compiled, heap
from ..engine.replay import replay, why_not
from ..engine.task import TaskGraph
from ..engine.timeline import Times

EVENT_LOOP = f"{compiled.__name__}.event_loop"
MANY_TASKS = 120_000
"""Number of tasks left by contraction from which the compiled engine is faster even with 10 s of compilation before it: the heap
takes 10 to 30 us for a task that may be slowed, and 3 us for another one; and the next runs find it on disk."""
MANY_TASKS_KEPT = 10_000
"""Number of these tasks from which the compiled engine is faster when its machine code is on disk: loading takes 0.08 s."""
MOST_CONTRACTED = 1_200_000
"""Largest number of tasks that are contracted before the choice; contraction takes 0.6 us per task."""
MANY_TASKS_ANEW = 2_000_000
"""Number of these tasks from which it is faster when its machine code cannot be cached, so that each process compiles."""
ROWS_OF_STRETCH = 3
"""Stretches are simulated, by the loop over a heap, if a stretch has at least this many rows on average."""
ROWS_OF_STRETCH_LOADED = 8
"""The same where the compiled engine is loaded already, which takes 2 us for a row, and there are at least `MANY_ROWS` of them:
the loop over a heap takes 20 to 30 us for a stretch."""
MANY_ROWS = 20_000
"""Number of rows of all simulated ranks below which `_is_loaded` is not checked."""
RARELY = 50_000, 20, 100
"""Thresholds of the garbage collector in a process of many simulations, which make many tuples and few cycles."""
MANY_TASKS_AT_ONCE = 2_000
"""Number of tasks, contracted or not, from which it is faster in a process that has loaded it already."""


def run(graph: TaskGraph, engine: str = "auto") -> tuple[Times, str, str]:
    """The times of a graph, the name of the engine that computed them, and the reason for the choice of the engine."""
    obstacle = why_not(graph)
    if engine == "replay" or (engine == "auto" and not obstacle):
        asked = "it was requested, and " if engine == "replay" else ""
        return replay(graph), "replay", f"replay because {asked}nothing shares a link"
    if engine == "compiled":
        return _compiled(graph, "compiled because it was requested")
    if engine == "des":
        from ..engine import des

        return des.simulate(graph), "des", "des because it was requested"
    if engine == "heap":
        return heap.simulate(graph), "heap", "heap because it was requested"
    loaded = _is_loaded()
    small = None if loaded or len(graph) > MOST_CONTRACTED else heap.contracted(graph)
    tasks = len(small.graph if small else graph)
    many, where = _many_tasks(tasks, loaded)
    if tasks >= many:
        from ..engine.compiled import event_loop

        slow = event_loop.why_not(graph)
        if not slow and not loaded and tasks < MANY_TASKS_ANEW:
            slow = event_loop.why_slow_to_begin()
        if not slow:
            return _compiled(graph, f"compiled because {obstacle}, and {tasks:,} tasks are many{where}")
        obstacle += f", and not compiled because {slow}"
    return heap.times_by(small) if small else heap.simulate(graph), "heap", f"heap because {obstacle}"


def described(graph: TaskGraph) -> tuple[str, str]:
    """The name of the engine that simulates stretches, and the reason for it."""
    obstacle = why_not(graph)
    if obstacle:
        return "heap", f"heap because {obstacle}"
    return "replay", "replay because nothing shares a link"


def rows_of_stretch(rows: int) -> int:
    """The mean rows per stretch from which simulating stretches is quicker than simulating `rows` rows one by one."""
    return ROWS_OF_STRETCH_LOADED if rows >= MANY_ROWS and _is_loaded() else ROWS_OF_STRETCH


def load() -> None:
    """Loads the compiled engine in this process, which is to run many graphs, if its machine code is kept."""
    from ..engine.compiled import event_loop

    if not event_loop.why_slow_to_begin():
        event_loop.load()


def prepare_for_many() -> None:
    """Prepares a worker process for many simulations: loads the compiled code, and makes garbage collection rare."""
    load()
    gc.freeze()
    gc.set_threshold(*RARELY)


def _many_tasks(tasks: int, loaded: bool) -> tuple[int, str]:
    """The number of tasks from which the compiled engine is faster in this process, and where, if not everywhere."""
    if loaded:
        return min(MANY_TASKS, MANY_TASKS_AT_ONCE), "" if tasks >= MANY_TASKS else " where it is loaded already"
    if MANY_TASKS_KEPT <= tasks < MANY_TASKS and _is_kept():
        return MANY_TASKS_KEPT, " where it is kept on disk"
    return MANY_TASKS, ""


def _is_kept() -> bool:
    """Whether the compiled engine is found on disk, as after its first use."""
    from ..engine.compiled import event_loop

    return event_loop.is_kept()


def _is_loaded() -> bool:
    """Whether this process has loaded the compiled engine; the check does not import it."""
    module = sys.modules.get(EVENT_LOOP)
    return module is not None and bool(module.is_loaded())


def _compiled(graph: TaskGraph, reason: str) -> tuple[Times, str, str]:
    from ..engine.compiled import event_loop

    loaded = event_loop.is_loaded()
    times, slow = event_loop.simulate(graph), "" if loaded else event_loop.why_slow_to_begin()
    return times, "compiled", f"{reason}; it was compiled for this run alone ({slow})" if slow else reason
