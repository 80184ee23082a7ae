"""Search of a space that is too large to examine every plan: optuna chooses the next plan to simulate, within a budget.

Its tree-structured Parzen estimator proposes values of each part of a plan from the results of earlier plans. A proposal passes
the same questions as in any search: legality, memory, a proven bound, and the step. Plans that cannot be among the best are not
simulated, and plans that cannot run are never reported. Nothing is proven about plans that were not tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UserError
from ..study.grid import Axis
from ..study.pool import Call, Polled, Workers, opened
from ..units import seconds
from .best_first import BUSY_TIME, HINT, LEFT_OUT, NOT_REACHED, SIMULATED, TOO_SLOW, Aim, Candidate, Search, Value
from .choice_scenario import Base
from .plan_checks import LEGAL, TOO_LONG, Examined, Measured, Weighed, examined, measured, quick_bounds_ns, weighed
from .space import Choice, Space, choice_by, number_of_plans

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import Trial

INSTALL = "pip install 'cluster-training-simulator[search]'"
MOST_TRIES = 20
"""Largest number of proposals per simulated plan: many proposals are illegal, lack memory, or repeat an earlier one."""
WORDS = ("schedule", "sharding", "recompute", "split", "overlap")
"""Parts of a plan whose values have no order."""
SEED = 0
SAMPLE = 16


@dataclass(frozen=True, slots=True)
class Limits:
    """The value that a plan must beat to be simulated: that of the last of the wanted plans, if there are enough."""

    aim: Aim
    worst: Value | None

    def left_out(self, plan: Weighed, bound_ns: int) -> str:
        """Why a plan with this bound is not wanted; empty if it may be wanted."""
        if seconds(bound_ns) > self.aim.within_s:
            return TOO_SLOW
        is_worse = self.worst is not None and self.aim.least(plan, bound_ns) > self.worst
        return self.aim.left_out(BUSY_TIME) if is_worse else ""


@dataclass(frozen=True, slots=True)
class Tried:
    """The results of a plan after its questions."""

    weighed: Weighed
    bound_ns: int = 0
    left_out: str = ""
    ordered: Examined | None = None
    measured: Measured | None = None


def tried(base: Base, choice: Choice, limits: Limits, long: bool) -> Tried:
    """Answers the questions about a plan in order, until it is simulated or one of the answers rules it out."""
    (first,) = weighed(base, [choice])
    if first.status != LEGAL:
        return Tried(first)
    bound_ns = max(first.branch_ns, *quick_bounds_ns(base, [choice]))
    if left_out := limits.left_out(first, bound_ns):
        return Tried(first, bound_ns, left_out)
    ordered = examined(base, choice, bounds=False)
    if ordered.status != LEGAL:
        return Tried(first, bound_ns, ordered=ordered)
    return Tried(first, bound_ns, ordered=ordered, measured=measured(base, choice, "auto", long))


@dataclass(slots=True)
class SampledSearch(Search):
    """A search of the plans that optuna proposes; `plans` are the tried ones."""

    space: Space = field(default_factory=Space)
    axes: Sequence[Axis] = ()
    budget: int = 1
    """Largest number of plans that are simulated."""
    seed: int = SEED
    tries: int = 0
    _numbers: dict[str, int] = field(default_factory=dict)

    def run(self, workers: Workers, tell: Callable[[str], None]) -> None:
        """Tries the proposals of optuna until the budget is used up, or until too many proposals were useless."""
        study = _study(self.seed)
        with opened(workers, HINT) as pool:
            for (trial, number), found in pool.answers(Polled(partial(self.next_proposal, study)), 1):
                self._take(number, found, tell)
                self._learn(study, trial, self.plans[number])

    def next_proposal(self, study: Study) -> tuple[tuple[Trial, int], Call] | None:
        """A plan that was not tried before, and its question; None if nothing more may be submitted now."""
        from optuna.trial import TrialState

        every = number_of_plans(self.space, self.axes)
        while self._may_be_simulated() < self.budget and self.tries < MOST_TRIES * self.budget and len(self.plans) < every:
            self.tries += 1
            trial = study.ask()
            choice = choice_by(self.space, self.axes, lambda name, values: _picked(trial, name, values))  # noqa: B023
            if choice.text in self._numbers:
                study.tell(trial, state=TrialState.FAIL)  # optuna learns nothing from it
                continue
            number = self._numbers[choice.text] = len(self.plans)
            self.plans.append(Candidate(choice, choice.text))
            worst = self.best[self.aim.top - 1][0] if len(self.best) >= self.aim.top else None
            return (trial, number), (tried, (self.base, choice, Limits(self.aim, worst), self.long))
        return None

    def _may_be_simulated(self) -> int:
        """The number of plans that were simulated, or are in progress."""
        return sum(plan.status in (SIMULATED, TOO_LONG, NOT_REACHED) for plan in self.plans)

    def _take(self, number: int, found: Tried, tell: Callable[[str], None]) -> None:
        plan = self.plans[number]
        plan.weighed, plan.bound_ns = found.weighed, found.bound_ns
        plan.status = found.left_out or (found.weighed.status if found.weighed.status != LEGAL else NOT_REACHED)
        if found.ordered and self.take_examined(number, found.ordered) and found.measured:
            self.take_measured(number, found.measured, tell)

    def _learn(self, study: Study, trial: Trial, plan: Candidate) -> None:
        """Reports to optuna the value of a plan, or its lower bound if that excludes it; a plan that cannot run, or takes too
        long for the days, has the worst value."""
        from optuna.trial import TrialState

        if plan.value is not None and plan.simulated()[1] <= self.aim.within_s:
            study.tell(trial, plan.value[0])
        elif plan.status in LEFT_OUT:
            study.tell(trial, self.aim.least(plan.weighed, plan.bound_ns)[0])
        else:
            study.tell(trial, state=TrialState.PRUNED)


def _study(seed: int) -> Study:
    """A study of optuna that makes the same proposals for the same results every time."""
    if find_spec("optuna") is None:
        raise UserError("a budget needs optuna, which is not installed", hint=f"{INSTALL}, or a smaller space without a budget")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))


def _picked(trial: Trial, name: str, values: Sequence[Any]) -> Any:
    """The value that a trial proposes for a part of a plan: degrees as ordered values, words and further fields as categories."""
    if len(values) < 2:
        return values[0]
    by_order = name not in WORDS and "." not in name
    number = trial.suggest_int(name, 0, len(values) - 1) if by_order else trial.suggest_categorical(name, range(len(values)))
    return values[number]


def estimated_s(base: Base, space: Space, axes: Sequence[Axis]) -> float:
    """Processor seconds to check and bound every plan of a space, by some random ones."""
    draw = np.random.default_rng(SEED)
    began = perf_counter()
    for _ in range(SAMPLE):
        choice = choice_by(space, axes, lambda name, values: values[int(draw.integers(len(values)))])
        if weighed(base, [choice])[0].status == LEGAL:
            quick_bounds_ns(base, [choice])
    return (perf_counter() - began) / SAMPLE * number_of_plans(space, axes)
