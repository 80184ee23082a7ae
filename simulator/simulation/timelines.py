"""Timelines of bound programs: by stretches of rows, row by row, or message by message; and the names in a deadlock."""

from __future__ import annotations

from ..binding.bind import Bound, Site
from ..binding.stepwise import stepwise
from ..engine import stretched_timeline
from ..engine.fold import Folded
from ..engine.replay import with_fixed_durations
from ..engine.skeleton import Expansion
from ..engine.stretches import stretched
from ..engine.timeline import Timeline, grid
from ..errors import Deadlock
from ..program.labels import Labels
from . import choose_engine, estimated_effort


def by_stretches(ranks: Folded, bound: Bound, engine: str, *, every: bool) -> tuple[Timeline, str, str] | None:
    """The timeline by stretches, where `auto` may choose, most rows are part of one, and all tasks end."""
    if engine != "auto" or any(template.solo_ns.ndim > 1 for template in ranks.skeleton.templates):
        return None
    skeleton = ranks.skeleton
    least = choose_engine.rows_of_stretch(sum(len(skeleton.templates[number]) for number in skeleton.program.tolist()))
    found = stretched(ranks, lambda program: bound.labels[program].interrupted, every=every, at_least=least)
    timeline = found and stretched_timeline.run(ranks, found)
    return (timeline, *choose_engine.described(found.graph)) if found and timeline else None


def row_by_row(
    ranks: Folded, bound: Bound, site: Site, limits: estimated_effort.Limits, fidelity: str
) -> tuple[Timeline, str, str]:
    """The timeline of all rows, or of all messages, the engine, and the reason for the engine."""
    expansion = ranks.expansion()
    steps_of = stepwise(bound, site, expansion, limits.must_send) if fidelity == "stepwise" else None
    graph = with_fixed_durations(steps_of.graph if steps_of else expansion.graph, every=fidelity == "closed")
    try:
        times, used, reason = choose_engine.run(graph, limits.engine)
    except Deadlock as deadlock:
        raise _explained(deadlock, expansion, bound.labels) from None
    return Timeline(steps_of.times(times) if steps_of else times, expansion), used, reason


def _explained(deadlock: Deadlock, expansion: Expansion, labels: tuple[Labels, ...]) -> Deadlock:
    """The deadlock with names instead of numbers: each blocked rank, its stream, and the operation that blocks."""
    rank_of, row_of = expansion.origin

    def of_rank(rank: int) -> Labels:
        return labels[int(expansion.skeleton.program[rank])]

    def stream_name(stream: int) -> str:
        rank = int(expansion.stream_rank[stream])
        return f"rank {rank} {of_rank(rank).lanes[int(expansion.stream_lane[stream])]}"

    def task_name(task: int) -> str:
        rank, row = int(rank_of[task]), int(row_of[task])
        names = of_rank(rank)
        step = names.steps[names.step[row]]
        where = f" of {step.phase} s{step.stage} m{step.microbatch}" if step.stage >= 0 else ""
        return f"{names.block(row)}{where} on rank {rank}"

    first = str(deadlock).splitlines()[0]
    drawn = grid(deadlock.blocked, stream_name, task_name)
    hint = "the schedule orders the slots of two ranks so that each waits for the other"
    return Deadlock(f"{first}\n{drawn}", blocked=deadlock.blocked, hint=hint)
