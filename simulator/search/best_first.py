"""The best plans of a space, best first: what could still be among the best is looked at, in the order of its bound.

A plan passes up to four questions, each dearer than the one before: is it legal, does it fit in memory, how long do its kernels
take at least (`quick_bound.py`), how long does its step take at least (`bound.py`); what is left is simulated. One heap holds all
plans by their bounds. The search ends when the least bound is above the value of the K-th best plan: nothing that is left can be
better. A plan that is as good as the K-th best is simulated, and stands behind it if its text does.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, Literal

from ..errors import InvariantBroken
from ..study.pool import Call, Pool, Workers, opened
from ..units import HOUR_S, seconds
from .records import Known, NoRecords, Records
from .space import Choice
from .weigh import LEGAL, TOO_LONG, Base, Measured, Weighed, bound_ns, measured, weighed

Objective = Literal["step_time", "cost", "energy", "memory"]
BY_KERNELS, BY_BOUND, SIMULATED, NOT_REACHED = "slower by its kernels", "slower by its bound", "simulated", "not reached"
TOGETHER = 4
"""Plans that are weighed in one task."""
HINT = "memory may have run out: try fewer --workers; with --store a search goes on with --resume where it was"


@dataclass(frozen=True, slots=True)
class Aim:
    """What is least for the best plan, and how many plans are wanted."""

    objective: Objective = "step_time"
    top: int = 5

    def value(self, gpus: int, step_time_s: float, memory_bytes: float, energy_j: float | None) -> float:
        """The value of a simulated plan: seconds, GPU-hours, joules or bytes of a step."""
        if self.objective == "memory":
            return memory_bytes
        if self.objective == "energy":
            return float("inf") if energy_j is None else energy_j
        return step_time_s * gpus / HOUR_S if self.objective == "cost" else step_time_s

    def least(self, plan: Weighed, step_ns: int) -> float:
        """The least value of a plan whose step takes at least so long. A GPU draws its idle power throughout."""
        step_s = seconds(step_ns)
        return self.value(plan.gpus, step_s, plan.memory_bytes, plan.gpus * (plan.idle_w or 0.0) * step_s)


UNSEEN = Weighed(NOT_REACHED)


@dataclass(slots=True)
class Looked:
    """What is known about a plan."""

    choice: Choice
    text: str
    status: str = NOT_REACHED
    weighed: Weighed = UNSEEN
    bound_ns: int = 0
    bounded: bool = False
    """Whether `bound_ns` is the proven bound."""
    measured: Measured | None = None
    value: float | None = None

    @property
    def known(self) -> Known:
        """What there is to keep about it."""
        return Known(self.weighed, self.bound_ns if self.bounded else None, self.measured)

    def simulated(self) -> tuple[Measured, float, float]:
        """The simulation of a plan, its step time in seconds and its value."""
        if self.measured is None or self.measured.step_time_s is None or self.value is None:
            raise InvariantBroken(f"{self.text} was not simulated")
        return self.measured, self.measured.step_time_s, self.value


@dataclass(slots=True)
class Search:
    """The plans of a space and what is known about each; `run` looks at them until the best are known."""

    base: Base
    aim: Aim
    plans: list[Looked]
    long: bool = False
    records: Records = field(default_factory=NoRecords)
    best: list[tuple[float, str, int]] = field(default_factory=list)
    """Value, text and number of the simulated plans, the best first."""
    _heap: list[tuple[float, str, int, bool]] = field(default_factory=list)
    """Least value, text and number of plans that may be among the best, and whether their proven bound is known."""

    def run(self, workers: Workers, tell: Callable[[str], None]) -> None:
        """Looks at plans until the best are known."""
        with opened(workers, HINT) as pool:
            self._weigh(pool, tell)
            for (number, bounding), found in pool.answers(_Tasks(self), 1):
                plan = self.plans[number]
                if bounding:
                    plan.bound_ns, plan.bounded = max(found, plan.weighed.quick_ns), True
                    self._push(number, bounded=True)
                else:
                    self._add(number, found, tell)
                self.records.save([(plan.choice, plan.known)])
        for _, _, number, bounded in self._heap:
            self.plans[number].status = BY_BOUND if bounded else BY_KERNELS

    def _weigh(self, pool: Pool, tell: Callable[[str], None]) -> None:
        numbers = [number for number in range(len(self.plans)) if not self._recalled(number, tell)]
        groups = [numbers[begin : begin + TOGETHER] for begin in range(0, len(numbers), TOGETHER)]
        tasks = iter([(group, (weighed, (self.base, [self.plans[number].choice for number in group]))) for group in groups])
        done = len(self.plans) - len(numbers)
        for group, found in pool.answers(tasks, 4):
            for number, one in zip(group, found, strict=True):
                plan = self.plans[number]
                plan.weighed, plan.bound_ns = one, one.quick_ns
                self._sort(number)
            self.records.save([(plan.choice, plan.known) for plan in (self.plans[number] for number in group)])
            done += len(group)
            tell(f"weighed {done:,} of {len(self.plans):,} plans")

    def _recalled(self, number: int, tell: Callable[[str], None]) -> bool:
        """Takes up what is known about a plan from before. What took too long is done anew if long work is done."""
        plan = self.plans[number]
        known = self.records.known(plan.choice)
        if known is None:
            return False
        plan.weighed, plan.bounded = known.weighed, known.bound_ns is not None
        plan.bound_ns = known.weighed.quick_ns if known.bound_ns is None else known.bound_ns
        if known.measured and not (self.long and known.measured.step_time_s is None):
            self._add(number, known.measured, tell)
        else:
            self._sort(number)
        return True

    def _sort(self, number: int) -> None:
        """Puts a weighed plan where it is looked at next, or aside."""
        plan = self.plans[number]
        if plan.weighed.status == LEGAL:
            self._push(number, bounded=plan.bounded or self.aim.objective == "memory")
        else:
            plan.status = plan.weighed.status

    def _push(self, number: int, *, bounded: bool) -> None:
        plan = self.plans[number]
        heappush(self._heap, (self.aim.least(plan.weighed, plan.bound_ns), plan.text, number, bounded))

    def _add(self, number: int, found: Measured, tell: Callable[[str], None]) -> None:
        plan = self.plans[number]
        plan.measured = found
        if found.step_time_s is None:
            plan.status = TOO_LONG
            return
        plan.status = SIMULATED
        plan.value = self.aim.value(plan.weighed.gpus, found.step_time_s, found.memory_bytes, found.energy_j)
        insort(self.best, (plan.value, plan.text, number))
        tell(f"best of {len(self.best):,} simulated plans: {self.plans[self.best[0][2]].text}")

    def next_task(self) -> tuple[tuple[int, bool], Call] | None:
        """The question to ask next: about the plan with the least bound; None if nothing that is left can be among the best."""
        if not self._heap:
            return None
        if len(self.best) >= self.aim.top and self._heap[0][0] > self.best[self.aim.top - 1][0]:
            return None
        _, _, number, bounded = heappop(self._heap)
        choice = self.plans[number].choice
        if bounded:
            return (number, False), (measured, (self.base, choice, "auto", self.long))
        return (number, True), (bound_ns, (self.base, choice))


class _Tasks:
    """The questions of a search one after the other. There may be more after it has ended, when results have come."""

    def __init__(self, search: Search) -> None:
        self._search = search

    def __iter__(self) -> Iterator[tuple[Any, Call]]:
        return self

    def __next__(self) -> tuple[Any, Call]:
        task = self._search.next_task()
        if task is None:
            raise StopIteration
        return task


def search_of(base: Base, aim: Aim, choices: Sequence[Choice], *, long: bool = False, records: Records | None = None) -> Search:
    """A search that has not looked at anything yet."""
    return Search(base, aim, [Looked(choice, choice.text) for choice in choices], long, records or NoRecords())
