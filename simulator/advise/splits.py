"""Splits of the layers of a pipeline: those that differ in the place of one layer, and further ones starting from the best.

A neighbouring split moves one layer from a stage to another. All of them are simulated; in pipelines of many stages, and if there
is no time for all, only those that take a layer from the slowest stage. If one makes the step shorter, further layers are moved
from the slowest stage until no move helps, or until there is no time for more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from math import inf

from ..simulation.run import Run
from ..study.compare import stage_seconds

Split = tuple[int, ...]
MOST_STAGES = 8
"""Largest number of stages at which every neighbouring split is simulated."""
MOST_LISTED = 16
"""Largest number of stages whose layers are listed one by one in a sentence."""


@dataclass(frozen=True, slots=True)
class Splits:
    """The splits that were simulated around that of a run, and the one with the shortest step."""

    neighbouring: int
    """Number of splits that differ in the place of one layer, fit and were simulated."""
    too_large: int
    """Number of such splits that do not fit, or are not legal."""
    counts: Split
    """The layers of every stage in model order, in the split with the shortest step among them."""
    step_time_s: float
    further: tuple[Split, float] | None
    """The split to which further moves lead, with its step, where more than one layer moves."""

    @property
    def best(self) -> tuple[Split, float]:
        """The split with the shortest step of all, and its step."""
        return self.further or (self.counts, self.step_time_s)

    def text(self, step_s: float) -> str:
        """Gain or loss of the best neighbouring split against a step of `step_s` seconds, however small."""
        change = self.step_time_s / step_s - 1
        layout = _written(self.counts)
        beside = f" ({self.too_large} more do not fit)" if self.too_large else ""
        tried = f"of {self.neighbouring} splits in which one layer moves{beside},"
        if change < 0:
            text = f"{tried} {layout} is the best: the step is {-change:.2%} shorter"
        else:
            longer = f"{change:.2%} longer" if change else "as long"
            text = f"{tried} none makes the step shorter; with {layout} it is {longer}"
        if self.further:
            text += f"; with more moves, {_written(self.further[0])} makes it {1 - self.further[1] / step_s:.2%} shorter"
        return text


def _written(counts: Split) -> str:
    """The layers of the stages as a list, or for a long pipeline as a sum of lists of equal stages: [2] * 30 + [3] + [1]."""
    if len(counts) <= MOST_LISTED:
        return f"[{','.join(map(str, counts))}]"
    equal = ((layers, len(list(stages))) for layers, stages in groupby(counts))
    return " + ".join(f"[{layers}] * {stages}" if stages > 1 else f"[{layers}]" for layers, stages in equal)


def splits(run: Run, step_of: Callable[[Split], float | None], most: float = inf) -> Splits | None:
    """The splits around that of a run; `step_of` simulates one, and returns None if it does not fit. None without a pipeline.

    At most `most` splits are simulated, but in any case those that take a layer from the slowest stage.
    """
    if not _may_move(run):
        return None
    counts, slowest, neighbouring = stage_counts(run), _slowest(run), neighbouring_splits(run, most)
    made = _simulated(neighbouring, step_of)
    if not made:
        return None
    fitting = len(made)
    one = best = min(made, key=lambda split: made[split])
    tried, left_s = {counts, *neighbouring}, run.metrics.step_time_s
    while made[best] < left_s:
        left_s = made[best]
        moves = [split for split in _moved(best, slowest) if split not in tried]
        if len(tried) - 1 + len(moves) > most:
            break
        tried.update(moves)
        made |= _simulated(moves, step_of)
        best = min(made, key=lambda split: made[split])
    return Splits(fitting, len(neighbouring) - fitting, one, made[one], (best, made[best]) if best != one else None)


def neighbouring_splits(run: Run, most: float = inf) -> tuple[Split, ...]:
    """The neighbouring splits that are simulated if there is time for `most`."""
    if not _may_move(run):
        return ()
    counts = stage_counts(run)
    every = tuple(split for source in range(len(counts)) for split in _moved(counts, source))
    return moved_from_slowest(run) if len(counts) > MOST_STAGES or len(every) > most else every


def most_splits(run: Run) -> int:
    """The most splits that are simulated if every move of a layer of the slowest stage helps, until it has one layer."""
    counts = stage_counts(run)
    return len(neighbouring_splits(run)) + max(0, counts[_slowest(run)] - 2) * (len(counts) - 1) if _may_move(run) else 0


def moved_from_slowest(run: Run) -> tuple[Split, ...]:
    """The splits that take a layer from the slowest stage; these are simulated in any case."""
    return tuple(_moved(stage_counts(run), _slowest(run))) if _may_move(run) else ()


def _may_move(run: Run) -> bool:
    return len(stage_counts(run)) > 1 and run.scenario.plan.vocabulary != "redis"


def _slowest(run: Run) -> int:
    """The stage that takes longest for a microbatch."""
    return max(stage_seconds(run).items(), key=lambda item: item[1])[0]


def _simulated(moves: Iterable[Split], step_of: Callable[[Split], float | None]) -> dict[Split, float]:
    """The steps of the splits that fit."""
    return {split: step_s for split in moves if (step_s := step_of(split)) is not None}


def stage_counts(run: Run) -> Split:
    """The layers of every stage in model order."""
    return tuple({stage.number: stage.layers for stage in run.program.stages if not stage.share}.values())


def _moved(counts: Split, source: int) -> Iterator[Split]:
    """The splits in which one layer of a stage is in another stage."""
    for other in range(len(counts)):
        if other != source and counts[source] > 1:
            yield tuple(n - (i == source) + (i == other) for i, n in enumerate(counts))
