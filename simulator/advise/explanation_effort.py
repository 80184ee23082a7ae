"""Estimated effort of an explanation before it starts: the sum over its simulations, from the tasks of the explained run.

The rates are processor seconds of each part of an explanation, measured on two shared cores: steps of Llama-3 70B
on 64 and 256 GPUs and of Qwen3 235B on 256 GPUs, with 93,000 to 620,000 tasks. All simulations of an explanation share one
session, so that each takes less than a run by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from ..frozen import replace
from ..simulation import estimated_effort
from ..simulation.estimated_effort import TASK, Effort, Limits
from ..simulation.run import Run
from ..study.without import Counterfactual
from .splits import most_splits, moved_from_slowest, neighbouring_splits

AROUND = Effort(14.0, 400)
"""Effort per task of the critical path and the causes of idle time: 10 to 22 us."""
WITHOUT, CHANGED = Effort(0.7), Effort(2.4)
"""Effort per task of a simulation of the same tasks without a cause, 0.55 to 0.8 us, and of a changed plan, 1.5 to 3.2 us."""


LONG_S = 10
"""Estimated seconds from which work is announced, and from which the compiled engine is loaded."""


@dataclass(frozen=True, slots=True)
class Work:
    """The work of an explanation: the approximate number of simulations, and their total effort."""

    simulations: int
    effort: Effort
    per_split: Effort
    further: int = 0
    """Largest number of further splits of the layers, which are simulated if moving layers makes the step shorter."""

    @property
    def is_long(self) -> bool:
        return self.effort.seconds >= LONG_S

    @property
    def text(self) -> str:
        """The work in words."""
        more = self.with_splits(self.further)
        most = f"; up to {more.simulations} and {more.effort.seconds:.0f} s where moving layers helps" if self.further else ""
        return f"about {self.simulations} simulations, estimated at {self.effort.seconds:.0f} s{most}"

    def with_splits(self, count: int) -> Work:
        return Work(self.simulations + count, self.effort + count * self.per_split, self.per_split)


def splits_in_time(run: Run, changes: int, fewest_splits: int, *, long: bool) -> float:
    """The number of splits of the layers that there is time for: at least the fewest, and any number if long work is allowed.

    Raises `UserError` if an explanation with `changes` other changes and the fewest splits is above the limits.
    """
    limits, before = Limits(long=long), _before_splits(run, changes)
    least = before.with_splits(fewest_splits)
    what = f"this explanation, of {least.simulations} simulations like this run,"
    limits.check(least.effort, what, "fewer GPUs or microbatches")
    left_s = estimated_effort.MOST_S - before.effort.seconds
    return inf if long else max(fewest_splits, left_s // before.per_split.seconds)


def work_of(run: Run, changes: int, *, long: bool) -> Work:
    """The work of an explanation with `changes` changes besides splits of the layers. Raises `UserError` as `splits_in_time`."""
    most = splits_in_time(run, changes, len(moved_from_slowest(run)), long=long)
    first, every = len(neighbouring_splits(run, most)), min(most, most_splits(run))
    work = _before_splits(run, changes).with_splits(first)
    return replace(work, further=max(0, int(every) - first))


def _before_splits(run: Run, changes: int) -> Work:
    """All work but the splits of the layers."""
    tasks, causes = run.engine_timeline.tasks, 2 * len(Counterfactual(run).causes) - 1
    slower = TASK[Limits().quickest].us / TASK["compiled"].us
    changed = tasks * slower * CHANGED
    effort = tasks * AROUND + causes * tasks * slower * WITHOUT + changes * changed
    return Work(causes + changes, effort, changed)
