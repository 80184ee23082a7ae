"""A deadlock in words: which rank is blocked on which stream, at which operation, waiting for which."""

from __future__ import annotations

from ..engine.deadlock import grid
from ..engine.skeleton import Expansion
from ..errors import Deadlock
from ..program.labels import Labels


def explained(deadlock: Deadlock, expansion: Expansion, labels: tuple[Labels, ...]) -> Deadlock:
    """The same error with names instead of numbers."""
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
