"""Which engine runs a graph: the event loop, and what is quicker where it is proven to give the same."""

from __future__ import annotations

from importlib.util import find_spec

from ..engine.replay import replay, why_not
from ..engine.task import TaskGraph
from ..engine.timeline import Times
from ..errors import UserError
from ..units import show_bytes, show_s

MANY_TASKS = 500_000
"""From so many on the compiled engine is quicker, although it loads for a second, and compiles for ten on its first use."""
MANY_TASKS_ANEW = 2_000_000
"""The same where its machine code cannot be kept, so that each use compiles."""
MOST_TASKS = {"des": 20_000_000, "compiled": 60_000_000}
TASKS_PER_S = {"des": 130_000, "compiled": 400_000}
BYTES_PER_TASK = {"des": 400, "compiled": 250}
"""From scenario to result, one core: a step of Llama-3 405B, every rank of 128 and of 1,024 GPUs."""


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


def must_end(tasks: int, engine: str) -> None:
    """Raises `UserError` for more tasks than anybody would wait for."""
    quick = engine in ("auto", "compiled") and find_spec("numba") is not None
    by = "compiled" if quick else "des"
    if tasks > MOST_TASKS[by]:
        cost = f"about {show_s(tasks / TASKS_PER_S[by])} and {show_bytes(tasks * BYTES_PER_TASK[by])}"
        more = "" if quick else "; the compiled engine, with the extra 'fast', takes a third of the time"
        raise UserError(
            f"{tasks:,} tasks to simulate, because too few ranks behave alike: {cost}",
            hint=f"fewer GPUs or microbatches, sprayed routing, or fewer disturbances{more}",
        )
