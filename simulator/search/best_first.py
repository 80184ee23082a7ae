"""Best-first search for the best plans of a space: plans that can still be among the best are examined in order of their bounds.

Plans that differ only in their pipelines (stages, schedule, chunks, split) form a *branch*. A plan passes up to six checks,
called *questions*, each more expensive than the one before: whether it is legal and the state of the model fits in memory; a
lower bound from the time of its kernels, which is the minimum over a branch; a lower bound of its step in any order of its slots
(`quick_bound.py`); whether its first slots fit in memory (`first_slots.py`); whether all of them do in their order; and, if no
bound is known without the order, a lower bound of its step in this order (`bound.py`). The remaining plans are simulated. One
heap holds branches and plans by their bounds. The search ends when the least bound is above the value of the K-th best plan: no
remaining plan can be better. Plans of equal value are all simulated, and are ordered by their texts.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import groupby
from math import inf
from typing import Literal, NamedTuple, get_args

from ..errors import InvariantBroken
from ..study.pool import Call, Polled, Workers, opened
from ..units import HOUR_S, seconds
from .choice_scenario import Base, read
from .plan_checks import LEGAL, TOO_LONG, Branch, Examined, Measured, Weighed, check_branch, examined, measured, quick_bounds_ns
from .records import Known, NoRecords, Records
from .space import Choice

Objective = Literal["step_time", "cost", "energy", "memory", "gpus"]
Against = Literal["memory", "cost", "gpus"]
"""Quantities of which a Pareto front shows the trade-off against the step time."""
Value = tuple[float, ...]
"""The value of a plan, least for the best one: the minimised quantity, then the one that decides between equal plans."""
SIMULATED, NOT_REACHED, TOO_SLOW = "simulated", "not reached", "too slow for the days"
WORSE = {"step_time": "slower", "cost": "costlier", "energy": "of more energy", "gpus": "on more GPUs or slower"}
"""What a plan that a bound excludes is, by the objective that is minimised."""
MORE_MEMORY = "of more memory"
"""The same for the memory, which no bound of the step says."""
MOST_TOGETHER = 64
"""Largest number of plans of a branch that are examined in one task."""
FEW_BRANCHES = 4
"""Up to this number of branches per worker, quick bounds are computed at once with the first question, by the same worker."""
HINT = "memory may have run out: try fewer --workers; with --store, --resume continues the search"


@dataclass(frozen=True, slots=True)
class Aim:
    """The objective that is minimised, the number of wanted plans, and the longest acceptable step.

    With `against` the Pareto front is wanted instead: all plans that no other plan dominates in the two quantities.
    """

    objective: Objective = "step_time"
    top: int = 5
    against: Against | None = None
    within_s: float = inf

    def value(self, gpus: int, step_time_s: float, memory_bytes: float, energy_j: float | None) -> Value:
        """The value of a simulated plan: seconds, GPU-hours, joules or bytes of a step, or GPUs and then seconds."""
        if self.objective == "gpus":
            return float(gpus), step_time_s
        if self.objective == "memory":
            return (memory_bytes,)
        if self.objective == "energy":
            return (inf if energy_j is None else energy_j,)
        return (step_time_s * gpus / HOUR_S if self.objective == "cost" else step_time_s,)

    def left_out(self, by: str) -> str:
        """The outcome of a plan that a bound excludes; `by` says which bound of the step."""
        return MORE_MEMORY if self.objective == "memory" else f"{WORSE[self.objective]} by {by}"

    def least(self, plan: Weighed, step_ns: int) -> Value:
        """A lower bound of the value of a plan, from a lower bound of its step. A GPU draws its idle power throughout."""
        step_s = seconds(step_ns)
        return self.value(plan.gpus, step_s, plan.memory_bytes, plan.gpus * (plan.idle_w or 0.0) * step_s)

    def second_quantity(self, gpus: int, step_time_s: float, memory_bytes: float) -> float:
        """The second quantity of the front, beside the step time: bytes, GPU-hours or GPUs."""
        if self.against == "memory":
            return memory_bytes
        return step_time_s * gpus / HOUR_S if self.against == "cost" else float(gpus)


UNSEEN = Weighed(NOT_REACHED)


@dataclass(slots=True)
class Candidate:
    """A plan of the space, and what is known about it."""

    choice: Choice
    text: str
    status: str = NOT_REACHED
    weighed: Weighed = UNSEEN
    bound_ns: int = 0
    measured: Measured | None = None
    value: Value | None = None
    stage: int = 0
    """The next question, as in `Question`."""
    by_order: bool = True
    """Whether its bound in the order of its slots is computed, which costs about as much as a simulation."""

    @property
    def known(self) -> Known:
        """The record of the plan that is kept."""
        return Known(self.status, self.stage, self.bound_ns, self.weighed, self.measured)

    def simulated(self) -> tuple[Measured, float, Value]:
        """The simulation of a plan, its step time in seconds and its value."""
        if self.measured is None or self.measured.step_time_s is None or self.value is None:
            raise InvariantBroken(f"{self.text} was not simulated")
        return self.measured, self.measured.step_time_s, self.value


class Question(NamedTuple):
    """The next check of some plans: a stage of `STAGES`, and the numbers of the plans."""

    stage: int
    plans: tuple[int, ...]


CHECK, BOUND, EXAMINE, SIMULATE = range(4)
"""Legality, least memory and the kernels of a branch, its quick bounds, the memory and bound of a plan, its simulation."""
BUSY_TIME = "its busy time"
BY = {BOUND: "its kernels", EXAMINE: BUSY_TIME, SIMULATE: "its bound"}
"""The bound of the step that is known of a plan with this next question."""
LEFT_OUT = frozenset(Aim(objective).left_out(by) for objective in get_args(Objective) for by in BY.values())
"""Outcomes of plans whose next question is no longer needed."""
DOMINATED = "dominated by the front"
BOUNDED = LEFT_OUT | {DOMINATED, TOO_SLOW}
"""Outcomes of plans that their bounds exclude."""


@dataclass(slots=True)
class Search:
    """The plans of a space with the results so far; `run` examines them until the best are known."""

    base: Base
    aim: Aim
    plans: list[Candidate]
    long: bool = False
    records: Records = field(default_factory=NoRecords)
    best: list[tuple[Value, str, int]] = field(default_factory=list)
    """Value, text and number of the simulated plans, the best first; for a front, only of its plans."""
    _few: bool = False
    """Whether quick bounds are computed together with the first question."""
    _heap: list[tuple[Value, str, Question]] = field(default_factory=list)
    """Heap of questions: least value, text of the first plan, and the question."""

    def run(self, workers: Workers, tell: Callable[[str], None]) -> None:
        """Examines plans until the best are known. Results are saved before any question that depends on them."""
        if self.plans:
            read(self.base, self.plans[0].choice)  # forked processes inherit it
        with opened(workers, HINT) as pool:
            done = len(self.plans) - self._begin(pool.number, tell)
            for question, found in pool.answers(Polled(self.next_task), 1):
                if question.stage == CHECK:
                    self._take_weighed(question.plans, found)
                    done += len(question.plans)
                    tell(f"checked {done:,} of {len(self.plans):,} plans")
                elif question.stage == BOUND:
                    self._take_bounds(question.plans, found)
                elif question.stage == EXAMINE:
                    if self.take_examined(question.plans[0], found):
                        self._push(SIMULATE, question.plans)
                else:
                    self.take_measured(question.plans[0], found, tell)
                self._save(question.plans)

    def _begin(self, workers: int, tell: Callable[[str], None]) -> int:
        """Puts the first question about every plan on the heap. Returns the number of plans without an earlier result."""
        new = [self._recall(branch, tell) for branch in _branches(self.plans)]
        self._few = len(new) <= FEW_BRANCHES * workers
        for branch in new:
            self._push(CHECK, branch)
        return sum(map(len, new))

    def _take_weighed(self, branch: Sequence[int], found: Branch) -> None:
        """Stores the results of the first question for the plans of a branch."""
        legal = []
        for number, one in zip(branch, found.weighed, strict=True):
            plan = self.plans[number]
            plan.weighed, plan.bound_ns, plan.status = one, one.branch_ns, NOT_REACHED if one.status == LEGAL else one.status
            legal += [number] if one.status == LEGAL else []
        if found.quick_ns is None:
            self._push(BOUND, legal)
        else:
            self._take_bounds(legal, found.quick_ns)

    def _take_bounds(self, branch: Sequence[int], found: Sequence[int]) -> None:
        """Stores the quick bounds of legal plans of a branch."""
        for number, quick_ns in zip(branch, found, strict=True):
            plan = self.plans[number]
            plan.bound_ns, plan.by_order = max(plan.bound_ns, quick_ns), quick_ns == 0
            self._push(EXAMINE, [number])

    def _recall(self, branch: Sequence[int], tell: Callable[[str], None]) -> list[int]:
        """Reuses earlier results for plans of a branch, and returns the plans without any.

        Plans that took too long are examined again if long work is allowed.
        """
        new, to_bound = list[int](), list[int]()
        for number in branch:
            plan, known = self.plans[number], self.records.known(self.plans[number].choice)
            if known is None:
                new.append(number)
                continue
            plan.weighed, plan.bound_ns = known.weighed, known.bound_ns
            if known.measured and not (self.long and known.status == TOO_LONG):
                self.take_measured(number, known.measured, tell)
            elif known.status not in (NOT_REACHED, TOO_LONG):
                plan.status = known.status
            elif known.stage == BOUND:
                to_bound.append(number)
            else:
                self._push(known.stage, [number])
        self._push(BOUND, to_bound)
        return new

    def _save(self, numbers: Sequence[int]) -> None:
        plans = (self.plans[number] for number in numbers)
        self.records.save([(plan.choice, plan.known) for plan in plans])

    def _push(self, stage: int, numbers: Sequence[int]) -> None:
        """Puts a question about plans on the heap, by the least of their bounds. The first question precedes all others."""
        plans = [self.plans[number] for number in numbers]
        for plan in plans:
            plan.stage = stage
        if plans:
            least = min(self.aim.least(plan.weighed, plan.bound_ns) for plan in plans) if stage > CHECK else ()
            heappush(self._heap, (least, min(plan.text for plan in plans), Question(stage, tuple(numbers))))

    def take_examined(self, number: int, found: Examined) -> bool:
        """Stores the memory and bound of a plan in the order of its slots; returns whether it can be simulated."""
        plan = self.plans[number]
        memory_bytes = found.memory_bytes or plan.weighed.memory_bytes
        plan.weighed = replace(plan.weighed, memory_bytes=memory_bytes, reason=found.reason, example=found.example)
        plan.bound_ns = max(plan.bound_ns, found.bound_ns)
        if found.status != LEGAL:
            plan.status = found.status
        return found.status == LEGAL

    def take_measured(self, number: int, found: Measured, tell: Callable[[str], None]) -> None:
        """Stores the simulation of a plan."""
        plan = self.plans[number]
        plan.measured = found
        if found.step_time_s is None:
            plan.status = TOO_LONG
            return
        plan.status = SIMULATED
        plan.value = self.aim.value(plan.weighed.gpus, found.step_time_s, found.memory_bytes, found.energy_j)
        if found.step_time_s > self.aim.within_s:
            return
        insort(self.best, (plan.value, plan.text, number))
        if self.aim.against:
            self.best = list(self._front())
        tell(f"best of {len(self.best):,} simulated plans: {self.plans[self.best[0][2]].text}")

    def _front(self) -> Iterator[tuple[Value, str, int]]:
        """The simulated plans that no other plan dominates, the fastest first; of equally fast plans those with the least other
        quantity."""
        least: tuple[float, float] | None = None
        known = [(self.plans[one[2]].simulated()[1], self._other(one[2]), one) for one in self.best]
        for step_time_s, other, (value, text, number) in sorted(known):
            if least is None or other < least[1] or (step_time_s, other) == least:
                least = step_time_s, other
                yield value, text, number

    def _other(self, number: int) -> float:
        """The second quantity of the front for a simulated plan."""
        measured, step_time_s, _ = self.plans[number].simulated()
        return self.aim.second_quantity(self.plans[number].weighed.gpus, step_time_s, measured.memory_bytes)

    def _left_out(self, number: int, stage: int) -> str | None:
        """Why the bound of a plan excludes it from the wanted plans; None if it does not."""
        plan = self.plans[number]
        step_s = seconds(plan.bound_ns)
        if step_s > self.aim.within_s:
            return TOO_SLOW
        if self.aim.against:
            least = step_s, self.aim.second_quantity(plan.weighed.gpus, step_s, plan.weighed.memory_bytes)
            points = ((self.plans[one].simulated()[1], self._other(one)) for _, _, one in self.best)
            return DOMINATED if any(p[0] <= least[0] and p[1] <= least[1] and p != least for p in points) else None
        full = len(self.best) >= self.aim.top
        is_worse = full and self.aim.least(plan.weighed, plan.bound_ns) > self.best[self.aim.top - 1][0]
        return self.aim.left_out(BY[stage]) if is_worse else None

    def next_task(self) -> tuple[Question, Call] | None:
        """The next question, about the plans with the least bound; None if no remaining plan can be among the best."""
        while self._heap:
            _, _, (stage, plans) = heappop(self._heap)
            for number in plans:
                self.plans[number].status = self._left_out(number, stage) or NOT_REACHED
            question = Question(stage, tuple(number for number in plans if self.plans[number].status == NOT_REACHED))
            if question.plans:
                return question, self._call(question)
        return None

    def _call(self, question: Question) -> Call:
        """The function that answers a question, and its arguments."""
        choices = [self.plans[number].choice for number in question.plans]
        if question.stage == CHECK:
            return check_branch, (self.base, choices, self._few)
        if question.stage == BOUND:
            return quick_bounds_ns, (self.base, choices)
        if question.stage == EXAMINE:
            by_order = self.plans[question.plans[0]].by_order and self.aim.objective != "memory"
            return examined, (self.base, choices[0], by_order)
        return measured, (self.base, choices[0], "auto", self.long)


def _branches(plans: Sequence[Candidate]) -> Iterator[list[int]]:
    """The numbers of the plans of each branch, in groups of at most `MOST_TOGETHER`."""
    numbers = sorted(range(len(plans)), key=lambda number: (repr(plans[number].choice.branch), number))
    for _, alike in groupby(numbers, key=lambda number: repr(plans[number].choice.branch)):
        branch = list(alike)
        yield from (branch[begin : begin + MOST_TOGETHER] for begin in range(0, len(branch), MOST_TOGETHER))


def search_of(base: Base, aim: Aim, choices: Sequence[Choice], *, long: bool = False, records: Records | None = None) -> Search:
    """A search that has not examined any plan yet."""
    return Search(base, aim, [Candidate(choice, choice.text) for choice in choices], long, records or NoRecords())
